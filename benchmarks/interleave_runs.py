"""Runs of the benchmark of the interleaved search: a search by one method, then retraining of what it found.

How sizes, space and learning rates were chosen is said on the page. In every pass each task takes as many steps of its
weights with one method as with another.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import permutations
from typing import Any

import torch

import nearkin as nk
from nearkin.core.budget import Budget
from nearkin.core.rng import Streams
from nearkin.multitask.detection.average_precision import AreaLimits, average_precision
from nearkin.multitask.detection.detector import detect
from nearkin.multitask.evaluation import EvaluationOptions, TasksEvaluation, evaluate_tasks
from nearkin.multitask.joint.independent import run_searches
from nearkin.multitask.methods import MULTITASK_METHODS, multitask_method
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.darts.gradient_options import PARTIAL, GradientOptions
from nearkin.search.spaces.registry import space

RANDOM = "random"
DETECTION = "detection"
SEEDS = (30, 31, 32, 33, 34)
FRESH_SEEDS = (20, 21, 22, 23, 24)  # of the agreement: the factor of the transfer was changed after a look at 10 to 14


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What one row of a table changes.

    Attributes:
        method: name of the method, or `random` for a random genotype.
        options: options of the method.
        num_rounds: M (default: that of the section).
        order: order of the tasks (default: as they are listed).
        gradient: other options of the supernets.
    """

    method: str = "interleave"
    options: Mapping[str, Any] = field(default_factory=dict)
    num_rounds: int | None = None
    order: tuple[int, ...] | None = None
    gradient: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Section:
    """Tasks, space, search and retraining that the rows of a table share.

    Attributes:
        data: data string of every task by name.
        num_test: test samples of every task, from the first on.
        space: space of cells.
        num_rounds: M.
        gradient: options of the supernets.
        evaluation: network and training of the retraining.
        settings: rows by name.
        seeds: seeds of the table.
        limits: of small, medium and large boxes.
    """

    data: Mapping[str, str]
    num_test: int
    space: str
    num_rounds: int
    gradient: GradientOptions
    evaluation: EvaluationOptions
    settings: Mapping[str, Setting]
    seeds: tuple[int, ...] = SEEDS
    limits: AreaLimits | None = None

    def run(self, name: str, seed: int) -> dict[str, Any]:
        """Search and retrain; errors, average precision, parameters and CPU seconds as JSON values."""
        setting = self.settings[name]
        tasks = [_task(text, name, self.num_test) for name, text in self.data.items()]
        ordered = [tasks[index] for index in setting.order or range(len(tasks))]
        start = time.process_time()
        genotypes, facts = self._search(setting, ordered, seed)
        middle = time.process_time()
        names = [task.name for task in ordered]
        chosen = [genotypes[names.index(task.name) if len(genotypes) > 1 else 0] for task in tasks]
        done = evaluate_tasks(chosen, tasks, self.evaluation, seed)
        return {
            **self._figures(tasks, done),
            **facts,
            "genotypes": [str(genotype) for genotype in genotypes],
            "search_seconds": round(middle - start, 2),
            "retraining_seconds": round(time.process_time() - middle, 2),
        }

    def _search(self, setting: Setting, tasks: list[nk.Task], seed: int) -> tuple[list[Genotype], dict[str, Any]]:
        """One genotype for all tasks or one for each, and figures of the search."""
        cells = space(self.space)
        if setting.method == RANDOM:
            return [cells.sample(Streams(seed).at("random genotype"))], {"passes": 0}
        gradient = replace(self.gradient, **setting.gradient)
        rounds = setting.num_rounds or self.num_rounds
        searches = multitask_method(setting.method).build(tasks, cells, gradient, rounds, setting.options)
        results = run_searches(searches, Budget(), seed=seed)
        active = [share for result in results for share in result.details.get("active", [])]
        facts = {"passes": results[0].steps, "smallest_active": round(min(active), 4) if active else None}
        return [result.best.genotype for result in results], facts

    def _figures(self, tasks: list[nk.Task], done: TasksEvaluation) -> dict[str, Any]:
        errors, figures = {}, dict[str, Any]()
        for task in tasks:
            result = done.tasks[task.name]
            if task.likelihood != DETECTION:
                errors[task.name] = round(1 - result.metric, 5)
                continue
            found = detect(result.network, task.test)
            precision = average_precision(found, task.test.labels(), len(task.classes), self.limits).to_dict()
            figures["precision"] = {name: None if x is None else round(x, 5) for name, x in precision.items()}
        parameters = {name: result.parameters for name, result in done.tasks.items()}
        return {"errors": errors, **figures, "parameters": parameters}


