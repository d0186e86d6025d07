r"""The posterior in weight space: one Cholesky factor of $B = I + Φ^⊤ V^{-1} Φ$ `[D, D]`.

With features Φ `[R, D]` that carry the prior's scales, the weights have the posterior

$$θ' ∼ \mathcal N(B^{-1} Φ^⊤ V^{-1} (y - Hβ),\; B^{-1}),$$

from the likelihood $y ∼ \mathcal N(Hβ + Φ θ', V)$ over the n observations. Points enter by sums over them alone, so
that their number costs no memory, and more of them are added to the sums.

Notation: as in `targets`; H `[R, Q]` the constants in every row, V `[F, R]` the noise, Z = (H, y) `[F, R, Q + T]`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from nearkin.core.errors import DataError, require
from nearkin.core.events import Progress, Work
from nearkin.transfer.cholesky import below, both, cholesky, log_determinant
from nearkin.transfer.kernel import Prior, blocks


@dataclass(frozen=True, eq=False)
class Sums:
    r"""What points add up to.

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

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(**{name: value + getattr(other, name) for name, value in vars(self).items()})


@dataclass(frozen=True, eq=False)
class WeightSpace:
    """A solved Gaussian process, known by its weights.

    Attributes:
        prior: gives the features.
        sums: over the points.
        factor: Cholesky factors of B `[F, D, D]`.
        num_constants: Q.
        jitter: that the diagonal needed, which is 1 or more: none.
    """

    prior: Prior
    sums: Sums
    factor: Tensor
    num_constants: int
    jitter: float = 0.0

    @cached_property
    def _solved(self) -> tuple[Tensor, Tensor]:
        r"""β `[F, Q, T]`, and $(y - Hβ)^⊤ A^{-1} (y - Hβ)$ `[F, T]`, where $A = Φ Φ^⊤ + V$."""
        seen = below(self.factor, self.sums.cross)
        return fitted_constants(self.sums.squares - seen.mT @ seen, self.num_constants)

    @property
    def constants(self) -> Tensor:
        """β `[F, Q, T]`."""
        return self._solved[0]

    @cached_property
    def weights(self) -> Tensor:
        """The mean of θ' `[F, D, T]`, in units of the prior's standard deviations."""
        size = self.num_constants
        return both(self.factor, self.sums.cross[..., size:] - self.sums.cross[..., :size] @ self.constants)

    @cached_property
    def log_evidence(self) -> float:
        r"""$\log p(y)$, with the constants at their best."""
        rows, columns = int(self.sums.rows), self.sums.cross.shape[2] - self.num_constants
        determinant = columns * (log_determinant(self.factor) + self.sums.log_noise).sum()
        numbers = len(self.factor) * rows * columns
        return -0.5 * float(self._solved[1].sum() + determinant + numbers * math.log(2 * math.pi))

    def means(self, x: Tensor) -> Tensor:
        """Means `[F, S, T]` alone, constants left out."""
        return torch.cat([self.prior.features(part) @ self.weights for part in blocks(x, self.factor.shape[1])], 1)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Means `[F, S, T]`, constants left out, and variances `[F, S]`."""
        parts = []
        for part in blocks(x, self.factor.shape[0] * self.factor.shape[1]):
            features = self.prior.features(part)
            seen = below(self.factor, features.t().expand(len(self.factor), -1, -1))
            parts.append((features @ self.weights, seen.square().sum(1)))
        return torch.cat([mean for mean, _ in parts], 1), torch.cat([variance for _, variance in parts], 1)

    def covariance(self, x: Tensor) -> Tensor:
        """`[F, S, S]`."""
        seen = below(self.factor, self.prior.features(x).t().expand(len(self.factor), -1, -1))
        return seen.mT @ seen

    def extended(self, x: Tensor, noise: Tensor, basis: Tensor, targets: Tensor) -> Work["WeightSpace"]:
        """The same with further points: their sums are added."""
        sums = self.sums + (yield from summed(self.prior, x, noise, basis, targets))
        return (yield from solved(self.prior, sums, self.num_constants))

    def tensors(self) -> dict[str, Tensor]:
        """What `restored` needs."""
        return {**vars(self.sums), "factor": self.factor, "num_constants": torch.tensor(self.num_constants)}

    @classmethod
    def restored(cls, prior: Prior, tensors: Mapping[str, Tensor]) -> "WeightSpace":
        """The inverse of `tensors`."""
        sums = Sums(**{name: tensors[name] for name in Sums.__dataclass_fields__})
        return cls(prior, sums, tensors["factor"], int(tensors["num_constants"]))


def fitted_constants(squares: Tensor, size: int) -> tuple[Tensor, Tensor]:
    r"""β `[F, Q, T]` of least squares, and the squares that are left `[F, T]`, from $Z^⊤ A^{-1} Z$ with Z = (H, y).

    >>> fitted_constants(torch.tensor([[[2.0, 4.0], [4.0, 9.0]]]), 1)
    (tensor([[[2.]]]), tensor([[1.]]))
    """
    hh, hy, yy = squares[:, :size, :size], squares[:, :size, size:], squares[:, size:, size:]
    constants = torch.linalg.solve(hh, hy)
    return constants, (yy - hy.mT @ constants).diagonal(dim1=1, dim2=2).clamp_min(0)


def summed(prior: Prior, x: Tensor, noise: Tensor, basis: Tensor, targets: Tensor) -> Work[Sums]:
    """The sums over some points, block by block."""
    require(bool((noise > 0).all()), "weight space divides by the noise; give one above 0", DataError)
    each = len(basis) // len(x)  # rows of a sample
    width = each * prior.num_features(prior.linearized.num_outputs(x))
    parts, done = [], 0
    for part in blocks(x, width):
        rows = slice(done * each, (done + len(part)) * each)
        parts.append(_summed(prior.features(part), noise[:, rows], basis[rows], targets[:, rows]))
        done += len(part)
        yield Progress("points", done, len(x))
    total = parts[0]
    for one in parts[1:]:
        total = total + one
    return total


def _summed(features: Tensor, noise: Tensor, basis: Tensor, targets: Tensor) -> Sums:
    values = torch.cat([basis.expand(len(noise), -1, -1), targets], 2)
    inverse = noise.reciprocal()[:, :, None]
    return Sums(
        features.t() @ (inverse * features),
        features.t() @ (inverse * values),
        values.mT @ (inverse * values),
        noise.log().sum(1),
        torch.tensor([noise.shape[1]]),
    )


def solved(prior: Prior, sums: Sums, num_constants: int) -> Work[WeightSpace]:
    """The posterior of some sums."""
    precision = sums.information + torch.eye(sums.information.shape[-1]).to(sums.information)
    factor, _ = yield from cholesky.work(precision, "the precision of the weights")
    return WeightSpace(prior, sums, factor, num_constants)


def weight_space(prior: Prior, x: Tensor, noise: Tensor, basis: Tensor, targets: Tensor) -> Work[WeightSpace]:
    """The posterior given points with noise `[F, R]` and targets `[F, R, T]`."""
    sums = yield from summed(prior, x, noise, basis, targets)
    return (yield from solved(prior, sums, basis.shape[1]))
