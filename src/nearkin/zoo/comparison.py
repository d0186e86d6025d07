"""How tasks are compared: options, and sources and targets that load from a zoo and keep what is measured in it."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from nearkin.core.errors import NearkinError, require
from nearkin.core.events import Note, Work
from nearkin.core.state import State
from nearkin.core.types import Params
from nearkin.distance.measure import Measure
from nearkin.distance.pair import Pair, Source, Target
from nearkin.distance.registry import DEFAULT, measure_named
from nearkin.distance.screening import Embedding
from nearkin.nets.recipe import Recipe
from nearkin.nets.solved import Solved
from nearkin.run.checkpoints import Checkpoints
from nearkin.store.records import TaskRecord
from nearkin.tasks.likelihood import likelihood
from nearkin.tasks.task import Task
from nearkin.zoo.trials import TrialCache

EMBEDDING = "task2vec"  # word under which the zoo keeps the embedding of a task, with trial and samples


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
        measure: a name of `nearkin.distance.registry`.
        options: of the measure, checked against `Measure.options`.
        samples: training samples of the target that networks see.
        screen: number of tasks that are measured on all samples, selected by a race (`zoo.shortlist`).
        trials: how many; by default as many as all that are compared have.
        epsilon: sources whose metric is below 1 − ε are named.
        device: where networks that are missing are trained.
    """

    measure: str = DEFAULT
    options: Mapping[str, Any] = field(default_factory=dict)
    samples: int = 1000
    screen: int | None = None
    trials: int | None = None
    epsilon: float = 0.2
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        chosen = self.chosen
        object.__setattr__(self, "measure", chosen.name)
        require(self.samples >= 2, f"two samples or more tell tasks apart, got {self.samples}")
        for what, count in (("trials", self.trials), ("screen", self.screen)):
            require(count is None or count >= 1, f"{what} must be 1 or more, got {count}")
        require(
            self.screen is None or chosen.screens,
            f"the measure {chosen.name} is measured on every task; leave screen={self.screen} out",
        )
        require(0 <= self.epsilon <= 1, f"epsilon lies between 0 and 1, got {self.epsilon}")

    @classmethod
    def of(cls, measure: str, **options: Any) -> "Comparison":
        """A comparison with options of its own and of the measure, told apart by their names."""
        own = {item.name for item in fields(cls)}
        given = {name: value for name, value in options.items() if name not in own}
        return cls(measure=measure, options=given, **{name: options[name] for name in options if name in own})

    @cached_property
    def chosen(self) -> Measure:
        """The measure with its options."""
        return measure_named(self.measure).with_options(self.options)

    def pair(self, source: Source, target: Target, trial: int = 0, trials: int = 1, share: float = 1.0) -> Pair:
        """A source and a target in one trial."""
        return Pair(source, target, trial, trials, self.samples, share)


def shares_start(source: TaskRecord) -> bool:
    """Whether a source's networks started from the weights that its seed and trial give.

    Networks trained by a zoo did, and their recipe is known; of weights that came from elsewhere nothing is known.
    """
    return "recipe" in source.facts


@dataclass(frozen=True, eq=False, kw_only=True)
class StoredSource(Source):
    """A task of a zoo as a source."""

    shelf: Shelf
    record: TaskRecord
    work: Checkpoints
    device: torch.device

    @classmethod
    def stored(cls, shelf: Shelf, record: TaskRecord, work: Checkpoints, device: torch.device) -> "StoredSource":
        """The source of a task's row."""
        return cls(
            name=record.name,
            network=record.network,
            input_shape=record.input_shape,
            likelihood=record.likelihood,
            num_outputs=likelihood(record.likelihood).num_outputs(record.num_classes),
            seed=record.seed,
            trials=record.trials,
            load=lambda: shelf.solved(record.name),
            load_task=lambda: shelf.task(record.name),
            shared_start=shares_start(record),
            shelf=shelf,
            record=record,
            work=work,
            device=device,
        )

    def networks(self, trials: int) -> Work[Solved]:
        """At least so many trained networks; those that the zoo does not have are trained."""
        if self.trials >= trials:
            return self.solved
        return (yield from StoredTarget(self.shelf, self.name, self.work, self.device).networks(self, trials))

    def embedding(self, trial: int, samples: int) -> Work[Params]:
        """Task2Vec embedding of the source's own task; it is kept, so that it is measured once."""
        kind = f"{EMBEDDING} {trial} {samples}"
        state = self.shelf.kept(self.name, kind)
        if state is None:
            state = State((yield from super().embedding(trial, samples)))
            with suppress(NearkinError):  # a zoo that cannot be written to measures again the next time
                self.shelf.keep(self.name, kind, state)
        return dict(state.tensors)


class StoredTarget(Target):
    """A target beside a zoo: one of its tasks, or a new one."""

    def __init__(self, shelf: Shelf, given: Task | str, work: Checkpoints, device: torch.device) -> None:
        self.record = shelf.record(given) if isinstance(given, str) else None
        super().__init__(shelf.task(given) if isinstance(given, str) else given)
        self.shelf, self.work, self.device = shelf, work, device
        self._own: dict[object, Solved] = {}
        self._kept: dict[str, dict[tuple[str, int], dict[str, Any]]] = {}

    @property
    def has_networks(self) -> bool:
        """True: a network that is missing is trained."""
        return True

    def is_source(self, source: Source) -> bool:
        """Whether a source is the target itself."""
        return self.record is not None and self.record.name == source.name

    def source(self, record: TaskRecord) -> StoredSource:
        """A task of the same zoo as a source."""
        return StoredSource.stored(self.shelf, record, self.work, self.device)

    def networks(self, source: Source, trials: int) -> Work[Solved]:
        """The target's own networks, of the kind that the source has, from the same weights and trained alike."""
        assert isinstance(source, StoredSource)
        task, facts, mine = self.seen_as(source.input_shape), source.record.facts, self.record
        stored = mine is not None and (mine.network, mine.input_shape, mine.seed) == source.probe
        if mine is not None and stored and shares_start(mine):
            recipe = Recipe(**mine.facts["recipe"])
        elif source.shared_start:
            recipe = Recipe(**facts["recipe"]).like(facts["num_train"], len(task.train))
        else:
            recipe = Recipe.suited(task)
        key = (*source.probe, json.dumps(recipe.to_dict()))
        kept = self._own.get(key)
        if kept is not None and len(kept.trials) >= trials:
            return kept
        fits = list(self.shelf.solved(self.name).trials[:trials]) if stored else []
        if len(fits) < trials:
            cache = TrialCache.of(self.work, task, source.network, recipe, source.seed)
            yield Note(f"training {source.network} on '{task.name}', which the measure needs; it is kept")
            for trial in range(len(fits), trials):
                fits.append((yield from cache.trial(trial, trials, self.device)))
        self._own[key] = Solved(task.name, source.network, task.facts(), source.seed, tuple(fits))
        return self._own[key]

    def recall(self, key: str, source: Source, trial: int) -> Mapping[str, float]:
        """Values that the zoo keeps of this pair under a key; of a new task it keeps none."""
        if self.record is None:
            return {}
        if key not in self._kept:
            self._kept[key] = self.shelf.pairs(key, self.name)
        return self._kept[key].get((source.name, trial), {})

    def remember(self, key: str, source: Source, trial: int, values: Mapping[str, float]) -> None:
        """Keep values in the zoo, if the target is one of its tasks."""
        if self.record is not None:
            self.shelf.keep_pair(key, source.name, self.name, trial, dict(values))
