"""The tangent kernel against the Jacobian written out, for every kind of layer and for networks that break formulas."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, jacrev
from torch.nn.attention import SDPBackend, sdpa_kernel

from nearkin.core.errors import DataError, MismatchError, OptionError
from nearkin.core.events import Note, Progress, finish
from nearkin.fisher.layer_kernels import Feature, add_kernel, feature
from nearkin.fisher.tangent import tangent_kernel, tangent_product
from nearkin.nets.registry import build

FEW = settings(max_examples=25, deadline=None)


def shaken(model: nn.Module) -> nn.Module:
    """In float64 and evaluation mode, with weights and statistics of no special values."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        for buffer in model.buffers():
            if buffer.is_floating_point():
                buffer.uniform_(0.5, 1.5)
    return model.double().eval()


def jacobian(model: nn.Module, x: Tensor, names: list[str] | None = None) -> Tensor:
    """J `[N, C, P]` by reverse mode on each sample and output alone."""
    weights = {n: p.detach().requires_grad_() for n, p in model.named_parameters() if names is None or n in names}
    rows = []
    for one in x.detach().split(1):
        for output in functional_call(model, weights, (one,)).reshape(-1):
            parts = torch.autograd.grad(
                output, list(weights.values()), retain_graph=True, allow_unused=True, materialize_grads=True
            )
            rows.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(rows).view(len(x), -1, rows[0].numel())


def test_the_oracle_is_what_jacrev_gives() -> None:
    model, x = small()
    weights = {name: value.detach() for name, value in model.named_parameters()}
    blocks = jacrev(lambda w: functional_call(model, w, (x,)))(weights)
    assert near(jacobian(model, x), torch.cat([block.flatten(2) for block in blocks.values()], 2), 1e-12)


def dense(a: Tensor, b: Tensor) -> Tensor:
    return torch.einsum("acp,bdp->acbd", a, b)


def near(found: Tensor, wanted: Tensor, tolerance: float = 1e-10) -> bool:
    return found.shape == wanted.shape and bool((found - wanted).abs().max() <= tolerance * wanted.abs().max())


def agrees(model: nn.Module, x: Tensor, x2: Tensor | None = None, **options: int) -> None:
    """Every kind of kernel equals the dense one."""
    jac = jacobian(model, x)
    other = jac if x2 is None else jacobian(model, x2)
    wanted = dense(jac, other)
    assert near(tangent_kernel(model, x, x2, **options), wanted)
    assert near(tangent_kernel(model, x, x2, "sum", **options), wanted.diagonal(dim1=1, dim2=3).sum(-1))
    last = jac.shape[1] - 1
    assert near(tangent_kernel(model, x, x2, last, **options), wanted[:, last, :, last])


def notes(model: nn.Module, x: Tensor, **options: int) -> str:
    seen: list[object] = []
    finish(tangent_kernel.work(model, x, **options), seen.append)
    return " ".join(event.text for event in seen if isinstance(event, Note))


class Reading(nn.Module):
    """A layer between two others, so that its inputs and gradients have no special form."""

    def __init__(self, before: nn.Module, layer: nn.Module, outputs: int = 2) -> None:
        super().__init__()
        self.before, self.layer, self.outputs = before, layer, outputs

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.layer(self.before(x))).flatten(1)
        mix = torch.cos(torch.arange(1.0, 1 + self.outputs * y.shape[1], dtype=y.dtype)).view(-1, y.shape[1])
        return torch.tanh(y @ mix.t()) + (y * y) @ mix.t().cos()


@FEW
@given(
    sizes=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    bias=st.booleans(),
    n=st.integers(1, 5),
    batch=st.integers(1, 4),
)
def test_linear_layers(sizes: list[int], bias: bool, n: int, batch: int) -> None:
    torch.manual_seed(n)
    layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b, bias=bias), nn.Tanh())]
    agrees(shaken(nn.Sequential(*layers)), torch.randn(n, sizes[0], dtype=torch.float64), batch_size=batch)


