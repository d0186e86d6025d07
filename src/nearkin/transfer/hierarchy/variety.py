r"""How tasks of a family differ: each has a size τ of its own, and a share of noise drawn from a shared distribution.

$$τ_t ∼ \mathrm{InvGamma}(a, b), \qquad r_t ∼ \sum_g π_g\, δ_{r_g}, \qquad
  y_t ∼ \mathcal N\Big(Hβ_t,\; \frac{τ_t}{1 + r_t} \Big(\frac{r_t}{k} K_t + I\Big)\Big)$$

with k the mean diagonal of the kernels, so that r is the ratio of the function's prior variance to the noise. One noise
and one scale for all would have to suit a curve of amplitude 0.1 and one of amplitude 5, those that the network's
features explain and those they do not. Size and constants β are integrated out, which makes predictions Student's t;
a, b and π are found by expectation and maximisation over the tasks (empirical Bayes), with one task's worth of doubt:
a few tasks that happen to be alike must not promise that all are. Where noise is known there is no
size, and r is the scale times k.

Notation: as in `spectrum`; T tasks, G ratios on a grid.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import digamma, gammaln, logsumexp

from nearkin.core.errors import DataError, require
from nearkin.transfer.hyper import Hyper, Mean
from nearkin.transfer.spectrum import Spectrum, mean_level

DECADES = tuple(number / 2 for number in range(-2, 11))  # of the ratio: from all noise to a function through all points
SHAPES = (0.75, 1e3)  # bounds of a: below, two points would leave no variance; above, all sizes are alike
PSEUDO = 1.0  # tasks of no particular ratio, and of sizes as under a = 1, that count beside those seen
GAP = 0.5772156649015329  # log a - ψ(a) at a = 1
STEPS, STILL = 500, 1e-8  # of the climb at the most; it ends where a step gains less than this share
TINY = 1e-8  # of the mean size: what a task that does not vary is taken to have

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Variety:
    """How tasks differ.

    Attributes:
        level: k, the mean diagonal of the kernels.
        shares: π, the probability of each ratio of `DECADES`.
        shape: a of the sizes; infinite where noise is known.
        rate: b of the sizes.
        log_evidence: of the tasks it was learned from.
    """

    level: float
    shares: tuple[float, ...]
    shape: float
    rate: float
    log_evidence: float

    def weights(self, task: Spectrum) -> list[float]:
        """The probability of each ratio for a task, given its targets; they sum to 1."""
        told = _log_evidences([task], self.level, self.shape, self.rate) + np.log(self.shares)
        found: list[float] = np.exp(told[0] - logsumexp(told[0])).tolist()
        return found

    def freedom(self, task: Spectrum) -> float:
        """ν, the degrees of freedom of predictions for a task: 2a plus its numbers of targets, less its constants."""
        return math.inf if math.isinf(self.shape) else 2 * self.shape + task.num_free

    def hyper(self, task: Spectrum, place: int, mean: Mean) -> Hyper:
        """Noise and scale of a task at one ratio; with the squared scale of Student's t for its size."""
        ratio = 10.0 ** DECADES[place]
        if math.isinf(self.shape):
            return Hyper(noise=0.0, scale=ratio / self.level, mean=mean)
        fit = task.terms(ratio / self.level)[0]
        noise = (2 * self.rate / (1 + ratio) + fit) / self.freedom(task)
        return Hyper(noise=noise, scale=noise * ratio / self.level, mean=mean)


