"""Complexity of a task of a zoo, or of a new task: loss, information in the weights, structure function."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from nearkin.core.clock import now
from nearkin.core.errors import MismatchError, OptionError, require, require_positive
from nearkin.core.events import Note, Progress, Work
from nearkin.core.types import Params
from nearkin.distance.information.curvature import CurvatureOptions
from nearkin.distance.information.static_distance import TaskSamples, fit_tasks
from nearkin.distance.information.structure import StructureFunction, structure_function
from nearkin.distance.information.task_complexity import DECAY, Complexity, WeightPrior, complexity
from nearkin.nets.functional import num_parameters
from nearkin.nets.recipe import Recipe
from nearkin.nets.registry import default_network
from nearkin.nets.solved import Solved
from nearkin.nets.spec import NetworkSpec
from nearkin.nets.trusted_code import trust_network
from nearkin.tasks.task import Task
from nearkin.zoo.solved_tasks import SolvedTasks
from nearkin.zoo.trials import TrialCache

REFITTED = tuple(10 ** (exponent / 2) for exponent in range(-2, 7))
"""Prices of information of the structure function."""


@dataclass(frozen=True, kw_only=True)
class ComplexityOptions:
    """Options of the complexity of a task.

    Attributes:
        beta: price of one nat of information; 1 gives the length of a description of the labels.
        network: for a new task (default: one that suits it, or that of `given`).
        samples: largest number of training samples.
        steps: largest number of L-BFGS iterations that bring the weights to a minimum for the prior; 0 keeps them.
        curvature: `auto` (by the number of weights), `full`, `block`, `kronecker`, `lanczos` or `diagonal`.
        decay: weight decay γ of the mean loss; the variance of the prior is 1 / (Nγ).
        refit: L-BFGS iterations for every β of the structure function; 0 keeps the weights, and there is no critical β.
        given: a task of the zoo; its trained weights are the mean of the prior and the start of the fit.
        trial: whose network is used.
    """

    beta: float = 1.0
    network: str | None = None
    samples: int = 1000
    steps: int = 100
    curvature: str = "auto"
    decay: float = DECAY
    refit: int = 20
    given: str | None = None
    trial: int = 0

    def __post_init__(self) -> None:
        require_positive("beta", self.beta)
        require_positive("decay", self.decay)
        require(self.samples >= 2, f"samples must be 2 or more, got {self.samples}")
        for name in ("steps", "refit", "trial"):
            require(getattr(self, name) >= 0, f"{name} must be 0 or more, got {getattr(self, name)}")
        CurvatureOptions(self.curvature)  # checks the name


@dataclass(frozen=True)
class TaskComplexity:
    """Complexity of a task for a network.

    Attributes:
        task: name of the task.
        network: network string.
        given: name of the task whose weights are the mean of the prior; empty for a prior at zero.
        found: the complexity for the chosen β.
        structure: the complexities for several β.
        seconds: duration without the training of the network.
    """

    task: str
    network: str
    given: str
    found: Complexity
    structure: StructureFunction
    seconds: float

    @property
    def critical_beta(self) -> float | None:
        """The β at which information falls fastest; None if the weights were not fitted again for each β.

        At fixed weights the information always falls fastest at the smallest β.
        """
        return self.structure.critical_beta if self.structure.refitted else None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `complexity` is `loss` + β · `information_nats`, up to rounding."""
        found = self.found
        return {
            "task": self.task,
            "network": self.network,
            "given": self.given or None,
            "complexity": found.complexity,
            "error": found.error,
            "loss": found.expected_loss,
            "loss_at_weights": found.loss,
            "information_nats": found.information,
            "information_bits": found.information_bits,
            "beta": found.beta,
            "critical_beta": self.critical_beta,
            "weight_term": found.weight_term,
            "log_determinant": found.log_determinant.value,
            "effective_dimension": found.effective_dimension.value,
            "prior_variance": found.prior_variance,
            "curvature": found.curvature,
            "reason": found.reason,
            "num_samples": found.num_samples,
            "num_weights": found.num_weights,
            "curve_curvature": self.structure.points[0].curvature,
            "curve": [
                {"beta": point.beta, "information": point.information, "loss": point.expected_loss}
                for point in self.structure.points
            ],
            "seconds": self.seconds,
        }


