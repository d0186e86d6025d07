import functools
import textwrap
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from nearkin.core.errors import MismatchError, NearkinError, OptionError
from nearkin.nets.functional import check, view
from nearkin.nets.registry import build, default_network, path_of
from nearkin.nets.small import LeNet
from nearkin.nets.spec import NETWORKS, NetworkSpec, text_of, value_of
from nearkin.nets.trusted_code import trust, trust_network
from nearkin.tasks.task import Task

TINY = {
    "mlp": ("mlp?hidden=8-4", (6,)),
    "recurrent": ("recurrent?embedding=6&hidden=5", (5,)),
    "recurrent tied": ("recurrent?embedding=6&hidden=6&tied=true", (5,)),
    **{n: (f"{n}?width=0.0625", (1, 8, 8)) for n in ("autoencoder", "densenet121", "lenet", "resnet18", "vgg16")},
}
SHAPED_BY_OUTPUTS = ("head.", "output.", "embedding.")

USER = textwrap.dedent(
    """
    from __future__ import annotations
    import math
    from dataclasses import dataclass
    import torch
    from torch import nn

    @dataclass
    class Sizes:
        inner: int = 8

    class Late(nn.Module):
        'The layer that knows the number of outputs is drawn first.'
        def __init__(self, input_shape, num_classes, inner=Sizes().inner, act="relu", flags=(1, 2), gate=False):
            super().__init__()
            self.last = nn.Linear(inner, num_classes)
            self.first = nn.Linear(math.prod(input_shape), inner)
            self.register_buffer("basis", torch.randn(inner))
            self.options = (inner, act, flags, gate)
        def forward(self, x):
            return self.last(torch.relu(self.first(x.flatten(1))) * self.basis)

    class Fixed(nn.Module):
        'Knows nothing of tasks.'
        def __init__(self, inner=8):
            super().__init__()
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, inner), nn.ReLU())
            self.classifier = nn.Sequential(nn.Dropout(), nn.Linear(inner, 1000))
        def forward(self, x):
            return self.classifier(self.body(x))

    def lazy():
        return nn.Sequential(nn.Flatten(), nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(3))

    def anything(**keywords):
        return Late(keywords["input_shape"], keywords["num_outputs"])

    class Outer:
        Late = Late

    class Plain:
        pass

    def number(): return 3
    def broken(depth): return nn.Linear(depth, 2)
    def headless(): return nn.Conv2d(1, 3, 3)
    made = nn.Linear(2, 2)
    constant = 5
    """
)


@pytest.fixture
def user(tmp_path: Path) -> str:
    path = tmp_path / "user_networks.py"
    path.write_text(USER)
    trust(str(path))
    return str(path)


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value for name, value in view(model).params.items() if not name.startswith(SHAPED_BY_OUTPUTS)}


