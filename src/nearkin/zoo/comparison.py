"""How tasks are compared: what is asked, what of a zoo is needed for it, and a target with its own networks."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from nearkin.core.errors import require
from nearkin.core.events import Note, Work
from nearkin.core.state import State
from nearkin.core.types import Params
from nearkin.distance.fisher_based.forms import AUTO, Answers, Form, form_for, require_form
from nearkin.distance.fisher_based.readings import information
from nearkin.distance.measures import measure_named
from nearkin.distance.probing import embedding
from nearkin.distance.screening import Embedding
from nearkin.distance.source_on_target import Sight
from nearkin.fisher.values import FisherDiagonal
from nearkin.nets.recipe import Recipe
from nearkin.nets.solved import Solved
from nearkin.run.checkpoints import Checkpoints
from nearkin.store.records import TaskRecord
from nearkin.tasks.likelihood import likelihood
from nearkin.tasks.pixels import fitted_to
from nearkin.tasks.task import Task
from nearkin.zoo.trials import TrialCache

DEFAULT_MEASURE = "kin"


class Shelf(Protocol):
    """What of a zoo is needed here."""

    def records(self) -> list[TaskRecord]:
        """Every task's row."""
        ...

    def record(self, name: str) -> TaskRecord:
        """One task's row."""
        ...

    def task(self, name: str) -> Task:
        """A task with its data."""
        ...

    def solved(self, name: str) -> Solved:
        """A task with its weights."""
        ...

    def kept(self, name: str, kind: str) -> State | None:
        """What was kept beside a task under that word."""
        ...

    def keep(self, name: str, kind: str, state: State, facts: dict[str, Any] | None = None) -> None:
        """Keep a state beside a task."""
        ...

    def point(self, name: str, trials: int, embedding: Embedding) -> Tensor:
        """Where a task's own information of the first trials lies."""
        ...

    def pairs(self, measure: str, target: str) -> dict[tuple[str, int], dict[str, Any]]:
        """What was measured between sources and a target, by source and trial."""
        ...

    def keep_pair(self, measure: str, source: str, target: str, trial: int, facts: dict[str, Any]) -> None:
        """Keep what was measured between two tasks."""
        ...


