"""Options of a comparison of tasks; sources and targets that are loaded from a zoo and store measured values in it."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from nearkin.core.errors import NearkinError, require
from nearkin.core.events import Note, Work
from nearkin.core.lazy import Lazy
from nearkin.core.state import State
from nearkin.core.types import Params
from nearkin.distance.forecasting.past_runs import RecordedRun
from nearkin.distance.measure import Measure
from nearkin.distance.pair import Pair, Source, Target
from nearkin.distance.registry import DEFAULT, measure_named
from nearkin.nets.adopted_spec import network_label
from nearkin.nets.recipe import Recipe
from nearkin.nets.solved import Solved
from nearkin.store.records import TaskRecord
from nearkin.tasks.likelihood import likelihood
from nearkin.tasks.network_inputs import NETWORK_INPUTS, NetworkInputs
from nearkin.tasks.task import Task
from nearkin.zoo.recorded_runs import recorded_runs
from nearkin.zoo.solved_tasks import SolvedTasks
from nearkin.zoo.trials import TrialCache

if TYPE_CHECKING:
    from nearkin.run.runner import Runner
    from nearkin.zoo import zoo_jobs
else:
    zoo_jobs = Lazy("nearkin.zoo.zoo_jobs")

EMBEDDING = "task2vec"  # kind under which the zoo stores the embedding of a task, with trial and samples
SEED = 0  # of the target's networks for sources whose own start is not known
Architecture: TypeAlias = tuple[str, tuple[int, ...]]
"""Network and input shape."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Options of a comparison of tasks.

    Attributes:
        measure: a name of `nearkin.distance.registry`.
        options: of the measure, checked against `Measure.options`.
        samples: number of the target's training samples.
        screen: number of tasks that are measured on all samples, selected by a race (`zoo.shortlist`).
        trials: number of trials (default: as many as all compared tasks have).
        epsilon: a warning names the sources whose metric is below 1 − ε.
        device: where missing networks are trained.
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
        require(self.samples >= 2, f"samples must be 2 or more, got {self.samples}")
        for name, count in (("trials", self.trials), ("screen", self.screen)):
            require(count is None or count >= 1, f"{name} must be 1 or more, got {count}")
        require(
            self.screen is None or chosen.screens,
            f"the measure {chosen.name} cannot screen tasks, got screen={self.screen}; leave it out",
        )
        require(0 <= self.epsilon <= 1, f"epsilon must be between 0 and 1, got {self.epsilon}")

    @classmethod
    def of(cls, measure: str, **options: Any) -> "Comparison":
        """A comparison with its own options and those of the measure, distinguished by their names."""
        own = {item.name: options.pop(item.name) for item in fields(cls) if item.name in options}
        return cls(measure=measure, options=options, **own)

    @cached_property
    def chosen(self) -> Measure:
        """The measure with its options."""
        return measure_named(self.measure).with_options(self.options)

    def pair(self, source: Source, target: Target, trial: int = 0, trials: int = 1, share: float = 1.0) -> Pair:
        """A source and a target in one trial."""
        return Pair(source, target, trial, trials, self.samples, share)


def shares_start(source: TaskRecord) -> bool:
    """Whether a source's networks started from the weights that its seed and trial give.

    Networks that a zoo trained did, and their recipe is stored; the start of other networks is not known.
    """
    return "recipe" in source.facts


def unknown_starts(records: Iterable[TaskRecord]) -> frozenset[Architecture]:
    """Architectures of which a task has networks whose start is not known."""
    return frozenset((record.network, record.input_shape) for record in records if not shares_start(record))


@dataclass(frozen=True, eq=False, kw_only=True)
class StoredSource(Source):
    """A task of a zoo as a source."""

    zoo: SolvedTasks
    record: TaskRecord
    device: torch.device

    @classmethod
    def stored(cls, zoo: SolvedTasks, record: TaskRecord, device: torch.device) -> "StoredSource":
        """The source for a task's row."""
        return cls(
            name=record.name,
            network=record.network,
            input_shape=record.input_shape,
            likelihood=record.likelihood,
            num_outputs=likelihood(record.likelihood).num_outputs(record.num_classes),
            seed=record.seed,
            trials=record.trials,
            load=lambda: zoo.solved(record.name),
            load_task=lambda: zoo.task(record.name),
            shared_start=shares_start(record),
            load_inputs=lambda: zoo.network_inputs(record),
            zoo=zoo,
            record=record,
            device=device,
        )

    def networks(self, trials: int) -> Work[Solved]:
        """The trained networks, `trials` or more; those that the zoo does not have are trained."""
        if self.trials >= trials:
            return self.solved
        return (yield from StoredTarget(self.zoo, self.name, self.device).networks(self, trials))

    def embedding(self, trial: int, samples: int) -> Work[Params]:
        """Task2Vec embedding of the source's own task; it is stored, so that it is computed once."""
        kind = f"{EMBEDDING} {trial} {samples}"
        state = self.zoo.kept(self.name, kind)
        if state is None:
            state = State((yield from super().embedding(trial, samples)))
            with suppress(NearkinError):  # a read-only zoo computes it again the next time
                self.zoo.keep(self.name, kind, state)
        return dict(state.tensors)

    def measured(self, key: str, value: Callable[[], float]) -> Work[float]:
        """A value of the source alone; it is stored, so that it is measured once for all targets."""
        state = self.zoo.kept(self.name, key)
        if state is None:
            state = State({}, {"value": (yield from super().measured(key, value))})
            with suppress(NearkinError):  # a read-only zoo computes it again the next time
                self.zoo.keep(self.name, key, state)
        return float(state.facts["value"])


