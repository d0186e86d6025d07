"""The model of times on simulated runs whose law is known, and the shipped runs."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from nearkin.core.errors import DataError, OptionError
from nearkin.distance.forecasting.curve import RunCurve
from nearkin.distance.forecasting.forecasts import PlannedRun, forecast_run
from nearkin.distance.forecasting.model import TimeModel
from nearkin.distance.forecasting.past_runs import Goal, RecordedRun
from nearkin.distance.forecasting.prior import packed, shipped_runs, unpacked
from nearkin.distance.forecasting.signals import Signals

NAMES = ("a", "b", "net")


def _run(seed: int, network: str = "net", offset: float = 0.0, noise: float = 0.2, end: float = 1e3) -> RecordedRun:
    """A run whose log time is 1.5 times the log of its last loss, plus an offset and noise."""
    rng = np.random.default_rng(seed)
    last = rng.uniform(0.1, 0.9)
    losses = np.repeat(np.linspace(1, last, 4), 4)
    log_time = 1.5 * math.log(last) + offset + noise * rng.normal()
    clocks = torch.tensor([1e-6, math.exp(log_time), 1e9]).double().clamp_max(end)
    last_loss = 0.2 if math.exp(log_time) < end else 0.5
    curve = RunCurve(clocks, torch.tensor([1.0, last_loss, last_loss], dtype=torch.float64),
                     torch.empty(0), torch.empty(0))  # fmt: skip
    return RecordedRun(
        "", f"target {seed % 12}", network, "adam", 32, Signals(tuple(losses), 1.0, 0.1, 0.5, 100, 1e-3), curve
    )


@pytest.mark.soak
@pytest.mark.parametrize("size", [0, 10, 40])
def test_the_interval_holds_on_new_targets(size: int) -> None:
    """Own runs take three times as long as shipped ones, which an empty zoo cannot know."""
    inside, errors = [], []
    for draw in range(20):
        shipped = [_run(10_000 * (draw + 2) + seed, "xy"[seed % 2]) for seed in range(120)]
        own = [_run(1000 * draw + seed, offset=1.1 if size else 0.0) for seed in range(size)]
        model = TimeModel.of(shipped, own, Goal(0.2))
        for seed in range(10):
            test = _run(5000 + 100 * draw + seed, offset=1.1 if size else 0.0)
            found, log_time = model.forecast(test.signals), test.log_time(Goal(0.2))[0]
            inside.append(found.quantile(0.1) <= log_time <= found.quantile(0.9))
            errors.append(abs(found.quantile(0.5) - log_time))
    assert 0.7 <= np.mean(inside) <= 0.97
    assert np.mean(errors) < (0.25 if size != 10 else 0.5)


def test_runs_that_did_not_reach_the_goal_open_the_interval() -> None:
    runs = [_run(seed, noise=1.0, end=0.2) for seed in range(60)]
    assert 10 < sum(not run.log_time(Goal(0.2))[1] for run in runs) < 50
    hard = Signals(tuple(np.repeat(np.linspace(1, 0.9, 4), 4)), 1.0, 0.1, 0.5, 100, 1e-3)
    forecast, _ = forecast_run(hard, runs, [], Goal(0.2), PlannedRun(steps=50), names=NAMES)
    assert math.isinf(forecast.interval[1])
    assert forecast.to_dict()["interval"][1] is None
    assert "unknown number" in forecast.verdict


def test_a_budget_gives_a_probability_that_rises_with_it() -> None:
    runs = [_run(seed) for seed in range(60)]
    found = [
        forecast_run(runs[0].signals, runs, [], Goal(0.2), PlannedRun(steps=steps), names=NAMES)[0]
        for steps in (1, 100, 300, 10_000)
    ]
    chances = [forecast.probability or 0.0 for forecast in found]
    assert chances == sorted(chances)
    assert chances[0] == 0
    assert chances[-1] == 1
    assert [forecast.reachable for forecast in (found[0], found[-1])] == [False, True]
    assert "not reachable within your budget of 1 steps" in found[0].verdict
    limited = forecast_run(runs[0].signals, runs, [], Goal(0.2), PlannedRun(steps=9999, seconds=0.1), names=NAMES)[0]
    assert limited.budget == pytest.approx(100)


def test_other_optimisers_and_networks_are_kept_apart() -> None:
    own = [_run(seed) for seed in range(20)]
    other = [replace(_run(seed, "other"), optimiser="adam-l2") for seed in range(20)]
    descent = [replace(_run(seed, offset=5.0), optimiser="sgd") for seed in range(20)]
    forecast, _ = forecast_run(own[0].signals, [*own, *other, *descent], [], Goal(0.2), PlannedRun(), names=NAMES)
    assert (forecast.own_runs, forecast.other_runs) == (20, 20)
    alone, _ = forecast_run(own[0].signals, other, [], Goal(0.2), PlannedRun(), names=NAMES)
    assert any("no recorded run of net" in note for note in alone.notes)


def test_shipped_runs_are_read_and_written_again() -> None:
    runs = shipped_runs()
    assert {run.optimiser for run in runs} == {"adam", "sgd"}
    assert len({run.target for run in runs}) == 24
    again = unpacked(packed(runs[:5]))
    for one, other in zip(runs[:5], again, strict=True):
        assert one.facts() == other.facts()
        assert torch.equal(one.curve.losses, other.curve.losses)
    reached = [run.log_time(Goal(0.5))[1] for run in runs if run.optimiser == "adam"]
    assert np.mean(reached) > 0.95


@pytest.mark.parametrize("share", [0.0, 1.0, 1.5, -1.0, math.nan])
def test_a_goal_beyond_a_constant_answer_is_refused(share: float) -> None:
    with pytest.raises(OptionError, match="constant answer"):
        Goal(share)


def test_bad_plans_and_signals_are_refused() -> None:
    for options in ({"optimiser": "adagrad"}, {"learning_rate": 0.0}, {"steps": -1}, {"batch_size": 0}):
        with pytest.raises(OptionError):
            PlannedRun(**options)
    with pytest.raises(DataError, match="not finite"):
        Signals((1.0, 1.0, 1.0, math.nan), 1.0, None, 0.5, 10)
    with pytest.raises(DataError, match="one value"):
        Signals((1.0,) * 4, 0.0, None, 0.5, 10)
    with pytest.raises(DataError, match="no recorded run reached"):
        TimeModel.of([], [], Goal(0.2))
