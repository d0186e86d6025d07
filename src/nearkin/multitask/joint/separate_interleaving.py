"""Separate interleaving (SI, a baseline of paper 002): tasks are searched one after the other, for several rounds.

The passes are divided into M·K blocks of like length. In a block one task learns, and the one architecture learns from
its validation loss alone. At the start of a block the encoder gets the weights of the task before it, and its momentum
starts from 0; the head continues. A pass has as many steps of the weights as in the other searches, all of one task.
The learning rate falls over the whole search, not over a block.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from nearkin.core.errors import require
from nearkin.core.events import Work
from nearkin.core.rng import Streams
from nearkin.multitask.joint.joint_search import encoder_weights
from nearkin.multitask.joint.joint_training import require_first_order, require_steps
from nearkin.multitask.multitask_search import MultitaskOptions, MultitaskSearch, mean_loss
from nearkin.multitask.multitask_state import MultitaskState
from nearkin.search.spaces.base import Space
from nearkin.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class SeparateOptions(MultitaskOptions):
    """Options of separate interleaving.

    Attributes:
        num_rounds: M, blocks of every task.
        steps_per_pass: steps of the weights in a pass, for each task; the task of a block takes those of all tasks.
    """

    num_rounds: int = 2
    steps_per_pass: int = 1

    def __post_init__(self) -> None:
        require(self.num_rounds >= 1, f"the number of rounds must be 1 or more, got {self.num_rounds}")
        require_steps(self.steps_per_pass)
        require_first_order(self)


class SeparateInterleaving(MultitaskSearch):
    """Search of one architecture for several tasks, one task after the other.

    Args:
        tasks: tasks of images, in the order of their blocks.
        space: space of cells.
        options: options of the search.
        device: device of the computation (default: CPU).
    """

    name = "separate"
    options: SeparateOptions

    def __init__(
        self,
        tasks: Sequence[Task],
        space: Space,
        options: SeparateOptions | None = None,
        *,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(tasks, space, options or SeparateOptions(), device=device)

    def init(self, seed: int) -> MultitaskState:
        """State with new supernets; raises if there are fewer passes than blocks."""
        total, rounds = self._total(Streams(seed)), self.options.num_rounds
        require(
            total >= rounds * self.num_tasks,
            f"{rounds} rounds of {self.num_tasks} tasks need {rounds * self.num_tasks} passes or more, and the search "
            f"has {total}; lower num_rounds, or give more epochs",
        )
        return super().init(seed)

    def _total(self, streams: Streams) -> int:
        return self.gradient.epochs * self.passes_per_epoch(streams)

    def block(self, state: MultitaskState, done: int) -> int:
        """Number of the block, from 0, of the pass after `done` passes."""
        return done * self.options.num_rounds * self.num_tasks // self._total(state.streams)

    def _judged(self, state: MultitaskState) -> Sequence[int]:
        last = self._total(state.streams) - 1
        return [self.block(state, min(state.done, last)) % self.num_tasks]

    def _factors(self, state: MultitaskState, losses: Sequence[float]) -> list[float]:
        return [1.0] * len(losses)

    def step(self, state: MultitaskState) -> Work[MultitaskState]:
        """One pass; the first of a block starts with the encoder of the block before."""
        block = self.block(state, state.done)
        if self.num_tasks > 1 and state.done > 0 and block > self.block(state, state.done - 1):
            before, slot = (state.slots[number % self.num_tasks] for number in (block - 1, block))
            weights = encoder_weights(before)
            with torch.no_grad():
                for name, value in encoder_weights(slot).items():
                    value.copy_(weights[name])
            slot.weight_optimiser.state.clear()
        return (yield from super().step(state))

    def _train(self, state: MultitaskState, rate: float) -> Work[None]:
        task = self._judged(state)[0]
        learner, slot, losses = self.learners[task], state.slots[task], []
        steps = self.options.steps_per_pass * self.num_tasks
        for number in range(steps):
            batch = learner.training_batch(state.streams, state.done * steps + number)
            slot.dice.enter()
            try:
                losses.append(learner.weight_step(slot, state.architecture, batch, rate))
            finally:
                slot.dice.leave()
        self._record(state, self.block(state, state.done) // self.num_tasks, task, slot, None)
        state.figures |= mean_loss(losses)
        yield from ()
