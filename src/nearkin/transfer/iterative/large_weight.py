r"""The posterior of many points and many weights in weight space, without a matrix of either size.

Systems with $B = I + Φ^⊤ V^{-1} Φ$ `[D, D]` are solved by conjugate gradients. A product is a push and a pull, as in a
Fisher-vector product (appendix D of Maddox et al. 2019). With the low-rank factor L of the kernel
(`kernel_products`) and the orthonormal span $Q = Φ_S^⊤ U s^{-1}$ of the pivots' features, where $L_S = U s W^⊤$, the
preconditioner is

$$P = I + Q G Q^⊤, \quad G = W^⊤ L^⊤ V^{-1} L W, \qquad P^{-1} = I - Q\, G (I + G)^{-1} Q^⊤,$$

a push, a small product and a pull over the pivots. Solves use $P + τ (I - Q Q^⊤)$, where τ estimates the remainder
outside the span. That remainder is not orthogonal to the span, so there are about twice the steps of `large`, and
without τ four times. The evidence follows from $\log |A| = \log |V| + \log |B|$ and from
$A^{-1} = V^{-1} - V^{-1} Φ B^{-1} Φ^⊤ V^{-1}$. A mean is one push of the weights, for any number of points. Variances
are those of `large`, which are never too small.

Notation: as in `large`; Z = (H, y) `[F, R, Q + T]`.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Generator, Tensor

from nearkin.core.events import Note, Work
from nearkin.transfer.evidence import fitted_constants
from nearkin.transfer.iterative import large
from nearkin.transfer.iterative.conjugate import ENOUGH, estimate_log_determinant, solve_systems
from nearkin.transfer.iterative.kernel_products import FeatureProducts, feature_products
from nearkin.transfer.iterative.network_passes import push_features
from nearkin.transfer.kernel import Prior
from nearkin.transfer.targets import PointRows

VECTOR_BYTES = 2**27  # largest Lanczos vectors of the variances, as weights
RANK = 1e-6  # singular values of the pivots' factor below this fraction of the largest are rounding errors


@dataclass(frozen=True, eq=False)
class Span:
    r"""The preconditioner minus I, $Q\, \mathrm{diag}(g)\, Q^⊤$ with orthonormal columns Q `[D, W]`.

    Attributes:
        source: products with the features of the pivots' samples.
        rows: the pivots among their rows `[S]`.
        basis: gives Q as $Φ_S^⊤$ times this `[S, W]`.
        values: g `[W]`, >= 0.
        remainder: the trace of the kernel minus its low-rank approximation, in units of the noise.
        num_rows: number of rows of the samples.
    """

    source: FeatureProducts
    rows: Tensor
    basis: Tensor
    values: Tensor
    remainder: float
    num_rows: int

    def into(self, columns: Tensor) -> Tensor:
        r"""$Q^⊤$ times `[D, V]`."""
        return self.basis.t() @ self.source.push(columns)[self.rows]

    def out_of(self, columns: Tensor) -> Tensor:
        """Q times `[W, V]`."""
        wide = columns.new_zeros(self.num_rows, columns.shape[1])
        wide[self.rows] = self.basis @ columns
        return self.source.pull(wide)


class Precision:
    """The system B of one covariance, with its preconditioner."""

    def __init__(self, noisy: large.NoisyKernel, num_features: int) -> None:
        self.noisy, self.size = noisy, num_features

    @cached_property
    def span(self) -> Span:
        """The span of the pivots' features."""
        source, noise = self.noisy.source, self.noisy.noise
        low_rank = source.low_rank(large.PIVOTS, noise, ENOUGH)
        samples, index = (low_rank.pivots // source.each).unique(return_inverse=True)
        u, s, w = torch.linalg.svd(low_rank.factor[low_rank.pivots], full_matrices=False)
        usable = s > RANK * s[0]
        scaled = low_rank.factor.div_(noise.sqrt()[:, None])
        values, vectors = torch.linalg.eigh(w[usable] @ (scaled.t() @ scaled) @ w[usable].t())
        return Span(
            source=feature_products(source.prior, source.x[samples]),
            rows=index * source.each + low_rank.pivots % source.each,
            basis=(u[:, usable] / s[usable]) @ vectors,
            values=values.clamp_min(0),
            remainder=float((low_rank.remainder / noise).sum()),
            num_rows=len(samples) * source.each,
        )

    @property
    def rank(self) -> int:
        """Rank of the preconditioner minus I."""
        return len(self.span.values)

    @property
    def log_determinant(self) -> float:
        """The log-determinant of the preconditioner."""
        return float(self.span.values.log1p().sum())

    @property
    def remainder(self) -> float:
        """The trace of the kernel minus its low-rank approximation, in units of the noise."""
        return self.span.remainder

    def product(self, columns: Tensor, quick: bool = False) -> Tensor:
        """B times `[D, V]`."""
        source = self.noisy.source.features
        return columns + source.pull(source.push(columns, quick) / self.noisy.noise[:, None], quick)

    def precondition(self, columns: Tensor) -> Tensor:
        """The inverse of the preconditioner times `[D, V]`."""
        g = self.span.values[:, None]
        return columns - self.span.out_of(g / (1 + g) * self.span.into(columns))

    def precondition_solve(self, columns: Tensor) -> Tensor:
        """The inverse of the preconditioner plus an estimate of the remainder outside its span."""
        g, outside = self.span.values[:, None], 1 + 2 * self.remainder / max(1, self.rank)
        return columns / outside + self.span.out_of((1 / (1 + g) - 1 / outside) * self.span.into(columns))

    def sample(self, count: int, rng: Generator) -> Tensor:
        """Random columns with the preconditioner's covariance `[D, count]`."""
        inside, outside = (
            torch.randn(count, size, generator=rng, dtype=torch.float64).t().to(self.span.values)
            for size in (self.rank, self.size)
        )
        return outside + self.span.out_of(self.span.values.sqrt()[:, None] * inside)


@dataclass(frozen=True, eq=False)
class LargeWeight(large.LargeProcess):
    r"""A solved Gaussian process of many rows, represented by its weights.

    Attributes:
        cross: $Φ^⊤ V^{-1} Z$ `[F, D, Q + T]`.
        squares: $Z^⊤ V^{-1} Z$ `[F, Q + T, Q + T]`.
        inverse: $B^{-1} Φ^⊤ V^{-1} Z$ `[F, D, Q + T]`.
        num_constants: Q.
        systems: the system of each covariance; computed again if None.
    """

    STORED = ("x", "noise", "cross", "squares", "inverse", "num_constants", "seed")
    cross: Tensor
    squares: Tensor
    inverse: Tensor
    num_constants: int
    systems: tuple[Precision, ...] | None = field(default=None, kw_only=True)

    @cached_property
    def _systems(self) -> tuple[Precision, ...]:
        return self.systems or precisions(self.prior, self.x, self.noise, self.cross.shape[1], self.seed)

    @cached_property
    def _solution(self) -> tuple[Tensor, Tensor]:
        r"""β `[F, Q, T]`, and $(y - Hβ)^⊤ A^{-1} (y - Hβ)$ `[F, T]`."""
        explained = self.cross.mT @ self.inverse
        return fitted_constants(self.squares - (explained + explained.mT) / 2, self.num_constants)

    @property
    def constants(self) -> Tensor:
        """β `[F, Q, T]`."""
        return self._solution[0]

    @cached_property
    def weights(self) -> Tensor:
        """The mean of the weights `[F, D, T]`, in units of the prior's standard deviations."""
        size = self.num_constants
        return self.inverse[..., size:] - self.inverse[..., :size] @ self.constants

    @cached_property
    def log_evidence(self) -> float:
        r"""$\log p(y)$, with an estimated determinant."""
        columns = self.cross.shape[2] - self.num_constants
        precision = sum(estimate_log_determinant(system, self.seed) for system in self._systems)
        determinant = columns * (precision + float(self.noise.log().sum()))
        numbers = self.noise.numel() * columns
        return -0.5 * (float(self._solution[1].sum()) + determinant + numbers * math.log(2 * math.pi))

    @cached_property
    def projections(self) -> list[tuple[large.Projection, Tensor]]:
        """The noisy kernel on a span, and its Lanczos vectors as weights `[D, L]`, for each covariance."""
        limit = min(VECTOR_BYTES // (8 * self.cross.shape[1] * len(self.noise)), large.FREE_LANCZOS)
        projections = []
        for system, weights in zip(self._systems, self.weights, strict=True):
            source = system.noisy.source.features
            projection = system.noisy.projection(source.push(weights[:, :1]), *self.subset(), limit)
            vectors = source.pull(projection.vectors) if projection.vectors.shape[1] else weights[:, :0]
            projections.append((projection, vectors))
        return projections

    def means(self, x: Tensor) -> Tensor:
        """Means `[F, S, T]` without the constants."""
        return large.columnwise(lambda columns: push_features(self.prior, x, columns), self.weights)

    def whitened_rows(self, x: Tensor) -> list[Tensor]:
        """For each covariance, `Projection.whiten` of new rows."""
        rows = []
        for projection, vectors in self.projections:
            by_rows = self.prior.kernel(x, self.x[projection.samples])
            by_vectors = push_features(self.prior, x, vectors) if vectors.shape[1] else by_rows[:, :0]
            rows.append(projection.whiten(by_rows, by_vectors))
        return rows

    def extended(self, points: PointRows) -> Work["LargeWeight"]:
        """The same process with further points: their sums are added, and the solve starts at the known solution."""
        points.require_noise("weight space")
        cross, squares = sum_points(points, feature_products(self.prior, points.x))
        x, noise = torch.cat([self.x, points.x]), torch.cat([self.noise, points.noise], 1)
        systems = precisions(self.prior, x, noise, cross.shape[1], self.seed)
        sums = self.cross + cross, self.squares + squares
        return (yield from _solve(systems, x, noise, *sums, self.num_constants, self.inverse))


def precisions(prior: Prior, x: Tensor, noise: Tensor, size: int, seed: int) -> tuple[Precision, ...]:
    """B `[size, size]` for each row of the noise `[F, R]`."""
    return tuple(Precision(noisy, size) for noisy in large.noisy_kernels(prior, x, noise, seed, hold=False))


def sum_points(points: PointRows, source: FeatureProducts) -> tuple[Tensor, Tensor]:
    """The sums `cross` and `squares` over points whose features are in `source`."""
    inverse = points.values / points.noise[:, :, None]
    return torch.stack([source.pull(columns) for columns in inverse]), points.values.mT @ inverse


def large_weight(prior: Prior, points: PointRows, *, seed: int = 0) -> Work[LargeWeight]:
    """The posterior of many points in weight space; `seed` determines pivots and probes."""
    points.require_noise("weight space")
    size = prior.num_features(prior.linearized.num_outputs(points.x))
    systems = precisions(prior, points.x, points.noise, size, seed)
    sums = sum_points(points, systems[0].noisy.source.features)
    return (yield from _solve(systems, points.x, points.noise, *sums, points.basis.shape[1]))


def _solve(
    systems: tuple[Precision, ...],
    x: Tensor,
    noise: Tensor,
    cross: Tensor,
    squares: Tensor,
    num_constants: int,
    start: Tensor | None = None,
) -> Work[LargeWeight]:
    """The posterior given the sums over points."""
    source, seed = systems[0].noisy.source, systems[0].noisy.seed
    method = source.features.describe()
    yield Note(f"{cross.shape[1]:,} weights by conjugate gradients: {systems[0].rank} pivots, {method}")
    inverse, steps = yield from solve_systems(systems, cross, start)
    return LargeWeight(
        source.prior, x, noise, cross, squares, inverse, num_constants, seed=seed, steps=steps, systems=systems
    )
