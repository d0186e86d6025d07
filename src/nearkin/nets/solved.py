"""A solved task: its network and the trained weights of every trial, and how they are stored."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any, NotRequired, TypedDict

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import UninitializedParameter

from nearkin.core.errors import DataError, MismatchError, require
from nearkin.core.plain import typed
from nearkin.core.state import State, prefixed, restoring
from nearkin.nets.evaluate import Scores, evaluate
from nearkin.nets.functional import load
from nearkin.nets.history import History
from nearkin.nets.registry import build
from nearkin.nets.training_loop import Fit
from nearkin.tasks.examples import Scaling
from nearkin.tasks.likelihood import likelihood
from nearkin.tasks.network_inputs import NETWORK_INPUTS, NetworkInputs
from nearkin.tasks.task import Task

LARGEST_INPUT = 2**28  # values of one stored input
SPARE, SPARE_WEIGHTS = 16, 2**20  # factor and extra weights allowed in `build`, which first draws ten outputs


class ScalingFacts(TypedDict):
    """The keys of `Scaling.to_dict`."""

    mean: list[float]
    std: list[float]


class TaskFacts(TypedDict):
    """The keys of `Task.facts` that a stored network needs."""

    likelihood: str
    classes: list[str]
    input_shape: list[int]
    source: str
    scaling: ScalingFacts | None
    target_scaling: ScalingFacts | None
    preprocessing: NotRequired[dict[str, Any]]


class FitFacts(TypedDict):
    """The keys of `fit_facts`."""

    metric: float
    loss: float
    count: int
    seconds: float
    reached: bool


class ModelFacts(TypedDict):
    """The metadata of a file with the weights of a network."""

    name: str
    network: str
    task: TaskFacts
    seed: int
    fit: FitFacts


@dataclass(frozen=True, eq=False)
class Solved:
    """A solved task.

    Attributes:
        name: the task's name.
        network: the network string that was used.
        facts: `Task.facts`: likelihood, classes, input shape, scaling, source.
        seed: the seed; trial t of every task starts from the same weights.
        trials: the result of every trial.
    """

    name: str
    network: str
    facts: Mapping[str, Any]
    seed: int
    trials: tuple[Fit, ...]

    @property
    def metric(self) -> float:
        """Mean test metric of the trials."""
        return fmean(trial.scores.metric for trial in self.trials)

    @property
    def spread(self) -> float:
        """Standard deviation of the test metric over trials; 0 for one trial."""
        return stdev(trial.scores.metric for trial in self.trials) if len(self.trials) > 1 else 0.0

    @property
    def epsilon(self) -> float:
        """The smallest ε for which every trial is an ε-approximation network: 1 − the worst metric."""
        return 1 - min(trial.scores.metric for trial in self.trials)

    @property
    def num_outputs(self) -> int:
        """Width of the last layer."""
        return likelihood(self.facts["likelihood"]).num_outputs(len(self.facts["classes"]))

    @property
    def inputs(self) -> NetworkInputs:
        """How the inputs of a task are prepared for the networks."""
        return NetworkInputs.of(self.facts)

    def model(self, trial: int = 0) -> nn.Module:
        """The trained network of one trial, in evaluation mode."""
        require(0 <= trial < len(self.trials), f"'{self.name}' has trials 0 to {len(self.trials) - 1}, got {trial}")
        shape, fit = self.inputs.shape, self.trials[trial]
        stored = sum(value.numel() for value in fit.params.values())
        with restoring(f"the network of '{self.name}'"), _weight_limit(SPARE * stored + SPARE_WEIGHTS, self.network):
            model = build(self.network, shape, self.num_outputs, self.seed, trial)
        load(model, fit.params, fit.buffers)
        return model.eval()

    def scores_on(self, task: Task, trial: int = 0, device: torch.device | None = None) -> Scores:
        """Metric and loss on another task's test set, with the scaling of this task."""
        adopted = NETWORK_INPUTS in self.facts  # its inputs are prepared from those of any task
        for property_name, own, other in (
            ("likelihood", self.facts["likelihood"], task.likelihood),
            ("input shape", task.input_shape if adopted else tuple(self.facts["input_shape"]), task.input_shape),
            ("number of classes", len(self.facts["classes"]), len(task.classes)),
        ):
            if own != other:
                raise MismatchError(f"'{self.name}' was trained with {property_name} {own}, '{task.name}' has {other}; "
                                    f"evaluate it on data of the same kind")  # fmt: skip
        mine = self.facts.get("preprocessing")
        require(
            not mine or mine == dict(task.preprocessing),
            f"the columns of '{task.name}' are not encoded like those that '{self.name}' was trained on; evaluate it "
            f"on its own data, or apply it to new rows with nearkin predict",
            MismatchError,
        )
        target_scaling = Scaling.from_dict(self.facts["target_scaling"])
        if adopted:
            examples = replace(self.inputs(task).test, target_scaling=target_scaling)
        else:
            scaling = Scaling.from_dict(self.facts["scaling"])
            examples = replace(task.test, scaling=scaling, target_scaling=target_scaling)
        return evaluate(self.model(trial).to(device), examples, task.form, device=device)


