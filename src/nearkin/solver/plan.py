"""Plan: the options of a run, and how its time is divided."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from nearkin.core.budget import Budget
from nearkin.core.errors import DataError, require
from nearkin.distance.registry import DEFAULT, STRUCTURE, measure_named
from nearkin.nets.recipe import Recipe
from nearkin.search.registry import method_named
from nearkin.solver.allocation import JOINING, LEAST_JOINING, LEAST_REPORT, REPORT
from nearkin.solver.contenders import HAND_MADE, TITLES
from nearkin.solver.simple.models import SIMPLE
from nearkin.solver.splits import MOST_CROSS_VALIDATED
from nearkin.tasks.derive import class_weighted
from nearkin.tasks.likelihood import require_one_output
from nearkin.tasks.metrics import BALANCED_ACCURACY, known_metric, metric_for
from nearkin.tasks.task import Task
from nearkin.tasks.weights import BALANCED, ClassWeight, checked_class_weight

LEAST_SECONDS = 10.0  # below this only simple models are fitted
LONG_SECONDS = 120.0  # from this on related tasks are compared by all measures
SHORT_SECONDS = 60.0  # below this related tasks are compared in one trial, and the data checks are quick
FEWEST_SAMPLES = 100  # below this a search cannot tell cells apart
LEAST_LEFT = 0.3  # smallest share of the budget for training, however long the comparison with related tasks took
FINALS = 2.5  # allowances for the final trainings on all training data
SEARCH_SHARE = 0.5  # of an allowance; the rest is for training the best cell
EVALUATIONS = 16  # of a search when the budget sets no limit
LARGEST_WIDTH = 4.0  # of hand-made networks: factor on their channels
SEARCHES = ("kin-search", "random-search", "full-search")
CONTENDERS = (*SEARCHES, "finetune", "transfer", "encoder", "encoder-finetune", *TITLES, *SIMPLE)
ANSWERED = ("categorical", "gaussian", "heteroscedastic")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Options of a run, checked on construction.

    Attributes:
        budget: `minutes` of the whole run; `evaluations` are cells of each search. Without minutes, networks have their
            usual size and number of steps, and the same seed gives the same solution.
        measures: by which related tasks are ranked; the first available one decides whose cells are used.
        space: `nearest`, `full`, or the name of a task whose cells are used.
        method: of the searches, a name of `nearkin.search.registry` that evaluates one cell at a time.
        hand_made: hand-made networks that take part, from `contenders.HAND_MADE`.
        only: names of the contenders that take part, such as `kin-search`, `finetune`, `svm` (default: all).
        compare_all: give every contender the same time, as in the paper, instead of most of it to the main one.
        join: whether the task is added to the zoo.
        measure_zoo_value: run the plan once more with an empty zoo after the answer, outside the budget, to measure
            what the zoo brought.
        epochs: of every network's training (default: by the task's size).
        training: further options of every network's recipe, such as `batch_size`; see `nearkin.nets.recipe.Recipe`.
        width: factor on the channels of hand-made networks (default: as wide as time allows, 0.0625 without a time
            limit).
        validation: share of the training data on which the answer is selected.
        trials: networks that are trained for the first task of a zoo, to store their Fisher information.
        elapsed: seconds that the command used before the run, which count as well.
        seed: seed of everything random.
        device: where networks are trained.
        command: command line that repeats the run, for the report.
        class_weight: weights of the classes in training: `balanced`, or weights by class, also as text such as
            `yes=5,no=1` (default: all samples count the same; balanced for the metric `balanced-accuracy`).
        metric: metric by which the answer is selected, from `nearkin.tasks.metrics` (default: accuracy or R²;
            `balanced-accuracy` for balanced class weights).
    """

    budget: Budget = field(default_factory=lambda: Budget(minutes=5))
    measures: tuple[str, ...] = (STRUCTURE, DEFAULT, "logme")
    space: str = "nearest"
    method: str = "evolution"
    hand_made: tuple[str, ...] = ("vgg16", "resnet18", "densenet121")
    only: tuple[str, ...] = ()
    compare_all: bool = False
    join: bool = True
    measure_zoo_value: bool = False
    epochs: int | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    width: float | None = None
    validation: float = 0.2
    trials: int = 3
    elapsed: float = 0.0
    seed: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    command: str = ""
    class_weight: ClassWeight | None = None
    metric: str = ""

    def __post_init__(self) -> None:
        require(0 < self.validation < 1, f"validation is a share between 0 and 1, got {self.validation}")
        require(self.trials >= 1, f"trials must be 1 or more, got {self.trials}")
        require(self.epochs is None or self.epochs >= 1, f"epochs must be 1 or more, got {self.epochs}")
        Recipe.of_size(1, **self.training)  # checks them
        object.__setattr__(self, "class_weight", checked_class_weight(self.class_weight))
        object.__setattr__(self, "metric", known_metric(self.metric) if self.metric else "")
        if self.metric == BALANCED_ACCURACY and self.class_weight is None:
            object.__setattr__(self, "class_weight", BALANCED)
        if self.class_weight == BALANCED and not self.metric:
            object.__setattr__(self, "metric", BALANCED_ACCURACY)
        require(
            self.width is None or 0 < self.width <= LARGEST_WIDTH,
            f"width is a factor above 0 and at most {LARGEST_WIDTH:g}, got {self.width}",
        )
        method = method_named(self.method)
        method.require_cells()
        object.__setattr__(self, "method", method.name)
        require(
            self.seconds is None or math.isfinite(self.seconds),
            f"minutes must be a finite number, got {self.budget.minutes}; give evaluations instead",
        )
        object.__setattr__(self, "measures", tuple(measure_named(name).name for name in self.measures))
        _require_known("network", self.hand_made, HAND_MADE)
        _require_known("contender", self.only, CONTENDERS)
        require(self.budget.steps is None, "got a budget of steps, solve expects minutes or evaluations; use --budget")

    @property
    def seconds(self) -> float | None:
        """Time limit of the whole run; None without one."""
        return self.budget.seconds

    @property
    def hurried(self) -> bool:
        """Whether there is time for simple models only."""
        return self.seconds is not None and self.seconds < LEAST_SECONDS

    @property
    def unhurried(self) -> bool:
        """Whether there is time for several trials of one network."""
        return self.seconds is None or self.seconds >= SHORT_SECONDS

    @property
    def focused(self) -> bool:
        """Whether most of the time goes to the main contender (`solver.allocation`)."""
        return self.seconds is not None and not self.compare_all

    @property
    def joins(self) -> bool:
        """Whether the task is added to the zoo within the budget; a short run has no time for these networks."""
        long = self.seconds is None or self.seconds >= (LEAST_SECONDS if self.compare_all else LEAST_JOINING)
        return self.join and long

    @property
    def joins_later(self) -> bool:
        """Whether the task is added to the zoo after the answer, in time that is not part of the budget."""
        return self.join and not self.joins and not self.hurried

    def reserved(self, slowdown: float = 1.0) -> float:
        """Seconds of a run with a time limit that are kept for the report and the zoo.

        Args:
            slowdown: seconds of the time limit for each second of processor time, see `Contest.slowdown`.
        """
        seconds = self.seconds or 0.0
        return max(LEAST_REPORT * slowdown, REPORT * seconds) + (JOINING * seconds if self.joins else 0.0)

    def cross_validates(self, task: Task) -> bool:
        """Whether the answer is selected by cross-validation: little data, and time for several trainings."""
        short = len(task.input_shape) == 3 and (self.seconds or 0.0) < LONG_SECONDS
        return self.focused and len(task.train) <= MOST_CROSS_VALIDATED and not short

    @property
    def quick_measures(self) -> tuple[str, ...]:
        """The measures; in a short run only those that need no network of the target, unless others are requested."""
        if not self.focused or self.measures != Plan.measures or (self.seconds or 0.0) >= LONG_SECONDS:
            return self.measures
        return (DEFAULT, "logme") if self.unhurried else ("logme",)

    def takes(self, name: str) -> bool:
        """Whether the contender with this name takes part."""
        return not self.only or name in self.only

    def allowance(self, elapsed: float, contenders: int) -> float | None:
        """Seconds of each contender for search and training together; None without a limit.

        >>> Plan(budget=Budget(minutes=10)).allowance(elapsed=0.0, contenders=10)
        48.0
        """
        if self.seconds is None:
            return None
        left = max(self.seconds - elapsed, LEAST_LEFT * self.seconds)
        return left / (contenders + FINALS)

    def search_budget(self, allowance: float | None) -> Budget:
        """Budget of one search."""
        minutes = None if allowance is None else SEARCH_SHARE * allowance / 60
        endless = minutes is None and self.budget.evaluations is None
        return Budget(minutes=minutes, evaluations=EVALUATIONS if endless else self.budget.evaluations)

    def searches(self, task: Task) -> bool:
        """Whether cells are searched: for images, with enough samples and time."""
        return len(task.input_shape) == 3 and len(task.train) >= FEWEST_SAMPLES and not self.hurried

    def recipe(self, task: Task) -> Recipe:
        """Recipe of the networks without a time limit."""
        return Recipe.suited(task, **self.options())

    def options(self) -> dict[str, Any]:
        """Options of every network's recipe."""
        return {**self.training, **({} if self.epochs is None else {"epochs": self.epochs})}

    def facts(self) -> dict[str, Any]:
        """Plain JSON values for the report."""
        names = ("measures", "space", "method", "validation", "seed", "width", "class_weight", "metric")
        budget = {name: value for name, value in vars(self.budget).items() if value is not None}
        plain = {**{name: getattr(self, name) for name in names}, "training": dict(self.training)}
        return {**plain, "budget": budget, "device": str(self.device)}


