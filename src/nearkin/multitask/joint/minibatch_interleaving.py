r"""Minibatch interleaving (MI, a baseline of paper 002): soft sharing, but tasks take their steps one after the other.

In its step task k minimises $L_k(W_k) + \gamma \sum_{j \ne k} \|W_k - W_j\|^2 / P$ on a batch of its own, with the
present weights of the other tasks as constants. P is the number of weights of an encoder.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nearkin.core.events import Work
from nearkin.multitask.joint.joint_search import encoder_weights, require_gamma
from nearkin.multitask.joint.joint_training import require_first_order, require_steps
from nearkin.multitask.matching import weight_distance
from nearkin.multitask.multitask_search import MultitaskOptions, MultitaskSearch, mean_loss
from nearkin.multitask.multitask_state import MultitaskState
from nearkin.search.spaces.base import Space
from nearkin.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class MinibatchOptions(MultitaskOptions):
    """Options of minibatch interleaving.

    Attributes:
        steps_per_pass: steps of the weights of every task in a pass; M is the budget of M interleaved rounds.
        gamma: factor γ of the mean squared difference to the other encoders.
    """

    steps_per_pass: int = 1
    gamma: float = 100.0

    def __post_init__(self) -> None:
        require_steps(self.steps_per_pass)
        require_gamma(self.gamma)
        require_first_order(self)


class MinibatchInterleaving(MultitaskSearch):
    """Search of one architecture for several tasks with softly shared weights, whose steps alternate.

    Args:
        tasks: tasks of images, in the order of their steps.
        space: space of cells.
        options: options of the search.
        device: device of the computation (default: CPU).
    """

    name = "minibatch"
    options: MinibatchOptions

    def __init__(
        self,
        tasks: Sequence[Task],
        space: Space,
        options: MinibatchOptions | None = None,
        *,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(tasks, space, options or MinibatchOptions(), device=device)

    @property
    def same_start(self) -> bool:
        """Encoders that are drawn together start together."""
        return True

    def _train(self, state: MultitaskState, rate: float) -> Work[None]:
        losses = []
        for number in range(self.options.steps_per_pass):
            for task, (learner, slot) in enumerate(zip(self.learners, state.slots, strict=True)):
                batch = learner.training_batch(state.streams, state.done * self.options.steps_per_pass + number)
                penalty = self._penalty(state, task)
                slot.dice.enter()
                try:
                    losses.append(learner.weight_step(slot, state.architecture, batch, rate, penalty))
                finally:
                    slot.dice.leave()
                self._record(state, number, task, slot, None)
        state.figures |= mean_loss(losses)
        yield from ()

    def _penalty(self, state: MultitaskState, task: int) -> Tensor | None:
        """Term of a task that draws its encoder to the present ones of the others."""
        if self.options.gamma == 0 or self.num_tasks == 1:
            return None
        own = encoder_weights(state.slots[task])
        others = [encoder_weights(slot) for number, slot in enumerate(state.slots) if number != task]
        fixed = [{name: value.detach() for name, value in other.items()} for other in others]
        return self.options.gamma * torch.stack([weight_distance(other, own) for other in fixed]).sum()
