"""Near kin: the distance of a target to every task of a zoo, and of all tasks to each other.

Two tasks are compared through one probe: a network, an input shape and a seed, those of the source. The target's images
are brought to that shape; its own network of that kind, which the Fréchet distance needs, comes from the zoo if it is
there, else it is trained as `add` would train it, from the weights that the source's trial started from.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from nearkin.core.errors import NearkinError, ZooError, require
from nearkin.core.events import Caution, Checkpoint, Note, Progress, Work
from nearkin.core.state import State
from nearkin.distance.alignment import aligning
from nearkin.distance.frechet import AGGREGATES, distances
from nearkin.distance.matrix import DistanceMatrix
from nearkin.distance.measures import MEASURES, measure_named
from nearkin.distance.ranking import Ranking
from nearkin.distance.readings import READINGS, information
from nearkin.distance.sight import Sight, fitted_to
from nearkin.fisher.values import FisherDiagonal
from nearkin.nets.functional import load
from nearkin.nets.recipe import Recipe
from nearkin.nets.solved import Solved
from nearkin.tasks.likelihood import likelihood
from nearkin.tasks.task import Task
from nearkin.zoo.desk import Desk
from nearkin.zoo.records import TaskRecord

DEFAULT_MEASURE = "kin"
ALIGN_SAMPLES = 256
BESIDE = ("logme",)  # shown beside the Fréchet distance, which is for search spaces and predicts little


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

    def fisher(self, name: str, trial: int = 0) -> FisherDiagonal:
        """A network's information on its own task."""
        ...

    def pairs(self, measure: str, target: str) -> dict[tuple[str, int], dict[str, Any]]:
        """What was measured between sources and a target, by source and trial."""
        ...

    def keep_pair(self, measure: str, source: str, target: str, trial: int, facts: dict[str, Any]) -> None:
        """Keep what was measured between two tasks."""
        ...


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How tasks are compared.

    Attributes:
        measure: `frechet` or a name of `MEASURES`.
        reading: of the Fréchet distance, see `distance.readings`.
        aggregate: of the Fréchet distance, see `distance.frechet`.
        align: match the neurons of both networks before their weights are compared.
        samples: of the target that networks look at, of each part.
        trials: how many; by default as many as all that are compared have.
        epsilon: sources whose metric is below 1 − ε are named.
        device: where networks that are missing are trained.
    """

    measure: str = DEFAULT_MEASURE
    reading: str = "model"
    aggregate: str = "sorted"
    align: bool = False
    samples: int = 1000
    trials: int | None = None
    epsilon: float = 0.2
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        if self.measure != "frechet":
            measure_named(self.measure)
        for what, value, known in (("reading", self.reading, READINGS), ("aggregate", self.aggregate, AGGREGATES)):
            require(value in known, f"{what} is one of {', '.join(known)}, got {value!r}")
        require(self.samples >= 2, f"two samples or more tell tasks apart, got {self.samples}")
        require(self.trials is None or self.trials >= 1, f"trials must be 1 or more, got {self.trials}")
        require(0 <= self.epsilon <= 1, f"epsilon lies between 0 and 1, got {self.epsilon}")

    @property
    def key(self) -> str:
        """Under which a distance is kept; all aggregates come from one measurement."""
        return f"frechet {self.reading} {self.samples}{' aligned' if self.align else ''}"


class Target:
    """A task that others are compared with: one of the zoo, or a new one."""

    def __init__(self, shelf: Shelf, given: Task | str, work: Path) -> None:
        self.shelf, self.work = shelf, work
        self.record = shelf.record(given) if isinstance(given, str) else None
        self.task = shelf.task(given) if isinstance(given, str) else given
        self._seen: dict[tuple[int, ...], Task] = {}
        self._own: dict[tuple[str, tuple[int, ...], int], Solved] = {}
        self._informations: dict[object, FisherDiagonal] = {}
        self.passes = 0

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
        """The target's own network, of the kind that the source has and from the same weights."""
        probe = (source.network, source.input_shape, source.seed)
        kept = self._own.get(probe)
        if kept is not None and len(kept.trials) >= trials:
            return kept
        task = self.seen_as(source.input_shape)
        mine = self.record
        stored = mine is not None and (mine.network, mine.input_shape, mine.seed) == probe
        fits = list(self.shelf.solved(self.name).trials[:trials]) if stored else []
        if len(fits) < trials:
            recipe = Recipe(**mine.facts["recipe"]) if mine is not None and stored else Recipe.suited(task)
            desk = Desk.of(self.work, task, source.network, recipe, source.seed)
            yield Note(f"training {source.network} on {task.name}, as the Fréchet distance wants it; it is kept")
            for trial in range(len(fits), trials):
                fits.append((yield from desk.trial(trial, trials, how.device)))
        self._own[probe] = Solved(task.name, source.network, task.facts(), source.seed, tuple(fits))
        return self._own[probe]

    def information(self, key: object, sight: Sight, how: Comparison, width: int) -> Work[FisherDiagonal]:
        """Its own network's information by one reading, measured once for each probe, trial and width of the head."""
        if key not in self._informations:
            self._informations[key] = yield from information(sight, how.reading, width)
            self.passes += 1
        return self._informations[key]


