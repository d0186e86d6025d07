r"""Trace, top eigenvalues and log-determinant of a matrix from its products with vectors.

Notation: F is a symmetric positive semi-definite matrix `[P, P]`; `apply` maps `[P, K]` to F times it, `[P, K]`.
Probes z have independent entries ±1, on the device of the generator: $\mathbb{E}\,z^\top f(F)\,z = \mathrm{tr} f(F)$.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Generator, Tensor

from nearkin.core.errors import DataError, MismatchError, OptionError, require

Product: TypeAlias = Callable[[Tensor], Tensor]
"""F times the columns of `[P, K]`."""

MEMORY = 2**27  # values in the bases of one group of Lanczos runs: 1 GiB in float64
NEGATIVE = 0.01  # negative eigenvalues up to this fraction of the largest are rounding errors and count as 0
EXTRA = 4  # additional columns, with which the top eigenvalues converge faster
WIDEST = 6  # blocks in the basis of `top_eigenvalues` before a restart


@dataclass(frozen=True)
class Estimate:
    """A number and its standard error, which includes all known sources of error."""

    value: float
    error: float


@dataclass(frozen=True, eq=False)
class Eigenpairs:
    r"""The largest eigenvalues `[k]`, falling, their vectors `[P, k]`, and error bounds $\|Fv - \theta v\|$."""

    values: Tensor
    vectors: Tensor
    errors: Tensor


def trace(
    apply: Product,
    size: int,
    rng: Generator,
    probes: int = 32,
    method: Literal["hutchinson", "hutch++"] = "hutchinson",
    dtype: torch.dtype = torch.float64,
) -> Estimate:
    r"""Trace of F from products with random vectors.

    Hutchinson's estimate is the mean of $z^\top F z$. Hutch++ (Meyer et al. 2021) computes $\mathrm{tr}\,Q^\top F Q$ on
    the range Q of a sketch of F exactly, and uses the mean over probes only for the rest.

    Args:
        apply: F times `[P, K]`.
        size: P.
        rng: generator of the probes.
        probes: total number of columns that F is applied to; 2 or more, for hutch++ 4 or more.
        method: hutchinson is exact for diagonal F, hutch++ for F of a rank up to a third of the probes.
        dtype: dtype of the probes.

    >>> values = torch.arange(1.0, 6.0, dtype=torch.float64)
    >>> trace(lambda v: values[:, None] * v, 5, torch.Generator().manual_seed(0))
    Estimate(value=15.0, error=0.0)
    """
    methods = {"hutchinson": (2, _hutchinson), "hutch++": (4, _hutch_plus_plus)}
    require(method in methods, f"unknown trace method {method!r}; choose one of {', '.join(methods)}")
    least, estimate = methods[method]
    require(probes >= least, f"{method} needs {least} probes or more, got {probes}")
    return estimate(_checked(apply, size), size, rng, probes, dtype)


def _hutchinson(apply: Product, size: int, rng: Generator, probes: int, dtype: torch.dtype) -> Estimate:
    z = _signs(size, probes, rng, dtype)
    return _mean((z * apply(z)).sum(0))


def _hutch_plus_plus(apply: Product, size: int, rng: Generator, probes: int, dtype: torch.dtype) -> Estimate:
    sketch = min(probes // 3, size)
    q = torch.linalg.qr(apply(_signs(size, sketch, rng, dtype))).Q
    z = _signs(size, probes - 2 * sketch, rng, dtype)
    z = z - q @ (q.T @ z)
    rest = _mean((z * apply(z)).sum(0))
    return Estimate(float((q * apply(q)).sum()) + rest.value, rest.error)


def top_eigenvalues(
    apply: Product,
    size: int,
    k: int,
    rng: Generator,
    tol: float = 1e-6,
    steps: int = 300,
    dtype: torch.dtype = torch.float64,
) -> Eigenpairs:
    r"""The k largest eigenvalues of F, repeated ones repeated, by block Lanczos with restarts.

    The basis is extended by the residuals $F v - \theta v$ of its best vectors, orthogonalised against the basis, until
    every residual is at most `tol` times the largest eigenvalue. Each of at most `steps` steps is one product with
    k + 4 columns. The other arguments are those of `trace`.

    >>> values = torch.tensor([1.0, 5.0, 2.0, 5.0], dtype=torch.float64)
    >>> pairs = top_eigenvalues(lambda v: values[:, None] * v, 4, 3, torch.Generator().manual_seed(0))
    >>> tuple(round(value, 9) for value in pairs.values.tolist())
    (5.0, 5.0, 2.0)
    """
    apply = _checked(apply, size)
    require(1 <= k <= size, f"k must be from 1 to {size}, the number of weights, got {k}")
    require(tol > 0 and steps >= 1, f"tol must be > 0 and steps >= 1, got {tol} and {steps}")
    width = min(k + EXTRA, size)
    new = torch.linalg.qr(torch.randn(size, width, generator=rng, dtype=dtype, device=rng.device)).Q
    basis = images = new[:, :0]
    for _ in range(steps):
        basis, images = torch.cat([basis, new], 1), torch.cat([images, apply(new)], 1)
        values, vectors, moved = _ritz(basis, images)
        residuals = (moved - vectors * values)[:, :width]
        errors, largest = residuals.norm(dim=0)[:k], float(values[0].abs())
        new = _orthonormal(residuals, basis, largest)
        if float(errors.max()) <= tol * largest or new.shape[1] == 0:  # no new vector: F maps the basis into itself
            return Eigenpairs(values[:k].clamp_min(0), vectors[:, :k], errors)
        if basis.shape[1] >= WIDEST * width:
            basis, images = vectors[:, : 2 * width], moved[:, : 2 * width]
    worst = float(errors.max()) / largest
    raise OptionError(f"{steps} steps left a residual of {worst:.1e}, expected {tol:g}; raise steps or tol")


def _ritz(basis: Tensor, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Falling Ritz values `[M]`, their vectors `[P, M]` and F times those, of an orthonormal basis `[P, M]`."""
    inner = basis.T @ images
    values, turn = torch.linalg.eigh((inner + inner.T) / 2)
    turn = turn.flip(1)
    return values.flip(0), basis @ turn, images @ turn


