r"""Class probabilities of Gaussian class scores $f ∼ N(μ, v)$: the softmax of the mean, or the mean of the softmax.

Notation: M samples, C classes, S draws, T a temperature.
"""

from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from nearkin.core.errors import require
from nearkin.core.rng import Streams

How: TypeAlias = Literal["mean", "sampled"]
"""`mean`: $\\mathrm{softmax}(μ/T)$. `sampled`: $\\frac1S \\sum_s \\mathrm{softmax}(f_s/T)$."""

HOWS: tuple[How, ...] = get_args(How)
DRAWS = 64  # antithetic pairs of draws
NUMBERS = 2**20  # in one block of draws


def require_how(how: str) -> None:
    """Refuse an unknown kind of probabilities."""
    require(how in HOWS, f"how is {' or '.join(HOWS)}, got {how!r}")


def class_probabilities(mean: Tensor, variance: Tensor, how: How = "mean", temperature: float = 1.0) -> Tensor:
    """Probabilities `[M, C]` of scores with means and variances `[M, C]`, independent from class to class.

    Draws are the same for every sample and every call, so the result for one sample does not depend on others.

    >>> mean, variance = torch.tensor([[2.0, 0.0]]).double(), torch.tensor([[9.0, 9.0]]).double()
    >>> [round(float(class_probabilities(mean, variance, how)[0, 0]), 1) for how in ("mean", "sampled")]
    [0.9, 0.7]
    """
    require_how(how)
    if how == "mean":
        return (mean / temperature).softmax(1)
    return _mean_softmax(mean, lambda z: variance.clamp_min(0).sqrt() * z[:, None, :], temperature)


def drawn_probabilities(mean: Tensor, roots: Tensor, temperature: float = 1.0) -> Tensor:
    r"""The mean softmax of scores $μ + R z$ with roots R `[M, C, C]` of their covariances."""
    return _mean_softmax(mean, lambda z: torch.einsum("mcd,sd->smc", roots, z), temperature)


def _mean_softmax(mean: Tensor, spread: Callable[[Tensor], Tensor], temperature: float) -> Tensor:
    """The mean over antithetic pairs of normal draws z `[S, C]`, which `spread` maps to deviations `[S, M, C]`."""
    z = torch.randn(DRAWS, mean.shape[1], generator=Streams(0).at("scores"), dtype=torch.float64).to(mean.device)
    total = torch.zeros_like(mean)
    for draws in torch.cat([z, -z]).split(max(1, NUMBERS // mean.numel())):
        total += ((mean + spread(draws)) / temperature).softmax(2).sum(0)
    return total / (2 * DRAWS)
