"""Recorded runs, and what a run is asked to reach."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from nearkin.core.errors import DataError, OptionError, require
from nearkin.distance.forecasting.curve import RunCurve
from nearkin.distance.forecasting.signals import Signals

RELATIVE = 0.2
"""Default goal: this share of the loss of a constant answer."""


@dataclass(frozen=True)
class Goal:
    """What a run is to reach.

    Attributes:
        share: of the loss of a constant answer, or of its error (1 − metric), in (0, 1).
        metric: whether the share is that of the error on validation data instead of the training loss.
    """

    share: float = RELATIVE
    metric: bool = False

    def __post_init__(self) -> None:
        require(
            math.isfinite(self.share) and 0 < self.share < 1,
            f"the goal is {self.share:.3g} of what a constant answer has, expected a share between 0 and 1; ask for a "
            f"loss below, or a metric above, that of a constant answer",
            OptionError,
        )

    @classmethod
    def loss(cls, value: float, signals: Signals) -> "Goal":
        """A training loss."""
        return cls(value / signals.constant_loss)

    @classmethod
    def metric_of(cls, value: float, signals: Signals) -> "Goal":
        """A metric on validation data; 1 is perfect."""
        require(signals.guess < 1, "a constant answer is always right, so there is no metric to reach", DataError)
        return cls((1 - value) / (1 - signals.guess), metric=True)

    def value(self, signals: Signals) -> float:
        """The loss or the metric of a target."""
        if self.metric:
            return 1 - self.share * (1 - signals.guess)
        return self.share * signals.constant_loss


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """A run that was done, with what was measured before it.

    Attributes:
        source: name of the task whose network it started from; empty for a network before training.
        target: name of the task it learned.
        network: network string, with a mark if samples were augmented.
        optimiser: of the recipe.
        batch_size: of the recipe.
        signals: measured before the run.
        curve: what it reached.
    """

    source: str
    target: str
    network: str
    optimiser: str
    batch_size: int
    signals: Signals
    curve: RunCurve

    def log_time(self, goal: Goal) -> tuple[float, bool]:
        """Log of the clock at which the goal was reached, or of the run's end and False."""
        value = goal.value(self.signals)
        clock, reached = self.curve.clock_to_metric(value) if goal.metric else self.curve.clock_to_loss(value)
        return math.log(clock), reached

    def facts(self) -> dict[str, Any]:
        """Everything but the curve, as plain JSON values."""
        own = {name: getattr(self, name) for name in ("source", "target", "network", "optimiser", "batch_size")}
        return {**own, "signals": self.signals.to_dict()}

    @classmethod
    def of(cls, facts: Mapping[str, Any], tensors: dict[str, Tensor]) -> "RecordedRun":
        """The run from its facts and the tensors of its curve."""
        try:
            signals = Signals.from_dict(facts["signals"])
            own = {name: str(facts[name]) for name in ("source", "target", "network", "optimiser")}
            batch_size = int(facts["batch_size"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"a recorded run lacks or has unknown facts: {error}; remove it") from error
        return cls(**own, batch_size=batch_size, signals=signals, curve=RunCurve.from_tensors(tensors))
