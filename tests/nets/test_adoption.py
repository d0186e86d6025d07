"""A module becomes an adopted network, which gives the same outputs after it was built again from data alone."""

import os
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from nearkin.core.errors import DataError, MismatchError, NearkinError, OptionError
from nearkin.nets.adopted import AdoptedNetwork, pooled, wrapped
from nearkin.nets.adopted_spec import ADOPTED, AdoptedSpec, adopted_spec, network_label
from nearkin.nets.adoption import NEW, AdoptedModel, adopt_module, probe_inputs, require_values, token_fields
from nearkin.nets.functional import load
from nearkin.nets.heads import features
from nearkin.nets.layer_tree import build_layers, describe
from nearkin.nets.module_source import described
from nearkin.nets.registry import build
from nearkin.nets.trusted_code import TrustError, is_trusted, refusal
from nearkin.nets.weight_files import load_weights, read_weights
from nearkin.tasks.input_fields import InputField
from nearkin.tasks.named_inputs import pack_inputs, unpack_inputs


class Tokens(nn.Module):
    """An encoder of tokens with a mask, a tied embedding, and outputs by name."""

    def __init__(self, vocabulary: int = 7, width: int = 6, outputs: int = 3) -> None:
        super().__init__()
        self.vocabulary, self.width, self.outputs = vocabulary, width, outputs
        self.embedding = nn.Embedding(vocabulary, width)
        self.norm = nn.LayerNorm(width)
        self.drop = nn.Dropout(0.5)
        self.tied = nn.Linear(width, vocabulary, bias=False)
        self.tied.weight = self.embedding.weight
        self.classifier = nn.Linear(vocabulary, outputs)

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        hidden = self.drop(self.norm(self.embedding(ids))) * mask[..., None]
        mean = hidden.sum(1) / mask.sum(1, keepdim=True).clamp_min(1)
        return {"logits": self.classifier(torch.tanh(self.tied(mean))), "hidden": hidden}


class Hidden(nn.Module):
    """A module whose constructor keeps no argument."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(4, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


FIELDS = (InputField("ids", (5,)), InputField("mask", (5,)))


def rebuilt(model: AdoptedModel, shape: tuple[int, ...]) -> nn.Module:
    network = build(model.network, shape, model.num_outputs, seed=3)
    load(network, model.params, model.buffers)
    return network.eval()


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding="valid"), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout2d(0.3),
        nn.Sequential(nn.Flatten(), nn.Linear(36, 6)), nn.GELU(), nn.Linear(6, 3),
    )  # fmt: skip


def test_layers_of_torch_are_built_again_with_equal_outputs() -> None:
    module, x = convolutional(), torch.randn(4, 1, 8, 8)
    module.train()
    module(x)  # running statistics that are not those of a new network
    adopted = adopt_module(module, x, described(module), head=None, num_outputs=None)
    assert (adopted.num_outputs, adopted.num_features, adopted.label) == (3, 6, "Sequential")
    assert module.training, "the module of the caller is not changed"
    again = rebuilt(adopted, (1, 8, 8))
    assert torch.equal(again(x), module.eval()(x))
    assert is_trusted(adopted.network)


def test_features_equal_those_of_a_forward_hook() -> None:
    module, x = convolutional().eval(), torch.randn(4, 1, 8, 8)
    network = wrapped(module, AdoptedSpec(label="net", layers={}, head="6"))
    seen: list[Tensor] = []
    module[6].register_forward_pre_hook(lambda layer, inputs: seen.append(inputs[0].detach()))
    module(x)
    assert torch.equal(features(network, x, network.head_path), seen[0])


def test_named_inputs_tied_weights_and_named_outputs() -> None:
    module = Tokens().eval()
    inputs = {"ids": torch.randint(0, 7, (6, 5)), "mask": torch.randint(0, 2, (6, 5))}
    x = pack_inputs(inputs, FIELDS)
    spec = AdoptedSpec(**{**vars(described(module)), "fields": FIELDS, "output": "logits"})
    adopted = adopt_module(module, x, spec, head=None, num_outputs=None)
    assert adopted.num_features == 7
    assert sum(name.endswith(("embedding.weight", "tied.weight")) for name in adopted.params) == 1, "tied: stored once"
    again = rebuilt(adopted, (10,))
    assert torch.equal(again(x), module(**inputs)["logits"])
    assert again.network.tied.weight is again.network.embedding.weight


def test_a_new_head_reads_pooled_features() -> None:
    module = Tokens().eval()
    inputs = {"ids": torch.randint(0, 7, (4, 5)), "mask": torch.tensor([[1, 1, 0, 0, 0]] * 4)}
    spec = AdoptedSpec(**{**vars(described(module)), "fields": FIELDS, "output": "hidden", "pool": "mean"})
    adopted = adopt_module(module, pack_inputs(inputs, FIELDS), spec, head=NEW, num_outputs=2)
    assert (adopted.num_outputs, adopted.num_features) == (2, 6)
    network = rebuilt(adopted, (10,))
    assert isinstance(network, AdoptedNetwork)
    x = pack_inputs(inputs, FIELDS)
    assert torch.equal(network(x), torch.zeros(4, 2)), "a new head starts at zero"
    read = features(network, x, network.head_path)
    assert torch.allclose(read, module(**inputs)["hidden"].mean(1))


class Scaled(nn.Module):
    """Features times a number that is set after construction, so that its class alone gives others."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.factor = nn.Linear(4, 5), 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * self.body(x)


