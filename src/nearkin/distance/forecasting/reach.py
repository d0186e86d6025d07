"""Predicted number of steps of fine-tuning: the measure `reach`."""

import math
from dataclasses import dataclass

from nearkin.core.events import Work
from nearkin.distance.forecasting.forecasts import PlannedRun, runs_for
from nearkin.distance.forecasting.model import TimeModel
from nearkin.distance.forecasting.past_runs import RELATIVE, Goal
from nearkin.distance.forecasting.prior import shipped_runs
from nearkin.distance.forecasting.signals import measure_signals
from nearkin.distance.pair import Pair


@dataclass(frozen=True, kw_only=True)
class PredictedSteps:
    """Steps until the training loss is a share of that of a constant answer.

    Attributes:
        share: of the loss of a constant answer.
        optimiser: `adam` or `sgd`.
        learning_rate: of the predicted run; 0 for the default of the optimiser.
    """

    share: float = RELATIVE
    optimiser: str = "adam"
    learning_rate: float = 0.0

    def __call__(self, pair: Pair) -> Work[float]:
        """The median of the predicted steps."""
        plan = PlannedRun(optimiser=self.optimiser, learning_rate=self.learning_rate or None)
        signals = yield from measure_signals.work(pair.view)
        own, others = runs_for(plan, pair.source.network, pair.target.recorded_runs(), shipped_runs())
        model = TimeModel.of(others, own, Goal(self.share))
        return math.exp(model.log_time(signals)) / plan.rate
