r"""The posterior of many points and many weights in weight space, without a matrix of either.

Solves with $B = I + Φ^⊤ V^{-1} Φ$ `[D, D]` are conjugate gradients; a product is a push and a pull, which is what a
Fisher-vector product is (appendix D of Maddox et al. 2019). With the low-rank factor L of the kernel (`products`) and
the orthonormal span $Q = Φ_S^⊤ U s^{-1}$ of the pivots' features, where $L_S = U s W^⊤$, the preconditioner is

$$P = I + Q G Q^⊤, \quad G = W^⊤ L^⊤ V^{-1} L W, \qquad P^{-1} = I - Q\, G (I + G)^{-1} Q^⊤,$$

a push, a small product and a pull over the pivots. Solves take $P + τ (I - Q Q^⊤)$, with τ a guess at what is left
outside the span: what is left there meets the span, too, so that there are about twice the steps of `large`, and
without τ four times. The evidence follows from $\log |A| = \log |V| + \log |B|$ and from
$A^{-1} = V^{-1} - V^{-1} Φ B^{-1} Φ^⊤ V^{-1}$. A mean is one push of the weights, whatever the number of points was;
variances are those of `large`, which can but be overstated.

Notation: as in `large`; Z = (H, y) `[F, R, Q + T]`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Generator, Tensor

from nearkin.core.errors import DataError, require
from nearkin.core.events import Note, Work
from nearkin.transfer.iterative import large
from nearkin.transfer.iterative.conjugate import ENOUGH, log_determinant_of, solve_systems
from nearkin.transfer.iterative.passes import pushed
from nearkin.transfer.iterative.products import Products, products
from nearkin.transfer.kernel import Prior, blocks
from nearkin.transfer.weight_space import fitted_constants

VECTOR_BYTES = 2**27  # of the vectors of the variances, as weights
RANK = 1e-6  # singular values of the pivots' factor below this share of the largest: their squares are rounding


@dataclass(frozen=True, eq=False)
class Span:
    r"""What a preconditioner adds to I, $Q\, \mathrm{diag}(g)\, Q^⊤$ with orthonormal columns Q `[D, W]`.

    Attributes:
        source: products with the features of the pivots' samples.
        rows: the pivots among their rows `[S]`.
        basis: gives Q as $Φ_S^⊤$ times this `[S, W]`.
        values: g `[W]`, >= 0.
        left: what the low-rank factor left of the kernel's diagonal, in units of the noise.
        num_rows: of the samples' features.
    """

    source: Products
    rows: Tensor
    basis: Tensor
    values: Tensor
    left: float
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
    """B of one covariance, preconditioned."""

    def __init__(self, own: large.Damped, num_features: int) -> None:
        self.own, self.size = own, num_features

    @cached_property
    def span(self) -> Span:
        """Of the pivots."""
        source, noise = self.own.source, self.own.noise
        found = source.low_rank(large.PIVOTS, noise, ENOUGH)
        samples, places = (found.pivots // source.each).unique(return_inverse=True)
        u, s, w = torch.linalg.svd(found.factor[found.pivots], full_matrices=False)
        fit = s > RANK * s[0]
        scaled = found.factor.div_(noise.sqrt()[:, None])
        values, vectors = torch.linalg.eigh(w[fit] @ (scaled.t() @ scaled) @ w[fit].t())
        rows = places * source.each + found.pivots % source.each
        basis = (u[:, fit] / s[fit]) @ vectors
        left = float((found.left / noise).sum())
        return Span(products(source.prior, source.x[samples]), rows, basis, values.clamp_min(0), left,
                    len(samples) * source.each)  # fmt: skip

    @property
    def rank(self) -> int:
        """Of the preconditioner."""
        return len(self.span.values)

    @property
    def level(self) -> float:
        """The log-determinant of the preconditioner."""
        return float(self.span.values.log1p().sum())

    @property
    def left(self) -> float:
        """What it leaves."""
        return self.span.left

    def product(self, columns: Tensor, quick: bool = False) -> Tensor:
        """B times `[D, V]`."""
        source = self.own.source.features
        return columns + source.pull(source.push(columns, quick) / self.own.noise[:, None], quick)

    def precondition(self, columns: Tensor) -> Tensor:
        """The inverse of the preconditioner times `[D, V]`."""
        g = self.span.values[:, None]
        return columns - self.span.out_of(g / (1 + g) * self.span.into(columns))

    def hasten(self, columns: Tensor) -> Tensor:
        """The inverse of the preconditioner and of so much outside its span as may be left there."""
        g, outside = self.span.values[:, None], 1 + 2 * self.left / max(1, self.rank)
        return columns / outside + self.span.out_of((1 / (1 + g) - 1 / outside) * self.span.into(columns))

    def drawn(self, count: int, rng: Generator) -> Tensor:
        """Columns with the preconditioner's covariance `[D, count]`."""
        inside, outside = (
            torch.randn(count, size, generator=rng, dtype=torch.float64).t().to(self.span.values)
            for size in (self.rank, self.size)
        )
        return outside + self.span.out_of(self.span.values.sqrt()[:, None] * inside)


