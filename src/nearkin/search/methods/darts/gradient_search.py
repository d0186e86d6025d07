r"""DARTS and PC-DARTS: one supernet is trained, and with it the weights of its operations, on other data.

Weights $w$ follow SGD on one part of the training data, architecture weights α and β follow Adam on the other, step by
step in turn. In the end every edge keeps its strongest operation. PC-DARTS sends a share of the channels through the
operations and weighs edges (β), after epochs in which the weights alone are trained.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from nearkin.core.errors import MismatchError, TrainingError, require
from nearkin.core.events import Note, Work
from nearkin.core.rng import Streams, derived_seed, seeded
from nearkin.core.state import State
from nearkin.nets.training import ScopedRng
from nearkin.search.methods.darts.architecture_step import second_order, valued
from nearkin.search.methods.darts.guards import dominant_eigenvalue, entropy
from nearkin.search.methods.darts.options import PARTIAL, GradientOptions
from nearkin.search.methods.darts.state import Search, captured, drift, quiet_loss, restored
from nearkin.search.searcher import Best, Searcher
from nearkin.search.spaces.base import Space
from nearkin.search.supernet.choice import certainty, chosen, num_skips, strengths, strongest
from nearkin.search.supernet.fused.supernet import Supernet
from nearkin.search.supernet.layout import Layout
from nearkin.tasks.batches import epoch_batches, num_batches
from nearkin.tasks.examples import Batch
from nearkin.tasks.split import split_index
from nearkin.tasks.task import Task

IMAGES = ("categorical", "gaussian", "heteroscedastic")


class GradientSearch(Searcher[Search]):
    """What DARTS and PC-DARTS share.

    Args:
        task: images with classes or values to predict.
        space: of cells; its limits are kept to.
        options: how to search.
        device: where to compute; the CPU where nothing is said.
    """

    def __init__(
        self, task: Task, space: Space, options: GradientOptions, *, device: torch.device | None = None
    ) -> None:
        require(
            len(task.input_shape) == 3 and task.likelihood in IMAGES,
            f"{task.name}: a supernet reads images and predicts classes or values, got inputs {task.input_shape} of "
            f"a {task.likelihood} task",
            MismatchError,
        )
        self.task, self.space, self.options = task, space, options
        self.layout, self.device = Layout.of(space), device or torch.device("cpu")
        self._facts = {"task": task.name, "data": task.fingerprint(), "space": space.name, **asdict(options)}
        self._parts: dict[int, Any] = {}

    def settings(self) -> Mapping[str, Any]:
        """The task's fingerprint, the space's name and all options."""
        return self._facts

    def init(self, seed: int) -> Search:
        """A new supernet, all operations almost alike."""
        options, streams = self.options, Streams(seed)
        with seeded(derived_seed(seed, "weights")):
            supernet = Supernet(self.layout, self.task.input_shape, self.task.num_outputs, options.frame)
        supernet.to(self.device)
        given = self.layout.initial(streams.at("architecture"), edges=options.edges)
        architecture = {name: value.to(self.device).requires_grad_() for name, value in given.items()}
        weight_optimiser = torch.optim.SGD(supernet.parameters(), options.learning_rate, momentum=options.momentum,
                                  weight_decay=options.weight_decay, fused=True)  # fmt: skip
        architecture_optimiser = torch.optim.Adam(architecture.values(), options.architecture_rate, betas=(0.5, 0.999),
                                  weight_decay=options.architecture_decay)  # fmt: skip
        dice = ScopedRng(derived_seed(seed, "operations"))
        return Search(supernet.train(), architecture, weight_optimiser, architecture_optimiser, streams, dice)

    def step(self, state: Search) -> Work[Search]:
        """One step of the architecture, after the warm-up, and one of the weights."""
        learn, judge = self._split(state.streams)
        per_epoch = num_batches(len(learn), self.options.batch_size)
        rate = self.options.rate(state.done, self.options.epochs * per_epoch)
        batch = self._batch(learn, state.streams.child("learn"), state.done)
        state.dice.enter()
        try:
            if state.done >= self.options.warmup * per_epoch:
                other = self._batch(judge, state.streams.child("judge"), state.done)
                state.figures["validation loss"] = self._architecture_step(state, batch, other, rate)
            state.figures["training loss"] = self._weight_step(state, batch, rate)
        finally:
            state.dice.leave()
        state.done += 1
        for name, value in state.figures.items():
            require(
                math.isfinite(value),
                f"the {name} became {value} at step {state.done}; lower the learning rate "
                f"({self.options.learning_rate:g}) or set a clip",
                TrainingError,
            )
        if state.done % per_epoch == 0 and state.done > self.options.warmup * per_epoch:
            yield from self._watched(state, judge)
        return state

    def _split(self, streams: Streams) -> Any:
        """The examples that the weights learn from, and those that the architecture learns from."""
        if streams.seed not in self._parts:
            train = self.task.train
            labels = train.labels() if self.task.likelihood == "categorical" else None
            parts = split_index(labels, len(train), self.options.validation, derived_seed(streams.seed, "split"))
            self._parts = {streams.seed: [train.chosen(part).ready() for part in parts]}
        return self._parts[streams.seed]

    def _batch(self, examples: Any, streams: Streams, step: int) -> Batch:
        epoch, number = divmod(step, num_batches(len(examples), self.options.batch_size))
        x, y = next(epoch_batches(examples, self.options.batch_size, streams, epoch, start=number))
        return Batch(x.to(self.device), y.to(self.device))

    def _weight_step(self, state: Search, batch: Batch, rate: float) -> float:
        """A step of the weights; returns the loss before it."""
        for group in state.weight_optimiser.param_groups:
            group["lr"] = rate
        state.weight_optimiser.zero_grad(set_to_none=True)
        held = {name: value.detach() for name, value in state.architecture.items()}
        loss = self.task.form.loss(state.supernet(batch.x, held), batch.y)
        loss.backward()
        if self.options.clip > 0:
            nn.utils.clip_grad_norm_(state.supernet.parameters(), self.options.clip)
        state.weight_optimiser.step()
        return float(loss.detach())

    def _architecture_step(self, state: Search, batch: Batch, other: Batch, rate: float) -> float:
        """A step of the architecture; returns the validation loss before it."""
        weights, validation = state.weights, quiet_loss(state, self.task.form, other)
        if self.options.order == 1:
            loss, slopes = valued(validation, weights, state.architecture)
        else:
            training = quiet_loss(state, self.task.form, batch)
            loss, slopes = second_order(training, validation, weights, state.architecture, rate, drift=drift(state),
                                        exact=self.options.exact)  # fmt: skip
        for name, value in state.architecture.items():
            value.grad = slopes[name]
        state.architecture_optimiser.step()
        return loss

    def _watched(self, state: Search, judge: Any) -> Work[None]:
        """The guards' look at the end of an epoch."""
        guards, epoch = self.options.guards, len(state.entropies)
        state.entropies.append(entropy(state.architecture))
        if guards.growth is not None:
            batch = self._batch(judge, state.streams.child("watch"), 0)
            loss, rng = quiet_loss(state, self.task.form, batch), state.streams.at("eigenvalue", epoch)
            held = {name: value.detach() for name, value in state.weights.items()}
            state.dice.enter()
            try:
                value = dominant_eigenvalue(lambda free: loss(held, free), state.architecture, rng, guards.products)
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
            state.ended = f"{reason}; gone back to the architecture of then"
        if state.ended:
            yield Note(f"stopped: {state.ended}")

    def best(self, state: Search) -> Best | None:
        """The genotype that the weights speak for; the score is the mean share of its operations on their edges."""
        if state.done == 0:
            return None
        found, limit = strengths(self.layout, state.architecture), self.options.guards.max_skips
        genotype = chosen(self.space, self.layout, found, limit)
        facts: dict[str, float | str] = {
            "entropy": entropy(state.architecture),
            "skips": num_skips(genotype),
            "skips before the limit": num_skips(strongest(self.layout, found)),
            **state.figures,
            **({"eigenvalue": state.eigenvalues[-1]} if state.eigenvalues else {}),
            **({"stopped": state.ended} if state.ended else {}),
        }
        return Best(genotype, certainty(self.layout, found, genotype), facts)

    def ended(self, state: Search) -> str:
        """The guards' reason, or that all epochs are done."""
        per_epoch = num_batches(len(self._split(state.streams)[0]), self.options.batch_size)
        return state.ended or ("all of its epochs" if state.done >= self.options.epochs * per_epoch else "")

    def evaluations(self, state: Search) -> int:
        """None: operations are weighed all at once, and no genotype is measured by itself."""
        return 0

    def capture(self, state: Search) -> State:
        """A copy of weights, statistics, architecture, optimisers and history."""
        return captured(state)

    def restore(self, saved: State) -> Search:
        """The state that was captured."""
        return restored(self.init(saved.facts["seed"]), saved)

    def figures(self, state: Search) -> Mapping[str, float]:
        """Entropy of α as a share of the largest, and losses."""
        return {"entropy": entropy(state.architecture), **state.figures}


