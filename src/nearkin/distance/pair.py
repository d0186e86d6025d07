"""A source and a target, from which measures are computed.

`Source` and `Target` hold everything in memory. A zoo has subclasses of them, which load networks and data when a
measure needs them, train missing networks, and store measured values.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torch import Tensor

from nearkin.core.errors import MismatchError, require
from nearkin.core.events import Work
from nearkin.core.types import Params
from nearkin.distance.fisher_based.readings import information
from nearkin.distance.probe_embedding import probe_embedding
from nearkin.distance.source_on_target import SourceOnTarget
from nearkin.fisher.values import FisherDiagonal
from nearkin.nets.solved import Solved
from nearkin.tasks.likelihood import likelihood, require_one_output
from nearkin.tasks.network_inputs import NetworkInputs
from nearkin.tasks.task import Task

if TYPE_CHECKING:
    from nearkin.distance.forecasting.past_runs import RecordedRun


@dataclass(frozen=True, eq=False, kw_only=True)
class Source:
    """A solved task that a target is compared with.

    Attributes:
        name: of the task.
        network: its network string.
        input_shape: of the network.
        likelihood: that the network was trained with.
        num_outputs: width of the last layer.
        seed: of the weights that training started from.
        trials: number of trained networks.
        load: loads the networks.
        load_task: loads the task's data; None if they are not known.
        shared_start: whether trial t started from the weights that the target's trial t starts from.
        load_inputs: loads how inputs are prepared for the networks (default: images are fitted to `input_shape`).
    """

    name: str
    network: str
    input_shape: tuple[int, ...]
    likelihood: str
    num_outputs: int
    seed: int
    trials: int
    load: Callable[[], Solved]
    load_task: Callable[[], Task] | None = None
    shared_start: bool = True
    load_inputs: Callable[[], NetworkInputs] | None = None

    @classmethod
    def of(cls, solved: Solved, task: Task | None = None) -> "Source":
        """A source in memory, with its own data if `task` is given."""
        return cls(
            name=solved.name,
            network=solved.network,
            input_shape=solved.inputs.shape,
            likelihood=solved.facts["likelihood"],
            num_outputs=solved.num_outputs,
            seed=solved.seed,
            trials=len(solved.trials),
            load=lambda: solved,
            load_task=None if task is None else lambda: task,
            load_inputs=lambda: solved.inputs,
        )

    @property
    def probe(self) -> tuple[str, tuple[int, ...], int]:
        """Network, input shape and seed: tasks that share them start from the same weights."""
        return self.network, self.input_shape, self.seed

    @cached_property
    def solved(self) -> Solved:
        """The source's trained networks, loaded on first use."""
        return self.load()

    @cached_property
    def inputs(self) -> NetworkInputs:
        """How the inputs of a task are prepared for the networks."""
        return NetworkInputs(self.input_shape) if self.load_inputs is None else self.load_inputs()

    @cached_property
    def task(self) -> Task:
        """The task with its data."""
        if self.load_task is None:
            raise MismatchError(f"the data of '{self.name}' are not known; give its task")
        return self.load_task()

    def require_trials(self, trials: int) -> None:
        """Refuse a number of trials that the source does not have."""
        require(
            self.trials >= trials,
            f"'{self.name}' has {self.trials} trials, but {trials} are needed; use fewer, or add it again with more",
            MismatchError,
        )

    def networks(self, trials: int) -> Work[Solved]:
        """The trained networks, `trials` or more."""
        self.require_trials(trials)
        yield from ()
        return self.solved

    def embedding(self, trial: int, samples: int) -> Work[Params]:
        """Task2Vec embedding of the source's own task in its network at initialisation."""
        return probe_embedding(self.inputs(self.task), self.network, self.seed, trial, samples)

    @cached_property
    def _values(self) -> dict[str, float]:
        return {}

    def measured(self, key: str, value: Callable[[], float]) -> Work[float]:
        """A value of the source alone, measured once for each key."""
        yield from ()
        if key not in self._values:
            self._values[key] = value()
        return self._values[key]


