r"""The mode of class scores with a Gaussian prior under the softmax, by Newton's method, and the posterior around it.

After Rasmussen and Williams, algorithms 3.3 and 3.4.

Notation: N points, M new ones, C classes; π `[N, C]` probabilities, y `[N, C]` labels as ones and zeros, S the prior
covariance `[N, N]` of every class, m the prior mean; for each class
$E_c = D_c^{1/2} (I + D_c^{1/2} S D_c^{1/2})^{-1} D_c^{1/2}$ with $D_c = \mathrm{diag}(π_c)$, and
$W_n = \mathrm{diag}(π_n) - π_n π_n^⊤$.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nearkin.transfer.cholesky import cholesky, log_determinant, solve_cholesky

STEPS = 100
CLOSE = 1e-9  # relative increase of the objective at which Newton's method stops
TINY = 1e-12  # smallest probability in the curvature


@dataclass(frozen=True, eq=False)
class Mode:
    r"""The maximum of the posterior of the scores.

    Attributes:
        f: scores `[N, C]`.
        weights: $a = S^{-1}(f - m) = y - π$ at the mode, `[N, C]`.
        e: $E_c$ `[C, N, N]`.
        m: the Cholesky factor of $\sum_c E_c$.
        log_evidence: Laplace's approximation of the log evidence.
        converged: whether Newton's method converged.
    """

    f: Tensor
    weights: Tensor
    e: Tensor
    m: Tensor
    log_evidence: float
    converged: bool

    def covariances(self, cross: Tensor, own: Tensor) -> Tensor:
        """Covariances `[M, C, C]` of scores, from kernels with training points `[M, N]` and prior variances `[M]`."""
        seen = torch.stack([cross @ own_class for own_class in self.e])  # [C, M, N]
        shared = torch.linalg.solve_triangular(self.m, seen.mT, upper=False)  # [C, N, M]
        rest = own[:, None] - torch.einsum("cmn,mn->mc", seen, cross)
        return torch.einsum("cnm,dnm->mcd", shared, shared) + torch.diag_embed(rest)

    def left_out(self, covariance: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        r"""Means `[N, C]` and covariances `[N, C, C]` of every point's scores from all other points.

        The posterior is the prior times one Gaussian factor for each point, of precision $W_n$ and gradient $y_n - π_n$
        at the mode. Without its own factor, the marginal of a point $N(f_n, Σ_n)$ becomes

        $$Σ_{-n} = (I - Σ_n W_n)^{-1} Σ_n, \qquad f_{-n} = f_n - Σ_{-n} (y_n - π_n).$$

        The other factors are not changed; an exact fit without the point would change them slightly.
        """
        p = self.f.softmax(1)
        curvature = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        known = self.covariances(covariance, covariance.diagonal())
        left_out = torch.linalg.solve(torch.eye(p.shape[1]).to(p) - known @ curvature, known)
        left_out = (left_out + left_out.mT) / 2
        residual = F.one_hot(labels, p.shape[1]).to(p) - p
        return self.f - (left_out @ residual[:, :, None])[..., 0], left_out


def newton(covariance: Tensor, labels: Tensor, mean: Tensor, weights: Tensor, close: float = CLOSE) -> Mode:
    """The mode of the scores with the prior `N(mean, covariance)` for each class, starting at weights `[N, C]`.

    A step that lowers the objective is halved until it does not. The method stops when a step increases the objective
    by less than `close`, relative to its size.
    """
    y = F.one_hot(labels, mean.shape[1]).double().to(covariance)

    def objective(a: Tensor) -> float:
        f = mean + covariance @ a
        return float(-0.5 * (a * (f - mean)).sum() + (y * f.log_softmax(1)).sum())

    value, converged = objective(weights), False
    for _ in range(STEPS):
        f = mean + covariance @ weights
        p = f.softmax(1)
        e, m, _ = _curvature(covariance, p)
        b = p * (f - mean) - p * (p * (f - mean)).sum(1, keepdim=True) + y - p
        c = torch.einsum("cnm,mc->nc", e, covariance @ b)
        wanted = b - c + torch.einsum("cnm,mk->nc", e, solve_cholesky(m, c.sum(1, keepdim=True)))
        step, size = wanted - weights, 1.0
        while (new := objective(weights + size * step)) < value and size > 1e-6:
            size /= 2
        if size <= 1e-6:
            converged = True
            break
        weights = weights + size * step
        grown, value = new - value, new
        if grown <= close * (1 + abs(value)):
            converged = True
            break
    f = mean + covariance @ weights
    e, m, log_b = _curvature(covariance, f.softmax(1))
    evidence = value - 0.5 * (log_b + float(log_determinant(m)))
    return Mode(f, weights, e, m, evidence, converged)


def _curvature(covariance: Tensor, p: Tensor) -> tuple[Tensor, Tensor, float]:
    """$E_c$ `[C, N, N]`, the factor of their sum, and the summed log-determinants of $I + D^{1/2} K D^{1/2}$."""
    matrices, total = [], 0.0
    for c in range(p.shape[1]):
        root = p[:, c].clamp_min(TINY).sqrt()
        factor, _ = cholesky(torch.eye(len(p)).to(covariance) + root[:, None] * covariance * root)
        matrices.append(root[:, None] * torch.cholesky_inverse(factor) * root)
        total += float(log_determinant(factor))
    e = torch.stack(matrices)
    m, _ = cholesky(e.sum(0), "the curvature of the labels")
    return e, m, total
