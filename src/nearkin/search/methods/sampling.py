"""Search that measures one genotype per step: a proposer suggests genotypes, an objective scores them.

Each architecture is measured once: genotypes with the same `unique_key` count as one, and a repeated proposal costs
nothing. Every search of this kind can start from given genotypes, such as the best ones of a kin.
"""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypedDict

from nearkin.core.errors import DataError, TrainingError, require
from nearkin.core.events import Caution, Work, finish
from nearkin.core.rng import Streams
from nearkin.core.state import State, copied
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.objective import Objective, ObjectiveValue
from nearkin.search.searcher import ScoredGenotype, Searcher
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.limited import without_limits

DRAWS = 1_000
"""Number of repeated proposals in a row after which a search ends."""

GIVEN, DRAWN, CHILD = "given", "drawn", "child"
"""Origins of a genotype: given at the start, drawn from the whole space, or the neighbour of another one."""

ORIGIN = "origin"
"""Fact of a measured genotype: how it was proposed."""

_SIGNATURE_DRAWS = 3


@dataclass
class Trials:
    """State of a search that measures one genotype per step.

    Attributes:
        streams: random generators.
        records: measured genotypes in order; the score is minus infinity if training failed or gave no number.
        index_of: index in `records` by the key of an architecture.
        marks: indices that the proposer works with, such as a population.
        best: index of the highest score, the earliest of equals; -1 before the first measurement.
        num_given: number of given genotypes that were used.
        repeats: number of repeated proposals since the last measurement.
        ended: why no proposal is left.
    """

    streams: Streams
    records: list[ScoredGenotype] = field(default_factory=list)
    index_of: dict[str, int] = field(default_factory=dict)
    marks: list[int] = field(default_factory=list)
    best: int = -1
    num_given: int = 0
    repeats: int = 0
    ended: str = ""

    def add(self, key: str, record: ScoredGenotype) -> int:
        """Add a measured genotype and return its index."""
        index = len(self.records)
        self.records.append(record)
        self.index_of[key] = index
        self.repeats = 0
        if self.best < 0 or record.score > self.records[self.best].score:
            self.best = index
        return index