def test_features_are_compared_although_a_new_head_starts_at_zero() -> None:
    module = Scaled().eval()
    adopt_module(module, torch.randn(3, 4), described(module), head=NEW, num_outputs=2)
    module.factor = 2.0
    with pytest.raises(MismatchError, match="gives other outputs"):
        adopt_module(module, torch.randn(3, 4), described(module), head=NEW, num_outputs=2)


def test_pooling_over_the_mask() -> None:
    outputs = torch.tensor([[[1.0, 5.0], [3.0, 1.0], [100.0, 100.0]]])
    mask = torch.tensor([[1, 1, 0]])
    assert pooled(outputs, "mean", mask).tolist() == [[2.0, 3.0]]
    assert pooled(outputs, "max", mask).tolist() == [[3.0, 5.0]]
    assert pooled(outputs, "first", mask).tolist() == [[1.0, 5.0]]
    assert torch.allclose(pooled(torch.ones(2, 3, 4, 4), "mean"), torch.ones(2, 3))


@pytest.mark.parametrize(
    ("module", "head", "words"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), None, "is not the head"),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), "0", "is not the head"),
        (lambda: nn.Sequential(nn.Linear(4, 2)), "classifier", "has no linear layer 'classifier'"),
        (lambda: nn.Sequential(nn.ReLU()), None, "no final linear layer"),
        (lambda: nn.Sequential(nn.Linear(5, 2)), None, "cannot read inputs"),
    ],
)
def test_wrong_heads_are_refused_in_one_line(module: Callable[[], nn.Module], head: str | None, words: str) -> None:
    network = module()
    with pytest.raises(MismatchError, match=words) as caught:
        adopt_module(network, torch.randn(5, 4), described(network), head=head, num_outputs=None)
    assert "\n" not in str(caught.value)


def adopted_copy(module: nn.Module, x: Tensor) -> nn.Module:
    """The module after it was adopted and built again."""
    return rebuilt(adopt_module(module, x, described(module), head=None, num_outputs=None), tuple(x.shape[1:]))


@pytest.mark.parametrize("ending", [nn.Softmax(1), nn.LogSoftmax(1)])
def test_probabilities_become_scores(ending: nn.Module) -> None:
    module, x = nn.Sequential(nn.Linear(4, 3), ending), torch.randn(5, 4)
    again = adopted_copy(module, x)
    assert torch.allclose(again(x), module[0](x).log_softmax(1), atol=1e-5)
    certain = adopted_copy(module, x)(x * 1e4)
    assert certain.isfinite().all(), "also for probabilities of 0"


