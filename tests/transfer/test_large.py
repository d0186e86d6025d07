"""Conjugate gradients and Lanczos variances against the dense posterior."""

import pytest
import torch
from torch import Tensor, nn

from nearkin.core.errors import DataError
from nearkin.core.events import Caution, Note, finish
from nearkin.core.rng import Streams
from nearkin.nets.registry import build
from nearkin.transfer.gaussian import gaussian, gaussian_work
from nearkin.transfer.hyper import Hyper
from nearkin.transfer.kernel import Prior
from nearkin.transfer.linearize import linearize
from nearkin.transfer.products import prior_operator

HYPER = Hyper(noise=0.05, scale=0.7)


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("outputs", ["sum", "all", 1])
@pytest.mark.parametrize("room", [2**29, 1])
def test_products_rows_and_diagonal_are_the_kernel(
    outputs: str | int, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With graphs kept, and made anew."""
    monkeypatch.setattr("nearkin.transfer.products.HELD_BYTES", 0)
    monkeypatch.setattr("nearkin.transfer.products.KEPT_BYTES", room)
    monkeypatch.setattr("nearkin.transfer.products.BATCH_BYTES", 300)
    flat, x = linearize(build("mlp?hidden=4", (3,), 2, seed=0), outputs=outputs), drawn(1, 9, 3)
    prior = Prior(flat, Hyper(scale=0.7, layers={"head": 3.0}))
    operator, gram = prior_operator(prior, x), prior.kernel(x)
    assert len(operator.source.batches) > 1
    assert (operator.source.kept is None) == (room == 1)
    right = drawn(2, len(gram), 3)
    assert torch.allclose(operator @ right, gram @ right, atol=1e-10)
    assert torch.allclose(operator @ right[:, 0], gram @ right[:, 0], atol=1e-10)
    assert torch.allclose(operator.times(2.0).diagonal(), 2 * gram.diagonal(), atol=1e-10)
    i, j = torch.tensor([[0], [5], [7]]), torch.arange(len(gram))[None]
    assert torch.allclose(operator._get_indices(i, j), gram[i, j], atol=1e-10)


@pytest.mark.parametrize("outputs", ["sum", "all"])
def test_low_rank_factors_lie_below_the_kernel(outputs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearkin.transfer.products.HELD_BYTES", 0)
    monkeypatch.setattr("nearkin.transfer.products.PIVOTS_AT_ONCE", 4)
    prior = Prior(linearize(build("mlp?hidden=8", (3,), 2, seed=0), outputs=outputs), Hyper())
    x = drawn(1, 20, 3).repeat(2, 1)  # duplicates: rank 20 of 40, or fewer
    operator, gram = prior_operator(prior, x), prior.kernel(x)
    left = []
    for rank in (4, 12, len(gram)):
        factor = operator.pivoted_cholesky(rank)
        assert factor.shape[1] <= rank
        gap = gram - factor @ factor.t()
        assert float(torch.linalg.eigvalsh(gap)[0]) > -1e-8 * float(gram.trace())
        left.append(float(gap.trace() / gram.trace()))
    assert left[0] > left[1] > left[2]
    assert left[2] < 1e-8


@pytest.mark.parametrize("outputs", ["sum", "all"])
@pytest.mark.parametrize("known", [None, "targets"])
@pytest.mark.parametrize("subset", [3000, 30])
def test_small_cases_agree_with_dense_ones(
    outputs: str, known: str | None, subset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearkin.transfer.large.SUBSET", subset)
    flat = linearize(build("mlp?hidden=8", (3,), 2, seed=0), outputs=outputs)
    x, new = drawn(1, 150, 3), drawn(2, 20, 3)
    y = torch.stack([torch.sin(2 * x[:, 0]), x[:, 1] * x[:, 2]], 1) + 3
    noise = None if known is None else 0.1 * drawn(4, 150, 2).square()
    exact, found = (gaussian(flat, x, y, HYPER, noise, space) for space in ("function", "large"))
    assert found.space == "large"
    spread = float(y.std())
    assert float((found.mean(new) - exact.mean(new)).abs().max()) < 1e-3 * spread
    wanted, got = exact.predict(new)[1], found.predict(new)[1]
    assert bool((got >= wanted - 1e-9).all())  # never too sure
    assert bool((got <= wanted * (1.02 if subset == 30 else 1 + 1e-9) + 1e-6).all())
    assert found.log_evidence == pytest.approx(exact.log_evidence, abs=0.02 * y.numel())
    assert torch.allclose(found.covariance(new), exact.covariance(new), atol=1e-3)
    again = gaussian(flat, x, y, HYPER, noise, "large")
    assert again.log_evidence == found.log_evidence


@pytest.mark.parametrize("outputs", ["sum", "all", 1])
def test_a_kernel_that_is_never_held(outputs: str | int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearkin.transfer.products.HELD_BYTES", 0)
    flat = linearize(build("mlp?hidden=8", (3,), 2, seed=0), outputs=outputs)
    x, new = drawn(1, 60, 3), drawn(2, 10, 3)
    y = torch.stack([torch.sin(2 * x[:, 0]), x[:, 1] * x[:, 2]], 1)[:, : 1 if outputs == 1 else 2]
    exact, found = (gaussian(flat, x, y, HYPER, space=space) for space in ("function", "large"))
    assert torch.allclose(found.mean(new), exact.mean(new), atol=1e-4)
    assert torch.allclose(found.predict(new)[1], exact.predict(new)[1], atol=1e-4)


def test_more_points_are_solved_anew() -> None:
    flat = linearize(build("mlp?hidden=4", (3,), 1, seed=0))
    x, y, new = drawn(1, 60, 3), drawn(2, 60), drawn(3, 5, 3)
    grown = gaussian(flat, x[:40], y[:40], Hyper(noise=0.1, mean="zero"), space="large").extended(x[40:], y[40:])
    whole = gaussian(flat, x, y, Hyper(noise=0.1, mean="zero"), space="large")
    assert grown.num_points == 60
    assert torch.allclose(grown.mean(new), whole.mean(new), atol=1e-9)
    assert grown.log_evidence == pytest.approx(whole.log_evidence)


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
    monkeypatch.setattr("nearkin.transfer.large.STEPS", 3)
    monkeypatch.setattr("nearkin.transfer.large.PIVOTS", 1)
    told: list[object] = []
    flat = linearize(build("mlp?hidden=16", (3,), 1, seed=0))
    finish(gaussian_work(flat, drawn(1, 100, 3), drawn(2, 100), Hyper(noise=1e-4), space="large"), told.append)
    assert any(isinstance(event, Caution) and "stopped at a residual" in event.text for event in told)
    assert any(isinstance(event, Note) and "conjugate gradients" in event.text for event in told)


@pytest.mark.slow
@pytest.mark.parametrize("vectors", [2, 300, 512])
def test_fifteen_hundred_points(vectors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a third of the points and some Lanczos vectors, variances are never too small, and below the third's own."""
    monkeypatch.setattr("nearkin.transfer.large.SUBSET", 500)
    monkeypatch.setattr("nearkin.transfer.large.LANCZOS", vectors)
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
