"""What a genotype is worth: its network trained from scratch, measured, counted.

The training loop is `nearkin.nets.training_loop`. What a cell network needs besides, drop-path that rises over the run
and an auxiliary head, stands in `auxiliary`: a module around it, and the loss of the task that is trained on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
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
from nearkin.search.networks.auxiliary import AuxiliaryTask, InTraining
from nearkin.search.networks.build import build_network
from nearkin.search.networks.cells import CellNetwork
from nearkin.search.networks.skeleton import Skeleton
from nearkin.search.objective import Measured, Objective
from nearkin.tasks.batches import num_batches
from nearkin.tasks.derive import held_out
from nearkin.tasks.task import Task

VALIDATION = 0.2  # share of the training data by which an objective judges


@dataclass(frozen=True, eq=False)
class Evaluated:
    """A genotype's network, trained, and its figures.

    Attributes:
        genotype: what was built.
        part: on which data it was judged: `test`, or `validation`, a part of the training data that was held out.
        metric: accuracy or R² there.
        loss: mean loss there.
        count: samples there.
        parameters: weights of the network.
        multiply_adds: for one input.
        seconds: of training.
        steps: of training.
        network: the trained network, in evaluation mode.
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

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; all but the network."""
        names = ("part", "metric", "loss", "count", "parameters", "multiply_adds", "seconds", "steps")
        return {"genotype": str(self.genotype), **{name: getattr(self, name) for name in names}}


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
) -> Work[Evaluated]:
    """Train a genotype's network from scratch and measure it.

    Args:
        genotype: cells or a chain for images, a recurrent cell for text.
        task: classes or values to predict, or the next word.
        skeleton: what the genotype is set into.
        recipe: how to train; one that suits the task where none is given. `augment="crop=4,flip,cutout=16"` is the
            customary augmentation of CIFAR.
        seed: of weights, order, augmentation, and of what is held out.
        resume: what a `Checkpoint` of the same evaluation captured.
        validation: share of the training data to hold out and to judge by; without it the test part judges.
        device: where to train; the CPU where nothing is said.
    """
    recipe = recipe or Recipe.suited(task)
    _check(genotype, task, skeleton)
    judged = task if validation is None else held_out(task, validation, seed)
    network = build_network(genotype, skeleton, task.input_shape, task.num_outputs, seed)
    check(network, task.input_shape, task.num_outputs, task.likelihood)
    signature = {"genotype": str(genotype), "skeleton": skeleton.to_dict(), "validation": validation}
    if resume is not None:
        for name, value in signature.items():
            require(
                resume.facts.get("evaluation", {}).get(name) == value,
                f"the checkpoint is not one of this evaluation: its {name} differs; start anew",
                TrainingError,
            )
    if isinstance(network, CellNetwork) and (skeleton.auxiliary or skeleton.drop_path > 0):
        judged = judged if not skeleton.auxiliary else AuxiliaryTask.of_task(judged, skeleton.auxiliary_weight)
        total = recipe.total_steps(num_batches(len(judged.train), recipe.batch_size))
        trained: nn.Module = InTraining(network, skeleton, task.num_outputs, total, seed)
    else:
        trained = network
    work = fit.work(trained, judged, recipe, seed=seed, device=device, resume=resume, stage="evaluation")
    done = yield from add_facts(work, {"evaluation": signature})
    network.eval()
    return Evaluated(
        genotype,
        "test" if validation is None else "validation",
        done.scores.metric,
        done.scores.loss,
        done.scores.count,
        num_parameters(network),
        multiply_adds(network, task.input_shape),
        done.seconds,
        len(done.history.losses),
        network,
    )


@dataclass(frozen=True)
class TrainedObjective(Objective):
    """The metric on held-out training data after training from scratch; the test part is never looked at.

    Attributes:
        task: what is learned.
        skeleton: what genotypes are set into.
        recipe: how their networks are trained, all alike.
        seed: the one seed, of all genotypes alike.
        validation: share of the training data that is held out.
    """

    task: Task
    skeleton: Skeleton
    recipe: Recipe
    seed: int = 0
    validation: float = VALIDATION

    def measure(self, genotype: Genotype) -> Work[Measured]:
        """Train and judge one genotype; its own checkpoints are kept back, because the search has others."""
        work = evaluate_genotype.work(
            genotype, self.task, self.skeleton, self.recipe, self.seed, validation=self.validation
        )
        done = yield from map_events(work, lambda event: None if isinstance(event, Checkpoint) else event)
        facts = done.to_dict()
        return Measured(done.metric, {name: facts[name] for name in ("loss", "parameters", "multiply_adds", "seconds")})

    def settings(self) -> Mapping[str, Any]:
        """Data, skeleton, recipe, seed and share held out."""
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


def _check(genotype: Genotype, task: Task, skeleton: Skeleton) -> None:
    """Genotype, task and skeleton must be of one kind."""
    require(
        skeleton.dense == (task.likelihood == "dense"),
        f"{task.name} has a {task.likelihood} likelihood, and the skeleton has dense={skeleton.dense}; a skeleton "
        f"has dense=True for images as outputs, and dense=False for all others",
    )
    require(
        isinstance(genotype, Recurrent) == (task.likelihood == "language"),
        f"{task.name} has a {task.likelihood} likelihood, the genotype is one of {type(genotype).__name__}; recurrent "
        f"cells go with text, cells and chains with images",
    )
    require(
        isinstance(genotype, Cells) or not (skeleton.auxiliary or skeleton.drop_path),
        "auxiliary heads and drop-path are for cells; set auxiliary to false and drop_path to 0",
    )