@pytest.mark.parametrize(
    ("width", "words"), [(1, "without the sigmoid and with two outputs .*"), (3, "without the sigmoid")]
)
def test_a_sigmoid_is_refused(width: int, words: str) -> None:
    module = nn.Sequential(nn.Linear(4, width), nn.Sigmoid())
    with pytest.raises(MismatchError, match=f"Sequential ends in a sigmoid.* {words}$"):
        adopted_copy(module, torch.randn(5, 4))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_real_numbers_become_single(dtype: torch.dtype) -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)).to(dtype).eval()
    x = torch.randn(5, 4)
    again = adopted_copy(module, x)
    assert {value.dtype for value in again.parameters()} == {torch.float32}
    assert torch.allclose(again(x), module(x.to(dtype)).float(), atol=0.02)
    assert module[0].weight.dtype == dtype


def test_weights_of_two_layers_stay_tied() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    module, x = nn.Sequential(first, nn.ReLU(), second, nn.Linear(4, 2)), torch.randn(3, 4)
    again = adopted_copy(module, x)
    assert torch.equal(again(x), module(x))
    assert again.network[0].weight is again.network[2].weight
    assert again.network[0].bias is not again.network[2].bias


def test_more_than_ten_layers_keep_their_order() -> None:
    layers = [layer for _ in range(6) for layer in (nn.Linear(4, 4), nn.Tanh())]
    module, x = nn.Sequential(*layers, nn.Linear(4, 2)), torch.randn(3, 4)
    assert torch.equal(adopted_copy(module, x)(x), module(x))


class Doubled(nn.Linear):
    """A subclass of a layer of torch."""


class Lazy(nn.Module):
    """A module whose constructor makes lazy layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.LazyLinear(3), nn.LazyLinear(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu())


class Normed(nn.Module):
    """A module of a user, to whose layers something may be added."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def hooked() -> nn.Module:
    module = Normed()
    module.layer.register_forward_hook(lambda layer, inputs, outputs: outputs * 2)
    return module


def normed(norm: Callable[[nn.Module], nn.Module]) -> nn.Module:
    module = Normed()
    norm(module.layer)
    return module


@pytest.mark.filterwarnings("ignore:.*weight_norm")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.Sequential(nn.ReLU(), Doubled(4, 2)),
         r"its layer '1' is .*\.Doubled, which is no layer of torch\.nn; give the code"),
        (lambda: nn.Sequential(nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 4, batch_first=True), 1)),
         "its layer '0' is .*TransformerEncoder, which does not keep the arguments"),
        (lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))),
         r"remove_parametrizations\(model.get_submodule\('0'\), 'weight'\)"),
        (lambda: normed(nn.utils.parametrizations.spectral_norm), "built again from its class, has other weights: .*"
         "remove_parametrizations"),
        (lambda: normed(nn.utils.weight_norm), "cannot be copied .*remove_weight_norm"),
        (lambda: normed(nn.utils.spectral_norm), "remove_spectral_norm"),
        (hooked, r"gives other outputs .*remove the hooks of model.get_submodule\('layer'\)"),
        (Lazy, "first.weight has no shape yet; call the model once"),
        (lambda: Normed().to("meta"), "layer.weight is on the meta device"),
    ],
)  # fmt: skip
def test_modules_that_are_not_built_again_are_refused_with_advice(make: Callable[[], nn.Module], words: str) -> None:
    with pytest.raises(NearkinError, match=words) as caught:
        adopted_copy(make(), torch.randn(5, 4))
    assert "\n" not in str(caught.value)