@FEW
@given(axes=st.lists(st.integers(1, 4), min_size=1, max_size=2), size=st.integers(1, 12), n=st.integers(1, 4))
def test_linear_layers_along_sequences(axes: list[int], size: int, n: int) -> None:
    torch.manual_seed(n)
    model = shaken(Reading(nn.Linear(2, 3), nn.Linear(3, size)))
    agrees(model, torch.randn(n, *axes, 2, dtype=torch.float64))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@settings(max_examples=60, deadline=None)
@given(
    dims=st.integers(1, 3),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    padding=st.sampled_from([0, 1, 2, "same", "valid"]),
    mode=st.sampled_from(["zeros", "reflect", "replicate", "circular"]),
    groups=st.sampled_from([1, 2, 4]),
    bias=st.booleans(),
    side=st.integers(5, 6),
    n=st.integers(1, 4),
)
def test_convolutions(
    dims: int,
    kernel: int,
    stride: int,
    dilation: int,
    padding: int | str,
    mode: str,
    groups: int,
    bias: bool,
    side: int,
    n: int,
) -> None:
    torch.manual_seed(n)
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    stride = 1 if padding == "same" else stride
    layer = kind(4, 4, kernel, stride, padding, dilation, groups, bias, mode)
    sides = (side, 5, 5)[:dims]
    model = shaken(Reading(kind(1, 4, 1), layer))
    agrees(model, torch.randn(n, 1, *sides, dtype=torch.float64))
    assert "0 parameters by auto" in notes(model, torch.randn(n, 1, *sides, dtype=torch.float64))


@FEW
@given(dims=st.integers(1, 3), groups=st.sampled_from([1, 2]), side=st.integers(1, 3), summed=st.booleans())
def test_both_forms_of_a_convolution_agree(dims: int, groups: int, side: int, summed: bool) -> None:
    torch.manual_seed(side)
    layer = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1](2, 4, 2, groups=groups).double()
    x = torch.randn(3, 2, *[side + 1] * dims, dtype=torch.float64)
    g = torch.randn(2, 3, 4, *[side] * dims, dtype=torch.float64)
    pairs, rows = (forced(layer, x, list(g), summed, paired) for paired in (True, False))
    size = 3 if summed else 6
    found, wanted = (torch.zeros(size, size, dtype=torch.float64) for _ in range(2))
    add_kernel(found, pairs, pairs)
    add_kernel(wanted, rows, rows)
    assert near(found, wanted, 1e-12)


def forced(layer: nn.Module, x: Tensor, g: list[Tensor], summed: bool, paired: bool) -> Feature:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nearkin.fisher.layer_kernels.pairs_are_cheaper", lambda *sizes: paired)
        made = feature(layer, {}, x, g, ("weight", "bias"), summed, 1)
    assert (made.u is not None) == paired
    return made


NORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "batch 1d flat": (lambda: nn.BatchNorm1d(4), (4,)),
    "batch 1d": (lambda: nn.BatchNorm1d(4), (4, 3)),
    "batch 2d": (lambda: nn.BatchNorm2d(4), (4, 3, 2)),
    "batch 3d": (lambda: nn.BatchNorm3d(4), (4, 2, 3, 2)),
    "layer": (lambda: nn.LayerNorm(4), (4,)),
    "layer on sequences": (lambda: nn.LayerNorm(4), (3, 4)),
    "layer on maps": (lambda: nn.LayerNorm((3, 2)), (4, 3, 2)),
    "layer without bias": (lambda: nn.LayerNorm(4, bias=False), (3, 4)),
    "group": (lambda: nn.GroupNorm(2, 4), (4, 3, 2)),
    "instance 1d": (lambda: nn.InstanceNorm1d(4, affine=True), (4, 3)),
    "instance 2d": (lambda: nn.InstanceNorm2d(4, affine=True), (4, 3, 2)),
    "instance 2d tracking": (lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True), (4, 3, 2)),
}


