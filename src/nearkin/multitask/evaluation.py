"""Evaluation phase of a search for several tasks: retrain its genotypes from scratch in a larger network for each task.

All trainings are one resumable operation. Its checkpoints hold the finished networks and the state of the current one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from nearkin.core.errors import TrainingError, require
from nearkin.core.events import Checkpoint, Progress, Work, finish, operation
from nearkin.core.state import State, change_checkpoints, copied, prefixed, restoring
from nearkin.multitask.detection.detector import build_detector, train_detector
from nearkin.nets.functional import multiply_adds, num_parameters
from nearkin.nets.recipe import Recipe
from nearkin.search.genotype_evaluation import GenotypeEvaluation, evaluate_genotype, require_trainable
from nearkin.search.genotypes.genotype import Cells, Genotype
from nearkin.search.networks.build import blueprint, build_network
from nearkin.search.networks.skeleton import Skeleton
from nearkin.tasks.task import Task

DETECTION = "detection"


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """Network and training of the evaluation phase, the same for every task. The defaults are those of DARTS.

    Chains have neither an auxiliary head nor drop-path: both options are left out for them.

    Attributes:
        channels: channels of the first cells, or of the first stage of a chain.
        num_cells: number of cells.
        stages: blocks in each stage of a chain (default: those of the mobile space).
        auxiliary: whether cells are trained with an auxiliary head; tasks with images as outputs never have one.
        drop_path: fraction of edges of cells dropped in training; it increases from 0 to this value.
        dropout: dropout rate in front of the head.
        augment: augmentation, such as `crop=4,flip,cutout=16` for CIFAR (default: none).
        stem_stride: factor by which the stem reduces height and width (default: one that suits the images).
        epochs: epochs of each training (default: those of the recipe that suits the task).
        batch_size: samples in one step (default: as for epochs).
        learning_rate: peak learning rate (default: as for epochs).
    """

    channels: int = 36
    num_cells: int = 20
    stages: tuple[int, ...] | None = None
    auxiliary: bool = True
    drop_path: float = 0.2
    dropout: float = 0.0
    augment: str = ""
    stem_stride: int | None = None
    epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None

    def skeleton(self, genotype: Genotype, task: Task) -> Skeleton:
        """Macro-architecture for a task; only cells have an auxiliary head and drop-path."""
        cells = isinstance(genotype, Cells) and task.likelihood != DETECTION
        changes = self._given("stages", "stem_stride")
        if cells:
            changes |= {"auxiliary": self.auxiliary and task.likelihood != "dense", "drop_path": self.drop_path}
        return Skeleton.of_task(task, channels=self.channels, num_cells=self.num_cells, dropout=self.dropout, **changes)

    def recipe(self, task: Task) -> Recipe:
        """Training recipe for a task."""
        return Recipe.suited(task, augment=self.augment, **self._given("epochs", "batch_size", "learning_rate"))

    def _given(self, *names: str) -> dict[str, Any]:
        """Those of these options that were given."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, eq=False)
