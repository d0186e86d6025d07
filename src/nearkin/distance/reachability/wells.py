r"""Analytic wells, simulated diffusion in them, and exact mean first-passage times in one dimension."""

import math

import torch
from torch import Generator, Tensor

from nearkin.core.errors import DataError, require, require_positive
from nearkin.distance.reachability.potentials import AutodiffPotential, Potential

_MUELLER_BROWN = (  # height, xx, xy, yy, x, y
    (-200.0, -1.0, 0.0, -10.0, 1.0, 0.0),
    (-100.0, -1.0, 0.0, -10.0, 0.0, 0.5),
    (-170.0, -6.5, 11.0, -6.5, -0.5, 1.5),
    (15.0, 0.7, 0.6, 0.7, -1.0, 1.0),
)


def double_well() -> AutodiffPotential:
    r"""$\frac14(x^2 - 1)^2$: minima at ±1, a maximum of height 0.25 at 0; curvatures 2 and −1.

    >>> double_well().value(torch.tensor([0.0])), double_well().gradient(torch.tensor([1.0]))
    (tensor(0.2500), tensor([0.]))
    """
    return AutodiffPotential(lambda w: (w[..., 0].square() - 1).square() / 4)


def curved_double_well(bend: float = 1.0, stiffness: float = 4.0) -> AutodiffPotential:
    r"""$\frac14(x^2 - 1)^2 + \frac{k}{2}(y - c(1 - x^2))^2$: minima (±1, 0), saddle (0, c) of height 0.25.

    On the straight line between the minima the barrier is $\frac14 + \frac{k}{2}c^2$.

    >>> curved_double_well(0.5).value(torch.tensor([[1.0, 0.0], [0.0, 0.5], [0.0, 0.0]]))
    tensor([0.0000, 0.2500, 0.7500])
    """

    def function(w: Tensor) -> Tensor:
        x, y = w[..., 0], w[..., 1]
        return (x.square() - 1).square() / 4 + stiffness / 2 * (y - bend * (1 - x.square())).square()

    return AutodiffPotential(function)


def mueller_brown() -> AutodiffPotential:
    """The surface of Müller and Brown (1979): three minima and two saddles in two dimensions.

    Minima near (−0.558, 1.442), (−0.050, 0.467) and (0.623, 0.028); saddles near (−0.822, 0.624) and (0.212, 0.293).

    >>> round(float(mueller_brown().value(torch.tensor([-0.558, 1.442]))), 1)
    -146.7
    """

    def function(w: Tensor) -> Tensor:
        x, y = w[..., 0], w[..., 1]
        return torch.stack([
            height * (a * (x - u).square() + b * (x - u) * (y - v) + c * (y - v).square()).exp()
            for height, a, b, c, u, v in _MUELLER_BROWN
        ]).sum(0)  # fmt: skip

    return AutodiffPotential(function)


def narrowing_channel(low: float = 1.0, high: float = 8.0) -> AutodiffPotential:
    r"""$\frac12 x^2 + \frac12 b(x)\,y^2$: a valley along the x axis that is wide on the left and narrow on the right.

    The stiffness b(x) rises from `low` to `high` around 0. Along the floor y = 0 the potential is symmetric in x;
    particles prefer the wide side.

    >>> narrowing_channel().value(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]))
    tensor([0.5000, 0.5000, 2.2500])
    """

    def function(w: Tensor) -> Tensor:
        x, y = w[..., 0], w[..., 1]
        stiffness = low + (high - low) * (4 * x).sigmoid()
        return (x.square() + stiffness * y.square()) / 2

    return AutodiffPotential(function)


