"""Plan: what is asked of a run, and how its time is shared out."""

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
from nearkin.solver.contenders import HAND_MADE, TITLES
from nearkin.solver.simple.models import SIMPLE
from nearkin.tasks.task import Task

LEAST_SECONDS = 10.0  # below this there is time for simple models only
SHORT_SECONDS = 30.0  # below this kin are compared in one trial
FEWEST_SAMPLES = 100  # below this no search can tell cells apart
LEAST_LEFT = 0.3  # share of the budget that the contest has in any case, however long finding kin took
FINALS = 2.5  # allowances that the last trainings take, on all training data
SEARCH_SHARE = 0.5  # of an allowance, the rest is for the training of what was found
EVALUATIONS = 16  # of a search where the budget names no end
LARGEST_WIDTH = 4.0  # of hand-made networks, a factor on their channels
SEARCHES = ("kin-search", "random-search", "full-search")
CONTENDERS = (*SEARCHES, "finetune", "transfer", *TITLES, *SIMPLE)
ANSWERED = ("categorical", "gaussian", "heteroscedastic")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is asked of a run, checked at birth.

    Attributes:
        budget: minutes of the whole; `evaluations` are cells of each search. Without minutes networks have their usual
            size and number of steps, and the same seed gives the same answer.
        measures: by which kin are sought; the first one that there is decides whose cells are used.
        space: `nearest`, `full`, or the name of a task whose cells are used.
        method: of the searches, a name of `nearkin.search.registry` that asks about one cell at a time.
        hand_made: networks of the contest, of `contenders.HAND_MADE`.
        only: names of the contenders that take part, where not all shall: `kin-search`, `finetune`, `svm`, ….
        join: whether the task joins the zoo.
        epochs: of every network's training; what suits the task's size where nothing is said.
        training: further options of every network's recipe, such as `batch_size`; see `nearkin.nets.recipe.Recipe`.
        width: of the hand-made networks, a factor on their channels (default: as wide as the time allows, 0.0625
            without a limit of time).
        validation: share of the training data by which the answer is chosen.
        trials: networks that are trained for a first task, whose Fisher information the zoo keeps.
        seed: the one seed.
        device: where networks are trained.
        command: the words that repeat the run, for the report.
    """

    budget: Budget = field(default_factory=lambda: Budget(minutes=5))
    measures: tuple[str, ...] = (STRUCTURE, DEFAULT, "logme")
    space: str = "nearest"
    method: str = "evolution"
    hand_made: tuple[str, ...] = ("vgg16", "resnet18", "densenet121")
    only: tuple[str, ...] = ()
    join: bool = True
    epochs: int | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    width: float | None = None
    validation: float = 0.2
    trials: int = 3
    seed: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    command: str = ""

    def __post_init__(self) -> None:
        require(0 < self.validation < 1, f"validation is a share between 0 and 1, got {self.validation}")
        require(self.trials >= 1, f"trials must be 1 or more, got {self.trials}")
        require(self.epochs is None or self.epochs >= 1, f"epochs must be 1 or more, got {self.epochs}")
        Recipe.of_size(1, **self.training)  # checks them
        require(
            self.width is None or 0 < self.width <= LARGEST_WIDTH,
            f"width is a factor above 0 and at most {LARGEST_WIDTH:g}, got {self.width}",
        )
        method = method_named(self.method)
        method.require_cells()
        object.__setattr__(self, "method", method.name)
        require(
            self.seconds is None or math.isfinite(self.seconds),
            f"a budget of minutes is a finite number, got {self.budget.minutes}; give evaluations for a run without a "
            f"limit of time",
        )
        object.__setattr__(self, "measures", tuple(measure_named(name).name for name in self.measures))
        _require_known("network", self.hand_made, HAND_MADE)
        _require_known("contender", self.only, CONTENDERS)
        require(
            self.budget.steps is None, "solve is given minutes or evaluations; steps are those of one search method"
        )

    @property
    def seconds(self) -> float | None:
        """Of the whole run; None without an end."""
        return None if self.budget.minutes is None else 60 * self.budget.minutes

    @property
    def hurried(self) -> bool:
        """Whether there is time for nothing but simple models."""
        return self.seconds is not None and self.seconds < LEAST_SECONDS

    @property
    def unhurried(self) -> bool:
        """Whether several trials of one network are a small part of the time."""
        return self.seconds is None or self.seconds >= SHORT_SECONDS

    def takes(self, name: str) -> bool:
        """Whether a contender takes part."""
        return not self.only or name in self.only

    def allowance(self, spent: float, contenders: int) -> float | None:
        """Seconds that each contender has for search and training together; None without a limit.

        >>> Plan(budget=Budget(minutes=10)).allowance(spent=0.0, contenders=10)
        48.0
        """
        if self.seconds is None:
            return None
        left = max(self.seconds - spent, LEAST_LEFT * self.seconds)
        return left / (contenders + FINALS)

    def search_budget(self, allowance: float | None) -> Budget:
        """Of one search."""
        minutes = None if allowance is None else SEARCH_SHARE * allowance / 60
        endless = minutes is None and self.budget.evaluations is None
        return Budget(minutes=minutes, evaluations=EVALUATIONS if endless else self.budget.evaluations)

    def searches(self, task: Task) -> bool:
        """Whether cells are searched for a task: images, enough of them, and time."""
        return len(task.input_shape) == 3 and len(task.train) >= FEWEST_SAMPLES and not self.hurried

    def recipe(self, task: Task) -> Recipe:
        """How networks are trained where time is no limit."""
        return Recipe.suited(task, **{**self.training, **({} if self.epochs is None else {"epochs": self.epochs})})

    def facts(self) -> dict[str, Any]:
        """Plain JSON values for the report."""
        names = ("measures", "space", "method", "validation", "seed", "width")
        budget = {name: value for name, value in vars(self.budget).items() if value is not None}
        plain = {**{name: getattr(self, name) for name in names}, "training": dict(self.training)}
        return {**plain, "budget": budget, "device": str(self.device)}


def _require_known(noun: str, given: Collection[str], known: Collection[str]) -> None:
    strange = [name for name in given if name not in known]
    choices = ", ".join(known)
    require(not strange, f"unknown {noun} {', '.join(map(repr, strange))}; choose from {choices}")
    require(len(set(given)) == len(given), f"each {noun} is named once, got {', '.join(given)}; leave out the second")


def require_answerable(task: Task) -> None:
    """Classes and values can be solved here, where some sample can be set aside; images and text as outputs cannot."""
    require(
        task.likelihood in ANSWERED,
        f"{task.name} has a {task.likelihood} likelihood, and solve answers tasks of classes or values; "
        + (
            "use nearkin add and nearkin near" if task.likelihood == "dense" else "use nearkin search --space recurrent"
        ),
        DataError,
    )
    sizes = task.train.labels().bincount() if task.likelihood == "categorical" else torch.tensor([len(task.train)])
    require(
        int(sizes.max()) >= 2,
        f"{task.name} has one training sample{' of every class' if len(sizes) > 1 else ''}, so none can be set "
        f"aside to choose the answer by; gather more, or merge classes",
        DataError,
    )