class Scaled(nn.Module):
    """A home-made layer: x times a vector, plus another."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


@pytest.mark.parametrize("name", NORMS)
def test_norms(name: str) -> None:
    torch.manual_seed(0)
    make, shape = NORMS[name]
    model, x = shaken(Reading(nn.Tanh(), make())), torch.randn(3, *shape, dtype=torch.float64)
    agrees(model, x)
    assert "0 parameters by auto" in notes(model, x)


@FEW
@given(
    words=st.integers(2, 40),
    size=st.integers(1, 3),
    length=st.integers(1, 4),
    padding=st.sampled_from([None, 0, -1]),
    n=st.integers(1, 4),
)
def test_embeddings(words: int, size: int, length: int, padding: int | None, n: int) -> None:
    torch.manual_seed(n)
    model = shaken(Reading(nn.Identity(), nn.Embedding(words, size, padding)))
    tokens = torch.randint(words, (n, length))
    agrees(model, tokens)
    assert "0 parameters by auto" in notes(model, tokens)


class Worded(nn.Module):
    """Words that are looked up once or twice."""

    def __init__(self, twice: bool, sparse: bool) -> None:
        super().__init__()
        self.words, self.head, self.twice = nn.Embedding(7, 3, sparse=sparse), nn.Linear(3, 2), twice

    def forward(self, x: Tensor) -> Tensor:
        y = self.words(x).mean(1)
        return self.head(torch.tanh(y * self.words(x[:, 0]) if self.twice else y))


@pytest.mark.parametrize("twice", [False, True])
def test_sparse_gradients_count_as_dense_ones(twice: bool) -> None:
    torch.manual_seed(0)
    model, dense_model = Worded(twice, True).double().eval(), Worded(twice, False).double().eval()
    dense_model.load_state_dict(model.state_dict())
    tokens = torch.randint(7, (4, 5))
    jac = jacobian(dense_model, tokens)
    assert near(tangent_kernel(model, tokens), dense(jac, jac))


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


class Twice(nn.Module):
    """One layer called twice, and one called once."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))))


class Direct(nn.Module):
    """A layer whose weight is read outside it, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.layer(x)), self.layer.weight)


class Hidden(nn.Linear):
    """A linear layer in name only."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


class Folded(nn.Module):
    """Samples and positions share the first axis of the inner layer, in one order or the other."""

    def __init__(self, positions_first: bool) -> None:
        super().__init__()
        self.layer, self.positions_first = nn.Linear(2, 2), positions_first

    def forward(self, x: Tensor) -> Tensor:
        y = x.transpose(0, 1) if self.positions_first else x.flatten(0, 1)
        y = torch.tanh(self.layer(y))
        y = y.transpose(0, 1) if self.positions_first else y.view(len(x), -1, 2)
        return (y * torch.arange(1.0, 1.0 + y.shape[1], dtype=y.dtype)[:, None]).sum(1)


class Routed(nn.Module):
    """Positive samples take one layer, the others another; the layer for large ones is seldom called."""

    def __init__(self) -> None:
        super().__init__()
        self.plus, self.minus, self.large = nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.where(x[:, :1] > 0, self.plus(x), x.new_zeros(()))
        small = x[:, 0] <= 0
        out = out.index_add(0, small.nonzero()[:, 0], self.minus(x[small]))
        large = x[:, 0] > 2
        return out + (self.large(x) * large[:, None] if bool(large.any()) else 0)


class Sorting(nn.Module):
    """Samples pass the inner layer in the order of their first number, or in reverse, and come out in their own."""

    def __init__(self, reverse: bool) -> None:
        super().__init__()
        self.before, self.inner, self.after = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
        self.reverse = reverse

    def forward(self, x: Tensor) -> Tensor:
        order = x[:, 0].argsort(descending=self.reverse)
        y = torch.tanh(self.inner(torch.tanh(self.before(x))[order]))
        return self.after(y[order.argsort()])


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cell, self.head = kind(2, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


def overwriting() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2), nn.ELU(inplace=True))


