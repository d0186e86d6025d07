"""Training of one supernet on one task, for given architecture weights.

A search for one task has one such learner. A search for several tasks has one for each, and one architecture.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nearkin.core.errors import MismatchError, require
from nearkin.core.events import Work
from nearkin.core.rng import Streams, derived_seed, seeded
from nearkin.core.state import State, copied, prefixed
from nearkin.nets.training import ScopedRng
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.darts.architecture_step import Loss
from nearkin.search.methods.darts.gradient_options import GradientOptions
from nearkin.search.methods.optimiser_state import load_optimiser, optimiser_tensors
from nearkin.search.methods.path_evaluation import evaluate_path
from nearkin.search.plasticity.forgetting_control import ForgettingControl
from nearkin.search.supernet.choice_layout import Architecture, ChoiceLayout
from nearkin.search.supernet.reference import AnySupernet, HeadMaker
from nearkin.search.supernet.supernets import make_supernet
from nearkin.tasks.batches import epoch_batches, num_batches
from nearkin.tasks.examples import Batch, Examples
from nearkin.tasks.likelihood import Likelihood
from nearkin.tasks.split import split_index
from nearkin.tasks.task import Task

IMAGES = ("categorical", "gaussian", "heteroscedastic")


@dataclass(kw_only=True)
class LearnerState:
    """State of the training of a supernet.

    Attributes:
        supernet: supernet with weights and running statistics.
        weight_optimiser: SGD on the weights.
        streams: random generators.
        dice: torch's global generator, for operations that draw from it.
        control: forgetting of every epoch, and plasticity.
        figures: losses of the last steps.
    """

    supernet: AnySupernet
    weight_optimiser: torch.optim.Optimizer
    streams: Streams
    dice: ScopedRng
    control: ForgettingControl
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def weights(self) -> dict[str, Tensor]:
        """Weights of the supernet by name."""
        return dict(self.supernet.named_parameters())

    @property
    def buffers(self) -> dict[str, Tensor]:
        """Running statistics of the supernet by name."""
        return dict(self.supernet.named_buffers())


class SupernetLearner:
    """Trains a supernet on a task.

    Args:
        task: images with classes or values to predict; with a head of its own, any target.
        layout: cells or chains of the supernet.
        options: options of the search.
        device: device of the computation (default: CPU).
        head: makes another head than the linear one (default: none).
    """

    def __init__(
        self,
        task: Task,
        layout: ChoiceLayout,
        options: GradientOptions,
        *,
        device: torch.device | None = None,
        head: HeadMaker | None = None,
    ) -> None:
        require(
            len(task.input_shape) == 3 and (head is not None or task.likelihood in IMAGES),
            f"{task.name!r} has inputs of shape {task.input_shape} and is a {task.likelihood} task; a supernet reads "
            f"images (C, H, W) and predicts classes or values; use another method",
            MismatchError,
        )
        self.task, self.layout, self.options, self.head = task, layout, options, head
        self.device = device or torch.device("cpu")
        self._splits: dict[int, list[Examples]] = {}

    def init(self, seed: int, streams: Streams | None = None) -> LearnerState:
        """State with a new supernet.

        Args:
            seed: seed of weights and operations.
            streams: generators of the split and the batches (default: those of the seed).
        """
        options = self.options
        with seeded(derived_seed(seed, "weights")):
            supernet = make_supernet(self.layout, self.task.input_shape, self.task.num_outputs, options.frame)
            if self.head is not None:
                supernet.head = self.head(supernet.map_shapes)
        supernet.to(self.device)
        optimiser = weight_optimiser(supernet.parameters(), options)
        dice, anchors = ScopedRng(derived_seed(seed, "operations")), derived_seed(seed, "anchors")
        control = ForgettingControl(supernet, options.forgetting, self.task.likelihood, options.epochs, anchors)
        return LearnerState(supernet=supernet.train(), weight_optimiser=optimiser, streams=streams or Streams(seed),
                            dice=dice, control=control)  # fmt: skip

    def split(self, streams: Streams) -> list[Examples]:
        """Examples for the weights, and examples for the architecture."""
        if streams.seed not in self._splits:
            self._splits = {streams.seed: [part.ready() for part in self.split_examples(streams)]}
        return self._splits[streams.seed]

    def split_examples(self, streams: Streams) -> list[Examples]:
        """The same as `split`, in the units of the data."""
        train = self.task.train
        labels = train.labels() if self.task.likelihood == "categorical" else None
        indices = split_index(labels, len(train), self.options.validation, derived_seed(streams.seed, "split"))
        return [train.chosen(index) for index in indices]

    def steps_per_epoch(self, streams: Streams) -> int:
        """Number of batches in the examples for the weights."""
        return num_batches(len(self.split(streams)[0]), self.options.batch_size)

    def training_batch(self, streams: Streams, number: int) -> Batch:
        """Batch 0, 1, … for the weights; it continues from epoch to epoch."""
        return self.batch(self.split(streams)[0], streams.child("learn"), number)

    def validation_batch(self, streams: Streams, number: int) -> Batch:
        """Batch 0, 1, … for the architecture."""
        return self.batch(self.split(streams)[1], streams.child("judge"), number)

    def watched_batch(self, streams: Streams) -> Batch:
        """Fixed validation samples on which errors and eigenvalues are measured."""
        return self.batch(self.split(streams)[1], streams.child("watch"), 0)

    def batch(self, examples: Examples, streams: Streams, step: int) -> Batch:
        """A batch of examples; it continues from epoch to epoch."""
        epoch, number = divmod(step, num_batches(len(examples), self.options.batch_size))
        x, y = next(epoch_batches(examples, self.options.batch_size, streams, epoch, start=number))
        return Batch(x.to(self.device), y.to(self.device))

    def weight_step(
        self,
        state: LearnerState,
        architecture: Architecture,
        batch: Batch,
        rate: float,
        penalty: Tensor | None = None,
    ) -> float:
        """Step of the weights; returns the training loss before it.

        Args:
            state: the state to change.
            architecture: architecture weights, constants here.
            batch: training samples.
            rate: learning rate.
            penalty: further loss, computed from the weights (default: none).
        """
        for group in state.weight_optimiser.param_groups:
            group["lr"] = rate
        state.weight_optimiser.zero_grad(set_to_none=True)
        if penalty is not None:
            penalty.backward()  # first, so that its graph is gone before the next one is made
        fixed = {name: value.detach() for name, value in architecture.items()}
        loss = self.task.form.loss(state.supernet(batch.x, fixed), batch.y)
        loss.backward()
        self.apply_gradients(state, rate, len(batch.y))
        return float(loss.detach())

    def apply_gradients(self, state: LearnerState, rate: float, batch_size: int) -> None:
        """Step of the weights along the gradients that they have."""
        if self.options.clip > 0:
            nn.utils.clip_grad_norm_(state.supernet.parameters(), self.options.clip)
        state.weight_optimiser.step()
        state.control.after_step(rate, batch_size)

    def watch(self, state: LearnerState, architecture: Architecture, done: int, per_epoch: int) -> Work[None]:
        """Errors of architectures that are sampled in the course of an epoch and at its end, anchors of plasticity.

        Args:
            state: the state after a step.
            architecture: architecture weights, from which architectures are sampled.
            done: number of steps so far.
            per_epoch: number of steps in an epoch.
        """
        epoch, number = divmod(done - 1, per_epoch)
        samples = self.watched_batch(state.streams)

        def error(path: Genotype) -> float:
            with seeded(derived_seed(state.streams.seed, "error")):
                return 1 - evaluate_path(state.supernet, path, [samples], self.task.form).score

        if state.control.watches(number, per_epoch):
            path = self.layout.path(architecture, state.streams.at("watched", done))
            yield from state.control.after_training(path, path, samples, error)
        if number == per_epoch - 1:
            yield from state.control.end_epoch(epoch, error)


def stateless_loss(state: LearnerState, form: Likelihood, batch: Batch) -> Loss:
    """Loss on a batch as a function of weights and architecture, which updates copies of the running statistics."""
    buffers, supernet = state.buffers, state.supernet

    def loss(weights: dict[str, Tensor], architecture: dict[str, Tensor]) -> Tensor:
        copies = {name: value.clone() for name, value in buffers.items()}
        return form.loss(functional_call(supernet, {**weights, **copies}, (batch.x, architecture)), batch.y)

    return loss


def drift(state: LearnerState) -> dict[str, Tensor]:
    """Terms that the optimiser adds to the gradient of the weights: momentum and weight decay."""
    options, terms = state.weight_optimiser.param_groups[0], {}
    for name, value in state.weights.items():
        terms[name] = options["weight_decay"] * value.detach()
        velocity = state.weight_optimiser.state.get(value, {}).get("momentum_buffer")
        if velocity is not None:
            terms[name] += options["momentum"] * velocity
    return terms


def capture_learner(state: LearnerState) -> State:
    """Copy the whole state."""
    tensors = {
        **prefixed("supernet", state.supernet.state_dict()),
        **prefixed("weight_optimiser", optimiser_tensors(state.weight_optimiser)),
        "dice": state.dice.state,
    }
    control = state.control.capture()
    facts = {"figures": dict(state.figures), "control": dict(control.facts)}
    return State({**copied(tensors), **prefixed("control", control.tensors)}, facts)


def restore_learner(fresh: LearnerState, saved: State) -> None:
    """Load a captured state into a new one that was made with the same seed."""
    fresh.supernet.load_state_dict(saved.section("supernet"))
    load_optimiser(fresh.weight_optimiser, saved.section("weight_optimiser"))
    fresh.dice.state = saved.tensors["dice"]
    fresh.figures = saved.facts["figures"]
    fresh.control.restore(State(saved.section("control"), saved.facts["control"]))


def weight_optimiser(weights: Iterable[Tensor], options: GradientOptions) -> torch.optim.Optimizer:
    """SGD on the weights of a supernet."""
    return torch.optim.SGD(weights, options.learning_rate, momentum=options.momentum,
                           weight_decay=options.weight_decay, fused=True)  # fmt: skip


def architecture_optimiser(architecture: Mapping[str, Tensor], options: GradientOptions) -> torch.optim.Optimizer:
    """Adam on the architecture weights, as in DARTS."""
    return torch.optim.Adam(architecture.values(), options.architecture_rate, betas=(0.5, 0.999),
                            weight_decay=options.architecture_decay)  # fmt: skip
