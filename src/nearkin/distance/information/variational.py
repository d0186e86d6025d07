r"""Numerical minimisation over the covariance of the weights, as a check of the closed form on small models.

$$\min_\Sigma \; \mathbb{E}_{w \sim N(\mu, \Sigma)}[L(w)] + \beta\,\mathrm{KL}(N(\mu, \Sigma) \| N(w_0, \lambda^2 I))$$

The expectation is the mean over the 2P points $\mu \pm \sqrt{P}\,R q_i$ with $\Sigma = R R^\top$ and orthonormal $q_i$:
a cubature rule that is exact for polynomials of degree 3 in w. For a quadratic loss the minimum is therefore exact; for
a network it shows what the second-order expansion of the closed form leaves out.

Notation: P weights.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from nearkin.core.errors import DataError, require, require_positive
from nearkin.distance.quasi_newton import minimise
from nearkin.distance.reachability.potentials import require_point

FORMS = ("full", "diagonal")


@dataclass(frozen=True, eq=False)
class VariationalComplexity:
    """Minimum over the covariance.

    Attributes:
        complexity: expected loss + β · information.
        expected_loss: mean loss over the points of the cubature rule.
        information: KL divergence from the prior in nats.
        covariance: the minimiser `[P, P]`.
    """

    complexity: float
    expected_loss: float
    information: float
    covariance: Tensor


def optimal_covariance(curvature: Tensor, beta: float, prior_variance: float) -> Tensor:
    r"""$\Sigma^* = \beta(H + \frac{\beta}{\lambda^2} I)^{-1}$ `[P, P]` for the curvature H of the summed loss.

    >>> optimal_covariance(torch.tensor([[3.0]]), 1.0, 1.0)
    tensor([[0.2500]])
    """
    require_positive("beta", beta)
    require_positive("prior_variance", prior_variance)
    precision = curvature / beta + torch.eye(len(curvature)).to(curvature) / prior_variance
    covariance: Tensor = torch.linalg.inv(precision)
    return covariance


def minimise_over_covariance(
    loss: Callable[[Tensor], Tensor],
    mean: Tensor,
    beta: float,
    prior_variance: float,
    *,
    prior_mean: Tensor | None = None,
    form: str = "full",
    rng: Generator | None = None,
    iterations: int = 500,
) -> VariationalComplexity:
    """Minimise expected loss plus information over Σ by L-BFGS, at a fixed mean.

    Args:
        loss: summed loss of several weight vectors, `[K, P]` to `[K]`.
        mean: μ `[P]`.
        beta: price of information.
        prior_variance: λ².
        prior_mean: w₀ `[P]` (default: 0).
        form: `full` or `diagonal` covariance.
        rng: generator that turns the directions q at random (default: the axes of R).
        iterations: largest number of iterations.

    >>> quadratic = lambda w: 1.5 * w[:, 0].square()
    >>> found = minimise_over_covariance(quadratic, torch.zeros(1), 1.0, 1.0)
    >>> round(found.complexity / (0.5 * math.log(4)), 6), round(found.covariance.item(), 6)
    (1.0, 0.25)
    """
    require_positive("beta", beta)
    require_positive("prior_variance", prior_variance)
    require(form in FORMS, f"the form of the covariance is one of {', '.join(FORMS)}, got {form!r}")
    require_point(mean)
    mean = mean.detach().double()
    size, centre = len(mean), torch.zeros_like(mean) if prior_mean is None else prior_mean.double()
    directions = torch.eye(size, dtype=mean.dtype)
    if rng is not None:
        directions = torch.linalg.qr(torch.randn(size, size, generator=rng, dtype=mean.dtype)).Q
    points = math.sqrt(size) * torch.cat([directions, -directions])
    logarithms = torch.full((size,), math.log(prior_variance) / 2, dtype=mean.dtype, requires_grad=True)
    lower = torch.zeros(size, size, dtype=mean.dtype, requires_grad=True)
    variables = [logarithms] if form == "diagonal" else [logarithms, lower]

    def root() -> Tensor:
        diagonal = logarithms.exp().diag_embed()
        return diagonal if form == "diagonal" else diagonal @ (torch.eye(size).to(mean) + lower.tril(-1))

    def terms() -> tuple[Tensor, Tensor]:
        factor = root()
        expected = loss(mean + points @ factor.T).mean()
        spread = ((mean - centre).square().sum() + factor.square().sum()) / prior_variance
        return expected, (spread - size + size * math.log(prior_variance) - 2 * logarithms.sum()) / 2

    def objective() -> Tensor:
        expected, information = terms()
        return expected + beta * information

    minimise(objective, variables, iterations)
    with torch.no_grad():
        (expected, information), factor = terms(), root()
    total = float(expected + beta * information)
    require(math.isfinite(total), f"the minimisation ended at {total}; check the loss for NaN", DataError)
    return VariationalComplexity(total, float(expected), float(information), factor @ factor.T)