@cache
def _task(text: str, name: str, num_test: int) -> nk.Task:
    """A task with the first of its test samples."""
    task = nk.task(text, name=name)
    return replace(task, test=task.test.chosen(torch.arange(min(num_test, len(task.test)))))


def _gradient(**changes: Any) -> GradientOptions:
    """PC-DARTS with 8 channels and 3 cells; the architecture learns faster, as it has few steps."""
    frame = replace(PARTIAL.frame, channels=8, num_cells=3, stem_stride=changes.pop("stem_stride", 1))
    return replace(PARTIAL, frame=frame, learning_rate=0.05, architecture_rate=3e-2, **changes)


def _evaluation(**changes: Any) -> EvaluationOptions:
    return EvaluationOptions(**{"channels": 8, "auxiliary": False, "drop_path": 0.0, "learning_rate": 1e-2, **changes})


METHODS = {name: Setting(method=name) for name in MULTITASK_METHODS}
CONTROL = {RANDOM: Setting(method=RANDOM)}
WEIGHTED = {
    "hard, uncertainty": Setting(method="hard", options={"weighting": "uncertainty"}),
    "hard, gradient-norm": Setting(method="hard", options={"weighting": "gradient-norm"}),
    "hard, PCGrad": Setting(method="hard", options={"aggregator": "PCGrad"}),
    "hard, AlignedMTL": Setting(method="hard", options={"aggregator": "AlignedMTL"}),
}

CLASSES = Section(
    data={name: f"{name}?limit=1000&size=16" for name in ("mnist", "fashion", "cifar10")},
    num_test=2000,
    space="nasbench201",
    num_rounds=2,
    gradient=_gradient(stem_stride=2, epochs=6, warmup=2, batch_size=64),
    evaluation=_evaluation(num_cells=4, epochs=20, stem_stride=2),
    settings=METHODS | WEIGHTED | CONTROL,
)

BOXES = Section(
    data={"mnist": "mnist?limit=500&size=16", "scenes": "scenes?of=mnist&size=32&count=400&test=200&objects=3"},
    num_test=2000,
    space="nasbench201",
    num_rounds=3,
    gradient=_gradient(stem_stride=2, epochs=5, warmup=1, batch_size=64),
    evaluation=_evaluation(num_cells=4, epochs=20, stem_stride=2, batch_size=32, learning_rate=5e-3),
    settings={name: METHODS[name]
              for name in ("interleave", "soft", "hard", "architecture", "minibatch", "separate", "independent")}
    | CONTROL,
    limits=AreaLimits(8, 12),
)  # fmt: skip

DIGIT_SIZED = {
    "low": "digits?classes=0,1,2,3,4&limit=400",
    "high": "digits?classes=5,6,7,8,9&limit=400",
    "fashion": "fashion?limit=400&size=8",
}
"""Three tasks of 8x8 images."""


def _ablations() -> dict[str, Setting]:
    """Changes of the interleaved search; `default` is the row that all groups share."""
    orders = {"order " + "".join(str(task) for task in order): Setting(order=order)
              for order in permutations(range(3)) if order != (0, 1, 2)}  # fmt: skip
    return {
        "default": Setting(),
        **{f"transfer {kind}": Setting(options={"transfer": kind})
           for kind in ("l2-weights", "l2-embedding", "similarity", "none")},
        **{f"rounds {count}": Setting(num_rounds=count) for count in (1, 3)},
        "rounds 20": Setting(num_rounds=20, gradient={"epochs": 1, "warmup": 0}),
        **orders,
        **{f"augmentations {size}": Setting(options={"num_augmentations": size}) for size in (3, 10, 40)},
        **{f"quantile {share}": Setting(options={"quantile": share}) for share in (0.1, 0.25, 0.75, 0.9)},
        "threshold 5": Setting(options={"threshold": 5.0}),
        "literal": Setting(options={"literal": True}),
        "every 1": Setting(options={"every": 1}),
        "order 2": Setting(gradient={"order": 2}),
        RANDOM: CONTROL[RANDOM],
    }  # fmt: skip


ABLATIONS = Section(
    data=DIGIT_SIZED,
    num_test=1000,
    space="nasbench201",
    num_rounds=2,
    gradient=_gradient(epochs=10, warmup=3, batch_size=64),
    evaluation=_evaluation(num_cells=3, epochs=20),
    settings=_ablations(),
)

SECTIONS = {"classes": CLASSES, "detection": BOXES, "ablations": ABLATIONS}
"""Sections with searches and retraining, by name."""
