r"""Onsager-Machlup action of paths, and the probability of a transition in its static and its dynamic part.

A path w(t) of $\dot w = -\nabla U + \sqrt{2D}\,n$ has the density $e^{-S}$ with

$$S = \int \frac{1}{4D}\|\dot w + \nabla U\|^2 - \frac12\nabla^2 U\,dt
    = \frac{\Delta U}{2D} + \frac{1}{2D}\int \frac12\|\dot w\|^2 + V(w)\,dt, \qquad
V = \frac12\|\nabla U\|^2 - D\nabla^2 U.$$

The first term depends on the ends only (static), the second on the path (dynamic). The integral of V is discretised by
the trapezoidal rule: for propagators its error falls with the square of the time of a segment, that of the midpoint
rule only linearly. All probabilities are logarithms.

Notation: P coordinates, M segments, so that a path is `[M + 1, P]`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from nearkin.core.errors import DataError, MismatchError, require, require_positive
from nearkin.distance.quasi_newton import minimise
from nearkin.distance.reachability.potentials import EXACT_LAPLACIAN, Potential, laplacian, require_point
from nearkin.fisher.spectra import Estimate

FLUCTUATION_LIMIT = 600  # coordinates of all inner points, up to which fluctuations around a path are integrated


@dataclass(frozen=True)
class PathAction:
    r"""Logarithm of the density of a path, in its two parts.

    Attributes:
        static: $-\Delta U/2D$.
        dynamic: $-\frac{1}{2D}\int \frac12\|\dot w\|^2 + V\,dt$.
        error: standard error of the dynamic part from the probes of the Laplacian; 0 if it is exact.
        duration: time that the path takes.
        length: its length.
    """

    static: float
    dynamic: float
    error: float
    duration: float
    length: float

    @property
    def action(self) -> float:
        """S, minus the logarithm of the density."""
        return -self.static - self.dynamic


@dataclass(frozen=True)
class TransitionProbability:
    r"""Logarithm of $p(w_f, T \mid w_0)$ from the most probable path, in its two parts.

    Attributes:
        static: $-\Delta U/2D$.
        dynamic: log K, which is the same in both directions.
        fluctuations: whether the paths near the most probable one are counted, so that p is a density of the end;
            otherwise the dynamic part is that of one path, without normalisation.
        path: the most probable path `[M + 1, P]`.
    """

    static: float
    dynamic: float
    fluctuations: bool
    path: Tensor

    @property
    def log_probability(self) -> float:
        """Static plus dynamic part."""
        return self.static + self.dynamic


def path_potential(
    potential: Potential, w: Tensor, diffusion: float, rng: Generator | None = None, probes: int = 16
) -> Estimate:
    r"""$V = \frac12\|\nabla U\|^2 - D\nabla^2 U$ at a point `[P]`; with `rng` the Laplacian is Hutchinson's estimate.

    >>> from nearkin.distance.reachability.wells import double_well
    >>> path_potential(double_well(), torch.tensor([1.0]), 0.1)
    Estimate(value=-0.2, error=0.0)
    """
    require_positive("diffusion", diffusion)
    trace = laplacian(potential, w, rng, probes)
    kinetic = float(potential.gradient(w).double().square().sum()) / 2
    return Estimate(kinetic - diffusion * trace.value, diffusion * trace.error)


def straight_line(start: Tensor, end: Tensor, segments: int = 16) -> Tensor:
    """The straight path `[M + 1, P]` between two points.

    >>> straight_line(torch.zeros(1), torch.ones(1), 2).flatten().tolist()
    [0.0, 0.5, 1.0]
    """
    require_point(start)
    require_point(end)
    require(start.shape == end.shape, f"the ends have {len(start)} and {len(end)} coordinates", MismatchError)
    require(segments >= 1, f"segments must be 1 or more, got {segments}")
    return torch.lerp(start, end, torch.linspace(0, 1, segments + 1).to(start)[:, None])


def path_action(
    potential: Potential,
    path: Tensor,
    diffusion: float,
    duration: float | Sequence[float],
    rng: Generator | None = None,
    probes: int = 16,
) -> PathAction:
    """Action of a path: a straight line, recorded weights of training, or a minimised path.

    Args:
        potential: U.
        path: points `[M + 1, P]`, M >= 1.
        diffusion: D.
        duration: total time, divided equally between the segments, or the M times of the segments. One step of
            stochastic gradient descent takes the time η.
        rng: generator of the probes of the Laplacian (default: exact, P products for each segment).
        probes: number of probes.

    >>> from nearkin.distance.reachability.wells import double_well
    >>> path = straight_line(torch.tensor([-1.0]), torch.tensor([1.0]), 50)
    >>> path_action(double_well(), path, 0.1, 5.0).static
    -0.0
    """
    times = _segment_times(path, diffusion, duration)
    z = _probes(path, rng, probes)
    dynamic = _dynamic(potential, path, diffusion, times, z)
    ends = potential.value(path[[0, -1]]).double()
    require(bool(ends.isfinite().all() and dynamic.isfinite().all()), "the potential is NaN on the path", DataError)
    exact = rng is None or path.shape[1] <= EXACT_LAPLACIAN
    return PathAction(
        -float(ends[1] - ends[0]) / (2 * diffusion),
        float(dynamic.mean()),
        0.0 if exact else float(dynamic.std() / math.sqrt(len(dynamic))),
        float(times.sum()),
        float(path.diff(dim=0).norm(dim=-1).sum()),
    )


def minimise_action(
    potential: Potential,
    path: Tensor,
    diffusion: float,
    duration: float,
    rng: Generator | None = None,
    probes: int = 4,
    iterations: int = 200,
) -> Tensor:
    """Minimise the action over the inner points of a path by L-BFGS; the ends and the duration are fixed.

    The action of the result is at most that of `path`, for the same probes. It needs third derivatives of U, which
    limits it to wells and small networks. The arguments are those of `path_action`.
    """
    times = _segment_times(path, diffusion, duration)
    z = _probes(path, rng, probes)
    require(len(path) >= 3, f"a path to minimise has 3 points or more, got {len(path)}")
    inner = path[1:-1].detach().clone().requires_grad_()

    def action(points: Tensor) -> Tensor:
        return -_dynamic(potential, points, diffusion, times, z).mean()

    minimise(lambda: action(torch.cat([path[:1], inner, path[-1:]])), [inner], iterations)
    result = torch.cat([path[:1], inner.detach(), path[-1:]])
    return result if float(action(result)) <= float(action(path)) else path.clone()


def transition_probability(
    potential: Potential, start: Tensor, end: Tensor, diffusion: float, duration: float, segments: int = 32
) -> TransitionProbability:
    r"""Probability of a transition in a given time, by Laplace's method around the most probable path.

    $$\log p \approx -S[w^*] - \frac{MP}{2}\log(4\pi D\,\delta t) + \frac{(M-1)P}{2}\log 2\pi - \frac12\log|S''|$$

    It is exact for quadratic U as M grows. The determinant is computed for up to 600 inner coordinates (M − 1) P.

    >>> from nearkin.distance.reachability.potentials import AutodiffPotential
    >>> bowl = AutodiffPotential(lambda w: w.square().sum(-1) / 2)
    >>> found = transition_probability(bowl, torch.ones(1).double(), torch.zeros(1).double(), 0.5, 1.0)
    >>> variance, mean = 0.5 * (1 - math.exp(-2)), math.exp(-1)
    >>> exact = -(mean**2) / (2 * variance) - math.log(2 * math.pi * variance) / 2
    >>> abs(found.log_probability - exact) < 1e-3, round(found.static, 6)
    (True, 0.5)
    """
    line = straight_line(start, end, segments)
    require(segments >= 2, f"a most probable path has 2 segments or more, got {segments}")
    path = minimise_action(potential, line, diffusion, duration)
    own, size = path_action(potential, path, diffusion, duration), (segments - 1) * line.shape[1]
    if size > FLUCTUATION_LIMIT:
        return TransitionProbability(own.static, own.dynamic, False, path)
    times, z = _segment_times(path, diffusion, duration), _probes(path, None, 0)

    def action(inner: Tensor) -> Tensor:
        points = torch.cat([path[:1], inner.view(segments - 1, -1), path[-1:]])
        return -_dynamic(potential, points, diffusion, times, z).mean()

    curvature = torch.autograd.functional.hessian(action, path[1:-1].flatten())
    sign, logarithm = torch.linalg.slogdet(curvature)
    require(float(sign) > 0, "the path is no minimum of the action; use more segments or a shorter duration", DataError)
    steps = segments * line.shape[1] / 2 * math.log(4 * math.pi * diffusion * duration / segments)
    around = size / 2 * math.log(2 * math.pi) - float(logarithm) / 2
    return TransitionProbability(own.static, own.dynamic - steps + around, True, path)


def _segment_times(path: Tensor, diffusion: float, duration: float | Sequence[float]) -> Tensor:
    """Times `[M]` of the segments, after a check of all arguments."""
    require_positive("diffusion", diffusion)
    require(
        path.dim() == 2 and len(path) >= 2, f"a path is [M + 1, P] with M >= 1, got {tuple(path.shape)}", MismatchError
    )
    require(bool(path.isfinite().all()), "the path has points that are NaN or infinite", DataError)
    segments = len(path) - 1
    times = [duration / segments] * segments if isinstance(duration, int | float) else list(duration)
    require(len(times) == segments, f"{len(times)} times for {segments} segments; give one for each", MismatchError)
    for time in times:
        require_positive("duration", time)
    return torch.tensor(times).to(path)


def _probes(path: Tensor, rng: Generator | None, probes: int) -> Tensor:
    """Probes `[K, P]` whose mean of zᵀHz is the trace of H; scaled unit vectors, which are exact, without `rng`."""
    size = path.shape[1]
    if rng is None or size <= EXACT_LAPLACIAN:
        return math.sqrt(size) * torch.eye(size).to(path)
    require(probes >= 2, f"probes must be 2 or more, got {probes}")
    return (torch.randint(2, (probes, size), generator=rng) * 2 - 1).to(path)


def _dynamic(potential: Potential, path: Tensor, diffusion: float, times: Tensor, probes: Tensor) -> Tensor:
    """The dynamic part for each probe, `[K]`; the same for all probes but for the Laplacian."""
    speeds = path.diff(dim=0).square().sum(-1) / times  # times the time of the segment
    shares = (torch.cat([times, times[:1] * 0]) + torch.cat([times[:1] * 0, times])) / 2
    kinetic = (speeds.sum() + (potential.gradient(path).square().sum(-1) * shares).sum()) / 2
    traces = torch.stack([
        ((potential.hessian_product(path, z.expand_as(path)) * z).sum(-1) * shares).sum() for z in probes
    ])  # fmt: skip
    return -(kinetic - diffusion * traces) / (2 * diffusion)