class StoredTarget(Target):
    """A task of a zoo, or a new task, as a target.

    Attributes:
        measured: values that workers measured, by measure, source and share of the samples.
        unknown: architectures whose sources are all compared as if their start were not known, since that of one of
            them is not: their distances have one form, and the target has one network for all of them.

    Args:
        zoo: the zoo.
        task: the task, or the name of one in the zoo.
        device: where missing networks are trained.
        runner: trains several trials of such a network at the same time (default: one after the other).
    """

    def __init__(
        self, zoo: SolvedTasks, task: Task | str, device: torch.device, runner: "Runner | None" = None
    ) -> None:
        self.record = zoo.record(task) if isinstance(task, str) else None
        super().__init__(zoo.task(task) if isinstance(task, str) else task)
        self.zoo, self.device, self.runner = zoo, device, runner
        self.measured: dict[tuple[str, str, float], list[float]] = {}
        self.unknown: frozenset[Architecture] = frozenset()
        self._own: dict[object, Solved] = {}
        self._stored: dict[str, dict[tuple[str, int], dict[str, Any]]] = {}

    @property
    def has_networks(self) -> bool:
        """True: missing networks are trained."""
        return True

    def is_source(self, source: Source) -> bool:
        """Whether a source is the target itself."""
        return self.record is not None and self.record.name == source.name

    def named(self) -> "zoo_jobs.NamedTask | None":
        """How a worker reads the task; None if it cannot."""
        known = self.record is not None
        return zoo_jobs.stored_task(self.zoo, self.name) if known else zoo_jobs.named_task(self.zoo, self.task)

    def compare_with(self, sources: Iterable[TaskRecord]) -> None:
        """Note which architectures of these sources, and of the target's own networks, have an unknown start."""
        self.unknown = unknown_starts([*sources, *([] if self.record is None else [self.record])])

    def source(self, record: TaskRecord) -> StoredSource:
        """A task of the same zoo as a source."""
        source = StoredSource.stored(self.zoo, record, self.device)
        alike = (record.network, record.input_shape) in self.unknown
        return replace(source, shared_start=False) if alike else source

    @cached_property
    def _own_inputs(self) -> NetworkInputs | None:
        return None if self.record is None else self.zoo.network_inputs(self.record)

    def networks(self, source: Source, trials: int) -> Work[Solved]:
        """The target's own networks of the source's architecture and preprocessing.

        They start from the same weights as the source's networks and are trained equally. If the start of the source's
        networks is not known, they are the same for all sources of the architecture and preprocessing.
        """
        assert isinstance(source, StoredSource)
        task, own = self.seen_as(source.inputs), self._stored_for(source)
        if own is not None:
            seed = own.seed
            recipe = Recipe(**own.facts["recipe"]) if shares_start(own) else Recipe.suited(task)
        elif source.shared_start:
            seed, facts = source.seed, source.record.facts
            recipe = Recipe(**facts["recipe"]).like(facts["num_train"], len(task.train))
        else:
            seed, recipe = SEED, Recipe.suited(task)
        key = (source.network, source.inputs, seed, json.dumps(recipe.to_dict()))
        known = self._own.get(key)
        if known is not None and len(known.trials) >= trials:
            return known
        fits = [] if own is None else list(self.zoo.solved(self.name).trials[:trials])
        if len(fits) < trials:
            cache = TrialCache.of(self.zoo.work, task, source.network, recipe, seed)
            label = network_label(source.network)
            yield Note(f"training {label} on '{task.name}', which the measure needs; the result is stored")
            missing = cache.unfinished(range(len(fits), trials))
            if self.runner is not None:
                reader = source.name if NETWORK_INPUTS in source.record.facts else ""
                yield from zoo_jobs.spread_trials(
                    self.runner, cache, self.named(), missing, trials, self.device, inputs_of=reader
                )
            for trial in range(len(fits), trials):
                fits.append((yield from cache.trial(trial, trials, self.device)))
        self._own[key] = Solved(task.name, source.network, task.facts(), seed, tuple(fits))
        return self._own[key]

    def _stored_for(self, source: StoredSource) -> TaskRecord | None:
        """The target's row, if its stored networks are those that a source is compared with."""
        record = self.record
        if record is None or (record.network, self._own_inputs) != (source.network, source.inputs):
            return None
        return record if record.seed == source.seed or not source.shared_start else None

    def recall(self, key: str, source: Source, trial: int) -> Mapping[str, float]:
        """Values that the zoo stores for a pair under a key; for a new task there are none."""
        if self.record is None:
            return {}
        if key not in self._stored:
            self._stored[key] = self.zoo.pairs(key, self.name)
        return self._stored[key].get((source.name, trial), {})

    def recorded_runs(self) -> Sequence[RecordedRun]:
        """Training runs of the zoo; those of the target itself are left out."""
        return [run for run in self._runs if run.target != self.name]

    @cached_property
    def _runs(self) -> list[RecordedRun]:
        return list(recorded_runs(self.zoo))

    def remember(self, key: str, source: Source, trial: int, values: Mapping[str, float]) -> None:
        """Store values in the zoo, if the target is one of its tasks."""
        if self.record is not None:
            self.zoo.keep_pair(key, source.name, self.name, trial, dict(values))
