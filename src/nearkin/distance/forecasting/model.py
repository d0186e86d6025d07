r"""Model of the time to a goal, fitted on recorded runs that were asked for the same goal.

$$\log t = b_0 + \sum_i (b_i x_i + c_i x_i^2), \quad
x = \left(\log\frac{\ell_4}{\ell_0}, \frac{\ell_3}{\ell_0}, \frac{\ell_2}{\ell_0}, \frac{\ell_1}{\ell_0}\right)$$

t is the sum of learning rates until the goal, ℓ₁ to ℓ₄ are the mean losses of the quarters of a short fine-tuning, and
ℓ₀ is the loss of a constant answer. `benchmarks/forecast.py` compares it with other features. Shipped runs give a first
model; a zoo's own runs move its coefficients. Residuals of targets that were left out give the interval.

Notation: R runs, F features.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nearkin.core.errors import DataError, require
from nearkin.distance.forecasting.censored import Array, KaplanMeier, LogNormalTimes, Times, fit_log_times
from nearkin.distance.forecasting.past_runs import Goal, RecordedRun
from nearkin.distance.forecasting.signals import PARTS, Signals

Names = NDArray[np.str_]

WEAK = 0.1  # precision of the first model's coefficients, of standardised features, in runs
STRONG = (0.1, 1.0)  # with which own runs are drawn to the first model, in runs: intercept, other coefficients
SHIPPED_RESIDUALS = 15.0  # own runs that all residuals of shipped runs count as
GROUPS = 8  # of targets that are left out together


def features(signals: Signals) -> Array:
    """Features of a pair `[F]`, the first is 1."""
    parts = np.array(signals.losses).reshape(PARTS, -1).mean(1)[::-1] / signals.constant_loss
    parts[0] = np.log(parts[0])
    return np.concatenate([[1.0], parts, parts**2])


@dataclass(frozen=True, eq=False)
class TimeTable:
    """Runs as rows.

    Attributes:
        features: `[R, F]`.
        times: of the runs.
        targets: names of their targets `[R]`.
        networks: their networks `[R]`.
    """

    features: Array
    times: Times
    targets: Names
    networks: Names

    @classmethod
    def of(cls, runs: Sequence[RecordedRun], goal: Goal) -> "TimeTable":
        """The rows of runs; those without a validation metric are left out if the goal is a metric."""
        runs = [run for run in runs if not goal.metric or len(run.curve.metrics)]
        pairs = [run.log_time(goal) for run in runs]
        table = np.stack([features(run.signals) for run in runs]) if runs else np.empty((0, 1 + 2 * PARTS))
        times = Times(
            np.array([time for time, _ in pairs]), np.array([seen for _, seen in pairs], dtype=bool), np.ones(len(runs))
        )
        targets, networks = ([getattr(run, name) for run in runs] for name in ("target", "network"))
        return cls(table, times, np.array(targets, dtype=str), np.array(networks, dtype=str))

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def informative(self) -> bool:
        """Whether a run reached the goal."""
        return bool(self.times.reached.any())

    def chosen(self, rows: NDArray[np.bool_]) -> "TimeTable":
        """The runs of a mask."""
        return TimeTable(self.features[rows], self.times.chosen(rows), self.targets[rows], self.networks[rows])


@dataclass(frozen=True, eq=False)
class TimeForecast:
    """Distribution of the log time of one pair: a median and residuals."""

    log_time: float
    residuals: KaplanMeier

    def quantile(self, share: float) -> float:
        """Log time that this share of runs does not exceed; infinite if the recorded runs do not tell."""
        return self.log_time + self.residuals.quantile(share)

    def probability(self, log_time: float) -> float:
        """Probability of a time of at most this."""
        return self.residuals.share_below(log_time - self.log_time)


@dataclass(frozen=True, eq=False)
class TimeModel:
    """The time to a goal as a function of signals.

    Attributes:
        shipped: runs that came with the package, and own runs of other networks.
        own: runs of a zoo with the same network.
    """

    shipped: TimeTable
    own: TimeTable

    @classmethod
    def of(cls, shipped: Sequence[RecordedRun], own: Sequence[RecordedRun], goal: Goal) -> "TimeModel":
        """The model of runs."""
        tables = [TimeTable.of(runs, goal) for runs in (shipped, own)]
        require(
            any(table.informative for table in tables),
            "no recorded run reached this goal, so there is nothing to learn from; ask for an easier one",
            DataError,
        )
        return cls(*tables)

    @cached_property
    def scale(self) -> tuple[Array, Array]:
        """Means and standard deviations of the features of all runs."""
        rows = np.concatenate([self.shipped.features, self.own.features])
        mean, std = rows.mean(0), rows.std(0)
        mean[0], std[0] = 0.0, 1.0
        return mean, np.where(std > 1e-9, std, 1.0)

    @cached_property
    def first(self) -> LogNormalTimes | None:
        """The model of shipped runs; None if none of them reached the goal."""
        return self._fit_shipped(self.shipped) if self.shipped.informative else None

    @cached_property
    def fitted(self) -> LogNormalTimes:
        """The model of all runs."""
        return self._fit_own(self.own)

    @cached_property
    def residuals(self) -> KaplanMeier:
        """Residuals of runs that were left out of the fit.

        A shipped run is predicted without the runs of its network and of its group of targets, an own run without
        those of its target. All shipped ones together count as a few own ones.
        """
        parts = []
        weight = SHIPPED_RESIDUALS / max(1, len(self.shipped)) if len(self.own) else 1.0
        groups = np.unique(self.shipped.targets, return_inverse=True)[1] % GROUPS
        for group, network in sorted(set(zip(groups.tolist(), self.shipped.networks.tolist(), strict=True))):
            same_targets, same_network = groups == group, self.shipped.networks == network
            rest = self.shipped.chosen(~(same_targets | same_network))
            rest = rest if rest.informative else self.shipped.chosen(~same_targets)
            if rest.informative:
                left_out = self.shipped.chosen(same_targets & same_network)
                parts.append(self._errors(self._fit_shipped(rest, self.first), left_out, weight))
        for target in sorted(set(self.own.targets)):
            rest, left_out = (
                self.own.chosen(rows) for rows in (self.own.targets != target, self.own.targets == target)
            )
            known = rest.informative or self.first is not None
            parts.append(self._errors(self._fit_own(rest) if known else self.fitted, left_out, 1.0))
        return KaplanMeier.of(Times.joined(parts))

    def log_time(self, signals: Signals) -> float:
        """Median of the log time of a pair."""
        return float(self.fitted.log_time(self._scaled(features(signals))))

    def forecast(self, signals: Signals) -> TimeForecast:
        """The distribution of the time of a pair."""
        return TimeForecast(self.log_time(signals), self.residuals)

    def _scaled(self, rows: Array) -> Array:
        mean, std = self.scale
        return (rows - mean) / std

    def _errors(self, model: LogNormalTimes, table: TimeTable, weight: float) -> Times:
        rest = table.times.log_times - model.log_time(self._scaled(table.features))
        return Times(rest, table.times.reached, weight * table.times.weights)

    def _fit_shipped(self, table: TimeTable, start: LogNormalTimes | None = None) -> LogNormalTimes:
        return fit_log_times(self._scaled(table.features), table.times, _precisions(0.0, WEAK), start=start)

    def _fit_own(self, table: TimeTable) -> LogNormalTimes:
        """The model of own runs, drawn to that of shipped runs if there is one."""
        if self.first is None:
            return self._fit_shipped(table)
        if not table.informative:
            return self.first
        rows, centre = self._scaled(table.features), self.first.coefficients
        return fit_log_times(rows, table.times, _precisions(*STRONG), centre, self.first)


def _precisions(intercept: float, others: float) -> Array:
    """Precision of each coefficient."""
    return np.append(intercept, np.full(2 * PARTS, others))