def test_lazy_layers_that_saw_an_input_are_built_again() -> None:
    module, x = Lazy(), torch.randn(5, 4)
    module(x)
    assert torch.equal(adopted_copy(module, x)(x), module(x))


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace")
def test_a_scripted_module_needs_its_class() -> None:
    with pytest.raises(OptionError, match=r"Normed is a scripted module.*package\.module:Normed"):
        described(torch.jit.trace(Normed(), torch.randn(1, 4)))


def test_weights_that_the_forward_pass_does_not_reach_must_be_finite() -> None:
    module = Normed()
    module.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    require_values(module)
    module.register_parameter("unused", nn.Parameter(torch.tensor([torch.nan])))
    with pytest.raises(DataError, match="unused has values that are not finite"):
        adopted_copy(module, torch.randn(5, 4))


class Kept(nn.Module):
    """A module that keeps the argument of its constructor."""

    def __init__(this, value: Any = None) -> None:
        super().__init__()
        this.value, this.layer = value, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Lines:
    """An object with a name of two lines."""

    def __str__(self) -> str:
        return "two\nlines"


@pytest.mark.parametrize("value", [np.arange(3.0), Lines(), [nn.ReLU(), nn.Sequential(nn.ReLU())], {"a": 1}, "a\nb"])
def test_arguments_that_are_no_numbers_are_named_in_one_line(value: Any) -> None:
    with pytest.raises(OptionError, match="value") as caught:
        described(Kept(value))
    assert "\n" not in str(caught.value)


def test_the_first_parameter_of_a_constructor_may_have_any_name() -> None:
    assert described(Kept(3)).network.endswith("Kept?value=3")


def test_tokens_are_a_named_input() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(9, 4)

        def forward(self, ids: Tensor) -> Tensor:
            return self.words(ids).mean(1)

    class Columns(Words):
        def forward(self, x: Tensor) -> Tensor:
            return self.words(x[:, 0].long()) * x[:, 1:2]

    assert token_fields(Words(), (5,)) == (InputField("ids", (5,)),)
    assert token_fields(Columns(), (5,)) == token_fields(nn.Linear(5, 2), (5,)) == ()


def test_outputs_that_are_no_tensor_name_their_parts() -> None:
    spec = AdoptedSpec(**{**vars(described(Tokens())), "fields": FIELDS})
    with pytest.raises(MismatchError, match="output=…, one of 'logits', 'hidden'"):
        adopt_module(Tokens(), probe_inputs(None, (10,), FIELDS), spec, head=None, num_outputs=None)


def test_a_class_that_keeps_no_arguments_needs_a_network_string() -> None:
    with pytest.raises(OptionError, match="does not keep the argument 'width'"):
        described(Hidden(3))


def test_code_that_a_description_names_must_be_trusted() -> None:
    network = AdoptedSpec(label="x", network="os:system?command=date", head="h").network_string
    assert not is_trusted(network)
    assert "not trusted" in refusal(network)
    with pytest.raises(TrustError):
        build(network, (3,), 2, seed=0)
    nested = AdoptedSpec(label="y", network=network, head="h").network_string
    with pytest.raises(NearkinError):
        build(nested, (3,), 2, seed=0)


@pytest.mark.parametrize(
    "tree",
    [
        {"class": "Sequential"}, {"class": "Sequential", "layers": [["0", {"class": "os.system", "arguments": {}}]]},
        {"class": "Sequential", "layers": {"0": {"class": "ReLU", "arguments": {}}}},
        {"class": "Sequential", "layers": [3]},
        {"class": "ReLU", "arguments": {}, "ties": []}, {"class": "ReLU", "arguments": {}, "ties": {"a": "b"}},
        {"class": "ReLU", "arguments": {}, "ties": {"a": [1]}},
        {"class": "Module", "arguments": {"x": []}}, {"class": "__builtins__", "arguments": {}},
        {"same": "nothing"}, {"class": "Linear", "arguments": {"in_features": "a", "out_features": 2}},
        {"class": "Linear", "arguments": {"in_features": [[1]], "out_features": 2}}, [], {"class": 3},
        {"class": "functional", "arguments": {}},
        {"class": "Linear", "arguments": {"in_features": -1, "out_features": 1}},
    ],
)  # fmt: skip
def test_damaged_trees_are_refused(tree: Any) -> None:
    with pytest.raises(DataError):
        build_layers(tree)


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda data: data.hex()))
def test_damaged_descriptions_are_refused(text: str) -> None:
    with pytest.raises(DataError):
        AdoptedSpec.parse(text)
    assert network_label(f"{ADOPTED}?spec={text}") == "damaged description of an adopted network"


