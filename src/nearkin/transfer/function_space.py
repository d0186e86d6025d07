r"""The posterior in function space: one Cholesky factor of $A = K + V$ `[R, R]`.

$$f_* = K_* A^{-1} (y - Hβ), \qquad \mathrm{var} = K_{**} - K_* A^{-1} K_*^⊤, \qquad
β = (H^⊤ A^{-1} H)^{-1} H^⊤ A^{-1} y$$

Notation: as in `targets`; H `[R, Q]` the constants in every row, V `[F, R]` the variances of the noise.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from nearkin.core.errors import DataError, require
from nearkin.core.events import Work
from nearkin.transfer.cholesky import below, cholesky, log_determinant
from nearkin.transfer.kernel import Prior, blocks


@dataclass(frozen=True, eq=False)
class FunctionSpace:
    """A solved Gaussian process, known by its training rows.

    Attributes:
        prior: gives the kernel.
        x: training inputs `[N, *input_shape]`.
        factor: Cholesky factors of A `[F, R, R]`.
        basis: H `[R, Q]`.
        targets: `[F, R, T]`.
        jitter: that the diagonal needed.
    """

    prior: Prior
    x: Tensor
    factor: Tensor
    basis: Tensor
    targets: Tensor
    jitter: float = 0.0

    @cached_property
    def _solved(self) -> tuple[Tensor, Tensor]:
        r"""β `[F, Q, T]`, and the residual whitened, $L^{-1}(y - Hβ)$ `[F, R, T]`."""
        size = self.basis.shape[1]
        both = torch.cat([self.basis.expand(len(self.factor), -1, -1), self.targets], 2)
        h, y = below(self.factor, both).split([size, self.targets.shape[2]], 2)
        constants = torch.linalg.solve(h.mT @ h, h.mT @ y)
        return constants, y - h @ constants

    @property
    def constants(self) -> Tensor:
        """β `[F, Q, T]`."""
        return self._solved[0]

    @cached_property
    def weights(self) -> Tensor:
        r"""$α = A^{-1} (y - Hβ)$ `[F, R, T]`, by which the mean weighs the kernel's rows."""
        found: Tensor = torch.linalg.solve_triangular(self.factor.mT, self._solved[1], upper=True)
        return found

    @cached_property
    def log_evidence(self) -> float:
        r"""$\log p(y)$, with the constants at their best."""
        columns = self.targets.shape[2]
        fit = self._solved[1].square().sum() + columns * log_determinant(self.factor).sum()
        return -0.5 * float(fit + self.targets.numel() * math.log(2 * math.pi))

    def means(self, x: Tensor) -> Tensor:
        """Means `[F, S, T]` alone, constants left out."""
        return torch.cat([self.prior.kernel(part, self.x) @ self.weights for part in blocks(x, len(self.basis))], 1)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Means `[F, S, T]`, constants left out, and variances `[F, S]`."""
        parts = [self._moments(part) for part in blocks(x, self.factor.shape[0] * self.factor.shape[1])]
        return torch.cat([mean for mean, _ in parts], 1), torch.cat([variance for _, variance in parts], 1)

    def _moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        cross = self.prior.kernel(x, self.x)
        seen = below(self.factor, cross.t().expand(len(self.factor), -1, -1))
        return cross @ self.weights, (self.prior.diagonal(x) - seen.square().sum(1)).clamp_min(0)

    def covariance(self, x: Tensor) -> Tensor:
        """`[F, S, S]`."""
        seen = below(self.factor, self.prior.kernel(self.x, x).expand(len(self.factor), -1, -1))
        return self.prior.kernel(x) - seen.mT @ seen

    def leave_one_out(self) -> tuple[Tensor, Tensor]:
        r"""Means `[F, R, T]` of every sample's rows from all other samples, and variances of its observations `[F, R]`.

        With $G = A^{-1}$ and $P = G - G H (H^⊤ G H)^{-1} H^⊤ G$, the rows i of a sample have the mean
        $y_i - P_{ii}^{-1} α_i$ and the covariance $G_{ii}^{-1}$, as if the process were solved without them.
        """
        inverse = torch.cholesky_inverse(self.factor)
        seen = inverse @ self.basis
        projected = inverse - seen @ torch.linalg.solve(self.basis.t() @ seen, seen.mT)
        count, each = len(self.x), self.factor.shape[1] // len(self.x)
        require(count * each > self.basis.shape[1], "one point leaves none to predict it from; give more", DataError)
        own, alone = (_corners(matrix, count, each) for matrix in (projected, inverse))
        errors = torch.linalg.solve(own, self.weights.unflatten(1, (count, each))).flatten(1, 2)
        return self.targets - errors, torch.linalg.inv(alone).diagonal(dim1=2, dim2=3).flatten(1)

    def extended(self, x: Tensor, noise: Tensor, basis: Tensor, targets: Tensor) -> Work["FunctionSpace"]:
        """The same with further points: the factor grows by a block."""
        corner = below(self.factor, self.prior.kernel(self.x, x).expand(len(self.factor), -1, -1))
        rest = (yield from self.prior.kernel.work(x)) + torch.diag_embed(noise) - corner.mT @ corner
        last, jitter = yield from cholesky.work(rest, "the kernel of the new points, given the old ones,")
        above = torch.cat([self.factor, torch.zeros_like(corner)], 2)
        factor = torch.cat([above, torch.cat([corner.mT, last], 2)], 1)
        return replace(
            self,
            x=torch.cat([self.x, x]),
            factor=factor,
            basis=torch.cat([self.basis, basis]),
            targets=torch.cat([self.targets, targets], 1),
            jitter=max(self.jitter, jitter),
        )

    def tensors(self) -> dict[str, Tensor]:
        """What `restored` needs."""
        own = {"x": self.x, "factor": self.factor, "basis": self.basis, "targets": self.targets}
        return {**own, "jitter": torch.tensor(self.jitter).double()}

    @classmethod
    def restored(cls, prior: Prior, tensors: Mapping[str, Tensor]) -> "FunctionSpace":
        """The inverse of `tensors`."""
        own = {name: tensors[name] for name in ("x", "factor", "basis", "targets")}
        return cls(prior, **own, jitter=float(tensors["jitter"]))


def _corners(matrix: Tensor, count: int, each: int) -> Tensor:
    """The diagonal blocks `[F, count, each, each]` of square matrices."""
    parts = matrix.reshape(len(matrix), count, each, count, each)
    return parts.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)


def function_space(prior: Prior, x: Tensor, noise: Tensor, basis: Tensor, targets: Tensor) -> Work[FunctionSpace]:
    """The posterior given points with noise `[F, R]` and targets `[F, R, T]`."""
    gram = yield from prior.kernel.work(x)
    if len(noise) == 1:
        gram.diagonal().add_(noise[0])  # in place: of many rows each copy counts
    whole = gram[None] if len(noise) == 1 else gram + torch.diag_embed(noise)
    factor, jitter = yield from cholesky.work(whole)
    return FunctionSpace(prior, x, factor, basis, targets, jitter)
