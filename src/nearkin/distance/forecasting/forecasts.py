"""Forecast of a fine-tuning run: steps and seconds to a goal, with an interval, and the probability within a budget."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nearkin.core.errors import OptionError, require, require_positive
from nearkin.distance.forecasting.model import TimeForecast, TimeModel
from nearkin.distance.forecasting.past_runs import Goal, RecordedRun
from nearkin.distance.forecasting.signals import Signals

LEVEL = 0.8
LIKELY, UNLIKELY = 0.5, 0.1
FAR = 10.0  # a forecast beyond so many times the longest recorded run is no evidence that the goal can be reached
BATCH_SIZE = 32
RATES = {"adam": 1e-3, "adam-l2": 1e-3, "sgd": 1e-2}
FAMILIES = {"adam": "adam", "adam-l2": "adam", "sgd": "sgd"}


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """The fine-tuning run that is forecast, at a constant learning rate.

    Attributes:
        optimiser: `adam`, `adam-l2` or `sgd`.
        learning_rate: default: 1e-3, of `sgd` 1e-2.
        batch_size: samples in a step.
        steps: budget in steps; None for no limit.
        seconds: budget in seconds; None for no limit.
    """

    optimiser: str = "adam"
    learning_rate: float | None = None
    batch_size: int = BATCH_SIZE
    steps: float | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.optimiser not in FAMILIES:
            raise OptionError(f"optimiser must be one of {', '.join(FAMILIES)}, got {self.optimiser!r}")
        require(self.batch_size >= 1, f"batch_size must be 1 or more, got {self.batch_size}")
        for name in ("learning_rate", "steps", "seconds"):
            if getattr(self, name) is not None:
                require_positive(name, getattr(self, name))

    @property
    def rate(self) -> float:
        """The learning rate."""
        return self.learning_rate or RATES[self.optimiser]

    def budget(self, step_seconds: float) -> float | None:
        """The smaller of both budgets in steps; None without a budget."""
        limits = [self.steps, None if self.seconds is None else self.seconds / step_seconds]
        return min((limit for limit in limits if limit is not None), default=None)


@dataclass(frozen=True)
class Forecast:
    """What fine-tuning a source's network on a target will cost.

    Attributes:
        source: name of the source; empty for a network before training.
        target: name of the target.
        network: network string.
        metric: name of the metric that is to be reached; `loss` for the training loss.
        goal: its value.
        steps: median of the predicted steps.
        interval: 80 % interval of the steps; the upper end is infinite if no recorded run tells.
        step_seconds: time of a step here.
        budget: in steps; None without one.
        probability: of reaching the goal within the budget; None without one.
        reachable: whether that is likely; without a budget, whether the forecast is within reach of recorded runs.
        complexity: for each sample, of a linear model on the source's features (`Signals`); None if not defined.
        distance: mean loss of the short fine-tuning.
        barrier: rise of the loss above that of a constant answer in the short fine-tuning.
        own_runs: recorded runs of the same network.
        other_runs: recorded runs of other networks.
        notes: what the reader should know.
    """

    source: str
    target: str
    network: str
    metric: str
    goal: float
    steps: float
    interval: tuple[float, float]
    step_seconds: float
    budget: float | None
    probability: float | None
    reachable: bool
    complexity: float | None
    distance: float
    barrier: float
    own_runs: int
    other_runs: int
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Median of the predicted seconds of training steps."""
        return self.steps * self.step_seconds

    @property
    def seconds_interval(self) -> tuple[float, float]:
        """80 % interval of the seconds."""
        return self.interval[0] * self.step_seconds, self.interval[1] * self.step_seconds

    @property
    def verdict(self) -> str:
        """The answer in one sentence."""
        what = f"{self.metric} {self.goal:.3g}"
        low, high = (f"{value:,.0f}" if math.isfinite(value) else "an unknown number" for value in self.interval)
        cost = f"about {self.steps:,.0f} steps ({low} to {high} in 80 % of such runs)"
        if self.probability is None:
            return f"{what} needs {cost}" if self.reachable else f"{what} is not within reach of the recorded runs"
        share = f"{self.probability:.0%}"
        if self.probability < UNLIKELY:
            return f"{what} is not reachable within your budget of {self.budget:,.0f} steps: it needs {cost}"
        return f"{what} is reached within {self.budget:,.0f} steps with a probability of {share}: it needs {cost}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; null for an unknown upper end."""
        own = {name: value for name, value in vars(self).items() if name not in ("interval", "notes")}
        ends = {"interval": self.interval, "seconds_interval": self.seconds_interval}
        plain = {name: [value if math.isfinite(value) else None for value in pair] for name, pair in ends.items()}
        return {**own, **plain, "seconds": self.seconds, "verdict": self.verdict, "notes": list(self.notes)}


def runs_for(
    plan: PlannedRun, network: str, recorded: Iterable[RecordedRun], shipped: Iterable[RecordedRun]
) -> tuple[list[RecordedRun], list[RecordedRun]]:
    """Runs of a similar optimiser: a zoo's own of the same network, and all others."""
    family = FAMILIES[plan.optimiser]
    alike = [run for run in recorded if FAMILIES.get(run.optimiser) == family]
    own, others = ([run for run in alike if (run.network == network) is same] for same in (True, False))
    return own, [*others, *(run for run in shipped if FAMILIES[run.optimiser] == family)]


def forecast_run(
    signals: Signals,
    recorded: Iterable[RecordedRun],
    shipped: Iterable[RecordedRun],
    goal: Goal,
    plan: PlannedRun,
    *,
    names: tuple[str, str, str],
    metric: str = "loss",
    notes: Sequence[str] = (),
) -> tuple[Forecast, TimeForecast]:
    """Forecast a run from what was measured before it; with the whole distribution of its log time.

    Args:
        signals: of the pair.
        recorded: runs of a zoo.
        shipped: runs that came with the package.
        goal: what the run is to reach.
        plan: optimiser, learning rate and budget.
        names: of source, target and network.
        metric: name of what is to be reached.
        notes: what the reader should know, besides what is found here.
    """
    own, others = runs_for(plan, names[2], recorded, shipped)
    model = TimeModel.of(others, own, goal)
    found = model.forecast(signals)
    said = list(notes)
    if not len(model.own):
        said.append(
            f"no recorded run of {names[2]} with {plan.optimiser}: the forecast is from runs of other networks, which "
            f"makes its interval wider"
        )
    ends = [math.exp(found.quantile(share)) / plan.rate for share in ((1 - LEVEL) / 2, (1 + LEVEL) / 2)]
    budget = plan.budget(signals.step_seconds)
    probability = None if budget is None else found.probability(math.log(budget * plan.rate))
    longest = max(math.exp(float(table.times.log_times.max())) for table in (model.shipped, model.own) if len(table))
    clock = math.exp(found.quantile(0.5))
    within = clock <= FAR * longest
    if not within:
        said.append("the forecast lies far beyond the longest recorded run, so the goal may never be reached")
    forecast = Forecast(
        *names, metric, goal.value(signals), clock / plan.rate, (ends[0], ends[1]), signals.step_seconds, budget,
        probability, within if probability is None else probability >= LIKELY, signals.complexity, signals.distance,
        signals.barrier, len(model.own), len(model.shipped), tuple(said),
    )  # fmt: skip
    return forecast, found
