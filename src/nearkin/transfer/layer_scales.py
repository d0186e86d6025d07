r"""Scales of single layers, and noise in addition to known noise, by maximising the evidence in log space.

$$A = \sum_l a_l K_l + V + σ^2 I$$

Notation: as in `targets`; G groups of weights, by default the layers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Generator, Tensor

from nearkin.core.errors import DataError
from nearkin.core.events import Note, Progress, Work
from nearkin.transfer.evidence import dense_log_evidence
from nearkin.transfer.hyper import Hyper, Mean

STARTS = 4
STEPS = 200
FLOOR, TOP = 1e-8, 1e6  # bounds of variances, in units of the targets' mean square


@dataclass(frozen=True, eq=False)
class LayerScaleEvidence:
    """The evidence of tasks as a function of log variances.

    Attributes:
        kernels: for every task, K `[R, R]` by group.
        rows: for every task, constants `[R, Q]`, targets `[F, R, T]` and known noise `[F, R]` or None.
        fixed_noise: whether no noise is learned.
    """

    kernels: Sequence[Mapping[str, Tensor]]
    rows: Sequence[tuple[Tensor, Tensor, Tensor | None]]
    fixed_noise: bool = False

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups."""
        return tuple(self.kernels[0])

    def levels(self) -> Tensor:
        """Mean diagonals of the groups' kernels `[G]`; 1 for a kernel of zeros."""
        levels = [sum(float(task[g].diagonal().mean()) for task in self.kernels) for g in self.groups]
        return torch.tensor([level / len(self.kernels) or 1.0 for level in levels]).double()

    def spread(self) -> float:
        """The targets' mean square."""
        return sum(float(y.square().mean()) for _, y, _ in self.rows) / len(self.rows) or 1.0

    def log_evidence(self, point: Tensor) -> Tensor:
        """The log evidence at log variances `[G]`, or `[G + 1]` with the noise last."""
        scales = point[: len(self.groups)].exp()
        noise = torch.zeros(()).double() if self.fixed_noise else point[-1].exp()
        total = torch.zeros(()).double()
        for kernels, (basis, targets, known) in zip(self.kernels, self.rows, strict=True):
            gram = torch.stack([kernels[group] for group in self.groups])
            extra = (torch.zeros(1, gram.shape[1]).double() if known is None else known) + noise
            covariance = torch.einsum("g,gij->ij", scales, gram) + torch.diag_embed(extra)
            total = total + dense_log_evidence(covariance, basis, targets)
        return total

    def hyper(self, point: Tensor, mean: Mean) -> Hyper:
        """The hyper-parameters at log variances."""
        scales, levels = point[: len(self.groups)].exp(), self.levels()
        scale = float((scales * levels).sum() / levels.sum())
        layers = {} if self.groups == ("",) else {g: float(s) / scale for g, s in zip(self.groups, scales, strict=True)}
        noise = 0.0 if self.fixed_noise else float(point[-1].exp())
        return Hyper(noise=noise, scale=scale, layers=layers, mean=mean)


def maximize_layer_scales(
    evidence: LayerScaleEvidence, start: Hyper, generator: Generator, floor: float = FLOOR
) -> Work[Hyper]:
    """The best of several searches: from equal scales, from equal shares of the variance, and from random points.

    `floor` is the smallest noise, as a fraction of the targets' mean square; it is ignored if noise is known.
    """
    levels, spread, count = evidence.levels(), evidence.spread(), len(evidence.groups)
    shared = torch.full_like(levels, math.log(max(start.scale, FLOOR * spread / float(levels.sum()))))
    equal = (spread / count / levels).log()
    tail = torch.tensor([] if evidence.fixed_noise else [math.log(max(start.noise, 1e-3 * spread))]).double()
    starts = [torch.cat([shared, tail]), torch.cat([equal, tail])]
    for _ in range(STARTS - len(starts)):
        starts.append(starts[0] + 2 * torch.randn(count + len(tail), generator=generator).double())
    least = floor if evidence.rows[0][2] is None else FLOOR
    low = torch.cat([(FLOOR * spread / levels).log(), torch.full_like(tail, math.log(least * spread))])
    high = torch.cat([(TOP * spread / levels).log(), torch.full_like(tail, math.log(TOP * spread))])
    best, value = starts[0], -math.inf
    for number, point in enumerate(starts):
        end, reached = _maximize(evidence, torch.minimum(torch.maximum(point, low), high), low, high)
        if reached > value:
            best, value = end, reached
        yield Progress("starts", number + 1, len(starts), {"log evidence": value})
    yield Note(f"scales of {count} layers: log evidence {value:.2f}")
    return evidence.hyper(best, start.mean)


def _maximize(evidence: LayerScaleEvidence, start: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, float]:
    def loss(point: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        free = torch.tensor(point, dtype=torch.float64, requires_grad=True)
        try:
            value = -evidence.log_evidence(free)
        except DataError:  # the step was too long; the line search shortens it
            return 1e100, np.zeros_like(point)
        (slope,) = torch.autograd.grad(value, free)
        return float(value.detach()), slope.numpy()

    bounds = list(zip(low.tolist(), high.tolist(), strict=True))
    result = minimize(loss, start.numpy(), jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": STEPS})
    return torch.tensor(result.x, dtype=torch.float64), -float(result.fun)