def _orthonormal(block: Tensor, basis: Tensor, scale: float) -> Tensor:
    """Orthonormal directions of a block that are not in the basis and larger than rounding errors of `scale`."""
    block = block - basis @ (basis.T @ block)
    left, sizes, _ = torch.linalg.svd(block, full_matrices=False)
    most = basis.shape[0] - basis.shape[1]
    new: Tensor = left[:, sizes > 10 * torch.finfo(block.dtype).eps * scale][:, :most]
    for _ in range(2):  # once is not enough for directions that are nearly in the basis
        new = torch.linalg.qr(new - basis @ (basis.T @ new)).Q
    return new


def log_determinant(
    apply: Product,
    size: int,
    scale: float,
    rng: Generator,
    probes: int = 16,
    steps: int = 40,
    dtype: torch.dtype = torch.float64,
) -> Estimate:
    r"""$\log|I + cF|$ by stochastic Lanczos quadrature (Ubaru et al. 2017), without forming the matrix.

    Each $z^\top \log(I + cF)\,z$ lies between the Gauss-Radau rule with a point at 0 and the Gauss rule of its Lanczos
    matrix, because the even derivatives of the logarithm are negative and the odd ones positive. The value is the mean
    of the two; the error is the standard error of the probes plus half the distance of the two. The scale c is >= 0.
    `steps` is the number of products per probe; from the number of distinct eigenvalues on, only the error of the
    probes is left. The other arguments are those of `trace`.

    >>> values = torch.tensor([1.0, 3.0, 3.0, 7.0], dtype=torch.float64)
    >>> estimate = log_determinant(lambda v: values[:, None] * v, 4, 1.0, torch.Generator().manual_seed(0))
    >>> abs(estimate.value - math.log(2 * 4 * 4 * 8)) < 1e-9, estimate.error < 1e-9
    (True, True)
    """
    return lanczos_quadrature(apply, size, rng, probes, steps, dtype).log_determinant(scale)


@dataclass(frozen=True, eq=False)
class LanczosQuadrature:
    r"""Quadrature of $\mathrm{tr} f(F)$ from Lanczos runs: one set of products serves every f and every scale.

    Attributes:
        alphas: diagonals `[K, M]` of the Lanczos matrices of K probes.
        betas: their off-diagonals `[K, M]`; the last one is outside of the matrix.
        size: P.
    """

    alphas: Tensor
    betas: Tensor
    size: int

    def log_determinant(self, scale: float) -> Estimate:
        r"""$\log|I + cF|$, see the function of the same name."""
        return self._bracketed(torch.log1p, scale)

    def effective_dimension(self, scale: float) -> Estimate:
        r"""$\mathrm{tr}\, cF(I + cF)^{-1}$, the number of directions in which cF is above 1, weighted smoothly."""
        return self._bracketed(lambda values: values / (1 + values), scale)

    def _bracketed(self, function: Callable[[Tensor], Tensor], scale: float) -> Estimate:
        """Between the rules of Gauss and Gauss-Radau, for f with negative even and positive odd derivatives."""
        require(math.isfinite(scale) and scale >= 0, f"the scale must be >= 0 and finite, got {scale}")
        upper = self.size * _quadrature(self.alphas, self.betas, scale, function)
        lower = self.size * _quadrature(_radau(self.alphas, self.betas), self.betas, scale, function)
        middle = _mean((upper + lower) / 2)
        return Estimate(middle.value, middle.error + abs(float((upper - lower).mean())) / 2)


