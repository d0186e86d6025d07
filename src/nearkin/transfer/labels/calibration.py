r"""Calibration errors of classes and of values, and temperature scaling of class probabilities.

Notation: M samples, C classes, K columns of values; p `[M, C]` class probabilities, T the temperature.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nearkin.core.errors import DataError, require
from nearkin.core.lazy import Lazy

optimize = Lazy("scipy.optimize")

BINS = 10
LEVELS = 19  # central intervals of 5 %, 10 %, … 95 %
MAX_LOG_T = 3.0  # log T lies between −3 and 3
WIDTH = 0.25  # of the prior of log T: without it, a few left-out points that are all correct would give T near 0


@dataclass(frozen=True)
class Calibration:
    """Predicted confidence compared with the observed frequency.

    Attributes:
        bins: for each bin with samples: its mean confidence, the fraction of correct predictions, and the count.
        error: the expected calibration error.
    """

    bins: tuple[tuple[float, float, int], ...]
    error: float


def calibration(probabilities: Tensor, labels: Tensor) -> Calibration:
    r"""Ten bins of the confidence $\max_c p_c$, and $\sum_b \frac{n_b}{M} |\text{accuracy}_b - \text{confidence}_b|$.

    >>> sure = torch.tensor([[0.8, 0.2]]).repeat(10, 1)
    >>> round(calibration(sure, torch.tensor([0] * 8 + [1] * 2)).error, 6)
    0.0
    >>> round(calibration(sure, torch.zeros(10).long()).error, 6)
    0.2
    """
    confidence, predicted = probabilities.double().max(1)
    correct = (predicted == labels).double()
    bins = (confidence * BINS).long().clamp_max(BINS - 1)
    counts = torch.bincount(bins, minlength=BINS)
    sure, share = (torch.bincount(bins, values, BINS) / counts.clamp_min(1) for values in (confidence, correct))
    error = float((counts * (share - sure).abs()).sum()) / len(labels)
    full = torch.nonzero(counts).flatten().tolist()
    return Calibration(tuple((float(sure[b]), float(share[b]), int(counts[b])) for b in full), error)


def interval_error(mean: Tensor, variance: Tensor, targets: Tensor) -> Calibration:
    r"""The calibration of values: the level of central intervals compared with the fraction of targets inside them.

    The central interval of level q is $μ ± σ\,Φ^{-1}(\frac{1+q}{2})$; the error is the mean difference over levels.

    >>> value = torch.randn(20_000, 1, generator=torch.Generator().manual_seed(0)).double()
    >>> zero, one = torch.zeros_like(value), torch.ones_like(value)
    >>> interval_error(zero, one, value).error < 0.01, interval_error(zero, 4 * one, value).error > 0.2
    (True, True)
    """
    levels = torch.arange(1, LEVELS + 1).double() / (LEVELS + 1)
    inside = torch.erf(
        (targets - mean).abs() / (2 * variance).sqrt()
    ).flatten()  # smallest level whose interval includes the target
    shares = torch.searchsorted(inside.sort().values, levels, right=True) / len(inside)
    bins = tuple((float(level), float(share), len(inside)) for level, share in zip(levels, shares, strict=True))
    return Calibration(bins, float((shares - levels).abs().mean()))


def class_loss(probabilities: Tensor, labels: Tensor) -> float:
    """The mean negative log probability of the labels.

    >>> round(class_loss(torch.tensor([[0.5, 0.5]]), torch.tensor([0])) / math.log(2), 6)
    1.0
    """
    own = probabilities.double().gather(1, labels[:, None])
    return -float(own.clamp_min(torch.finfo(torch.float64).tiny).log().mean())


def fit_temperature(
    probabilities: Callable[[float], Tensor], labels: Tensor, width: float = WIDTH, centre: float = 0.0
) -> float:
    r"""The T under which left-out labels are most probable a posteriori, with the prior $\log T ∼ N(c, w^2)$.

    $$\min_T\; -\sum_n \log p_T(y_n) + \frac{(\log T - c)^2}{2 w^2}$$

    Args:
        probabilities: of left-out points at a temperature, `[N, C]`.
        labels: `[N]`.
        width: w; infinite for the most likely T.
        centre: c.

    >>> z = 3 * torch.randn(4000, 3, generator=torch.Generator().manual_seed(0)).double()
    >>> y = torch.multinomial((z / 2).softmax(1), 1, generator=torch.Generator().manual_seed(1))[:, 0]
    >>> 1.8 < fit_temperature(lambda t: (z / t).softmax(1), y) < 2.2
    True
    """
    require(len(labels) > 0, "got no left-out points, a temperature needs one or more; give more labels", DataError)

    def loss(log_t: float) -> float:
        return len(labels) * class_loss(probabilities(math.exp(log_t)), labels) + (log_t - centre) ** 2 / (2 * width**2)

    result = optimize.minimize_scalar(loss, bounds=(-MAX_LOG_T, MAX_LOG_T), method="bounded", options={"xatol": 1e-4})
    return math.exp(float(result.x))
