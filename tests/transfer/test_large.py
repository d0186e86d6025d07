"""Conjugate gradients and Lanczos variances against the dense posterior."""

import pytest
import torch
from linear_operator import settings
from torch import Tensor, nn

from nearkin.core.errors import DataError
from nearkin.core.events import Caution, Note, finish
from nearkin.core.rng import Streams
from nearkin.fisher.operators import tangent_kernel_operator
from nearkin.nets.registry import build
from nearkin.transfer.gaussian_process import gaussian
from nearkin.transfer.hyper import Hyper
from nearkin.transfer.iterative.conjugate import conjugate_gradients
from nearkin.transfer.iterative.kernel_products import covariance
from nearkin.transfer.iterative.large import Large
from nearkin.transfer.kernel import Prior
from nearkin.transfer.linearized import linearize

HYPER = Hyper(noise=0.05, scale=0.7)


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


WAYS = {"features": {}, "graphs": {"FEATURE_BYTES": 0}, "passes": {"FEATURE_BYTES": 0, "KEPT_BYTES": 1}}


def by(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """FeatureProducts are made in one way, in several batches, and no kernel is held."""
    for name, value in {"HELD_BYTES": 0, **WAYS[way]}.items():
        monkeypatch.setattr(f"nearkin.transfer.iterative.kernel_products.{name}", value)
    monkeypatch.setattr("nearkin.transfer.iterative.network_passes.BATCH_BYTES", 300)
    monkeypatch.setattr("nearkin.transfer.iterative.held.BATCH_BYTES", 500)


@pytest.mark.parametrize("outputs", ["sum", "all", 1])
@pytest.mark.parametrize("way", list(WAYS))
def test_products_columns_and_diagonal_are_the_kernel(
    outputs: str | int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With features held, with graphs kept, and with passes for every product."""
    by(way, monkeypatch)
    flat, x = linearize(build("mlp?hidden=4", (3,), 2, seed=0), outputs=outputs), drawn(1, 9, 3)
    prior = Prior(flat, Hyper(scale=0.7, layers={"head": 3.0}))
    found, gram, features = covariance(prior, x), prior.kernel(x), prior.features(x)
    assert {"features": "features", "graphs": "kept", "passes": "rebuilt"}[way] in found.describe()
    assert len(found.features.batches) > 1
    right, weights = drawn(2, len(gram), 3), drawn(3, features.shape[1], 3)
    assert torch.allclose(found.times(right), gram @ right, atol=1e-10)
    assert torch.allclose(found.features.pull(right), features.t() @ right, atol=1e-10)
    assert torch.allclose(found.features.push(weights), features @ weights, atol=1e-10)
    assert torch.allclose(found.times(right, quick=True), gram @ right, atol=1e-4)
    assert torch.allclose(found.diagonal(), gram.diagonal(), atol=1e-10)
    rows = torch.tensor([5, 0, 7, 5])
    assert torch.allclose(found.columns(rows), gram[:, rows], atol=1e-10)


class Words(nn.Sequential):
    """Tokens to outputs."""

    def __init__(self) -> None:
        super().__init__(nn.Embedding(90, 16, padding_idx=3), nn.Flatten(), nn.LayerNorm(32), nn.Linear(32, 2))


class Odd(nn.Module):
    """Weights of no layer, and a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice = nn.Linear(3, 4), nn.Linear(4, 4)
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, 4))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.twice(torch.tanh(self.twice(self.gain * torch.tanh(self.first(x)))))))


NETS = {
    "words": (Words, lambda: torch.randint(90, (11, 2), generator=torch.Generator().manual_seed(1))),
    "odd": (Odd, lambda: drawn(1, 11, 3)),
    "maps": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, groups=2),
            nn.BatchNorm2d(4),
            nn.Tanh(),
            nn.Conv2d(4, 3, 1),
            nn.Flatten(),
            nn.LazyLinear(2),
        ),
        lambda: drawn(1, 11, 2, 4, 4),
    ),
    "sequences": (
        lambda: nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Flatten(), nn.Linear(16, 2)),
        lambda: drawn(1, 11, 2, 3),
    ),
}


@pytest.mark.parametrize("outputs", ["sum", "all", 1])
@pytest.mark.parametrize("net", list(NETS))
def test_features_of_many_kinds_of_layers(net: str, outputs: str | int, monkeypatch: pytest.MonkeyPatch) -> None:
    by("features", monkeypatch)
    torch.manual_seed(0)
    make, inputs = NETS[net]
    model, x = make().eval(), inputs()
    model(x if net == "words" else x.float())
    flat = linearize(model, outputs=outputs)
    prior = Prior(flat, Hyper(scale=0.7, layers={next(iter(flat.layers)): 3.0}))
    found, features = covariance(prior, x).features, prior.features(x)
    assert "features" in found.describe()
    right, weights = drawn(2, len(features), 2), drawn(3, features.shape[1], 2)
    assert torch.allclose(found.pull(right), features.t() @ right, atol=1e-9)
    assert torch.allclose(found.push(weights), features @ weights, atol=1e-9)
    assert torch.allclose(found.diagonal(), features.square().sum(1), atol=1e-9)


