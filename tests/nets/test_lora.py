"""LoRA: the same outputs at the start, any update at full rank, and the original architecture after merging."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearkin.core.errors import MismatchError, OptionError
from nearkin.fisher.tangent import tangent_kernel
from nearkin.fisher.tangent_features import tangent_plan
from nearkin.nets.lora import Lora, LoraLayer, merge_lora, unmoved_names, with_lora
from nearkin.nets.registry import build


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class SamePadding(nn.Conv2d):
    """A convolution that pads its inputs itself, as networks ported from TensorFlow do."""

    def forward(self, x: Tensor) -> Tensor:
        padded = F.pad(x, (0, 1, 0, 1))
        return F.conv2d(padded, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class UnitRows(nn.Linear):
    """Not linear in its weight."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, F.normalize(self.weight, dim=1), self.bias)


class WithScale(nn.Linear):
    """Linear in its weight, and another parameter beside it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.scale = nn.Parameter(torch.ones(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


CASES = {
    "linear": (lambda: nn.Linear(5, 3), (5,)),
    "linear without bias": (lambda: nn.Linear(5, 3, bias=False), (5,)),
    "linear on sequences": (lambda: nn.Linear(5, 3), (4, 5)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, padding=1), (3, 7)),
    "conv2d": (lambda: nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)), (2, 6, 5)),
    "conv2d same": (lambda: nn.Conv2d(2, 3, 3, padding="same", padding_mode="circular"), (2, 5, 5)),
    "conv3d": (lambda: nn.Conv3d(1, 2, 2), (1, 3, 3, 3)),
    "grouped conv2d": (lambda: nn.Conv2d(4, 6, 3, groups=2), (4, 5, 5)),
    "own padding": (lambda: SamePadding(2, 3, 3, stride=2, padding=1), (2, 6, 5)),
    "depthwise, own padding": (lambda: SamePadding(4, 4, 3, groups=4), (4, 5, 5)),
    "depthwise conv1d": (lambda: nn.Conv1d(4, 4, 3, groups=4), (4, 6)),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor]:
    make, shape = CASES[request.param]
    torch.manual_seed(0)
    return make().double(), drawn(0, 6, *shape)


def with_random_up(model: nn.Module) -> nn.Module:
    """The network after some training: B is no longer zero."""
    for layer in [module for module in model.modules() if isinstance(module, LoraLayer)]:
        with torch.no_grad():
            layer.up.weight.copy_(drawn(3, *layer.up.weight.shape))
    return model


@pytest.mark.parametrize(
    "layer", [UnitRows(3, 4), WithScale(3, 4), nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))]
)
def test_layers_that_compute_something_else_get_no_adapter(layer: nn.Module) -> None:
    adapted = with_lora(nn.Sequential(layer, nn.Linear(4, 2)))
    assert not isinstance(adapted[0], LoraLayer)
    assert isinstance(adapted[1], LoraLayer)


def full_rank(layer: nn.Module) -> int:
    return layer.weight[0].numel()


def test_outputs_are_equal_at_the_start_and_after_merging(case: tuple[nn.Module, Tensor]) -> None:
    layer, x = case
    adapted = with_lora(layer, Lora(rank=2, alpha=3.0))
    assert torch.equal(adapted(x), layer(x))
    with_random_up(adapted)
    assert not torch.allclose(adapted(x), layer(x))
    merged = merge_lora(adapted)
    assert type(merged) is type(layer)
    assert merged.state_dict().keys() == layer.state_dict().keys()
    assert torch.allclose(merged(x), adapted(x), atol=1e-12)
    assert torch.allclose(merged.weight, adapted.weight, atol=1e-12)


def test_the_weight_is_the_formula() -> None:
    adapted = with_random_up(with_lora(nn.Linear(5, 3).double(), Lora(rank=2, alpha=6.0)))
    wanted = adapted.base.weight + 3.0 * adapted.up.weight @ adapted.down.weight
    assert torch.allclose(adapted.weight, wanted)


def test_full_rank_reaches_every_update(case: tuple[nn.Module, Tensor]) -> None:
    """ΔW = (α/r) B A has an exact solution B for every ΔW if A is square, and the start's A is."""
    layer, x = case
    adapted = with_lora(layer, Lora(rank=full_rank(layer)))
    target = copy.deepcopy(layer)
    change = drawn(5, *layer.weight.shape)
    with torch.no_grad():
        target.weight.add_(change)
        groups = getattr(layer, "groups", 1)
        a = adapted.down.weight.reshape(groups, full_rank(layer), -1)
        b = torch.linalg.solve(a, change.reshape(groups, -1, a.shape[2]), left=False)
        adapted.up.weight.copy_(b.reshape(adapted.up.weight.shape))
    assert torch.allclose(adapted.weight, target.weight, atol=1e-9)
    assert torch.allclose(adapted(x), target(x), atol=1e-9)