class Proposer(ABC):
    """Rule that chooses the next genotype. It stores nothing itself: everything that it knows is in the trials.

    A proposer is a dataclass; its fields other than `name` are its settings.
    """

    def __init_subclass__(cls) -> None:
        if "met" in vars(cls):
            warnings.warn(f"{cls.__name__}.met is now observe", DeprecationWarning, stacklevel=2)
            cls.observe = cls.met  # type: ignore[attr-defined, method-assign]

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the method."""

    def settings(self) -> Mapping[str, Any]:
        """Plain JSON values that determine the proposals."""
        return {name: value for name, value in asdict(self).items() if name != "name"}  # type: ignore[call-overload]

    @abstractmethod
    def propose(self, trials: Trials, space: Space) -> tuple[Genotype, str]:
        """Return a genotype of the space, measured before or not, and a word for its origin."""

    def wants_given(self, trials: Trials) -> bool:
        """Whether the next given genotype, if one is left, is measured before a proposal; always by default."""
        return True

    def observe(self, trials: Trials, index: int) -> None:  # noqa: B027
        """Take note of a proposed or given genotype at this index of the records; it may be a repeated one."""


class _Unmeasured(float):
    """Minus infinity in place of a score that is not known yet; it notes that it was compared."""

    compared: list[bool]

    def __new__(cls, compared: list[bool]) -> "_Unmeasured":
        score = super().__new__(cls, -math.inf)
        score.compared = compared
        return score

    def __lt__(self, other: float) -> bool:
        self.compared.append(True)
        return super().__lt__(other)

    def __gt__(self, other: float) -> bool:
        self.compared.append(True)
        return super().__gt__(other)


class _TrialFacts(TypedDict):
    """Entries of a checkpoint beside the states of the generators."""

    seed: int
    records: list[tuple[str, float, dict[str, float | str], str]]
    keys: list[str]
    marks: list[int]
    best: int
    num_given: int
    ended: str


@dataclass(frozen=True)
class Sampling(Searcher[Trials]):
    """Search with a proposer and an objective.

    Attributes:
        space: the search space.
        objective: score of a genotype.
        proposer: rule that chooses the next genotype.
        first: genotypes to measure first, best first. One that breaks a limit of the space is skipped with a warning;
            one of another space is an error.
    """

    space: Space
    objective: Objective
    proposer: Proposer
    first: tuple[Genotype, ...] = ()

    def __post_init__(self) -> None:
        for genotype in self.first:
            without_limits(self.space).require_member(genotype)

    @property
    def name(self) -> str:
        """Name of the proposer."""
        return self.proposer.name

    def settings(self) -> dict[str, Any]:
        """Settings of the space, the objective and the proposer."""
        return {
            "space": space_signature(self.space),
            "objective": dict(self.objective.settings()),
            "way": dict(self.proposer.settings()),
            "first": list(map(str, self.first)),
        }

    def init(self, seed: int) -> Trials:
        """State without any measurement."""
        return Trials(Streams(seed))

    def step(self, state: Trials) -> Work[Trials]:
        """Measure one new genotype; end after too many repeated proposals."""
        proposed = yield from self._next(state)
        if proposed is None:
            state.ended = f"{DRAWS:,} proposals in a row were measured before"
            return state
        genotype, origin, key = proposed
        value = yield from self._measure(genotype)
        score = -math.inf if math.isnan(value.score) else float(value.score)
        record = ScoredGenotype(genotype, score, {**value.facts, ORIGIN: origin})
        self.proposer.observe(state, state.add(key, record))
        return state

    foresees = True

    def upcoming(self, state: Trials, most: int, guesses: int) -> list[Genotype]:
        """What follows if all new genotypes score worst; a guess as soon as the proposer compares their scores."""
        state, found, compared = self.restore(self.capture(state)), [], []  # type: ignore[var-annotated]
        while len(found) < (guesses if compared else most):
            proposed = finish(self._next(state))
            if proposed is None or (compared and len(found) >= guesses):
                break
            genotype, origin, key = proposed
            found.append(genotype)
            state.best = -1  # so that nothing is compared here
            record = ScoredGenotype(genotype, _Unmeasured(compared), {ORIGIN: origin})
            self.proposer.observe(state, state.add(key, record))
        return found

    def _next(self, state: Trials) -> Work[tuple[Genotype, str, str] | None]:
        """The next new genotype, its origin and its key; None after too many repeated proposals."""
        while state.repeats < DRAWS:
            first = None
            if state.num_given < len(self.first) and self.proposer.wants_given(state):
                first = yield from self._next_given(state)
            genotype, origin = first or self.proposer.propose(state, self.space)
            key = self.space.unique_key(genotype)
            if key in state.index_of:
                state.repeats += 1
                self.proposer.observe(state, state.index_of[key])
                continue
            return genotype, origin, key
        return None

    def best(self, state: Trials) -> ScoredGenotype | None:
        """Genotype of the highest score, the earliest of equals."""
        return None if state.best < 0 else state.records[state.best]

    def top(self, state: Trials, count: int) -> list[ScoredGenotype]:
        """Genotypes of the highest scores."""
        return [state.records[index] for index in best_indices(state.records, count)]

    def ended(self, state: Trials) -> str:
        """Reason if no new genotype was proposed."""
        return state.ended

    def evaluations(self, state: Trials) -> int:
        """Number of measured architectures."""
        return len(state.records)

    def capture(self, state: Trials) -> State:
        """Records as text, generators as bytes."""
        facts = {
            "seed": state.streams.seed,
            "records": [_row(record) for record in state.records],
            "keys": sorted(state.index_of, key=state.index_of.__getitem__),
            "marks": list(state.marks),
            "best": state.best,
            "num_given": state.num_given,
            "ended": state.ended,
        }
        return State(copied(state.streams.state()), facts)

    def restore(self, saved: State) -> Trials:
        """The inverse of `capture`."""
        facts = saved.read(_TrialFacts)
        streams = Streams(facts["seed"])
        streams.restore(saved.tensors)
        records = [
            ScoredGenotype(Genotype.parse(text), score, {**more, ORIGIN: origin})
            for text, score, more, origin in facts["records"]
        ]
        index_of = {key: index for index, key in enumerate(facts["keys"])}
        best, num_given, marks = facts["best"], facts["num_given"], facts["marks"]
        fits = len(index_of) == len(records) and -1 <= best < len(records) and 0 <= num_given <= len(self.first)
        fits = fits and (best >= 0 or not records) and all(0 <= index < len(records) for index in marks)
        require(fits, f"{saved.origin}: its numbers do not fit each other; remove it and start again", DataError)
        return Trials(streams, records, index_of, marks, best, num_given, ended=facts["ended"])

    def _measure(self, genotype: Genotype) -> Work[ObjectiveValue]:
        """Value of the objective; minus infinity if training fails."""
        try:
            return (yield from self.objective.measure(genotype))
        except TrainingError as failed:
            yield Caution(f"training of a genotype failed, it counts as the worst ({failed}): {genotype}")
            return ObjectiveValue(-math.inf, {"failed": str(failed)})

    def _next_given(self, state: Trials) -> Work[tuple[Genotype, str] | None]:
        while state.num_given < len(self.first):
            genotype = self.first[state.num_given]
            state.num_given += 1
            if not (reason := self.space.objection(genotype)):
                return genotype, GIVEN
            yield skipped_genotype(genotype, reason)
        return None


def skipped_genotype(genotype: Genotype, reason: str) -> Caution:
    """Warning that a given genotype is not in the space."""
    return Caution(f"skipped a genotype to start from, {reason}: {genotype}")


def _row(record: ScoredGenotype) -> list[Any]:
    facts = dict(record.facts)
    return [str(record.genotype), record.score, facts, facts.pop(ORIGIN)]


def space_signature(space: Space) -> list[str]:
    """Text that distinguishes spaces: the name, and genotypes that a fixed seed draws from it without limits.

    >>> from nearkin.search.spaces.general import GeneralSpace
    >>> space_signature(GeneralSpace((2,), ("zero",)))[:2]
    ['general', 'normal(0): 1 = zero(0); out = 1']
    """
    rng = Streams(0).at("described")
    return [space.name, *(str(without_limits(space).sample(rng)) for _ in range(_SIGNATURE_DRAWS))]


def best_indices(records: Sequence[ScoredGenotype], count: int) -> list[int]:
    """Indices of the highest scores, best first, the earliest of equals first.

    >>> genotype = Genotype.parse("chain: skip")
    >>> best_indices([ScoredGenotype(genotype, score) for score in (1.0, 3.0, 3.0)], 2)
    [1, 2]
    """
    return sorted(range(len(records)), key=lambda index: (-records[index].score, index))[:count]