def test_descriptions_are_read_as_they_were_written() -> None:
    spec = AdoptedSpec(label="a", layers={"class": "ReLU", "arguments": {}}, fields=FIELDS, pool="max", width=3)
    assert adopted_spec(spec.network_string) == spec
    bomb = AdoptedSpec(label="a" * 2_000_000, network="lenet")
    with pytest.raises(OptionError, match="too long"):
        bomb.to_text()


LAYERS = st.sampled_from(
    [nn.ReLU, nn.Tanh, nn.Identity, lambda: nn.Dropout(0.2), lambda: nn.Linear(4, 4),
     lambda: nn.Linear(4, 4, bias=False),
     lambda: nn.LayerNorm(4, eps=1e-3), lambda: nn.BatchNorm1d(4, affine=False), lambda: nn.PReLU(4),
     lambda: nn.Softplus(beta=2.0), lambda: nn.Sequential(nn.Linear(4, 4), nn.ELU(0.5)), lambda: nn.LeakyReLU(0.3)]
)  # fmt: skip


@given(st.lists(LAYERS, min_size=1, max_size=6), st.booleans())
def test_random_networks_are_described(makers: list[Callable[[], nn.Module]], repeat: bool) -> None:
    layers = [make() for make in makers]
    network = nn.Sequential(*layers, *([layers[0]] if repeat else []), nn.Linear(4, 2)).eval()
    tree = describe(network)
    again = build_layers(tree)
    load_weights(again, network.state_dict(), "test")
    x = torch.randn(3, 4)
    assert torch.equal(again.eval()(x), network(x))


@given(st.integers(1, 4), st.integers(1, 3), st.booleans())
def test_packed_inputs_are_unpacked(count: int, size: int, real: bool) -> None:
    fields = (InputField("a", (size, 2), "float32" if real else "int64"), InputField("b", ()))
    inputs = {"a": torch.arange(count * size * 2).view(count, size, 2), "b": torch.arange(count)}
    inputs["a"] = inputs["a"].float() / 4 if real else inputs["a"]
    again = unpack_inputs(pack_inputs(inputs, fields), fields)
    assert all(torch.equal(again[name], inputs[name]) and again[name].dtype == inputs[name].dtype for name in inputs)


