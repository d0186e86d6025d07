"""Conjugate gradients in weight space against the dense posteriors of both spaces."""

import importlib
import statistics

import pytest
import torch
from torch import Tensor, nn

from nearkin.core.errors import DataError
from nearkin.core.events import Caution, Note, finish
from nearkin.core.rng import Streams
from nearkin.nets.registry import build
from nearkin.transfer.gaussian_process import gaussian
from nearkin.transfer.hyper import Hyper
from nearkin.transfer.iterative.conjugate import estimate_log_determinant
from nearkin.transfer.iterative.large import noisy_kernels
from nearkin.transfer.iterative.large_weight import LargeWeight, precisions
from nearkin.transfer.kernel import Prior
from nearkin.transfer.linearized import Linearized, linearize
from nearkin.transfer.posterior import Posterior, restored

HYPER = Hyper(noise=0.05, scale=0.7)
N = 150


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def task(outputs: str | int) -> tuple[Linearized, Tensor, Tensor]:
    flat = linearize(build("mlp?hidden=8", (3,), 2, seed=0), outputs=outputs)
    x = drawn(1, N, 3)
    y = torch.stack([torch.sin(2 * x[:, 0]), x[:, 1] * x[:, 2]], 1) + 3
    return flat, x, y[:, :1] if outputs == 1 else y


def near(found: Tensor, wanted: Tensor, bound: float) -> bool:
    return found.shape == wanted.shape and bool((found - wanted).abs().max() <= bound * wanted.abs().max())


