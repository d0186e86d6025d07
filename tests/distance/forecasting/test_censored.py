"""Regression of partly observed times against least squares, autograd and simulations; Kaplan–Meier by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.core.errors import DataError
from nearkin.distance.forecasting.censored import Array, KaplanMeier, Times, fit_log_times


def _drawn(seed: int, count: int = 60, width: int = 3) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(count), rng.normal(size=(count, width - 1))])
    return x, x @ np.arange(1.0, width + 1) + 0.3 * rng.normal(size=count)


def test_without_bounds_and_prior_it_is_least_squares() -> None:
    x, y = _drawn(0)
    model = fit_log_times(x, Times(y, np.ones(len(y), bool), np.ones(len(y))), np.zeros(3))
    expected = np.linalg.lstsq(x, y, rcond=None)[0]
    np.testing.assert_allclose(model.coefficients, expected, atol=1e-6)
    assert model.sigma == pytest.approx(float(np.sqrt(np.mean((y - x @ expected) ** 2))), rel=1e-5)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.2, 0.8), st.floats(0, 5))
def test_it_is_a_stationary_point_of_the_written_likelihood(seed: int, level: float, strength: float) -> None:
    x, y = _drawn(seed)
    limit = np.quantile(y, level)
    times = Times(np.minimum(y, limit), y <= limit, np.random.default_rng(seed).uniform(0.2, 2, len(y)))
    centre, penalty = np.array([0.5, -1.0, 2.0]), np.array([0.0, strength, strength])
    model = fit_log_times(x, times, penalty, centre)
    b = torch.tensor(model.coefficients, requires_grad=True)
    sigma = torch.tensor(model.sigma, dtype=torch.float64, requires_grad=True)
    rest = (torch.tensor(times.log_times) - torch.tensor(x) @ b) / sigma
    weights, seen = torch.tensor(times.weights), torch.tensor(times.reached)
    total = (weights * (-0.5 * rest**2 - sigma.log()))[seen].sum()
    total = total + (weights * torch.special.log_ndtr(-rest))[~seen].sum()
    total = total - 0.5 * (torch.tensor(penalty) * (b - torch.tensor(centre)) ** 2).sum() / sigma**2
    total.backward()
    assert b.grad is not None
    assert sigma.grad is not None
    assert float(b.grad.abs().max()) < 1e-3
    assert abs(float(sigma.grad)) < 1e-3


def test_lower_bounds_are_not_taken_for_times() -> None:
    errors: list[float] = []
    naive: list[float] = []
    for seed in range(5):
        x, y = _drawn(seed, 300)
        limit = np.quantile(y, 0.4)
        cut = Times(np.minimum(y, limit), y <= limit, np.ones(len(y)))
        wrong = Times(cut.log_times, np.ones(len(y), bool), cut.weights)
        for found, times in ((errors, cut), (naive, wrong)):
            found.append(np.abs(fit_log_times(x, times, np.zeros(3)).coefficients - [1, 2, 3]).max())
    assert max(errors) < 0.3
    assert min(naive) > 0.4


def test_a_strong_prior_keeps_its_mean_and_equal_features_do_no_harm() -> None:
    x, y = _drawn(0)
    times = Times(y, np.ones(len(y), bool), np.ones(len(y)))
    centre = np.array([4.0, 5.0, 6.0])
    np.testing.assert_allclose(fit_log_times(x, times, np.full(3, 1e9), centre).coefficients, centre, atol=1e-4)
    wide = np.column_stack([x, x[:, 1]])
    twice = fit_log_times(wide, times, np.zeros(4))
    assert np.isfinite(twice.coefficients).all()
    np.testing.assert_allclose(
        twice.log_time(np.column_stack([x, x[:, 1]])), fit_log_times(x, times, np.zeros(3)).log_time(x), atol=1e-4
    )


def test_no_run_that_reached_the_goal_is_refused() -> None:
    x, y = _drawn(0)
    with pytest.raises(DataError, match="no recorded run reached"):
        fit_log_times(x, Times(y, np.zeros(len(y), bool), np.ones(len(y))), np.zeros(3))


def test_kaplan_meier_by_hand() -> None:
    """Values 1, 2+, 3, 3+, 5: at risk 5, 3 and 1 at the events, so survival is 4/5, 4/5 · 2/3 and 0."""
    times = Times(np.array([3.0, 5, 1, 2, 3]), np.array([True, True, True, False, False]), np.ones(5))
    found = KaplanMeier.of(times)
    assert found.values.tolist() == [1, 3, 5]
    np.testing.assert_allclose(found.shares, [1 / 5, 1 - 8 / 15, 1])
    assert [found.quantile(share) for share in (0.1, 0.2, 0.3, 0.5)] == [1, 1, 3, 5]
    assert [found.share_below(value) for value in (0.5, 1, 4, 9)] == [0, *found.shares.tolist()]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(0.1, 3)), min_size=1, max_size=30))
def test_without_bounds_it_is_the_weighted_share(rows: list[tuple[float, float]]) -> None:
    values, weights = (np.array(column) for column in zip(*rows, strict=True))
    found = KaplanMeier.of(Times(values, np.ones(len(rows), bool), weights))
    for value in values:
        assert found.share_below(value) == pytest.approx(weights[values <= value].sum() / weights.sum())
    assert found.quantile(1.0) == values.max()
    assert math.isinf(KaplanMeier.of(Times(values, np.zeros(len(rows), bool), weights)).quantile(0.5))