class Target:
    """A task that sources are compared with; what all comparisons need is computed once.

    Args:
        task: the target.
        solved: the target's own networks, for measures that need them.
    """

    def __init__(self, task: Task, solved: Solved | None = None) -> None:
        require_one_output(task.likelihood)
        self.task, self.passes = task, 0.0
        self._solved = solved
        self._seen: dict[NetworkInputs, Task] = {}
        self._informations: dict[object, FisherDiagonal] = {}
        self._embeddings: dict[object, Params] = {}

    @property
    def name(self) -> str:
        """Name of the task."""
        return self.task.name

    @property
    def has_networks(self) -> bool:
        """Whether `networks` returns networks."""
        return self._solved is not None

    def is_source(self, source: Source) -> bool:
        """Whether a source is the target itself."""
        return self._solved is not None and source.solved is self._solved

    def seen_as(self, inputs: NetworkInputs) -> Task:
        """The task with its inputs prepared for a network."""
        if inputs not in self._seen:
            self._seen[inputs] = inputs(self.task)
        return self._seen[inputs]

    def networks(self, source: Source, trials: int) -> Work[Solved]:
        """The target's own networks of the source's architecture, trained from the same initial weights."""
        if self._solved is None:
            raise MismatchError(f"'{self.name}' has no network of its own; solve it first")
        yield from ()
        Source.of(self._solved).require_trials(trials)
        return self._solved

    def information(
        self, key: object, view: SourceOnTarget, reading: str, width: int, share: float
    ) -> Work[FisherDiagonal]:
        """Fisher information of one of the target's own networks, measured once for each key."""
        if key not in self._informations:
            self._informations[key] = yield from information(view, reading, width)
            self.passes += share
        return self._informations[key]

    def embedding(self, source: Source, trial: int, samples: int) -> Work[Params]:
        """Task2Vec embedding of the target in the source's network at initialisation, measured once.

        Sources that share network, seed and preprocessing share it.
        """
        key = (*source.probe, source.inputs, trial, samples)
        if key not in self._embeddings:
            task = self.seen_as(source.inputs)
            self._embeddings[key] = yield from probe_embedding(task, source.network, source.seed, trial, samples)
            self.passes += 1
        return self._embeddings[key]

    def recall(self, key: str, source: Source, trial: int) -> Mapping[str, float]:
        """Stored values of a pair under a key; empty if there are none."""
        return {}

    def recorded_runs(self) -> "Sequence[RecordedRun]":
        """Training runs from which forecasts learn, if there is a store."""
        return ()

    def remember(self, key: str, source: Source, trial: int, values: Mapping[str, float]) -> None:
        """Store values of a pair under a key, if there is a store."""


@dataclass(frozen=True, eq=False)
class Pair:
    """One trial of a source with a target.

    Attributes:
        source: the source.
        target: the target, shared by all its pairs.
        trial: index of the source's network.
        trials: number of compared trials; missing networks are trained for all of them at once.
        samples: number of the target's training samples.
        share: of these samples that is used; below 1 to screen many sources.
    """

    source: Source
    target: Target
    trial: int = 0
    trials: int = 1
    samples: int = 1000
    share: float = 1.0

    @property
    def num_samples(self) -> int:
        """Number of the target's training samples that are used for this pair."""
        return math.ceil(self.share * self.samples)

    @property
    def task(self) -> Task:
        """The target with its inputs prepared for the source's network."""
        return self.target.seen_as(self.source.inputs)

    @cached_property
    def view(self) -> SourceOnTarget:
        """Features and outputs of the source's network on the target."""
        own = likelihood(self.source.likelihood)
        return SourceOnTarget(self.source.solved.model(self.trial), self.task, own, self.num_samples)

    @cached_property
    def source_features(self) -> Tensor:
        """Features of the source's network on its own training samples `[M, D]`."""
        return self.view.features_of(self.source.inputs(self.source.task).train.fixed_subset(self.num_samples).x)

    @property
    def metric(self) -> float:
        """Metric of the source's network on its own task."""
        return self.source.solved.trials[self.trial].scores.metric

    @property
    def num_classes(self) -> int | None:
        """Number of classes of the target; None for targets without classes."""
        return len(self.task.classes) if self.task.likelihood == "categorical" else None

    def embeddings(self) -> Work[tuple[Params, Params]]:
        """Task2Vec embeddings of the source's own task and of the target, in one network."""
        of_source = yield from self.source.embedding(self.trial, self.samples)
        return of_source, (yield from self.target.embedding(self.source, self.trial, self.samples))

    def recall(self, key: str) -> Mapping[str, float]:
        """Stored values of this pair under a key; empty if there are none."""
        return self.target.recall(key, self.source, self.trial)

    def remember(self, key: str, values: Mapping[str, float]) -> None:
        """Store values, if they were measured on all samples."""
        if self.share == 1:
            self.target.remember(key, self.source, self.trial, values)