def lanczos_quadrature(
    apply: Product,
    size: int,
    rng: Generator,
    probes: int = 16,
    steps: int = 40,
    dtype: torch.dtype = torch.float64,
) -> LanczosQuadrature:
    """The Lanczos runs of `log_determinant`, with its arguments.

    >>> values = torch.tensor([1.0, 3.0, 3.0, 7.0], dtype=torch.float64)
    >>> quadrature = lanczos_quadrature(lambda v: values[:, None] * v, 4, torch.Generator().manual_seed(0))
    >>> abs(quadrature.effective_dimension(1.0).value - (1 / 2 + 3 / 4 + 3 / 4 + 7 / 8)) < 1e-9
    True
    """
    require(probes >= 2 and steps >= 1, f"probes must be >= 2 and steps >= 1, got {probes} and {steps}")
    apply, steps = _checked(apply, size), min(steps, size)
    group = max(1, MEMORY // (size * steps))
    runs = [
        _lanczos(apply, _signs(size, min(group, probes - start), rng, dtype), steps)
        for start in range(0, probes, group)
    ]
    alphas, betas = (torch.cat(parts) for parts in zip(*runs, strict=True))
    return LanczosQuadrature(alphas, betas, size)


def _lanczos(apply: Product, z: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Diagonals α and off-diagonals β `[K, M]` of the Lanczos matrices of probes `[P, K]`, fully reorthogonalised.

    The last β is outside of the matrix. A run that has reached its whole Krylov space continues with zeros.
    """
    q, eps = z / z.norm(dim=0), torch.finfo(z.dtype).eps
    basis, alphas, betas = z.new_zeros(steps, *z.shape), z.new_zeros(steps, z.shape[1]), z.new_zeros(steps, z.shape[1])
    for m in range(steps):
        basis[m] = q
        w = apply(q)
        alphas[m] = (q * w).sum(0)
        for _ in range(2):  # two Gram-Schmidt steps keep the basis orthogonal up to rounding
            w = w - torch.einsum("mpk,mk->pk", basis[: m + 1], torch.einsum("mpk,pk->mk", basis[: m + 1], w))
        beta = w.norm(dim=0)
        betas[m] = beta.where(beta > 10 * eps * torch.cat([alphas, betas]).abs().amax(0), 0.0)
        q = w / betas[m].where(betas[m] > 0, torch.inf)
    return alphas.T, betas.T


def _radau(alphas: Tensor, betas: Tensor) -> Tensor:
    """Diagonals `[K, M + 1]`; the last entry makes the last pivot zero, so that the matrix has the eigenvalue 0."""
    floor = (alphas.amax(1) * torch.finfo(alphas.dtype).eps).clamp_min(torch.finfo(alphas.dtype).tiny)
    pivot = alphas[:, 0].maximum(floor)
    for alpha, beta in zip(alphas.T[1:], betas.T, strict=False):
        pivot = (alpha - beta.square() / pivot).maximum(floor)
    return torch.cat([alphas, (betas[:, -1].square() / pivot)[:, None]], 1)


def _quadrature(alphas: Tensor, betas: Tensor, scale: float, function: Callable[[Tensor], Tensor]) -> Tensor:
    r"""$\sum_i u_i^2 f(c\theta_i)$ `[K]` of the matrices' eigenvalues θ and their vectors' first entries u."""
    beside = betas[:, : alphas.shape[1] - 1]
    points, vectors = torch.linalg.eigh(alphas.diag_embed() + beside.diag_embed(1) + beside.diag_embed(-1))
    least, largest = float(points.min()), float(points.max())
    require(
        least >= -NEGATIVE * abs(largest),
        f"the product has an eigenvalue of {least:.3g} beside one of {largest:.3g}, expected none below 0; "
        f"use a Fisher or Gauss-Newton product, not a Hessian product",
        DataError,
    )
    sums: Tensor = (vectors[:, 0].square() * function(scale * points.clamp_min(0))).sum(-1)
    return sums


def _signs(size: int, count: int, rng: Generator, dtype: torch.dtype) -> Tensor:
    """Probes `[P, K]` of ±1."""
    return torch.randint(2, (size, count), generator=rng, device=rng.device).to(dtype) * 2 - 1


def _mean(values: Tensor) -> Estimate:
    """Mean of `[K]` and its standard error."""
    return Estimate(float(values.mean()), float(values.std() / math.sqrt(len(values))))


def _checked(apply: Product, size: int) -> Product:
    """The same product with a check of the shape of its results and that they are finite."""
    require(size >= 1, f"the size is a count of weights >= 1, got {size}")

    def product(block: Tensor) -> Tensor:
        image = apply(block)
        got, expected = tuple(image.shape), tuple(block.shape)
        require(got == expected, f"the product gives shape {got} for vectors of shape {expected}", MismatchError)
        require(bool(image.isfinite().all()), "the product is not finite; check weights and data for NaN", DataError)
        return image

    return product
