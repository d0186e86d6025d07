r"""Regression of times that are not always observed: a run that ended before its threshold gives a lower bound only.

The model is $\log t = x^\top b + \sigma\varepsilon$ with a normal ε (the log-normal accelerated failure time model).
A run that reached the threshold contributes the density of its time, another one the probability of a longer time.
Quantiles of the residuals come from the Kaplan–Meier estimate, which uses both and assumes no distribution.

Notation: R runs, F features.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from nearkin.core.errors import DataError, require

Array = NDArray[np.float64]

LEAST_SIGMA = 0.02
LEAST_PRECISION = 1e-8  # of the prior, so that features which are constant or equal do no harm
NEWTON_STEPS = 100
SMALLEST_STEP = 1e-10
TOLERANCE = 1e-12


@dataclass(frozen=True, eq=False)
class Times:
    """Logarithms of the times of R runs.

    Attributes:
        log_times: time at which the threshold was reached, or the end of a run that did not reach it `[R]`.
        reached: whether it was reached `[R]`.
        weights: of the runs `[R]`.
    """

    log_times: Array
    reached: NDArray[np.bool_]
    weights: Array

    def chosen(self, rows: NDArray[np.bool_]) -> "Times":
        """The runs of a mask."""
        return Times(self.log_times[rows], self.reached[rows], self.weights[rows])

    @classmethod
    def joined(cls, parts: "Sequence[Times]") -> "Times":
        """The runs of all parts."""
        empty = [np.empty(0), np.empty(0, dtype=bool), np.empty(0)]
        columns = [[part.log_times, part.reached, part.weights] for part in parts] or [empty]
        return cls(*(np.concatenate(column) for column in zip(*columns, strict=True)))


@dataclass(frozen=True, eq=False)
class LogNormalTimes:
    """A fitted model: coefficients `[F]` and the standard deviation of log times."""

    coefficients: Array
    sigma: float

    def log_time(self, features: Array) -> Array:
        """Median log times of features `[..., F]`."""
        return features @ self.coefficients


def fit_log_times(
    features: Array, times: Times, penalty: Array, centre: Array | None = None, start: LogNormalTimes | None = None
) -> LogNormalTimes:
    r"""Maximise the weighted likelihood with a Gaussian prior on the coefficients, by Newton's method.

    With $\delta = b/\sigma$ and $\theta = 1/\sigma$ the log-likelihood is concave (Olsen 1978), and so is that of a
    prior whose standard deviations are multiples of σ. So there is one maximum.

    Args:
        features: `[R, F]`.
        times: of the runs.
        penalty: precision of the prior of each coefficient, in units of 1/σ²: a number of runs `[F]`; 0 for none.
        centre: mean of the prior `[F]` (default: 0).
        start: a model of similar runs, to start from; the result does not depend on it.

    >>> x = np.stack([np.ones(50), np.linspace(-1, 1, 50)], 1)
    >>> noise = 0.1 * np.sin(np.arange(50.0))
    >>> times = Times(x @ [2.0, 3.0] + noise, np.ones(50, bool), np.ones(50))
    >>> model = fit_log_times(x, times, np.zeros(2))
    >>> model.coefficients.round(1).tolist(), round(model.sigma, 2)
    ([2.0, 3.0], 0.07)
    """
    require(bool(times.reached.any()), "no recorded run reached the threshold; ask for an easier one", DataError)
    middle = np.zeros(features.shape[1]) if centre is None else centre
    rows = np.column_stack([-features, times.log_times])  # scaled residuals are rows @ (δ, θ)
    pull = np.sqrt(penalty)[:, None] * np.column_stack([np.eye(len(middle)), -middle])
    prior, seen = pull.T @ pull + LEAST_PRECISION * np.eye(len(middle) + 1), times.reached
    events = float(times.weights[seen].sum())

    def value(point: Array) -> float:
        scaled = rows @ point
        tail = times.weights[~seen] @ log_ndtr(-scaled[~seen])
        known = -0.5 * times.weights[seen] @ scaled[seen] ** 2 + events * math.log(point[-1])
        return float(known + tail - 0.5 * point @ prior @ point)

    point = np.append(np.zeros(len(middle)), 1.0)
    if start is not None:
        point = np.append(start.coefficients, 1.0) / start.sigma
    best = value(point)
    for _ in range(NEWTON_STEPS):
        scaled = rows @ point
        hazard = np.exp(-0.5 * scaled**2 - 0.5 * math.log(2 * math.pi) - log_ndtr(-scaled))
        slope = times.weights * np.where(seen, scaled, hazard)
        curvature = times.weights * np.where(seen, 1.0, hazard * (hazard - scaled))
        down = rows.T @ slope + prior @ point
        hessian = (rows.T * curvature) @ rows + prior
        down[-1] -= events / point[-1]
        hessian[-1, -1] += events / point[-1] ** 2
        step = np.linalg.solve(hessian, down)
        size = min(1.0, 0.9 * point[-1] / step[-1]) if step[-1] > 0 else 1.0  # θ stays positive
        while (found := value(point - size * step)) < best and size > SMALLEST_STEP:
            size /= 2
        gain, point, best = found - best, point - size * step, found
        if gain <= TOLERANCE * max(1.0, abs(best)):
            break
    sigma = 1 / point[-1]
    return LogNormalTimes(point[:-1] * sigma, float(max(sigma, LEAST_SIGMA)))


@dataclass(frozen=True, eq=False)
class KaplanMeier:
    """Distribution of values that are partly lower bounds.

    Attributes:
        values: at which the distribution rises `[V]`, rising.
        shares: its value from there on `[V]`; the last is below 1 if the largest values are lower bounds.
    """

    values: Array
    shares: Array

    @classmethod
    def of(cls, times: Times) -> "KaplanMeier":
        """The Kaplan–Meier estimate; at equal values, events come before lower bounds.

        >>> found = KaplanMeier.of(Times(np.array([1.0, 2.0, 3.0]), np.array([True, False, True]), np.ones(3)))
        >>> found.values.tolist(), found.shares.round(3).tolist()
        ([1.0, 3.0], [0.333, 1.0])
        """
        order = np.lexsort((~times.reached, times.log_times))
        weights, reached = times.weights[order], times.reached[order]
        at_risk = np.cumsum(weights[::-1])[::-1]
        survival = np.cumprod(np.where(reached, 1 - weights / at_risk, 1.0))
        return cls(times.log_times[order][reached], np.asarray(1.0 - survival[reached], dtype=np.float64))

    def quantile(self, share: float) -> float:
        """The smallest value with at least this share at or below it; infinite if the data do not tell.

        >>> KaplanMeier(np.array([1.0, 2.0]), np.array([0.5, 0.8])).quantile(0.9)
        inf
        """
        position = int(np.searchsorted(self.shares, share - 1e-9))
        return float(self.values[position]) if position < len(self.values) else math.inf

    def share_below(self, value: float) -> float:
        """Share of values at or below a value."""
        position = int(np.searchsorted(self.values, value, side="right"))
        return float(self.shares[position - 1]) if position else 0.0