def variety_of(tasks: Sequence[Spectrum], known: bool = False) -> Variety:
    """How some tasks differ, from their spectra under one mean.

    >>> import torch
    >>> from nearkin.transfer.spectrum import of_kernel
    >>> rng, eye, none = torch.Generator().manual_seed(0), torch.eye(20).double(), torch.zeros(20, 0).double()
    >>> y = [size * torch.randn(1, 20, 1, generator=rng).double() for size in (0.1, 1.0, 10.0)]
    >>> found = variety_of([of_kernel(torch.ones(20, 20).double() + 0.1 * eye, none, one) for one in y])
    >>> found.shares[0] > found.shares[-1], found.shape < 2  # noise for the most part, of very different sizes
    (True, True)
    """
    require(len(tasks) > 0, "there is no task to learn from; give one or more", DataError)
    tasks = [task for task in tasks if task.num_free > 0]
    require(
        len(tasks) > 0,
        "tasks of one point each say nothing of their size; give more points, or use a mean without constants",
        DataError,
    )
    level = mean_level(tasks)
    fits, determinants, counts = _terms(tasks, level)
    shares = np.full(len(DECADES), 1 / len(DECADES))
    fits = np.maximum(fits, counts[:, None] * TINY * (float((fits / counts[:, None]).mean()) or 1.0))
    shape, rate = (math.inf, 0.0) if known else (1.0, float(np.median(fits.min(1) / counts)))
    log_noise = np.array([task.log_noise for task in tasks])
    last = -math.inf
    for _ in range(STEPS):
        told = _marginal(fits, determinants, counts, log_noise, shape, rate) + np.log(shares)
        each = logsumexp(told, axis=1)
        belief = np.exp(told - each[:, None])
        total = float(each.sum())
        reached = total + PSEUDO * (float(np.log(shares).mean()) + (0.0 if known else _doubt(shape)))
        if reached - last <= STILL * abs(reached):
            break
        last = reached
        shares = (belief.sum(0) + PSEUDO / len(DECADES)) / (len(tasks) + PSEUDO)
        if not known:
            shape, rate = _sizes(fits, counts, belief, shape, rate)
    return Variety(level, tuple(shares.tolist()), shape, rate, total)


def _terms(tasks: Sequence[Spectrum], level: float) -> tuple[Array, Array, Array]:
    """Fits and log determinants `[T, G]` in units of the size, and numbers of targets `[T]`."""
    ratios = 10.0 ** np.array(DECADES)
    found = np.array([[task.terms(ratio / level, restricted=True) for ratio in ratios] for task in tasks])
    counts = np.array([task.num_free for task in tasks], np.float64)
    return found[..., 0] * (1 + ratios), found[..., 1] - counts[:, None] * np.log1p(ratios), counts


def _log_evidences(tasks: Sequence[Spectrum], level: float, shape: float, rate: float) -> Array:
    noise = np.array([task.log_noise for task in tasks])
    return _marginal(*_terms(tasks, level), noise, shape, rate)


def _marginal(fits: Array, determinants: Array, counts: Array, noise: Array, shape: float, rate: float) -> Array:
    """Log evidences `[T, G]` at each ratio, the size integrated out; with known noise there is none."""
    n = counts[:, None]
    if math.isinf(shape):
        ratios = 10.0 ** np.array(DECADES)
        plain = fits / (1 + ratios) + determinants + n * np.log1p(ratios)
        return np.asarray(-0.5 * (plain + n * math.log(2 * math.pi) + noise[:, None]))
    halves = gammaln(shape + n / 2) - gammaln(shape) + shape * math.log(rate)
    told = halves - (shape + n / 2) * np.log(rate + fits / 2) - 0.5 * (determinants + n * math.log(2 * math.pi))
    return np.asarray(told - 0.5 * noise[:, None])


def _doubt(shape: float) -> float:
    """The log prior of a, but for a constant: what one more task of sizes as under a = 1 would say of it."""
    return shape * (math.log(shape) - 1 - GAP) - math.lgamma(shape)


def _sizes(fits: Array, counts: Array, belief: Array, shape: float, rate: float) -> tuple[float, float]:
    r"""The likeliest law of sizes given what is believed of them: $\log a - ψ(a) = \log E[1/τ] - E[\log 1/τ]$."""
    after = shape + counts[:, None] / 2
    inverse = float((belief * after / (rate + fits / 2)).sum() / len(fits))
    logs = float((belief * (digamma(after) - np.log(rate + fits / 2))).sum() / len(fits))
    gap = (len(fits) * (math.log(inverse) - logs) + PSEUDO * GAP) / (len(fits) + PSEUDO)

    def over(a: float) -> float:
        return math.log(a) - float(digamma(a)) - gap

    low, high = SHAPES
    found = low if over(low) <= 0 else high if over(high) >= 0 else float(brentq(over, low, high, xtol=1e-10))
    return found, found / inverse
