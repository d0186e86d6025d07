"""LogME and the evidence of kernels against Bayesian linear regression by Cholesky and a plain maximiser."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from nearkin.core.errors import DataError, MismatchError, OptionError
from nearkin.distance.baselines import kernel_evidence, logme, logme_regression
from nearkin.distance.baselines.gaussian_evidence import _evidence, _slope, largest_evidence, of_features, of_kernel
from nearkin.transfer import spectrum

SHAPES = [(30, 5), (30, 1), (12, 12), (12, 40), (13, 12)]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def problem(count: int, width: int, seed: int = 0, noise: float = 0.5) -> tuple[Tensor, Tensor]:
    """Features with a mean, of falling spread, and one column of targets that they tell in part."""
    f = 0.5 + normal(count, width, seed=seed) * torch.logspace(0, -1, width, dtype=torch.float64)
    y = f @ normal(width, 1, seed=seed + 1) + noise * normal(count, 1, seed=seed + 2)
    return f, y


def evidence(f: Tensor, y: Tensor, log_alpha: float, log_beta: float) -> float:
    """Log evidence ÷ N of Bayesian linear regression, as the paper writes it."""
    alpha, beta = math.exp(log_alpha), math.exp(log_beta)
    count, width = f.shape
    root = torch.linalg.cholesky(alpha * torch.eye(width, dtype=torch.float64) + beta * f.T @ f)
    mean = beta * torch.cholesky_solve(f.T @ y, root)
    value = 0.5 * (count * log_beta + width * log_alpha - count * math.log(2 * math.pi))
    value -= 0.5 * float(beta * (f @ mean - y).square().sum() + alpha * mean.square().sum())
    return (value - float(root.diagonal().log().sum())) / count


def maximised(f: Tensor, y: Tensor) -> float:
    starts = [(a, b) for a in (-2.0, 3.0) for b in (0.0, 4.0)]
    return max(-minimize(lambda at: -evidence(f, y, *at), start, method="Nelder-Mead",
                         options={"xatol": 1e-7, "fatol": 1e-13, "maxiter": 600}).fun for start in starts)  # fmt: skip


@pytest.mark.parametrize(("count", "width"), SHAPES)
def test_it_is_the_maximum_of_the_evidence(count: int, width: int) -> None:
    f, y = problem(count, width, seed=count + width)
    assert logme_regression(f, y) == pytest.approx(maximised(f, y), abs=1e-8)


@given(st.sampled_from(SHAPES), st.integers(0, 500), st.floats(-6, 6), st.floats(-6, 6))
@settings(max_examples=60, deadline=None)
def test_no_alpha_and_beta_give_more(shape: tuple[int, int], seed: int, log_alpha: float, log_beta: float) -> None:
    f, y = problem(*shape, seed=seed)
    assert logme_regression(f, y) >= evidence(f, y, log_alpha, log_beta) - 1e-12


@given(st.integers(2, 25), st.integers(1, 30), st.integers(0, 1000), st.floats(0, 3), st.floats(-4, 1))
@settings(max_examples=60, deadline=None)
def test_no_point_of_a_fine_grid_is_higher(count: int, width: int, seed: int, fall: float, noise: float) -> None:
    f = normal(count, width, seed=seed) * torch.logspace(0, -fall, width, dtype=torch.float64)
    y = f @ normal(width, 1, seed=seed + 1) + 10**noise * normal(count, 1, seed=seed + 2)
    values, vectors = torch.linalg.eigh(f @ f.T)
    ratio = torch.logspace(-12, 12, 4801, dtype=torch.float64)[:, None] / values[-1]
    growth = 1 + ratio * values.clamp_min(0)
    q = ((vectors.T @ y)[:, 0].square() / growth).sum(1)
    profile = -0.5 * (math.log(2 * math.pi * math.e / count) + q.log() + growth.log().sum(1) / count)
    found = logme_regression(f, y)
    assert found >= float(profile.max()) - 1e-7
    assert found <= float(profile.max()) + 1e-3


@pytest.mark.parametrize("width", [5, 80])
def test_the_maximiser_of_closed_form_transfer_finds_the_same(width: int) -> None:
    """It works in the eigenbasis of the kernel, with a line search in place of Newton's steps."""
    rng = torch.Generator().manual_seed(width)
    features = torch.randn(60, width, generator=rng, dtype=torch.float64)
    targets = features[:, :3] + 0.5 * torch.randn(60, 3, generator=rng, dtype=torch.float64)
    kernel = features @ features.T
    basis = spectrum.kernel_spectrum(kernel, torch.zeros(60, 0).double(), targets[None])
    wanted = [spectrum.maximize_evidence([basis.under(False, slice(k, k + 1))]).log_evidence / 60 for k in range(3)]
    assert largest_evidence(of_kernel(kernel, targets)).tolist() == pytest.approx(wanted, abs=1e-6)


