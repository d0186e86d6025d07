"""Search by asking: genotypes are proposed one by one and measured by an objective; ways differ in what they propose.

An architecture counts once: what a space gives the same `unique_key` is measured once, and to propose it again costs
nothing. A step is one measurement. All ways can start from genotypes that are given, such as a kin's best.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from nearkin.core.errors import DataError, TrainingError, require
from nearkin.core.events import Caution, Work
from nearkin.core.rng import Streams
from nearkin.core.state import State, copied
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.objective import Objective, ObjectiveValue
from nearkin.search.searcher import ScoredGenotype, Searcher
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.limited import LimitedSpace

DRAWS = 1_000
"""Proposals in a row without anything new after which a search ends."""

_DESCRIBED = 3

GIVEN = "given"
"""Origin of the genotypes that a search starts from."""


@dataclass(frozen=True)
class TrialRecord:
    """One measurement.

    Attributes:
        genotype: what was measured.
        score: larger is better; minus infinity where the measure failed or was no number.
        facts: plain figures beside it.
        origin: how it was proposed, a word of the way's.
    """

    genotype: Genotype
    score: float
    facts: Mapping[str, float | str]
    origin: str


@dataclass
class Trials:
    """The state of a search by asking.

    Attributes:
        streams: the generators.
        records: what was measured, in order.
        places: where in `records` each class of genotypes is.
        marks: places that the way goes on from: a population, a climber's foothold.
        best: place of the highest score, the earliest of equals; -1 before there is any.
        num_given: how many of the given genotypes were taken up.
        repeats: proposals in a row, up to now, that were measured before.
        ended: why there is nothing left to do.
    """

    streams: Streams
    records: list[TrialRecord] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)
    marks: list[int] = field(default_factory=list)
    best: int = -1
    num_given: int = 0
    repeats: int = 0
    ended: str = ""

    def add(self, key: str, record: TrialRecord) -> int:
        """Keep a measurement; returns its place."""
        place = len(self.records)
        self.records.append(record)
        self.places[key] = place
        self.repeats = 0
        if self.best < 0 or record.score > self.records[self.best].score:
            self.best = place
        return place


class Proposer(ABC):
    """How the next genotype is chosen; a value without memory, all that it knows is in the trials."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What the method is called."""

    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """Plain JSON values that decide what is proposed."""

    @abstractmethod
    def propose(self, trials: Trials, space: Space) -> tuple[Genotype, str]:
        """A member of the space, and the word for how it was come by; may be one that was measured before."""

    @abstractmethod
    def observe(self, trials: Trials, place: int) -> None:
        """Take note of what was proposed or given: it is at that place of the records, new or not."""


class _Facts(TypedDict):
    """What `Sampling.capture` says beside the states of generators."""

    seed: int
    records: list[tuple[str, float, dict[str, float | str], str]]
    keys: list[str]
    marks: list[int]
    best: int
    num_given: int
    ended: str


