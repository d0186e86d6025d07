r"""The log evidence written out, so that gradients flow through the solve.

$$\log p(y) = -\tfrac12 \big( r^⊤ A^{-1} r + \log |A| + n \log 2π \big), \qquad r = y - Hβ$$

with the constants β of generalised least squares, at which the evidence is largest, so that its gradient need not pass
through them. Notation: as in `targets`.
"""

import math

import torch
from torch import Tensor

from nearkin.core.errors import DataError
from nearkin.transfer.cholesky import below, log_determinant


def dense_log_evidence(covariance: Tensor, basis: Tensor, targets: Tensor) -> Tensor:
    """The log evidence `[]` of targets `[F, R, T]` with covariances `[F, R, R]` and constants in `basis` `[R, Q]`.

    >>> one = torch.ones(1, 1, 1).double()
    >>> round(float(dense_log_evidence(2 * one, torch.zeros(1, 0).double(), one)), 6)  # of N(1; 0, 2)
    -1.515512
    """
    factor, _, residual = whitened(covariance, basis, targets)
    fit = residual.square().sum() + targets.shape[2] * log_determinant(factor).sum()
    return -0.5 * (fit + targets.numel() * math.log(2 * math.pi))


def whitened(covariance: Tensor, basis: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Factors L `[F, R, R]`, constants β `[F, Q, T]` and the residual $L^{-1}(y - Hβ)$ `[F, R, T]`."""
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if bool(failed.any()):
        raise DataError(f"a covariance of {covariance.shape[-1]} rows is not positive definite; raise the noise")
    z = below(factor, torch.cat([basis.expand(len(targets), -1, -1), targets], 2))
    h, y = z.split([basis.shape[1], targets.shape[2]], 2)
    constants = torch.linalg.solve(h.mT @ h, h.mT @ y)
    return factor, constants, y - h @ constants
