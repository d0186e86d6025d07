r"""Conjugate gradients and stochastic Lanczos quadrature for positive definite systems given by their products.

Notation: A a matrix of R rows, P its preconditioner, V columns.
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

TOLERANCE = 1e-7  # residual of a solve, relative to its right-hand side
LOOSE = 1e-4  # the same for probes
STEPS = 1000  # largest number of steps of a solve
DRIFT = 20  # after more steps than this, the final residual is computed again
PROBES = 8  # largest number of probes for a determinant
QUADRATURE = 40  # largest number of steps of a probe
ERROR = 1e-4  # target error of the log-determinant, for each row
ENOUGH = 0.1  # error of a log-determinant that is always small enough


class System(Protocol):
    """A positive definite matrix A given by its products, with a preconditioner P ⪯ A near it."""

    @property
    def size(self) -> int:
        """Number of rows of the system."""
        ...

    @property
    def log_determinant(self) -> float:
        """The log-determinant of P."""
        ...

    @property
    def remainder(self) -> float:
        """The trace of A − P in units of the noise, an upper bound of the difference of the log-determinants."""
        ...

    def product(self, columns: Tensor, quick: bool = False) -> Tensor:
        """A times columns; `quick` allows float32."""
        ...

    def precondition(self, columns: Tensor) -> Tensor:
        """The inverse of P times columns."""
        ...

    def precondition_solve(self, columns: Tensor) -> Tensor:
        """The preconditioner of solves: the inverse of P, or a better one."""
        ...

    def sample(self, count: int, rng: Generator) -> Tensor:
        """Random columns with the covariance P."""
        ...


@dataclass(frozen=True, eq=False)
class CgSolution:
    """The result of conjugate gradients.

    Attributes:
        values: the solutions `[R, V]`.
        residual: the largest residual relative to its right-hand side, in the norm of the inverse of P.
        steps: number of steps.
        ritz: for every column, the tridiagonal matrix of its Lanczos process.
    """

    values: Tensor
    residual: float
    steps: int
    ritz: list[Tensor]


def conjugate_gradients(
    product: Callable[[Tensor], Tensor],
    right: Tensor,
    precondition: Callable[[Tensor], Tensor],
    start: Tensor | None = None,
    tolerance: float | None = None,
    max_steps: int | None = None,
) -> CgSolution:
    """Solutions of a positive definite system.

    The version of `linear_operator` stops when steps fall below a fixed size, at residuals of about 1e-5.

    Args:
        product: the matrix times `[R, V]`.
        right: the right-hand sides `[R, V]`.
        precondition: the inverse of P times `[R, V]`.
        start: approximate solutions (default: zeros).
        tolerance: relative residual to reach (default: `TOLERANCE`).
        max_steps: largest number of steps (default: `STEPS`).

    >>> solution = conjugate_gradients(lambda v: 2 * v, torch.ones(3, 1).double(), lambda v: v)
    >>> solution.values.flatten().tolist(), solution.residual, solution.steps
    ([0.5, 0.5, 0.5], 0.0, 1)
    """
    tolerance = TOLERANCE if tolerance is None else tolerance
    values, residual = torch.zeros_like(right), right.clone()
    ready = precondition(residual)
    level = (residual * ready).sum(0)
    size = level.clamp_min(1e-300)
    if start is not None:
        values, residual = start, right - product(start)
        ready = precondition(residual)
        level = (residual * ready).sum(0)
    direction, steps = ready, 0
    alphas, betas, counts = [], [], torch.zeros(right.shape[1]).long()
    for _ in range(STEPS if max_steps is None else max_steps):
        unsolved = (level / size).clamp_min(0).sqrt() > tolerance
        if not bool(unsolved.any()):
            break
        counts += unsolved.cpu()
        image = product(direction)
        step = level / (direction * image).sum(0).clamp_min(1e-300)
        values, residual = values + step * direction, residual - step * image
        ready = precondition(residual)
        before, level = level, (residual * ready).sum(0)
        ratio = level / before.clamp_min(1e-300)
        direction, steps = ready + ratio * direction, steps + 1
        alphas.append(step)
        betas.append(ratio)
    if steps > DRIFT:
        residual = right - product(values)
        level = (residual * precondition(residual)).sum(0)
    far = float((level / size).clamp_min(0).sqrt().max())
    ritz = [_tridiagonal(alphas, betas, column, int(count)) for column, count in enumerate(counts)]
    return CgSolution(values, far, steps, ritz)


def _tridiagonal(alphas: list[Tensor], betas: list[Tensor], column: int, count: int) -> Tensor:
    """The tridiagonal matrix `[count, count]` of the Lanczos process of one column."""
    if count == 0:
        return torch.ones(1, 1).double()
    a = torch.stack([alpha[column] for alpha in alphas[:count]]).double()
    b = torch.stack([beta[column] for beta in betas[:count]]).double()
    diagonal = a.reciprocal()
    diagonal[1:] += b[:-1] / a[:-1]
    off_diagonal = b[:-1].clamp_min(0).sqrt() / a[:-1]
    return diagonal.diag() + off_diagonal.diag(1) + off_diagonal.diag(-1)


def estimate_log_determinant(system: System, seed: int) -> float:
    r"""$\log |P| + \mathrm{tr} \log (P^{-1/2} A P^{-1/2})$, where the trace is Lanczos quadrature over random probes.

    A probe z of n numbers gives $n\, e_1^⊤ \log(T) e_1$ with the tridiagonal T of its Lanczos process. The variance of
    this estimate is $2 n\, e_1^⊤ \log(T)^2 e_1$; it decides how many probes are needed.
    """
    if system.remainder <= 0:
        return system.log_determinant
    aim, rng = max(ENOUGH, ERROR * system.size), Streams(seed).at("probes")
    logs: list[float] = []
    squares: list[float] = []
    needed = 2  # a single probe may miss a rare direction and then estimate its own variance as zero
    while len(logs) < needed:
        solution = conjugate_gradients(
            lambda v: system.product(v, quick=True),
            system.sample(needed - len(logs), rng),
            system.precondition,
            tolerance=LOOSE,
            max_steps=min(QUADRATURE, system.size),
        )
        for matrix in solution.ritz:
            values, vectors = torch.linalg.eigh(matrix)
            weights, log_values = vectors[0].square(), values.clamp_min(1e-300).log()
            logs.append(float(weights @ log_values))
            squares.append(float(weights @ log_values.square()))
        variance = 2 * system.size * sum(squares) / len(squares)
        needed = min(PROBES, math.ceil(variance / aim**2))
    return system.log_determinant + system.size * sum(logs) / len(logs)


def solve_systems(systems: Sequence[System], right: Tensor, start: Tensor | None) -> Work[tuple[Tensor, int]]:
    """Solutions `[F, R, V]` of F systems, and the largest number of steps among them."""
    solutions: list[CgSolution] = []
    for number, (system, columns) in enumerate(zip(systems, right, strict=True)):
        near = None if start is None else start[number]
        solution = conjugate_gradients(system.product, columns, system.precondition_solve, near)
        residual = f"{solution.residual:.1e}"
        require(
            math.isfinite(solution.residual),
            f"conjugate gradients ended with a residual of {residual}, expected a finite one; raise the noise",
            DataError,
        )
        if solution.residual > 100 * TOLERANCE:
            yield Caution(f"conjugate gradients stopped at a residual of {residual}; raise the noise")
        yield Note(f"conjugate gradients took {solution.steps} steps to a residual of {residual}")
        solutions.append(solution)
        yield Progress("covariances", number + 1, len(systems))
    return torch.stack([solution.values for solution in solutions]), max(solution.steps for solution in solutions)