def simulate_langevin(
    potential: Potential, start: Tensor, diffusion: float, duration: float, step: float, rng: Generator
) -> Tensor:
    r"""Positions at every step, `[T + 1, K, P]`, of K independent particles that start at `[K, P]`.

    Euler-Maruyama: $w \leftarrow w - h\nabla U(w) + \sqrt{2Dh}\,n$.

    >>> bowl = AutodiffPotential(lambda w: w.square().sum(-1) / 2)
    >>> simulate_langevin(bowl, torch.ones(5, 1), 0.1, 1.0, 0.25, torch.Generator().manual_seed(0)).shape
    torch.Size([5, 5, 1])
    """
    require_positive("diffusion", diffusion)
    require_positive("duration", duration)
    require_positive("step", step)
    require(start.dim() == 2, f"start has one row per particle, [K, P], got shape {tuple(start.shape)}")
    positions, width = [start], math.sqrt(2 * diffusion * step)
    for _ in range(math.ceil(duration / step - 1e-9)):
        noise = torch.randn(start.shape, generator=rng, dtype=start.dtype)
        positions.append(positions[-1] - step * potential.gradient(positions[-1]) + width * noise)
    path = torch.stack(positions)
    require(bool(path.isfinite().all()), f"the simulation diverged; lower the step ({step:g})", DataError)
    return path


def first_passage_times(
    potential: Potential, start: Tensor, end: float, diffusion: float, step: float, longest: float, rng: Generator
) -> Tensor:
    """Times `[K]` at which K particles that start at `[K, P]` first have a first coordinate of `end` or more.

    The dynamics are those of `simulate_langevin`, observed at every step; only particles on their way are simulated.

    Args:
        potential: U.
        start: positions of the particles `[K, P]`, with a first coordinate below `end`.
        end: first coordinate at which a particle has arrived.
        diffusion: D.
        step: time of a step.
        longest: time after which an error says that particles have not arrived.
        rng: generator of the noise.

    >>> slope = AutodiffPotential(lambda w: -w[..., 0])
    >>> rng = torch.Generator().manual_seed(0)
    >>> first_passage_times(slope, torch.zeros(2, 1), 1.0, 1e-6, 0.1, 5.0, rng).round(decimals=1).max() <= 1.1
    tensor(True)
    """
    require_positive("diffusion", diffusion)
    require_positive("step", step)
    require(start.dim() == 2, f"start has one row per particle, [K, P], got shape {tuple(start.shape)}")
    require(bool((start[:, 0] < end).all()), f"a particle starts beyond the end {end:g}; start below it")
    times, width = torch.zeros(len(start), dtype=torch.float64), math.sqrt(2 * diffusion * step)
    moving, points = torch.arange(len(start)), start
    for number in range(1, math.ceil(longest / step) + 1):
        noise = torch.randn(points.shape, generator=rng, dtype=start.dtype)
        points = points - step * potential.gradient(points) + width * noise
        arrived = points[:, 0] >= end
        if bool(arrived.any()):
            times[moving[arrived]] = number * step
            moving, points = moving[~arrived], points[~arrived]
            if not len(moving):
                return times
    require(bool(points.isfinite().all()), f"the simulation diverged; lower the step ({step:g})", DataError)
    raise DataError(f"{len(moving)} of {len(start)} particles did not arrive in the time {longest:g}; allow more time")


def mean_first_passage_time(
    potential: Potential, start: float, end: float, wall: float, diffusion: float, points: int = 20001
) -> float:
    r"""Exact mean time from `start` to `end` in one dimension, with a reflecting wall at the other side.

    $$\tau = \frac1D \int_a^b dy\, e^{U(y)/D} \int_{w}^{y} dz\, e^{-U(z)/D}$$

    It is computed by the trapezoidal rule from `wall` w < `start` a < `end` b.

    >>> flat_potential = AutodiffPotential(lambda w: 0 * w[..., 0])
    >>> round(mean_first_passage_time(flat_potential, 0.0, 1.0, 0.0, 0.5), 6)  # L² / 2D
    1.0
    """
    require_positive("diffusion", diffusion)
    require(wall <= start < end, f"expected wall <= start < end, got {wall}, {start} and {end}")
    y = torch.cat([
        torch.linspace(wall, start, points, dtype=torch.float64)[:-1],
        torch.linspace(start, end, points, dtype=torch.float64),
    ])  # fmt: skip
    exponent = potential.value(y[:, None]) / diffusion
    require(bool(exponent.isfinite().all()), "the potential is NaN or infinite between wall and end", DataError)
    lowest = exponent.min()
    inner = torch.cat([y.new_zeros(1), torch.cumulative_trapezoid((lowest - exponent).exp(), y)])
    inside = slice(points - 1, None)
    return float(torch.trapezoid((exponent[inside] - lowest).exp() * inner[inside], y[inside]) / diffusion)
