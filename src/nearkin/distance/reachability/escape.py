r"""Effective potential of a noisy weight vector, and the mean time to cross a barrier.

Notation: P coordinates, H the Hessian of U, D the diffusion constant.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from nearkin.core.errors import DataError, OptionError, require, require_positive
from nearkin.distance.reachability.potentials import Potential, hessian

ZERO = 1e-9  # eigenvalues up to this fraction of the largest count as zero


@dataclass(frozen=True)
class EffectivePotential:
    """U corrected by the curvature.

    Attributes:
        value: U_eff.
        potential: U.
        log_determinant: log|H|₊, the sum over the positive eigenvalues.
        positive: number of positive eigenvalues.
        negative: number of negative eigenvalues, which are left out.
    """

    value: float
    potential: float
    log_determinant: float
    positive: int
    negative: int


def effective_potential(
    potential: Potential, w: Tensor, diffusion: float, along: Tensor | None = None
) -> EffectivePotential:
    r"""$U_\mathrm{eff} = U + \frac{D}{2}\log|H|_+$; the weight of w is proportional to $e^{-U_\mathrm{eff}/D}$.

    The Hessian is formed, so it is for wells and small networks; for others see `Complexity.effective_potential`.

    Args:
        potential: U.
        w: a point `[P]`, such as a minimum or a point of a path.
        diffusion: D.
        along: direction of a path `[P]`; only directions across it are integrated out (default: all directions).

    >>> from nearkin.distance.reachability.potentials import AutodiffPotential
    >>> channel = AutodiffPotential(lambda w: 2 * w[..., 1].square())
    >>> found = effective_potential(channel, torch.zeros(2), 0.5)
    >>> round(found.value / (0.25 * math.log(4)), 6), found.positive
    (1.0, 1)
    """
    require_positive("diffusion", diffusion)
    matrix = hessian(potential, w).double()
    require(bool(matrix.isfinite().all()), "the Hessian is NaN or infinite at this point", DataError)
    if along is not None:
        require(float(along.norm()) > 0, "the direction of the path is zero")
        unit = (along / along.norm()).double()
        across = torch.eye(len(w)).to(matrix) - torch.outer(unit, unit)
        matrix = across @ matrix @ across
    values = torch.linalg.eigvalsh(matrix)
    least = ZERO * float(values.abs().max())
    above, below = values[values > least], int((values < -least).sum())
    logarithm, own = float(above.log().sum()), float(potential.value(w))
    return EffectivePotential(own + diffusion / 2 * logarithm, own, logarithm, len(above), below)


@dataclass(frozen=True)
class EscapeTime:
    """Mean time to leave a minimum over a saddle.

    Attributes:
        log_time: log τ; τ itself may be too large for a number.
        barrier: height of the saddle above the minimum.
        log_prefactor: log τ − barrier / D.
    """

    log_time: float
    barrier: float
    log_prefactor: float

    @property
    def time(self) -> float:
        """τ in units of the potential's time (η for each step of training); infinite if it is too large."""
        return math.exp(self.log_time) if self.log_time < 700 else math.inf


def kramers_time(potential: Potential, minimum: Tensor, saddle: Tensor, diffusion: float) -> EscapeTime:
    r"""Kramers' time, in P dimensions that of Eyring and Kramers, for a barrier well above D.

    $$\tau = \frac{2\pi}{|\lambda_-|}\sqrt{\frac{|\det H_\mathrm{saddle}|}{\det H_\mathrm{min}}}\;e^{\Delta U/D},$$

    where λ₋ is the negative eigenvalue at the saddle. In one dimension this is
    $2\pi\,(U''_\mathrm{min}|U''_\mathrm{max}|)^{-1/2}\,e^{\Delta U/D}$.

    >>> from nearkin.distance.reachability.wells import double_well
    >>> time = kramers_time(double_well(), torch.tensor([-1.0]), torch.tensor([0.0]), 0.05)
    >>> round(time.barrier, 6), round(time.time / (2 * math.pi / math.sqrt(2) * math.exp(5)), 4)
    (0.25, 1.0)
    """
    require_positive("diffusion", diffusion)
    low, high = (torch.linalg.eigvalsh(hessian(potential, w).double()) for w in (minimum, saddle))
    if not float(low[0]) > 0:
        raise OptionError(
            f"the minimum has a curvature of {float(low[0]):.3g}, expected only positive ones at a minimum"
        )
    if not (float(high[0]) < 0 and bool((high[1:] > 0).all())):
        raise OptionError(
            f"the saddle has {int((high < 0).sum())} negative curvatures of {len(high)}, expected one; refine it"
        )
    barrier = float(potential.value(saddle) - potential.value(minimum))
    prefactor = math.log(2 * math.pi) - math.log(-float(high[0]))
    prefactor += 0.5 * float(high.abs().log().sum() - low.log().sum())
    return EscapeTime(prefactor + barrier / diffusion, barrier, prefactor)
