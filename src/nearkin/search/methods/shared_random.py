"""Random search with weight sharing (Li and Talwalkar 2019): shared weights, trained along random paths.

First the shared weights are trained: successive batches use the paths of new random genotypes. Then random genotypes
are measured on validation data with these weights, without any training of their own.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from nearkin.core.events import Work
from nearkin.core.rng import Streams, derived_seed
from nearkin.core.state import State, copied, prefixed
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.enas.shared_state import capture_shared, restore_shared
from nearkin.search.methods.enas.shared_training import SharedWeightSearch
from nearkin.search.methods.random_search import RandomDraws
from nearkin.search.methods.sampling import Sampling, Trials
from nearkin.search.objective import Objective, ObjectiveValue
from nearkin.search.plasticity.forgetting_control import ForgettingControl
from nearkin.search.searcher import ScoredGenotype
from nearkin.tasks.batches import ordered_batches

_VALIDATION_BATCH = 512


@dataclass
class SharedRandomState:
    """State of the search: shared weights, their optimiser, the number of steps, and the trials."""

    seed: int
    net: nn.Module
    weight_optimiser: torch.optim.Optimizer
    control: ForgettingControl
    trials: Trials
    done: int = 0
    evaluations: int = 0
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class SharedRandom(SharedWeightSearch[SharedRandomState]):
    """Random search among the paths of a network with shared weights."""

    name = "random-shared"

    def _check_space(self) -> None:
        """Raise if cells of different sizes cannot share weights; there are no decisions to make in sequence."""
        for number in (0, self.whole_space.size() - 1):
            self.path(self.whole_space.at(number))

    def init(self, seed: int) -> SharedRandomState:
        """State with new weights."""
        return SharedRandomState(seed, *self._new_weights(seed), Trials(Streams(derived_seed(seed, "trials"))))

    def step(self, state: SharedRandomState) -> Work[SharedRandomState]:
        """Train a random genotype; after all epochs, measure one."""
        epoch, number = divmod(state.done, self.architectures_per_epoch)
        if epoch < self.options.epochs:
            genotype = self.space.sample(Streams(state.seed).at("path", epoch, number))
            yield from self._train_path(state, genotype, epoch, number)
        else:
            state.trials = yield from self._sampling(state).step(state.trials)
            state.evaluations = len(state.trials.records)
        state.done += 1
        return state

    def best(self, state: SharedRandomState) -> ScoredGenotype | None:
        """Genotype of the highest validation score with shared weights; None while the weights are trained."""
        return self._sampling(state).best(state.trials)

    def top(self, state: SharedRandomState, count: int) -> list[ScoredGenotype]:
        """Genotypes of the highest validation scores."""
        return self._sampling(state).top(state.trials, count)

    def ended(self, state: SharedRandomState) -> str:
        """Reason if no new genotype was drawn."""
        return state.trials.ended

    def capture(self, state: SharedRandomState) -> State:
        """Copy weights, momenta and trials."""
        shared, trials = capture_shared(state), self._sampling(state).capture(state.trials)
        tensors = {**shared.tensors, **prefixed("trials", copied(dict(trials.tensors)))}
        return State(tensors, {**shared.facts, "trials": dict(trials.facts)})

    def restore(self, saved: State) -> SharedRandomState:
        """The inverse of `capture`."""
        state = restore_shared(self.init(saved.facts["seed"]), saved)
        state.trials = self._sampling(state).restore(State(saved.section("trials"), saved.facts["trials"]))
        return state

    def _sampling(self, state: SharedRandomState) -> Sampling:
        return Sampling(self.space, PathObjective(self, state), RandomDraws())


@dataclass(frozen=True, eq=False)
class PathObjective(Objective):
    """Score of a path on the validation set with the shared weights, which stay unchanged.

    Batch norms use the statistics of the batch, because running ones would mix all paths.
    """

    search: SharedRandom
    state: SharedRandomState

    def evaluate(self, genotype: Genotype) -> ObjectiveValue:
        """Score and loss of the path of a genotype."""
        batches = ordered_batches(self.search.split.validation, _VALIDATION_BATCH)
        scored = self.search.score(self.state, genotype, batches)
        return ObjectiveValue(scored.score, scored.facts)

    def measure(self, genotype: Genotype) -> Work[ObjectiveValue]:
        """The result of `evaluate`, without events."""
        yield from ()
        return self.evaluate(genotype)

    def settings(self) -> dict[str, Any]:
        """No settings; those of the search determine the weights."""
        return {}