def alike(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("name", TINY)
def test_one_initialisation_a_trial_whatever_the_task(name: str) -> None:
    spec, shape = TINY[name]
    two, ten, again = (build(spec, shape, outputs, seed=3, trial=1) for outputs in (2, 10, 10))
    assert len(weights(two)) > 0
    assert alike(weights(two), weights(ten))
    assert alike(view(ten).params, view(again).params)
    check(two, shape, 2, {"autoencoder": "dense"}.get(name, "language" if "recurrent" in name else "categorical"))


@pytest.mark.parametrize("name", TINY)
def test_trials_and_seeds_differ(name: str) -> None:
    spec, shape = TINY[name]
    models = [build(spec, shape, 3, seed=seed, trial=trial) for seed, trial in ((0, 0), (0, 1), (1, 0))]
    for key in view(models[0]).params:
        first, second, third = (model.get_parameter(key) for model in models)
        if first.dim() > 1:
            assert not torch.equal(first, second)
            assert not torch.equal(first, third)


def test_building_neither_uses_nor_moves_the_global_generator() -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = build("lenet", (1, 8, 8), 3, seed=0)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert alike(view(first).params, view(build("lenet", (1, 8, 8), 3, seed=0)).params)


# The file draws numbers when it is imported (`made`), which must not shift what is drawn after.
@pytest.mark.parametrize("name", ["Late", "Outer.Late", "anything", "Fixed", "lazy"])
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_the_law_holds_for_anyones_network(user: str, name: str) -> None:
    two, ten = (build(f"{user}:{name}", (1, 8, 8), outputs, seed=0) for outputs in (2, 10))
    for model, outputs in ((two, 2), (ten, 10)):
        check(model, (1, 8, 8), outputs, "categorical")
    a, b = view(two), view(ten)
    differing = [key for key in a.params if not torch.equal(a.params[key], b.params[key])]
    assert len(differing) == 2
    assert all(a.params[key].shape[0] == 2 for key in differing)
    assert alike(a.buffers, b.buffers)
    other = build(f"{user}:{name}", (1, 8, 8), 2, seed=0, trial=1)
    assert not alike(a.params, view(other).params)


def test_options_reach_anyones_network(user: str) -> None:
    text = f"{user}:Late?inner=4&act=tanh&flags=3-4-5&gate=true"
    assert build(text, (6,), 2, seed=0).options == (4, "tanh", (3, 4, 5), True)
    assert build(f"{user}:Fixed?inner=3", (1, 8, 8), 2, seed=0).classifier[1].in_features == 3


def test_a_module_on_the_path_and_a_changed_file(user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    trust("user_networks")
    assert build("user_networks:Late?inner=2", (3,), 2, seed=0).first.out_features == 2
    Path(user).write_text(USER.replace("inner: int = 8", "inner: int = 9"))
    assert build(f"{user}:Late", (3,), 2, seed=0).first.out_features == 9


def test_torchs_own_layers_are_networks_too() -> None:
    trust("torch.nn")
    model = build("torch.nn:Linear?in_features=4", (4,), 3, seed=0)
    assert (model.in_features, model.out_features) == (4, 3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Lat", "has no 'Lat'; did you mean Late?"),
        ("Plain", "is the class Plain, expected an nn.Module class"),
        ("constant", "is an object of int, expected"),
        ("made", "is an object of Linear, expected"),
        ("number", "made an object of int, expected an nn.Module"),
        ("broken", "cannot be made with no options: TypeError"),
        ("broken?depth=deep", "cannot be made with depth='deep': TypeError"),
        ("Late?wings=2", "unexpected keyword argument 'wings'"),
        ("Late?num_classes=2", "the task sets num_classes; leave it out"),
    ],
)
def test_errors_about_anyones_network_are_one_line(user: str, name: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        build(f"{user}:{name}", (1, 8, 8), 2, seed=0)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["no_such_module:Net", "no/such/file.py:Net", "torch.nowhere:Net"])
def test_a_missing_module_is_named(path: str) -> None:
    trust_network(path)
    with pytest.raises(OptionError, match=r"cannot import .*check the name, or give the path of its file"):
        build(path, (4,), 2, seed=0)


def test_a_broken_file_is_told_in_one_line_and_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("raise RuntimeError('first\\nsecond')")
    trust(str(path))
    for _ in range(2):
        with pytest.raises(OptionError, match="RuntimeError: first second") as caught:
            build(f"{path}:Net", (4,), 2, seed=0)
        assert "\n" not in str(caught.value)


def test_a_network_that_ends_in_no_linear_layer_must_take_the_outputs(user: str) -> None:
    with pytest.raises(MismatchError, match="let its constructor take num_outputs"):
        build(f"{user}:headless", (1, 8, 8), 2, seed=0)
    with pytest.raises(MismatchError, match="cannot read inputs of shape"):
        build(f"{user}:Fixed", (1, 9, 9), 2, seed=0)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("lenet", "lenet"),
        (" lenet?width=1 ", "lenet"),
        ("mlp?hidden=256-128", "mlp"),
        ("mlp?hidden=64", "mlp?hidden=64"),
        ("mlp?hidden=", "mlp?hidden="),
        ("resnet18?width=.25", "resnet18?width=0.25"),
        ("resnet18?width=2", "resnet18?width=2.0"),
        ("recurrent?tied=true&cell=gru&layers=2", "recurrent?cell=gru&layers=2&tied=true"),
        ("a.b:C?z=1&b=x-y&a=1-2", "a.b:C?a=1-2&b=x-y&z=1"),
        ("dir/file.py:Net", "dir/file.py:Net"),
    ],
)
def test_strings_have_one_canonical_form(text: str, canonical: str) -> None:
    spec = NetworkSpec.parse(text)
    assert str(spec) == canonical
    assert NetworkSpec.parse(canonical) == spec
    assert hash(NetworkSpec.parse(canonical)) == hash(spec)


def test_options_equal_to_the_default_build_the_same_network() -> None:
    plain, told = (build(text, (6,), 2, seed=0) for text in ("mlp", "mlp?hidden=256-128"))
    assert alike(view(plain).params, view(told).params)
    assert build("mlp?hidden=", (6,), 2, seed=0).head.in_features == 6


