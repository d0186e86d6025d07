r"""The posterior in weight space: one Cholesky factor of $B = I + Φ^⊤ V^{-1} Φ$ `[D, D]`.

With features Φ `[R, D]` that include the prior's scales, the weights have the posterior

$$θ' ∼ \mathcal N(B^{-1} Φ^⊤ V^{-1} (y - Hβ),\; B^{-1}),$$

from the likelihood $y ∼ \mathcal N(Hβ + Φ θ', V)$ over the n observations. Only sums over the points are needed. Memory
does not grow with the number of points, and further points are added to the sums.

Notation: as in `targets`; H `[R, Q]` the constants in every row, V `[F, R]` the noise, Z = (H, y) `[F, R, Q + T]`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add

import torch
from torch import Tensor

from nearkin.core.events import Progress, Work
from nearkin.transfer.cholesky import cholesky, log_determinant, solve_cholesky, solve_lower
from nearkin.transfer.evidence import fitted_constants
from nearkin.transfer.kernel import Prior, SolvedProcess, blocks, moments_by_block
from nearkin.transfer.targets import PointRows


@dataclass(frozen=True, eq=False)
class PointSums:
    r"""Sums over points that determine the posterior of the weights.

    Attributes:
        information: $Φ^⊤ V^{-1} Φ$ `[F, D, D]`.
        cross: $Φ^⊤ V^{-1} Z$ `[F, D, Q + T]`.
        squares: $Z^⊤ V^{-1} Z$ `[F, Q + T, Q + T]`.
        log_noise: $\sum \log V$ `[F]`.
        rows: R `[1]`.
    """

    information: Tensor
    cross: Tensor
    squares: Tensor
    log_noise: Tensor
    rows: Tensor

    def __add__(self, other: "PointSums") -> "PointSums":
        return PointSums(**{name: value + getattr(other, name) for name, value in vars(self).items()})


@dataclass(frozen=True, eq=False)
class WeightSpace(SolvedProcess):
    """A solved Gaussian process, represented by its weights.

    Attributes:
        prior: gives the features.
        sums: over the points.
        factor: Cholesky factors of B `[F, D, D]`.
        num_constants: Q.
        jitter: always 0, because the diagonal of B is 1 or more.
    """

    sums: PointSums
    factor: Tensor
    num_constants: int
    jitter: float = 0.0

    @cached_property
    def _solution(self) -> tuple[Tensor, Tensor]:
        r"""β `[F, Q, T]`, and $(y - Hβ)^⊤ A^{-1} (y - Hβ)$ `[F, T]`, where $A = Φ Φ^⊤ + V$."""
        cross = solve_lower(self.factor, self.sums.cross)
        return fitted_constants(self.sums.squares - cross.mT @ cross, self.num_constants)

    @property
    def constants(self) -> Tensor:
        """β `[F, Q, T]`."""
        return self._solution[0]

    @cached_property
    def weights(self) -> Tensor:
        """The mean of θ' `[F, D, T]`, in units of the prior's standard deviations."""
        size = self.num_constants
        return solve_cholesky(self.factor, self.sums.cross[..., size:] - self.sums.cross[..., :size] @ self.constants)

    @cached_property
    def log_evidence(self) -> float:
        r"""$\log p(y)$ at the fitted constants."""
        rows, columns = int(self.sums.rows), self.sums.cross.shape[2] - self.num_constants
        determinant = columns * (log_determinant(self.factor) + self.sums.log_noise).sum()
        numbers = len(self.factor) * rows * columns
        return -0.5 * float(self._solution[1].sum() + determinant + numbers * math.log(2 * math.pi))

    def means(self, x: Tensor) -> Tensor:
        """Means `[F, S, T]` without the constants."""
        return torch.cat([self.prior.features(block) @ self.weights for block in blocks(x, self.factor.shape[1])], 1)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Means `[F, S, T]` without the constants, and variances `[F, S]`."""

        def moments(block: Tensor) -> tuple[Tensor, Tensor]:
            features = self.prior.features(block)
            roots = solve_lower(self.factor, features.t().expand(len(self.factor), -1, -1))
            return features @ self.weights, roots.square().sum(1)

        return moments_by_block(moments, x, self.factor.shape[0] * self.factor.shape[1])

    def covariance(self, x: Tensor) -> Tensor:
        """Posterior covariances `[F, S, S]`."""
        roots = solve_lower(self.factor, self.prior.features(x).t().expand(len(self.factor), -1, -1))
        return roots.mT @ roots

    def extended(self, points: PointRows) -> Work["WeightSpace"]:
        """The same process with further points, whose sums are added."""
        sums = self.sums + (yield from sum_points(self.prior, points))
        return (yield from solve_sums(self.prior, sums, self.num_constants))

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that are stored, by the names of their fields."""
        return {**vars(self.sums), "factor": self.factor, "num_constants": torch.tensor(self.num_constants)}

    @classmethod
    def restored(cls, prior: Prior, tensors: Mapping[str, Tensor]) -> "WeightSpace":
        """The inverse of `tensors`."""
        sums = PointSums(**{name: tensors[name] for name in PointSums.__dataclass_fields__})
        return cls(prior, sums, tensors["factor"], int(tensors["num_constants"]))


def sum_points(prior: Prior, points: PointRows) -> Work[PointSums]:
    """The sums over points, block by block."""
    points.require_noise("weight space")
    num_points, values = len(points.x), points.values
    each = len(points.basis) // num_points  # rows of a sample
    sums, done = [], 0
    for block in blocks(points.x, each * prior.num_features(prior.linearized.num_outputs(points.x))):
        rows = slice(done * each, (done + len(block)) * each)
        features, noise, z = prior.features(block), points.noise[:, rows], values[:, rows]
        inverse = noise.reciprocal()[:, :, None]
        sums.append(
            PointSums(
                features.t() @ (inverse * features),
                features.t() @ (inverse * z),
                z.mT @ (inverse * z),
                noise.log().sum(1),
                torch.tensor([noise.shape[1]]),
            )
        )
        done += len(block)
        yield Progress("points", done, num_points)
    return reduce(add, sums)


def solve_sums(prior: Prior, sums: PointSums, num_constants: int) -> Work[WeightSpace]:
    """The posterior given the sums over points."""
    precision = sums.information + torch.eye(sums.information.shape[-1]).to(sums.information)
    factor, _ = yield from cholesky.work(precision, "the precision of the weights")
    return WeightSpace(prior, sums, factor, num_constants)


def weight_space(prior: Prior, points: PointRows) -> Work[WeightSpace]:
    """The posterior of points in weight space."""
    sums = yield from sum_points(prior, points)
    return (yield from solve_sums(prior, sums, points.basis.shape[1]))