class TasksEvaluation:
    """Trained networks of all tasks with their figures, by the name of the task."""

    tasks: Mapping[str, GenotypeEvaluation]

    @property
    def seconds(self) -> float:
        """Training time of all networks."""
        return sum(done.seconds for done in self.tasks.values())

    def metrics(self) -> dict[str, float]:
        """Metric of each task."""
        return {name: done.metric for name, done in self.tasks.items()}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: genotype, metric, loss, parameters, multiply-adds and seconds of each task."""
        return {"tasks": {name: done.to_dict() for name, done in self.tasks.items()}, "seconds": self.seconds}


@operation
def evaluate_tasks(
    genotypes: Genotype | Sequence[Genotype],
    tasks: Sequence[Task],
    options: EvaluationOptions | None = None,
    seed: int = 0,
    resume: State | None = None,
    *,
    validation: float | None = None,
    device: torch.device | None = None,
    trained: Mapping[str, State] | None = None,
) -> Work[TasksEvaluation]:
    """Train the network of a genotype from scratch for each task and measure it.

    Args:
        genotypes: one genotype for all tasks, or one for each.
        tasks: the tasks, with different names.
        options: network and training (default: those of DARTS).
        seed: seed of weights, order, augmentation and validation sets.
        resume: state from a `Checkpoint` of the same evaluation.
        validation: fraction of each training set to hold out and evaluate on (default: evaluate on the test sets).
        device: device of the training (default: CPU).
        trained: networks that other processes trained for the same genotypes and options, by the name of the task
            (`evaluation_state`).
    """
    options = options or EvaluationOptions()
    chosen = [genotypes] * len(tasks) if isinstance(genotypes, Genotype) else list(genotypes)
    _check(chosen, tasks)
    skeletons = [options.skeleton(genotype, task) for genotype, task in zip(chosen, tasks, strict=True)]
    recipes = [options.recipe(task) for task in tasks]
    for genotype, task, skeleton in zip(chosen, tasks, skeletons, strict=True):  # before the first training
        if task.likelihood == DETECTION:
            require(validation is None, "a detector is measured on its test set; leave validation out")
        else:
            require_trainable(genotype, task, skeleton)
        blueprint(genotype, skeleton, task.input_shape, task.num_outputs)
    signature = {
        "genotypes": list(map(str, chosen)), "tasks": [task.fingerprint() for task in tasks], "seed": seed,
        "skeletons": [skeleton.to_dict() for skeleton in skeletons], "validation": validation,
        "recipes": [recipe.to_dict() for recipe in recipes],
    }  # fmt: skip
    finished, start = _restored(resume, signature, tasks, skeletons) if resume is not None else ([], None)
    for number in range(len(finished), len(tasks)):
        task, skeleton, recipe = tasks[number], skeletons[number], recipes[number]
        if start is None and trained is not None and task.name in trained:
            work = _read(trained[task.name], task, skeleton)
        elif task.likelihood == DETECTION:
            work = _evaluate_detector(chosen[number], task, skeleton, recipe, seed, start, device)
        else:
            work = evaluate_genotype.work(
                chosen[number], task, skeleton, recipe, seed, start, validation=validation, device=device
            )
        done = yield from change_checkpoints(work, partial(_state, signature, tuple(finished)))
        finished, start = [*finished, done], None
        yield Checkpoint(partial(_state, signature, tuple(finished), None))
        yield Progress("tasks", number + 1, len(tasks), {task.name: done.metric})
    return TasksEvaluation({task.name: done for task, done in zip(tasks, finished, strict=True)})


def evaluation_state(done: GenotypeEvaluation) -> State:
    """A trained network with its figures, as `evaluate_tasks` reads it."""
    return State(copied(done.network.state_dict()), done.to_dict())


def _read(state: State, task: Task, skeleton: Skeleton) -> Work[GenotypeEvaluation]:
    """The inverse of `evaluation_state`."""
    yield from ()
    with restoring(state.origin):
        genotype = Genotype.parse(state.facts["genotype"])
        network = _network(genotype, task, skeleton)
        network.load_state_dict(dict(state.tensors))
        return GenotypeEvaluation(**{**state.facts, "genotype": genotype}, network=network.eval())


def _evaluate_detector(
    genotype: Genotype, task: Task, skeleton: Skeleton, recipe: Recipe, seed: int, start: State | None,
    device: torch.device | None,
) -> Work[GenotypeEvaluation]:  # fmt: skip
    """Train a detector; its metric is the average precision from counts, COCO's figures are further ones."""
    done = yield from train_detector.work(genotype, task, skeleton, recipe, seed=seed, device=device, resume=start)
    scores = done.fit.scores
    return GenotypeEvaluation(
        genotype, "test", scores.metric, scores.loss, scores.count, num_parameters(done.model),
        multiply_adds(done.model, task.input_shape), done.fit.seconds, len(done.fit.history.losses), done.model.eval(),
        done.precision.to_dict(),
    )  # fmt: skip


def _network(genotype: Genotype, task: Task, skeleton: Skeleton) -> nn.Module:
    """A network of the evaluation with any weights."""
    if task.likelihood == DETECTION:
        return build_detector(genotype, task, skeleton)
    return build_network(genotype, skeleton, task.input_shape, task.num_outputs)


def _check(genotypes: Sequence[Genotype], tasks: Sequence[Task]) -> None:
    names = [task.name for task in tasks]
    require(len(tasks) >= 1, "got no tasks, expected one or more; name the tasks of the search")
    require(len(set(names)) == len(names), f"two tasks have one name among {', '.join(names)}; rename one of them")
    require(
        len(genotypes) == len(tasks),
        f"got {len(genotypes)} genotypes for {len(tasks)} tasks, expected one genotype, or one for each task",
    )


def _state(signature: Mapping[str, Any], finished: Sequence[GenotypeEvaluation], current: State | None) -> State:
    """Networks and figures of finished tasks, and the state of the current training."""
    tensors = {} if current is None else prefixed("current", current.tensors)
    for number, done in enumerate(finished):
        tensors |= prefixed(f"finished/{number}", copied(done.network.state_dict()))
    facts = None if current is None else dict(current.facts)
    return State(
        tensors, {"evaluations": dict(signature), "finished": [d.to_dict() for d in finished], "current": facts}
    )


def _restored(
    saved: State, signature: Mapping[str, Any], tasks: Sequence[Task], skeletons: Sequence[Skeleton]
) -> tuple[list[GenotypeEvaluation], State | None]:
    """Finished evaluations, and the state of the current training if there is one."""
    stored = saved.facts.get("evaluations", {})
    for name, value in signature.items():
        require(
            stored.get(name) == value,
            f"the checkpoint belongs to another evaluation: its {name} differ; start again without it",
            TrainingError,
        )
    finished = []
    with restoring(saved.origin):
        for number, facts in enumerate(saved.facts["finished"]):
            one = State(saved.section(f"finished/{number}"), facts, saved.origin)
            finished.append(finish(_read(one, tasks[number], skeletons[number])))
        current = saved.facts["current"]
    return finished, None if current is None else State(saved.section("current"), current, saved.origin)
