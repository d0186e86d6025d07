r"""The posterior of many points in function space, without a factor of their kernel.

Systems with $A = K + V$ are solved by conjugate gradients (`conjugate`), preconditioned by a low-rank factor of K with
random pivots (`kernel_products`). The log-determinant of the evidence is stochastic Lanczos quadrature (Gardner et al.
2018). Variances come from A on the span of some random points and of Lanczos vectors (Pleiss et al. 2018). They are
exact if the span includes all points, and otherwise never too small. Both are
computed on first use.

Notation: as in `targets`; H `[R, Q]` the constants in every row, V `[F, R]` the noise, L Lanczos vectors.
"""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property

import torch
from linear_operator.utils.lanczos import lanczos_tridiag
from torch import Generator, Tensor

from nearkin.core.errors import DataError, require
from nearkin.core.events import Note, Work
from nearkin.core.rng import Streams
from nearkin.transfer.cholesky import cholesky, log_determinant, solve_cholesky, solve_lower
from nearkin.transfer.iterative.conjugate import ENOUGH, estimate_log_determinant, solve_systems
from nearkin.transfer.iterative.kernel_products import Covariance, covariance, sample_rows
from nearkin.transfer.iterative.network_passes import pull_features, push_features
from nearkin.transfer.kernel import Prior, SolvedProcess, blocks
from nearkin.transfer.targets import PointRows

PIVOTS = 1024  # rank of the preconditioner
LANCZOS = 512  # Lanczos vectors of the variances if the kernel is held in memory
FREE_LANCZOS = 64  # the same if every vector needs passes of the network
SUBSET = 3000  # rows of the random points in the variances
STEP_BYTES = 2**28  # largest weight steps from which means are computed


@dataclass(frozen=True, eq=False)
class Projection:
    r"""A lower bound of the inverse of A: $B (B^⊤ A B)^{-1} B^⊤ ⪯ A^{-1}$ for the columns B of some rows and vectors.

    Attributes:
        samples: indices of the points whose rows are used.
        rows: indices of those rows `[S]`.
        vectors: Lanczos vectors `[R, L]`.
        factor: Cholesky factor of $B^⊤ A B$ `[S + L, S + L]`.
    """

    samples: Tensor
    rows: Tensor
    vectors: Tensor
    factor: Tensor

    def whiten(self, by_rows: Tensor, by_vectors: Tensor) -> Tensor:
        """Whitened covariances `[S + L, M]` of new rows; their squares are subtracted from the prior variances.

        Args:
            by_rows: covariances with the rows `[M, S]`.
            by_vectors: covariances with all training rows, times the vectors `[M, L]`.
        """
        return solve_lower(self.factor, torch.cat([by_rows, by_vectors], 1).t())


