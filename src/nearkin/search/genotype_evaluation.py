"""Train the network of a genotype from scratch and measure it.

The training loop is `nearkin.nets.training_loop`. The module `networks.auxiliary` adds increasing drop-path and an
auxiliary head to cell networks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

from nearkin.core.errors import TrainingError, require
from nearkin.core.events import Checkpoint, Work, map_events, operation
from nearkin.core.state import State, add_facts
from nearkin.nets.functional import check, multiply_adds, num_parameters
from nearkin.nets.recipe import Recipe
from nearkin.nets.training_loop import fit
from nearkin.search.genotypes.genotype import Cells, Genotype, Recurrent
from nearkin.search.networks.auxiliary import AuxiliaryTask, CellNetworkInTraining
from nearkin.search.networks.build import build_network
from nearkin.search.networks.cells import CellNetwork
from nearkin.search.networks.skeleton import Skeleton
from nearkin.search.objective import Objective, ObjectiveValue
from nearkin.tasks.batches import num_batches
from nearkin.tasks.derive import held_out
from nearkin.tasks.task import Task

VALIDATION = 0.2  # fraction of the training set that an objective uses as validation set


@dataclass(frozen=True, eq=False)
class GenotypeEvaluation:
    """The trained network of a genotype with its figures.

    Attributes:
        genotype: the architecture.
        part: data of the evaluation: `test`, or `validation`, which was held out from the training set.
        metric: accuracy or R² on these data.
        loss: mean loss on these data.
        count: number of samples in these data.
        parameters: number of parameters of the network.
        multiply_adds: multiply-adds for one input.
        seconds: training time.
        steps: number of training steps.
        network: the trained network in evaluation mode.
        further: further figures by name, such as the average precision of a detector at other overlaps.
    """

    genotype: Genotype
    part: str
    metric: float
    loss: float
    count: int
    parameters: int
    multiply_adds: int
    seconds: float
    steps: int
    network: nn.Module
    further: Mapping[str, float | None] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values of everything but the network."""
        names = ("part", "metric", "loss", "count", "parameters", "multiply_adds", "seconds", "steps")
        further = {"further": dict(self.further)} if self.further else {}
        return {"genotype": str(self.genotype), **{name: getattr(self, name) for name in names}, **further}


@operation
def evaluate_genotype(
    genotype: Genotype,
    task: Task,
    skeleton: Skeleton,
    recipe: Recipe | None = None,
    seed: int = 0,
    resume: State | None = None,
    *,
    validation: float | None = None,
    device: torch.device | None = None,
) -> Work[GenotypeEvaluation]:
    """Train a genotype's network from scratch and measure it.

    Args:
        genotype: cells or a chain for images, a recurrent cell for text.
        task: task with classes, values or the next word to predict.
        skeleton: macro-architecture of the network.
        recipe: training recipe (default: one that suits the task). `augment="crop=4,flip,cutout=16"` is the usual
            augmentation of CIFAR.
        seed: seed of weights, order, augmentation and validation set.
        resume: state from a `Checkpoint` of the same evaluation.
        validation: fraction of the training set to hold out and evaluate on (default: evaluate on the test set).
        device: device of the training (default: CPU).
    """
    recipe = recipe or Recipe.suited(task)
    require_trainable(genotype, task, skeleton)
    target: Task = task if validation is None else held_out(task, validation, seed)
    network = build_network(genotype, skeleton, task.input_shape, task.num_outputs, seed)
    check(network, task.input_shape, task.num_outputs, task.likelihood)
    signature = {"genotype": str(genotype), "skeleton": skeleton.to_dict(), "validation": validation}
    if resume is not None:
        for name, value in signature.items():
            require(
                resume.facts.get("evaluation", {}).get(name) == value,
                f"the checkpoint belongs to another evaluation: its {name} differs; start again without it",
                TrainingError,
            )
    if isinstance(network, CellNetwork) and (skeleton.auxiliary or skeleton.drop_path > 0):
        target = target if not skeleton.auxiliary else AuxiliaryTask.of_task(target, skeleton.auxiliary_weight)
        total = recipe.total_steps(num_batches(len(target.train), recipe.batch_size))
        trained: nn.Module = CellNetworkInTraining(network, skeleton, task.num_outputs, total, seed)
    else:
        trained = network
    work = fit.work(trained, target, recipe, seed=seed, device=device, resume=resume, stage="evaluation")
    done = yield from add_facts(work, {"evaluation": signature})
    network.eval()
    return GenotypeEvaluation(
        genotype, "test" if validation is None else "validation", done.scores.metric, done.scores.loss,
        done.scores.count, num_parameters(network), multiply_adds(network, task.input_shape), done.seconds,
        len(done.history.losses), network,
    )  # fmt: skip


@dataclass(frozen=True)
class TrainedObjective(Objective):
    """Validation metric after training from scratch; the test set is not used.

    Attributes:
        task: the task to learn.
        skeleton: macro-architecture of all networks.
        recipe: training recipe of all networks.
        seed: seed of all trainings.
        validation: fraction of the training set that is held out as validation set.
        known: values that other processes measured, by genotype; for a failed training its error.
    """

    task: Task
    skeleton: Skeleton
    recipe: Recipe
    seed: int = 0
    validation: float = VALIDATION
    known: Mapping[str, ObjectiveValue | TrainingError] = field(default_factory=dict, compare=False, repr=False)

    def measure(self, genotype: Genotype) -> Work[ObjectiveValue]:
        """Train and evaluate one genotype; its checkpoints are not passed on, because the search has its own."""
        known = self.known.get(str(genotype))
        if isinstance(known, TrainingError):
            raise known
        if known is not None:
            return known
        work = self.train_and_measure(genotype)
        return (yield from map_events(work, lambda event: None if isinstance(event, Checkpoint) else event))

    def train_and_measure(self, genotype: Genotype, resume: State | None = None) -> Work[ObjectiveValue]:
        """Train and evaluate one genotype, from a checkpoint if one is given."""
        done = yield from evaluate_genotype.work(
            genotype, self.task, self.skeleton, self.recipe, self.seed, resume, validation=self.validation
        )
        facts = done.to_dict()
        return ObjectiveValue(
            done.metric, {name: facts[name] for name in ("loss", "parameters", "multiply_adds", "seconds")}
        )

    def settings(self) -> Mapping[str, Any]:
        """Data, skeleton, recipe, seed and validation fraction."""
        return {
            "task": self.task.name,
            "data": self._data,
            "skeleton": self.skeleton.to_dict(),
            "recipe": self.recipe.to_dict(),
            "seed": self.seed,
            "validation": self.validation,
        }

    @cached_property
    def _data(self) -> str:
        return self.task.fingerprint()


def require_trainable(genotype: Genotype, task: Task, skeleton: Skeleton) -> None:
    """Raise if genotype, task and skeleton do not fit."""
    require(
        skeleton.dense == (task.likelihood == "dense"),
        f"{task.name!r} has a {task.likelihood} likelihood, and the skeleton has dense={skeleton.dense}; use "
        f"dense=True for images as outputs and dense=False for all other tasks",
    )
    require(
        isinstance(genotype, Recurrent) == (task.likelihood == "language"),
        f"{task.name!r} has a {task.likelihood} likelihood, and the genotype is of type {type(genotype).__name__}; use "
        f"recurrent cells for text, cells and chains for images",
    )
    require(
        isinstance(genotype, Cells) or not (skeleton.auxiliary or skeleton.drop_path),
        "auxiliary heads and drop-path are only for cells; set auxiliary to false and drop_path to 0",
    )