def measure_complexity(
    zoo: SolvedTasks, task: Task | str, how: ComplexityOptions, seed: int, device: torch.device
) -> Work[TaskComplexity]:
    """Complexity of a task and its structure function.

    The network of a task of the zoo is read, that of a new task is trained like that of `Zoo.add` and kept for the next
    call. The weights are then fitted to a minimum of the loss with the weight decay of the prior, on the samples that
    the complexity is measured on.
    """
    data = zoo.task(task) if isinstance(task, str) else task
    given = None if how.given is None else zoo.solved(how.given)
    solved = given or (yield from _solved(zoo, task, how, seed, device))
    if given is not None:
        _require_same(given, data, how.network if not isinstance(task, str) else zoo.record(task).network)
    start, model, data = now(), solved.model(how.trial), solved.inputs(data)
    centre = None if given is None else {name: value.detach().clone() for name, value in model.named_parameters()}
    samples = TaskSamples(*data.train.fixed_subset(how.samples), data.likelihood)
    variance = WeightPrior(how.decay).variance_of(len(samples.x))
    fitted = fit_tasks(model, [samples], how.beta, variance, how.steps, centre)
    yield Note(f"measuring the complexity of '{data.name}'")
    found = _complexity(fitted, samples, how.beta, variance, centre, how.curvature)
    structure = yield from _structure(fitted, samples, how, variance, centre)
    return TaskComplexity(data.name, solved.network, how.given or "", found, structure, now() - start)


def _complexity(
    model: nn.Module, samples: TaskSamples, beta: float, variance: float, centre: Params | None, curvature: str
) -> Complexity:
    return complexity(
        model, samples.x, samples.y, beta, likelihood=samples.likelihood, prior=WeightPrior(variance=variance),
        prior_mean=centre, curvature=curvature,
    )  # fmt: skip


def _structure(
    model: nn.Module, samples: TaskSamples, how: ComplexityOptions, variance: float, centre: Params | None
) -> Work[StructureFunction]:
    """The structure function, each β from the weights before; a large network has Kronecker factors unless told."""
    betas = sorted({*REFITTED, how.beta})
    kind, _ = CurvatureOptions(how.curvature).chosen(num_parameters(model))
    kind = "kronecker" if how.curvature == "auto" and kind == "lanczos" else how.curvature
    if how.refit == 0:
        return structure_function(
            model, samples.x, samples.y, betas, likelihood=samples.likelihood, prior=WeightPrior(variance=variance),
            prior_mean=centre, curvature=kind,
        )  # fmt: skip
    points = []
    for number, beta in enumerate(betas, 1):
        model = fit_tasks(model, [samples], beta, variance, how.refit, centre)
        points.append(_complexity(model, samples, beta, variance, centre, kind))
        yield Progress("structure function", number, len(betas))
    return StructureFunction(tuple(points), refitted=True)


def _solved(
    zoo: SolvedTasks, task: Task | str, how: ComplexityOptions, seed: int, device: torch.device
) -> Work[Solved]:
    """The stored networks of a task of the zoo; a network that is trained for a new task."""
    if isinstance(task, str):
        solved = zoo.solved(task)
        if how.network is not None and str(NetworkSpec.parse(how.network).anchored()) != solved.network:
            raise OptionError(
                f"'{task}' is stored with the network {solved.network}, got network={how.network}; leave it out, or "
                f"give the data string of the task"
            )
        return solved
    if how.network is not None:
        trust_network(how.network)
    spec = str(NetworkSpec.parse(how.network or default_network(task)).anchored())
    recipe = Recipe.suited(task)
    yield Note(f"training {spec} on '{task.name}', whose complexity is measured; the result is stored")
    fits = []
    cache = TrialCache.of(zoo.work, task, spec, recipe, seed)
    for trial in range(how.trial + 1):
        fits.append((yield from cache.trial(trial, how.trial + 1, device)))
    return Solved(task.name, spec, task.facts(), seed, tuple(fits))


def _require_same(given: Solved, task: Task, network: str | None) -> None:
    """Refuse a task whose network has other weights than the network that the prior is centred on."""
    if network is not None:
        network = str(NetworkSpec.parse(network).anchored())
    for what, own, other in (
        ("network", given.network, network or given.network),
        ("input shape", tuple(given.facts["input_shape"]), task.input_shape),
        ("likelihood", given.facts["likelihood"], task.likelihood),
        ("number of outputs", given.num_outputs, task.num_outputs),
    ):
        require(
            own == other,
            f"'{given.name}' has {what} {own}, '{task.name}' has {other}; complexity given another network needs equal "
            f"networks: choose another task for given",
            MismatchError,
        )
