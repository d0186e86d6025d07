r"""The posterior in function space: one Cholesky factor of $A = K + V$ `[R, R]`.

$$f_* = K_* A^{-1} (y - Hβ), \qquad \mathrm{var} = K_{**} - K_* A^{-1} K_*^⊤, \qquad
β = (H^⊤ A^{-1} H)^{-1} H^⊤ A^{-1} y$$

Notation: as in `targets`; H `[R, Q]` the constants in every row, V `[F, R]` the variances of the noise.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from nearkin.core.errors import DataError, require
from nearkin.core.events import Work
from nearkin.transfer.cholesky import cholesky, log_determinant, solve_lower, solve_upper
from nearkin.transfer.evidence import whitened_residual
from nearkin.transfer.kernel import Prior, SolvedProcess, blocks, moments_by_block
from nearkin.transfer.targets import PointRows


@dataclass(frozen=True, eq=False)
class FunctionSpace(SolvedProcess):
    """A solved Gaussian process, represented by its training rows.

    Attributes:
        prior: gives the kernel.
        x: training inputs `[N, *input_shape]`.
        factor: Cholesky factors of A `[F, R, R]`.
        basis: H `[R, Q]`.
        targets: `[F, R, T]`.
        jitter: added to the diagonal.
    """

    STORED = ("x", "factor", "basis", "targets", "jitter")
    x: Tensor
    factor: Tensor
    basis: Tensor
    targets: Tensor
    jitter: float = 0.0

    @cached_property
    def _solution(self) -> tuple[Tensor, Tensor]:
        return whitened_residual(self.factor, self.basis, self.targets)

    @property
    def constants(self) -> Tensor:
        """β `[F, Q, T]`."""
        return self._solution[0]

    @cached_property
    def weights(self) -> Tensor:
        r"""$α = A^{-1} (y - Hβ)$ `[F, R, T]`, the weights of the kernel's rows in the mean."""
        return solve_upper(self.factor, self._solution[1])

    @cached_property
    def log_evidence(self) -> float:
        r"""$\log p(y)$ at the fitted constants."""
        columns = self.targets.shape[2]
        fit = self._solution[1].square().sum() + columns * log_determinant(self.factor).sum()
        return -0.5 * float(fit + self.targets.numel() * math.log(2 * math.pi))

    def means(self, x: Tensor) -> Tensor:
        """Means `[F, S, T]` without the constants."""
        return torch.cat([self.prior.kernel(block, self.x) @ self.weights for block in blocks(x, len(self.basis))], 1)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Means `[F, S, T]` without the constants, and variances `[F, S]`."""

        def moments(block: Tensor) -> tuple[Tensor, Tensor]:
            cross = self.prior.kernel(block, self.x)
            explained = solve_lower(self.factor, cross.t().expand(len(self.factor), -1, -1)).square().sum(1)
            return cross @ self.weights, (self.prior.diagonal(block) - explained).clamp_min(0)

        return moments_by_block(moments, x, self.factor.shape[0] * self.factor.shape[1])

    def covariance(self, x: Tensor) -> Tensor:
        """Posterior covariances `[F, S, S]`."""
        cross = solve_lower(self.factor, self.prior.kernel(self.x, x).expand(len(self.factor), -1, -1))
        return self.prior.kernel(x) - cross.mT @ cross

    def leave_one_out(self) -> tuple[Tensor, Tensor]:
        r"""Means `[F, R, T]` of every sample's rows from all other samples, and variances of its observations `[F, R]`.

        With $G = A^{-1}$ and $P = G - G H (H^⊤ G H)^{-1} H^⊤ G$, the rows i of a sample have the mean
        $y_i - P_{ii}^{-1} α_i$ and the covariance $G_{ii}^{-1}$, as if the process were solved without them.
        """
        inverse = torch.cholesky_inverse(self.factor)
        cross = inverse @ self.basis
        projected = inverse - cross @ torch.linalg.solve(self.basis.t() @ cross, cross.mT)
        count, each = len(self.x), self.factor.shape[1] // len(self.x)
        require(
            count * each > self.basis.shape[1],
            f"got {count} point, leave-one-out needs two or more; give more points",
            DataError,
        )

        def sample_blocks(matrix: Tensor) -> Tensor:
            """The diagonal blocks `[F, count, each, each]`."""
            tiles = matrix.reshape(len(matrix), count, each, count, each)
            return tiles.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)

        weights = self.weights.unflatten(1, (count, each))
        errors = torch.linalg.solve(sample_blocks(projected), weights).flatten(1, 2)
        variances = torch.linalg.inv(sample_blocks(inverse)).diagonal(dim1=2, dim2=3)
        return self.targets - errors, variances.flatten(1)

    def extended(self, points: PointRows) -> Work["FunctionSpace"]:
        """The same process with further points: the factor grows by a block."""
        corner = solve_lower(self.factor, self.prior.kernel(self.x, points.x).expand(len(self.factor), -1, -1))
        rest = (yield from self.prior.kernel.work(points.x)) + torch.diag_embed(points.noise) - corner.mT @ corner
        last, jitter = yield from cholesky.work(rest, "the kernel of the new points, given the old ones,")
        top = torch.cat([self.factor, torch.zeros_like(corner)], 2)
        return replace(
            self,
            x=torch.cat([self.x, points.x]),
            factor=torch.cat([top, torch.cat([corner.mT, last], 2)], 1),
            basis=torch.cat([self.basis, points.basis]),
            targets=torch.cat([self.targets, points.targets], 1),
            jitter=max(self.jitter, jitter),
        )


def function_space(prior: Prior, points: PointRows) -> Work[FunctionSpace]:
    """The posterior of points in function space."""
    kernel, noise = (yield from prior.kernel.work(points.x)), points.noise
    if len(noise) == 1:
        kernel.diagonal().add_(noise[0])  # in place: copies of a large kernel take much memory
    factor, jitter = yield from cholesky.work(kernel[None] if len(noise) == 1 else kernel + torch.diag_embed(noise))
    return FunctionSpace(prior, points.x, factor, points.basis, points.targets, jitter)
