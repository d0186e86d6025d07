r"""Structure function of a task: the smallest expected loss for a limited amount of information in the weights.

$$S_D(t) = \min_{\mathrm{KL}(Q \| P) \le t} \mathbb{E}_Q[L]$$

Each β gives one point of it: the minimiser of $\mathbb{E}_Q[L] + \beta\,\mathrm{KL}$ has the slope −β. The points are
measured at Gaussians $N(w, \Sigma^*)$ with the loss expanded to second order at w, so the curve is an estimate.

Notation: t information in nats.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from nearkin.core.errors import OptionError, require, require_positive
from nearkin.core.types import Params
from nearkin.distance.information.curvature import CurvatureOptions, as_double, in_double, measure_curvature
from nearkin.distance.information.task_complexity import (
    Complexity,
    WeightPrior,
    from_curvature,
    squared_distance,
    summed_loss,
)
from nearkin.distance.quasi_newton import minimise
from nearkin.distance.reachability.potentials import NetworkPotential

BETAS = tuple(10 ** (exponent / 4) for exponent in range(-8, 13))


@dataclass(frozen=True)
class StructureFunction:
    """Loss against information for several β.

    Attributes:
        points: complexities, by rising β.
        refitted: whether the weights were fitted again for each β.
    """

    points: tuple[Complexity, ...]
    refitted: bool

    def envelope(self) -> list[tuple[float, float]]:
        """The lower convex envelope as (information, loss), by rising information, without its rising end."""
        found: list[tuple[float, float]] = []
        for point in sorted((point.information, point.expected_loss) for point in self.points):
            while len(found) >= 2 and _slope(found[-2], found[-1]) >= _slope(found[-2], point):
                found.pop()
            found.append(point)
        lowest = min(range(len(found)), key=lambda index: found[index][1])
        return found[: lowest + 1]

    def loss_at(self, information: float) -> float:
        """S_D(t): smallest expected loss with at most t nats; infinite below the least information measured."""
        line = self.envelope()
        if information < line[0][0]:
            return math.inf
        for left, right in pairwise(line):
            if left[0] <= information <= right[0]:
                return left[1] + (information - left[0]) * _slope(left, right)
        return line[-1][1]

    @property
    def critical_beta(self) -> float:
        """The β at which the information falls fastest with log β: the geometric mean of the two neighbours."""
        if len(self.points) < 2:
            raise OptionError(f"a critical beta needs 2 betas or more, got {len(self.points)}")

        def fall(pair: tuple[Complexity, Complexity]) -> float:
            return (pair[0].information - pair[1].information) / math.log(pair[1].beta / pair[0].beta)

        left, right = max(pairwise(self.points), key=fall)
        return math.sqrt(left.beta * right.beta)


def structure_function(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    betas: Sequence[float] = BETAS,
    *,
    refit: int = 0,
    likelihood: str = "categorical",
    prior: WeightPrior | None = None,
    prior_mean: Params | None = None,
    curvature: str | CurvatureOptions = "auto",
) -> StructureFunction:
    r"""Complexities of a task for several β.

    Without refitting, w stays and only Σ* depends on β: one curvature serves all β, but little information is reached
    only with weights near the prior mean. With refitting, w minimises $L + \frac{\beta}{2\lambda^2}\|w - w_0\|^2$ for
    each β, from the smallest β on, each from the weights before, and the curvature is computed again.

    Args:
        model: the trained network.
        x: inputs `[N, *input_shape]`.
        y: targets.
        betas: prices of information (default: 0.01 to 1,000).
        refit: largest number of L-BFGS iterations for each β; 0 keeps the weights.
        likelihood: as for `complexity`, like all other arguments.
        prior: variance of the prior.
        prior_mean: mean of the prior by name.
        curvature: how the curvature is computed.
    """
    betas = sorted(betas)
    require(bool(betas), "there is no beta; give one or more")
    for beta in betas:
        require_positive("beta", beta)
    require(refit >= 0, f"refit must be 0 or more, got {refit}")
    network, x, y = in_double(model), as_double(x), as_double(y)
    variance = (prior or WeightPrior()).variance_of(len(x))
    options = CurvatureOptions(curvature) if isinstance(curvature, str) else curvature
    points: list[Complexity] = []
    spectrum = None
    for beta in betas:
        if refit:
            _refit(network, x, y, likelihood, beta / (len(x) * variance), prior_mean, refit)
        if refit or spectrum is None:
            loss, distance = summed_loss(network, x, y, likelihood), squared_distance(network, prior_mean)
            measured = network if refit else copy.deepcopy(model).eval()
            spectrum = measure_curvature(measured, x, likelihood, options)
        points.append(from_curvature(loss, distance, spectrum, beta, variance, len(x)))
    return StructureFunction(tuple(points), refit > 0)


def _refit(
    network: nn.Module, x: Tensor, y: Tensor, likelihood: str, decay: float, centre: Params | None, iterations: int
) -> None:
    """Minimise the mean loss with weight decay over the weights of a network, in place."""
    double = None if centre is None else {name: value.double() for name, value in centre.items()}
    potential = NetworkPotential(network, x, y, likelihood, decay, double)
    point = potential.point().requires_grad_()
    minimise(lambda: potential.value(point), [point], iterations)
    with torch.no_grad():
        for name, value in potential.params(point).items():
            network.get_parameter(name).copy_(value)


def _slope(left: tuple[float, float], right: tuple[float, float]) -> float:
    """Slope between two points; a vertical line falls if the right point is lower."""
    run, rise = right[0] - left[0], right[1] - left[1]
    return rise / run if run > 0 else math.copysign(math.inf, rise)
