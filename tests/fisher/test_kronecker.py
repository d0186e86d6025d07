"""Kronecker factors against the full Fisher where theory makes them equal, and against dense Kronecker products."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nearkin.core.errors import DataError, MismatchError, NearkinError, OptionError
from nearkin.fisher import full
from nearkin.fisher.diagonals import diagonal
from nearkin.fisher.full import fisher_blocks, fisher_matrix
from nearkin.fisher.kronecker import Diagonal, Factors, KroneckerFisher, kronecker, patches
from nearkin.nets.recurrent import RecurrentLanguageModel
from nearkin.nets.small import LeNet

RNG = torch.Generator().manual_seed(0)
F64 = {"dtype": torch.float64, "generator": RNG}


def made(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build().double().eval()


def deep_linear() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2, bias=False), nn.Linear(2, 2))


def curved() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))


def dense(fisher: KroneckerFisher, net: nn.Module) -> Tensor:
    """The matrix `[P, P]` by products with unit vectors."""
    weights = {name: weight for name, weight in net.named_parameters() if weight.requires_grad}
    sizes = [weight.numel() for weight in weights.values()]
    columns = []
    for unit in torch.eye(sum(sizes), dtype=torch.float64):
        parts = {n: part.view_as(w) for (n, w), part in zip(weights.items(), unit.split(sizes), strict=True)}
        image = fisher.matmul(parts)
        columns.append(torch.cat([image[name].flatten() for name in weights]))
    return torch.stack(columns, 1)


def layer_blocks(matrix: Tensor, net: nn.Module) -> Tensor:
    """A full matrix with zeros wherever two weights are of different modules."""
    owners = [name.rpartition(".")[0] for name, weight in net.named_parameters() for _ in range(weight.numel())]
    same = torch.tensor([[a == b for b in owners] for a in owners])
    return matrix.where(same, 0.0)


def exact_blocks(fisher: KroneckerFisher) -> dict[str, Tensor]:
    """Blocks that are one matrix, by name."""
    found = [block for block in fisher.blocks if isinstance(block, Factors)]
    return {block.weight: block.inputs for block in found if block.outputs.tolist() == [[1.0]]}


EXACT_CASES = {
    "deep linear network, unit variance": (deep_linear, torch.randn(6, 3, **F64), "gaussian"),
    "deep linear network over a sequence": (deep_linear, torch.randn(4, 5, 3, **F64), "gaussian"),
    "one sample, categorical": (curved, torch.randn(1, 3, **F64), "categorical"),
    "one sample, gaussian": (curved, torch.randn(1, 3, **F64), "gaussian"),
    "one sample, one patch": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, (2, 3)), nn.Tanh(), nn.Flatten(), nn.Linear(3, 2)),
        torch.randn(1, 2, 2, 3, **F64),
        "categorical",
    ),
    "linear convolutions of one pixel": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 1), nn.Conv2d(3, 2, 1)),
        torch.randn(3, 2, 2, 3, **F64),
        "dense",
    ),
}


@pytest.mark.parametrize("case", EXACT_CASES)
def test_it_is_the_fisher_where_theory_says_so(case: str) -> None:
    build, x, form = EXACT_CASES[case]
    net = made(build)
    found = kronecker(net, x, likelihood=form, labels="expected")
    truth = fisher_matrix(net, x, likelihood=form, labels="expected")
    wanted = layer_blocks(truth, net)
    assert torch.allclose(dense(found, net), wanted, rtol=1e-9, atol=1e-12 * float(wanted.abs().max()))
    for scale in (0.1, 1e3):
        assert full.log_determinant(truth, scale) <= found.log_determinant(scale) + 1e-9
        assert found.log_determinant(scale) == pytest.approx(full.log_determinant(wanted, scale), rel=1e-9)
    assert not exact_blocks(found)


def test_one_observed_label_is_exact_too() -> None:
    net, x, y = made(curved), torch.randn(1, 3, **F64), torch.tensor([2])
    assert torch.allclose(dense(kronecker(net, x, y), net), layer_blocks(fisher_matrix(net, x, y), net), rtol=1e-9)


def mixed() -> nn.Module:
    """One layer of every kind: factors, grouped, norm, parameter of its own."""
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.Tanh()),
        *(nn.Conv2d(4, 4, 3, padding="same", groups=2), nn.GroupNorm(2, 4), nn.PReLU()),
        *(nn.Flatten(), nn.Linear(16, 3)),
    )


def test_determinant_trace_and_diagonal_are_those_of_the_dense_matrix() -> None:
    net, x, y = made(mixed), torch.randn(5, 2, 4, 4, **F64), torch.randint(3, (5,), generator=RNG)
    found = kronecker(net, x, y)
    matrix = dense(found, net)
    assert torch.allclose(matrix, matrix.T)
    assert found.trace() == pytest.approx(float(matrix.trace()))
    flat = torch.cat([found.diagonal()[name].flatten() for name, _ in net.named_parameters()])
    assert torch.allclose(flat, matrix.diagonal())
    assert found.log_determinant(7.0) == pytest.approx(full.log_determinant(matrix, 7.0))
    assert found.log_determinant(7.0) <= float((7.0 * flat).log1p().sum())
    assert found.log_determinant(0.0) == 0
    for block in found.blocks:
        if isinstance(block, Factors):
            product = torch.kron(block.outputs, block.inputs)
            assert block.log_determinant(7.0) == pytest.approx(full.log_determinant(product, 7.0))


def test_the_trace_is_exact_without_shared_positions_and_independent_parts() -> None:
    """One cotangent a sample of constant length makes trace(A) trace(G) the Fisher's own trace."""
    net, x = made(lambda: nn.Linear(3, 2)), torch.randn(6, 3, **F64)
    fisher = kronecker(net, x, likelihood="gaussian", labels="expected")
    assert fisher.trace() == pytest.approx(
        float(fisher_matrix(net, x, likelihood="gaussian", labels="expected").trace())
    )