@pytest.mark.parametrize("outputs", ["sum", "all"])
def test_low_rank_factors_lie_below_the_kernel(outputs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearkin.transfer.iterative.kernel_products.HELD_BYTES", 0)
    monkeypatch.setattr("nearkin.transfer.iterative.kernel_products.PIVOTS_AT_ONCE", 4)
    prior = Prior(linearize(build("mlp?hidden=8", (3,), 2, seed=0), outputs=outputs), Hyper())
    x = drawn(1, 20, 3).repeat(2, 1)  # duplicates: rank 20 of 40, or fewer
    source, gram = covariance(prior, x), prior.kernel(x)
    left = []
    for rank in (4, 12, len(gram)):
        found = source.low_rank(rank)
        assert found.factor.shape[1] <= rank
        gap = gram - found.factor @ found.factor.t()
        assert float(torch.linalg.eigvalsh(gap)[0]) > -1e-8 * float(gram.trace())
        assert torch.allclose(found.remainder, gap.diagonal(), atol=1e-8 * float(gram.trace()))
        left.append(float(gap.trace() / gram.trace()))
    assert left[0] > left[1] > left[2]
    assert left[2] < 1e-8
    noise = torch.full((len(gram),), 0.5).double()
    some = source.low_rank(len(gram), noise, 3.0)
    assert float((some.remainder / noise).sum()) <= 3.0
    assert 0 < some.factor.shape[1] < found.factor.shape[1]


@pytest.mark.parametrize("outputs", ["sum", "all"])
@pytest.mark.parametrize("known", [None, "targets"])
@pytest.mark.parametrize("subset", [3000, 30])
def test_small_cases_agree_with_dense_ones(
    outputs: str, known: str | None, subset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearkin.transfer.iterative.large.SUBSET", subset)
    flat = linearize(build("mlp?hidden=8", (3,), 2, seed=0), outputs=outputs)
    x, new = drawn(1, 150, 3), drawn(2, 20, 3)
    y = torch.stack([torch.sin(2 * x[:, 0]), x[:, 1] * x[:, 2]], 1) + 3
    noise = None if known is None else 0.1 * drawn(4, 150, 2).square()
    exact, found = (gaussian(flat, x, y, HYPER, noise, space) for space in ("function", "large"))
    assert found.space == "large"
    assert float((found.mean(new) - exact.mean(new)).abs().max()) < 1e-6 * float(y.std())
    monkeypatch.setattr(
        "nearkin.transfer.iterative.large.STEP_BYTES", 0
    )  # by the kernel with all points, not by a push
    assert torch.allclose(gaussian(flat, x, y, HYPER, noise, "large").mean(new), found.mean(new), atol=1e-9)
    wanted, got = exact.predict(new)[1], found.predict(new)[1]
    assert bool((got >= wanted - 1e-9).all())  # never too sure
    assert bool((got <= wanted * (1.02 if subset == 30 else 1 + 1e-9) + 1e-6).all())
    assert found.log_evidence == pytest.approx(exact.log_evidence, abs=0.02 * y.numel())
    assert torch.allclose(found.covariance(new), exact.covariance(new), atol=1e-3)
    again = gaussian(flat, x, y, HYPER, noise, "large")
    assert again.log_evidence == found.log_evidence


@pytest.mark.parametrize("outputs", ["sum", "all", 1])
def test_a_kernel_that_is_never_held(outputs: str | int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearkin.transfer.iterative.kernel_products.HELD_BYTES", 0)
    flat = linearize(build("mlp?hidden=8", (3,), 2, seed=0), outputs=outputs)
    x, new = drawn(1, 60, 3), drawn(2, 10, 3)
    y = torch.stack([torch.sin(2 * x[:, 0]), x[:, 1] * x[:, 2]], 1)[:, : 1 if outputs == 1 else 2]
    exact, found = (gaussian(flat, x, y, HYPER, space=space) for space in ("function", "large"))
    assert torch.allclose(found.mean(new), exact.mean(new), atol=1e-4)
    assert torch.allclose(found.predict(new)[1], exact.predict(new)[1], atol=1e-4)


def test_more_points_go_on_from_the_solution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearkin.transfer.iterative.large.PIVOTS", 5)
    flat = linearize(build("mlp?hidden=8", (3,), 1, seed=0))
    x, new, hyper = drawn(1, 90, 3), drawn(3, 5, 3), Hyper(noise=0.05)
    y = torch.sin(2 * x[:, 0]) * x[:, 1]
    first = gaussian(flat, x[:88], y[:88], hyper, space="large")
    grown, whole = first.extended(x[88:], y[88:]), gaussian(flat, x, y, hyper, space="large")
    assert grown.num_points == 90
    apart = gaussian(flat, x[:88], y[:88], hyper, space="function").extended(x[88:], y[88:])
    assert torch.allclose(grown.mean(new), apart.mean(new), atol=1e-5)
    assert grown.log_evidence == pytest.approx(whole.log_evidence, abs=1e-3)  # of the same probes
    for other in (first, whole):
        assert isinstance(grown.solver, Large)
        assert isinstance(other.solver, Large)
        assert grown.solver.steps < other.solver.steps


def test_gradients_that_start_at_the_solution_take_no_step() -> None:
    matrix, right = torch.diag(torch.tensor([1.0, 2.0, 5.0])).double(), drawn(1, 3, 2)
    first = conjugate_gradients(lambda v: matrix @ v, right, lambda v: v)
    again = conjugate_gradients(lambda v: matrix @ v, right, lambda v: v, first.values)
    assert (first.steps, again.steps) == (3, 0)
    assert torch.allclose(matrix @ again.values, right)
    values = torch.linalg.eigvalsh(first.ritz[0])  # as many steps as eigenvalues find them all
    assert torch.allclose(values, torch.tensor([1.0, 2.0, 5.0]).double())


def test_duplicates_and_bad_noise() -> None:
    flat = linearize(nn.Linear(2, 1))
    x, y = drawn(1, 5, 2).repeat(4, 1), drawn(2, 20)
    exact, found = (gaussian(flat, x, y, HYPER, space=space) for space in ("function", "large"))
    assert torch.allclose(found.mean(x[:5]), exact.mean(x[:5]), atol=1e-4)
    assert torch.allclose(found.predict(x[:5])[1], exact.predict(x[:5])[1], atol=1e-4)
    with pytest.raises(DataError, match="above 0"):
        gaussian(flat, x, y, Hyper(noise=0.0), space="large")
    with pytest.raises(DataError, match="space='function'"):
        gaussian(flat, x[:1], y[:1], HYPER, space="large")


def test_a_solve_that_stops_early_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearkin.transfer.iterative.conjugate.STEPS", 3)
    monkeypatch.setattr("nearkin.transfer.iterative.large.PIVOTS", 1)
    told: list[object] = []
    flat = linearize(build("mlp?hidden=16", (3,), 1, seed=0))
    finish(gaussian.work(flat, drawn(1, 100, 3), drawn(2, 100), Hyper(noise=1e-4), space="large"), told.append)
    assert any(isinstance(event, Caution) and "stopped at a residual" in event.text for event in told)
    assert any(isinstance(event, Note) and "conjugate gradients" in event.text for event in told)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("vectors", [2, 300, 512])
def test_fifteen_hundred_points(vectors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a third of the points and some Lanczos vectors, variances are never too small, and below the third's own."""
    monkeypatch.setattr("nearkin.transfer.iterative.large.SUBSET", 500)
    monkeypatch.setattr("nearkin.transfer.iterative.large.LANCZOS", vectors)
    flat = linearize(build("mlp?hidden=64-64", (5,), 1, seed=0))
    x, new = drawn(1, 1500, 5), drawn(2, 100, 5)
    y = torch.sin(2 * x[:, 0]) * x[:, 1] + 0.2 * drawn(3, 1500)
    hyper = Hyper(noise=0.04, scale=0.5)
    exact, found = (gaussian(flat, x, y, hyper, space=space) for space in ("function", "large"))
    assert float((found.mean(new) - exact.mean(new)).abs().max()) < 1e-3
    wanted, got = exact.predict(new)[1], found.predict(new)[1]
    assert bool((got >= wanted - 1e-9).all())
    some = torch.randperm(1500, generator=Streams(0).at("subset"))[:500]
    subset = gaussian(flat, x[some], y[some], hyper, space="function").predict(new)[1]
    assert bool((got <= subset + 1e-9).all())
    assert float(((got - wanted) / (wanted + 0.04)).max()) < {2: 1.5, 300: 0.4, 512: 0.1}[vectors]
    assert found.log_evidence == pytest.approx(exact.log_evidence, abs=15)


def test_linear_operators_of_the_fisher_room_solve_the_same_system() -> None:
    """GPyTorch's own conjugate gradients, given the tangent kernel as an operator."""
    model, x = build("mlp?hidden=8", (3,), 1, seed=0).double(), drawn(1, 60, 3)
    y = torch.sin(x[:, 0])
    with settings.max_cholesky_size(1), settings.cg_tolerance(1e-5), settings.max_cg_iterations(500):
        theirs = tangent_kernel_operator(model, x).add_diagonal(torch.tensor(0.05)).solve(y[:, None])[:, 0]
    ours = gaussian(linearize(model), x, y, Hyper(noise=0.05, mean="zero"), space="large").solver.weights[0, :, 0]
    assert float((theirs - ours).norm() / ours.norm()) < 1e-3
