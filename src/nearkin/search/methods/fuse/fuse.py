"""FUSE (paper 000): in each round, new candidates compete with the incumbent until no candidate beats it.

A round draws candidates from the space and trains them together with the incumbent from new weights. The winner is the
next incumbent. Only its genotype is carried to the next round.
"""

from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from nearkin.core.errors import require
from nearkin.core.events import Work
from nearkin.core.plain import typed
from nearkin.core.rng import Streams, derived_seed
from nearkin.core.state import State
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.fuse.candidates import Candidates, SearchSplit, split_for_search
from nearkin.search.methods.fuse.rounds import CandidateSelection, Fusion, RoundResult
from nearkin.search.methods.sampling import DRAWS, skipped_genotype, space_signature
from nearkin.search.networks.build import Skeleton, build_network
from nearkin.search.searcher import ScoredGenotype, Searcher
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.limited import without_limits
from nearkin.tasks.task import Task


@dataclass
class FuseState:
    """State of the search between two rounds.

    Attributes:
        seed: seed of the search; the generators of a round follow from it and the number of the round.
        number: number of finished rounds.
        seen: keys of the architectures that took part, in order.
        winners: genotypes that won a round, as text with score and facts of their last win; the incumbent is last.
        streak: number of rounds in a row in which the incumbent beat new candidates.
        num_given: number of given genotypes that were used.
        ended: why the search ended.
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
        space: space from which candidates are drawn uniformly, each architecture once.
        task: task on which they are trained; its test set is not used.
        skeleton: macro-architecture of the candidates.
        selection: how a round selects its winner: `Fusion()`, or the control `SideBySide()`.
        candidates: number of new candidates in each round.
        patience: the search has converged when the incumbent has won this number of rounds in a row.
        validation: fraction of the training set that is used as validation set.
        first: genotypes to start from, such as the best of a kin; those outside a limit are skipped.
    """

    space: Space
    task: Task
    skeleton: Skeleton
    selection: CandidateSelection = field(default_factory=Fusion)
    candidates: int = 4
    patience: int = 3
    validation: float = 0.3
    first: tuple[Genotype, ...] = ()

    def __post_init__(self) -> None:
        require(self.candidates >= 1, f"candidates must be 1 or more, got {self.candidates}")
        require(self.patience >= 1, f"patience must be 1 round or more, got {self.patience}")
        require(0 < self.validation < 1, f"validation must be a fraction between 0 and 1, got {self.validation}")
        for genotype in self.first:
            without_limits(self.space).require_member(genotype)

    @property
    def name(self) -> str:
        """Name of the selection."""
        return self.selection.name

    def settings(self) -> dict[str, Any]:
        """Everything that determines the search."""
        return {
            "space": space_signature(self.space),
            "task": [self.task.name, self.task.fingerprint()],
            "skeleton": self.skeleton.to_dict(),
            "contest": dict(self.selection.settings()),
            "candidates": self.candidates,
            "patience": self.patience,
            "validation": self.validation,
            "first": list(map(str, self.first)),
        }

    def init(self, seed: int) -> FuseState:
        """State before the first round."""
        return FuseState(seed)

    def step(self, state: FuseState) -> Work[FuseState]:
        """Run one round: train the candidates together, and keep the winner."""
        streams = Streams(state.seed).child("round", state.number)
        new = yield from self._draw_candidates(state, streams)
        incumbent = [Genotype.parse(text) for text, *_ in state.winners[-1:]]
        if not new:
            state.ended = "every architecture of the space took part" if incumbent else "the space has nothing to draw"
            return state
        entrants = [*incumbent, *new]
        result = yield from self._run_round(entrants, streams, state.number)
        state.number += 1
        if incumbent and result.winner == 0:
            state.streak += 1
            state.winners.pop()
        else:
            state.streak = 0
        facts: dict[str, float | str] = {
            "validation loss": result.losses[result.winner],
            f"validation {self.task.form.metric}": result.metrics[result.winner],
            **result.facts,
        }
        state.winners.append([str(entrants[result.winner]), result.scores[result.winner], facts])
        if state.streak == self.patience:
            state.ended = f"the incumbent won {self.patience} rounds in a row"
        return state

    def best(self, state: FuseState) -> ScoredGenotype | None:
        """The incumbent with its score and facts of the last round."""
        return next(iter(self.top(state, 1)), None)

    def top(self, state: FuseState, count: int) -> list[ScoredGenotype]:
        """The incumbent, then earlier incumbents, latest first."""
        latest = state.winners[::-1][:count]
        return [ScoredGenotype(Genotype.parse(text), score, dict(facts)) for text, score, facts in latest]

    def ended(self, state: FuseState) -> str:
        """Reason if the search has converged or no candidate is left."""
        return state.ended

    def evaluations(self, state: FuseState) -> int:
        """Number of architectures that took part."""
        return len(state.seen)

    def capture(self, state: FuseState) -> State:
        """Facts only: every round starts from new weights."""
        return State({}, asdict(state))

    def restore(self, saved: State) -> FuseState:
        """The inverse of `capture`."""
        state = saved.read(FuseState)
        typed(list[tuple[str, float, dict[str, float | str]]], state.winners, saved.origin)
        return state

    def figures(self, state: FuseState) -> dict[str, float]:
        """Figures of the incumbent, and the number of rounds that it won in a row."""
        facts = state.winners[-1][2] if state.winners else {}
        numbers = {name: float(value) for name, value in facts.items() if not isinstance(value, str)}
        return {**numbers, "rounds won": float(state.streak)}

    @cached_property
    def split(self) -> SearchSplit:
        """Training and validation set of the search."""
        return split_for_search(self.task, self.validation)

    def _run_round(self, entrants: list[Genotype], streams: Streams, number: int) -> Work[RoundResult]:
        shape, outputs = self.task.input_shape, self.task.num_outputs
        networks = [
            build_network(genotype, self.skeleton, shape, outputs, derived_seed(streams.seed, "weights", index))
            for index, genotype in enumerate(entrants)
        ]
        return (yield from self.selection.judge(Candidates(networks), self.split, streams, f"round {number + 1}"))

    def _draw_candidates(self, state: FuseState, streams: Streams) -> Work[list[Genotype]]:
        """New candidates, given genotypes first; fewer if draws repeat."""
        new: list[Genotype] = []
        while state.num_given < len(self.first) and len(new) < self.candidates:
            genotype = self.first[state.num_given]
            state.num_given += 1
            if reason := self.space.objection(genotype):
                yield skipped_genotype(genotype, reason)
            elif self._is_new(genotype, state):
                new.append(genotype)
        rng = streams.at("candidates")
        for _ in range(DRAWS):
            if len(new) == self.candidates:
                break
            genotype = self.space.sample(rng)
            if self._is_new(genotype, state):
                new.append(genotype)
        return new

    def _is_new(self, genotype: Genotype, state: FuseState) -> bool:
        """Whether the architecture takes part for the first time; it is then marked as seen."""
        key = self.space.unique_key(genotype)
        if key in state.seen:
            return False
        state.seen.append(key)
        return True