class TestWeightFiles:
    """Weights in files of others."""

    @pytest.fixture
    def network(self) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()

    @pytest.mark.parametrize("form", ["plain", "nested", "parallel", "half", "safetensors"])
    def test_forms_of_files(self, network: nn.Module, tmp_path: Path, form: str) -> None:
        import safetensors.torch

        weights = network.state_dict()
        file = tmp_path / ("w.safetensors" if form == "safetensors" else "w.pth")
        if form == "safetensors":
            safetensors.torch.save_file(weights, file)
        elif form == "half":
            torch.save({name: v.half() if v.is_floating_point() else v for name, v in weights.items()}, file)
        else:
            prefix = "module." if form == "parallel" else ""
            content = {prefix + name: value for name, value in weights.items()}
            torch.save({"epoch": 3, "state_dict": content} if form == "nested" else content, file)
        fresh = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()
        load_weights(fresh, read_weights(file), "w")
        x = torch.randn(2, 3)
        assert torch.allclose(fresh(x), network(x), atol=1e-2 if form == "half" else 0)

    def test_a_pickle_that_would_run_code_is_refused(self, tmp_path: Path) -> None:
        class Evil:
            def __reduce__(self) -> tuple[Any, ...]:
                return (Path.touch, (tmp_path / "ran",))

        torch.save({"w": Evil()}, tmp_path / "evil.pth")
        with pytest.raises(DataError, match="would run code"):
            read_weights(tmp_path / "evil.pth")
        assert not (tmp_path / "ran").exists()

    @pytest.mark.parametrize("content", [b"", b"abc", b"\x80\x04.", b"PK\x03\x04" + b"\0" * 40])
    @pytest.mark.parametrize("ending", ["pth", "safetensors"])
    def test_damaged_files_give_one_line(self, tmp_path: Path, content: bytes, ending: str) -> None:
        (tmp_path / f"w.{ending}").write_bytes(content)
        with pytest.raises(DataError) as caught:
            read_weights(tmp_path / f"w.{ending}")
        assert "\n" not in str(caught.value)

    def test_missing_and_other_weights_are_named(self, network: nn.Module) -> None:
        weights = dict(network.state_dict())
        del weights["0.bias"]
        with pytest.raises(MismatchError, match=r"0\.bias is missing"):
            load_weights(network, weights, "w.pth")
        with pytest.raises(MismatchError, match=r"0\.weight has shape \(4, 2\), expected \(4, 3\)"):
            load_weights(network, {**network.state_dict(), "0.weight": torch.zeros(4, 2)}, "w.pth")

    def test_a_network_is_as_before_after_an_error(self, network: nn.Module) -> None:
        before = {name: value.clone() for name, value in network.state_dict().items()}
        weights = {name: value + 1 for name, value in before.items()} | {"2.bias": torch.full((2,), torch.nan)}
        with pytest.raises(DataError, match="not finite"):
            load_weights(network, weights, "w.pth")
        assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())

    @pytest.mark.parametrize("prefix", ["", "module."])
    def test_a_network_whose_only_child_is_called_module(self, tmp_path: Path, prefix: str) -> None:
        network, fresh = (nn.Sequential(OrderedDict(module=nn.Linear(3, 2))) for _ in range(2))
        torch.save({prefix + name: value for name, value in network.state_dict().items()}, tmp_path / "w.pth")
        load_weights(fresh, read_weights(tmp_path / "w.pth"), "w")
        assert torch.equal(fresh.module.weight, network.module.weight)

    def test_tied_weights_may_have_either_name(self) -> None:
        module, fresh = Tokens(), Tokens()
        weights = {name: value for name, value in module.state_dict().items() if name != "embedding.weight"}
        load_weights(fresh, weights, "w")
        assert torch.equal(fresh.embedding.weight, module.embedding.weight)
        with pytest.raises(MismatchError, match="different values"):
            load_weights(fresh, {**module.state_dict(), "tied.weight": torch.zeros(7, 6)}, "w")

    @pytest.mark.parametrize("prefix", ["_orig_mod.", "module._orig_mod.", "model.", "net.model."])
    def test_a_prefix_that_all_names_share_is_removed(self, network: nn.Module, prefix: str) -> None:
        weights = {name: value + 1 for name, value in network.state_dict().items()}
        load_weights(network, {prefix + name: value for name, value in weights.items()}, "w")
        assert torch.equal(network.state_dict()["0.weight"], weights["0.weight"])
        others = {prefix + name: value for name, value in weights.items()} | {"b": torch.ones(1)}
        with pytest.raises(MismatchError, match=r"0\.weight is missing"):
            load_weights(network, others, "w")

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda value: value.to(torch.int8), "of type int8, expected a dense tensor of type float32"),
            (lambda value: value > 0, "of type bool"),
            (lambda value: value.to(torch.complex64), "of type complex64"),
            (lambda value: value.to_sparse(), "sparse"),
            (lambda value: value.to("meta"), "without values"),
            (lambda value: value.to(torch.float8_e4m3fn), "quantised"),
        ],
    )
    @pytest.mark.parametrize("prefix", ["", "module."])
    def test_other_kinds_of_numbers_are_refused(
        self, network: nn.Module, prefix: str, change: Callable[[Tensor], Tensor], words: str
    ) -> None:
        before = {name: value.clone() for name, value in network.state_dict().items()}
        weights = {prefix + name: change(value) if name == "2.weight" else value for name, value in before.items()}
        with pytest.raises(DataError, match=f"w: 2.weight is {words}") as caught:
            load_weights(network, weights, "w")
        assert "\n" not in str(caught.value)
        load_weights(network, {name: value.double() for name, value in before.items()}, "w")
        assert network.state_dict()["1.num_batches_tracked"].dtype == torch.int64
        assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())

    def test_quantised_weights_are_refused(self, network: nn.Module) -> None:
        with pytest.warns(UserWarning, match="deprecated"):
            value = torch.quantize_per_tensor(torch.ones(2, 4), 0.1, 0, torch.qint8)
        with pytest.raises(DataError, match=r"2\.weight is quantised"):
            load_weights(network, {**network.state_dict(), "2.weight": value}, "w")

    @pytest.mark.parametrize("key", ["net", "params", "model_state", "ema", 7])
    def test_the_only_weights_of_a_file_may_have_any_key(
        self, network: nn.Module, tmp_path: Path, key: str | int
    ) -> None:
        weights = dict(network.state_dict())
        torch.save({"epoch": torch.tensor(3), key: weights, "optimizer": {"state": {}}}, tmp_path / "w.pth")
        assert set(read_weights(tmp_path / "w.pth")) == set(weights)

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ({"net": {"w": torch.ones(1)}, "ema": {"w": torch.ones(1)}}, "a dict with the keys net, ema, expected"),
            ({f"k{i}\n": i for i in range(20)}, "k0, .* and 12 more, expected weights by name"),
            ([1], "a list, expected weights by name"),
        ],
    )
    def test_a_file_without_one_state_names_its_keys(self, tmp_path: Path, content: Any, words: str) -> None:
        torch.save(content, tmp_path / "w.pth")
        with pytest.raises(DataError, match=words) as caught:
            read_weights(tmp_path / "w.pth")
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("ending", ["pth", "safetensors"])
    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b"", "is empty"),
            (b"<!DOCTYPE html><html></html>", "is a web page"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n", "fetch them with git lfs pull"),
        ],
    )
    def test_files_that_are_no_weights_are_told(self, tmp_path: Path, ending: str, content: bytes, words: str) -> None:
        (tmp_path / f"w.{ending}").write_bytes(content)
        with pytest.raises(DataError, match=words):
            read_weights(tmp_path / f"w.{ending}")

    def test_code_in_archives_is_told_and_not_run(self, tmp_path: Path) -> None:
        class Evil:
            def __reduce__(self) -> tuple[Any, ...]:
                return (os.system, (f"touch {tmp_path / 'ran'}",))

        torch.save({"w": Evil()}, tmp_path / "evil.pth")
        with pytest.raises(DataError, match="holds more than tensors, and reading it would run code"):
            read_weights(tmp_path / "evil.pth")
        assert not (tmp_path / "ran").exists()
        (tmp_path / "text.pth").write_bytes(b"hello world")
        with pytest.raises(DataError, match=r"is not a file of torch\.save; fetch"):
            read_weights(tmp_path / "text.pth")
        with zipfile.ZipFile(tmp_path / "script.pth", "w") as archive:  # as torch.jit.save writes
            for name in ("data.pkl", "constants.pkl", "version"):
                archive.writestr(f"script/{name}", b"\x80\x02}." if name != "version" else b"3")
        with pytest.raises(DataError, match="is an archive of TorchScript"):
            read_weights(tmp_path / "script.pth")

    def test_a_folder_without_weights(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"has no model\.safetensors"):
            read_weights(tmp_path)
