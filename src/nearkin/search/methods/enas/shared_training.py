"""Base of searches with shared weights: training of one path, scores of paths, and their data.

One genotype is trained on successive batches: only its path runs, and only its weights change. The score of a genotype
with the shared weights is accuracy, R² (at least -1), or c / perplexity for text. All random numbers depend on the seed
and on numbers of steps, so a state needs no generators.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

from nearkin.core.errors import TrainingError, require
from nearkin.core.events import Progress, Work
from nearkin.core.rng import Streams, derived_seed, seeded
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.enas.decisions import decision_sequence
from nearkin.search.methods.enas.shared_options import SharedOptions
from nearkin.search.methods.enas.shared_state import S
from nearkin.search.methods.enas.shared_weights import drop_paths, shared_network
from nearkin.search.methods.fuse.candidates import SearchSplit, split_for_search
from nearkin.search.methods.path_evaluation import SHARED_LOSS, evaluate_path, path_of
from nearkin.search.methods.sampling import space_signature
from nearkin.search.plasticity.forgetting_control import ForgettingControl
from nearkin.search.plasticity.telemetry import Forgetting
from nearkin.search.searcher import ScoredGenotype, Searcher
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.limited import without_limits
from nearkin.search.supernet.reference import Frame
from nearkin.search.supernet.supernet_layout import SupernetLayout
from nearkin.tasks.batches import epoch_batches, num_batches
from nearkin.tasks.examples import Batch
from nearkin.tasks.task import Task

LEAST_REWARD = -1.0
"""R² of a network that does not learn has no lower limit; one such reward would dominate the others."""


@dataclass(frozen=True, eq=False)
class SharedWeightSearch(Searcher[S]):
    """Search among the paths of a network with shared weights.

    Attributes:
        space: space of cells, or of recurrent cells for text; its limits are respected.
        task: task with images or text; its test set is not used.
        frame: macro-architecture of the network; its channels are the size of a recurrent state.
        options: training of the shared weights and scores.
    """

    space: Space
    task: Task
    frame: Frame = field(default_factory=Frame)
    options: SharedOptions = field(default_factory=SharedOptions)

    def __post_init__(self) -> None:
        self._check_space()

    def _check_space(self) -> None:
        """Raise if the genotypes of the space cannot be made by a sequence of decisions."""
        decision_sequence(self.space)

    def settings(self) -> Mapping[str, Any]:
        """Everything that determines the training of the shared weights."""
        return {
            "space": space_signature(self.space),
            "task": [self.task.name, self.task.fingerprint()],
            "frame": asdict(self.frame),
            "options": asdict(self.options),
        }

    def _new_weights(self, seed: int) -> tuple[nn.Module, torch.optim.Optimizer, ForgettingControl]:
        """Network with new shared weights, their optimiser, and the control of forgetting."""
        options = self.options
        with seeded(derived_seed(seed, "weights")):
            net = shared_network(self.space, self.task, self.frame, options.output_dropout)
        optimiser = torch.optim.SGD(net.parameters(), 1.0, momentum=options.momentum, weight_decay=options.weight_decay)
        anchors = derived_seed(seed, "anchors")
        control = ForgettingControl(net, options.forgetting, self.task.likelihood, options.epochs, anchors)
        return net, optimiser, control

    def _train_path(self, state: S, genotype: Genotype, epoch: int, number: int) -> Work[None]:
        """Train a genotype on its batches of an epoch, in which it is the one with this number."""
        options, streams, path = self.options, Streams(state.seed), self.path(genotype)
        start, total = number * options.batches_per_architecture, options.epochs * self.batches_per_epoch
        batches = epoch_batches(self.split.train, options.batch_size, streams.child("training"), epoch, start=start)
        _set_mode(state.net, training=True)
        for batch, (x, y) in enumerate(itertools.islice(batches, options.batches_per_architecture), start):
            done = epoch * self.batches_per_epoch + batch
            part: Any = path
            if options.path_dropout > 0:
                part = drop_paths(path, options.path_dropout * done / total, streams.at("drop", done))
            rate = options.rate(self.kind, done / total)
            for group in state.weight_optimiser.param_groups:
                group["lr"] = rate
            state.weight_optimiser.zero_grad()  # None, not zeros: weights outside the path do not change
            with seeded(derived_seed(state.seed, "dropout", done)):
                loss = self.task.form.loss(state.net(x, part), y)
            loss.backward()
            nn.utils.clip_grad_norm_(state.net.parameters(), options.clip)
            state.weight_optimiser.step()
            state.control.after_step(rate, len(y))
            yield Progress("shared weights", done + 1, total)
        state.figures["loss"] = float(loss.detach())
        require(
            math.isfinite(state.figures["loss"]),
            f"the training of the shared weights diverged at learning rate {rate:.2g}; lower learning_rate",
            TrainingError,
        )
        yield from self._watch(state, genotype, epoch, number)

    def _watch(self, state: S, genotype: Genotype, epoch: int, number: int) -> Work[None]:
        """Errors of the genotypes of an epoch right after training and at the end, and anchors of plasticity.

        Recurrent cells can have huge losses with the weights of others, so a loss counts at most as a uniform guess.
        """

        def error(watched: Genotype) -> float:
            _set_mode(state.net, training=False)
            value = evaluate_path(state.net, self.path(watched), [self.fixed_batch], self.task.form)
            if self.kind != "text":
                return 1 - max(LEAST_REWARD, value.score)
            return min(float(value.facts[SHARED_LOSS]), math.log(self.task.num_outputs))  # at most a uniform guess

        watched = error if state.control.watches(number, self.architectures_per_epoch) else None
        yield from state.control.after_training(genotype, self.path(genotype), self.fixed_batch, watched)
        if number == self.architectures_per_epoch - 1:
            yield from state.control.end_epoch(epoch, error)

    def score(self, state: S, genotype: Genotype, batches: Iterable[Batch]) -> ScoredGenotype:
        """Score of a genotype with the shared weights: accuracy, R² or scaled inverse perplexity."""
        _set_mode(state.net, training=False)
        value = evaluate_path(state.net, self.path(genotype), batches, self.task.form)
        if self.kind != "text":
            score = value.score if math.isfinite(value.score) else LEAST_REWARD
            return ScoredGenotype(genotype, max(LEAST_REWARD, score), value.facts)
        inverse = math.exp(-float(value.facts[SHARED_LOSS]))
        perplexity = 1 / inverse if inverse > 0 else math.inf
        reward = self.options.reward_scale * inverse
        return ScoredGenotype(genotype, reward if reward == reward else 0.0, {**value.facts, "perplexity": perplexity})

    def _measure(self, state: S, genotype: Genotype, batch: Batch) -> ScoredGenotype:
        """Score of a genotype on one batch, counted as an evaluation."""
        state.evaluations += 1
        return self.score(state, genotype, [batch])

    def path(self, genotype: Genotype) -> Any:
        """Path of a genotype in the network."""
        return genotype if self.kind == "text" else path_of(genotype, self.layout)

    def _ranked(self, measured: Sequence[ScoredGenotype]) -> list[ScoredGenotype]:
        """Different architectures, best first."""
        unique = {self.space.unique_key(scored.genotype): scored for scored in measured}
        return sorted(unique.values(), key=lambda scored: -scored.score)

    def evaluations(self, state: S) -> int:
        """Number of measured genotypes."""
        return state.evaluations

    def figures(self, state: S) -> Mapping[str, float]:
        """Last training loss and other figures of the search."""
        return dict(state.figures)

    def forgetting(self, state: S) -> Sequence[Forgetting]:
        """Forgetting of every epoch."""
        return state.control.log.epochs

    @cached_property
    def whole_space(self) -> Space:
        """The space without limits on its genotypes."""
        return without_limits(self.space)

    @cached_property
    def layout(self) -> SupernetLayout:
        """Layout of the supernet of a space of cells."""
        return SupernetLayout.of(self.space)

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
        """Validation batch on which genotypes are compared: the same for every seed and epoch."""
        return next(epoch_batches(self.split.validation, self.options.selection_batch, Streams(0), 0))

    @cached_property
    def batches_per_epoch(self) -> int:
        """Number of training batches in an epoch."""
        return num_batches(len(self.split.train), self.options.batch_size)

    @property
    def architectures_per_epoch(self) -> int:
        """Number of genotypes that are trained in an epoch."""
        return math.ceil(self.batches_per_epoch / self.options.batches_per_architecture)


def _set_mode(net: nn.Module, *, training: bool) -> None:
    """Training or evaluation mode; a network of thousands of modules is only visited if the mode changes."""
    if net.training != training:
        net.train(training)