def _require_known(noun: str, names: Collection[str], known: Collection[str]) -> None:
    unknown = [name for name in names if name not in known]
    require(not unknown, f"unknown {noun} {', '.join(map(repr, unknown))}; choose from {', '.join(known)}")
    require(len(set(names)) == len(names), f"got {noun} names {', '.join(names)}; give each name once")


def require_answerable(task: Task, metric: str = "", class_weight: ClassWeight | None = None) -> None:
    """Require a classification or regression task with a sample for validation, and a metric and weights for it."""
    require_one_output(task.likelihood)
    require(
        task.likelihood in ANSWERED,
        f"'{task.name}' has a {task.likelihood} likelihood, solve expects classification or regression; "
        + (
            "use nearkin add and nearkin near" if task.likelihood == "dense" else "use nearkin search --space recurrent"
        ),
        DataError,
    )
    class_weighted(task, class_weight)  # refuses classes that do not exist
    metric_for(metric, task.form.metric, task.name)
    sizes = task.train.labels().bincount() if task.likelihood == "categorical" else torch.tensor([len(task.train)])
    require(
        int(sizes.max()) >= 2,
        f"'{task.name}' has one training sample{' of every class' if len(sizes) > 1 else ''}, so none is left for "
        f"validation; add samples, or merge classes",
        DataError,
    )
