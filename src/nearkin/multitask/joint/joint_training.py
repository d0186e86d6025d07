"""Training of all tasks at the same time: the part that all searches with a weighted sum of losses share.

In every pass each task computes its training loss on a batch of its own, and all weights take a step on the weighted
sum of these losses. The weighting `gradient-norm` uses the gradients of the last cell: of the shared one if there is
one, else of each task's own.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nearkin.core.errors import require
from nearkin.core.events import Work
from nearkin.core.state import State, prefixed
from nearkin.multitask.joint.aggregators import Gradients, weighted_sum_of_gradients
from nearkin.multitask.joint.loss_weighting import LossWeighting, WeightingOptions
from nearkin.multitask.multitask_search import MultitaskOptions, MultitaskSearch, mean_loss
from nearkin.multitask.multitask_state import HEAD, MultitaskState
from nearkin.search.methods.darts.supernet_learner import LearnerState
from nearkin.search.spaces.base import Space
from nearkin.tasks.task import Task

_WEIGHTING = "weighting"


def require_first_order(options: MultitaskOptions) -> None:
    """Raise if the architecture should look a training step ahead."""
    require(
        options.gradient.order == 1,
        f"got order={options.gradient.order}; searches that train several tasks together have order 1 only; use "
        f"order=1",
    )


def require_steps(steps: int) -> None:
    """Raise if a pass has no step of the weights."""
    require(steps >= 1, f"steps_per_pass must be 1 or more, got {steps}")


@dataclass(frozen=True, kw_only=True)
class JointTrainingOptions(WeightingOptions):
    """Options of every search that trains all tasks at the same time.

    Attributes:
        steps_per_pass: steps of the weights of every task in a pass; M is the budget of M interleaved rounds.
    """

    steps_per_pass: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_steps(self.steps_per_pass)
        require_first_order(self)


@dataclass(kw_only=True)
class JointState(MultitaskState):
    """State of a search that trains all tasks at the same time.

    Attributes:
        weighting: factors of the training losses.
    """

    weighting: LossWeighting


class JointTraining(MultitaskSearch):
    """Search that trains all tasks at the same time on a weighted sum of their losses."""

    options: JointTrainingOptions

    def __init__(
        self, tasks: Sequence[Task], space: Space, options: JointTrainingOptions, *, device: torch.device | None = None
    ) -> None:
        super().__init__(tasks, space, options, device=device)
        LossWeighting(options, self.num_tasks)  # refuses factors that do not fit the tasks

    def init(self, seed: int) -> MultitaskState:
        """State with new supernets and factors."""
        return JointState(**vars(super().init(seed)), weighting=LossWeighting(self.options, self.num_tasks))

    def _train(self, state: MultitaskState, rate: float) -> Work[None]:
        assert isinstance(state, JointState)
        losses: list[float] = []
        for number in range(self.options.steps_per_pass):
            losses += self._joint_step(state, rate, state.done * self.options.steps_per_pass + number)
            for task, slot in enumerate(state.slots):
                self._record(state, number, task, slot, None)
        state.figures |= mean_loss(losses)
        yield from ()

    def _joint_step(self, state: JointState, rate: float, number: int) -> list[float]:
        """Step of all weights; returns the training losses before it."""
        losses, gradients, sizes = [], [], []
        for task, (learner, slot) in enumerate(zip(self.learners, state.slots, strict=True)):
            batch = learner.training_batch(state.streams, number)
            slot.dice.enter()
            try:
                loss = learner.task.form.loss(slot.supernet(batch.x, self._constants(state, task)), batch.y)
                gradients.append(_gradients(loss, slot))
            finally:
                slot.dice.leave()
            losses.append(float(loss.detach()))
            sizes.append(len(batch.y))
            for group in slot.weight_optimiser.param_groups:
                group["lr"] = rate
        measured = self.options.weighting == "gradient-norm"  # here, as later steps limit gradients in place
        norms = [_norm(*pair) for pair in zip(state.slots, gradients, strict=True)] if measured else []
        for weight, gradient in self._combined(state, gradients).items():
            weight.grad = gradient
        self._apply(state, rate, sizes)
        state.weighting.update(losses, norms)
        return losses

    def _combined(self, state: JointState, gradients: Sequence[Gradients]) -> Gradients:
        """Gradient of every weight from those of the tasks."""
        return weighted_sum_of_gradients(gradients, state.weighting.factors)

    @abstractmethod
    def _apply(self, state: MultitaskState, rate: float, sizes: Sequence[int]) -> None:
        """Step of the weights along their gradients; `sizes` are those of the batches."""

    def capture(self, state: MultitaskState) -> State:
        """Copy supernets, architecture, optimisers, factors and monitored quantities."""
        assert isinstance(state, JointState)
        saved, weighting = super().capture(state), state.weighting.capture()
        return State({**saved.tensors, **prefixed(_WEIGHTING, weighting.tensors)},
                     {**saved.facts, _WEIGHTING: dict(weighting.facts)})  # fmt: skip

    def restore(self, saved: State) -> MultitaskState:
        """The inverse of `capture`."""
        state = super().restore(saved)
        assert isinstance(state, JointState)
        state.weighting.restore(State(saved.section(_WEIGHTING), saved.facts[_WEIGHTING]))
        return state

    def factors(self, state: MultitaskState) -> dict[str, float]:
        """Present factor of the training loss of every task."""
        assert isinstance(state, JointState)
        return {task.name: factor for task, factor in zip(self.tasks, state.weighting.factors, strict=True)}


def _gradients(loss: Tensor, slot: LearnerState) -> Gradients:
    """Gradients of the weights of a slot, which are taken out of them, as other tasks may have the same weights."""
    slot.supernet.zero_grad(set_to_none=True)
    loss.backward()
    gradients = {weight: weight.grad for weight in slot.supernet.parameters() if weight.grad is not None}
    slot.supernet.zero_grad(set_to_none=True)
    return gradients


def _norm(slot: LearnerState, gradients: Gradients) -> float:
    """Norm of the gradient of the last cell, or of the whole encoder if this cell has no weights."""
    encoder = {name: weight for name, weight in slot.supernet.named_parameters() if not name.startswith(HEAD)}
    last = [weight for name, weight in encoder.items() if f"cells.{slot.supernet.frame.num_cells - 1}." in name]
    return float(nn.utils.get_total_norm([gradients[weight] for weight in last or encoder.values()
                                          if weight in gradients]))  # fmt: skip