def nearing(shelf: Shelf, given: Task | str, work: Path, how: Comparison) -> Work[Ranking]:
    """The ranking of a zoo's tasks by their distance to a target, a name of the zoo or a new task."""
    begun, target = time.monotonic(), Target(shelf, given, work)
    sources = [record for record in shelf.records() if target.record is None or record.name != target.name]
    require(
        bool(sources),
        f"the zoo has no other task to compare {target.name} with; add some: nearkin add NAME DATA",
        ZooError,
    )
    form = target.task.likelihood
    if how.measure != "frechet":
        MEASURES[how.measure].require_known(form)
    trials = how.trials or min(record.trials for record in (*sources, *([target.record] if target.record else [])))
    weak = {record.name: record.metric for record in sources if record.epsilon > how.epsilon}
    if weak:
        told = ", ".join(f"{name} ({metric:.2f})" for name, metric in list(weak.items())[:5])
        yield Caution(f"networks below 1 − ε = {1 - how.epsilon:.2f} know their own task badly: {told}")
    found: dict[str, list[float]] = {}
    beside: dict[str, dict[str, float]] = {}
    refused: dict[str, str] = {}
    for number, source in enumerate(sources, 1):
        try:
            found[source.name] = yield from _trials(shelf, source, target, trials, how)
            beside[source.name] = _beside(shelf, source, target, how)
        except NearkinError as error:
            refused[source.name] = str(error)
            found.pop(source.name, None)
        yield Progress(f"{how.measure} distances", number, len(sources))
        yield Checkpoint(_nothing)  # what was measured is in the zoo
    if not found:
        name, reason = next(iter(refused.items()))
        raise ZooError(f"no task of the zoo can be compared with {target.name}; {name}: {reason}")
    return Ranking.of(
        target.name, how.measure, found, beside, refused=refused, weak=weak, seconds=time.monotonic() - begun,
        passes=target.passes,
    )  # fmt: skip


