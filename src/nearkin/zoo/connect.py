"""Path of low loss between two solutions of the zoo, and the height of the barrier between them (mode connectivity).

Both solutions have the same network. Two trials of one task are compared on its training samples. Two tasks need a
head for each data set that is used: a solution has its own head for its own task, and for the other task a linear head
that is fitted to the features of its encoder. So the path of `data="end"` begins where fine-tuning of START's network
to END begins, after a fit of the head, and ends at END's own solution. All weights move along the path, also the heads.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from nearkin.core.clock import now
from nearkin.core.errors import MismatchError, require
from nearkin.core.events import Note, Work
from nearkin.distance.fisher_based.alignment import Aligned, aligned
from nearkin.distance.reachability.descent_noise import gradient_noise
from nearkin.distance.reachability.potentials import NetworkPotential, PointwisePotential
from nearkin.distance.reachability.shared_encoder import SharedEncoderPotential, with_fitted_head
from nearkin.distance.reachability.string_method import BETWEEN, StringOptions, minimum_energy_path
from nearkin.nets.functional import load, view
from nearkin.nets.heads import head_name
from nearkin.run.checkpoints import facts_digest, resume
from nearkin.tasks.examples import Batch
from nearkin.tasks.network_inputs import NETWORK_INPUTS
from nearkin.tasks.task import Task
from nearkin.zoo.solved_tasks import SolvedTasks

DATA = ("start", "end", "both")


@dataclass(frozen=True, kw_only=True)
class ConnectOptions:
    """Options of a path between two solutions.

    Attributes:
        trials: trial of the start and of the end.
        data: task whose loss is measured, `start`, `end` or `both`; without effect for two trials of one task.
        align: permute the hidden units of the end to the order of the start's units first.
        samples: largest number of training samples of each task, a fixed subset.
        images: points of the path, with both ends.
        iterations: largest number of steps of the string method.
    """

    trials: tuple[int, int] = (0, 0)
    data: str = "end"
    align: bool = False
    samples: int = 500
    images: int = 9
    iterations: int = 200

    def __post_init__(self) -> None:
        require(self.data in DATA, f"data must be one of {', '.join(DATA)}, got {self.data!r}")
        require(self.samples >= 2, f"samples must be 2 or more, got {self.samples}")
        self.string()  # checks its own options

    def string(self) -> StringOptions:
        """Effort of the string method."""
        return StringOptions(images=self.images, iterations=self.iterations, climbing=0)


@dataclass(frozen=True)
class Connection:
    """A path of low loss between two solutions, and the straight line.

    Attributes:
        start: name of the task at the start.
        end: name of the task at the end.
        network: network string of both.
        measured_on: names of the tasks whose mean loss U is.
        options: of the measurement.
        num_samples: training samples of all these tasks.
        parameters: weights that move along the path.
        straight: U along the straight line, at the images and at three points between each two.
        minimised: the same along the minimised path.
        lengths: of the straight line and of the minimised path, in weight space.
        iterations: steps of the string method.
        agreement: mean correlation of the hidden units before and after they were aligned; None if they were not.
        noise: facts of the gradient noise at the start and of D, see `diffusion_facts`; None without a stored recipe.
        seconds: time of the measurement; after an interruption, of its last part.
    """

    start: str
    end: str
    network: str
    measured_on: tuple[str, ...]
    options: ConnectOptions
    num_samples: int
    parameters: int
    straight: tuple[float, ...]
    minimised: tuple[float, ...]
    lengths: tuple[float, float]
    iterations: int
    agreement: tuple[float, float] | None
    noise: Mapping[str, Any] | None
    seconds: float

    @property
    def barrier(self) -> float:
        """Largest loss on the minimised path minus the loss of the higher end; 0 if no point is higher."""
        return _above_ends(self.minimised)

    @property
    def straight_barrier(self) -> float:
        """The same on the straight line."""
        return _above_ends(self.straight)

    @property
    def lowered(self) -> float | None:
        """Share by which the barrier fell from the straight line to the minimised path; None without a barrier."""
        return 1 - self.barrier / self.straight_barrier if self.straight_barrier > 0 else None

    @property
    def images(self) -> list[tuple[float, float, float]]:
        """Share of the path, loss on the straight line and loss on the minimised path, for every image."""
        pairs = list(zip(self.straight, self.minimised, strict=True))[::BETWEEN]
        return [(number / (len(pairs) - 1), *pair) for number, pair in enumerate(pairs)]

    @property
    def kramers(self) -> dict[str, float] | None:
        r"""The rise ΔU from the start to the highest point, ΔU/D, and $\log_{10} e^{\Delta U/D}$; None without D.

        The exponential is Kramers' time up to its prefactor. Without a barrier the rise is 0.
        """
        if self.noise is None:
            return None
        rise = max(self.minimised) - self.minimised[0] if self.barrier > 0 else 0.0
        ratio = rise / self.noise["diffusion"]
        return {"rise": rise, "rise_over_diffusion": ratio, "log10_factor": ratio / math.log(10)}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        images = [dict(zip(("share", "straight", "minimised"), row, strict=True)) for row in self.images]
        names = ("start", "end", "network", "num_samples", "parameters", "iterations", "barrier", "straight_barrier",
                 "lowered", "kramers", "seconds")  # fmt: skip
        return {
            **{name: getattr(self, name) for name in names},
            "measured_on": list(self.measured_on),
            "options": {**asdict(self.options), "trials": list(self.options.trials)},
            "images": images,
            "lengths": dict(zip(("straight", "minimised"), self.lengths, strict=True)),
            "agreement": None if self.agreement is None else list(self.agreement),
            "noise": None if self.noise is None else dict(self.noise),
        }


def connect_solutions(zoo: SolvedTasks, start: str, end: str, how: ConnectOptions) -> Work[Connection]:
    """Find a path of low loss between two solutions of the zoo; the same call resumes an interrupted one."""
    begun = now()
    models = _models(zoo, start, end, how)
    tasks = {name: zoo.task(name) for name in _measured_on(start, end, how.data)}
    inputs = zoo.network_inputs(zoo.record(start))
    if NETWORK_INPUTS in zoo.record(start).facts:
        tasks = {name: inputs(task) for name, task in tasks.items()}
    for task in tasks.values():
        shape = inputs.shape
        require(
            task.input_shape == shape,
            f"'{task.name}' has inputs {task.input_shape}, expected {shape}",
            MismatchError,
        )
    batches = {name: task.train.fixed_subset(how.samples) for name, task in tasks.items()}
    agreement = None
    if how.align:
        alignment: Aligned = yield from aligned.work(models[1], models[0], next(iter(batches.values())).x)
        load(models[1], alignment.params, alignment.buffers)
        agreement = (alignment.before, alignment.after)
        yield Note(f"units aligned: agreement {agreement[0]:.3f} before, {agreement[1]:.3f} after")
    networks = [_networks(name, model, tasks, batches) for name, model in zip((start, end), models, strict=True)]
    potential, ends = _potential(networks, tasks, batches)
    name = f"connect-{_digest(ends, tasks.values(), how)}.part"
    path = yield from resume(
        zoo.work, name, partial(minimum_energy_path.work, potential, *ends, how.string())
    )  # the state of a checkpoint is its last argument
    last = list(tasks)[-1]
    return Connection(
        start, end, zoo.record(start).network, tuple(tasks), how, sum(len(batch.x) for batch in batches.values()),
        len(ends[0]), tuple(path.straight_profile.tolist()), tuple(path.profile.tolist()),
        (float((ends[1] - ends[0]).norm()), float(path.points.diff(dim=0).norm(dim=-1).sum())), path.iterations,
        agreement, diffusion_facts(networks[0][last], batches[last], tasks[last], zoo.record(last).facts.get("recipe")),
        now() - begun,
    )  # fmt: skip


def _above_ends(profile: Sequence[float]) -> float:
    return max(profile) - max(profile[0], profile[-1])


def diffusion_facts(
    model: nn.Module, batch: Batch, task: Task, recipe: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    r"""Gradient noise of a network on a task, and $D = \eta\sigma^2/2B$ of plain SGD; None without a recipe.

    η and B are the learning rate and the batch size of the stored recipe, whatever its optimiser is.
    """
    if recipe is None:
        return None
    noise = gradient_noise(model, batch.x, batch.y, task.likelihood)
    rate, size = float(recipe["learning_rate"]), int(recipe["batch_size"])
    return {
        "task": task.name,
        "variance": noise.variance,
        "mean_square": noise.mean_square,
        "learning_rate": rate,
        "batch_size": size,
        "optimiser": str(recipe["optimiser"]),
        "diffusion": noise.diffusion(rate, size),
    }


def _models(zoo: SolvedTasks, start: str, end: str, how: ConnectOptions) -> tuple[nn.Module, nn.Module]:
    """Both networks, after a check that they can be connected."""
    first, last = zoo.solved(start), zoo.solved(end)
    require(
        (start, how.trials[0]) != (end, how.trials[1]),
        f"'{start}', trial {how.trials[0]}, is given as start and as end; give two tasks, or two trials such as 0,1",
    )
    for kind, own, other in (
        ("network", first.network, last.network),
        ("input shape", first.inputs.shape, last.inputs.shape),
    ):
        require(
            own == other,
            f"'{start}' has the {kind} {own}, '{end}' has {other}; choose two tasks that were added with the same "
            f"network and inputs",
            MismatchError,
        )
    return first.model(how.trials[0]), last.model(how.trials[1])


def _measured_on(start: str, end: str, data: str) -> tuple[str, ...]:
    """Names of the tasks whose loss is measured."""
    if start == end:
        return (start,)
    return {"start": (start,), "end": (end,), "both": (start, end)}[data]


def _networks(
    own: str, model: nn.Module, tasks: Mapping[str, Task], batches: Mapping[str, Batch]
) -> dict[str, nn.Module]:
    """The network of a solution for each task: with its own head, or with a head that is fitted to the task."""
    networks = {}
    for name, task in tasks.items():
        batch = batches[name]
        networks[name] = (
            model if name == own else with_fitted_head(model, batch.x, batch.y, task.form, len(task.classes))
        )
    return networks


def _potential(
    networks: Sequence[Mapping[str, nn.Module]], tasks: Mapping[str, Task], batches: Mapping[str, Batch]
) -> tuple[PointwisePotential, tuple[Tensor, Tensor]]:
    """The mean loss of the tasks, and both solutions as points."""
    parts = {
        name: NetworkPotential(networks[0][name], batch.x, batch.y, tasks[name].likelihood, batch_statistics=True)
        for name, batch in batches.items()
    }
    first, last = ([view(own[name]).params for name in parts] for own in networks)
    if len(parts) == 1:
        (part,) = parts.values()
        return part, (part.point(first[0]), part.point(last[0]))
    name = next(iter(parts))
    joint = SharedEncoderPotential(list(parts.values()), head_name(networks[0][name], batches[name].x[:1]))
    return joint, (joint.point(first), joint.point(last))


def _digest(ends: Sequence[Tensor], tasks: Iterable[Task], how: ConnectOptions) -> str:
    """A hash of all that determines the path, for the name of its checkpoint."""
    points = hashlib.sha256(b"".join(end.contiguous().numpy().tobytes() for end in ends)).hexdigest()
    return facts_digest({"points": points, "tasks": [task.fingerprint() for task in tasks], **asdict(how)})