def test_the_fixed_point_of_the_paper_ends_at_the_same_value() -> None:
    f, y = problem(200, 20)
    left, sigma, _ = torch.linalg.svd(f, full_matrices=False)
    z, values, alpha, beta = (left.T @ y)[:, 0], sigma.square(), 1.0, 1.0
    for _ in range(200):
        gamma = float((beta * values / (alpha + beta * values)).sum())
        mean = beta * sigma * z / (alpha + beta * values)
        error = float((y[:, 0] - left @ (sigma * mean)).square().sum())
        alpha, beta = gamma / float(mean.square().sum()), (len(y) - gamma) / error
    assert logme_regression(f, y) == pytest.approx(evidence(f, y, math.log(alpha), math.log(beta)), abs=1e-10)


def test_classes_are_columns_of_ones_and_zeros_and_the_value_is_their_mean() -> None:
    f, y = problem(40, 6)[0], torch.arange(40) % 3
    hot = torch.nn.functional.one_hot(y, 3).double()
    apart = [logme_regression(f, hot[:, [c]]) for c in range(3)]
    assert logme(f, y, 3) == pytest.approx(np.mean(apart), abs=1e-12)
    assert logme_regression(f, hot) == pytest.approx(np.mean(apart), abs=1e-12)
    assert logme(f, y, 7) == pytest.approx(logme(f, y, 3), abs=1e-12)  # classes that are absent say nothing


@given(st.sampled_from(SHAPES), st.integers(0, 100), st.sampled_from([1e-200, 1e-6, 3.0, 1e6, 1e200]))
@settings(max_examples=30, deadline=None)
def test_scale_rotation_and_empty_columns_of_features_do_not_matter(
    shape: tuple[int, int], seed: int, scale: float
) -> None:
    f, y = problem(*shape, seed=seed)
    turn = torch.linalg.qr(normal(shape[1], shape[1], seed=seed)).Q
    other = torch.cat([scale * f @ turn, torch.zeros(shape[0], 3, dtype=torch.float64)], 1)
    assert logme_regression(other, y) == pytest.approx(logme_regression(f, y), abs=1e-9)


@given(st.sampled_from(SHAPES), st.floats(1e-3, 1e3))
@settings(max_examples=30, deadline=None)
def test_the_scale_of_targets_moves_the_evidence_by_its_logarithm(shape: tuple[int, int], scale: float) -> None:
    f, y = problem(*shape)
    assert logme_regression(f, scale * y) == pytest.approx(logme_regression(f, y) - math.log(scale), abs=1e-9)


def test_rank_deficient_features_are_the_same_as_their_span() -> None:
    f, y = problem(30, 4)
    twice = torch.cat([f, f], 1) / math.sqrt(2)
    assert logme_regression(twice, y) == pytest.approx(logme_regression(f, y), abs=1e-10)


def test_targets_in_the_span_of_the_features_give_a_finite_limit() -> None:
    f = problem(30, 4)[0]
    exact, near = f @ normal(4, 1), f @ normal(4, 1) + 1e-4 * normal(30, 1, seed=5)
    limit = logme_regression(f, exact)
    assert math.isfinite(limit)
    assert limit > logme_regression(f, near) > logme_regression(f, exact + normal(30, 1, seed=5))


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_constant_features_tell_no_more_than_the_mean(value: float) -> None:
    y = torch.arange(20) % 2
    found = logme(torch.full((20, 4), value), y, 2)
    noise_alone = -0.5 * math.log(2 * math.pi * math.e / 2)
    assert found == pytest.approx(noise_alone, abs=1e-12) if value == 0 else found > noise_alone