def comparing(shelf: Shelf, names: Sequence[str], work: Path, how: Comparison) -> Work[DistanceMatrix]:
    """Distances of all pairs of the zoo's tasks; what was measured before is not measured again."""
    require(len(names) >= 2, f"a matrix compares two tasks or more, got {len(names)}; add some to the zoo", ZooError)
    doubled = sorted({name for name in names if list(names).count(name) > 1})
    require(not doubled, f"{', '.join(doubled)} is named twice; name each task once")
    records = [shelf.record(name) for name in names]
    trials = how.trials or min(record.trials for record in records)
    values = torch.full((trials, len(names), len(names)), torch.nan, dtype=torch.float64)
    reasons: dict[tuple[str, str], str] = {}
    for b, name in enumerate(names):
        target = Target(shelf, name, work)
        for a, source in enumerate(records):
            try:
                values[:, a, b] = torch.tensor((yield from _trials(shelf, source, target, trials, how))).double()
            except NearkinError as error:
                reasons[source.name, name] = str(error)
            yield Progress(f"{how.measure} distances", b * len(names) + a + 1, len(names) ** 2)
            yield Checkpoint(_nothing)
    return DistanceMatrix(tuple(names), how.measure, values, reasons)


def _nothing() -> State:
    return State({})


def _trials(shelf: Shelf, source: TaskRecord, target: Target, trials: int, how: Comparison) -> Work[list[float]]:
    """The distance from one source in every trial."""
    if how.measure == "frechet":
        return (yield from _frechet(shelf, source, target, trials, how))
    measure = MEASURES[how.measure]
    found = []
    for sight in _sights(shelf, source, target, min(trials, source.trials), how):
        found.append(measure(sight))
    require(
        len(found) == trials,
        f"{source.name} has {len(found)} trials, {trials} were asked for; ask for fewer, or add it anew with more",
        ZooError,
    )
    return found


def _frechet(shelf: Shelf, source: TaskRecord, target: Target, trials: int, how: Comparison) -> Work[list[float]]:
    kept = shelf.pairs(how.key, target.name) if target.record is not None else {}
    found = [kept.get((source.name, trial)) for trial in range(trials)]
    if None in found:
        solved = Target(shelf, source.name, target.work) if source.trials < trials else None
        sources = shelf.solved(source.name) if solved is None else (yield from solved.own(source, trials, how))
        own = yield from target.own(source, trials, how)
        task = target.seen_as(source.input_shape)
        width = max(sources.num_outputs, own.num_outputs)
        for trial in (t for t in range(trials) if found[t] is None):
            mine = Sight(own.model(trial), task, task.form, num_train=how.samples, num_test=how.samples)
            key = (source.network, source.input_shape, source.seed, trial, width)
            f_bb = yield from target.information(key, mine, how, width)
            if target.record is not None and source.name == target.name:
                f_ab = f_bb
            else:
                form = likelihood(sources.facts["likelihood"])
                model = sources.model(trial)
                if how.align:
                    matched = yield from aligning(model, mine.model, mine.test.x[:ALIGN_SAMPLES])
                    load(model, matched.params, matched.buffers)
                sight = Sight(model, task, form, num_train=how.samples, num_test=how.samples)
                f_ab = yield from information(sight, how.reading, width)
                target.passes += 1
            found[trial] = distances(f_ab, f_bb)
            if target.record is not None:
                shelf.keep_pair(how.key, source.name, target.name, trial, found[trial] or {})
    return [float(values[how.aggregate]) for values in found if values is not None]


def _sights(shelf: Shelf, source: TaskRecord, target: Target, trials: int, how: Comparison) -> Iterator[Sight]:
    """The target through the source's network of every trial."""
    solved, task = shelf.solved(source.name), target.seen_as(source.input_shape)
    form = likelihood(source.likelihood)
    for trial in range(trials):
        fisher = shelf.fisher(source.name, trial) if how.measure == "task2vec" else None
        yield Sight(solved.model(trial), task, form, fisher, how.samples, how.samples)


def _beside(shelf: Shelf, source: TaskRecord, target: Target, how: Comparison) -> dict[str, float]:
    """Other measures of the first trial that cost little, where they apply."""
    if how.measure != "frechet":
        return {}
    found = {}
    for sight in _sights(shelf, source, target, 1, how):
        for name in BESIDE:
            known = MEASURES[name]
            if target.task.likelihood in known.forms and source.likelihood in known.source:
                found[name] = known(sight)
    return found