VALUES = st.one_of(
    st.booleans(),
    st.integers(-(10**9), 10**9),
    st.floats(allow_nan=False, allow_infinity=False),
    st.lists(st.integers(0, 999), min_size=2, max_size=4).map(tuple),
    st.from_regex(r"[a-z_/]{1,8}", fullmatch=True).filter(lambda text: text not in ("true", "false")),
)


@given(st.dictionaries(st.from_regex(r"[a-z]{1,6}", fullmatch=True), VALUES, max_size=4))
def test_specs_survive_writing(options: dict[str, object]) -> None:
    spec = NetworkSpec("a.b:C", tuple(options.items()))
    again = NetworkSpec.parse(str(spec))
    assert again == spec
    assert [type(value) for _, value in again.options] == [type(value) for _, value in spec.options]


@given(VALUES)
def test_values_survive_writing(value: object) -> None:
    again = value_of(text_of(value))
    assert (type(again), again) == (type(value), value)


@pytest.mark.parametrize("value", ["3", "true", "1-2", "a&b", "a=b", "a ", float("inf"), (4,)])
def test_values_that_writing_would_change_are_refused(value: object) -> None:
    with pytest.raises(OptionError, match="cannot be written in a network string"):
        NetworkSpec("a.b:C", (("option", value),))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("resnet", "unknown network 'resnet'; did you mean resnet18?"),
        ("LeNet", "did you mean lenet?"),
        ("zzz", "choose one of autoencoder, densenet121, lenet, mlp, recurrent, resnet18, vgg16, or your own"),
        ("", "unknown network ''"),
        ("lenet?depth=3", "lenet has no option 'depth'; it has width"),
        ("recurrent?vocabulary=3", "it has embedding, hidden, layers, dropout, tied, cell"),
        ("lenet?width", "options are written name=value, got 'width'"),
        ("lenet?=3", "options are written name=value"),
        ("lenet?width=2&width=3", "option width is given twice"),
        ("lenet?width=wide", "lenet cannot read width=wide; write it as width=1.0"),
        ("lenet?width=true", "lenet cannot read width=true"),
        ("recurrent?layers=1.5", "recurrent cannot read layers=1.5; write it as layers=1"),
        ("mlp?hidden=many", "mlp cannot read hidden=many; write it as hidden=256-128"),
        ("lenet?width=-1", "width is a factor > 0, got -1.0"),
        ("mlp?hidden=8-0", "sizes >= 1"),
    ],
)
def test_wrong_strings_are_told_in_one_line(text: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        build(text, (1, 8, 8), 2, seed=0)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_shapes_and_outputs_are_the_familys_errors() -> None:
    with pytest.raises(MismatchError, match="use mlp for tables"):
        build("vgg16", (13,), 2, seed=0)
    with pytest.raises(OptionError, match="one output or more"):
        build("lenet", (1, 8, 8), 0, seed=0)


def test_default_networks_fit_their_tasks() -> None:
    images, table = torch.rand(20, 1, 8, 8), torch.rand(20, 5)
    labels, values = torch.arange(20) % 2, torch.rand(20, 2)
    tasks = {
        "lenet": [Task.from_arrays("a", images, labels), Task.from_arrays("b", images, values)],
        "mlp": [Task.from_arrays("c", table, labels), Task.from_arrays("d", table, values)],
        "autoencoder": [Task.from_arrays("e", images, images, likelihood="dense")],
    }
    for network, members in tasks.items():
        for task in members:
            assert default_network(task) == network
            model = build(network, task.input_shape, task.num_outputs, seed=0)
            check(model, task.input_shape, task.num_outputs, task.likelihood)


def test_paths_of_classes_lead_back_to_them() -> None:
    assert path_of(LeNet) == "lenet"
    assert path_of(nn.Linear) == "torch.nn.modules.linear:Linear"
    assert {path_of(network) for network in NETWORKS.values()} == set(NETWORKS)


def test_what_cannot_be_imported_again_is_refused() -> None:
    class Local(nn.Module):
        pass

    main = type("Net", (nn.Module,), {"__module__": "__main__"})
    shadow = type("Linear", (nn.Module,), {"__module__": "torch.nn"})
    for factory in (Local, lambda: nn.Linear(1, 1), functools.partial(nn.Linear, 2), main, shadow):
        with pytest.raises(NearkinError, match="cannot be imported again by its name; define it at the top"):
            path_of(factory)
