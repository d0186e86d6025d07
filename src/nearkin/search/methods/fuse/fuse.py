"""FUSE (paper 000): candidates compete with the incumbent round by round, until none of them beats it any more.

A round draws new candidates from the space, trains them together with the incumbent from fresh weights, and the winner
is the next incumbent. Nothing but the winner's genotype goes from a round to the next.
"""

from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from nearkin.core.errors import require
from nearkin.core.events import Caution, Work
from nearkin.core.plain import typed
from nearkin.core.rng import Streams, derived_seed
from nearkin.core.state import State
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.fuse.candidates import Candidates, SearchSplit, split_for_search
from nearkin.search.methods.fuse.rounds import CandidateSelection, Fusion, RoundResult
from nearkin.search.methods.sampling import DRAWS, space_signature, without_limits
from nearkin.search.networks.build import Skeleton, build_network
from nearkin.search.searcher import ScoredGenotype, Searcher
from nearkin.search.spaces.base import Space
from nearkin.tasks.task import Task


@dataclass
class FuseState:
    """The state of the search between two rounds.

    Attributes:
        seed: the one seed; a round's generators follow from it and the round's number.
        number: rounds held.
        seen: keys of the architectures that took part, in order.
        winners: genotypes that won a round, as text with score and facts of the last they won; the incumbent is last.
        streak: rounds that the incumbent has won in a row since it came.
        num_given: how many of the given genotypes were taken up.
        ended: why there is nothing left to do.
    """

    seed: int
    number: int = 0
    seen: list[str] = field(default_factory=list)
    winners: list[list[Any]] = field(default_factory=list)
    streak: int = 0
    num_given: int = 0
    ended: str = ""


@dataclass(frozen=True, eq=False)
class Fuse(Searcher[FuseState]):
    """Rounds of candidates against the incumbent.

    Attributes:
        space: where candidates are drawn, all genotypes alike, each architecture once.
        task: what they are trained for; its test part is not touched.
        skeleton: what they are built on.
        contest: `Fusion()`, or the control `SideBySide()`.
        candidates: new ones in each round.
        patience: the search has converged when the incumbent has beaten so many rounds of candidates in a row.
        validation: share of the training part that is set aside to judge by.
        first: genotypes to begin with, such as a kin's best; those that a limit forbids are passed over.
    """

    space: Space
    task: Task
    skeleton: Skeleton
    contest: CandidateSelection = field(default_factory=Fusion)
    candidates: int = 4
    patience: int = 3
    validation: float = 0.3
    first: tuple[Genotype, ...] = ()

    def __post_init__(self) -> None:
        require(self.candidates >= 1, f"a round has at least 1 new candidate, got {self.candidates}")
        require(self.patience >= 1, f"patience is a number of rounds from 1 on, got {self.patience}")
        require(0 < self.validation < 1, f"validation is a share between 0 and 1, got {self.validation}")
        for genotype in self.first:
            without_limits(self.space).require_member(genotype)

    @property
    def name(self) -> str:
        """That of the contest."""
        return self.contest.name

    def settings(self) -> dict[str, Any]:
        """All that decides the course."""
        return {
            "space": space_signature(self.space),
            "task": [self.task.name, self.task.fingerprint()],
            "skeleton": self.skeleton.to_dict(),
            "contest": dict(self.contest.settings()),
            "candidates": self.candidates,
            "patience": self.patience,
            "validation": self.validation,
            "first": list(map(str, self.first)),
        }

    def init(self, seed: int) -> FuseState:
        """No round held."""
        return FuseState(seed)

    def step(self, state: FuseState) -> Work[FuseState]:
        """One round."""
        streams = Streams(state.seed).child("round", state.number)
        drawn = yield from self._drawn(state, streams)
        old = [Genotype.parse(text) for text, *_ in state.winners[-1:]]
        if not drawn:
            state.ended = "every architecture of the space took part" if old else "the space has nothing to draw"
            return state
        entered = [*old, *drawn]
        verdict = yield from self._round(entered, streams, state.number)
        state.number += 1
        if old and verdict.winner == 0:
            state.streak += 1
            state.winners.pop()
        else:
            state.streak = 0
        won = verdict.winner
        state.winners.append([str(entered[won]), verdict.scores[won], self._facts(verdict)])
        if state.streak == self.patience:
            state.ended = f"the incumbent won {self.patience} rounds in a row"
        return state

    def best(self, state: FuseState) -> ScoredGenotype | None:
        """The incumbent, its score in the last round, and what it measured there."""
        return next(iter(self.top(state, 1)), None)

    def top(self, state: FuseState, count: int) -> list[ScoredGenotype]:
        """The incumbent, then those that it and its predecessors took the place of, latest first."""
        latest = state.winners[::-1][:count]
        return [ScoredGenotype(Genotype.parse(text), score, dict(facts)) for text, score, facts in latest]

    def ended(self, state: FuseState) -> str:
        """Converged, or nothing left to draw."""
        return state.ended

    def evaluations(self, state: FuseState) -> int:
        """Architectures that took part."""
        return len(state.seen)

    def capture(self, state: FuseState) -> State:
        """Facts alone: weights begin anew in every round."""
        return State({}, asdict(state))

    def restore(self, saved: State) -> FuseState:
        """The inverse of `capture`."""
        rounds = saved.read(FuseState)
        typed(list[tuple[str, float, dict[str, float | str]]], rounds.winners, saved.origin)
        return rounds

    def figures(self, state: FuseState) -> dict[str, float]:
        """The incumbent's validation metric, its rounds in a row."""
        facts = state.winners[-1][2] if state.winners else {}
        numbers = {name: float(value) for name, value in facts.items() if not isinstance(value, str)}
        return {**numbers, "rounds won": float(state.streak)}

    @cached_property
    def parts(self) -> SearchSplit:
        """The training part in two, always the same: to learn from and to judge by."""
        return split_for_search(self.task, self.validation)

    def _round(self, entered: list[Genotype], streams: Streams, number: int) -> Work[RoundResult]:
        shape, outputs = self.task.input_shape, self.task.num_outputs
        networks = [
            build_network(genotype, self.skeleton, shape, outputs, derived_seed(streams.seed, "weights", place))
            for place, genotype in enumerate(entered)
        ]
        model = Candidates(networks)
        return (yield from self.contest.judge(model, self.parts, streams, f"round {number + 1}"))

    def _drawn(self, state: FuseState, streams: Streams) -> Work[list[Genotype]]:
        """New candidates, those given first; fewer where draws find nothing new."""
        drawn: list[Genotype] = []
        while state.num_given < len(self.first) and len(drawn) < self.candidates:
            genotype = self.first[state.num_given]
            state.num_given += 1
            if reason := self.space.objection(genotype):
                yield Caution(f"a genotype to start from is passed over, {reason}: {genotype}")
            elif self._is_new(genotype, state):
                drawn.append(genotype)
        rng = streams.at("candidates")
        for _ in range(DRAWS):
            if len(drawn) == self.candidates:
                break
            genotype = self.space.sample(rng)
            if self._is_new(genotype, state):
                drawn.append(genotype)
        return drawn

    def _is_new(self, genotype: Genotype, state: FuseState) -> bool:
        """Whether the architecture takes part for the first time; from now on it does not."""
        key = self.space.unique_key(genotype)
        if key in state.seen:
            return False
        state.seen.append(key)
        return True

    def _facts(self, verdict: RoundResult) -> dict[str, float | str]:
        place = verdict.winner
        return {
            "validation loss": verdict.losses[place],
            f"validation {self.task.form.metric}": verdict.metrics[place],
            **verdict.facts,
        }
