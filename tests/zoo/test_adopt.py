"""Trained models as members of a zoo: what is stored, what is equal, what is refused."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nearkin as nk
from nearkin.core.errors import DataError, MismatchError, NearkinError, OptionError, ZooError
from nearkin.core.events import Caution, Note, finish
from nearkin.distance.fisher_based.readings import refitted
from nearkin.distance.source_on_target import SourceOnTarget
from nearkin.nets.adopted_spec import AdoptedSpec
from nearkin.nets.heads import features
from nearkin.nets.registry import build
from nearkin.store.columns import some_ids, task_groups
from nearkin.tasks.network_inputs import NetworkInputs
from nearkin.zoo.comparison import Comparison, StoredTarget
from nearkin.zoo.licences import licence_caution
from nearkin.zoo.packed_points import PackedPoints
from nearkin.zoo.preprocess import Preprocess
from nearkin.zoo.shortlist import shortlisted

DIGITS = "digits?limit=300"


@pytest.fixture
def zoo(tmp_path: Path) -> Iterator[nk.Zoo]:
    with nk.Zoo(tmp_path / "zoo") as opened:
        yield opened


def images() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 5)).eval()


class Pair(nn.Module):
    """A module with two named inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 4), nn.Linear(6, 2)

    def forward(self, ids: Tensor, values: Tensor) -> Tensor:
        return self.head(torch.cat([self.words(ids).mean(1), values], 1))


class Outputs(nn.Module):
    """A module with two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 2), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.first(x), self.second(x)


def heard(work: Any) -> tuple[Any, list[str]]:
    """The result of an operation, and its warnings."""
    texts: list[str] = []
    with nk.listening(lambda event: texts.append(event.text) if isinstance(event, Caution) else None):
        return work(), texts


def test_adopted_and_added_copies_are_equal(zoo: nk.Zoo) -> None:
    task = nk.task(DIGITS, name="added")
    zoo.add(task, "lenet?width=0.5", trials=1)
    model = zoo.solved("added").model()
    record = zoo.adopt("adopted", "lenet?width=0.5", weights=model, task=nk.task(DIGITS), licence="mit")
    assert (record.network, record.trials, record.facts["adopted"]["licence"]) == ("lenet?width=0.5", 1, "mit")
    assert record.metric == zoo.record("added").metric
    first, second = zoo.fisher("added"), zoo.fisher("adopted")
    assert all(torch.equal(first.values[name], second.values[name]) for name in first.values)
    x = task.test.first(9).x
    assert torch.equal(zoo.solved("adopted").model()(x), model(x))
    target = nk.task("digits?parity&limit=200", name="parity")
    for measure in ("logme", "short-finetune", "task2vec", "frechet"):
        for reading in ("auto", "padded", "model", "refit") if measure == "frechet" else ("",):
            options = {"reading": reading} if reading else {}
            kin = {kin.name: (kin.distance, kin.form) for kin in zoo.near(target, measure, samples=200, **options)}
            assert kin["added"] == kin["adopted"], (measure, reading)
    assert zoo.task("adopted").fingerprint() == task.fingerprint()


def test_copies_are_equal_from_every_seed_and_as_targets(zoo: nk.Zoo) -> None:
    recipe = nk.Recipe(steps=30)
    for name, data in (("added", DIGITS), ("other", "digits?parity&limit=200")):
        zoo.add(nk.task(data, name=name), "mlp?hidden=8", trials=1, recipe=recipe, seed=3)
    before = zoo.matrix(["added", "other"], samples=100)
    zoo.adopt("adopted", "mlp?hidden=8", weights=zoo.solved("added").model(), task=nk.task(DIGITS))
    distances = zoo.matrix(samples=100)
    assert (before.form, distances.form) == ("padded/mixed", "model/sorted")
    added, other, adopted = (distances.mean[zoo.names().index(name)] for name in ("added", "other", "adopted"))
    assert torch.equal(added, adopted)
    assert float(added[0]) == float(added[2]) == 0
    assert float(other[0]) == float(other[2]) > 0
    assert torch.equal(zoo.matrix(["added", "other"], samples=100).trials, before.trials)
    target = nk.task("digits?detect=3&limit=200", name="three")
    kin, events = heard(lambda: zoo.near(target, "frechet", samples=100))
    assert {one.form for one in kin} == {"model/sorted"}
    by_name = {one.name: one.distance for one in kin}
    assert by_name["added"] == by_name["adopted"]
    assert any("networks of 'adopted' are not known" in text for text in events)


def adopt_with_mean(zoo: nk.Zoo, *names: str, mean: str = "") -> None:
    """The same network under each name, with the mean of its name or of another one."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)).eval()
    for name in names:
        inputs = {"shape": "1,8,8", "mean": {"a": 0.0, "b": 0.8}[mean or name], "std": 0.3}
        zoo.adopt(name, module, task=nk.task("digits?limit=200"), preprocess=inputs)


