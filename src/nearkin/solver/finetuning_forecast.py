"""Forecast of the fine-tuning contender, made before its time is spent, and compared with what happened."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from nearkin.core.errors import NearkinError
from nearkin.core.events import Caution, Note, Work
from nearkin.core.state import State
from nearkin.distance.forecasting.curve import RunCurve, clock_of
from nearkin.distance.forecasting.forecasts import PlannedRun, forecast_run
from nearkin.distance.forecasting.past_runs import Goal, RecordedRun
from nearkin.distance.forecasting.prior import shipped_runs
from nearkin.distance.forecasting.signals import Signals, measure_signals
from nearkin.distance.source_on_target import SourceOnTarget
from nearkin.nets.history import History
from nearkin.nets.recipe import Recipe
from nearkin.nets.solved import Solved
from nearkin.tasks.batches import num_batches
from nearkin.tasks.task import Task
from nearkin.zoo.recorded_runs import SAMPLES, run_network


class ForecastFacts(TypedDict):
    """A stored forecast; both are empty if there is none."""

    forecast: dict[str, Any]
    signals: dict[str, Any]


def forecast_finetuning(task: Task, source: Solved, recipe: Recipe, runs: Sequence[RecordedRun]) -> Work[State]:
    """Forecast when fine-tuning reaches a fifth of the loss of a constant answer.

    The planned run has the mean learning rate of its schedule. A pair that cannot be forecast gives no forecast.
    """
    view = SourceOnTarget(source.model(), task, task.form, SAMPLES)
    per_epoch = num_batches(len(task.train), recipe.batch_size)
    steps = recipe.total_steps(per_epoch)
    try:
        signals = yield from measure_signals.work(view, recipe.batch_size)
        rate = float(clock_of(recipe, steps, per_epoch)[-1]) / steps
        plan = PlannedRun(
            optimiser=recipe.optimiser, learning_rate=rate, batch_size=recipe.batch_size, steps=steps,
            seconds=recipe.seconds,
        )  # fmt: skip
        names = (source.name, task.name, run_network(source.network, recipe))
        forecast, _ = forecast_run(signals, runs, shipped_runs(), Goal(), plan, names=names)
    except NearkinError as error:
        yield Caution(f"no forecast of fine-tuning: {error}")
        return State({}, {"forecast": {}, "signals": {}})
    yield Note(f"forecast of fine-tuning '{source.name}': {forecast.verdict}")
    return State({}, {"forecast": forecast.to_dict(), "signals": signals.to_dict()})


def compared(facts: ForecastFacts, recipe: Recipe, history: History) -> Mapping[str, Any] | None:
    """The forecast with the steps that were measured, null if the goal was not reached; None without a forecast."""
    forecast = facts["forecast"]
    if not forecast:
        return None
    curve, rate = RunCurve.of(history, recipe), _mean_rate(recipe, history)
    clock, reached = curve.clock_to_loss(forecast["goal"])
    steps, (low, high) = clock / rate, forecast["interval"]
    inside = (low <= steps if reached else True) and (high is None or steps <= high)
    return {
        **forecast,
        "measured": {"steps": steps if reached else None, "steps_done": len(history.losses), "in_interval": inside},
    }


def signals_of(facts: ForecastFacts) -> Signals | None:
    """What was measured before the run; None without a forecast."""
    return Signals.from_dict(facts["signals"]) if facts["signals"] else None


def _mean_rate(recipe: Recipe, history: History) -> float:
    return float(clock_of(recipe, len(history.losses), history.steps_per_epoch)[-1]) / len(history.losses)
