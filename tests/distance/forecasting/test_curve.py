"""Compact curves against the whole history."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.core.errors import DataError
from nearkin.distance.forecasting.curve import POINTS, RunCurve, clock_of
from nearkin.nets.history import History, Measurement
from nearkin.nets.recipe import Recipe

CONSTANT = Recipe(steps=500, learning_rate=1e-2, schedule="constant", warmup=0.0)


def _history(seed: int, steps: int = 500) -> History:
    rng = torch.Generator().manual_seed(seed)
    losses = 2 * torch.arange(1, steps + 1).pow(-0.5) * torch.exp(0.2 * torch.randn(steps, generator=rng))
    measured = tuple(Measurement(step, 1 - float(losses[step - 1]), 0.0) for step in range(7, steps + 1, 7))
    return History(losses, measured, 7)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.floats(0.12, 1.2))
def test_the_time_to_a_loss_is_that_of_the_history(seed: int, loss: float) -> None:
    history = _history(seed)
    curve = RunCurve.of(history, CONSTANT)
    clock, reached = curve.clock_to_loss(loss)
    steps = history.steps_to(loss)
    assert reached is (steps is not None)
    assert len(curve.clocks) <= POINTS
    if steps is None:
        assert clock == pytest.approx(500 * 1e-2)
    else:
        assert abs(clock / 1e-2 - steps) <= max(1.0, 0.12 * steps) + 1e-6  # points are a step or 10 % apart


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.floats(0.1, 0.85))
def test_the_time_to_a_metric_is_that_of_the_measurements(seed: int, metric: float) -> None:
    history = _history(seed)
    clock, reached = RunCurve.of(history, CONSTANT).clock_to_metric(metric)
    steps = next((row.step for row in history.measured if row.metric >= metric), None)
    assert reached is (steps is not None)
    if steps is not None:
        assert steps - 7 * max(1, steps / 60) - 1e-6 <= clock / 1e-2 <= steps * 1.001 + 1e-6


def test_half_the_rate_takes_twice_the_steps_on_one_clock() -> None:
    history = _history(0)
    halved = Recipe(steps=500, learning_rate=5e-3, schedule="constant", warmup=0.0)
    (fast, _), (slow, _) = (RunCurve.of(history, recipe).clock_to_loss(0.4) for recipe in (CONSTANT, halved))
    assert fast == pytest.approx(2 * slow)


def test_a_schedule_is_summed_and_a_time_limit_ends_it() -> None:
    cosine = Recipe(steps=100, learning_rate=1.0, warmup=0.0)
    assert float(clock_of(cosine, 100, 10)[-1]) == pytest.approx(sum(cosine.rate(step, 100) for step in range(100)))
    assert float(clock_of(cosine, 50, 10)[-1]) == pytest.approx(sum(cosine.rate(step, 100) for step in range(50)))
    limited = Recipe(steps=100, learning_rate=1.0, warmup=0.0, seconds=1.0)
    assert float(clock_of(limited, 50, 10)[-1]) == pytest.approx(sum(cosine.rate(step, 50) for step in range(50)))


def test_storage_keeps_the_curve_and_refuses_others() -> None:
    curve = RunCurve.of(_history(3), CONSTANT)
    again = RunCurve.from_tensors(curve.to_tensors())
    assert again.clock_to_loss(0.3)[0] == pytest.approx(curve.clock_to_loss(0.3)[0], rel=1e-4)
    assert curve.thinned(16).clock_to_loss(0.3)[0] == pytest.approx(curve.clock_to_loss(0.3)[0], rel=0.3)
    with pytest.raises(DataError, match="has no clocks"):
        RunCurve.from_tensors({})
    with pytest.raises(DataError, match="shapes"):
        RunCurve(torch.ones(2), torch.ones(3), torch.ones(0), torch.ones(0))
    with pytest.raises(DataError, match="not validated"):
        RunCurve.of(History(torch.ones(5)), CONSTANT).clock_to_metric(0.5)
