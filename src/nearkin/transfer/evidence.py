r"""The log evidence of targets, written so that gradients flow through the solve.

$$\log p(y) = -\tfrac12 \big( r^⊤ A^{-1} r + \log |A| + n \log 2π \big), \qquad r = y - Hβ$$

The constants β are those of generalised least squares. The evidence is largest there, so its gradient need not pass
through them. Notation: as in `targets`.
"""

import math

import torch
from torch import Tensor

from nearkin.core.errors import DataError
from nearkin.transfer.cholesky import log_determinant, solve_lower


def dense_log_evidence(covariance: Tensor, basis: Tensor, targets: Tensor, shape: float | None = None) -> Tensor:
    r"""The log evidence `[]` of targets `[F, R, T]` with covariances `[F, R, R]` and constants in `basis` `[R, Q]`.

    With a shape a, all covariances share a size τ with the prior $τ ∼ \mathrm{InvGamma}(a, a)$, which is integrated
    out:

    $$\log p(y) = \log \frac{Γ(a + n/2)}{Γ(a)} - \tfrac n2 \log 2πa
      - \tfrac12 \log |A| - (a + \tfrac n2) \log\Big(1 + \frac{r^⊤ A^{-1} r}{2a}\Big)$$

    >>> one = torch.ones(1, 1, 1).double()
    >>> round(float(dense_log_evidence(2 * one, torch.zeros(1, 0).double(), one)), 6)  # of N(1; 0, 2)
    -1.515512
    >>> round(float(dense_log_evidence(one, torch.zeros(1, 0).double(), one, shape=0.5)), 6)  # of Cauchy's 1 / 2π
    -1.837877
    """
    factor, _, residual = whiten(covariance, basis, targets)
    fit, determinant = residual.square().sum(), targets.shape[2] * log_determinant(factor).sum()
    half = targets.numel() / 2
    if shape is None:
        return -0.5 * (fit + determinant) - half * math.log(2 * math.pi)
    front = math.lgamma(shape + half) - math.lgamma(shape) - half * math.log(2 * math.pi * shape)
    return front - 0.5 * determinant - (shape + half) * (fit / (2 * shape)).log1p()


def whiten(covariance: Tensor, basis: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Factors L `[F, R, R]`, constants β `[F, Q, T]` and the residual $L^{-1}(y - Hβ)$ `[F, R, T]`."""
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if bool(failed.any()):
        raise DataError(f"a covariance of {covariance.shape[-1]} rows is not positive definite; raise the noise")
    return factor, *whitened_residual(factor, basis, targets)


def whitened_residual(factor: Tensor, basis: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    r"""Constants β `[F, Q, T]` and the residual $L^{-1}(y - Hβ)$ `[F, R, T]`, from the factors L of A."""
    z = solve_lower(factor, torch.cat([basis.expand(len(targets), -1, -1), targets], 2))
    h, y = z.split([basis.shape[1], targets.shape[2]], 2)
    constants = torch.linalg.solve(h.mT @ h, h.mT @ y)
    return constants, y - h @ constants


def fitted_constants(squares: Tensor, size: int) -> tuple[Tensor, Tensor]:
    r"""Constants β `[F, Q, T]` and squared residuals `[F, T]` of least squares, from $Z^⊤ A^{-1} Z$ with Z = (H, y).

    >>> fitted_constants(torch.tensor([[[2.0, 4.0], [4.0, 9.0]]]), 1)
    (tensor([[[2.]]]), tensor([[1.]]))
    """
    hh, hy, yy = squares[:, :size, :size], squares[:, :size, size:], squares[:, size:, size:]
    constants = torch.linalg.solve(hh, hy)
    return constants, (yy - hy.mT @ constants).diagonal(dim1=1, dim2=2).clamp_min(0)
