r"""How tasks of a family differ: each has its own size τ and a fraction of noise, with shared prior distributions.

$$τ_t ∼ \mathrm{InvGamma}(a, b), \qquad r_t ∼ \sum_g π_g\, δ_{r_g}, \qquad
  y_t ∼ \mathcal N\Big(Hβ_t,\; \frac{τ_t}{1 + r_t} \Big(\frac{r_t}{k} K_t + I\Big)\Big)$$

with k the mean diagonal of the kernels, so r is the ratio of the function's prior variance to the noise. A single noise
and a single scale would not suit both a curve of amplitude 0.1 and one of amplitude 5, nor curves that the network's
features explain well and curves that they do not. Size and constants β are integrated out, which makes predictions
Student's t. Expectation maximisation over the tasks finds a, b and π (empirical Bayes), with a prior that counts as one
task: a few similar tasks must not imply that all tasks are similar. If noise is known there is no size, and r is the
scale times k.

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

DECADES = tuple(number / 2 for number in range(-2, 11))  # grid of log₁₀ r, from mostly noise to almost no noise
SHAPES = (0.75, 1e3)  # bounds of a: below them two points have infinite variance, above them all sizes are equal
PSEUDO = 1.0  # weight of the prior in tasks: equal probabilities of all ratios, and sizes as for a = 1
GAP = 0.5772156649015329  # log a - ψ(a) at a = 1
STEPS, STILL = 500, 1e-8  # largest number of steps; they end when the relative gain is smaller than this
TINY = 1e-8  # size of a task with constant targets, as a fraction of the mean size

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Variety:
    """The distributions of size and noise over tasks.

    Attributes:
        level: k, the mean diagonal of the kernels.
        shares: π, the probability of each ratio of `DECADES`.
        shape: a of the sizes; infinite if noise is known.
        rate: b of the sizes.
        log_evidence: of the tasks that it was learned from.
    """

    level: float
    shares: tuple[float, ...]
    shape: float
    rate: float
    log_evidence: float

    def weights(self, task: Spectrum) -> list[float]:
        """The probability of each ratio for a task, given its targets; they sum to 1."""
        log_noise = np.array([task.log_noise])
        evidences = _log_evidences(*_terms([task], self.level), log_noise, self.shape, self.rate)[0]
        logs = evidences + np.log(self.shares)
        weights: list[float] = np.exp(logs - logsumexp(logs)).tolist()
        return weights

    def freedom(self, task: Spectrum) -> float:
        """ν, the degrees of freedom of predictions for a task: 2a plus its number of targets minus constants."""
        return math.inf if math.isinf(self.shape) else 2 * self.shape + task.num_free

    def hyper(self, task: Spectrum, index: int, mean: Mean) -> Hyper:
        """Noise and scale of a task at one ratio of `DECADES`, with the squared scale of Student's t as its size."""
        ratio = 10.0 ** DECADES[index]
        if math.isinf(self.shape):
            return Hyper(noise=0.0, scale=ratio / self.level, mean=mean)
        fit = task.terms(ratio / self.level)[0]
        noise = (2 * self.rate / (1 + ratio) + fit) / self.freedom(task)
        return Hyper(noise=noise, scale=noise * ratio / self.level, mean=mean)


def variety_of(tasks: Sequence[Spectrum], known: bool = False) -> Variety:
    """How tasks differ, from their spectra under one mean.

    >>> import torch
    >>> from nearkin.transfer.spectrum import kernel_spectrum
    >>> rng, eye, none = torch.Generator().manual_seed(0), torch.eye(20).double(), torch.zeros(20, 0).double()
    >>> y = [size * torch.randn(1, 20, 1, generator=rng).double() for size in (0.1, 1.0, 10.0)]
    >>> variety = variety_of([kernel_spectrum(torch.ones(20, 20).double() + 0.1 * eye, none, task) for task in y])
    >>> variety.shares[0] > variety.shares[-1], variety.shape < 2  # mostly noise, of very different sizes
    (True, True)
    """
    require(len(tasks) > 0, "there is no task to learn from; give one or more", DataError)
    tasks = [task for task in tasks if task.num_free > 0]
    require(
        len(tasks) > 0,
        "got tasks of one point each, from which sizes cannot be learned; give more points, or use a mean without "
        "constants",
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
        logs = _log_evidences(fits, determinants, counts, log_noise, shape, rate) + np.log(shares)
        each = logsumexp(logs, axis=1)
        belief = np.exp(logs - each[:, None])
        total = float(each.sum())
        reached = total + PSEUDO * (float(np.log(shares).mean()) + (0.0 if known else _log_prior(shape)))
        if reached - last <= STILL * abs(reached):
            break
        last = reached
        shares = (belief.sum(0) + PSEUDO / len(DECADES)) / (len(tasks) + PSEUDO)
        if not known:
            shape, rate = _sizes(fits, counts, belief, shape, rate)
    return Variety(level, tuple(shares.tolist()), shape, rate, total)


def _terms(tasks: Sequence[Spectrum], level: float) -> tuple[Array, Array, Array]:
    """Fits and log-determinants `[T, G]` in units of the size, and numbers of targets `[T]`."""
    ratios = 10.0 ** np.array(DECADES)
    terms = np.array([[task.terms(ratio / level, restricted=True) for ratio in ratios] for task in tasks])
    counts = np.array([task.num_free for task in tasks], np.float64)
    return terms[..., 0] * (1 + ratios), terms[..., 1] - counts[:, None] * np.log1p(ratios), counts


def _log_evidences(fits: Array, determinants: Array, counts: Array, noise: Array, shape: float, rate: float) -> Array:
    """Log evidences `[T, G]` at each ratio, with the size integrated out unless noise is known."""
    n = counts[:, None]
    if math.isinf(shape):
        ratios = 10.0 ** np.array(DECADES)
        plain = fits / (1 + ratios) + determinants + n * np.log1p(ratios)
        return np.asarray(-0.5 * (plain + n * math.log(2 * math.pi) + noise[:, None]))
    halves = gammaln(shape + n / 2) - gammaln(shape) + shape * math.log(rate)
    logs = halves - (shape + n / 2) * np.log(rate + fits / 2) - 0.5 * (determinants + n * math.log(2 * math.pi))
    return np.asarray(logs - 0.5 * noise[:, None])


def _log_prior(shape: float) -> float:
    """The log prior of a up to a constant: the log likelihood of one more task with sizes as for a = 1."""
    return shape * (math.log(shape) - 1 - GAP) - math.lgamma(shape)


def _sizes(fits: Array, counts: Array, belief: Array, shape: float, rate: float) -> tuple[float, float]:
    r"""The most likely a and b given the posterior of the ratios: $\log a - ψ(a) = \log E[1/τ] - E[\log 1/τ]$."""
    after = shape + counts[:, None] / 2
    inverse = float((belief * after / (rate + fits / 2)).sum() / len(fits))
    logs = float((belief * (digamma(after) - np.log(rate + fits / 2))).sum() / len(fits))
    gap = (len(fits) * (math.log(inverse) - logs) + PSEUDO * GAP) / (len(fits) + PSEUDO)

    def excess(a: float) -> float:
        return math.log(a) - float(digamma(a)) - gap

    low, high = SHAPES
    root = low if excess(low) <= 0 else high if excess(high) >= 0 else float(brentq(excess, low, high, xtol=1e-10))
    return root, root / inverse
