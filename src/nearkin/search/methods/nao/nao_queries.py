"""NAO with an objective that scores one genotype at a time: a table, or training from scratch.

The first genotypes are random. Then, in rounds, the model is trained on all measured genotypes, and those that gradient
ascent finds from the best ones are measured next. One step of the search measures one genotype.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from nearkin.core.errors import require
from nearkin.core.events import Work
from nearkin.core.rng import Streams, derived_seed, seeded
from nearkin.core.state import State, prefixed
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.enas.decisions import decision_sequence
from nearkin.search.methods.nao.ascent import propose_genotypes
from nearkin.search.methods.nao.model_training import ModelOptions, train_model
from nearkin.search.methods.nao.nao_state import NaoTrials, capture_model, genotypes_of, restore_model, texts
from nearkin.search.methods.sampling import DRAWN, Proposer, Sampling, Trials, best_indices
from nearkin.search.objective import Objective
from nearkin.search.searcher import ScoredGenotype, Searcher
from nearkin.search.spaces.base import Space

TRIAL_MODEL = ModelOptions(model_steps=40, ascent_starts=30, ascent_steps=15, ascent_rate=0.5)
"""Model for short rounds. Shorter steps of the ascent find few new cells in small spaces; the rest would be drawn."""

PREDICTED = "predicted"
"""Origin of a genotype: gradient ascent found it, or it was drawn because the ascent found too few."""


@dataclass(frozen=True)
class _Queue(Proposer):
    """Take the next genotype of a queue, or draw one if it is empty."""

    queue: list[Genotype]
    name: str = "nao"

    def propose(self, trials: Trials, space: Space) -> tuple[Genotype, str]:
        return (self.queue.pop(0), PREDICTED) if self.queue else (space.sample(trials.streams["draw"]), DRAWN)


@dataclass(frozen=True, eq=False)
class NaoQueries(Searcher[NaoTrials]):
    """Search with gradient ascent in an embedding, with an objective.

    Attributes:
        space: space of cells with one number of nodes, or of recurrent cells.
        objective: score of a genotype.
        model: encoder, predictor and decoder, their training, and the ascent.
        initial: number of genotypes that are drawn before the first training of the model.
        proposals: number of genotypes that are measured in a round.
        first: genotypes to measure first, best first.
    """

    name = "nao"

    space: Space
    objective: Objective
    model: ModelOptions = TRIAL_MODEL
    initial: int = 10
    proposals: int = 5
    first: tuple[Genotype, ...] = ()

    def __post_init__(self) -> None:
        decision_sequence(self.space)  # raises for a space without nodes
        self._sampling([])  # raises if a genotype of `first` is not in the space
        for name in ("initial", "proposals"):
            require(getattr(self, name) >= 1, f"{name} must be 1 or more, got {getattr(self, name)}")

    def settings(self) -> Mapping[str, Any]:
        """Everything that determines the search."""
        own = {"model": asdict(self.model), "initial": self.initial, "proposals": self.proposals}
        return {**self._sampling([]).settings(), "way": own}

    def init(self, seed: int) -> NaoTrials:
        """State without any measurement, with a new model."""
        with seeded(derived_seed(seed, "model")):
            model, optimiser = self.model.model(self.space)
        return NaoTrials(self._sampling([]).init(seed), model, optimiser)

    def step(self, state: NaoTrials) -> Work[NaoTrials]:
        """Measure one new genotype; at the start of a round, train the model and propose the genotypes of the round."""
        if not state.queue and len(state.trials.records) >= self.initial:
            state.queue = self._proposed(state)
        state.trials = yield from self._sampling(state.queue).step(state.trials)
        return state

    def _proposed(self, state: NaoTrials) -> list[Genotype]:
        records, streams = state.trials.records, Streams(state.trials.streams.seed)
        ordered = [records[index].genotype for index in best_indices(records, len(records))]
        train_model(
            state.model, state.model_optimiser, [record.genotype for record in records],
            [record.score for record in records], self.model, streams.at("model", len(records)),
        )  # fmt: skip
        return propose_genotypes(
            state.model, self.space, ordered, state.trials.index_of, self.proposals, self.model,
            streams.at("proposals", len(records)),
        )  # fmt: skip

    def best(self, state: NaoTrials) -> ScoredGenotype | None:
        """Genotype of the highest score, the earliest of equals."""
        return self._sampling([]).best(state.trials)

    def top(self, state: NaoTrials, count: int) -> list[ScoredGenotype]:
        """Genotypes of the highest scores."""
        return self._sampling([]).top(state.trials, count)

    def ended(self, state: NaoTrials) -> str:
        """Reason if no new genotype was proposed."""
        return state.trials.ended

    def evaluations(self, state: NaoTrials) -> int:
        """Number of measured architectures."""
        return len(state.trials.records)

    def capture(self, state: NaoTrials) -> State:
        """Copy trials, model, optimiser and queue."""
        inner = self._sampling([]).capture(state.trials)
        facts = {"trials": dict(inner.facts), "queue": texts(state.queue)}
        return State({**prefixed("trials", inner.tensors), **capture_model(state)}, facts)

    def restore(self, saved: State) -> NaoTrials:
        """The inverse of `capture`."""
        inner = State(saved.section("trials"), saved.facts["trials"], saved.origin)
        trials = self._sampling([]).restore(inner)
        state = self.init(trials.streams.seed)
        state.trials, state.queue = trials, genotypes_of(saved.facts["queue"])
        restore_model(state, saved)
        return state

    def _sampling(self, queue: list[Genotype]) -> Sampling:
        return Sampling(self.space, self.objective, _Queue(queue), self.first)
