"""Contenders: models that are trained for a task under one allowance of time, and how each of them is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypedDict

import torch
from torch import nn

from nearkin.core.events import Work
from nearkin.core.rng import derived_seed
from nearkin.core.state import State
from nearkin.nets.evaluate import evaluate
from nearkin.nets.functional import check
from nearkin.nets.heads import head_name, with_head
from nearkin.nets.registry import build
from nearkin.nets.solved import FitFacts, Solved, fit_facts, fit_from, fit_state
from nearkin.nets.spec import NetworkSpec
from nearkin.nets.training_loop import Fit, fit
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.networks.named import network_string
from nearkin.search.networks.skeleton import Skeleton
from nearkin.solver.closed import fit_closed_form
from nearkin.solver.pace import Pace
from nearkin.solver.result import Result
from nearkin.solver.simple.machines import costs
from nearkin.solver.simple.models import fit_simple
from nearkin.tasks.batches import num_batches
from nearkin.tasks.task import Task
from nearkin.zoo.search import SearchDomain

HAND_MADE = {"vgg16": "VGG-16", "resnet18": "ResNet-18", "densenet121": "DenseNet-121"}
TITLES = {**HAND_MADE, "lenet": "LeNet", "mlp": "multilayer perceptron"}
WIDTHS = (0.0625, 0.125, 0.25, 0.5, 1.0)
USUAL_WIDTH = 0  # place among these for runs without a limit of time
CHANNELS = (8, 16, 32, 48)
USUAL_CELLS = 1  # place among the networks of a cell
MAP_SIDE = 8  # of maps on which cells are compared: fast enough for a second a cell
FINAL_SIDE = 16  # of maps on which the chosen cell works
CURVE = 120  # points of a learning curve that are kept


@dataclass(frozen=True, eq=False, kw_only=True)
class Contender:
    """A model that is to be trained.

    Attributes:
        name: one word.
        title: for readers.
        kind: one of `result.KINDS`.
        task: what it learns from (`train`) and is judged by (`test`), in its own input shape.
        domain: where its architecture is searched; None where it is known.
        method: of that search.
        networks: its network in growing size, one of which is chosen by time; empty for what is not trained in steps.
        usual: place among these where time has no limit.
        source: the kin's trained network that it begins with, if any.
        seed: of weights and order.
        seconds: the most that its training may take.
        pace: its network and recipe, once they are chosen.
        fixed: settings of a model that is not trained in steps, chosen before.
        told: what is known beside: genotype, search, settings.
    """

    name: str
    title: str
    kind: str
    task: Task
    domain: SearchDomain | None = None
    method: str = ""
    networks: tuple[str, ...] = ()
    usual: int = 0
    source: Solved | None = None
    seed: int = 0
    seconds: float | None = None
    pace: Pace | None = None
    fixed: Mapping[str, Any] | None = None
    told: Mapping[str, Any] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """All that decides what it comes to: plain JSON values."""
        origin = None if self.source is None else [self.source.name, self.source.network, self.source.metric]
        return {
            "name": self.name,
            "data": self.task.fingerprint(),
            "pace": self.pace and self.pace.to_dict(),
            "source": origin,
            "seed": self.seed,
            "seconds": self.seconds if self.pace is None and self.fixed is None else None,
            "fixed": None if self.fixed is None else dict(self.fixed),
        }


class TrainingFacts(TypedDict):
    """What the stored training of a contender says beside its tensors."""

    network: str
    fit: FitFacts
    settings: dict[str, Any]


def training_state(network: str, fit: Fit, settings: Mapping[str, Any]) -> State:
    """A finished training, as a stage stores it."""
    facts = {"network": network, "fit": fit_facts(fit), "settings": dict(settings)}
    return State(fit_state(fit).tensors, facts)


def trained_network(state: State, task: Task, seed: int) -> tuple[Solved, dict[str, Any]]:
    """The trained network of a stored training, and what was decided on the way."""
    facts = state.read(TrainingFacts)
    fit = fit_from(state, facts["fit"])
    return Solved(task.name, facts["network"], task.facts(), seed, (fit,)), facts["settings"]


def train_contender(contender: Contender, start: State | None, device: torch.device) -> Work[State]:
    """Train a contender; the work of a stage."""
    task = contender.task
    if contender.pace is None and contender.source is not None:
        closed = yield from fit_closed_form(
            contender.source, task, seconds=contender.seconds, seed=contender.seed, fixed=contender.fixed
        )
        return training_state(*closed)
    if contender.pace is None:
        simple = yield from fit_simple.work(
            contender.name, task, seconds=contender.seconds, seed=contender.seed, fixed=contender.fixed
        )
        return training_state(simple.network, simple.fit, simple.settings)
    model, recipe = _begun(contender, contender.pace.network), contender.pace.recipe
    result = yield from fit.work(
        model, task, recipe, seed=derived_seed(contender.seed, "solve"), device=device, resume=start,
        stage=contender.title,
    )  # fmt: skip
    settings = {"steps": len(result.history.losses), "batch_size": recipe.batch_size, "rate": recipe.learning_rate}
    return training_state(contender.pace.network, result, settings)


def _begun(contender: Contender, network: str) -> nn.Module:
    """The network before its training: drawn, or a kin's with a fresh head."""
    task = contender.task
    if contender.source is None:
        model = build(network, task.input_shape, task.num_outputs, contender.seed)
        check(model, task.input_shape, task.num_outputs, task.likelihood)
        return model
    model = contender.source.model()
    head = head_name(model, task.train.first(1).x)
    return with_head(model, task.num_outputs, derived_seed(contender.seed, "head"), head)