@pytest.mark.parametrize("measure", ["frechet", "task2vec"])
def test_distances_do_not_depend_on_other_models_with_other_preprocessing(tmp_path: Path, measure: str) -> None:
    target = nk.task("digits?parity&limit=150")
    values: dict[tuple[str, ...], dict[str, float]] = {}
    for names in (("a",), ("b",), ("a", "b"), ("b", "a")):
        with nk.Zoo(tmp_path / "".join(names)) as zoo:
            adopt_with_mean(zoo, *names)
            values[names] = {kin.name: kin.distance for kin in zoo.near(target, measure, samples=100)}
    assert values["a", "b"] == values["b", "a"] == values["a",] | values["b",]
    assert values["a",]["a"] != values["b",]["b"]


@pytest.mark.parametrize("measure", ["frechet", "task2vec"])
def test_values_of_a_removed_model_are_not_read_for_its_successor(tmp_path: Path, measure: str) -> None:
    matrices = []
    for before in ("a", ""):
        with nk.Zoo(tmp_path / f"zoo{before}") as zoo:
            zoo.add(nk.task("digits?parity&limit=150", name="parity"), "mlp?hidden=4", trials=1)
            for mean in filter(None, (before, "b")):
                adopt_with_mean(zoo, "a", mean=mean)
                matrices.append(zoo.matrix(measure=measure, samples=60).trials)
                zoo.near(nk.task("digits?detect=1&limit=150"), "frechet", samples=60, screen=1)
                zoo.remove("a")
    assert not torch.equal(matrices[0], matrices[1])
    assert torch.equal(matrices[1], matrices[2])


def test_the_target_s_stored_network_is_not_used_with_the_preprocessing_of_another(zoo: nk.Zoo) -> None:
    adopt_with_mean(zoo, "a", "b")
    as_new = {kin.name: kin.distance for kin in zoo.near(nk.task("digits?limit=200"), "frechet", samples=100)}
    stored = {kin.name: kin.distance for kin in zoo.near("b", "frechet", samples=100)}
    assert stored["a"] == as_new["a"]
    assert zoo.matrix(["b", "a"], samples=100).mean.diagonal().tolist() == [0, 0]


def test_screening_compares_each_model_in_its_own_preprocessing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points: dict[tuple[str, int], Tensor] = {}
    nearest = PackedPoints.nearest

    def noted(packed: PackedPoints, point: Tensor, top: int, only: set[int]) -> list[tuple[int, float]]:
        (number,) = only
        points[order, number] = point
        return nearest(packed, point, top, only)

    monkeypatch.setattr(PackedPoints, "nearest", noted)
    target = nk.task("digits?parity&limit=150")
    how = Comparison.of("frechet", samples=100, screen=2)
    for order in ("ab", "ba"):
        with nk.Zoo(tmp_path / order) as zoo:
            adopt_with_mean(zoo, *order)
            for sources in (None, zoo.records()):
                chosen = finish(shortlisted(StoredTarget(zoo, target, how.device), 1, how, sources))
                assert {record.name for record in chosen} == {"a", "b"}
    assert torch.equal(points["ab", 1], points["ba", 2])
    assert torch.equal(points["ab", 2], points["ba", 1])
    assert not torch.equal(points["ab", 1], points["ab", 2])


def test_models_without_a_task_are_not_screened(zoo: nk.Zoo) -> None:
    zoo.add(nk.task(DIGITS, name="digits"), "mlp?hidden=8", trials=1, recipe=nk.Recipe(steps=5))
    solved = zoo.solved("digits")
    zoo.remove("digits")
    zoo.adopt("none", "mlp?hidden=8", weights=solved.model(), preprocess="shape=1,8,8")
    for name in ("digits", "again"):
        zoo.add(nk.task(DIGITS, name=name), "mlp?hidden=8", trials=1, recipe=nk.Recipe(steps=5))
    (group,) = task_groups(zoo.catalogue)
    assert group.count == 2
    assert some_ids(zoo.catalogue, group, 9) == [zoo.record(name).id for name in ("digits", "again")]