class Part:
    """A shelf with some of its tasks only, and the target's own if it has one."""

    def __init__(self, shelf: Shelf, records: Sequence[TaskRecord], own: str | None) -> None:
        self._shelf, self._records = shelf, [*records, *([shelf.record(own)] if own is not None else [])]

    def records(self) -> list[TaskRecord]:
        """Those."""
        return self._records

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shelf, name)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How tasks are compared.

    Attributes:
        measure: `frechet` or a name of `MEASURES`.
        reading: of the Fréchet distance, see `distance.readings`; `auto` chooses for each pair, see `distance.forms`.
        aggregate: of the Fréchet distance, see `distance.frechet`; `auto` chooses with the reading.
        align: match the neurons of both networks before their weights are compared.
        samples: of the target that networks look at, of each part.
        screen: of the Fréchet distance, measure it on so many tasks only, the last of a race (`zoo.shortlist`).
        trials: how many; by default as many as all that are compared have.
        epsilon: sources whose metric is below 1 − ε are named.
        device: where networks that are missing are trained.
    """

    measure: str = DEFAULT_MEASURE
    reading: str = AUTO
    aggregate: str = AUTO
    align: bool = False
    samples: int = 1000
    screen: int | None = None
    trials: int | None = None
    epsilon: float = 0.2
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        if self.measure != "frechet":
            measure_named(self.measure)
        require_form(self.reading, self.aggregate)
        require(self.samples >= 2, f"two samples or more tell tasks apart, got {self.samples}")
        for what, count in (("trials", self.trials), ("screen", self.screen)):
            require(count is None or count >= 1, f"{what} must be 1 or more, got {count}")
        require(0 <= self.epsilon <= 1, f"epsilon lies between 0 and 1, got {self.epsilon}")

    def form(self, source: TaskRecord, target: Task) -> Form:
        """The form of the Fréchet distance from a source to a target; the one place where `auto` is resolved."""
        answers = Answers(source.likelihood, likelihood(source.likelihood).num_outputs(source.num_classes))
        own = Answers(target.likelihood, target.num_outputs)
        return form_for(answers, own, self.reading, self.aggregate, shared_start=shares_start(source))

    def key(self, reading: str) -> str:
        """Under which distances by a reading are kept; all aggregates come from one measurement."""
        return f"frechet {reading} train {self.samples}{' aligned' if self.align else ''}"


def shares_start(source: TaskRecord) -> bool:
    """Whether a source's networks started from the weights that its seed and trial give.

    Networks trained by a zoo did, and their recipe is known; of weights that came from elsewhere nothing is known.
    """
    return "recipe" in source.facts


class Target:
    """A task that others are compared with: one of the zoo, or a new one."""

    def __init__(self, shelf: Shelf, given: Task | str, work: Checkpoints) -> None:
        self.shelf, self.work = shelf, work
        self.record = shelf.record(given) if isinstance(given, str) else None
        self.task = shelf.task(given) if isinstance(given, str) else given
        self._seen: dict[tuple[int, ...], Task] = {}
        self._own: dict[tuple[str, tuple[int, ...], int, str], Solved] = {}
        self._informations: dict[object, FisherDiagonal] = {}
        self._embeddings: dict[object, Params] = {}
        self.passes = 0.0

    @property
    def name(self) -> str:
        """What it is called."""
        return self.task.name

    def seen_as(self, input_shape: tuple[int, ...]) -> Task:
        """The task in another input shape."""
        if input_shape not in self._seen:
            self._seen[input_shape] = fitted_to(self.task, input_shape)
        return self._seen[input_shape]

    def own(self, source: TaskRecord, trials: int, how: Comparison) -> Work[Solved]:
        """The target's own network, of the kind that the source has, from the same weights and trained alike."""
        task = self.seen_as(source.input_shape)
        like = (
            Recipe(**source.facts["recipe"]).like(source.facts["num_train"], len(task.train))
            if shares_start(source)
            else Recipe.suited(task)
        )
        probe = (source.network, source.input_shape, source.seed)
        mine = self.record
        stored = mine is not None and (mine.network, mine.input_shape, mine.seed) == probe
        recipe = Recipe(**mine.facts["recipe"]) if mine is not None and stored and shares_start(mine) else like
        key = (*probe, json.dumps(recipe.to_dict()))
        kept = self._own.get(key)
        if kept is not None and len(kept.trials) >= trials:
            return kept
        fits = list(self.shelf.solved(self.name).trials[:trials]) if stored else []
        if len(fits) < trials:
            cache = TrialCache.of(self.work, task, source.network, recipe, source.seed)
            yield Note(f"training {source.network} on {task.name}, as the Fréchet distance wants it; it is kept")
            for trial in range(len(fits), trials):
                fits.append((yield from cache.trial(trial, trials, how.device)))
        self._own[key] = Solved(task.name, source.network, task.facts(), source.seed, tuple(fits))
        return self._own[key]

    def information(self, key: object, sight: Sight, reading: str, width: int, samples: int) -> Work[FisherDiagonal]:
        """Its own network's information, measured once for each key: probe, trial, reading and width of the head."""
        if key not in self._informations:
            self._informations[key] = yield from information(sight, reading, width)
            self.passes += sight.num_train / samples
        return self._informations[key]

    def embedding(self, source: TaskRecord, trial: int, samples: int) -> Work[Params]:
        """Its Task2Vec embedding in the source's probe (`distance.probing`), measured once for each probe and trial."""
        key = (source.network, source.input_shape, source.seed, trial, samples)
        if key not in self._embeddings:
            task = self.seen_as(source.input_shape)
            self._embeddings[key] = yield from embedding(task, source.network, source.seed, trial, samples)
            self.passes += 1
        return self._embeddings[key]