def samples_learned(settings: Mapping[str, Any], task: Task) -> int:
    """How many training samples a model learned from: a drawn part, or those of its first epoch if it did not end."""
    if "samples" in settings:
        return int(settings["samples"])
    count = len(task.train)
    return min(count, round(int(settings["steps"]) * count / num_batches(count, int(settings["batch_size"]))))


def result_of(contender: Contender, solved: Solved, settings: Mapping[str, Any], whole: Task, seconds: float) -> Result:
    """What a trained contender achieved; `whole` is its task with the true test part."""
    model, fit = solved.model(), solved.trials[0]
    parameters, work = costs(model, contender.task.input_shape)
    return Result(
        name=contender.name,
        title=contender.title,
        kind=contender.kind,
        validation=fit.scores.metric,
        loss=fit.scores.loss,
        test=evaluate(model, whole.test, whole.form).metric,
        parameters=parameters,
        multiply_adds=work,
        seconds=seconds,
        samples=samples_learned(settings, contender.task),
        network=solved.network,
        genotype=contender.told.get("genotype", ""),
        search=contender.told.get("search"),
        curve=thinned(fit.history.losses.tolist()),
        settings={**settings, **contender.told.get("settings", {})},
    )


def thinned(losses: Sequence[float], points: int = CURVE) -> tuple[tuple[float, float], ...]:
    """A curve of at most so many points: means over equal stretches, each at its middle.

    >>> thinned([4.0, 2.0, 1.0, 1.0], points=2)
    ((1.0, 3.0), (3.0, 1.0))
    """
    size = max(1, -(-len(losses) // points))
    stretches = [losses[place : place + size] for place in range(0, len(losses), size)]
    return tuple(
        (number * size + len(part) / 2, round(sum(part) / len(part), 6)) for number, part in enumerate(stretches)
    )


def search_skeleton(task: Task, channels: int = CHANNELS[0]) -> Skeleton:
    """What cells are set into while they are compared: small maps, two cells, a pool between."""
    stride = _stride(task, MAP_SIDE)
    return Skeleton(channels=channels, num_cells=2, between="pool", stem_stride=stride)


def searched_networks(genotype: Genotype, task: Task) -> list[str]:
    """Networks of a cell, smallest first: as it was compared, then deeper and in growing width."""
    stride = _stride(task, FINAL_SIDE)
    larger = [Skeleton(channels=width, num_cells=3, stem_stride=stride) for width in CHANNELS]
    return [network_string(genotype, skeleton) for skeleton in (search_skeleton(task), *larger)]


def _stride(task: Task, side: int) -> int:
    """By how much the stem makes images smaller, so that their sides are at most `side`."""
    stride = 1
    while max(task.input_shape[1:]) / stride > side:
        stride *= 2
    return stride


def hand_made_networks(name: str, width: float | None = None) -> list[str]:
    """A hand-made network in growing width, or in one that is given.

    >>> hand_made_networks("vgg16", 0.25)
    ['vgg16?width=0.25']
    """
    return [f"{name}?width={one:g}" for one in (WIDTHS if width is None else (width,))]


def made_title(network: str) -> str:
    """A network of `TITLES` for readers; the deep ones with their width, which their names do not tell.

    >>> made_title("vgg16?width=0.0625"), made_title("resnet18?width=1"), made_title("lenet")
    ('VGG-16, 1/16 width', 'ResNet-18, full width', 'LeNet')
    """
    spec = NetworkSpec.parse(network)
    title = TITLES.get(spec.name, spec.name)
    if spec.name not in HAND_MADE:
        return title
    width = Fraction(str(dict(spec.options).get("width", 1))).limit_denominator(1000)
    return f"{title}, {'full' if width == 1 else width} width"
