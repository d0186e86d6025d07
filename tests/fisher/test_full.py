"""The full Fisher against a loop over single samples, and the laws of its determinants."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

from nearkin.core.errors import DataError, MismatchError, NearkinError, OptionError
from nearkin.fisher import spectra
from nearkin.fisher.diagonals import diagonal
from nearkin.fisher.full import fisher_blocks, fisher_matrix, log_determinant
from nearkin.nets.small import MLP
from nearkin.tasks.likelihood import DISTRIBUTIONS, likelihood

NUM = 7
RNG = torch.Generator().manual_seed(0)
F64 = {"dtype": torch.float64, "generator": RNG}


class Tokens(nn.Module):
    """Logits of the next token from an embedding whose mean over the past is carried along."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm, self.head = nn.Embedding(5, 3), nn.LayerNorm(3), nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        read = self.embedding(x)
        outputs: Tensor = self.head(self.norm(read + read.cumsum(1).tanh()))
        return outputs


def seeded_nets() -> dict[str, nn.Module]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        nets = {
            "categorical": nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
            "gaussian": MLP((4,), 2, (5,)),
            "heteroscedastic": nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Linear(3, 4)),
            "dense": nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.GroupNorm(2, 2), nn.Tanh(), nn.Conv2d(2, 1, 1)),
            "language": Tokens(),
        }
    return {name: net.double().eval() for name, net in nets.items()}


NETS = seeded_nets()
VECTORS = torch.randn(NUM, 4, **F64)
DATA = {
    "categorical": (VECTORS, torch.randint(3, (NUM,), generator=RNG)),
    "gaussian": (VECTORS, torch.randn(NUM, 2, **F64)),
    "heteroscedastic": (VECTORS, torch.randn(NUM, 2, **F64)),
    "dense": (torch.randn(NUM, 1, 3, 4, **F64), torch.randn(NUM, 1, 3, 4, **F64)),
    "language": (torch.randint(5, (NUM, 3), generator=RNG), torch.randint(5, (NUM, 3), generator=RNG)),
}


def jacobian(net: nn.Module, x: Tensor) -> Tensor:
    """Jacobian `[C, P]` of one sample, one backward pass an output."""
    outputs = net(x[None]).flatten()
    rows = [torch.autograd.grad(one, list(net.parameters()), retain_graph=True) for one in outputs]
    return torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])


def dense_information(name: str, outputs: Tensor) -> Tensor:
    """Λ `[C, C]` of one sample by products with unit vectors."""
    units = torch.eye(outputs.numel(), dtype=outputs.dtype).view(-1, *outputs.shape)
    return torch.stack([likelihood(name).information(outputs, unit).flatten() for unit in units])


def oracle(name: str, labels: str) -> Tensor:
    """The mean over a loop of single samples."""
    net, (x, y) = NETS[name], DATA[name]
    total = torch.zeros((), dtype=torch.float64)
    for n in range(NUM):
        if labels == "expected":
            j = jacobian(net, x[n])
            total = total + j.T @ dense_information(name, net(x[n : n + 1]).detach()) @ j
        else:
            loss = likelihood(name).nll(net(x[n : n + 1]), y[n : n + 1]).sum()
            score = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(net.parameters()))])
            total = total + torch.outer(score, score)
    return total / NUM