class Darts(GradientSearch):
    """Differentiable architecture search (Liu et al. 2019): all channels, no weights of edges.

    >>> from nearkin.core.budget import Budget
    >>> from nearkin.search.spaces.general import GeneralSpace
    >>> from nearkin.search.supernet.reference import Frame
    >>> from nearkin.search.searcher import run_search
    >>> x, y = torch.randn(24, 1, 6, 6), torch.arange(24) % 2
    >>> options = GradientOptions(frame=Frame(channels=4, num_cells=1), epochs=1, batch_size=6)
    >>> searcher = Darts(Task.from_arrays("toy", x, y, x, y), GeneralSpace((3,), ("zero", "conv3")), options)
    >>> run_search(searcher, Budget()).reason
    'all of its epochs'
    """

    def __init__(self, task: Task, space: Space, options: GradientOptions | None = None, *,
                 device: torch.device | None = None) -> None:  # fmt: skip
        super().__init__(task, space, options or GradientOptions(), device=device)

    @property
    def name(self) -> str:
        """`darts`."""
        return "darts"


class PCDarts(GradientSearch):
    """DARTS with partial channels (Xu et al. 2020): a share of the channels, weights of edges, a warm-up."""

    def __init__(self, task: Task, space: Space, options: GradientOptions | None = None, *,
                 device: torch.device | None = None) -> None:  # fmt: skip
        super().__init__(task, space, options or PARTIAL, device=device)

    @property
    def name(self) -> str:
        """`pcdarts`."""
        return "pcdarts"
