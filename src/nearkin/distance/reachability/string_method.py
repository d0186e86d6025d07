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
from nearkin.core.events import Checkpoint, Progress, Work, operation
from nearkin.core.state import State, restoring
from nearkin.core.types import Params
from nearkin.distance.reachability.onsager_machlup import straight_line
from nearkin.distance.reachability.potentials import NetworkPotential, Potential

POWER_STEPS = 10
BETWEEN = 4  # parts of a segment at whose ends the barrier is measured


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


MODE_OPTIONS = StringOptions(images=9, iterations=200, climbing=0)
"""Effort for networks."""


@dataclass(frozen=True, eq=False)
class MinimumEnergyPath:
    """A path of low potential between two points.

    Attributes:
        points: images `[K, P]` at equal arc length.
        profile: U at the images and at three points between each two `[4 (K − 1) + 1]`.
        straight_profile: the same on the straight line.
        saddle: the highest image after climbing `[P]`.
        saddle_value: U there.
        residual: ‖∇U‖ there, 0 at a saddle.
        iterations: steps done.
    """

    points: Tensor
    profile: Tensor
    straight_profile: Tensor
    saddle: Tensor
    saddle_value: float
    residual: float
    iterations: int

    @property
    def values(self) -> Tensor:
        """U at the images `[K]`."""
        return self.profile[::BETWEEN]

    @property
    def barrier(self) -> float:
        """Largest U on the path, at and between the images, minus U at the start."""
        return float(self.profile.max() - self.profile[0])

    @property
    def straight_barrier(self) -> float:
        """The same on the straight line."""
        return float(self.straight_profile.max() - self.straight_profile[0])


@operation
def minimum_energy_path(
    potential: Potential,
    start: Tensor,
    end: Tensor,
    options: StringOptions | None = None,
    resume: State | None = None,
) -> Work[MinimumEnergyPath]:
    """The minimum energy path between two points, which stay where they are.

    Args:
        potential: U.
        start: a point `[P]`.
        end: another point `[P]`.
        options: effort.
        resume: state of a checkpoint of the same call, from which it continues.

    >>> from nearkin.distance.reachability.wells import curved_double_well
    >>> ends = torch.tensor([[-1.0, 0.0], [1.0, 0.0]]).double()
    >>> path = minimum_energy_path(curved_double_well(), *ends)
    >>> [round(value, 4) for value in (*path.saddle.tolist(), path.barrier, path.straight_barrier)]
    [0.0, 1.0, 0.25, 2.25]
    """
    options = options or StringOptions()
    line = straight_line(start, end, options.images - 1)
    require(bool((start != end).any()), "start and end are the same point, so there is no path")
    if resume is None:
        points, iterations, step = line, 0, options.step or 0.5 / _largest_curvature(potential, line)
    else:
        with restoring(resume.origin):
            points, iterations, step = resume.tensors["points"], int(resume.facts["iterations"]), resume.facts["step"]
        require(points.shape == line.shape, f"{resume.origin} is of another path; remove it", DataError)
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
        yield Progress("path", iterations, options.iterations, {"length": length})
        facts = {"iterations": iterations, "step": step}
        yield Checkpoint(lambda points=points, facts=facts: State({"points": points}, facts))  # type: ignore[misc]
    profile = path_profile(potential, points)
    saddle = _climb(potential, points, profile[::BETWEEN], step, options.climbing)
    return MinimumEnergyPath(
        points,
        profile,
        path_profile(potential, line),
        saddle,
        float(potential.value(saddle)),
        float(potential.gradient(saddle).norm()),
        iterations,
    )


@operation
def connect_modes(
    model: nn.Module,
    start: Params,
    end: Params,
    x: Tensor,
    y: Tensor,
    likelihood: str = "categorical",
    decay: float = 0.0,
    options: StringOptions | None = None,
) -> Work[MinimumEnergyPath]:
    """A path of low loss between two sets of weights of one network, with its barrier (mode connectivity).

    Batch normalisation uses the statistics of `x` at every point of the path, because running statistics belong to
    one set of weights only.

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
    potential = NetworkPotential(model, x, y, likelihood, decay, batch_statistics=True)
    options = options or MODE_OPTIONS
    return minimum_energy_path.work(potential, potential.point(start), potential.point(end), options)


def barrier_height(potential: Potential, path: Tensor) -> float:
    """Largest U on a path `[K, P]`, at its points and at three points between each two, minus U at its start.

    >>> from nearkin.distance.reachability.wells import double_well
    >>> barrier_height(double_well(), torch.tensor([[-1.0], [0.0], [1.0]]))
    0.25
    """
    values = path_profile(potential, path)
    return float(values.max() - values[0])


def path_profile(potential: Potential, path: Tensor) -> Tensor:
    """U along a path `[K, P]`, at its points and at three points between each two: `[4 (K − 1) + 1]`.

    >>> from nearkin.distance.reachability.wells import double_well
    >>> path_profile(double_well(), torch.tensor([[-1.0], [1.0]]))
    tensor([0.0000, 0.1406, 0.2500, 0.1406, 0.0000])
    """
    shares = torch.arange(BETWEEN).to(path) / BETWEEN
    inner = torch.lerp(path[:-1, None], path[1:, None], shares[:, None]).flatten(0, 1)
    values = potential.value(torch.cat([inner, path[-1:]])).detach()
    require(bool(values.isfinite().all()), "the potential is NaN on the path", DataError)
    return values


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
