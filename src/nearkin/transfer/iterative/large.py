r"""The posterior of many points, without a factor of their kernel.

Solves with $A = K + V$ are conjugate gradients (`conjugate`), preconditioned by a low-rank factor of K with random
pivots (`products`); the evidence's determinant is stochastic Lanczos quadrature (Gardner et al. 2018). Variances come
from A on the span of some points, drawn at random, and of Lanczos vectors (Pleiss et al. 2018); they are exact if all
points are among them, and can else but be overstated. Determinant and variances are made when first asked for.

Notation: as in `targets`; H `[R, Q]` the constants in every row, V `[F, R]` the noise, L Lanczos vectors.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from linear_operator.utils.lanczos import lanczos_tridiag
from torch import Generator, Tensor

from nearkin.core.errors import DataError, require
from nearkin.core.events import Note, Work
from nearkin.core.rng import Streams
from nearkin.transfer.cholesky import below, both, cholesky, log_determinant
from nearkin.transfer.iterative.conjugate import ENOUGH, log_determinant_of, solve_systems
from nearkin.transfer.iterative.passes import pulled, pushed
from nearkin.transfer.iterative.products import Covariance, covariance, sample_rows
from nearkin.transfer.kernel import Prior, blocks

PIVOTS = 1024  # rank of the preconditioner
LANCZOS = 512  # vectors of the variances where the kernel is held
FREE_LANCZOS = 64  # where every vector takes passes of the network
SUBSET = 3000  # rows that count whole in the variances
STEP_BYTES = 2**28  # of the weights' steps that means are made of


@dataclass(frozen=True, eq=False)
class Projection:
    r"""The inverse of A from below: $B (B^⊤ A B)^{-1} B^⊤ ⪯ A^{-1}$ for the columns B of some rows and vectors.

    Attributes:
        samples: numbers of the points whose rows are taken whole.
        rows: numbers of those rows `[S]`.
        vectors: Lanczos vectors `[R, L]`.
        factor: Cholesky factor of $B^⊤ A B$ `[S + L, S + L]`.
    """

    samples: Tensor
    rows: Tensor
    vectors: Tensor
    factor: Tensor

    def seen(self, by_rows: Tensor, by_vectors: Tensor) -> Tensor:
        """What is known of new rows `[S + L, M]`, whose squares lower variances.

        Args:
            by_rows: covariances with the rows `[M, S]`.
            by_vectors: covariances with all old rows, times the vectors `[M, L]`.
        """
        return below(self.factor, torch.cat([by_rows, by_vectors], 1).t())


class Damped:
    """A = K + V of one covariance, preconditioned by $L L^⊤ + V$."""

    def __init__(self, source: Covariance, noise: Tensor, seed: int) -> None:
        self.source, self.noise, self.seed = source, noise, seed
        self.size = len(noise)

    @cached_property
    def _low_rank(self) -> tuple[Tensor, Tensor, float]:
        r"""$V^{-1/2} L$ `[R, W]`, the Cholesky factor of $I + L^⊤ V^{-1} L$, and what is left."""
        found = self.source.low_rank(PIVOTS, self.noise, ENOUGH)
        scaled = found.factor.div_(self.noise.sqrt()[:, None])
        inner, _ = cholesky(scaled.t() @ scaled + torch.eye(scaled.shape[1]).to(scaled), "the preconditioner")
        return scaled, inner, float((found.left / self.noise).sum())

    @property
    def rank(self) -> int:
        """Of the preconditioner."""
        return self._low_rank[0].shape[1]

    @property
    def level(self) -> float:
        """The log-determinant of the preconditioner."""
        return float(log_determinant(self._low_rank[1]) + self.noise.log().sum())

    @property
    def left(self) -> float:
        """What it leaves."""
        return self._low_rank[2]

    def product(self, columns: Tensor, quick: bool = False) -> Tensor:
        """A times `[R, W]`."""
        return self.source.times(columns, quick) + self.noise[:, None] * columns

    def precondition(self, columns: Tensor) -> Tensor:
        """The inverse of the preconditioner times `[R, W]`."""
        scaled, inner, _ = self._low_rank
        roots = self.noise.sqrt()[:, None]
        columns = columns / roots
        return (columns - scaled @ both(inner, scaled.t() @ columns)) / roots

    def hasten(self, columns: Tensor) -> Tensor:
        """The same."""
        return self.precondition(columns)

    def drawn(self, count: int, rng: Generator) -> Tensor:
        """Columns with the preconditioner's covariance `[R, count]`."""
        scaled = self._low_rank[0]
        inside, outside = (
            torch.randn(size, count, generator=rng, dtype=torch.float64).to(scaled)
            for size in (scaled.shape[1], len(scaled))
        )
        return self.noise.sqrt()[:, None] * (scaled @ inside + outside)

    def projection(self, start: Tensor, samples: Tensor, limit: int, vectors: int) -> Projection:
        """A on the span of some rows and of Lanczos vectors.

        Args:
            start: where Lanczos begins `[R, 1]`.
            samples: numbers of points in random order.
            limit: rows of points that are taken whole.
            vectors: L.
        """
        chosen = samples[: max(1, limit // self.source.each)].sort().values
        rows = sample_rows(chosen, self.source.each)
        gram = self.source.block(chosen) + self.noise[rows].diag()
        span, images = torch.zeros_like(start)[:, :0], torch.zeros_like(start)[:, :0]
        if len(rows) < len(start) and vectors > 0:
            span, images = self._lanczos(start, min(vectors, len(start)))
        top = torch.cat([gram, images[rows]], 1)
        below_it = torch.cat([images[rows].t(), span.t() @ images], 1)
        factor, _ = cholesky(torch.cat([top, below_it]), "the kernel of the variances")
        return Projection(chosen, rows, span, factor)

    def _lanczos(self, start: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Orthonormal vectors `[R, L]`, and A times them."""
        noise = torch.randn(start.shape, generator=Streams(self.seed).at("start"), dtype=start.dtype)
        start = start + (0.01 * start.square().mean().sqrt() + 1e-12) * noise  # no start is blind to a direction
        shape, unit = torch.Size([self.size] * 2), float(self.noise.mean())  # its bounds are absolute numbers

        def product(columns: Tensor) -> Tensor:
            return self.product(columns) / unit

        vectors, tridiagonal = lanczos_tridiag(product, count, start.dtype, start.device, shape, init_vecs=start)
        return vectors, unit * torch.cat([vectors @ tridiagonal[:, :-1], product(vectors[:, -1:])], 1)


def columnwise(product: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """A product of `[A, V]` to `[B, V]`, for values `[F, A, T]` whose F·T columns go through it together."""
    found = product(values.transpose(0, 1).flatten(1))
    return found.view(len(found), *values.shape[::2]).transpose(0, 1)


def subset_of(count: int, seed: int) -> Tensor:
    """Numbers of points in the order in which variances take them."""
    return torch.randperm(count, generator=Streams(seed).at("subset"))


@dataclass(frozen=True, eq=False)
class Large:
    """A solved Gaussian process of many rows.

    Attributes:
        prior: gives the kernel.
        x: training inputs `[N, *input_shape]`.
        noise: V `[F, R]`.
        basis: H `[R, Q]`.
        targets: `[F, R, T]`.
        inverse: $A^{-1} (H, y)$ `[F, R, Q + T]`.
        seed: of what is drawn.
        steps: of conjugate gradients that it took.
        jitter: none.
        made: what the solve was made with, one for each covariance; made again if None.
    """

    prior: Prior
    x: Tensor
    noise: Tensor
    basis: Tensor
    targets: Tensor
    inverse: Tensor
    seed: int = 0
    steps: int = 0
    jitter: float = 0.0
    made: tuple[Damped, ...] | None = None

    @cached_property
    def constants(self) -> Tensor:
        """β `[F, Q, T]`."""
        size = self.basis.shape[1]
        hh, hy = self.basis.t() @ self.inverse[..., :size], self.basis.t() @ self.inverse[..., size:]
        found: Tensor = torch.linalg.solve(hh, hy)
        return found

    @cached_property
    def weights(self) -> Tensor:
        """$A^{-1} (y - Hβ)$ `[F, R, T]`."""
        size = self.basis.shape[1]
        return self.inverse[..., size:] - self.inverse[..., :size] @ self.constants

    @cached_property
    def _damped(self) -> tuple[Damped, ...]:
        """A, one for each covariance."""
        return self.made or damped(self.prior, self.x, self.noise, self.seed)

    @cached_property
    def log_evidence(self) -> float:
        r"""$\log p(y)$, its determinant estimated."""
        residual = self.targets - self.basis @ self.constants
        determinant = sum(log_determinant_of(one, self.seed) for one in self._damped)
        fit = float((residual * self.weights).sum()) + self.targets.shape[2] * determinant
        return -0.5 * (fit + self.targets.numel() * math.log(2 * math.pi))

    @cached_property
    def projections(self) -> list[Projection]:
        """A on a span, one for each covariance."""
        samples, limit = subset_of(len(self.x), self.seed), int(SUBSET / math.sqrt(len(self.noise)))
        parts = zip(self._damped, self.targets, strict=True)
        count = FREE_LANCZOS if self._damped[0].source.held is None else LANCZOS
        return [one.projection(y[:, :1], samples, limit, count) for one, y in parts]

    @cached_property
    def _step(self) -> Tensor | None:
        r"""$Φ^⊤$ times the weights `[F, D, T]`, if it is not too large: means are then one push of it."""
        size = self.prior.num_features(self.prior.linearized.num_outputs(self.x))
        if size * len(self.weights) * self.weights.shape[2] * 8 > STEP_BYTES:
            return None
        return columnwise(lambda columns: pulled(self.prior, self.x, columns), self.weights)

    def means(self, x: Tensor) -> Tensor:
        """Means `[F, S, T]` alone, constants left out."""
        step = self._step
        if step is not None:
            return columnwise(lambda columns: pushed(self.prior, x, columns), step)
        return torch.cat([self.prior.kernel(part, self.x) @ self.weights for part in blocks(x, len(self.basis))], 1)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Means `[F, S, T]`, constants left out, and variances `[F, S]`, which may be overstated."""
        parts = []
        for part in blocks(x, self.noise.shape[1]):
            cross = self.prior.kernel(part, self.x)
            seen = torch.stack([self._seen(one, cross).square().sum(0) for one in self.projections])
            parts.append((self.prior.diagonal(part) - seen).clamp_min(0))
        return self.means(x), torch.cat(parts, 1)

    def covariance(self, x: Tensor) -> Tensor:
        """`[F, S, S]`."""
        cross, own = self.prior.kernel(x, self.x), self.prior.kernel(x)
        parts = [self._seen(one, cross) for one in self.projections]
        return torch.stack([own - seen.t() @ seen for seen in parts])

    def _seen(self, one: Projection, cross: Tensor) -> Tensor:
        return one.seen(cross[:, one.rows], cross @ one.vectors)

    def extended(self, x: Tensor, noise: Tensor, basis: Tensor, targets: Tensor) -> Work["Large"]:
        """The same with further points; conjugate gradients go on from the solution."""
        start = torch.cat([self.inverse, self.inverse.new_zeros(len(noise), noise.shape[1], self.inverse.shape[2])], 1)
        noise, basis = torch.cat([self.noise, noise], 1), torch.cat([self.basis, basis])
        targets, x = torch.cat([self.targets, targets], 1), torch.cat([self.x, x])
        return (yield from large(self.prior, x, noise, basis, targets, seed=self.seed, start=start))

    def tensors(self) -> dict[str, Tensor]:
        """What `restored` needs."""
        return {**{name: getattr(self, name) for name in _TENSORS}, "seed": torch.tensor(self.seed)}

    @classmethod
    def restored(cls, prior: Prior, tensors: Mapping[str, Tensor]) -> "Large":
        """The inverse of `tensors`."""
        x, noise, basis, targets, inverse = (tensors[name] for name in _TENSORS)
        return cls(prior, x, noise, basis, targets, inverse, int(tensors["seed"]))


_TENSORS = ("x", "noise", "basis", "targets", "inverse")


def damped(prior: Prior, x: Tensor, noise: Tensor, seed: int, hold: bool = True) -> tuple[Damped, ...]:
    """A of points, one for each row of noises `[F, R]`; `hold` whether the kernel is held if it fits."""
    source = covariance(prior, x, seed, hold)
    return tuple(Damped(source, own, seed) for own in noise)


def large(
    prior: Prior,
    x: Tensor,
    noise: Tensor,
    basis: Tensor,
    targets: Tensor,
    *,
    seed: int = 0,
    start: Tensor | None = None,
) -> Work[Large]:
    """The posterior given points with noise `[F, R]` and targets `[F, R, T]`.

    Args:
        prior: gives the kernel.
        x: `[N, *input_shape]`.
        noise: V.
        basis: H `[R, Q]`.
        targets: y.
        seed: of pivots and probes.
        start: what is near $A^{-1} (H, y)$ `[F, R, Q + T]`.
    """
    require(bool((noise > 0).all()), "conjugate gradients need a noise above 0; give one", DataError)
    require(len(basis) > 1, "one row needs no conjugate gradients; use space='function'", DataError)
    systems = damped(prior, x, noise, seed)
    yield Note(f"{len(basis):,} rows by conjugate gradients: {systems[0].rank} pivots, {systems[0].source.told()}")
    right = torch.cat([basis.expand(len(noise), -1, -1), targets], 2)
    inverse, steps = yield from solve_systems(systems, right, start)
    return Large(prior, x, noise, basis, targets, inverse, seed, steps, made=systems)
