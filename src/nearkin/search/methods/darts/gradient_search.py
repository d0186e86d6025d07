r"""DARTS and PC-DARTS: train one supernet, and the weights of its operations on other data.

SGD steps of the weights $w$ on one part of the training set alternate with Adam steps of the architecture weights α and
β on the other part. In the end every edge keeps its strongest operation. PC-DARTS uses a fraction of the channels in
the operations, has weights of edges (β), and trains only $w$ in the first epochs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

import torch
from torch import nn

from nearkin.core.errors import MismatchError, TrainingError, require
from nearkin.core.events import Note, Work
from nearkin.core.rng import Streams, derived_seed, seeded
from nearkin.core.state import State
from nearkin.nets.training import ScopedRng
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.darts.architecture_step import loss_and_gradient, second_order
from nearkin.search.methods.darts.gradient_options import PARTIAL, GradientOptions
from nearkin.search.methods.darts.gradient_state import (
    GradientSearchState,
    capture_state,
    drift,
    restore_state,
    stateless_loss,
)
from nearkin.search.methods.darts.guards import dominant_eigenvalue, entropy
from nearkin.search.methods.path_evaluation import evaluate_path
from nearkin.search.plasticity.forgetting_control import ForgettingControl
from nearkin.search.plasticity.telemetry import Forgetting
from nearkin.search.searcher import ScoredGenotype, Searcher
from nearkin.search.spaces.base import Space
from nearkin.search.supernet.choice import choose_genotype, edge_weights, mean_share, num_skips, strongest_genotype
from nearkin.search.supernet.fused.supernet import Supernet
from nearkin.search.supernet.supernet_layout import SupernetLayout
from nearkin.tasks.batches import epoch_batches, num_batches
from nearkin.tasks.examples import Batch, Examples
from nearkin.tasks.split import split_index
from nearkin.tasks.task import Task

IMAGES = ("categorical", "gaussian", "heteroscedastic")


class GradientSearch(Searcher[GradientSearchState]):
    """Search by gradients in a supernet: the common part of DARTS and PC-DARTS.

    Args:
        task: images with classes or values to predict.
        space: space of cells; its limits are respected.
        options: options of the search (default: those of the method).
        device: device of the computation (default: CPU).
    """

    defaults: ClassVar[GradientOptions]

    def __init__(
        self, task: Task, space: Space, options: GradientOptions | None = None, *, device: torch.device | None = None
    ) -> None:
        require(
            len(task.input_shape) == 3 and task.likelihood in IMAGES,
            f"{task.name!r} has inputs of shape {task.input_shape} and is a {task.likelihood} task; a supernet reads "
            f"images (C, H, W) and predicts classes or values; use another method",
            MismatchError,
        )
        self.task, self.space, self.options = task, space, options or self.defaults
        self.layout, self.device = SupernetLayout.of(space), device or torch.device("cpu")
        self._settings = {"task": task.name, "data": task.fingerprint(), "space": space.name, **asdict(self.options)}
        self._splits: dict[int, list[Examples]] = {}

    def settings(self) -> Mapping[str, Any]:
        """Fingerprint of the task, name of the space, and all options."""
        return self._settings

    def init(self, seed: int) -> GradientSearchState:
        """State with a new supernet whose operations have almost equal weights."""
        options, streams = self.options, Streams(seed)
        with seeded(derived_seed(seed, "weights")):
            supernet = Supernet(self.layout, self.task.input_shape, self.task.num_outputs, options.frame)
        supernet.to(self.device)
        initial = self.layout.initial(streams.at("architecture"), edges=options.edges)
        architecture = {name: value.to(self.device).requires_grad_() for name, value in initial.items()}
        weight_optimiser = torch.optim.SGD(supernet.parameters(), options.learning_rate, momentum=options.momentum,
                                  weight_decay=options.weight_decay, fused=True)  # fmt: skip
        architecture_optimiser = torch.optim.Adam(architecture.values(), options.architecture_rate, betas=(0.5, 0.999),
                                  weight_decay=options.architecture_decay)  # fmt: skip
        dice, anchors = ScopedRng(derived_seed(seed, "operations")), derived_seed(seed, "anchors")
        control = ForgettingControl(supernet, options.forgetting, self.task.likelihood, options.epochs, anchors)
        return GradientSearchState(
            supernet.train(), architecture, weight_optimiser, architecture_optimiser, streams, dice, control
        )

    def step(self, state: GradientSearchState) -> Work[GradientSearchState]:
        """One step of the architecture, unless in the warm-up, and one step of the weights."""
        train, validation = self._split(state.streams)
        per_epoch = num_batches(len(train), self.options.batch_size)
        rate = self.options.rate(state.done, self.options.epochs * per_epoch)
        batch = self._batch(train, state.streams.child("learn"), state.done)
        state.dice.enter()
        try:
            if state.done >= self.options.warmup * per_epoch:
                other = self._batch(validation, state.streams.child("judge"), state.done)
                state.figures["validation loss"] = self._architecture_step(state, batch, other, rate)
            state.figures["training loss"] = self._weight_step(state, batch, rate)
        finally:
            state.dice.leave()
        state.done += 1
        for name, value in state.figures.items():
            require(
                math.isfinite(value),
                f"the {name} is {value} at step {state.done}; lower the learning rate "
                f"({self.options.learning_rate:g}) or set clip",
                TrainingError,
            )
        yield from self._watch(state, validation, per_epoch)
        if state.done % per_epoch == 0 and state.done > self.options.warmup * per_epoch:
            yield from self._check_guards(state, validation)
        return state

    def _watch(self, state: GradientSearchState, validation: Examples, per_epoch: int) -> Work[None]:
        """Errors of architectures that are sampled in the course of an epoch and at its end, anchors of plasticity."""
        epoch, number = divmod(state.done - 1, per_epoch)
        samples = self._batch(validation, state.streams.child("watch"), 0)

        def error(path: Genotype) -> float:
            with seeded(derived_seed(state.streams.seed, "error")):
                return 1 - evaluate_path(state.supernet, path, [samples], self.task.form).score

        if state.control.watches(number, per_epoch):
            path = self.layout.path(state.architecture, state.streams.at("watched", state.done))
            yield from state.control.after_training(path, path, samples, error)
        if number == per_epoch - 1:
            yield from state.control.end_epoch(epoch, error)

    def _split(self, streams: Streams) -> list[Examples]:
        """Examples for the weights, and examples for the architecture."""
        if streams.seed not in self._splits:
            train = self.task.train
            labels = train.labels() if self.task.likelihood == "categorical" else None
            indices = split_index(labels, len(train), self.options.validation, derived_seed(streams.seed, "split"))
            self._splits = {streams.seed: [train.chosen(index).ready() for index in indices]}
        return self._splits[streams.seed]

    def _batch(self, examples: Examples, streams: Streams, step: int) -> Batch:
        epoch, number = divmod(step, num_batches(len(examples), self.options.batch_size))
        x, y = next(epoch_batches(examples, self.options.batch_size, streams, epoch, start=number))
        return Batch(x.to(self.device), y.to(self.device))

    def _weight_step(self, state: GradientSearchState, batch: Batch, rate: float) -> float:
        """Step of the weights; returns the training loss before it."""
        for group in state.weight_optimiser.param_groups:
            group["lr"] = rate
        state.weight_optimiser.zero_grad(set_to_none=True)
        fixed = {name: value.detach() for name, value in state.architecture.items()}
        loss = self.task.form.loss(state.supernet(batch.x, fixed), batch.y)
        loss.backward()
        if self.options.clip > 0:
            nn.utils.clip_grad_norm_(state.supernet.parameters(), self.options.clip)
        state.weight_optimiser.step()
        state.control.after_step(rate, len(batch.y))
        return float(loss.detach())

    def _architecture_step(self, state: GradientSearchState, batch: Batch, other: Batch, rate: float) -> float:
        """Step of the architecture; returns the validation loss before it."""
        weights, validation = state.weights, stateless_loss(state, self.task.form, other)
        if self.options.order == 1:
            loss, slopes = loss_and_gradient(validation, weights, state.architecture)
        else:
            training = stateless_loss(state, self.task.form, batch)
            loss, slopes = second_order(training, validation, weights, state.architecture, rate, drift=drift(state),
                                        exact=self.options.exact)  # fmt: skip
        for name, value in state.architecture.items():
            value.grad = slopes[name]
        state.architecture_optimiser.step()
        return loss

    def _check_guards(self, state: GradientSearchState, validation: Examples) -> Work[None]:
        """Update the monitored quantities at the end of an epoch and stop the search if a guard says so."""
        guards, epoch = self.options.guards, len(state.entropies)
        state.entropies.append(entropy(state.architecture))
        if guards.growth is not None:
            batch = self._batch(validation, state.streams.child("watch"), 0)
            loss, rng = stateless_loss(state, self.task.form, batch), state.streams.at("eigenvalue", epoch)
            fixed = {name: value.detach() for name, value in state.weights.items()}
            state.dice.enter()
            try:
                value = dominant_eigenvalue(lambda free: loss(fixed, free), state.architecture, rng, guards.products)
            finally:
                state.dice.leave()
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

    def best(self, state: GradientSearchState) -> ScoredGenotype | None:
        """Genotype of the largest architecture weights; the score is the mean weight of its operations."""
        if state.done == 0:
            return None
        weights, limit = edge_weights(self.layout, state.architecture), self.options.guards.max_skips
        genotype = choose_genotype(self.space, self.layout, weights, limit)
        facts: dict[str, float | str] = {
            "entropy": entropy(state.architecture),
            "skips": num_skips(genotype),
            "skips before the limit": num_skips(strongest_genotype(self.layout, weights)),
            **state.figures,
            **({"eigenvalue": state.eigenvalues[-1]} if state.eigenvalues else {}),
            **({"stopped": state.ended} if state.ended else {}),
        }
        return ScoredGenotype(genotype, mean_share(self.layout, weights, genotype), facts)

    def ended(self, state: GradientSearchState) -> str:
        """Reason of a guard, or that all epochs are done."""
        per_epoch = num_batches(len(self._split(state.streams)[0]), self.options.batch_size)
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
        return {"entropy": entropy(state.architecture), **state.figures}


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
