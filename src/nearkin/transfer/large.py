r"""The posterior of many points, without a factor of their kernel.

Solves with $A = K + V$ are conjugate gradients, preconditioned by a low-rank factor of K with random pivots
(`products`); the evidence's determinant is stochastic Lanczos quadrature (both of `linear_operator`, Gardner et al.
2018). Variances come from A on the span of some points, drawn at random, and of Lanczos vectors (Pleiss et al. 2018);
they are exact if all points are among them, and can else but be overstated. Both are made when first asked for.

Notation: as in `targets`; H `[R, Q]` the constants in every row, V `[F, R]` the noise, L Lanczos vectors.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from linear_operator import settings
from linear_operator.operators import AddedDiagLinearOperator, DiagLinearOperator
from linear_operator.utils.lanczos import lanczos_tridiag
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from nearkin.core.errors import DataError, require
from nearkin.core.events import Caution, Note, Progress, Work
from nearkin.core.rng import Streams, seeded
from nearkin.transfer.cholesky import below, cholesky
from nearkin.transfer.kernel import Prior, blocks
from nearkin.transfer.products import PriorOperator, prior_operator

PIVOTS = 512  # rank of the preconditioner
LANCZOS = 512  # vectors of the variances where the kernel is held
FREE_LANCZOS = 64  # where every vector takes passes of the network
SUBSET = 3000  # rows that count whole in the variances
PROBES = 8  # of the determinant
QUADRATURE = 20  # steps of the determinant
TOLERANCE = 1e-6  # of a solve, relative to its right-hand side
LOOSE = 1e-3  # the same where the probes' solves are by the way
STEPS = 1000  # of conjugate gradients at the most


@dataclass(frozen=True, eq=False)
class Projection:
    r"""The inverse of A from below: $B (B^⊤ A B)^{-1} B^⊤ ⪯ A^{-1}$ for the columns B of some rows and vectors.

    Attributes:
        rows: numbers of the rows that are taken whole `[S]`.
        vectors: Lanczos vectors `[R, L]`.
        factor: Cholesky factor of $B^⊤ A B$ `[S + L, S + L]`.
    """

    rows: Tensor
    vectors: Tensor
    factor: Tensor

    def seen(self, cross: Tensor) -> Tensor:
        """What is known of new rows with covariances `[M, R]` to the old: `[S + L, M]`; its squares lower variances."""
        return below(self.factor, torch.cat([cross[:, self.rows], cross @ self.vectors], 1).t())


class Damped:
    """A = K + V of one covariance, in units of the mean noise: bounds of `linear_operator` are absolute numbers."""

    def __init__(self, operator: PriorOperator, noise: Tensor, seed: int) -> None:
        self.operator, self.noise = operator, noise
        self.level, self.seed = float(noise.mean()), seed
        self.vectors = min(FREE_LANCZOS if operator.source.held is None else LANCZOS, len(noise))
        self.matrix = AddedDiagLinearOperator(operator.times(1 / self.level), DiagLinearOperator(noise / self.level))

    def solve(self, right: Tensor) -> tuple[Tensor, float]:
        """The inverse of A times `[R, V]`, and the largest relative residual."""
        with self._settings():
            precondition, _, _ = self.matrix._preconditioner()
            found, far = conjugate_gradients(self.matrix._matmul, right, precondition)
        return found / self.level, far

    def log_determinant(self) -> float:
        """Of A, estimated by random probes."""
        with self._settings():
            _, found = self.matrix.inv_quad_logdet(None, logdet=True)
        return float(found) + int(self.matrix.shape[-1]) * math.log(self.level)

    def projection(self, start: Tensor, samples: Tensor, limit: int) -> "Projection":
        """A on the span of some rows and of Lanczos vectors from a start `[R, 1]`.

        Args:
            start: where Lanczos begins.
            samples: numbers of points in random order.
            limit: rows of points that are taken whole.
        """
        source = self.operator.source
        each = source.rows // len(source.x)
        chosen = samples[: max(1, limit // each)].sort().values
        rows = (chosen[:, None] * each + torch.arange(each)).flatten()
        gram = source.block(chosen) + self.noise[rows].diag()
        vectors, images = torch.zeros_like(start)[:, :0], torch.zeros_like(start)[:, :0]
        if len(rows) < len(start):
            vectors, images = self._lanczos(start)
        top = torch.cat([gram, images[rows]], 1)
        below_it = torch.cat([images[rows].t(), vectors.t() @ images], 1)
        factor, _ = cholesky(torch.cat([top, below_it]), "the kernel of the variances")
        return Projection(rows, vectors, factor)

    def _lanczos(self, start: Tensor) -> tuple[Tensor, Tensor]:
        """Orthonormal vectors `[R, L]`, and A times them."""
        noise = torch.randn(start.shape, generator=Streams(self.seed).at("start"), dtype=start.dtype)
        start = start + (0.01 * start.square().mean().sqrt() + 1e-12) * noise  # no start is blind to a direction
        vectors, tridiagonal = lanczos_tridiag(
            self.matrix._matmul, self.vectors, start.dtype, start.device, self.matrix.shape, init_vecs=start
        )
        last = self.matrix._matmul(vectors[:, -1:])
        return vectors, self.level * torch.cat([vectors @ tridiagonal[:, :-1], last], 1)

    @contextmanager
    def _settings(self) -> Iterator[None]:
        with (
            warnings.catch_warnings(),
            settings.max_cholesky_size(1),
            settings.min_preconditioning_size(1),
            settings.max_preconditioner_size(PIVOTS),
            settings.cg_tolerance(LOOSE),
            settings.max_cg_iterations(STEPS),
            settings.num_trace_samples(PROBES),
            settings.max_lanczos_quadrature_iterations(min(QUADRATURE, STEPS, self.matrix.shape[-1])),
            torch.no_grad(),
            seeded(self.seed),
        ):
            warnings.simplefilter("ignore", NumericalWarning)  # the residual is measured, and told
            yield


@dataclass(frozen=True, eq=False)
class Large:
    """A solved Gaussian process of many rows.

    Attributes:
        prior: gives the kernel.
        x: training inputs `[N, *input_shape]`.
        noise: V `[F, R]`.
        basis: H `[R, Q]`.
        targets: `[F, R, T]`.
        weights: $A^{-1} (y - Hβ)$ `[F, R, T]`.
        constants: β `[F, Q, T]`.
        seed: of what is drawn.
    """

    prior: Prior
    x: Tensor
    noise: Tensor
    basis: Tensor
    targets: Tensor
    weights: Tensor
    constants: Tensor
    seed: int = 0
    jitter: float = 0.0

    @cached_property
    def _damped(self) -> list[Damped]:
        """A, one for each covariance."""
        operator = prior_operator(self.prior, self.x, self.seed)
        return [Damped(operator, own, self.seed) for own in self.noise]

    @cached_property
    def log_evidence(self) -> float:
        r"""$\log p(y)$, its determinant estimated."""
        residual = self.targets - self.basis @ self.constants
        determinant = sum(one.log_determinant() for one in self._damped)
        fit = float((residual * self.weights).sum()) + self.targets.shape[2] * determinant
        return -0.5 * (fit + self.targets.numel() * math.log(2 * math.pi))

    @cached_property
    def projections(self) -> list[Projection]:
        """A on a span, one for each covariance."""
        samples = torch.randperm(len(self.x), generator=Streams(self.seed).at("subset"))
        limit = int(SUBSET / math.sqrt(len(self.noise)))
        parts = zip(self._damped, self.targets, strict=True)
        return [one.projection(y[:, :1], samples, limit) for one, y in parts]

    def means(self, x: Tensor) -> Tensor:
        """Means `[F, S, T]` alone, constants left out."""
        return torch.cat([self.prior.kernel(part, self.x) @ self.weights for part in blocks(x, len(self.basis))], 1)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Means `[F, S, T]`, constants left out, and variances `[F, S]`, which may be overstated."""
        parts = []
        for part in blocks(x, self.noise.shape[1]):
            cross = self.prior.kernel(part, self.x)
            seen = torch.stack([one.seen(cross).square().sum(0) for one in self.projections])
            left = self.prior.diagonal(part) - seen
            parts.append((cross @ self.weights, left.clamp_min(0)))
        return torch.cat([mean for mean, _ in parts], 1), torch.cat([variance for _, variance in parts], 1)

    def covariance(self, x: Tensor) -> Tensor:
        """`[F, S, S]`."""
        cross, own = self.prior.kernel(x, self.x), self.prior.kernel(x)
        parts = [one.seen(cross) for one in self.projections]
        return torch.stack([own - seen.t() @ seen for seen in parts])

    def extended(self, x: Tensor, noise: Tensor, basis: Tensor, targets: Tensor) -> Work["Large"]:
        """The same with further points; it is solved anew."""
        noise, basis = torch.cat([self.noise, noise], 1), torch.cat([self.basis, basis])
        targets = torch.cat([self.targets, targets], 1)
        return (yield from large(self.prior, torch.cat([self.x, x]), noise, basis, targets, seed=self.seed))

    def tensors(self) -> dict[str, Tensor]:
        """What `restored` needs."""
        return {**{name: getattr(self, name) for name in _TENSORS}, "seed": torch.tensor(self.seed)}

    @classmethod
    def restored(cls, prior: Prior, tensors: Mapping[str, Tensor]) -> "Large":
        """The inverse of `tensors`."""
        x, noise, basis, targets, weights, constants = (tensors[name] for name in _TENSORS)
        return cls(prior, x, noise, basis, targets, weights, constants, int(tensors["seed"]))


