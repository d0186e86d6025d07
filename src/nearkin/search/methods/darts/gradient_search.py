r"""DARTS and PC-DARTS: train one supernet, and the weights of its operations on other data.

SGD steps of the weights $w$ on one part of the training set alternate with Adam steps of the architecture weights α and
β on the other part. In the end every edge keeps its strongest operation. PC-DARTS uses a fraction of the channels in
the operations, has weights of edges (β), and trains only $w$ in the first epochs.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

import torch
from torch import Tensor

from nearkin.core.errors import TrainingError, require
from nearkin.core.events import Note, Work
from nearkin.core.rng import Streams
from nearkin.core.state import State
from nearkin.nets.training import ScopedRng
from nearkin.search.methods.darts.architecture_step import loss_and_gradient, second_order
from nearkin.search.methods.darts.gradient_options import PARTIAL, GradientOptions
from nearkin.search.methods.darts.gradient_state import (
    ArchitectureState,
    GradientSearchState,
    capture_state,
    restore_state,
)
from nearkin.search.methods.darts.guards import dominant_eigenvalue, entropy
from nearkin.search.methods.darts.supernet_learner import (
    SupernetLearner,
    architecture_optimiser,
    drift,
    stateless_loss,
)
from nearkin.search.plasticity.telemetry import Forgetting
from nearkin.search.searcher import ScoredGenotype, Searcher
from nearkin.search.spaces.base import Space
from nearkin.search.supernet.choice import choose_genotype, edge_weights, mean_share, num_skips, strongest_genotype
from nearkin.search.supernet.choice_layout import ChoiceLayout
from nearkin.search.supernet.supernets import layout_of
from nearkin.tasks.examples import Batch
from nearkin.tasks.task import Task


class GradientSearch(Searcher[GradientSearchState]):
    """Search by gradients in a supernet: the common part of DARTS and PC-DARTS.

    Args:
        task: images with classes or values to predict.
        space: space of cells or chains; its limits are respected.
        options: options of the search (default: those of the method).
        device: device of the computation (default: CPU).
    """

    defaults: ClassVar[GradientOptions]

    def __init__(
        self, task: Task, space: Space, options: GradientOptions | None = None, *, device: torch.device | None = None
    ) -> None:
        self.task, self.space, self.options = task, space, options or self.defaults
        self.layout = layout_of(space)
        self.learner = SupernetLearner(task, self.layout, self.options, device=device)
        self._settings = {"task": task.name, "data": task.fingerprint(), "space": space.name, **asdict(self.options)}

    def settings(self) -> Mapping[str, Any]:
        """Fingerprint of the task, name of the space, and all options."""
        return self._settings

    def init(self, seed: int) -> GradientSearchState:
        """State with a new supernet whose operations have almost equal weights."""
        learner = self.learner.init(seed)
        architecture = initial_architecture(self.layout, self.options, learner.streams, self.learner.device)
        return GradientSearchState(
            **vars(learner), architecture=architecture,
            architecture_optimiser=architecture_optimiser(architecture, self.options),
        )  # fmt: skip

    def step(self, state: GradientSearchState) -> Work[GradientSearchState]:
        """One step of the architecture, unless in the warm-up, and one step of the weights."""
        learner, streams = self.learner, state.streams
        per_epoch = learner.steps_per_epoch(streams)
        rate = self.options.rate(state.done, self.options.epochs * per_epoch)
        batch = learner.training_batch(streams, state.done)
        state.dice.enter()
        try:
            if state.done >= self.options.warmup * per_epoch:
                other = learner.validation_batch(streams, state.done)
                state.figures["validation loss"] = self._architecture_step(state, batch, other, rate)
            state.figures["training loss"] = learner.weight_step(state, state.architecture, batch, rate)
        finally:
            state.dice.leave()
        state.done += 1
        require_finite(state.figures, state.done, self.options)
        yield from learner.watch(state, state.architecture, state.done, per_epoch)
        if state.done % per_epoch == 0 and state.done > self.options.warmup * per_epoch:
            loss = stateless_loss(state, self.task.form, learner.watched_batch(streams))
            fixed = {name: value.detach() for name, value in state.weights.items()}
            yield from check_guards(state, self.options, lambda free: loss(fixed, free), streams, state.dice,
                                    self.layout)  # fmt: skip
        return state

    def _architecture_step(self, state: GradientSearchState, batch: Batch, other: Batch, rate: float) -> float:
        """Step of the architecture; returns the validation loss before it."""
        weights, validation = state.weights, stateless_loss(state, self.task.form, other)
        if self.options.order == 1:
            loss, slopes = loss_and_gradient(validation, weights, state.architecture)
        else:
            training = stateless_loss(state, self.task.form, batch)
            loss, slopes = second_order(training, validation, weights, state.architecture, rate, drift=drift(state),
                                        exact=self.options.exact)  # fmt: skip
        take_architecture_step(state, slopes)
        return loss

    def best(self, state: GradientSearchState) -> ScoredGenotype | None:
        """Genotype of the largest architecture weights; the score is the mean weight of its operations."""
        return strongest(self.space, self.layout, state, self.options, state.figures)

    def ended(self, state: GradientSearchState) -> str:
        """Reason of a guard, or that all epochs are done."""
        per_epoch = self.learner.steps_per_epoch(state.streams)
        return state.ended or ("all epochs are done" if state.done >= self.options.epochs * per_epoch else "")

    def evaluations(self, state: GradientSearchState) -> int:
        """Always 0: no genotype is measured separately."""
        return 0

    def capture(self, state: GradientSearchState) -> State:
        """Copy weights, statistics, architecture, optimisers and monitored quantities."""
        return capture_state(state)

    def restore(self, saved: State) -> GradientSearchState:
        """The inverse of `capture`."""
        return restore_state(self.init(saved.facts["seed"]), saved)

    def forgetting(self, state: GradientSearchState) -> Sequence[Forgetting]:
        """Forgetting of every epoch."""
        return state.control.log.epochs

    def figures(self, state: GradientSearchState) -> Mapping[str, float]:
        """Entropy of α as a fraction of its maximum, and losses."""
        return {"entropy": entropy(state.architecture, self.layout), **state.figures}


class Darts(GradientSearch):
    """Differentiable architecture search (Liu et al. 2019) with all channels and without weights of edges.

    >>> from nearkin.core.budget import Budget
    >>> from nearkin.search.spaces.general import GeneralSpace
    >>> from nearkin.search.supernet.reference import Frame
    >>> from nearkin.search.searcher import run_search
    >>> x, y = torch.randn(24, 1, 6, 6), torch.arange(24) % 2
    >>> options = GradientOptions(frame=Frame(channels=4, num_cells=1), epochs=1, batch_size=6)
    >>> searcher = Darts(Task.from_arrays("toy", x, y, x, y), GeneralSpace((3,), ("zero", "conv3")), options)
    >>> run_search(searcher, Budget()).reason
    'all epochs are done'
    """

    name = "darts"
    defaults = GradientOptions()


class PCDarts(GradientSearch):
    """DARTS with partial channels (Xu et al. 2020): a fraction of the channels, weights of edges, a warm-up."""

    name = "pcdarts"
    defaults = PARTIAL


def initial_architecture(
    layout: ChoiceLayout, options: GradientOptions, streams: Streams, device: torch.device
) -> dict[str, Tensor]:
    """Architecture weights that give all operations almost equal weights."""
    initial = layout.initial(streams.at("architecture"), edges=options.edges)
    return {name: value.to(device).requires_grad_() for name, value in initial.items()}


def take_architecture_step(state: ArchitectureState, slopes: Mapping[str, Tensor]) -> None:
    """Step of Adam on the architecture weights along a gradient."""
    for name, value in state.architecture.items():
        value.grad = slopes[name]
    state.architecture_optimiser.step()


def require_finite(figures: Mapping[str, float], step: int, options: GradientOptions) -> None:
    """Raise if a loss is NaN or infinite."""
    for name, value in figures.items():
        require(
            math.isfinite(value),
            f"the {name} is {value} at step {step}; lower the learning rate ({options.learning_rate:g}) or set clip",
            TrainingError,
        )


def check_guards(
    state: ArchitectureState,
    options: GradientOptions,
    loss: Callable[[dict[str, Tensor]], Tensor],
    streams: Streams,
    dice: ScopedRng,
    layout: ChoiceLayout | None = None,
) -> Work[None]:
    """Update the monitored quantities at the end of an epoch and stop the search if a guard says so.

    Args:
        state: state of the architecture.
        options: options of the search.
        loss: validation loss as a function of the architecture weights.
        streams: random generators.
        dice: torch's global generator, for operations that draw from it.
        layout: which operations each row of the architecture weights may have (default: all).
    """
    guards, epoch = options.guards, len(state.entropies)
    state.entropies.append(entropy(state.architecture, layout))
    if guards.growth is not None:
        rng = streams.at("eigenvalue", epoch)
        dice.enter()
        try:
            value = dominant_eigenvalue(loss, state.architecture, rng, guards.products)
        finally:
            dice.leave()
        state.eigenvalues.append(value)
        now = {name: weights.detach().cpu().clone() for name, weights in state.architecture.items()}
        state.past = [*state.past[-guards.window :], now]
    state.ended = guards.settled(state.entropies)
    if reason := guards.grown(state.eigenvalues):
        before = state.past[0]
        with torch.no_grad():
            for name, weights in state.architecture.items():
                weights.copy_(before[name])
        state.ended = f"{reason}; the architecture weights of that epoch are used"
    if state.ended:
        yield Note(f"stopped: {state.ended}")


def strongest(
    space: Space, layout: ChoiceLayout, state: ArchitectureState, options: GradientOptions,
    figures: Mapping[str, float],
) -> ScoredGenotype | None:  # fmt: skip
    """Genotype of the largest architecture weights with the mean weight of its operations; None before a step."""
    if state.done == 0:
        return None
    weights = edge_weights(layout, state.architecture)
    genotype = choose_genotype(space, layout, weights, options.guards.max_skips)
    facts: dict[str, float | str] = {
        "entropy": entropy(state.architecture, layout),
        "skips": num_skips(genotype),
        "skips before the limit": num_skips(strongest_genotype(layout, weights)),
        **figures,
        **({"eigenvalue": state.eigenvalues[-1]} if state.eigenvalues else {}),
        **({"stopped": state.ended} if state.ended else {}),
    }
    return ScoredGenotype(genotype, mean_share(layout, weights, genotype), facts)
