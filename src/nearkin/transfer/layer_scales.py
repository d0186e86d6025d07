r"""Scales of single layers, and noise beside known noise, by climbing the evidence in log space.

$$A = \sum_l a_l K_l + V + σ^2 I$$

Notation: as in `targets`; G groups of weights, by default the layers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Generator, Tensor

from nearkin.core.errors import DataError
from nearkin.core.events import Note, Progress, Work
from nearkin.transfer.evidence import dense_log_evidence
from nearkin.transfer.hyper import Hyper

STARTS = 4
STEPS = 200
FLOOR, TOP = 1e-8, 1e6  # of variances, in units of the targets' own


@dataclass(frozen=True, eq=False)
class Climb:
    """The evidence of some tasks as a function of log variances.

    Attributes:
        kernels: of every task, K `[R, R]` by group.
        parts: of every task, constants `[R, Q]`, targets `[F, R, T]` and known noise `[F, R]` or None.
        fixed_noise: whether no noise is learned.
    """

    kernels: Sequence[Mapping[str, Tensor]]
    parts: Sequence[tuple[Tensor, Tensor, Tensor | None]]
    fixed_noise: bool = False
    groups: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(self.kernels[0]))

    def levels(self) -> Tensor:
        """Mean diagonals of the groups' kernels `[G]`; 1 where a group has none."""
        found = [sum(float(one[g].diagonal().mean()) for one in self.kernels) / len(self.kernels) for g in self.groups]
        return torch.tensor([value or 1.0 for value in found]).double()

    def spread(self) -> float:
        """The targets' mean square."""
        return sum(float(y.square().mean()) for _, y, _ in self.parts) / len(self.parts) or 1.0

    def log_evidence(self, point: Tensor) -> Tensor:
        """At log variances `[G]`, or `[G + 1]` with the noise last."""
        scales = point[: len(self.groups)].exp()
        noise = torch.zeros(()).double() if self.fixed_noise else point[-1].exp()
        total = torch.zeros(()).double()
        for kernels, (basis, targets, known) in zip(self.kernels, self.parts, strict=True):
            gram = torch.stack([kernels[group] for group in self.groups])
            extra = (torch.zeros(1, gram.shape[1]).double() if known is None else known) + noise
            covariance = torch.einsum("g,gij->ij", scales, gram) + torch.diag_embed(extra)
            total = total + dense_log_evidence(covariance, basis, targets)
        return total

    def hyper(self, point: Tensor, mean: Hyper) -> Hyper:
        """The hyper-parameters of a point."""
        scales, levels = point[: len(self.groups)].exp(), self.levels()
        scale = float((scales * levels).sum() / levels.sum())
        layers = {} if self.groups == ("",) else {g: float(s) / scale for g, s in zip(self.groups, scales, strict=True)}
        noise = 0.0 if self.fixed_noise else float(point[-1].exp())
        return Hyper(noise=noise, scale=scale, layers=layers, mean=mean.mean)


def climbed(climb: Climb, start: Hyper, generator: Generator, floor: float = FLOOR) -> Work[Hyper]:
    """The best of several climbs: from equal scales, from equal shares of the variance, and from random points.

    `floor` is the least noise, as a share of the targets' mean square; where some is known, any is enough.
    """
    levels, spread, count = climb.levels(), climb.spread(), len(climb.groups)
    shared = torch.full_like(levels, math.log(max(start.scale, FLOOR * spread / float(levels.sum()))))
    equal = (spread / count / levels).log()
    noise = torch.tensor([math.log(max(start.noise, 1e-3 * spread))]).double()
    tail = noise[:0] if climb.fixed_noise else noise
    starts = [torch.cat([shared, tail]), torch.cat([equal, tail])]
    for _ in range(STARTS - len(starts)):
        shaken = torch.randn(count + len(tail), generator=generator).double()
        starts.append(starts[0] + 2 * shaken)
    low = torch.cat(
        [
            (FLOOR * spread / levels).log(),
            tail - tail + math.log((floor if climb.parts[0][2] is None else FLOOR) * spread),
        ]
    )
    high = torch.cat([(TOP * spread / levels).log(), tail - tail + math.log(TOP * spread)])
    top, value = starts[0], -math.inf
    for number, one in enumerate(starts):
        point, reached = _climb(climb, torch.minimum(torch.maximum(one, low), high), low, high)
        if reached > value:
            top, value = point, reached
        yield Progress("starts", number + 1, len(starts), {"log evidence": value})
    yield Note(f"scales of {count} layers: log evidence {value:.2f}")
    return climb.hyper(top, start)


def _climb(climb: Climb, start: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, float]:
    def loss(point: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        free = torch.tensor(point, dtype=torch.float64, requires_grad=True)
        try:
            value = -climb.log_evidence(free)
        except DataError:  # a step too far; the line search turns back
            return 1e100, np.zeros_like(point)
        (slope,) = torch.autograd.grad(value, free)
        return float(value.detach()), slope.numpy()

    bounds = list(zip(low.tolist(), high.tolist(), strict=True))
    found = minimize(loss, start.numpy(), jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": STEPS})
    return torch.tensor(found.x, dtype=torch.float64), -float(found.fun)
