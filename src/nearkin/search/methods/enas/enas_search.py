"""ENAS (Pham et al. 2018): shared weights and a controller, trained in turn.

In an epoch, sampled genotypes are trained one after another on successive batches: only the path of a genotype runs,
and only its weights change. Then the controller is trained: the rewards of its samples are their scores on validation
batches, with the shared weights. At the end of an epoch, samples of the controller are measured on one fixed
validation batch, and the best is selected.

One step of the search trains one genotype, or makes one step of the controller; the last step of an epoch also selects.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from nearkin.core.errors import DataError, require
from nearkin.core.events import Work
from nearkin.core.rng import Streams, derived_seed, seeded
from nearkin.core.state import State
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.enas.enas_options import EnasOptions
from nearkin.search.methods.enas.enas_state import EnasState, capture_state, restore_state
from nearkin.search.methods.enas.reinforce import ControllerOptions, improve_controller, sample_genotypes
from nearkin.search.methods.enas.shared_training import SharedWeightSearch
from nearkin.search.searcher import ScoredGenotype
from nearkin.tasks.batches import epoch_batches, num_batches


@dataclass(frozen=True, eq=False)
class Enas(SharedWeightSearch[EnasState]):
    """Search with a controller among the paths of a network with shared weights.

    Attributes:
        options: training of the shared weights, rewards and selection.
        controller: controller and its training.
    """

    name = "enas"

    options: EnasOptions = field(default_factory=EnasOptions)
    controller: ControllerOptions = field(default_factory=ControllerOptions)

    def settings(self) -> Mapping[str, Any]:
        """Everything that determines the search."""
        return {**super().settings(), "controller": asdict(self.controller)}

    def init(self, seed: int) -> EnasState:
        """State with new weights and a new controller."""
        count, size = len(self.split.validation), self.options.batch_size
        require(
            count >= size,
            f"{self.task.name!r} has {count} validation samples, a validation batch needs {size}; add data, or set "
            f"--option batch_size={max(2, count)} or a larger validation",
            DataError,
        )
        weights = self._new_weights(seed)
        with seeded(derived_seed(seed, "controller")):
            controller = self.controller.controller(self.space)
        controller_optimiser = torch.optim.Adam(controller.parameters(), self.controller.controller_rate)
        return EnasState(seed, *weights, controller, controller_optimiser)

    def step(self, state: EnasState) -> Work[EnasState]:
        """Train one genotype, or make one step of the controller; select at the end of an epoch."""
        epoch, number = divmod(state.done, self.steps_per_epoch)
        if number < self.architectures_per_epoch:
            yield from self._train_architecture(state, epoch, number)
        else:
            self._train_controller(state, epoch, number - self.architectures_per_epoch)
        state.done += 1
        if state.done % self.steps_per_epoch == 0:
            self._select(state, epoch)
        return state

    def _train_architecture(self, state: EnasState, epoch: int, number: int) -> Work[None]:
        """Train a sample of the controller on its batches of the epoch."""
        rng = Streams(state.seed).at("path", epoch, number)
        (genotype,), _ = sample_genotypes(state.controller, self.space, 1, rng)
        yield from self._train_path(state, genotype, epoch, number)

    def _train_controller(self, state: EnasState, epoch: int, number: int) -> None:
        """One step of the controller on the next validation batch; in the first epoch its samples are selected from."""
        streams, measured = Streams(state.seed), list[ScoredGenotype]()
        past = epoch * self.controller.controller_steps + number
        size = self.options.batch_size
        turn, start = divmod(past, num_batches(len(self.split.validation), size))
        batch = next(epoch_batches(self.split.validation, size, streams.child("validation"), turn, start=start))

        def reward(genotypes: Sequence[Genotype]) -> list[float]:
            measured.extend(self._measure(state, genotype, batch) for genotype in genotypes)
            return [scored.score for scored in measured]

        mean, state.baseline = improve_controller(
            state.controller, state.controller_optimiser, self.space, reward, state.baseline, self.controller,
            streams.at("controller", past),
        )  # fmt: skip
        state.figures |= {"reward": mean, "baseline": state.baseline}
        if epoch == 0:
            state.selected = self._ranked(measured)

    def _select(self, state: EnasState, epoch: int) -> None:
        """Measure samples of the controller on the fixed validation batch; the shared weights have changed for all."""
        rng = Streams(state.seed).at("selection", epoch)
        samples, _ = sample_genotypes(state.controller, self.space, self.options.selection_samples, rng)
        state.selected = self._ranked([self._measure(state, genotype, self.fixed_batch) for genotype in samples])

    def best(self, state: EnasState) -> ScoredGenotype | None:
        """Best of the last selection; None before the first step of the controller."""
        return state.selected[0] if state.selected else None

    def top(self, state: EnasState, count: int) -> list[ScoredGenotype]:
        """Best of the last selection."""
        return state.selected[:count]

    def ended(self, state: EnasState) -> str:
        """That all epochs are done."""
        return "all epochs are done" if state.done >= self.options.epochs * self.steps_per_epoch else ""

    def capture(self, state: EnasState) -> State:
        """Copy weights, controller, optimisers, baseline and selection."""
        return capture_state(state)

    def restore(self, saved: State) -> EnasState:
        """The inverse of `capture`."""
        return restore_state(self.init(saved.facts["seed"]), saved)

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps of the search in an epoch."""
        return self.architectures_per_epoch + self.controller.controller_steps
