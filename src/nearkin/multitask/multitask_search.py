"""Search of one architecture for several tasks, each with weights of its own: the part that all such searches share.

A pass is one step of the architecture on the validation losses of all tasks, then steps of the weights, which differ
between searches. As in DARTS the step of the architecture comes first: it belongs to the weights of the pass before.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from nearkin.core.errors import DataError, OptionError, require
from nearkin.core.events import Work
from nearkin.core.rng import Streams, derived_seed
from nearkin.core.state import State
from nearkin.multitask.augmentation_sets import with_common_inputs
from nearkin.multitask.multitask_state import (
    MultitaskState,
    RoundRecord,
    capture_multitask,
    merge_forgetting,
    restore_multitask,
)
from nearkin.multitask.task_heads import head_for
from nearkin.search.methods.darts.architecture_step import Loss, Tensors, loss_and_gradient
from nearkin.search.methods.darts.gradient_options import PARTIAL, GradientOptions
from nearkin.search.methods.darts.gradient_search import (
    check_guards,
    initial_architecture,
    require_finite,
    strongest,
    take_architecture_step,
)
from nearkin.search.methods.darts.guards import entropy
from nearkin.search.methods.darts.supernet_learner import (
    LearnerState,
    SupernetLearner,
    architecture_optimiser,
    stateless_loss,
)
from nearkin.search.methods.path_evaluation import SHARED_LOSS, evaluate_path
from nearkin.search.plasticity.telemetry import Forgetting
from nearkin.search.searcher import ScoredGenotype, Searcher
from nearkin.search.spaces.base import Space
from nearkin.search.supernet.supernets import layout_of
from nearkin.tasks.examples import Batch
from nearkin.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class MultitaskOptions:
    """Options of every search for several tasks.

    Attributes:
        gradient: options of the supernets, the weights and the architecture. An epoch is one pass over the data of the
            task with the most batches.
        normalise: whether validation losses are divided by their values at the first step of the architecture, so that
            they have one scale.
    """

    gradient: GradientOptions = field(default_factory=lambda: PARTIAL)
    normalise: bool = True


class MultitaskSearch(Searcher[MultitaskState]):
    """Search of one architecture for several tasks.

    Args:
        tasks: tasks of images, in the order of their turns; grey images become colour images if others have colour.
        space: space of cells.
        options: options of the search.
        device: device of the computation (default: CPU).
    """

    options: MultitaskOptions

    def __init__(
        self, tasks: Sequence[Task], space: Space, options: MultitaskOptions, *, device: torch.device | None = None
    ) -> None:
        require(len(tasks) >= 1, "got no task; give two or more")
        names = [task.name for task in tasks]
        require(len(set(names)) == len(names), f"every task may be given once, got {', '.join(names)}")
        self.tasks, self.space, self.options = with_common_inputs(tasks), space, options
        self.layout, self.gradient = layout_of(space), options.gradient
        for task in self.tasks:
            _require_validation(task, self.gradient.validation)
        stride = self.gradient.frame.stem_stride
        self.learners = [
            SupernetLearner(task, self.layout, self.gradient, device=device, head=head_for(task, stride))
            for task in self.tasks
        ]
        self._settings = {
            "tasks": names,
            "data": [task.fingerprint() for task in self.tasks],
            "space": space.name,
            **asdict(options),
        }

    @property
    def num_tasks(self) -> int:
        """Number of tasks."""
        return len(self.tasks)

    def settings(self) -> Mapping[str, Any]:
        """Names and fingerprints of the tasks, name of the space, and all options."""
        return self._settings

    def init(self, seed: int) -> MultitaskState:
        """State with new supernets."""
        slots, streams = self._new_slots(seed), Streams(seed)
        architecture = initial_architecture(self.layout, self.gradient, streams, self.learners[0].device)
        return MultitaskState(
            slots=slots, streams=streams, architecture=architecture,
            architecture_optimiser=architecture_optimiser(architecture, self.gradient),
        )  # fmt: skip

    @property
    def transfer_every(self) -> int:
        """Number of passes from one transfer between tasks to the next; 1 if all passes are alike."""
        return 1

    @property
    def same_start(self) -> bool:
        """Whether the encoders of all tasks start from the same weights."""
        return False

    def _new_slots(self, seed: int) -> list[LearnerState]:
        return [self._new_slot(task, seed) for task in range(self.num_tasks)]

    def _new_slot(self, task: int, seed: int) -> LearnerState:
        """New supernet of a task; all tasks draw their samples from the same streams."""
        start = seed if task == 0 or self.same_start else derived_seed(seed, "task", task)
        return self.learners[task].init(start, Streams(seed))

    def _final(self, state: MultitaskState) -> Sequence[LearnerState]:
        """The slots, one for each task, whose validation losses the architecture minimises."""
        return state.slots[-self.num_tasks :]

    @abstractmethod
    def _train(self, state: MultitaskState, rate: float) -> Work[None]:
        """All steps of the weights in a pass."""

    def step(self, state: MultitaskState) -> Work[MultitaskState]:
        """One pass: a step of the architecture, unless in the warm-up, and steps of the weights."""
        per_epoch = self.passes_per_epoch(state.streams)
        rate = self.gradient.rate(state.done, self.gradient.epochs * per_epoch)
        if state.done >= self.gradient.warmup * per_epoch:
            state.figures["validation loss"] = self._architecture_step(state, rate)
        yield from self._train(state, rate)
        state.done += 1
        require_finite(state.figures, state.done, self.gradient)
        for task in range(self.num_tasks):
            yield from self._watch(state, task, per_epoch)
        if state.done % per_epoch == 0 and state.done > self.gradient.warmup * per_epoch:
            yield from check_guards(
                state, self.gradient, lambda free: self._watched_loss(state, free), state.streams,
                state.slots[0].dice, self.layout,
            )  # fmt: skip
        return state

    def _watch(self, state: MultitaskState, task: int, per_epoch: int) -> Work[None]:
        """Measure the forgetting of a task's supernet after a pass."""
        yield from self.learners[task].watch(self._final(state)[task], state.architecture, state.done, per_epoch)

    def passes_per_epoch(self, streams: Streams) -> int:
        """Number of passes in an epoch: the number of batches of the task that has the most."""
        return max(learner.steps_per_epoch(streams) for learner in self.learners)

    def _architecture_step(self, state: MultitaskState, rate: float) -> float:
        """Step of the architecture; returns the sum of the validation losses before it, in their common scale."""
        dice = state.slots[0].dice
        dice.enter()
        try:
            loss, slopes = self._architecture_gradient(state, rate)
        finally:
            dice.leave()
        take_architecture_step(state, self._penalised(state, slopes))
        return loss

    def _architecture_gradient(self, state: MultitaskState, rate: float) -> tuple[float, Tensors]:
        """Sum of the validation losses in their common scale, and its gradient; here at constant weights."""
        slots = self._final(state)
        found = [
            loss_and_gradient(self._validation_loss(state, task), slots[task].weights, state.architecture)
            for task in self._judged(state)
        ]
        factors = self._factors(state, [loss for loss, _ in found])
        total = {name: factors[0] * value for name, value in found[0][1].items()}
        for factor, (_, slopes) in zip(factors[1:], found[1:], strict=True):
            total = {name: value + factor * slopes[name] for name, value in total.items()}
        return sum(factor * loss for factor, (loss, _) in zip(factors, found, strict=True)), total

    def _validation_loss(self, state: MultitaskState, task: int) -> Loss:
        """Validation loss of a task on the batch of this pass, as a function of weights and architecture."""
        return self._loss(state, task, self.learners[task].validation_batch(state.streams, state.done))

    def _judged(self, state: MultitaskState) -> Sequence[int]:
        """The tasks whose validation losses the architecture minimises in this pass."""
        return range(self.num_tasks)

    def _loss(self, state: MultitaskState, task: int, batch: Batch) -> Loss:
        """Loss of a task on a batch as a function of weights and architecture."""
        loss = stateless_loss(self._final(state)[task], self.learners[task].task.form, batch)
        return lambda weights, architecture: loss(weights, self._task_architecture(state, task, architecture))

    def _task_architecture(
        self, state: MultitaskState, task: int, architecture: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """The architecture weights as the supernet of a task takes them."""
        return architecture

    def _penalised(self, state: MultitaskState, slopes: dict[str, Tensor]) -> dict[str, Tensor]:
        """Gradient of the architecture with that of further terms, if a search has any."""
        return slopes

    def _factors(self, state: MultitaskState, losses: Sequence[float]) -> list[float]:
        """Factor of every validation loss: the mean first loss over the task's own first loss."""
        if not state.scales:
            state.scales = list(losses)
        if not self.options.normalise or min(state.scales) <= 0:
            return [1.0] * len(losses)
        mean = sum(state.scales) / len(state.scales)
        return [mean / scale for scale in state.scales]

    def _watched_loss(self, state: MultitaskState, architecture: dict[str, Tensor]) -> Tensor:
        """Sum of the validation losses on fixed samples as a function of the architecture."""
        judged = self._judged(state)
        terms = []
        for factor, task in zip(self._factors(state, [1.0] * len(judged)), judged, strict=True):
            fixed = {name: value.detach() for name, value in self._final(state)[task].weights.items()}
            loss = self._loss(state, task, self.learners[task].watched_batch(state.streams))
            terms.append(factor * loss(fixed, architecture))
        return torch.stack(terms).sum()

    def _record(self, state: MultitaskState, number: int, task: int, slot: LearnerState, active: float | None) -> None:
        """Add the figures of a task after its turn, in the last pass of an epoch."""
        epoch, position = divmod(state.done, self.passes_per_epoch(state.streams))
        if position < self.passes_per_epoch(state.streams) - 1:
            return
        learner = self.learners[task]
        fixed = self._constants(state, task)
        slot.dice.enter()
        try:
            value = evaluate_path(slot.supernet, fixed, [learner.watched_batch(state.streams)], learner.task.form)
        finally:
            slot.dice.leave()
        loss = float(value.facts[SHARED_LOSS])
        state.rounds.append(RoundRecord(epoch + 1, number + 1, learner.task.name, loss, value.score, active))

    def _constants(self, state: MultitaskState, task: int) -> dict[str, Tensor]:
        """The architecture weights as the supernet of a task takes them, without gradients."""
        fixed = {name: value.detach() for name, value in state.architecture.items()}
        return self._task_architecture(state, task, fixed)

    def best(self, state: MultitaskState) -> ScoredGenotype | None:
        """Genotype of the largest architecture weights; the score is the mean weight of its operations."""
        return strongest(self.space, self.layout, state, self.gradient, state.figures)

    def ended(self, state: MultitaskState) -> str:
        """Reason of a guard, or that all epochs are done."""
        total = self.gradient.epochs * self.passes_per_epoch(state.streams)
        return state.ended or ("all epochs are done" if state.done >= total else "")

    def num_weights(self, state: MultitaskState) -> int:
        """Number of weights that are stored and trained, without those of the architecture."""
        return sum(weight.numel() for slot in state.slots for weight in slot.supernet.parameters())

    def evaluations(self, state: MultitaskState) -> int:
        """Always 0: no genotype is measured separately."""
        return 0

    def capture(self, state: MultitaskState) -> State:
        """Copy supernets, architecture, optimisers and monitored quantities."""
        return capture_multitask(state)

    def restore(self, saved: State) -> MultitaskState:
        """The inverse of `capture`."""
        return restore_multitask(self.init(saved.facts["seed"]), saved)

    def forgetting(self, state: MultitaskState) -> Sequence[Forgetting]:
        """Forgetting of every epoch over all tasks."""
        return merge_forgetting([slot.control.log.epochs for slot in self._final(state)])

    def details(self, state: MultitaskState) -> Mapping[str, Any]:
        """Order of the tasks, figures after each round, share of active pairs by pass, and scales of the losses."""
        return {
            "order": [task.name for task in self.tasks],
            "rounds": [record.to_dict() for record in state.rounds],
            "active": list(state.active),
            "scales": list(state.scales),
        }

    def figures(self, state: MultitaskState) -> Mapping[str, float]:
        """Entropy of α as a fraction of its maximum, losses, and the share of active pairs."""
        active = {"active": state.active[-1]} if state.active else {}
        return {"entropy": entropy(state.architecture, self.layout), **state.figures, **active}


def mean_loss(losses: Sequence[float]) -> dict[str, float]:
    """Figures of a pass with these training losses."""
    return {"training loss": fmean(losses)}


def _require_validation(task: Task, share: float) -> None:
    """Raise if a task has no sample for the weights or none for the architecture."""
    count = len(task.train)
    require(
        count >= 2 and round(share * count) >= 1 and round((1 - share) * count) >= 1,
        f"{task.name!r} has {count} training samples, of which a share of {share:g} leaves the weights or the "
        f"architecture without any; add samples, or change validation",
        DataError if count < 2 else OptionError,
    )