@dataclass(frozen=True)
class Sampling(Searcher[Trials]):
    """A way through a space by an objective.

    Attributes:
        space: where to look.
        objective: what is asked.
        way: how the next genotype is chosen.
        first: genotypes to measure before any other, best first; those that a limit of the space forbids are passed
            over with a word of caution, one of another space is an error.
    """

    space: Space
    objective: Objective
    way: Proposer
    first: tuple[Genotype, ...] = ()

    def __post_init__(self) -> None:
        for genotype in self.first:
            without_limits(self.space).require_member(genotype)

    @property
    def name(self) -> str:
        """That of the way."""
        return self.way.name

    def settings(self) -> dict[str, Any]:
        """Those of the way, the objective and the space."""
        return {
            "space": space_signature(self.space),
            "objective": dict(self.objective.settings()),
            "way": dict(self.way.settings()),
            "first": list(map(str, self.first)),
        }

    def init(self, seed: int) -> Trials:
        """Nothing measured."""
        return Trials(Streams(seed))

    def step(self, state: Trials) -> Work[Trials]:
        """Measure one genotype that is new; without any in many proposals, end."""
        while state.repeats < DRAWS:
            genotype, origin = (yield from self._given(state)) or self.way.propose(state, self.space)
            key = self.space.unique_key(genotype)
            if key in state.places:
                state.repeats += 1
                self.way.observe(state, state.places[key])
                continue
            measured = yield from self._measured(genotype)
            score = -math.inf if math.isnan(measured.score) else float(measured.score)
            self.way.observe(state, state.add(key, TrialRecord(genotype, score, measured.facts, origin)))
            return state
        state.ended = f"{DRAWS:,} proposals in a row were measured before"
        return state

    def best(self, state: Trials) -> ScoredGenotype | None:
        """The highest score, the earliest of equals."""
        return None if state.best < 0 else _best(state.records[state.best])

    def top(self, state: Trials, count: int) -> list[ScoredGenotype]:
        """The highest scores."""
        return [_best(state.records[place]) for place in best_indices(state.records, count)]

    def ended(self, state: Trials) -> str:
        """Where nothing new was found."""
        return state.ended

    def evaluations(self, state: Trials) -> int:
        """Classes of genotypes that were measured."""
        return len(state.records)

    def capture(self, state: Trials) -> State:
        """Records as text, generators as bytes."""
        rows = [[str(r.genotype), r.score, dict(r.facts), r.origin] for r in state.records]
        facts = {
            "seed": state.streams.seed,
            "records": rows,
            "keys": sorted(state.places, key=state.places.__getitem__),
            "marks": list(state.marks),
            "best": state.best,
            "num_given": state.num_given,
            "ended": state.ended,
        }
        return State(copied(state.streams.state()), facts)

    def restore(self, saved: State) -> Trials:
        """The inverse of `capture`."""
        facts = saved.read(_Facts)
        streams = Streams(facts["seed"])
        streams.restore(saved.tensors)
        records = [
            TrialRecord(Genotype.parse(text), score, dict(more), word) for text, score, more, word in facts["records"]
        ]
        places = {key: place for place, key in enumerate(facts["keys"])}
        best, given, marks = facts["best"], facts["num_given"], facts["marks"]
        fits = len(places) == len(records) and -1 <= best < len(records) and 0 <= given <= len(self.first)
        fits = fits and (best >= 0 or not records) and all(0 <= place < len(records) for place in marks)
        require(fits, f"{saved.origin}: its numbers do not fit each other; remove it and start again", DataError)
        return Trials(streams, records, places, marks, best, given, ended=facts["ended"])

    def _measured(self, genotype: Genotype) -> Work[ObjectiveValue]:
        """What the objective says; of a genotype whose training fails, that it is worse than any."""
        try:
            return (yield from self.objective.measure(genotype))
        except TrainingError as failed:
            yield Caution(f"a genotype counts as worst, {failed}: {genotype}")
            return ObjectiveValue(-math.inf, {"failed": str(failed)})

    def _given(self, state: Trials) -> Work[tuple[Genotype, str] | None]:
        """The next of those given that the space allows, if one is left."""
        while state.num_given < len(self.first):
            genotype = self.first[state.num_given]
            state.num_given += 1
            if not (reason := self.space.objection(genotype)):
                return genotype, GIVEN
            yield Caution(f"a genotype to start from is passed over, {reason}: {genotype}")
        return None


def _best(record: TrialRecord) -> ScoredGenotype:
    return ScoredGenotype(record.genotype, record.score, {**record.facts, "origin": record.origin})


def without_limits(space: Space) -> Space:
    """The space without its limits."""
    return without_limits(space.space) if isinstance(space, LimitedSpace) else space


def space_signature(space: Space) -> list[str]:
    """Plain text that tells one space from another: its name, and what a fixed seed draws from it without limits.

    >>> from nearkin.search.spaces.general import GeneralSpace
    >>> space_signature(GeneralSpace((2,), ("zero",)))[:2]
    ['general', 'normal(0): 1 = zero(0); out = 1']
    """
    rng = Streams(0).at("described")
    return [space.name, *(str(without_limits(space).sample(rng)) for _ in range(_DESCRIBED))]


def best_indices(records: Sequence[TrialRecord], count: int) -> list[int]:
    """Places of the highest scores, best first, the earliest of equals first.

    >>> one = Genotype.parse("chain: skip")
    >>> best_indices([TrialRecord(one, score, {}, "draw") for score in (1.0, 3.0, 3.0)], 2)
    [1, 2]
    """
    return sorted(range(len(records)), key=lambda place: (-records[place].score, place))[:count]
