r"""Minimum energy paths by the string method, and paths of low loss between two solutions of one network.

The simplified string method (E, Ren & Vanden-Eijnden 2007) repeats two steps: every image of the path descends the
potential, $w \leftarrow w - h\nabla U$, and the images are moved along the path to equal arc length. At the end, images
move along the path only: $\nabla U$ is parallel to it, and its highest point is a saddle. The highest image is then
refined by an ascent along the path and a descent across it (climbing image).

Notation: P coordinates, K images.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nearkin.core.errors import DataError, require, require_positive
from nearkin.core.types import Params
from nearkin.distance.reachability.onsager_machlup import straight_line
from nearkin.distance.reachability.potentials import NetworkPotential, Potential

POWER_STEPS = 10
BETWEEN = 4  # points in each segment at which the barrier is measured


@dataclass(frozen=True)
class StringOptions:
    """Effort of the string method.

    Attributes:
        images: points of the path, with both ends.
        iterations: largest number of steps of all images.
        step: h (default: half of the inverse of the largest curvature on the straight line).
        tolerance: stop when all iterations at the present speed would move no image by more than this share of the
            path's length.
        climbing: steps that move the highest image to the saddle; 0 keeps it.
    """

    images: int = 21
    iterations: int = 2000
    step: float | None = None
    tolerance: float = 1e-3
    climbing: int = 1000

    def __post_init__(self) -> None:
        require(self.images >= 3, f"images must be 3 or more, got {self.images}")
        require(self.iterations >= 1, f"iterations must be 1 or more, got {self.iterations}")
        require(self.climbing >= 0, f"climbing must be 0 or more, got {self.climbing}")
        require_positive("tolerance", self.tolerance)
        if self.step is not None:
            require_positive("step", self.step)


@dataclass(frozen=True, eq=False)
class MinimumEnergyPath:
    """A path of low potential between two points.

    Attributes:
        points: images `[K, P]` at equal arc length.
        values: U at the images `[K]`.
        saddle: the highest image after climbing `[P]`.
        saddle_value: U there.
        residual: ‖∇U‖ there, 0 at a saddle.
        barrier: largest U on the path, at and between the images, minus U at the start.
        straight_barrier: the same on the straight line.
        iterations: steps done.
    """

    points: Tensor
    values: Tensor
    saddle: Tensor
    saddle_value: float
    residual: float
    barrier: float
    straight_barrier: float
    iterations: int


def minimum_energy_path(
    potential: Potential, start: Tensor, end: Tensor, options: StringOptions | None = None
) -> MinimumEnergyPath:
    """The minimum energy path between two points, which stay where they are.

    >>> from nearkin.distance.reachability.wells import curved_double_well
    >>> ends = torch.tensor([[-1.0, 0.0], [1.0, 0.0]]).double()
    >>> path = minimum_energy_path(curved_double_well(), *ends)
    >>> [round(value, 4) for value in (*path.saddle.tolist(), path.barrier, path.straight_barrier)]
    [0.0, 1.0, 0.25, 2.25]
    """
    options = options or StringOptions()
    line = straight_line(start, end, options.images - 1)
    require(bool((start != end).any()), "start and end are the same point, so there is no path")
    step = options.step or 0.5 / _largest_curvature(potential, line)
    points, iterations = line, 0
    while iterations < options.iterations:
        iterations += 1
        moved = points.clone()
        moved[1:-1] -= step * potential.gradient(points[1:-1])
        require(bool(moved.isfinite().all()), f"the path diverged; lower the step ({step:g})", DataError)
        moved = equal_arc_length(moved)
        change, points = float((moved - points).norm(dim=-1).max()), moved
        length = float(points.diff(dim=0).norm(dim=-1).sum())
        if change * options.iterations <= options.tolerance * length:
            break
    values = potential.value(points).detach()
    saddle = _climb(potential, points, values, step, options.climbing)
    return MinimumEnergyPath(
        points,
        values,
        saddle,
        float(potential.value(saddle)),
        float(potential.gradient(saddle).norm()),
        barrier_height(potential, points),
        barrier_height(potential, line),
        iterations,
    )


def connect_modes(
    model: nn.Module,
    start: Params,
    end: Params,
    x: Tensor,
    y: Tensor,
    likelihood: str = "categorical",
    decay: float = 0.0,
    options: StringOptions | None = None,
) -> MinimumEnergyPath:
    """A path of low loss between two sets of weights of one network, with its barrier (mode connectivity).

    Running statistics of batch normalisation are those of `model` on the whole path.

    Args:
        model: the network, in evaluation mode; its own weights are not used.
        start: weights by name.
        end: weights by name.
        x: inputs `[N, *input_shape]`.
        y: targets.
        likelihood: `categorical`, `gaussian`, `heteroscedastic`, `dense` or `language`.
        decay: weight decay γ of the potential.
        options: effort (default: 9 images, 200 iterations).
    """
    potential = NetworkPotential(model, x, y, likelihood, decay)
    options = options or StringOptions(images=9, iterations=200, climbing=0)
    return minimum_energy_path(potential, potential.point(start), potential.point(end), options)


def barrier_height(potential: Potential, path: Tensor) -> float:
    """Largest U on a path `[K, P]`, at its points and at four points in each segment, minus U at its start.

    >>> from nearkin.distance.reachability.wells import double_well
    >>> barrier_height(double_well(), torch.tensor([[-1.0], [0.0], [1.0]]))
    0.25
    """
    values = torch.cat([
        potential.value(torch.lerp(path[:-1], path[1:], share / BETWEEN)).detach() for share in range(BETWEEN)
    ])  # fmt: skip
    last = potential.value(path[-1:]).detach()
    require(bool(values.isfinite().all() and last.isfinite().all()), "the potential is NaN on the path", DataError)
    return float(torch.cat([values, last]).max() - values[0])


def equal_arc_length(points: Tensor) -> Tensor:
    """Points at equal distances along the polygon through `[K, P]`; the ends stay.

    >>> equal_arc_length(torch.tensor([[0.0], [1.0], [4.0]])).flatten().tolist()
    [0.0, 2.0, 4.0]
    """
    lengths = torch.cat([points.new_zeros(1), points.diff(dim=0).norm(dim=-1).cumsum(0)])
    targets = torch.linspace(0, 1, len(points)).to(points) * lengths[-1]
    right = torch.searchsorted(lengths, targets[1:-1].contiguous()).clamp(1, len(points) - 1)
    left = right - 1
    share = (targets[1:-1] - lengths[left]) / (lengths[right] - lengths[left])
    inner = torch.lerp(points[left], points[right], share[:, None])
    return torch.cat([points[:1], inner, points[-1:]])


def _largest_curvature(potential: Potential, line: Tensor) -> float:
    """Largest |curvature| on the line, by power iteration at every image."""
    v = torch.ones_like(line) / line.shape[1] ** 0.5
    v[:, ::2] *= -0.9
    size = v.norm(dim=-1)
    for _ in range(POWER_STEPS):
        v = v / v.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(v.dtype).tiny)
        v = potential.hessian_product(line, v)
        size = v.norm(dim=-1)
    largest = float(size.max())
    require_positive("the largest curvature on the straight line", largest)
    return largest


def _climb(potential: Potential, points: Tensor, values: Tensor, step: float, steps: int) -> Tensor:
    """The highest image, moved up along the path and down across it."""
    top = int(values.argmax())
    point = points[top].clone()
    if top in (0, len(points) - 1):  # the potential has no maximum inside
        return point
    tangent = points[top + 1] - points[top - 1]
    tangent = tangent / tangent.norm()
    for _ in range(steps):
        slope = potential.gradient(point)
        point = point - step * (slope - 2 * (slope @ tangent) * tangent)
    require(bool(point.isfinite().all()), f"the highest image diverged; lower the step ({step:g})", DataError)
    return point