def test_weights_without_factors_have_exact_blocks() -> None:
    net, x, y = made(mixed), torch.randn(5, 2, 4, 4, **F64), torch.randint(3, (5,), generator=RNG)
    truth = fisher_blocks(net, x, y)
    blocks = exact_blocks(kronecker(net, x, y))
    assert list(blocks) == ["2.weight", "2.bias", "3.weight", "3.bias", "4.weight"]
    assert all(torch.allclose(block, truth[name], rtol=1e-9, atol=1e-15) for name, block in blocks.items())


def test_large_ones_keep_their_diagonal() -> None:
    net, x, y = made(mixed), torch.randn(5, 2, 4, 4, **F64), torch.randint(3, (5,), generator=RNG)
    found = kronecker(net, x, y, block_limit=10)
    kept = {block.name: block.values for block in found.blocks if isinstance(block, Diagonal)}
    assert list(kept) == ["2.weight"]
    assert torch.allclose(kept["2.weight"], diagonal(net, x, y).values["2.weight"])
    assert found.log_determinant(3.0) == pytest.approx(full.log_determinant(dense(found, net), 3.0))


class Tied(nn.Module):
    """An embedding that is the head as well, a direct parameter, and attention that bypasses its own linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(4, 2), nn.Linear(2, 4)
        self.head.weight = self.embedding.weight
        self.attention = nn.MultiheadAttention(2, 1, batch_first=True)
        self.shift = nn.Parameter(torch.zeros(2))
        self.sneaky = nn.Linear(2, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        read = self.embedding(x) + self.shift
        read = self.sneaky(read) + read @ self.sneaky.weight
        outputs: Tensor = self.head(read + self.attention(read, read, read, need_weights=False)[0])
        return outputs


def test_tied_bypassed_and_doubly_used_weights_are_exact() -> None:
    net = made(Tied)
    x, y = torch.randint(4, (3, 2), generator=RNG), torch.randint(4, (3, 2), generator=RNG)
    found, truth = kronecker(net, x, y, likelihood="language"), fisher_blocks(net, x, y, likelihood="language")
    blocks = exact_blocks(found)
    assert set(blocks) >= {"embedding.weight", "shift", "sneaky.weight", "attention.out_proj.weight"}
    assert all(torch.allclose(block, truth[name], rtol=1e-8, atol=1e-14) for name, block in blocks.items())
    assert set(found.diagonal()) == {name for name, _ in net.named_parameters()}


def test_a_layer_called_twice_counts_both_calls() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = torch.cat([self.layer(x[:, 0]), self.layer(x[:, 1])], 1)
            return outputs

    x = torch.randn(5, 2, 2, **F64)
    twice, once = made(Twice), made(lambda: nn.Linear(2, 2, bias=False))
    found = kronecker(twice, x, likelihood="gaussian", labels="expected").diagonal()["layer.weight"]
    wanted = kronecker(once, x, likelihood="gaussian", labels="expected").diagonal()["weight"]
    assert torch.allclose(found, wanted)
    truth = fisher_matrix(twice, x, likelihood="gaussian", labels="expected").diagonal().view(2, 2)
    assert torch.allclose(found, truth)


def test_a_recurrent_language_model_is_covered() -> None:
    net = made(lambda: RecurrentLanguageModel(5, 3, 4))
    x, y = torch.randint(5, (4, 3), generator=RNG), torch.randint(5, (4, 3), generator=RNG)
    found = kronecker(net, x, y, likelihood="language")
    assert set(found.diagonal()) == {name for name, _ in net.named_parameters()}
    assert math.isfinite(found.log_determinant(10.0))


@pytest.mark.parametrize("labels", ["observed", "sampled", "expected"])
def test_batches_do_not_matter(labels: str) -> None:
    net, x, y = made(mixed), torch.randn(6, 2, 4, 4, **F64), torch.randint(3, (6,), generator=RNG)
    whole = kronecker(net, x, y, labels=labels)
    if labels == "sampled":
        again = kronecker(net, x, y, labels=labels)
        other = kronecker(net, x, y, labels=labels, seed=1)
        assert other.trace() != whole.trace()
    else:
        again = kronecker(net, ((x[i : i + 4], y[i : i + 4]) for i in (0, 6, 4)), labels=labels)
    assert all(torch.allclose(value, again.diagonal()[name]) for name, value in whole.diagonal().items())


def test_patches_in_pieces_give_the_same_as_together(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x, y = made(mixed), torch.randn(5, 2, 4, 4, **F64), torch.randint(3, (5,), generator=RNG)
    together = kronecker(net, x, y).log_determinant(5.0)
    monkeypatch.setattr("nearkin.fisher.kronecker.PATCHES", 150)
    assert kronecker(net, x, y).log_determinant(5.0) == pytest.approx(together, rel=1e-12)


def test_many_draws_come_near_the_expectation() -> None:
    net, x = made(mixed), torch.randn(4, 2, 4, 4, **F64)
    drawn = kronecker(net, x, labels="sampled", num_samples=100)
    assert drawn.trace() == pytest.approx(kronecker(net, x, labels="expected").trace(), rel=0.15)


def test_frozen_biases_and_chosen_names() -> None:
    net, x, y = made(curved), torch.randn(4, 3, **F64), torch.tensor([0, 1, 2, 1])
    net[0].bias.requires_grad_(False)
    net[2].weight.requires_grad_(False)
    found = kronecker(net, x, y)
    assert set(found.diagonal()) == {"0.weight", "2.bias"}
    assert set(kronecker(net, x, y, names=["2.weight"]).diagonal()) == {"2.weight"}


@pytest.mark.parametrize("labels", ["observed", "expected"])
def test_the_order_of_approximations_on_a_small_network(labels: str) -> None:
    """As SCIENCE has it on data: full <= block <= diagonal by theorem; KFAC lies below its own diagonal."""
    net, x, y = made(lambda: LeNet((1, 4, 4), 3, width=0.4)), torch.randn(30, 1, 4, 4, **F64), torch.arange(30) % 3
    names = [name for name, _ in net.named_parameters() if not name.startswith("body")]
    whole = fisher_matrix(net, x, y, labels=labels, names=names)
    blocks = fisher_blocks(net, x, y, labels=labels, names=names)
    factored = kronecker(net, x, y, labels=labels, names=names)
    for scale in (1.0, 1e3):
        exact = full.log_determinant(whole, scale)
        assert exact <= full.log_determinant(blocks, scale) <= float((scale * whole.diagonal()).log1p().sum())
        flat = torch.cat([value.flatten() for value in factored.diagonal().values()])
        assert exact <= factored.log_determinant(scale) <= float((scale * flat).log1p().sum())


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 2),
    st.sampled_from([0, 1, "same", "valid"]),
    st.sampled_from(["zeros", "reflect", "replicate", "circular"]),
)
@settings(max_examples=60, deadline=None)
def test_patches_times_weights_are_the_convolution(
    dims: int, kernel: int, stride: int, dilation: int, padding: int | str, mode: str
) -> None:
    assume(padding != "same" or stride == 1)
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    layer = kind(2, 3, kernel, stride, padding, dilation, bias=False, padding_mode=mode).double()
    x = torch.randn(2, 2, *(5, 6, 7)[:dims], **F64)
    outputs = layer(x).movedim(1, -1)
    assert torch.allclose(patches(layer, x) @ layer.weight.flatten(1).T, outputs.reshape(-1, 3))


BAD: dict[str, tuple[type[NearkinError], str, dict[str, object]]] = {
    "labels too high": (DataError, "labels range from 0 to 3, but the network", {"targets": torch.tensor([0, 3])}),
    "no labels": (OptionError, "needs targets, got none", {"targets": None}),
    "no data": (DataError, "data is empty", {"data": torch.zeros(0, 4), "targets": torch.zeros(0, dtype=torch.int64)}),
    "not a number": (
        MismatchError,
        "gradients of weight are NaN or infinite in batch 0",
        {"data": torch.full((2, 4), math.nan)},
    ),
    "frozen": (OptionError, "all parameters are frozen", {"model": nn.Linear(4, 3).requires_grad_(False)}),
    "batch norm": (OptionError, "training mode", {"model": nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))}),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str) -> None:
    error, message, changed = BAD[case]
    given_ = {"model": nn.Linear(4, 3), "data": torch.zeros(2, 4), "targets": torch.tensor([0, 1]), **changed}
    with pytest.raises(error, match=message):
        kronecker(**given_)


def test_vectors_and_scales_that_do_not_fit() -> None:
    found = kronecker(nn.Linear(4, 3), torch.zeros(2, 4), torch.tensor([0, 1]))
    with pytest.raises(MismatchError, match="the vector has no value for bias"):
        found.matmul({"weight": torch.zeros(3, 4)})
    with pytest.raises(OptionError, match="scale must be >= 0 and finite, got -1"):
        found.log_determinant(-1.0)