def few_pivots(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr("nearkin.transfer.iterative.large.PIVOTS", count)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("outputs", ["sum", "all", 1])
@pytest.mark.parametrize("known", [None, "points", "targets"])
@pytest.mark.parametrize("mean", ["constant", "network", "zero"])
def test_it_is_what_both_dense_spaces_are(
    outputs: str | int, known: str | None, mean: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearkin.transfer.iterative.conjugate.TOLERANCE", 1e-10)
    few_pivots(monkeypatch, 20)
    flat, x, y = task(outputs)
    new, hyper = drawn(2, 20, 3), Hyper(noise=0.05, scale=0.7, layers={"head": 2.0}, mean=mean)
    noise = {None: None, "points": 0.1 * drawn(4, N).square(), "targets": 0.1 * drawn(4, *y.shape).square()}[known]
    found = gaussian(flat, x, y, hyper, noise, "large-weight")
    assert found.space == "large-weight"
    for space in ("function", "weight"):
        exact = gaussian(flat, x, y, hyper, noise, space)
        assert near(found.mean(new), exact.mean(new), 1e-6)
        assert mean != "constant" or near(found.solver.constants, exact.solver.constants, 1e-6)
        means, variances = found.predict(new)
        assert near(means, exact.mean(new), 1e-6)
        assert near(variances, exact.predict(new)[1], 1e-6)  # all rows are among those that count whole
        assert near(found.covariance(new), exact.covariance(new), 1e-6)
    assert near(found.solver.weights, exact.solver.weights, 1e-5)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("pivots", [1024, 30, 10])
@pytest.mark.parametrize("outputs", ["sum", "all", 1])
def test_determinants_are_right_within_their_own_error(
    pivots: int, outputs: str | int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over seeds, with the variance that a Gaussian probe has: twice the squared norm of the logarithm."""
    few_pivots(monkeypatch, pivots)
    flat, x, _ = task(outputs)
    prior, x = Prior(flat, HYPER), x[:24]
    features, unit = prior.features(x), torch.eye(prior.num_features(2)).double()
    (system,) = precisions(prior, x, torch.full((1, len(features)), 0.05).double(), len(unit), 0)
    precision = unit + features.t() @ features / 0.05
    found = statistics.fmean(estimate_log_determinant(system, seed) for seed in range(2))
    logs = torch.linalg.eigvals(system.precondition(precision)).real.log()
    error = max(0.1, float(logs.square().sum() * 2 / 8) ** 0.5)  # of eight probes, or of fewer if they are enough
    assert abs(found - float(torch.logdet(precision))) < 4 * error / 2**0.5


def test_evidence_is_that_of_the_dense_spaces() -> None:
    flat, x, y = task("sum")
    exact = gaussian(flat, x, y, HYPER, space="weight").log_evidence
    for seed in range(3):
        found = gaussian(flat, x, y, HYPER, space="large-weight", seed=seed)
        assert found.log_evidence == pytest.approx(exact, abs=0.1)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("outputs", ["sum", "all", 1])
def test_products_and_the_preconditioner_are_the_matrices(outputs: str | int) -> None:
    flat, x, _ = task(outputs)
    prior = Prior(flat, Hyper(scale=0.7, layers={"head": 2.0}))
    features = prior.features(x)
    noise = 0.1 + drawn(3, 1, len(features)).square()
    precision = torch.eye(features.shape[1]).double() + features.t() @ (features / noise[0, :, None])
    (system,) = precisions(prior, x, noise, features.shape[1], 0)
    right = drawn(5, features.shape[1], 3)
    assert near(system.product(right), precision @ right, 1e-9)
    assert near(system.product(right, quick=True), precision @ right, 1e-4)
    inverse = system.precondition(torch.eye(len(precision)).double())
    assert near(inverse, inverse.t(), 1e-8)
    values = torch.linalg.eigvalsh(inverse)
    assert float(values[0]) > 0
    assert float(values[-1]) <= 1 + 1e-8
    assert system.log_determinant == pytest.approx(-float(values.log().sum()), rel=1e-6)
    wanted = float(torch.logdet(precision))
    assert system.log_determinant <= wanted + 1e-6
    assert wanted <= system.log_determinant + system.remainder + 1e-6
    probes = system.sample(4000, torch.Generator().manual_seed(0))
    along = torch.linalg.eigh(torch.linalg.inv(inverse))
    for place in (0, -1):
        spread = float((along.eigenvectors[:, place] @ probes).square().mean())
        assert spread == pytest.approx(float(along.eigenvalues[place]), rel=0.15)


def test_a_preconditioner_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    flat, x, y = task("sum")
    steps = []
    for pivots in (1, 30, 1024):
        few_pivots(monkeypatch, pivots)
        solver = gaussian(flat, x, y, HYPER, space="large-weight").solver
        assert isinstance(solver, LargeWeight)
        steps.append(solver.steps)
    assert steps[0] > 4 * steps[1] > 4 * steps[2] - 4


@pytest.mark.parametrize("subset", [30, 60])
def test_variances_are_never_understated(subset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearkin.transfer.iterative.large.SUBSET", subset)
    monkeypatch.setattr("nearkin.transfer.iterative.large.FREE_LANCZOS", 10)
    flat, x, y = task("sum")
    new = drawn(2, 40, 3)
    found, exact = (gaussian(flat, x, y, HYPER, space=space) for space in ("large-weight", "function"))
    got, wanted = found.predict(new)[1], exact.predict(new)[1]
    assert bool((got >= wanted - 1e-9).all())
    some = torch.randperm(N, generator=Streams(0).at("subset"))[:subset]
    alone = gaussian(flat, x[some], y[some], HYPER, space="function").predict(new)[1]
    assert bool((got <= alone + 1e-9).all())
    assert float(got.sum()) < float(alone.sum())  # the vectors tell something


@pytest.mark.thinned(3)
@pytest.mark.parametrize("outputs", ["sum", "all", 1])
def test_more_points_go_on_from_the_solution(outputs: str | int, monkeypatch: pytest.MonkeyPatch) -> None:
    few_pivots(monkeypatch, 10)
    flat, x, y = task(outputs)
    noise, hyper, new = 0.1 * drawn(4, N).square(), Hyper(noise=0.01, mean="network"), drawn(2, 5, 3)
    first = gaussian(flat, x[:-3], y[:-3], hyper, noise[:-3], "large-weight")
    grown, whole = first.extended(x[-3:], y[-3:], noise[-3:]), gaussian(flat, x, y, hyper, noise, "large-weight")
    assert grown.num_points == N
    assert near(grown.mean(new), whole.mean(new), 1e-4)
    assert grown.log_evidence == pytest.approx(whole.log_evidence, abs=0.02)
    for one, other in ((grown, whole), (grown, first)):
        assert isinstance(one.solver, LargeWeight)
        assert isinstance(other.solver, LargeWeight)
        assert one.solver.steps < other.solver.steps


def test_it_comes_back_from_its_state() -> None:
    flat, x, y = task("sum")
    new = drawn(2, 5, 3)
    said = gaussian(flat, x, y, HYPER, space="large-weight")
    again: Posterior = restored(flat, said.state())
    assert again.space == "large-weight"
    assert torch.equal(again.mean(new), said.mean(new))
    assert torch.allclose(again.predict(new)[1], said.predict(new)[1], atol=1e-12)
    assert again.log_evidence == pytest.approx(said.log_evidence, rel=1e-12)
    more = again.extended(new, y[:5])
    assert more.num_points == N + 5


@pytest.mark.parametrize("way", ["graphs", "passes"])
def test_features_that_do_not_fit(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearkin.transfer.iterative.kernel_products.FEATURE_BYTES", 0)
    monkeypatch.setattr("nearkin.transfer.iterative.kernel_products.KEPT_BYTES", 2**29 if way == "graphs" else 1)
    flat, x, y = task("all")
    found, exact = (gaussian(flat, x, y, HYPER, space=space) for space in ("large-weight", "function"))
    assert near(found.mean(x[:9]), exact.mean(x[:9]), 1e-5)
    assert found.log_evidence == pytest.approx(exact.log_evidence, abs=0.2)


def test_the_choice_among_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of matrices too large to be factored, weights are solved for unless they are more than the rows."""
    monkeypatch.setattr(
        importlib.import_module("nearkin.transfer.gaussian_process"), "DENSE", 20
    )  # a function has its name
    flat = linearize(build("mlp?hidden=8", (3,), 1, seed=0))
    weights = flat.num_weights
    x, y = drawn(1, weights + 1, 3), drawn(2, weights + 1)
    chosen = {n: gaussian(flat, x[:n], y[:n], HYPER).space for n in (20, 21, weights - 1, weights, weights + 1)}
    assert list(chosen.values()) == ["function", "large", "large", "large-weight", "large-weight"]


def test_duplicates_one_point_and_bad_input() -> None:
    flat = linearize(nn.Linear(2, 1))
    x, y = drawn(1, 5, 2).repeat(4, 1), drawn(2, 20)
    exact, found = (gaussian(flat, x, y, HYPER, space=space) for space in ("function", "large-weight"))
    assert near(found.mean(x[:5]), exact.mean(x[:5]), 1e-6)
    assert near(found.predict(x[:5])[1], exact.predict(x[:5])[1], 1e-6)
    zero = Hyper(noise=0.05, mean="zero")
    exact, found = (gaussian(flat, x[:1], y[:1], zero, space=space) for space in ("function", "large-weight"))
    assert near(found.mean(x[:5]), exact.mean(x[:5]), 1e-6)
    with pytest.raises(DataError, match="above 0"):
        gaussian(flat, x, y, Hyper(noise=0.0), space="large-weight")
    with pytest.raises(DataError, match="not finite at sample 3"):
        gaussian(flat, x, y.index_fill(0, torch.tensor(3), torch.nan), HYPER, space="large-weight")
    with pytest.raises(DataError, match="not finite at sample 2"):
        gaussian(flat, x.index_fill(0, torch.tensor(2), torch.inf), y, HYPER, space="large-weight")


def test_a_solve_that_stops_early_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearkin.transfer.iterative.conjugate.STEPS", 3)
    few_pivots(monkeypatch, 1)
    told: list[object] = []
    flat, x, y = task("sum")
    finish(gaussian.work(flat, x, y, Hyper(noise=1e-4), space="large-weight"), told.append)
    assert any(isinstance(event, Caution) and "stopped at a residual" in event.text for event in told)
    assert any(isinstance(event, Note) and "weights by conjugate gradients" in event.text for event in told)


def test_determinants_of_both_spaces_are_one() -> None:
    """Those of A and of B differ by that of V."""
    flat, x, _ = task("all")
    prior, noise = Prior(flat, HYPER), torch.full((1, 2 * N), 0.3).double()
    (one,), (other,) = noisy_kernels(prior, x, noise, 0), precisions(prior, x, noise, flat.num_weights, 0)
    apart = estimate_log_determinant(one, 0) - estimate_log_determinant(other, 0)
    assert apart == pytest.approx(float(noise.log().sum()), abs=0.2)