def test_good_features_beat_shuffled_ones_and_noise() -> None:
    y = torch.arange(200) % 4
    f = torch.nn.functional.one_hot(y, 10).double() + 0.5 * normal(200, 10)
    shuffled = f[torch.randperm(200, generator=torch.Generator().manual_seed(0))]
    assert logme(f, y, 4) > logme(shuffled, y, 4) + 0.2
    assert logme(f, y, 4) > logme(normal(200, 10), y, 4) + 0.2


@pytest.mark.parametrize(("count", "width"), SHAPES)
def test_a_linear_kernel_with_one_column_is_logme(count: int, width: int) -> None:
    f, y = problem(count, width)
    assert kernel_evidence(f @ f.T, y) == pytest.approx(logme_regression(f, y), abs=1e-9)


def test_a_kernel_shares_signal_and_noise_over_columns() -> None:
    root = normal(15, 15)
    kernel, y = root @ root.T / 15, normal(15, 3, seed=2) * torch.tensor([1.0, 2.0, 0.5])

    def negative(at: np.ndarray) -> float:
        matrix = math.exp(at[0]) * kernel + math.exp(at[1]) * torch.eye(15, dtype=torch.float64)
        quadratic = float((y * torch.linalg.solve(matrix, y)).sum())
        return (0.5 * quadratic + 1.5 * float(torch.logdet(matrix))) / 45 + 0.5 * math.log(2 * math.pi)

    best = min(minimize(negative, start, method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-13}).fun
               for start in ([0.0, 0.0], [1.0, -3.0], [-4.0, 1.0]))  # fmt: skip
    assert kernel_evidence(kernel, y) == pytest.approx(-best, abs=1e-8)
    assert kernel_evidence(1e5 * kernel, y) == pytest.approx(-best, abs=1e-8)
    apart = largest_evidence(of_features(torch.linalg.cholesky(kernel), y))
    assert kernel_evidence(kernel, y) < float(apart.mean())


@pytest.mark.parametrize(("count", "width"), SHAPES)
def test_the_slopes_that_sharpen_the_maximum_are_those_of_the_evidence(count: int, width: int) -> None:
    reduced, h = of_features(*problem(count, width)), 1e-4
    for u in (-3.0, 0.5, 4.0):
        before, here, after = (float(_evidence(reduced, u + step)[0]) for step in (-h, 0, h))
        slope, bend = _slope(reduced, slice(0, 1), u)
        assert slope == pytest.approx((after - before) / h, abs=1e-6)
        assert bend == pytest.approx(2 * (after - 2 * here + before) / h**2, abs=1e-5)


def test_many_columns_and_single_precision() -> None:
    f, y = problem(50, 8)[0].float(), torch.arange(50)
    assert math.isfinite(logme(f, y, 50))
    assert logme(f, y % 3, 3) == pytest.approx(logme(f.double(), y % 3, 3), abs=1e-12)


def test_kernels_of_single_precision() -> None:
    f, y = problem(40, 60)
    kernel = f @ f.T
    assert kernel_evidence(kernel.float(), y) == pytest.approx(kernel_evidence(kernel, y), abs=1e-5)
    low = f[:, :5] @ f[:, :5].T  # rounding gives it rank, and eigenvalues below 0
    assert kernel_evidence(low.float(), y) == pytest.approx(kernel_evidence(low, y), abs=1e-3)


def test_refusals() -> None:
    f, y = torch.ones(4, 2), torch.tensor([0, 0, 1, 1])
    with pytest.raises(OptionError, match="num_classes must be 2 or more"):
        logme(f, y, 1)
    with pytest.raises(DataError, match="all 4 samples are of class 1"):
        logme(f, torch.ones(4, dtype=torch.int64), 2)
    with pytest.raises(DataError, match="column 1 is zero everywhere"):
        logme_regression(f, torch.tensor([[1.0, 0.0]] * 4))
    with pytest.raises(MismatchError, match="not symmetric"):
        kernel_evidence(torch.tensor([[1.0, 0.5], [0.0, 1.0]]), torch.ones(2, 1))
    with pytest.raises(DataError, match="eigenvalues from -1 to 3, expected none below 0"):
        kernel_evidence(torch.tensor([[1.0, 2.0], [2.0, 1.0]]), torch.ones(2, 1))
    with pytest.raises(MismatchError, match="expected \\[N, N\\]"):
        kernel_evidence(f, torch.ones(4, 1))