class NoisyKernel:
    """The system A = K + V of one covariance, preconditioned by $L L^⊤ + V$."""

    def __init__(self, source: Covariance, noise: Tensor, seed: int) -> None:
        self.source, self.noise, self.seed = source, noise, seed
        self.size = len(noise)

    @cached_property
    def _low_rank(self) -> tuple[Tensor, Tensor, float]:
        r"""$V^{-1/2} L$ `[R, W]`, the Cholesky factor of $I + L^⊤ V^{-1} L$, and the remainder."""
        low_rank = self.source.low_rank(PIVOTS, self.noise, ENOUGH)
        scaled = low_rank.factor.div_(self.noise.sqrt()[:, None])
        inner, _ = cholesky(scaled.t() @ scaled + torch.eye(scaled.shape[1]).to(scaled), "the preconditioner")
        return scaled, inner, float((low_rank.remainder / self.noise).sum())

    @property
    def rank(self) -> int:
        """Rank of the preconditioner."""
        return self._low_rank[0].shape[1]

    @property
    def log_determinant(self) -> float:
        """The log-determinant of the preconditioner."""
        return float(log_determinant(self._low_rank[1]) + self.noise.log().sum())

    @property
    def remainder(self) -> float:
        """The trace of K minus its low-rank approximation, in units of the noise."""
        return self._low_rank[2]

    def product(self, columns: Tensor, quick: bool = False) -> Tensor:
        """A times `[R, W]`."""
        return self.source.times(columns, quick) + self.noise[:, None] * columns

    def precondition(self, columns: Tensor) -> Tensor:
        """The inverse of the preconditioner times `[R, W]`."""
        scaled, inner, _ = self._low_rank
        roots = self.noise.sqrt()[:, None]
        columns = columns / roots
        return (columns - scaled @ solve_cholesky(inner, scaled.t() @ columns)) / roots

    precondition_solve = precondition

    def sample(self, count: int, rng: Generator) -> Tensor:
        """Random columns with the preconditioner's covariance `[R, count]`."""
        scaled = self._low_rank[0]
        inside, outside = (
            torch.randn(size, count, generator=rng, dtype=torch.float64).to(scaled)
            for size in (scaled.shape[1], len(scaled))
        )
        return self.noise.sqrt()[:, None] * (scaled @ inside + outside)

    def projection(self, start: Tensor, samples: Tensor, limit: int, vectors: int) -> Projection:
        """A on the span of some rows and of Lanczos vectors.

        Args:
            start: first Lanczos vector `[R, 1]`.
            samples: indices of points in random order.
            limit: number of rows of points to use.
            vectors: L.
        """
        chosen = samples[: max(1, limit // self.source.each)].sort().values
        rows = sample_rows(chosen, self.source.each)
        kernel = self.source.block(chosen) + self.noise[rows].diag()
        span, images = torch.zeros_like(start)[:, :0], torch.zeros_like(start)[:, :0]
        if len(rows) < len(start) and vectors > 0:
            span, images = self._lanczos(start, min(vectors, len(start)))
        top = torch.cat([kernel, images[rows]], 1)
        bottom = torch.cat([images[rows].t(), span.t() @ images], 1)
        factor, _ = cholesky(torch.cat([top, bottom]), "the kernel of the variances")
        return Projection(chosen, rows, span, factor)

    def _lanczos(self, start: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Orthonormal vectors `[R, L]`, and A times them."""
        noise = torch.randn(start.shape, generator=Streams(self.seed).at("start"), dtype=start.dtype)
        start = start + (0.01 * start.square().mean().sqrt() + 1e-12) * noise  # so that no direction is missing
        shape, unit = torch.Size([self.size] * 2), float(self.noise.mean())  # lanczos_tridiag has absolute tolerances

        def product(columns: Tensor) -> Tensor:
            return self.product(columns) / unit

        vectors, tridiagonal = lanczos_tridiag(product, count, start.dtype, start.device, shape, init_vecs=start)
        return vectors, unit * torch.cat([vectors @ tridiagonal[:, :-1], product(vectors[:, -1:])], 1)


def columnwise(product: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """Apply a product of `[A, V]` to `[B, V]` to the F·T columns of values `[F, A, T]` at once."""
    columns = product(values.transpose(0, 1).flatten(1))
    return columns.view(len(columns), *values.shape[::2]).transpose(0, 1)


@dataclass(frozen=True, eq=False)
class LargeProcess(SolvedProcess):
    """Base class of the solved Gaussian processes of many rows, whose variances come from projections.

    Attributes:
        x: training inputs `[N, *input_shape]`.
        noise: V `[F, R]`.
        seed: of pivots, probes and projections.
        steps: number of steps of conjugate gradients.
        jitter: always 0.
    """

    x: Tensor
    noise: Tensor
    _: KW_ONLY
    seed: int = 0
    steps: int = 0
    jitter: float = 0.0

    def subset(self) -> tuple[Tensor, int]:
        """Indices of points in random order, and how many rows of them each projection uses."""
        order = torch.randperm(len(self.x), generator=Streams(self.seed).at("subset"))
        return order, int(SUBSET / math.sqrt(len(self.noise)))

    def means(self, x: Tensor) -> Tensor:
        """Means `[F, S, T]` without the constants."""
        raise NotImplementedError

    def whitened_rows(self, x: Tensor) -> list[Tensor]:
        """For each covariance, `Projection.whiten` of new rows."""
        raise NotImplementedError

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Means `[F, S, T]` without the constants, and variances `[F, S]`, which are never too small."""
        variances = []
        for block in blocks(x, self.block_width):
            explained = torch.stack([rows.square().sum(0) for rows in self.whitened_rows(block)])
            variances.append((self.prior.diagonal(block) - explained).clamp_min(0))
        return self.means(x), torch.cat(variances, 1)

    @property
    def block_width(self) -> int:
        """Numbers that `whitened_rows` needs for one row."""
        return SUBSET

    def covariance(self, x: Tensor) -> Tensor:
        """Posterior covariances `[F, S, S]`."""
        prior = self.prior.kernel(x)
        return torch.stack([prior - rows.t() @ rows for rows in self.whitened_rows(x)])


@dataclass(frozen=True, eq=False)
class Large(LargeProcess):
    """A solved Gaussian process of many rows.

    Attributes:
        basis: H `[R, Q]`.
        targets: `[F, R, T]`.
        inverse: $A^{-1} (H, y)$ `[F, R, Q + T]`.
        systems: the system of each covariance; computed again if None.
    """

    STORED = ("x", "noise", "basis", "targets", "inverse", "seed")
    basis: Tensor
    targets: Tensor
    inverse: Tensor
    systems: tuple[NoisyKernel, ...] | None = field(default=None, kw_only=True)

    @cached_property
    def constants(self) -> Tensor:
        """β `[F, Q, T]`."""
        size = self.basis.shape[1]
        hh, hy = self.basis.t() @ self.inverse[..., :size], self.basis.t() @ self.inverse[..., size:]
        constants: Tensor = torch.linalg.solve(hh, hy)
        return constants

    @cached_property
    def weights(self) -> Tensor:
        """$A^{-1} (y - Hβ)$ `[F, R, T]`."""
        size = self.basis.shape[1]
        return self.inverse[..., size:] - self.inverse[..., :size] @ self.constants

    @cached_property
    def _systems(self) -> tuple[NoisyKernel, ...]:
        return self.systems or noisy_kernels(self.prior, self.x, self.noise, self.seed)

    @cached_property
    def log_evidence(self) -> float:
        r"""$\log p(y)$, with an estimated determinant."""
        residual = self.targets - self.basis @ self.constants
        determinant = sum(estimate_log_determinant(system, self.seed) for system in self._systems)
        fit = float((residual * self.weights).sum()) + self.targets.shape[2] * determinant
        return -0.5 * (fit + self.targets.numel() * math.log(2 * math.pi))

    @cached_property
    def projections(self) -> list[Projection]:
        """A on a span, for each covariance."""
        vectors = FREE_LANCZOS if self._systems[0].source.held is None else LANCZOS
        pairs = zip(self._systems, self.targets, strict=True)
        return [system.projection(y[:, :1], *self.subset(), vectors) for system, y in pairs]

    @cached_property
    def _step(self) -> Tensor | None:
        r"""$Φ^⊤$ times the weights `[F, D, T]`, with which means need no training points; None if it is too large."""
        size = self.prior.num_features(self.prior.linearized.num_outputs(self.x))
        if size * len(self.weights) * self.weights.shape[2] * 8 > STEP_BYTES:
            return None
        return columnwise(lambda columns: pull_features(self.prior, self.x, columns), self.weights)

    def means(self, x: Tensor) -> Tensor:
        """Means `[F, S, T]` without the constants."""
        if self._step is not None:
            return columnwise(lambda columns: push_features(self.prior, x, columns), self._step)
        return torch.cat([self.prior.kernel(block, self.x) @ self.weights for block in blocks(x, len(self.basis))], 1)

    @property
    def block_width(self) -> int:
        """R, for the covariances with all training rows."""
        return len(self.basis)

    def whitened_rows(self, x: Tensor) -> list[Tensor]:
        """For each covariance, `Projection.whiten` of new rows."""
        cross = self.prior.kernel(x, self.x)
        return [
            projection.whiten(cross[:, projection.rows], cross @ projection.vectors) for projection in self.projections
        ]

    def extended(self, points: PointRows) -> Work["Large"]:
        """The same process with further points; conjugate gradients start at the known solution."""
        size = len(points.noise), points.noise.shape[1], self.inverse.shape[2]
        start = torch.cat([self.inverse, self.inverse.new_zeros(size)], 1)
        known = PointRows(self.x, self.noise, self.basis, self.targets)
        return (yield from large(self.prior, known.joined(points), seed=self.seed, start=start))


def noisy_kernels(prior: Prior, x: Tensor, noise: Tensor, seed: int, hold: bool = True) -> tuple[NoisyKernel, ...]:
    """A for each row of the noise `[F, R]`; `hold` tells whether the kernel is held if it fits into memory."""
    source = covariance(prior, x, seed, hold)
    return tuple(NoisyKernel(source, own, seed) for own in noise)


def large(prior: Prior, points: PointRows, *, seed: int = 0, start: Tensor | None = None) -> Work[Large]:
    """The posterior of many points in function space.

    Args:
        prior: gives the kernel.
        points: inputs, noise, constants and targets.
        seed: of pivots and probes.
        start: an approximation of $A^{-1} (H, y)$ `[F, R, Q + T]` (default: zeros).
    """
    points.require_noise("conjugate gradients")
    rows = len(points.basis)
    require(rows > 1, "got one row, conjugate gradients need two or more; use space='function'", DataError)
    systems = noisy_kernels(prior, points.x, points.noise, seed)
    yield Note(f"{rows:,} rows by conjugate gradients: {systems[0].rank} pivots, {systems[0].source.describe()}")
    inverse, steps = yield from solve_systems(systems, points.values, start)
    return Large(
        prior, points.x, points.noise, points.basis, points.targets, inverse, seed=seed, steps=steps, systems=systems
    )