ODD: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], bool]] = {
    "home-made": (lambda: nn.Sequential(nn.Linear(3, 4), Scaled(4), nn.Tanh(), nn.Linear(4, 2)), (3,), True),
    "tied": (Tied, (3,), True),
    "twice": (Twice, (3,), True),
    "direct": (Direct, (3,), True),
    "subclass": (lambda: nn.Sequential(Hidden(3, 2), nn.Tanh()), (3,), True),
    "positions first": (lambda: Folded(True), (2, 2), True),
    "folded": (lambda: Folded(False), (3, 2), True),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)), (3,), True),
    "prelu": (lambda: nn.Sequential(nn.Linear(3, 4), nn.PReLU(), nn.Linear(4, 2)), (3,), True),
    "bilinear": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.Unflatten(1, (1, 4)), nn.ConvTranspose1d(1, 2, 2)),
        (3,),
        True,
    ),
    "routed": (Routed, (3,), True),
    "sorted": (lambda: Sorting(False), (3,), True),
    "sorted in reverse": (lambda: Sorting(True), (3,), True),
    "gru": (lambda: Recurrent(nn.GRU), (3, 2), True),
    "lstm": (lambda: Recurrent(nn.LSTM), (3, 2), True),
    "attention": (Attending, (3, 4), True),
    "transformer": (lambda: nn.TransformerEncoderLayer(4, 2, 5, batch_first=True), (2, 4), True),
    "overwriting": (overwriting, (3,), False),
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", ODD)
def test_what_has_no_formula_is_left_to_autograd_and_right(name: str) -> None:
    torch.manual_seed(1)
    make, shape, falls_back = ODD[name]
    model, x = shaken(make()), torch.randn(5, *shape, dtype=torch.float64)
    x += torch.tensor([1.0, -2.0, 3.0, 0.5, -1.0]).view(-1, *[1] * len(shape))
    with unfused_attention():
        agrees(model, x, batch_size=2)
        agrees(model, x, x[1:4] + 1)
        assert ("0 parameters by auto" not in notes(model, x)) == falls_back


@contextmanager
def unfused_attention() -> Iterator[None]:
    """Attention that the oracle can differentiate and batch."""
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_fused_attention_is_not_differentiated() -> None:
    torch.manual_seed(0)
    model, x = shaken(nn.TransformerEncoderLayer(4, 2, 5, batch_first=True)), torch.randn(2, 3, 4, dtype=torch.float64)
    found = tangent_kernel(model, x, outputs=3)
    with unfused_attention():
        assert near(found, dense(jacobian(model, x), jacobian(model, x))[:, 3, :, 3])
    assert torch.backends.mha.get_fastpath_enabled()


def small(name: str = "lenet?width=0.25", shape: tuple[int, ...] = (1, 8, 8)) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return shaken(build(name, shape, 3, seed=0)), torch.randn(7, *shape, dtype=torch.float64)


@pytest.mark.parametrize("name", ["lenet?width=0.25", "resnet18?width=0.0625", "vgg16?width=0.0625", "mlp?hidden=8-4"])
def test_networks(name: str) -> None:
    model, x = small(name)
    agrees(model, x[:4], x[4:])
    assert "0 parameters by auto" in notes(model, x)


def test_a_gram_matrix_is_symmetric_positive_and_the_cross_kernel_with_itself() -> None:
    model, x = small()
    for outputs in ("all", "sum", 1):
        gram = tangent_kernel(model, x, outputs=outputs)
        flat = gram.reshape(x.shape[0] * (3 if outputs == "all" else 1), -1)
        assert torch.equal(flat, flat.t())
        assert near(tangent_kernel(model, x, x, outputs), gram, 1e-12)
        assert torch.linalg.eigvalsh(flat)[0] >= -1e-12 * torch.linalg.eigvalsh(flat)[-1]


def test_kernel_and_gauss_newton_matrix_share_eigenvalues() -> None:
    torch.manual_seed(0)
    model = shaken(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)))
    x = torch.randn(9, 2, dtype=torch.float64)
    jac = jacobian(model, x).flatten(0, 1)
    gram = tangent_kernel(model, x).reshape(18, 18)
    wanted = torch.linalg.eigvalsh(jac.t() @ jac)
    assert near(torch.linalg.eigvalsh(gram)[-len(wanted) :], wanted, 1e-10)


