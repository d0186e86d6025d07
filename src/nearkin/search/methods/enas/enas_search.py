"""ENAS (Pham et al. 2018): shared weights and a controller, trained in turn.

In an epoch, sampled genotypes are trained one after another on successive batches: only the path of a genotype runs,
and only its weights change. Then the controller is trained: the rewards of its samples are their scores on validation
batches, with the shared weights. At the end of an epoch, samples of the controller are measured on one fixed
validation batch, and the best is selected. The reward is accuracy, R² (at least -1), or c / perplexity for text.

One step of the search trains one genotype, or makes one step of the controller; the last step of an epoch also selects.
All random numbers depend on the seed and on numbers of steps, so the state needs no generators.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

from nearkin.core.errors import DataError, TrainingError, require
from nearkin.core.events import Progress, Work
from nearkin.core.rng import Streams, derived_seed, seeded
from nearkin.core.state import State
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.enas.decisions import decision_sequence
from nearkin.search.methods.enas.enas_options import EnasOptions
from nearkin.search.methods.enas.enas_state import EnasState, capture_state, restore_state
from nearkin.search.methods.enas.reinforce import ControllerOptions, improve_controller, sample_genotypes
from nearkin.search.methods.enas.shared_weights import drop_paths, shared_network
from nearkin.search.methods.fuse.candidates import SearchSplit, split_for_search
from nearkin.search.methods.sampling import space_signature
from nearkin.search.methods.shared_random import SHARED_LOSS, evaluate_path
from nearkin.search.searcher import ScoredGenotype, Searcher
from nearkin.search.spaces.base import Space
from nearkin.search.supernet.reference import Frame
from nearkin.tasks.batches import epoch_batches, num_batches
from nearkin.tasks.examples import Batch
from nearkin.tasks.task import Task

LEAST_REWARD = -1.0
"""R² of a network that does not learn has no lower limit; one such reward would dominate the baseline."""


@dataclass(frozen=True, eq=False)
class Enas(Searcher[EnasState]):
    """Search with a controller among the paths of a network with shared weights.

    Attributes:
        space: space of cells, or of recurrent cells for text; its limits are respected.
        task: task with images or text; its test set is not used.
        frame: macro-architecture of the network; its channels are the size of a recurrent state.
        options: training of the shared weights, rewards and selection.
        controller: controller and its training.
    """

    name = "enas"

    space: Space
    task: Task
    frame: Frame = field(default_factory=Frame)
    options: EnasOptions = field(default_factory=EnasOptions)
    controller: ControllerOptions = field(default_factory=ControllerOptions)

    def __post_init__(self) -> None:
        decision_sequence(self.space)  # raises for a space without nodes

    def settings(self) -> Mapping[str, Any]:
        """Everything that determines the search."""
        return {
            "space": space_signature(self.space),
            "task": [self.task.name, self.task.fingerprint()],
            "frame": asdict(self.frame),
            "options": asdict(self.options),
            "controller": asdict(self.controller),
        }

    def init(self, seed: int) -> EnasState:
        """State with new weights and a new controller."""
        count, size = len(self.split.validation), self.options.batch_size
        require(
            count >= size,
            f"{self.task.name!r} has {count} validation samples, a validation batch needs {size}; add data, or set "
            f"--option batch_size={max(2, count)} or a larger validation",
            DataError,
        )
        with seeded(derived_seed(seed, "weights")):
            net = shared_network(self.space, self.task, self.frame, self.options.output_dropout)
        with seeded(derived_seed(seed, "controller")):
            controller = self.controller.controller(self.space)
        weight_optimiser = torch.optim.SGD(
            net.parameters(), 1.0, momentum=self.options.momentum, weight_decay=self.options.weight_decay
        )
        controller_optimiser = torch.optim.Adam(controller.parameters(), self.controller.controller_rate)
        return EnasState(seed, net, weight_optimiser, controller, controller_optimiser)

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
        """Train a sample of the controller on its batches of the epoch.

        A penalty on the shared weights acts here: in each step after `weight_optimiser.step()`, with the learning rate
        of the step, and at the end, when the weights of the genotype are the optimum to return to. The error of the
        genotype right after its training is that at the end of this method.
        """
        options, streams = self.options, Streams(state.seed)
        (genotype,), _ = sample_genotypes(state.controller, self.space, 1, streams.at("path", epoch, number))
        start, total = number * options.batches_per_architecture, options.epochs * self.batches_per_epoch
        batches = epoch_batches(self.split.train, options.batch_size, streams.child("training"), epoch, start=start)
        state.net.train()
        for batch, (x, y) in enumerate(itertools.islice(batches, options.batches_per_architecture), start):
            done = epoch * self.batches_per_epoch + batch
            path: Any = genotype
            if options.path_dropout > 0:
                path = drop_paths(genotype, options.path_dropout * done / total, streams.at("drop", done))
            for group in state.weight_optimiser.param_groups:
                group["lr"] = options.rate(self.kind, done / total)
            state.weight_optimiser.zero_grad()  # None, not zeros: weights outside the path do not change
            with seeded(derived_seed(state.seed, "dropout", done)):
                loss = self.task.form.loss(state.net(x, path), y)
            loss.backward()
            nn.utils.clip_grad_norm_(state.net.parameters(), options.clip)
            state.weight_optimiser.step()
            yield Progress("shared weights", done + 1, total)
        state.figures["loss"] = float(loss.detach())
        require(
            math.isfinite(state.figures["loss"]),
            f"the training of the shared weights diverged at learning rate {group['lr']:.2g}; lower learning_rate",
            TrainingError,
        )

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
        """Measure samples of the controller on the fixed validation batch; the shared weights have changed for all.

        The error of a genotype at the end of the epoch is that at this point.
        """
        rng = Streams(state.seed).at("selection", epoch)
        samples, _ = sample_genotypes(state.controller, self.space, self.options.selection_samples, rng)
        state.selected = self._ranked([self._measure(state, genotype, self.fixed_batch) for genotype in samples])

    def _ranked(self, measured: Sequence[ScoredGenotype]) -> list[ScoredGenotype]:
        """Different architectures, best first."""
        unique = {self.space.unique_key(scored.genotype): scored for scored in measured}
        return sorted(unique.values(), key=lambda scored: -scored.score)

    def _measure(self, state: EnasState, genotype: Genotype, batch: Batch) -> ScoredGenotype:
        """Reward of a genotype with the shared weights."""
        state.net.eval()
        state.evaluations += 1
        value = evaluate_path(state.net, genotype, [batch], self.task.form)
        if self.kind != "text":
            score = value.score if math.isfinite(value.score) else LEAST_REWARD
            return ScoredGenotype(genotype, max(LEAST_REWARD, score), value.facts)
        inverse = math.exp(-float(value.facts[SHARED_LOSS]))
        perplexity = 1 / inverse if inverse > 0 else math.inf
        reward = self.options.reward_scale * inverse
        return ScoredGenotype(genotype, reward if reward == reward else 0.0, {**value.facts, "perplexity": perplexity})

    def best(self, state: EnasState) -> ScoredGenotype | None:
        """Best of the last selection; None before the first step of the controller."""
        return state.selected[0] if state.selected else None

    def top(self, state: EnasState, count: int) -> list[ScoredGenotype]:
        """Best of the last selection."""
        return state.selected[:count]

    def ended(self, state: EnasState) -> str:
        """That all epochs are done."""
        return "all epochs are done" if state.done >= self.options.epochs * self.steps_per_epoch else ""

    def evaluations(self, state: EnasState) -> int:
        """Number of measured samples."""
        return state.evaluations

    def figures(self, state: EnasState) -> Mapping[str, float]:
        """Last training loss, mean reward and baseline."""
        return dict(state.figures)

    def capture(self, state: EnasState) -> State:
        """Copy weights, controller, optimisers, baseline and selection."""
        return capture_state(state)

    def restore(self, saved: State) -> EnasState:
        """The inverse of `capture`."""
        return restore_state(self.init(saved.facts["seed"]), saved)

    @property
    def kind(self) -> str:
        """`text` or `images`."""
        return "text" if self.task.likelihood == "language" else "images"

    @cached_property
    def split(self) -> SearchSplit:
        """Training and validation set of the search."""
        return split_for_search(self.task, self.options.validation)

    @cached_property
    def fixed_batch(self) -> Batch:
        """Validation batch on which samples are compared: the same for every seed and epoch."""
        return next(epoch_batches(self.split.validation, self.options.selection_batch, Streams(0), 0))

    @cached_property
    def batches_per_epoch(self) -> int:
        """Number of training batches in an epoch."""
        return num_batches(len(self.split.train), self.options.batch_size)

    @property
    def architectures_per_epoch(self) -> int:
        """Number of genotypes that are trained in an epoch."""
        return math.ceil(self.batches_per_epoch / self.options.batches_per_architecture)

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps of the search in an epoch."""
        return self.architectures_per_epoch + self.controller.controller_steps
