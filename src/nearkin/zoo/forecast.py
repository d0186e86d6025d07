"""Forecast of fine-tuning a solved task's network on a target, from a short measurement and the zoo's recorded runs."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from nearkin.core.errors import OptionError, require
from nearkin.core.events import Caution, Work, operation
from nearkin.distance.forecasting.curve import RunCurve
from nearkin.distance.forecasting.forecasts import Forecast, PlannedRun, forecast_run
from nearkin.distance.forecasting.model import TimeForecast
from nearkin.distance.forecasting.past_runs import Goal
from nearkin.distance.forecasting.prior import shipped_runs
from nearkin.distance.forecasting.signals import Signals, measure_signals
from nearkin.distance.pair import Pair
from nearkin.nets.adopted_spec import ADOPTED_FACTS
from nearkin.tasks.task import Task
from nearkin.zoo.comparison import StoredTarget
from nearkin.zoo.finetuning import FinetunedRun, finetune_network
from nearkin.zoo.recorded_runs import SAMPLES
from nearkin.zoo.solved_tasks import SolvedTasks

LOSS = "loss"
ONLY_CLASSES = "all shipped runs have classes as targets, so the forecast is rough until the zoo has similar runs"
LONGEST_CHECK = 20_000  # steps


@dataclass(frozen=True, kw_only=True)
class ForecastOptions:
    """Options of a forecast.

    Attributes:
        to: what to reach: `loss=0.3` or `0.3` for the training loss, or the task's metric on validation data, such as
            `accuracy=0.9`; default: a fifth of the loss of a constant answer.
        plan: optimiser, learning rate, batch size and budget of the run.
        samples: largest number of the target's training samples that are measured.
        trial: of the source's networks.
        check: also fine-tune, up to the budget or three times the upper end of the interval, and compare.
    """

    to: str = ""
    plan: PlannedRun = field(default_factory=PlannedRun)
    samples: int = SAMPLES
    trial: int = 0
    check: bool = False

    def __post_init__(self) -> None:
        require(self.samples >= 2, f"samples must be 2 or more, got {self.samples}")
        require(self.trial >= 0, f"trial must be 0 or more, got {self.trial}")


@dataclass(frozen=True)
class CheckedForecast:
    """A forecast and, if it was checked, the run.

    Attributes:
        forecast: what was forecast.
        times: distribution of the log time.
        signals: what was measured before.
        plan: of the run.
        measured: steps that the run needed, None if it did not reach the goal or was not done.
        run: the run; None if it was not done.
    """

    forecast: Forecast
    times: TimeForecast
    signals: Signals
    plan: PlannedRun
    measured: float | None = None
    run: FinetunedRun | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        facts = self.forecast.to_dict()
        if self.run is None:
            return facts
        low, high = self.forecast.interval
        inside = low <= self.measured <= high if self.measured is not None else high > self.steps_done
        check = {"steps": self.measured, "steps_done": self.steps_done, "in_interval": inside}
        return {**facts, "measured": {**check, "seconds": self.run.fit.seconds}}

    @property
    def steps_done(self) -> int:
        """Steps of the run."""
        return 0 if self.run is None else len(self.run.fit.history.losses)


@operation
def forecast_finetuning(
    zoo: SolvedTasks, source: str, target: Task | str, how: ForecastOptions, seed: int = 0
) -> Work[CheckedForecast]:
    """Forecast fine-tuning the network of a solved task on a target, and check it if asked to.

    Args:
        zoo: the zoo.
        source: name of the solved task.
        target: a new task, or the name of one in the zoo.
        how: options.
        seed: of the run that checks it.
    """
    stored = StoredTarget(zoo, target, torch.device("cpu"))
    pair = Pair(stored.source(zoo.record(source)), stored, how.trial, how.trial + 1, how.samples)
    pair.source.require_trials(how.trial + 1)
    signals = yield from measure_signals.work(pair.view, how.plan.batch_size)
    goal, metric = goal_of(how.to, signals, pair.task)
    if not goal.metric:
        yield from _below_own(zoo, stored, goal.value(signals))
    names = (source, stored.name, pair.source.network)
    notes = () if pair.task.likelihood == "categorical" else (ONLY_CLASSES,)
    found, times = forecast_run(
        signals, stored.recorded_runs(), shipped_runs(), goal, how.plan, names=names, metric=metric, notes=notes
    )
    if not how.check:
        return CheckedForecast(found, times, signals, how.plan)
    steps = _steps_to_check(found)
    run = yield from finetune_network(zoo, pair, how.plan, steps, signals, seed, validated=goal.metric)
    curve, value = RunCurve.of(run.fit.history, run.recipe), goal.value(signals)
    clock, reached = curve.clock_to_metric(value) if goal.metric else curve.clock_to_loss(value)
    return CheckedForecast(found, times, signals, how.plan, clock / how.plan.rate if reached else None, run)


def _steps_to_check(found: Forecast) -> int:
    """The budget, or enough steps to see whether the forecast holds."""
    end = found.interval[1] if math.isfinite(found.interval[1]) else found.steps
    return max(1, math.ceil(min(found.budget or 3 * end, LONGEST_CHECK)))


def goal_of(text: str, signals: Signals, task: Task) -> tuple[Goal, str]:
    """The goal that a text asks for, and the name of what is to be reached.

    The text is `loss=VALUE`, `VALUE` or `METRIC=VALUE` with the task's metric; empty for the default.
    """
    name, given, value = text.rpartition("=")
    name = name.strip() if given else LOSS
    if not text:
        return Goal(), LOSS
    try:
        number = float(value)
    except ValueError:
        raise OptionError(f"got the goal {text!r}, expected loss=NUMBER or {task.form.metric}=NUMBER") from None
    if name == LOSS:
        require(number > 0, f"got a loss of {number:g} to reach, expected one above 0")
        return Goal.loss(number, signals), LOSS
    if name != task.form.metric:
        raise OptionError(f"got the goal {text!r}, but the metric of '{task.name}' is {task.form.metric}; ask for "
                          f"{task.form.metric}=NUMBER or loss=NUMBER")  # fmt: skip
    require(number < 1, f"got {name} {number:g} to reach, expected a value below 1, which is perfect")
    return Goal.metric_of(number, signals), name


def _below_own(zoo: SolvedTasks, target: StoredTarget, loss: float) -> Work[None]:
    """Warn of a loss that the target's own training did not reach."""
    if target.record is None or ADOPTED_FACTS in target.record.facts:
        return
    reached = min(float(fit.history.losses.min()) for fit in zoo.solved(target.name).trials)
    if loss < reached:
        yield Caution(
            f"the loss {loss:.3g} is below {reached:.3g}, the lowest loss of a batch in the training of "
            f"'{target.name}' itself; the forecast may be too optimistic"
        )