@pytest.mark.parametrize("outputs", ["all", "sum", 2])
@pytest.mark.parametrize("crossed", [False, True])
def test_blocks_give_what_all_samples_at_once_give(outputs: str | int, crossed: bool) -> None:
    model, x = small()
    x2 = x[:5] + 1 if crossed else None
    memory = {"all": 50_000, "sum": 42_000, 2: 20_000}[outputs]
    events: list[object] = []
    found = finish(tangent_kernel.work(model, x, x2, outputs, batch_size=2, memory=memory), events.append)
    assert any("blocks of" in event.text for event in events if isinstance(event, Note))
    assert any(isinstance(event, Progress) and event.done == len(x) for event in events)
    assert near(found, tangent_kernel(model, x, x2, outputs), 1e-12)


def test_strips_and_tiles_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = small()
    wanted = [tangent_kernel(model, x, outputs=outputs) for outputs in ("all", "sum")]
    monkeypatch.setattr("nearkin.fisher.tangent_blocks.STRIP", 3)
    monkeypatch.setattr("nearkin.fisher.tangent_blocks.WIDTH", 2)
    monkeypatch.setattr("nearkin.fisher.layer_kernels.SCRATCH", 1)
    for outputs, whole in zip(("all", "sum"), wanted, strict=True):
        found = tangent_kernel(model, x, outputs=outputs)
        assert near(found, whole, 1e-12)
        assert torch.equal(found, found.permute(2, 3, 0, 1) if outputs == "all" else found.t())


@pytest.mark.parametrize("chosen", [["head.bias"], ["convolutions.0.weight"], ["head.weight", "convolutions.3.bias"]])
def test_a_subset_of_parameters(chosen: list[str]) -> None:
    model, x = small()
    jac = jacobian(model, x, chosen)
    assert near(tangent_kernel(model, x, params=chosen), dense(jac, jac))
    u = torch.randn(7, 3, dtype=torch.float64)
    assert near(tangent_product(model, x, u, params=chosen), torch.einsum("acbd,bd->ac", dense(jac, jac), u))


def test_frozen_parameters_do_not_count_unless_named() -> None:
    model, x = small()
    model.convolutions.requires_grad_(False)
    names = [name for name, value in model.named_parameters() if value.requires_grad]
    jac = jacobian(model, x, names)
    assert near(tangent_kernel(model, x), dense(jac, jac))
    model.requires_grad_(False)
    with pytest.raises(OptionError, match="frozen"):
        tangent_kernel(model, x)
    assert near(tangent_kernel(model, x, params=names), dense(jac, jac))


@pytest.mark.parametrize("name", ["lenet", "gru", "attention", "twice"])
def test_products_need_no_kernel(name: str) -> None:
    torch.manual_seed(0)
    make, shape, _ = (lambda: small()[0], (1, 8, 8), True) if name == "lenet" else ODD[name]
    model, x, x2 = shaken(make()), *(torch.randn(n, *shape, dtype=torch.float64) for n in (5, 4))
    k = tangent_kernel(model, x, x2)
    u = torch.randn(4, k.shape[3], dtype=torch.float64)
    assert near(tangent_product(model, x, u, x2, batch_size=3), torch.einsum("acbd,bd->ac", k, u))
    assert near(tangent_product(model, x, u[:, 1], x2, outputs=1), k[:, 1, :, 1] @ u[:, 1])
    traces = k.diagonal(dim1=1, dim2=3).sum(-1)
    assert near(tangent_product(model, x, u[:, 0], x2, outputs="sum"), traces @ u[:, 0])


def test_float32_and_outputs_of_any_shape() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 2, 3)).eval()
    x = torch.randn(3, 1, 4, 4)
    jac = jacobian(model, x)
    assert near(tangent_kernel(model, x), dense(jac, jac), 1e-5)
    scalar = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)).eval()
    assert near(tangent_kernel(scalar, x[:, 0, 0, :2], outputs=0), x[:, 0, 0, :2] @ x[:, 0, 0, :2].t() + 1, 1e-5)