@dataclass(frozen=True, eq=False)
class LargeWeight:
    r"""A solved Gaussian process of many rows, known by its weights.

    Attributes:
        prior: gives the features.
        x: training inputs `[N, *input_shape]`.
        noise: V `[F, R]`.
        cross: $Φ^⊤ V^{-1} Z$ `[F, D, Q + T]`.
        squares: $Z^⊤ V^{-1} Z$ `[F, Q + T, Q + T]`.
        inverse: $B^{-1} Φ^⊤ V^{-1} Z$ `[F, D, Q + T]`.
        num_constants: Q.
        seed: of what is drawn.
        steps: of conjugate gradients that it took.
        jitter: none.
        made: what the solve was made with, one for each covariance; made again if None.
    """

    prior: Prior
    x: Tensor
    noise: Tensor
    cross: Tensor
    squares: Tensor
    inverse: Tensor
    num_constants: int
    seed: int = 0
    steps: int = 0
    jitter: float = 0.0
    made: tuple[Precision, ...] | None = None

    @cached_property
    def _systems(self) -> tuple[Precision, ...]:
        """B, one for each covariance."""
        return self.made or precisions(self.prior, self.x, self.noise, self.cross.shape[1], self.seed)

    @cached_property
    def _solved(self) -> tuple[Tensor, Tensor]:
        r"""β `[F, Q, T]`, and $(y - Hβ)^⊤ A^{-1} (y - Hβ)$ `[F, T]`."""
        seen = self.cross.mT @ self.inverse
        return fitted_constants(self.squares - (seen + seen.mT) / 2, self.num_constants)

    @property
    def constants(self) -> Tensor:
        """β `[F, Q, T]`."""
        return self._solved[0]

    @cached_property
    def weights(self) -> Tensor:
        """The mean of the weights `[F, D, T]`, in units of the prior's standard deviations."""
        size = self.num_constants
        return self.inverse[..., size:] - self.inverse[..., :size] @ self.constants

    @cached_property
    def log_evidence(self) -> float:
        r"""$\log p(y)$, its determinant estimated."""
        columns = self.cross.shape[2] - self.num_constants
        precision = sum(log_determinant_of(one, self.seed) for one in self._systems)
        determinant = columns * (precision + float(self.noise.log().sum()))
        numbers = self.noise.numel() * columns
        return -0.5 * (float(self._solved[1].sum()) + determinant + numbers * math.log(2 * math.pi))

    @cached_property
    def projections(self) -> list[tuple[large.Projection, Tensor]]:
        """The kernel with noise on a span, and its vectors as weights `[D, L]`, one for each covariance."""
        samples, limit = large.subset_of(len(self.x), self.seed), int(large.SUBSET / math.sqrt(len(self.noise)))
        room = VECTOR_BYTES // (8 * self.cross.shape[1] * len(self.noise))
        found = []
        for system, weights in zip(self._systems, self.weights, strict=True):
            source = system.own.source.features
            start = source.push(weights[:, :1])
            one = system.own.projection(start, samples, limit, min(room, large.FREE_LANCZOS))
            vectors = source.pull(one.vectors) if one.vectors.shape[1] else weights[:, :0]
            found.append((one, vectors))
        return found

    def means(self, x: Tensor) -> Tensor:
        """Means `[F, S, T]` alone, constants left out."""
        return large.columnwise(lambda columns: pushed(self.prior, x, columns), self.weights)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Means `[F, S, T]`, constants left out, and variances `[F, S]`, which may be overstated."""
        parts = []
        for part in blocks(x, large.SUBSET):
            seen = torch.stack([self._seen(part, *one).square().sum(0) for one in self.projections])
            parts.append((self.prior.diagonal(part) - seen).clamp_min(0))
        return self.means(x), torch.cat(parts, 1)

    def covariance(self, x: Tensor) -> Tensor:
        """`[F, S, S]`."""
        own, parts = self.prior.kernel(x), [self._seen(x, *one) for one in self.projections]
        return torch.stack([own - seen.t() @ seen for seen in parts])

    def _seen(self, x: Tensor, one: large.Projection, vectors: Tensor) -> Tensor:
        by_rows = self.prior.kernel(x, self.x[one.samples])
        by_vectors = pushed(self.prior, x, vectors) if vectors.shape[1] else by_rows[:, :0]
        return one.seen(by_rows, by_vectors)

    def extended(self, x: Tensor, noise: Tensor, basis: Tensor, targets: Tensor) -> Work["LargeWeight"]:
        """The same with further points: their sums are added, and conjugate gradients go on from the solution."""
        cross, squares = summed(self.prior, x, noise, basis, targets)
        parts = self.cross + cross, self.squares + squares
        x, noise = torch.cat([self.x, x]), torch.cat([self.noise, noise], 1)
        return (yield from _solution(self.prior, x, noise, *parts, self.num_constants, self.seed, self.inverse))

    def tensors(self) -> dict[str, Tensor]:
        """What `restored` needs."""
        numbers = {"num_constants": torch.tensor(self.num_constants), "seed": torch.tensor(self.seed)}
        return {**{name: getattr(self, name) for name in _TENSORS}, **numbers}

    @classmethod
    def restored(cls, prior: Prior, tensors: Mapping[str, Tensor]) -> "LargeWeight":
        """The inverse of `tensors`."""
        x, noise, cross, squares, inverse = (tensors[name] for name in _TENSORS)
        return cls(prior, x, noise, cross, squares, inverse, int(tensors["num_constants"]), int(tensors["seed"]))


_TENSORS = ("x", "noise", "cross", "squares", "inverse")


def precisions(prior: Prior, x: Tensor, noise: Tensor, size: int, seed: int) -> tuple[Precision, ...]:
    """B `[size, size]` of points, one for each row of noises `[F, R]`."""
    return tuple(Precision(own, size) for own in large.damped(prior, x, noise, seed, hold=False))


def summed(
    prior: Prior, x: Tensor, noise: Tensor, basis: Tensor, targets: Tensor, source: Products | None = None
) -> tuple[Tensor, Tensor]:
    """The sums over some points, `cross` and `squares`."""
    require(bool((noise > 0).all()), "weight space divides by the noise; give one above 0", DataError)
    values = torch.cat([basis.expand(len(noise), -1, -1), targets], 2)
    inverse = values / noise[:, :, None]
    source = products(prior, x) if source is None else source
    return torch.stack([source.pull(one) for one in inverse]), values.mT @ inverse


def large_weight(
    prior: Prior, x: Tensor, noise: Tensor, basis: Tensor, targets: Tensor, *, seed: int = 0
) -> Work[LargeWeight]:
    """The posterior given points with noise `[F, R]` and targets `[F, R, T]`; `seed` is of pivots and probes."""
    require(bool((noise > 0).all()), "weight space divides by the noise; give one above 0", DataError)
    systems = precisions(prior, x, noise, prior.num_features(prior.linearized.num_outputs(x)), seed)
    sums = summed(prior, x, noise, basis, targets, systems[0].own.source.features)
    return (yield from _solution(prior, x, noise, *sums, basis.shape[1], seed, None, systems))


def _solution(
    prior: Prior,
    x: Tensor,
    noise: Tensor,
    cross: Tensor,
    squares: Tensor,
    num_constants: int,
    seed: int,
    start: Tensor | None,
    systems: tuple[Precision, ...] | None = None,
) -> Work[LargeWeight]:
    """The posterior of some sums, from what is near its solutions."""
    systems = systems or precisions(prior, x, noise, cross.shape[1], seed)
    told = systems[0].own.source.features.told()
    yield Note(f"{cross.shape[1]:,} weights by conjugate gradients: {systems[0].rank} pivots, {told}")
    inverse, steps = yield from solve_systems(systems, cross, start)
    return LargeWeight(prior, x, noise, cross, squares, inverse, num_constants, seed, steps, made=systems)
