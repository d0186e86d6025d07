r"""Blends of posteriors with several hyper-parameters: mixtures of Student's t, or of Gaussians if noise is known.

Notation: M new inputs, K targets, B components with weights w; ν degrees of freedom.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from scipy.special import stdtr
from torch import Tensor

from nearkin.core.errors import require
from nearkin.transfer.posterior import Posterior
from nearkin.transfer.targets import checked_targets

HALVINGS = 40  # bisection steps for a quantile


@dataclass(frozen=True, eq=False)
class Mixture:
    """Mixtures of Student's t, or of Gaussians, for `[M, K]` numbers.

    Attributes:
        centres: of the components `[B, M, K]`.
        squares: squared scales of the components `[B, M, K]`.
        weights: w `[B]`, which sum to 1.
        freedom: ν; infinite for Gaussian components.

    >>> one = torch.ones(1, 1, 1).double()
    >>> low, high = Mixture(0 * one, one, torch.ones(1).double(), math.inf).interval(0.9)
    >>> round(float(low), 3), round(float(high), 3)
    (-1.645, 1.645)
    """

    centres: Tensor
    squares: Tensor
    weights: Tensor
    freedom: float

    @cached_property
    def mean(self) -> Tensor:
        """Means `[M, K]`."""
        return torch.einsum("b,bmk->mk", self.weights, self.centres)

    @property
    def variance(self) -> Tensor:
        """Variances `[M, K]`; infinite if there are two degrees of freedom or fewer."""
        wide = 1 / (1 - 2 / self.freedom) if self.freedom > 2 else math.inf
        apart = (self.centres - self.mean).square()
        return torch.einsum("b,bmk->mk", self.weights, wide * self.squares + apart)

    def log_prob(self, y: Tensor) -> Tensor:
        """Log densities `[M, K]` at values `[M]` or `[M, K]`."""
        require(bool((self.squares > 0).all()), "an observation has variance 0 and no density; give a noise above 0")
        squares = (checked_targets(y, len(self.mean)) - self.centres).square() / self.squares
        if math.isinf(self.freedom):
            log_densities = -0.5 * (squares + (2 * math.pi * self.squares).log())
        else:
            half, norm = (self.freedom + 1) / 2, math.log(self.freedom * math.pi)
            log_densities = math.lgamma(half) - math.lgamma(self.freedom / 2) - 0.5 * (norm + self.squares.log())
            log_densities = log_densities - half * (squares / self.freedom).log1p()
        return torch.logsumexp(self.weights.log()[:, None, None] + log_densities, 0)

    def cdf(self, y: Tensor) -> Tensor:
        """The probability `[M, K]` of a value below `y`, `[M]` or `[M, K]`."""
        scaled: Tensor = (checked_targets(y, len(self.mean)) - self.centres) / self.squares.sqrt()
        gaussian = math.isinf(self.freedom)
        each = torch.special.ndtr(scaled) if gaussian else torch.from_numpy(stdtr(self.freedom, scaled.numpy()))
        return torch.einsum("b,bmk->mk", self.weights, each)

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Bounds `[M, K]` between which a value lies with this probability, with equal tails outside."""
        require(0 < level < 1, f"level is a probability between 0 and 1, got {level}")
        return self._quantile((1 - level) / 2), self._quantile((1 + level) / 2)

    def _quantile(self, level: float) -> Tensor:
        far: float = (10 / min(level, 1 - level)) ** max(1 / self.freedom, 0.5)  # beyond any quantile of t
        reach = far * self.squares.sqrt()
        low, high = (self.centres - reach).amin(0), (self.centres + reach).amax(0)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            short = self.cdf(middle) < level
            low, high = torch.where(short, middle, low), torch.where(short, high, middle)
        return (low + high) / 2


@dataclass(frozen=True, eq=False)
class Blend:
    """The predictive distribution of a family for a task; returned by `Family.blended`.

    Attributes:
        posteriors: one for each choice of hyper-parameters.
        weights: w `[B]`, which sum to 1.
        freedom: ν; infinite for Gaussian components.
    """

    posteriors: tuple[Posterior, ...]
    weights: Tensor
    freedom: float

    def at(self, x: Tensor, observed: bool = True, noise: Tensor | None = None) -> Mixture:
        """The mixtures at new inputs; arguments as in `Posterior.predict`."""
        moments = [posterior.predict(x, observed, noise) for posterior in self.posteriors]
        centres, squares = (torch.stack(values) for values in zip(*moments, strict=True))
        return Mixture(centres, squares, self.weights, self.freedom)

    def predict(self, x: Tensor, observed: bool = False, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Means and variances `[M, K]`."""
        mixture = self.at(x, observed, noise)
        return mixture.mean, mixture.variance

    def log_prob(self, x: Tensor, y: Tensor, noise: Tensor | None = None) -> Tensor:
        """Log densities `[M, K]` of single observations `[M]` or `[M, K]`."""
        return self.at(x, True, noise).log_prob(y)

    def interval(self, x: Tensor, level: float = 0.9, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Bounds `[M, K]` between which an observation lies with this probability, with equal tails outside."""
        return self.at(x, True, noise).interval(level)