_TENSORS = ("x", "noise", "basis", "targets", "weights", "constants")


def conjugate_gradients(
    product: Callable[[Tensor], Tensor], right: Tensor, precondition: Callable[[Tensor], Tensor]
) -> tuple[Tensor, float]:
    """Solutions `[R, V]` of a positive definite system, and the largest relative residual.

    That of `linear_operator` gives up where steps fall below a fixed size, at residuals of about 1e-5.

    >>> found, far = conjugate_gradients(lambda v: 2 * v, torch.ones(3, 1).double(), lambda v: v)
    >>> found.flatten().tolist(), far
    ([0.5, 0.5, 0.5], 0.0)
    """
    size = right.norm(dim=0).clamp_min(1e-300)
    found, residual = torch.zeros_like(right), right.clone()
    ready = precondition(residual)
    direction, level = ready, (residual * ready).sum(0)
    for _ in range(STEPS):
        if float((residual.norm(dim=0) / size).max()) <= TOLERANCE:
            break
        ahead = product(direction)
        step = level / (direction * ahead).sum(0).clamp_min(1e-300)
        found, residual = found + step * direction, residual - step * ahead
        ready = precondition(residual)
        before, level = level, (residual * ready).sum(0)
        direction = ready + level / before.clamp_min(1e-300) * direction
    return found, float(((product(found) - right).norm(dim=0) / size).max())