@contextmanager
def _weight_limit(weights: int, network: str) -> Iterator[None]:
    """Refuse to build a network with far more weights than are stored, before their memory is used."""
    count = 0

    def hook(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal count
        if parameter is not None and not isinstance(parameter, UninitializedParameter):
            count += parameter.numel()
        require(
            count <= weights,
            f"the network {network[:80]} has more weights than are stored for it; write or fetch the file again",
            DataError,
        )

    with register_module_parameter_registration_hook(hook):
        yield


def fit_state(fit: Fit) -> State:
    """Weights, buffers and history as one state; the same run gives the same bytes."""
    history = prefixed("history", fit.history.to_tensors())
    return State({**prefixed("params", fit.params), **prefixed("buffers", fit.buffers), **history})


def fit_facts(fit: Fit) -> dict[str, Any]:
    """Scores, time and number of steps of a run, as plain JSON values."""
    steps = len(fit.history.losses)
    return {**fit.scores.to_dict(), "seconds": fit.seconds, "reached": fit.reached, "steps": steps}


def fit_from(state: State, facts: Mapping[str, Any]) -> Fit:
    """The inverse of `fit_state` and `fit_facts`."""
    known = typed(FitFacts, dict(facts), state.origin)
    scores = Scores(known["metric"], known["loss"], known["count"])
    with restoring(state.origin):
        history = History.from_tensors(state.section("history"))
    params, buffers = state.section("params"), state.section("buffers")
    return Fit(params, buffers, history, scores, known["seconds"], known["reached"])


def solved_from(state: State, facts: Mapping[str, Any]) -> Solved:
    """A solved task of one trial from its tensors and its `ModelFacts`."""
    model = typed(ModelFacts, dict(facts), state.origin)
    fit = fit_from(state, model["fit"])
    return Solved(model["name"], model["network"], task_facts(model["task"], state.origin), model["seed"], (fit,))


def task_facts(facts: Mapping[str, Any], origin: str) -> TaskFacts:
    """Stored facts of a task, checked so that a network can be built: types, shape and scaling must fit."""
    known = typed(TaskFacts, dict(facts), origin)
    shape, scaling, target_scaling = known["input_shape"], known["scaling"], known["target_scaling"]
    for key, fits in (
        ("input_shape", 1 <= len(shape) <= 4 and min(shape) >= 1 and math.prod(shape) <= LARGEST_INPUT),
        ("classes", len(known["classes"]) >= 1),
        ("scaling", scaling is None or len(scaling["mean"]) == len(scaling["std"]) in (1, shape[0] if shape else 0)),
        ("target_scaling", target_scaling is None
         or len(target_scaling["mean"]) == len(target_scaling["std"]) in (1, len(known["classes"]))),
    ):  # fmt: skip
        require(
            fits,
            f"{origin}: {key} does not fit the other facts of the task ({str(known[key])[:80]}); write or fetch the "  # type: ignore[literal-required]
            f"file again",
            DataError,
        )
    return known