def test_embeddings_of_a_wrapped_network_are_measured_in_one_network(
    zoo: nk.Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopt_with_mean(zoo, "a")
    bodies: list[Tensor] = []

    def noted(view: SourceOnTarget, **options: Any) -> nn.Module:
        bodies.append(next(iter(view.model.parameters())).clone())
        return refitted(view, **options)

    monkeypatch.setattr("nearkin.distance.probe_embedding.refitted", noted)
    zoo.near(nk.task("digits?parity&limit=150"), "task2vec", samples=100)
    first, second = bodies
    assert torch.equal(first, second)


def test_a_wrapped_copy_gives_equal_fisher_information_and_distances(zoo: nk.Zoo) -> None:
    zoo.add(nk.task(DIGITS, name="added"), "mlp?hidden=16", trials=1)
    model = zoo.solved("added").model()
    layers = nn.Sequential(nn.Flatten(), *[layer for layer in model.modules() if isinstance(layer, nn.Linear)])
    plain = nn.Sequential(layers[0], layers[1], nn.ReLU(), layers[2])
    assert torch.allclose(plain(torch.ones(1, 1, 8, 8)), model(torch.ones(1, 1, 8, 8)), atol=1e-6), "the same network"
    zoo.adopt("plain", plain, task=nk.task(DIGITS))
    first, second = zoo.fisher("added"), zoo.fisher("plain")
    for one, other in zip(first.values.values(), second.values.values(), strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-9)
    kin = {kin.name: kin.distance for kin in zoo.near(nk.task("digits?parity&limit=200"), "logme")}
    assert kin["added"] == pytest.approx(kin["plain"], abs=1e-6)


def test_preprocessing_is_that_of_the_model(zoo: nk.Zoo) -> None:
    module = images()
    zoo.adopt(
        "net", module, preprocess={"size": 8, "mean": (0.5, 0.4, 0.3), "std": 0.25, "order": "bgr"}, source="here"
    )
    solved = zoo.solved("net")
    assert solved.inputs == NetworkInputs((3, 8, 8), (0.5, 0.4, 0.3), (0.25, 0.25, 0.25), fields=())
    task = nk.Task.from_arrays("noise", torch.rand(30, 3, 16, 16), torch.arange(30) % 3)
    seen = solved.inputs(task)
    x = seen.train.first(4).x
    raw = torch.nn.functional.interpolate(
        task.train.inputs.take(torch.arange(4)), size=(8, 8), mode="bilinear", antialias=True
    )
    scaled = (raw - torch.tensor([0.5, 0.4, 0.3]).view(1, 3, 1, 1)) / 0.25
    assert torch.allclose(x, scaled, atol=1e-5)
    assert torch.allclose(solved.model()(x), module(scaled.flip(1)), atol=1e-5)
    shown = zoo.record("net")
    assert (shown.trials, shown.facts["adopted"]["source"]) == (0, "here")


def test_a_model_without_a_task_takes_no_part_in_comparisons(zoo: nk.Zoo) -> None:
    zoo.adopt("net", images(), preprocess="size=8")
    with pytest.raises(ZooError, match="no other task"):
        zoo.near(nk.task(DIGITS), "logme")
    zoo.add(nk.task(DIGITS, name="digits"), "mlp?hidden=8", trials=1)
    assert [kin.name for kin in zoo.near(nk.task("digits?parity&limit=200"), "logme")] == ["digits"]
    assert [record.name for record in zoo.records()] == ["digits"]
    assert zoo.names() == ["net", "digits"]
    answer = zoo.transfer("net", nk.task("digits?limit=200"), shots=5, baselines=False, weights="head")
    assert 0.1 < answer.metric <= 1


def test_named_inputs_are_adopted_with_their_task(zoo: nk.Zoo) -> None:
    torch.manual_seed(0)
    inputs = {"ids": torch.randint(0, 9, (60, 5)), "values": torch.randn(60, 2)}
    task = nk.Task.from_arrays("pair", inputs, (inputs["values"][:, 0] > 0).long())
    module = Pair().eval()
    record = zoo.adopt("pair", module, task=task)
    assert (record.trials, record.input_shape) == (1, (7,))
    solved = zoo.solved("pair")
    x = zoo.task("pair").train.first(5).x
    ids, values = x[:, :5].long(), x[:, 5:]
    assert torch.equal(solved.model()(x), module(ids, values))
    assert zoo.fisher("pair").trace() > 0


def test_features_are_the_inputs_of_the_head(zoo: nk.Zoo) -> None:
    module = images()
    zoo.adopt("net", module, preprocess="size=8")
    x = torch.randn(3, 3, 8, 8)
    network = zoo.solved("net").model()
    assert torch.equal(features(network, x, "network.4"), module[:4](x))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({}, OptionError, "inputs of 'bad' are not known"),
        ({"preprocess": "size=5"}, MismatchError, "cannot read inputs"),
        ({"preprocess": "size=0"}, OptionError, "size is '0'"),
        ({"preprocess": "width=3"}, OptionError, "preprocessing has no width"),
        ({"preprocess": "size=8&mean=0.5"}, OptionError, "mean without std"),
        ({"preprocess": "size=8&mean=1,2&std=1"}, OptionError, "expected 1 or 3"),
        ({"preprocess": "size=8&order=xyz"}, OptionError, "expected one of rgb, bgr"),
        ({"preprocess": "tokenizer=/nowhere/tokenizer.json"}, DataError, "no tokenizer"),
        ({"preprocess": "size=8", "head": "fc"}, MismatchError, "no linear layer 'fc'"),
        ({"preprocess": "size=8", "output": "logits"}, MismatchError, "output 'logits'"),
        ({"preprocess": "size=8", "licence": "mit\x1b[2J"}, ZooError, "control characters"),
        ({"preprocess": "size=8", "weights": "/nowhere.pth"}, DataError, "no file"),
    ],
)
def test_bad_input_gives_one_line_and_stores_nothing(
    zoo: nk.Zoo, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        zoo.adopt("bad", images(), **options)
    assert "\n" not in str(caught.value)
    assert zoo.names() == []


def test_a_task_with_another_number_of_classes_is_refused(zoo: nk.Zoo) -> None:
    with pytest.raises(MismatchError, match="has 5 outputs, its task needs 10"):
        zoo.adopt("net", images(), task=nk.task(DIGITS), preprocess="size=8")


def test_weights_of_a_file_do_not_change_the_module_of_the_caller(zoo: nk.Zoo, tmp_path: Path) -> None:
    module = images()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    torch.save({name: value + 1 for name, value in before.items()}, tmp_path / "w.pth")
    zoo.adopt("net", module, weights=tmp_path / "w.pth", preprocess="size=8")
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert torch.equal(zoo.solved("net").trials[0].params["network.4.bias"], before["4.bias"] + 1)


def test_weights_of_a_data_parallel_run_tell_the_number_of_outputs(zoo: nk.Zoo, tmp_path: Path) -> None:
    model = build("lenet?width=0.25", (1, 8, 8), 5, seed=0)
    torch.save({f"module.{name}": value for name, value in model.state_dict().items()}, tmp_path / "w.pth")
    zoo.adopt("net", "lenet?width=0.25", weights=tmp_path / "w.pth", preprocess="size=8&channels=1")
    assert zoo.solved("net").num_outputs == 5


def test_a_network_string_needs_weights_and_its_code_is_remembered(zoo: nk.Zoo, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from torch import nn\n\n\nclass Mine(nn.Module):\n    def __init__(self, width=3):\n"
        "        super().__init__()\n"
        "        self.body, self.last = nn.Linear(4, width), nn.Linear(width, 2)\n\n"
        "    def forward(self, x):\n        return self.last(self.body(x).relu())\n"
    )
    network = f"{file}:Mine?width=6"
    with pytest.raises(OptionError, match="without trained weights"):
        zoo.adopt("mine", network, preprocess="shape=4")
    from nearkin.nets.registry import create_network

    module = create_network(network)
    torch.save(module.state_dict(), tmp_path / "w.pth")
    record = zoo.adopt("mine", network, weights=tmp_path / "w.pth", preprocess="shape=4")
    x = torch.randn(3, 4)
    assert torch.equal(zoo.solved("mine").model()(x), module(x))
    assert record.facts["adopted"]["label"] == "Mine"
    with pytest.raises(MismatchError, match="built again from its class, has other weights"):
        zoo.adopt("copy", module, preprocess="shape=4")  # its class does not keep the width


class Words(nn.Module):
    """A model of tokens as one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.last(self.words(ids).mean(1))

    @classmethod
    def small(cls) -> "Words":
        return cls()


def test_tokens_as_one_tensor_are_a_named_input(zoo: nk.Zoo) -> None:
    module, ids = Words().eval(), torch.randint(0, 9, (40, 6))
    zoo.adopt("words", module, preprocess="shape=6", licence="mit")
    task = nk.Task.from_arrays("tokens", {"ids": ids}, torch.arange(40) % 3)
    solved = zoo.solved("words")
    x = solved.inputs(task).train.first(5).x
    assert torch.equal(solved.model()(x), module(x))
    assert nk.rank(task, ["zoo:words"], sample=20, zoo=zoo).best.num_features == 4
    numbers = nk.Task.from_arrays("numbers", ids, torch.arange(40) % 3)
    with pytest.raises(MismatchError, match="give tokens by the name of its argument") as caught:
        zoo.adopt("bad", module, task=numbers)
    assert "size=224" not in str(caught.value)


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda module: torch.compile(module, backend="eager")])
def test_wrapped_modules_are_those_inside(zoo: nk.Zoo, wrap: Callable[[nn.Module], Any]) -> None:
    module = images()
    zoo.adopt("net", wrap(module), preprocess="size=8", licence="mit")
    zoo.adopt("again", images(), weights=wrap(module), preprocess="size=8", licence="mit")
    x = torch.randn(3, 3, 8, 8)
    for name in ("net", "again"):
        assert torch.equal(zoo.solved(name).model()(x), module(x))
        assert zoo.record(name).facts["adopted"]["label"] == "Sequential"


def test_probabilities_are_measured_as_logits(zoo: nk.Zoo) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    for name, model in (("logits", module), ("probabilities", nn.Sequential(*module, nn.Softmax(1)))):
        zoo.adopt(name, model, task=nk.task(DIGITS), licence="mit")
    first, second = zoo.solved("logits").trials[0].scores, zoo.solved("probabilities").trials[0].scores
    assert first.loss == pytest.approx(second.loss, rel=1e-5)
    assert zoo.fisher("logits").trace() == pytest.approx(zoo.fisher("probabilities").trace(), rel=1e-4)


def test_the_random_state_of_torch_is_kept(zoo: nk.Zoo) -> None:
    module = images()
    before = torch.get_rng_state()
    zoo.adopt("net", module, preprocess="size=8", licence="mit")
    zoo.adopt("features", module, head="new", preprocess="size=8", licence="mit")
    zoo.adopt("own", "lenet", weights=build("lenet", (1, 8, 8), 3, seed=0), preprocess="size=8&channels=1")
    assert torch.equal(torch.get_rng_state(), before)


def test_the_label_is_the_class_of_the_model(zoo: nk.Zoo) -> None:
    network = f"{Words.__module__}:Words.small"
    record = zoo.adopt("words", network, weights=Words(), preprocess="shape=6", licence="mit")
    assert record.facts["adopted"]["label"] == "Words"


def test_advice_about_images_is_given_for_images_only(zoo: nk.Zoo) -> None:
    wide = nn.Sequential(nn.Flatten(), nn.Linear(7, 10))
    with pytest.raises(MismatchError, match=r"such as size=224$"):
        zoo.adopt("net", wide, task=nk.task(DIGITS))
    with pytest.raises(MismatchError, match="check its preprocessing") as caught:
        zoo.adopt("net", wide, preprocess="size=8&channels=1")
    assert "224" not in str(caught.value)
    inputs = {"numbers": torch.randint(0, 9, (40, 5)), "values": torch.randn(40, 2)}
    with pytest.raises(MismatchError, match="numbers, values are passed by name; give them the names of its arguments"):
        zoo.adopt("pair", Pair(), task=nk.Task.from_arrays("pair", inputs, torch.arange(40) % 2))


@pytest.mark.parametrize(
    ("licence", "words"),
    [("", "no licence"), ("cc-by-nc-4.0", "commercial"), ("CC BY-NC-ND", "commercial"), ("research only", "research"),
     ("proprietary", "no right"), ("gpl-3.0", "same licence"), ("llama3", "conditions"), ("other", "conditions"),
     ("unknown", "no licence"), ("none", "no licence"), ("apple-amlr", "research"), ("cc-by-sa-4.0", "same licence"),
     ("nvidia-open-model-license", "not known"), ("deepfloyd-if-license", "not known"), ("see LICENSE", "not known"),
     ("microsoft-research-license", "research"), ("mit, cc-by-nc-4.0", "commercial"), ("mit-x", "not known")],
)  # fmt: skip
def test_licences_that_restrict_use_are_named(licence: str, words: str) -> None:
    assert words in licence_caution("net", licence)


@pytest.mark.parametrize(
    "licence",
    ["mit", "apache-2.0", "Apache License, Version 2.0", "bsd-3-clause", "BSD", "cc-by-4.0", "CC BY 4.0", "cc0-1.0",
     "lgpl-3.0", "LGPL-2.1-or-later", "mpl-2.0", "unlicense", "isc", "zlib", "The MIT License", "MIT OR Apache-2.0"],
)  # fmt: skip
def test_licences_that_permit_use_give_no_warning(licence: str) -> None:
    assert licence_caution("net", licence) == ""


def test_a_licence_that_restricts_use_gives_a_warning(zoo: nk.Zoo) -> None:
    _, warned = heard(lambda: zoo.adopt("net", images(), preprocess="size=8", licence="cc-by-nc-4.0"))
    assert any("forbids commercial use" in text for text in warned)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("sentence-transformers/all-MiniLM-L6-v2", "nothing is fetched; .* hf download sentence-transformers/all-"),
        ("{path}/empty", "without config.json, expected a network; fetch all its files"),
        ("{path}/w.safetensors", "got the file of weights .*; give its network string, and --weights"),
    ],
)
def test_names_of_the_hub_and_files_in_place_of_a_network(zoo: nk.Zoo, tmp_path: Path, model: str, words: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "w.safetensors").write_bytes(b"x")
    with pytest.raises(OptionError, match=words) as caught:
        zoo.adopt("net", model.format(path=tmp_path), preprocess="size=8")
    assert "\n" not in str(caught.value)


def test_preprocessing_texts() -> None:
    assert Preprocess.of("size=32x24&mean=0.5&std=1").size == (32, 24)
    assert Preprocess.of(None) == Preprocess()
    assert Preprocess.of({"size": 8, "mean": [0.1, 0.2, 0.3], "std": (1, 1, 1)}).mean == (0.1, 0.2, 0.3)


def test_bundles_carry_adopted_models(zoo: nk.Zoo, tmp_path: Path) -> None:
    from nearkin.store.bundle import export_bundle, import_bundle

    zoo.adopt("net", images(), preprocess="size=8", licence="mit")
    export_bundle(zoo.catalogue, tmp_path / "b.nkz")
    with nk.Zoo(tmp_path / "other") as other:
        import_bundle(other.catalogue, tmp_path / "b.nkz")
        x = torch.randn(2, 3, 8, 8)
        assert torch.equal(other.solved("net").model()(x), zoo.solved("net").model()(x))
        assert other.record("net").facts["adopted"]["licence"] == "mit"


class TestTransformers:
    """A small model of the library transformers, in memory and as a folder."""

    @pytest.fixture
    def folder(self, text_folder: Path) -> Path:
        return text_folder

    def test_a_folder_is_adopted_with_tokenizer_and_licence(self, zoo: nk.Zoo, folder: Path) -> None:
        import transformers

        record = zoo.adopt("bert", str(folder))
        assert record.facts["adopted"] | {"source": ""} == {
            "label": "BertModel", "licence": "apache-2.0", "source": "", "features": 8, "channel_order": "rgb",
        }  # fmt: skip
        solved = zoo.solved("bert")
        assert solved.inputs.tokenizer is not None
        from nearkin.tasks.texts import text_task

        task = text_task("mood", ["good a", "bad b b", "good", "bad"] * 10, ["+", "-"] * 20)
        x = solved.inputs(task).train.first(3).x
        ids, mask = x.split(x.shape[1] // 2, 1)
        model = transformers.BertModel.from_pretrained(folder).eval()
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
        expected = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        assert torch.allclose(features(solved.model(), x, "head"), expected, atol=1e-5)
        ranking = nk.rank(task, ["zoo:bert"], sample=30, zoo=zoo)
        assert ranking.best.num_features == 8

    def test_a_module_in_memory_with_a_task(self, zoo: nk.Zoo, folder: Path) -> None:
        import transformers

        config = transformers.BertConfig.from_pretrained(folder, num_labels=2)
        module = transformers.BertForSequenceClassification(config).eval()
        inputs = {"input_ids": torch.randint(0, 20, (40, 6)), "attention_mask": torch.ones(40, 6, dtype=torch.int64)}
        task = nk.Task.from_arrays("tokens", inputs, torch.arange(40) % 2)
        record = zoo.adopt("classifier", module, task=task, output="logits", licence="mit")
        assert (record.trials, record.facts["adopted"]["features"]) == (1, 8)
        x = task.test.first(4).x
        logits = module(attention_mask=x[:, :6], input_ids=x[:, 6:]).logits  # in the order of their names
        assert torch.allclose(zoo.solved("classifier").model()(x), logits, atol=1e-6)

    @pytest.mark.parametrize("kind", ["ViT", "ResNet", "DeiT", "Swin", "Dinov2"])
    def test_a_folder_of_images(
        self, zoo: nk.Zoo, image_folder: Callable[[str], Path], tmp_path: Path, kind: str
    ) -> None:
        import transformers

        name = f"{kind}ForImageClassification"
        folder = image_folder(name)
        zoo.adopt("net", str(folder), licence="mit")
        model = getattr(transformers, name).from_pretrained(folder).eval()
        seen: list[Tensor] = []
        model.get_submodule("classifier.1" if kind == "ResNet" else "classifier").register_forward_pre_hook(
            lambda layer, inputs: seen.append(inputs[0])
        )
        solved, x = zoo.solved("net"), torch.randn(2, 3, 16, 16)
        with torch.no_grad():
            assert torch.allclose(solved.model()(x), model(x).logits, atol=1e-6)
            found = features(solved.model(), x, solved.model().head_path)
        assert torch.allclose(found, seen[0], atol=1e-6)
        assert solved.inputs == NetworkInputs((3, 16, 16), (0.5, 0.4, 0.3), (0.25, 0.25, 0.5), fields=())
        zoo.push("net", tmp_path / "pushed")
        zoo.pull(tmp_path / "pushed", "again")
        assert torch.equal(zoo.solved("again").model()(x), solved.model()(x))
        read = getattr(transformers, name).from_pretrained(tmp_path / "pushed").eval()
        assert torch.allclose(read(x).logits, model(x).logits, atol=1e-6)

    def test_images_in_the_order_blue_green_red(self, zoo: nk.Zoo, image_folder: Callable[[str], Path]) -> None:
        import transformers

        folder = image_folder("ViTModel")
        zoo.adopt("net", str(folder), preprocess="size=16&mean=0.5&std=0.5&order=bgr", licence="mit")
        x, network = torch.randn(2, 3, 16, 16), zoo.solved("net").model()
        hidden = transformers.ViTModel.from_pretrained(folder).eval()(x.flip(1)).last_hidden_state
        assert torch.allclose(features(network, x, "head"), hidden.mean(1), atol=1e-6)

    def test_weights_that_do_not_fit_are_named_in_one_line(
        self, zoo: nk.Zoo, image_folder: Callable[[str], Path], capfd: pytest.CaptureFixture[str]
    ) -> None:
        import safetensors.torch

        file = image_folder("ViTForImageClassification") / "model.safetensors"
        weights = safetensors.torch.load_file(file)
        capfd.readouterr()
        name = "vit.encoder.layer.0.attention.attention.key.weight"
        assert name in weights
        for changed, words in (
            ({key: value for key, value in weights.items() if key != name}, r"k_proj\.weight is missing"),
            ({**weights, "extra": torch.zeros(1)}, "extra is unexpected"),
            ({**weights, name: torch.zeros(2, 2)}, r"k_proj\.weight is mismatched"),
            ({**weights, name: weights[name] * torch.nan}, r"k_proj\.weight has values that are not finite"),
        ):
            safetensors.torch.save_file(changed, file)
            with pytest.raises(NearkinError, match=words) as caught:
                zoo.adopt("net", str(file.parent))
            assert "\n" not in str(caught.value)
        assert zoo.names() == []
        assert capfd.readouterr().err == "", "the library is silent"

    def test_weights_in_several_files(self, zoo: nk.Zoo, image_folder: Callable[[str], Path]) -> None:
        import transformers

        folder = image_folder("ViTForImageClassification")
        model = transformers.ViTForImageClassification.from_pretrained(folder).eval()
        (folder / "model.safetensors").unlink()
        model.save_pretrained(folder, max_shard_size="3KB")
        assert len(list(folder.glob("model-*.safetensors"))) > 1
        zoo.adopt("net", str(folder), licence="mit")
        x = torch.randn(2, 3, 16, 16)
        assert torch.allclose(zoo.solved("net").model()(x), model(x).logits, atol=1e-6)

    @pytest.mark.parametrize(
        "config",
        [
            {"architectures": ["DetrForObjectDetection"], "use_timm_backbone": False},
            {"architectures": ["UperNetForSemanticSegmentation"]},
            {"architectures": ["DPTForDepthEstimation"]},
            {"architectures": ["EncoderDecoderModel"], "model_type": "encoder-decoder",
             "encoder": {"model_type": "dpt", "backbone": "org/repo"}, "decoder": {"model_type": "bert"}},
        ],
    )  # fmt: skip
    def test_a_configuration_cannot_reach_the_network(
        self, zoo: nk.Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any]
    ) -> None:
        calls: list[Any] = []
        monkeypatch.setattr("socket.getaddrinfo", lambda *words, **options: calls.append(words))
        monkeypatch.setattr("socket.socket.connect", lambda *words: calls.append(words))
        config = {"backbone": "org/repo", "use_pretrained_backbone": True, **config}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(DataError, match="refers to another model on the Hugging Face hub, which is not") as caught:
            zoo.adopt("net", str(tmp_path), preprocess="size=16")
        with pytest.raises(DataError, match="refers to another model"):
            build(AdoptedSpec(label="x", config=config, width=3).network_string, (3, 8, 8), 2, seed=0)
        assert "\n" not in str(caught.value)
        assert not calls

    @pytest.mark.parametrize("own", [True, False])
    @pytest.mark.parametrize("direction", ["left", "right"])
    def test_the_padding_token_is_that_of_the_model(
        self, zoo: nk.Zoo, tmp_path: Path, own: bool, direction: str
    ) -> None:
        """GPT-2 finds the last token of a text by the padding token."""
        import tokenizers
        import transformers

        torch.manual_seed(0)
        folder = tmp_path / "gpt2"
        config = transformers.GPT2Config(
            vocab_size=9, n_embd=8, n_layer=1, n_head=2, n_positions=6, pad_token_id=4, num_labels=3
        )
        model = transformers.GPT2ForSequenceClassification(config).eval()
        model.save_pretrained(folder)
        words = {word: number for number, word in enumerate(["a", "b", "c", "d", "<p>", "[UNK]"])}
        encoder = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
        encoder.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        if own:
            encoder.enable_padding(direction=direction, pad_id=4, pad_token="<p>")
        encoder.save(str(folder / "tokenizer.json"))
        zoo.adopt("gpt2", str(folder), head="new", output="logits", licence="mit")
        solved = zoo.solved("gpt2")
        tokenizer = solved.inputs.tokenizer
        assert tokenizer is not None
        assert (tokenizer.length, tokenizer.pad_id) == (6, 4)
        read = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(folder / "tokenizer.json"), pad_token="<p>", padding_side=direction if own else "right"
        )
        texts = ["a b", "c c d", "d"]
        tokens = read(texts, padding="max_length", max_length=6, return_tensors="pt", return_token_type_ids=False)
        x = tokenizer(texts)
        assert torch.equal(x, torch.cat([tokens["input_ids"], tokens["attention_mask"]], 1))
        found = features(solved.model(), x, "head")
        assert torch.allclose(found, model(**tokens).logits, atol=1e-6)
        zoo.push("gpt2", tmp_path / "pushed")
        again = transformers.AutoTokenizer.from_pretrained(tmp_path / "pushed")
        assert (again.pad_token_id, again.padding_side) == (4, read.padding_side)
        zoo.pull(tmp_path / "pushed", "again")
        assert zoo.solved("again").inputs == solved.inputs

    def test_positions_that_start_after_the_padding_token(self, zoo: nk.Zoo, folder: Path) -> None:
        import transformers

        config = transformers.RobertaConfig(
            vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
            max_position_embeddings=16, type_vocab_size=1,
        )  # fmt: skip
        transformers.RobertaModel(config).save_pretrained(folder)
        zoo.adopt("roberta", str(folder), licence="mit")
        solved = zoo.solved("roberta")
        tokenizer = solved.inputs.tokenizer
        assert tokenizer is not None
        assert (tokenizer.length, tokenizer.pad_id) == (14, 1)
        assert solved.model()(tokenizer(["good " * 40, "bad", ""])).shape == (3, 1)
        with pytest.raises(MismatchError, match=r"cannot read inputs of shape .*length="):
            zoo.adopt("long", str(folder), preprocess={"tokenizer": str(folder), "length": 15}, licence="mit")

    def test_the_padding_token_of_special_tokens(self, zoo: nk.Zoo, folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "pad_token_id": None}))
        (folder / "special_tokens_map.json").write_text(json.dumps({"pad_token": {"content": "bad"}}))
        zoo.adopt("bert", str(folder), licence="mit")
        tokenizer = zoo.solved("bert").inputs.tokenizer
        assert tokenizer is not None
        assert tokenizer(["a"])[0, :3].tolist() == [2, 5, 5]

    def test_code_in_a_configuration_is_not_run(self, zoo: nk.Zoo, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        for name in ("os.system", "PreTrainedModel", "AutoModel", "Nothing"):
            (folder / "config.json").write_text(json.dumps(config | {"architectures": [name], "auto_map": {"x": "y"}}))
            with pytest.raises(DataError, match="names the architecture"):
                zoo.adopt("bad", str(folder))
        assert zoo.names() == []


@pytest.mark.parametrize("task", [None, nk.task("digits?limit=100")])
def test_the_same_call_again_changes_nothing(zoo: nk.Zoo, task: nk.Task | None, text_folder: Path) -> None:
    model = build("lenet", (1, 8, 8), 10, seed=0)
    options: dict[str, Any] = {"task": task, "preprocess": {"size": 8, "channels": 1, "mean": 0.3, "std": 0.3}}
    first = zoo.adopt("net", model, licence="mit", **options)
    notes: list[str] = []
    with nk.listening(lambda event: notes.append(event.text) if isinstance(event, Note) else None):
        again = zoo.adopt("net", model, licence="mit", **options)
    assert again == first
    assert any("in the zoo, from the same call: nothing was changed" in note for note in notes)
    other = {**options, "preprocess": {"size": 8, "channels": 1, "mean": 0.4, "std": 0.3}}
    for network, licence, changed in (
        (build("lenet", (1, 8, 8), 10, seed=1), "mit", options),
        (model, "", options),
        (model, "mit", other),
        (model, "mit", {**options, "task": nk.task("digits?limit=120") if task is None else None}),
    ):
        with pytest.raises(ZooError, match="already has a task named 'net'"):
            zoo.adopt("net", network, licence=licence, **changed)
    assert zoo.models() == [first]


def test_the_same_folder_of_texts_again_changes_nothing(zoo: nk.Zoo, text_folder: Path) -> None:
    assert zoo.adopt("texts", str(text_folder)) == zoo.adopt("texts", str(text_folder))


@pytest.mark.parametrize("name", ["pixels", "zoo:net"])
def test_names_that_rank_reads_otherwise_are_refused(zoo: nk.Zoo, tmp_path: Path, name: str) -> None:
    with pytest.raises(ZooError, match=f"'{name}' cannot name a model"):
        zoo.adopt(name, images(), preprocess="size=8")
    zoo.adopt("net", images(), preprocess="size=8")
    zoo.push("net", tmp_path / "pushed")
    with pytest.raises(ZooError, match=f"'{name}' cannot name a model"):
        zoo.pull(tmp_path / "pushed", name)


class TestArguments:
    """Arguments of another type are converted where that is plain; others are refused in one line."""

    @pytest.mark.parametrize(
        ("changed", "words"),
        [
            ({"name": 5}, "the name is 5, expected text"),
            ({"model": None}, "the model is 'None'"),
            ({"model": nn.Linear}, "the class Linear, expected a module; give an instance"),
            ({"model": {"weight": torch.ones(2)}}, "expected a module or a network string; give that, and this as"),
            ({"licence": None}, "the licence is 'None'"),
            ({"head": 3}, "the head is '3'"),
            ({"weights": 3}, "the weights are '3'"),
            ({"weights": {"a": 1}}, "other values than tensors"),
            ({"output": 1.5}, "the output is '1.5'"),
            ({"task": 5}, "the task is '5'"),
            ({"preprocess": 5}, "preprocessing is '5'"),
            ({"preprocess": ["size"]}, "expected a dictionary or text"),
            ({"preprocess": {1: 2}}, "preprocessing has no 1"),
            ({"preprocess": {"tokenizer": 5}}, "tokenizer is 5"),
            ({"preprocess": {"size": 99999999, "channels": 1}}, "9,999,999,800,000,001 values, expected 268,435,456"),
            ({"preprocess": {"size": 8, "mean": -torch.inf, "std": 1}}, "mean is -inf"),
            ({"preprocess": {"size": 8, "mean": [], "std": []}}, r"mean is \[\]"),
            ({"preprocess": "size=8&size=9"}, "preprocessing has size twice"),
            ({"preprocess": "size=8&channels=1&order=bgr"}, "order of channels bgr for inputs of shape"),
        ],
    )
    def test_another_type_is_refused(self, zoo: nk.Zoo, changed: dict[str, Any], words: str) -> None:
        options: dict[str, Any] = {"name": "net", "model": images(), "preprocess": "size=8", **changed}
        with pytest.raises(NearkinError, match=words) as caught:
            zoo.adopt(**options)
        assert "\n" not in str(caught.value)

    def test_numbers_of_numpy_and_torch(self) -> None:
        given = {"size": np.int64(8), "mean": np.float32(0.5), "std": torch.tensor([0.5, 0.25, 1.0])}
        assert Preprocess.of(given) == Preprocess(size=(8, 8), mean=(0.5,), std=(0.5, 0.25, 1.0))

    def test_a_state_dict_has_the_weights(self, zoo: nk.Zoo) -> None:
        model = images().half()
        zoo.adopt("file", images(), weights=model.state_dict(), preprocess="size=8")
        zoo.adopt("module", model, preprocess="size=8")
        x = torch.rand(2, 3, 8, 8)
        assert torch.equal(zoo.solved("file").model()(x), zoo.solved("module").model()(x))

    def test_a_path_names_a_folder(self, zoo: nk.Zoo, text_folder: Path) -> None:
        assert zoo.adopt("texts", text_folder).facts["adopted"] == zoo.adopt("same", str(text_folder)).facts["adopted"]

    def test_an_output_has_a_number(self, zoo: nk.Zoo) -> None:
        for number, width in enumerate((2, 3)):
            zoo.adopt(f"net {number}", Outputs(), output=number, preprocess="shape=4")
            assert zoo.solved(f"net {number}").num_outputs == width

    def test_an_empty_folder_is_not_written(self, zoo: nk.Zoo) -> None:
        zoo.adopt("net", images(), preprocess="size=8")
        with pytest.raises(OptionError, match="got an empty folder"):
            zoo.push("net", "")