def large(prior: Prior, x: Tensor, noise: Tensor, basis: Tensor, targets: Tensor, *, seed: int = 0) -> Work[Large]:
    """The posterior given points with noise `[F, R]` and targets `[F, R, T]`; `seed` is of pivots and probes."""
    require(bool((noise > 0).all()), "conjugate gradients need a noise above 0; give one", DataError)
    rows, size = basis.shape
    require(rows > 1, "one row needs no conjugate gradients; use space='function'", DataError)
    operator = prior_operator(prior, x, seed)
    yield Note(f"{rows:,} rows by conjugate gradients: {min(PIVOTS, rows)} pivots, {operator.source.told()}")
    weights, constants = [], []
    for number, (own, values) in enumerate(zip(noise, targets, strict=True)):
        inverse, far = Damped(operator, own, seed).solve(torch.cat([basis, values], 1))
        require(math.isfinite(far), "conjugate gradients gave numbers that are not finite; raise the noise", DataError)
        if far > 100 * TOLERANCE:
            yield Caution(f"conjugate gradients stopped at a residual of {far:.1e}; raise the noise")
        constants.append(torch.linalg.solve(basis.t() @ inverse[:, :size], basis.t() @ inverse[:, size:]))
        weights.append(inverse[:, size:] - inverse[:, :size] @ constants[-1])
        yield Progress("covariances", number + 1, len(noise))
    return Large(prior, x, noise, basis, targets, torch.stack(weights), torch.stack(constants), seed)