@pytest.mark.parametrize(("shape", "rank"), [((3, 7), 3), ((7, 3), 3), ((4, 4), 4)])
def test_rank_of_the_smaller_side_reaches_every_update_by_minimisation(shape: tuple[int, int], rank: int) -> None:
    inputs, outputs = shape
    adapted = with_lora(nn.Linear(inputs, outputs).double(), Lora(rank=rank))
    adapted.base.requires_grad_(False)
    target = adapted.weight.detach() + drawn(1, outputs, inputs)
    optimiser = torch.optim.LBFGS([adapted.down.weight, adapted.up.weight], max_iter=500, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = (adapted.weight - target).square().sum()
        value.backward()
        return value

    optimiser.step(loss)
    assert loss().item() < 1e-8


def test_a_lower_rank_does_not_reach_every_update() -> None:
    adapted = with_lora(nn.Linear(6, 6).double(), Lora(rank=2))
    change = (with_random_up(adapted).weight - adapted.base.weight).detach()
    assert int(torch.linalg.matrix_rank(change)) == 2


def test_full_rank_has_the_tangent_kernel_of_the_weights(case: tuple[nn.Module, Tensor]) -> None:
    layer, x = case
    adapted = with_lora(layer, Lora(rank=full_rank(layer))).eval()
    wanted = tangent_kernel(layer.eval(), x, params=["weight"])
    assert torch.allclose(tangent_kernel(adapted, x, params=["up.weight"]), wanted, atol=1e-10)


def test_tangent_kernels_equal_dense_jacobians(case: tuple[nn.Module, Tensor]) -> None:
    """Also by the formulas of layers, and with B that is not zero."""
    layer, x = case
    adapted = with_random_up(with_lora(nn.Sequential(layer, nn.Tanh(), nn.Flatten()), Lora(rank=2))).eval()
    names = ("0.down.weight", "0.up.weight")
    params = {name: dict(adapted.named_parameters())[name].detach() for name in names}

    def outputs(values: dict[str, Tensor], sample: Tensor) -> Tensor:
        return torch.func.functional_call(adapted, values, (sample[None],))[0]

    jacobians = torch.func.vmap(torch.func.jacrev(outputs), (None, 0))(params, x)
    j = torch.cat([value.flatten(2) for value in jacobians.values()], 2)
    kernel = tangent_kernel(adapted, x, params=names)
    assert torch.allclose(kernel, torch.einsum("ncp,mdp->ncmd", j, j), atol=1e-9)
    unknown = ("0.down.weight",) if isinstance(layer, SamePadding) else ()  # no formula for a class that pads itself
    assert tangent_plan(adapted, names, range(1), False, x).exact == unknown


@pytest.mark.soak
def test_the_kernel_is_unbiased_over_seeds() -> None:
    """The mean of AᵀA is the identity, so the mean kernel of rank 2 is that of the weights."""
    layer, x = nn.Linear(6, 1).double(), drawn(0, 4, 6)
    kernels = [tangent_kernel(with_lora(layer, Lora(rank=2), seed=s), x, params=["up.weight"]) for s in range(300)]
    stacked = torch.stack(kernels)[:, :, 0, :, 0]
    error = stacked.std(0) / len(kernels) ** 0.5
    assert bool(((stacked.mean(0) - x @ x.t()).abs() < 5 * error).all())


def test_states_are_stored_and_loaded() -> None:
    net, x = build("lenet?width=0.5", (1, 12, 12), 3, seed=0), torch.ones(2, 1, 12, 12)
    adapted = with_random_up(with_lora(net, Lora(rank=2), seed=1))
    other = with_lora(build("lenet?width=0.5", (1, 12, 12), 3, seed=7), Lora(rank=2), seed=2)
    other.load_state_dict(adapted.state_dict())
    assert torch.equal(other(x), adapted(x))
    plain = build("lenet?width=0.5", (1, 12, 12), 3, seed=7)
    plain.load_state_dict(merge_lora(adapted).state_dict())
    assert torch.allclose(plain(x), adapted(x), atol=1e-5)
    assert torch.equal(net(x), build("lenet?width=0.5", (1, 12, 12), 3, seed=0)(x)), "the source was changed"


def test_the_seed_decides_a() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    one, same, other = (with_lora(net, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one[0].down.weight, same[0].down.weight)
    assert not torch.equal(one[0].down.weight, other[0].down.weight)
    assert not torch.equal(one[0].down.weight, one[1].down.weight)


def test_shared_layers_get_one_adapter_and_shared_weights_none() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.twice = nn.Embedding(7, 4), nn.Linear(4, 4)
            self.again, self.out = self.twice, nn.Linear(4, 7, bias=False)
            self.out.weight = self.words.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.again(self.twice(self.words(x)).relu()).mean(1))

    net, x = Tied(), torch.arange(6).view(2, 3)
    adapted = with_random_up(with_lora(net, Lora(rank=2)).double())
    assert adapted.again is adapted.twice
    assert isinstance(adapted.twice, LoraLayer)
    assert type(adapted.out) is nn.Linear
    assert adapted.out.weight is adapted.words.weight
    merged = merge_lora(adapted)
    assert merged.out.weight is merged.words.weight
    assert merged.again is merged.twice
    assert merged.state_dict().keys() == net.state_dict().keys()
    assert torch.allclose(merged(x), adapted(x))


def test_attention_of_torch_reads_the_adapted_output_weights() -> None:
    """`nn.MultiheadAttention` reads `out_proj.weight` and never calls the layer; `in_proj_weight` has no adapter."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True).double().eval()
    x = drawn(0, 3, 5, 8)
    adapted = with_lora(layer, Lora(rank=2))
    names = [name for name, module in adapted.named_modules() if isinstance(module, LoraLayer)]
    assert names == ["self_attn.out_proj", "linear1", "linear2"]
    assert torch.allclose(adapted(x), layer(x))
    with_random_up(adapted)
    merged = merge_lora(adapted)
    assert not torch.allclose(adapted(x), layer(x))
    assert torch.allclose(merged(x), adapted(x))
    with torch.no_grad():
        assert torch.allclose(merged(x), adapted(x)), "the fast path of torch differs"
    adapted(x).sum().backward()
    assert adapted.self_attn.out_proj.up.weight.grad.abs().sum() > 0


def test_only_a_of_new_adapters_does_not_move_at_first_order() -> None:
    net = with_lora(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), Lora(rank=2))
    assert unmoved_names(net) == {"0.down.weight", "1.down.weight"}
    with torch.no_grad():
        net[0].up.weight.add_(1)
    assert unmoved_names(net) == {"1.down.weight"}


def test_options_are_read_and_refused() -> None:
    assert Lora.parse("lora") == Lora()
    assert Lora.parse(str(Lora(rank=3, alpha=1.5))) == Lora(rank=3, alpha=1.5)
    for text, words in {
        "lora?rank=3": "no option 'rank'",
        "lora?r=x": "expected numbers",
        "lora?r=0": "1 or more",
        "lora?r=2&r=3": "given twice",
        "lora?alpha=-1": "above 0",
        "lora?alpha=nan": "above 0",
    }.items():
        with pytest.raises(OptionError, match=words) as told:
            Lora.parse(text)
        assert "\n" not in str(told.value)
    with pytest.raises(MismatchError, match="no linear layer or convolution for LoRA"):
        with_lora(nn.Sequential(nn.ReLU(), nn.Linear(2, 2)), skip=["1"])
    with pytest.raises(OptionError, match="has no layer haed"):
        with_lora(nn.Sequential(nn.Linear(2, 2)), skip=["haed"])


def test_the_outputs_are_those_of_peft() -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed; see https://pypi.org/project/peft")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(36, 5)).double()
    x = drawn(0, 4, 2, 6, 6)
    mine = with_random_up(with_lora(net, Lora(rank=3, alpha=6.0)))
    config = peft.LoraConfig(r=3, lora_alpha=6.0, target_modules=["0", "3"], lora_dropout=0.0)
    theirs = peft.get_peft_model(copy.deepcopy(net), config).double().eval()
    layers = theirs.base_model.model
    with torch.no_grad():
        for name in ("0", "3"):
            own, other = mine.get_submodule(name), layers.get_submodule(name)
            other.lora_A["default"].weight.copy_(own.down.weight)
            other.lora_B["default"].weight.copy_(own.up.weight)
    assert torch.allclose(mine(x), theirs(x))
    assert not torch.allclose(mine(x), net(x))
    assert torch.allclose(merge_lora(mine)(x), theirs.merge_and_unload()(x))
