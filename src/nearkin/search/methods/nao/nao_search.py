"""NAO (Luo et al. 2018) with shared weights: a pool of genotypes is trained, ranked and partly replaced, in rounds.

In a round, the genotypes of the pool are trained in turn on successive batches with shared weights. Then all of them
are measured on the same validation batch. Encoder, predictor and decoder are trained on their ranks, and the genotypes
that gradient ascent finds from the best ones replace the worst ones.

One step of the search trains one genotype; the last step of a round also ranks and replaces.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from nearkin.core.events import Work
from nearkin.core.rng import Streams, derived_seed, seeded
from nearkin.core.state import State
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.enas.shared_training import SharedWeightSearch
from nearkin.search.methods.nao.ascent import draw_genotypes, propose_genotypes
from nearkin.search.methods.nao.model_training import ModelOptions, train_model
from nearkin.search.methods.nao.nao_options import NaoOptions
from nearkin.search.methods.nao.nao_state import NaoState, capture_state, restore_state
from nearkin.search.searcher import ScoredGenotype


@dataclass(frozen=True, eq=False)
class Nao(SharedWeightSearch[NaoState]):
    """Search with gradient ascent in an embedding, among the paths of a network with shared weights.

    Attributes:
        options: training of the shared weights, and the pool.
        model: encoder, predictor and decoder, their training, and the ascent.
    """

    name = "nao"

    options: NaoOptions = field(default_factory=NaoOptions)
    model: ModelOptions = field(default_factory=ModelOptions)

    def settings(self) -> Mapping[str, Any]:
        """Everything that determines the search."""
        return {**super().settings(), "model": asdict(self.model)}

    def init(self, seed: int) -> NaoState:
        """State with new weights, a new model and a random pool."""
        weights = self._new_weights(seed)
        with seeded(derived_seed(seed, "model")):
            model, model_optimiser = self.model.model(self.space)
        pool = draw_genotypes(self.space, (), self.options.pool, Streams(seed).at("pool"))
        return NaoState(seed, *weights, model, model_optimiser, pool)

    def step(self, state: NaoState) -> Work[NaoState]:
        """Train one genotype of the pool; rank the pool and replace the worst at the end of a round."""
        epoch, number = divmod(state.done, self.architectures_per_epoch)
        yield from self._train_path(state, self._member(state), epoch, number)
        state.done += 1
        ends = state.done % self.steps_per_round == 0
        if ends or self.ended(state):
            self._rank(state)
        if ends and not self.ended(state):
            self._replace(state)
        return state

    def _member(self, state: NaoState) -> Genotype:
        """Next genotype to train: the pool in random order, again and again, so that all get as many batches."""
        round_number, position = divmod(state.done, self.steps_per_round)
        turn, index = divmod(position, len(state.pool))
        order = torch.randperm(len(state.pool), generator=Streams(state.seed).at("order", round_number, turn))
        return state.pool[int(order[index])]

    def _rank(self, state: NaoState) -> None:
        """Measure the whole pool on the fixed validation batch; the shared weights have changed for all."""
        state.ranked = self._ranked([self._measure(state, genotype, self.fixed_batch) for genotype in state.pool])
        state.figures["score"] = sum(scored.score for scored in state.ranked) / len(state.ranked)

    def _replace(self, state: NaoState) -> None:
        """Train the model on the ranked pool, and replace its worst genotypes."""
        genotypes = [scored.genotype for scored in state.ranked]
        scores = [scored.score for scored in state.ranked]
        streams = Streams(state.seed)
        rng = streams.at("model", state.done)
        loss = train_model(state.model, state.model_optimiser, genotypes, scores, self.model, rng)
        known = set(map(self.space.unique_key, genotypes))
        new = propose_genotypes(
            state.model, self.space, genotypes, known, self.options.replaced, self.model,
            streams.at("proposals", state.done),
        )  # fmt: skip
        state.pool = [*genotypes[: max(1, len(genotypes) - len(new))], *new]
        state.figures |= {"predictor loss": loss.prediction, "decoder loss": loss.reconstruction}

    def best(self, state: NaoState) -> ScoredGenotype | None:
        """Best of the last round; None before the end of the first."""
        return state.ranked[0] if state.ranked else None

    def top(self, state: NaoState, count: int) -> list[ScoredGenotype]:
        """Best of the last round."""
        return state.ranked[:count]

    def ended(self, state: NaoState) -> str:
        """That all epochs are done."""
        return "all epochs are done" if state.done >= self.options.epochs * self.architectures_per_epoch else ""

    def capture(self, state: NaoState) -> State:
        """Copy weights, model, optimisers and pool."""
        return capture_state(state)

    def restore(self, saved: State) -> NaoState:
        """The inverse of `capture`."""
        return restore_state(self.init(saved.facts["seed"]), saved)

    @property
    def steps_per_round(self) -> int:
        """Number of steps of the search in a round."""
        return self.architectures_per_epoch * self.options.round_epochs
