r"""Positive definite systems by their products alone: conjugate gradients, and stochastic Lanczos quadrature.

Notation: A a matrix of R rows, P what it is preconditioned by, V columns side by side.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Generator, Tensor

from nearkin.core.errors import DataError, require
from nearkin.core.events import Caution, Note, Progress, Work
from nearkin.core.rng import Streams

TOLERANCE = 1e-7  # of a solve, relative to its right-hand side
LOOSE = 1e-4  # the same of probes
STEPS = 1000  # at the most
DRIFT = 20  # steps after which a residual is measured and not believed
PROBES = 8  # of a determinant, at the most
QUADRATURE = 40  # steps of a probe, at the most
ERROR = 1e-4  # of the determinant that probes aim at, a row
ENOUGH = 0.1  # error of a determinant that is always good enough


class System(Protocol):
    """A positive definite matrix by its products, and what it is preconditioned by, P: near it and not above it."""

    @property
    def size(self) -> int:
        """Its rows."""
        ...

    @property
    def level(self) -> float:
        """The log-determinant of P."""
        ...

    @property
    def left(self) -> float:
        """The trace of what P leaves, in units of the noise; a bound of what the log-determinants differ by."""
        ...

    def product(self, columns: Tensor, quick: bool = False) -> Tensor:
        """The matrix times columns; may round to float32 if `quick`."""
        ...

    def precondition(self, columns: Tensor) -> Tensor:
        """The inverse of P times columns."""
        ...

    def hasten(self, columns: Tensor) -> Tensor:
        """What solves are preconditioned by: the inverse of P, or better than that."""
        ...

    def drawn(self, count: int, rng: Generator) -> Tensor:
        """Columns of numbers with the covariance P."""
        ...


@dataclass(frozen=True, eq=False)
class Solved:
    """What conjugate gradients found.

    Attributes:
        values: the solutions `[R, V]`.
        far: the largest residual relative to its right-hand side, in the norm of the inverse of P.
        steps: that were taken.
        ritz: of every column the tridiagonal matrix of its Lanczos process.
    """

    values: Tensor
    far: float
    steps: int
    ritz: list[Tensor]


def conjugate_gradients(
    product: Callable[[Tensor], Tensor],
    right: Tensor,
    precondition: Callable[[Tensor], Tensor],
    start: Tensor | None = None,
    tolerance: float | None = None,
    most: int | None = None,
) -> Solved:
    """Solutions of a positive definite system.

    That of `linear_operator` gives up where steps fall below a fixed size, at residuals of about 1e-5.

    Args:
        product: the matrix times `[R, V]`.
        right: the right-hand sides `[R, V]`.
        precondition: the inverse of P times `[R, V]`.
        start: what is near the solutions; nothing if None.
        tolerance: of the residuals.
        most: steps.

    >>> found = conjugate_gradients(lambda v: 2 * v, torch.ones(3, 1).double(), lambda v: v)
    >>> found.values.flatten().tolist(), found.far, found.steps
    ([0.5, 0.5, 0.5], 0.0, 1)
    """
    tolerance, most = TOLERANCE if tolerance is None else tolerance, STEPS if most is None else most
    found, residual = torch.zeros_like(right), right.clone()
    ready = precondition(residual)
    level = (residual * ready).sum(0)
    size = level.clamp_min(1e-300)
    if start is not None:
        found, residual = start, right - product(start)
        ready = precondition(residual)
        level = (residual * ready).sum(0)
    direction, steps = ready, 0
    alphas, betas, counts = [], [], torch.zeros(right.shape[1]).long()
    for _ in range(most):
        open_ = (level / size).clamp_min(0).sqrt() > tolerance
        if not bool(open_.any()):
            break
        counts += open_.cpu()
        ahead = product(direction)
        step = level / (direction * ahead).sum(0).clamp_min(1e-300)
        found, residual = found + step * direction, residual - step * ahead
        ready = precondition(residual)
        before, level = level, (residual * ready).sum(0)
        ratio = level / before.clamp_min(1e-300)
        direction, steps = ready + ratio * direction, steps + 1
        alphas.append(step)
        betas.append(ratio)
    if steps > DRIFT:
        residual = right - product(found)
        level = (residual * precondition(residual)).sum(0)
    far = float((level / size).clamp_min(0).sqrt().max())
    ritz = [_tridiagonal(alphas, betas, v, int(count)) for v, count in enumerate(counts)]
    return Solved(found, far, steps, ritz)


def _tridiagonal(alphas: list[Tensor], betas: list[Tensor], column: int, count: int) -> Tensor:
    """The matrix of the Lanczos process behind the steps of one column `[steps, steps]`."""
    if count == 0:
        return torch.ones(1, 1).double()
    a = torch.stack([one[column] for one in alphas[:count]]).double()
    b = torch.stack([one[column] for one in betas[:count]]).double()
    diagonal = a.reciprocal()
    diagonal[1:] += b[:-1] / a[:-1]
    beside = b[:-1].clamp_min(0).sqrt() / a[:-1]
    return diagonal.diag() + beside.diag(1) + beside.diag(-1)


def log_determinant_of(system: System, seed: int) -> float:
    r"""Of a system, $\log |P| + \mathrm{tr} \log (P^{-1/2} A P^{-1/2})$, the trace by Lanczos quadrature of probes.

    A probe z of n numbers gives $n\, e_1^⊤ \log(T) e_1$ with the tridiagonal T of its Lanczos process, and by
    $2 n\, e_1^⊤ \log(T)^2 e_1$ also the variance of that, so that there are no more probes than it takes.
    """
    if system.left <= 0:
        return system.level
    aim, rng = max(ENOUGH, ERROR * system.size), Streams(seed).at("probes")
    logs: list[float] = []
    squares: list[float] = []
    wanted = 2  # one alone may miss what is rare, and then finds itself exact
    while len(logs) < wanted:
        solved = conjugate_gradients(
            lambda v: system.product(v, quick=True),
            system.drawn(wanted - len(logs), rng),
            system.precondition,
            tolerance=LOOSE,
            most=min(QUADRATURE, system.size),
        )
        for matrix in solved.ritz:
            values, vectors = torch.linalg.eigh(matrix)
            weigh, found = vectors[0].square(), values.clamp_min(1e-300).log()
            logs.append(float(weigh @ found))
            squares.append(float(weigh @ found.square()))
        variance = 2 * system.size * sum(squares) / len(squares)
        wanted = min(PROBES, math.ceil(variance / aim**2))
    return system.level + system.size * sum(logs) / len(logs)


def solve_systems(systems: Sequence[System], right: Tensor, start: Tensor | None) -> Work[tuple[Tensor, int]]:
    """Solutions `[F, R, V]` of systems side by side, and the most steps that one took."""
    found, steps = [], 0
    for number, (system, columns) in enumerate(zip(systems, right, strict=True)):
        near = None if start is None else start[number]
        one = conjugate_gradients(system.product, columns, system.hasten, near)
        require(
            math.isfinite(one.far), "conjugate gradients gave numbers that are not finite; raise the noise", DataError
        )
        if one.far > 100 * TOLERANCE:
            yield Caution(f"conjugate gradients stopped at a residual of {one.far:.1e}; raise the noise")
        yield Note(f"conjugate gradients took {one.steps} steps to a residual of {one.far:.1e}")
        found.append(one.values)
        steps = max(steps, one.steps)
        yield Progress("covariances", number + 1, len(systems))
    return torch.stack(found), steps