@pytest.mark.parametrize("labels", ["observed", "expected"])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_matrix_and_blocks_are_those_of_single_samples(name: str, labels: str) -> None:
    net, truth = NETS[name], oracle(name, labels)
    x, y = DATA[name]
    found = fisher_matrix(net, x, y, likelihood=name, labels=labels, batch_size=3)
    assert torch.allclose(found, truth, rtol=1e-10, atol=1e-12 * float(truth.abs().max()))
    blocks, start = fisher_blocks(net, x, y, likelihood=name, labels=labels), 0
    for parameter, weight in net.named_parameters():
        part = slice(start, start := start + weight.numel())
        assert torch.allclose(blocks[parameter], truth[part, part], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("labels", ["observed", "sampled", "expected"])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_its_diagonal_is_that_of_the_diagonal_module(name: str, labels: str) -> None:
    x, y = DATA[name]
    options = {"likelihood": name, "labels": labels, "num_samples": 3, "seed": 4}
    found = fisher_matrix(NETS[name], x, y, **options).diagonal()
    assert torch.allclose(found, diagonal(NETS[name], x, y, **options).flat(), rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_sampled_labels_have_the_expected_fisher_for_their_mean(name: str) -> None:
    x, _ = DATA[name]
    many = x.repeat(150, *[1] * (x.dim() - 1))
    options = {"likelihood": name, "labels": "sampled", "batch_size": len(many)}
    found = torch.stack([fisher_matrix(NETS[name], many, seed=seed, **options) for seed in range(8)])
    truth = fisher_matrix(NETS[name], x, likelihood=name, labels="expected")
    wide = 6 * found.std(0) / math.sqrt(8) + 0.02 * truth.diagonal().max()
    assert bool(((found.mean(0) - truth).abs() <= wide).all())


def test_for_unit_variance_it_shares_eigenvalues_with_the_tangent_kernel() -> None:
    x, _ = DATA["gaussian"]
    j = torch.cat([jacobian(NETS["gaussian"], one) for one in x])
    found = torch.linalg.eigvalsh(fisher_matrix(NETS["gaussian"], x, likelihood="gaussian", labels="expected"))
    assert torch.allclose(found[-len(j) :], torch.linalg.eigvalsh(j @ j.T / NUM), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e3])
def test_coarser_blocks_have_larger_determinants(name: str, scale: float) -> None:
    """Fischer's and Hadamard's inequalities."""
    x, y = DATA[name]
    whole = fisher_matrix(NETS[name], x, y, likelihood=name)
    blocks = fisher_blocks(NETS[name], x, y, likelihood=name)
    diagonal_alone = float((scale * whole.diagonal()).log1p().sum())
    assert 0 < log_determinant(whole, scale) <= log_determinant(blocks, scale) + 1e-9 <= diagonal_alone + 2e-9


@given(st.integers(1, 12), st.integers(1, 12), st.floats(0, 1e3), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_log_determinant_is_that_of_the_matrix(size: int, rank: int, scale: float, seed: int) -> None:
    root = torch.randn(size, rank, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    matrix = root @ root.T
    truth = float(torch.linalg.slogdet(torch.eye(size, dtype=torch.float64) + scale * matrix).logabsdet)
    assert log_determinant(matrix, scale) == pytest.approx(truth, rel=1e-9, abs=1e-9)
    two = {"a": matrix, "b": matrix}
    assert log_determinant(two, scale) == pytest.approx(2 * truth, rel=1e-9, abs=1e-9)
    tilted = log_determinant(matrix.float(), 1e9)  # float32 rounding makes eigenvalues below -1e-9
    assert math.isfinite(tilted)


def test_stochastic_lanczos_agrees_without_the_matrix() -> None:
    x, y = DATA["language"]
    whole = fisher_matrix(NETS["language"], x, y, likelihood="language")
    rng = torch.Generator().manual_seed(1)
    found = spectra.log_determinant(lambda block: whole @ block, len(whole), 100.0, rng, probes=40)
    assert abs(found.value - log_determinant(whole, 100.0)) <= 4 * found.error


def test_single_precision_and_one_sample_at_a_time() -> None:
    x, y = DATA["categorical"]
    single = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    single.load_state_dict(NETS["categorical"].state_dict())
    found = fisher_matrix(single, x.float(), y, batch_size=1)
    truth = oracle("categorical", "observed")
    assert found.dtype == torch.float32
    assert float((found.double() - truth).norm() / truth.norm()) < 1e-5


def test_batches_may_come_from_a_generator() -> None:
    x, y = DATA["categorical"]
    found = fisher_matrix(NETS["categorical"], ((x[i : i + 2], y[i : i + 2]) for i in range(0, NUM, 2)))
    assert torch.allclose(found, oracle("categorical", "observed"))


def test_frozen_and_unnamed_weights_are_left_out() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)).double()
    x, y = DATA["categorical"]
    whole = fisher_matrix(net, x, y)
    assert torch.allclose(fisher_matrix(net, x, y, names=["0.weight", "0.bias"]), whole[:25, :25])
    net[1].requires_grad_(False)
    assert torch.allclose(fisher_matrix(net, x, y), whole[:25, :25])
    assert list(fisher_blocks(net, x, y)) == ["0.weight", "0.bias"]


def test_a_network_that_vmap_does_not_know() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.LSTM(2, 2, batch_first=True), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.head(self.cell(x)[0][:, -1])
            return outputs

    net, x = Last().double(), torch.randn(4, 3, 2, **F64)
    j = torch.stack([jacobian(net, one) for one in x])
    found = fisher_matrix(net, x, likelihood="gaussian", labels="expected")
    assert torch.allclose(found, torch.einsum("ncp,ncq->pq", j, j) / 4)


def test_nothing_is_left_on_the_network() -> None:
    net, (x, y) = NETS["gaussian"], DATA["gaussian"]
    before = functional_call(net, dict(net.named_parameters()), (x,))
    fisher_matrix(net, x, y, likelihood="gaussian")
    assert all(weight.grad is None for weight in net.parameters())
    assert torch.equal(net(x), before)


BAD: dict[str, tuple[type[NearkinError], str, dict[str, object]]] = {
    "too large": (
        OptionError,
        "of 35 weights has 1,225 entries, the limit is 20 weights; use fisher_blocks",
        {"limit": 20},
    ),
    "labels too high": (DataError, "labels range from 0 to 3, but the network", {"targets": torch.tensor([0, 3])}),
    "labels below 0": (DataError, "labels range from -1 to 1", {"targets": torch.tensor([-1, 1])}),
    "no labels": (OptionError, "needs targets, got none", {"targets": None}),
    "unknown labels": (OptionError, "labels must be one of .* got 'true'", {"labels": "true"}),
    "no draws": (OptionError, "num_samples must be 1 or more, got 0", {"num_samples": 0}),
    "no batch": (OptionError, "batch_size must be 1 or more, got 0", {"batch_size": 0}),
    "no data": (DataError, "data is empty", {"data": torch.zeros(0, 4), "targets": torch.zeros(0, dtype=torch.int64)}),
    "not a number": (MismatchError, "gradients of 0.weight are NaN", {"data": torch.full((2, 4), math.nan)}),
    "frozen": (OptionError, "all parameters are frozen", {"model": nn.Linear(4, 3).requires_grad_(False)}),
    "no weights": (OptionError, "has no parameters", {"model": nn.Identity()}),
    "batch norm": (OptionError, "training mode", {"model": nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))}),
    "dropout": (OptionError, "draws at random", {"model": nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))}),
    "likelihood": (OptionError, "unknown likelihood 'poisson'", {"likelihood": "poisson"}),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str) -> None:
    error, message, changed = BAD[case]
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    given_ = {"model": net, "data": torch.zeros(2, 4), "targets": torch.tensor([0, 1]), **changed}
    with pytest.raises(error, match=message):
        fisher_matrix(**given_)


def test_a_block_beyond_the_limit_is_named() -> None:
    with pytest.raises(OptionError, match=r"the block of weight of 12 weights .* limit is 10 weights; use kronecker"):
        fisher_blocks(nn.Linear(4, 3), torch.zeros(2, 4), torch.tensor([0, 1]), limit=10)


def test_determinants_of_what_is_no_fisher() -> None:
    for error, message, matrix, scale in [
        (OptionError, "scale must be >= 0 and finite, got -1", torch.eye(2), -1.0),
        (OptionError, "got inf", torch.eye(2), math.inf),
        (MismatchError, r"is square, got shape \(2, 3\)", torch.zeros(2, 3), 1.0),
        (DataError, "not finite", torch.full((2, 2), math.nan), 1.0),
        (
            DataError,
            "eigenvalue of -2 beside one of 1, expected none below 0",
            torch.diag(torch.tensor([1.0, -2.0])),
            1.0,
        ),
    ]:
        with pytest.raises(error, match=message):
            log_determinant(matrix, scale)