def test_nothing_is_left_on_the_network() -> None:
    model, x = small()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x.requires_grad_()
    with torch.no_grad():
        found = tangent_kernel(model, x, outputs=0)
    assert not found.requires_grad
    assert x.grad is None
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_bad_input_is_refused_in_one_line() -> None:
    model, x = small()
    for wrong in (3, -1, "none", 1.5):
        with pytest.raises(OptionError, match="index from 0 to 2"):
            tangent_kernel(model, x, outputs=wrong)
    with pytest.raises(DataError, match="no samples"):
        tangent_kernel(model, x[:0])
    with pytest.raises(DataError, match="no samples"):
        tangent_kernel(model, x, x[:0])
    with pytest.raises(MismatchError, match="give both one shape"):
        tangent_kernel(model, x, x[:, :, 1:])
    with pytest.raises(OptionError, match="no parameter nothing"):
        tangent_kernel(model, x, params=["nothing"])
    with pytest.raises(OptionError, match="batch_size"):
        tangent_kernel(model, x, batch_size=0)
    with pytest.raises(OptionError, match="tangent_product"):
        tangent_kernel(model, x, memory=1000)
    with pytest.raises(MismatchError, match="u has shape"):
        tangent_product(model, x, torch.zeros(7, dtype=torch.float64))


def test_batch_norm_in_training_mode_is_refused() -> None:
    model, x = small("resnet18?width=0.0625")
    with pytest.raises(OptionError, match=r"depend on the whole batch.*model\.eval"):
        tangent_kernel(model.train(), x)


@pytest.mark.parametrize("at", [0, 3, 6])
def test_what_is_not_finite_is_named(at: int) -> None:
    model, x = small()
    bad = x.clone()
    bad[at, 0, 0, 0] = float("nan")
    for sides in ((bad,), (x, bad)):
        with pytest.raises(DataError, match=f"the inputs are not finite at sample {at}"):
            tangent_kernel(model, *sides, outputs=0, batch_size=2)
    with torch.no_grad():
        model.body[1].weight[0, 0] = float("inf")
    with pytest.raises(DataError, match=r"the outputs of body\.1 are not finite"):
        tangent_kernel(model, x, outputs=0)


def test_a_gradient_that_is_not_finite_and_a_kernel_that_overflows() -> None:
    class Root(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sqrt()

    model = nn.Sequential(nn.Linear(2, 2, bias=False), Root(), nn.Linear(2, 1)).eval()
    x = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    with torch.no_grad():
        model[0].weight.fill_(1.0)
    with pytest.raises(DataError, match="the gradients of 0 are not finite at sample 1"):
        tangent_kernel(model, x, outputs=0)
    with pytest.raises(OptionError, match="overflows"):
        tangent_kernel(nn.Linear(2, 1), 1e30 * x, outputs=0)


def test_no_warning_reaches_the_user() -> None:
    model, x = small()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tangent_kernel(model, x, outputs="sum")


class Reused(nn.Module):
    """A layer whose weight is used a second time for some samples, or some batches."""

    def __init__(self, use: str) -> None:
        super().__init__()
        self.layer, self.head, self.use = nn.Linear(3, 3), nn.Linear(3, 2), use

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.layer(x))
        if self.use == "always" or (self.use == "if" and x.sum() > 0):
            h = h + F.linear(x, self.layer.weight)
        elif self.use == "where":
            h = torch.where(x[:, :1] > 0, F.linear(x, self.layer.weight), h)
        return self.head(h)


@pytest.mark.parametrize("use", ["always", "where", "if"])
def test_a_second_use_of_a_weight_is_found_though_the_first_sample_has_a_zero_gradient(use: str) -> None:
    torch.manual_seed(0)
    model, x = Reused(use).double(), torch.randn(7, 3).double()
    x[0] = 0
    theta = list(model.parameters())
    rows = []
    for sample in x.split(1):
        for output in model(sample)[0]:
            found = torch.autograd.grad(output, theta, retain_graph=True, materialize_grads=True)
            rows.append(torch.cat([gradient.flatten() for gradient in found]))
    jacobian = torch.stack(rows)
    for batch_size in (1, 3, 7):
        kernel = tangent_kernel(model, x, batch_size=batch_size)
        torch.testing.assert_close(kernel.view(14, 14), jacobian @ jacobian.t())
    torch.testing.assert_close(tangent_kernel(model, x[:1], x).view(2, 14), jacobian[:2] @ jacobian.t())
