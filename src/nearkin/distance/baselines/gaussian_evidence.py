r"""Largest evidence of a Gaussian process over its signal and noise variances, for one kernel.

Notation: N samples, P columns of targets, K a kernel `[N, N]`, λ its eigenvalues, ρ signal over noise, μ = 1/ρ.

With $y \sim \mathcal N(0, v(I + \rho K))$ the best v for a given ρ is $q(\rho)/N$, $q = y^\top (I + \rho K)^{-1} y$,
and the evidence is then a function of one number:

$$\log p(\rho) = -\tfrac N2 \log\frac{2\pi e\, q(\rho)}{N} - \tfrac12 \sum_i \log(1 + \rho\lambda_i)$$

It may have several maxima; a grid finds the highest, and bracketed Newton steps refine it. Neither needs an
eigenvector: K (or $F^\top F$ if the kernel is $F F^\top$ of fewer features than samples) is reduced to tridiagonal
form T once, and every value of ρ after that costs one tridiagonal solve.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearkin.core.errors import DataError, require
from nearkin.core.lazy import Lazy

blas, lapack = Lazy("scipy.linalg.blas"), Lazy("scipy.linalg.lapack")

REACH = 12  # decades of ρ λ_max on both sides of 1: noise is never below 1e-12 of the largest signal
PER_DECADE = 2  # grid points; maxima of the evidence are wider than a decade of ρ, so none lies between two of these
NEGATIVE = 1e-4  # eigenvalues down to minus this share of the largest are rounding errors and count as 0
STEPS = 40
CLOSE = 1e-9  # in log ρ

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Reduced:
    r"""A kernel and targets in a basis where the kernel is tridiagonal.

    Attributes:
        diagonal: of T `[R]`, scaled so that its largest eigenvalue is 1; all 0 for a kernel of zeros.
        beside: entries next to the diagonal `[R − 1]`.
        values: eigenvalues of T `[R]`.
        right: targets in the basis of T `[R, P]`; for a primal form features times targets.
        squares: squared norms of the targets `[P]`.
        count: N.
        primal: whether T is of $F^\top F$ and not of the kernel.
    """

    diagonal: Array
    beside: Array
    values: Array
    right: Array
    squares: Array
    count: int
    primal: bool


def of_features(features: Tensor, targets: Tensor) -> Reduced:
    r"""The kernel $F F^\top$ of features `[N, D]` with targets `[N, P]`, from the smaller of its two Gram matrices."""
    if features.shape[1] == 1:  # a tridiagonal matrix has two rows or more
        features = torch.cat([features, torch.zeros_like(features)], 1)
    features = features / (float(features.abs().max()) or 1.0)  # so that its square does not overflow
    f, y = features.contiguous().numpy(), targets.numpy()
    primal = f.shape[1] < f.shape[0]
    gram = blas.dsyrk(1.0, f.T, lower=1, trans=0 if primal else 1)
    return _reduced(gram, f.T @ y if primal else y, y, primal)


def of_kernel(kernel: Tensor, targets: Tensor) -> Reduced:
    """A symmetric kernel `[N, N]` with targets `[N, P]`."""
    return _reduced(kernel.numpy(), targets.numpy(), targets.numpy(), primal=False)


def _reduced(gram: Array, right: Array, targets: Array, primal: bool) -> Reduced:
    """Reads the lower triangle of the Gram matrix."""
    size, right = len(gram), np.array(right, order="F")
    packed, diagonal, beside, tau, _ = lapack.dsytrd(np.asfortranarray(gram), lower=1, lwork=64 * size)
    right[1:] = lapack.dormqr("L", "T", packed[1:, :-1], tau, right[1:], 64 * max(size, right.shape[1]))[0]
    values = lapack.dsterf(diagonal, beside)[0]
    scale, low = max(0.0, float(values[-1])), max(0.0, -float(values[0]))
    require(
        low <= NEGATIVE * scale,
        f"the kernel has eigenvalues from {-low:.3g} to {scale:.3g}, expected none below 0; give the inner products of "
        f"features",
        DataError,
    )
    if scale > 0:  # shift eigenvalues that rounding made negative; the solver needs values >= 0
        diagonal, beside, values = (diagonal + low) / scale, beside / scale, (values + low) / scale
        values = np.where(values > size * np.finfo(np.float64).eps, values, 0.0)
        right = right / math.sqrt(scale) if primal else right
    else:
        diagonal, beside, values = np.zeros(size), np.zeros(size - 1), np.zeros(size)
    return Reduced(diagonal, beside, values, right, np.square(targets).sum(0), len(targets), primal)


def largest_evidence(reduced: Reduced, shared: bool = False) -> Tensor:
    """Maximised log evidence ÷ N of every column of targets `[P]`, or their mean `[1]` under a shared signal and noise.

    If the targets lie in the span of fewer features than samples, the evidence is unbounded; the value at a noise of
    1e-12 of the largest signal is returned.
    """
    zero = reduced.squares <= 0
    require(
        not (zero.all() if shared else zero.any()),
        f"target column {int(zero.argmax())} is zero everywhere, so its evidence is unbounded; remove this column",
        DataError,
    )
    groups = [slice(None)] if shared else [slice(k, k + 1) for k in range(len(zero))]
    points = np.linspace(-REACH, REACH, 2 * REACH * PER_DECADE + 1) * math.log(10)
    grid = np.array([_evidence(reduced, u, shared) for u in points])  # [G, P]
    highest = [_refined(reduced, group, points, grid[:, k]) for k, group in enumerate(groups)]
    return torch.tensor(highest, dtype=torch.float64)


def _evidence(reduced: Reduced, u: float, shared: bool = False, group: slice = slice(None)) -> Array:
    """Evidence ÷ N at the logarithm u of ρ λ_max, of every column `[P]` or of all together `[1]`."""
    noise, right = math.exp(-u), reduced.right[:, group]
    inner = np.einsum("rp,rp->p", right, _solved(reduced, noise, right))
    q = reduced.squares[group] - inner if reduced.primal else noise * inner
    q = np.maximum(q.mean(keepdims=True) if shared else q, np.finfo(np.float64).tiny)
    logs = np.log1p(reduced.values / noise).sum() / reduced.count
    return np.asarray(-0.5 * (math.log(2 * math.pi) + 1 + np.log(q / reduced.count) + logs))


def _solved(reduced: Reduced, noise: float, right: Array) -> Array:
    r"""$(T + \mu I)^{-1} b$."""
    return np.asarray(lapack.dptsv(reduced.diagonal + noise, reduced.beside, right)[2])


def _refined(reduced: Reduced, group: slice, points: Array, grid: Array) -> float:
    """The highest evidence near the highest point of the grid."""
    best = int(grid.argmax())
    low, at, high = points[max(best - 1, 0)], points[best], points[min(best + 1, len(points) - 1)]
    for _ in range(STEPS):
        slope, bend = _slope(reduced, group, at)
        low, high = (at, high) if slope > 0 else (low, at)
        newton = at - slope / bend if bend < 0 else math.inf
        new = newton if low < newton < high else (low + high) / 2
        if abs(new - at) < CLOSE:
            break
        at = new
    return max(float(grid[best]), float(_evidence(reduced, at, True, group)[0]))


def _slope(reduced: Reduced, group: slice, u: float) -> tuple[float, float]:
    r"""First and second derivative of twice the evidence ÷ N in u.

    With $s = \lambda/(\lambda + \mu)$ they are sums of $z^2 s(1-s)$ and $z^2 s(1-s)(1-2s)$ over q, minus those of s,
    written with $b^\top R^j b$, $R = (T + \mu I)^{-1}$.
    """
    noise, right = math.exp(-u), reduced.right[:, group]
    x = _solved(reduced, noise, right)
    a, b = noise * float((right * x).sum()), noise**2 * float((x * x).sum())
    c = noise**3 * float((x * _solved(reduced, noise, x)).sum())
    if reduced.primal:
        q, first, second = float(reduced.squares[group].sum()) - a / noise, b / noise, (2 * c - b) / noise
    else:
        q, first, second = a, a - b, -a + 3 * b - 2 * c
    q = max(q, np.finfo(np.float64).tiny)
    share = reduced.values / (reduced.values + noise)
    rise = first / q
    return (rise - share.sum() / reduced.count,
            second / q + rise**2 - (share * (1 - share)).sum() / reduced.count)  # fmt: skip
