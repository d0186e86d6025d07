r"""Joint search of one architecture for several tasks: the baselines MTL-SWS, MTL-HWS and MTL-SAO of paper 002.

| sharing | encoders |
| --- | --- |
| `soft` | one for each task, drawn together by $\gamma \sum_{k<j} \|W_k - W_j\|^2 / P$ |
| `hard` | one for all tasks, with a head for each |
| `architecture` | one for each task; only the architecture is shared |

P is the number of weights of an encoder: the squares are averaged, not summed. With a sum, the printed γ = 100 and the
learning rate 0.1 of PC-DARTS a step would multiply the difference of two encoders by $1 - 4 \cdot 0.1 \cdot 100 = -39$.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch

from nearkin.core.errors import require
from nearkin.multitask.joint.aggregators import Gradients, aggregate, aggregator, require_aggregator
from nearkin.multitask.joint.common_weights import (
    apply_shared_gradients,
    require_no_plasticity,
    shared_slots,
    with_same_weights,
)
from nearkin.multitask.joint.joint_training import JointState, JointTraining, JointTrainingOptions
from nearkin.multitask.matching import weight_distance
from nearkin.multitask.multitask_state import HEAD, MultitaskState
from nearkin.search.methods.darts.supernet_learner import LearnerState
from nearkin.search.spaces.base import Space
from nearkin.tasks.task import Task

SHARINGS = ("soft", "hard", "architecture")


def require_gamma(gamma: float) -> None:
    """Raise if encoders would be driven apart."""
    require(gamma >= 0, f"gamma must be 0 or more, got {gamma}")


@dataclass(frozen=True, kw_only=True)
class JointOptions(JointTrainingOptions):
    """Options of the joint search.

    Attributes:
        sharing: soft, hard or architecture.
        gamma: factor γ of the mean squared difference of encoders in soft sharing.
        aggregator: aggregator of TorchJD for the gradients of the shared encoder in hard sharing (default: none, the
            weighted sum); the factors of the losses apply before it.
    """

    sharing: str = "soft"
    gamma: float = 100.0
    aggregator: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.sharing in SHARINGS, f"sharing must be one of {', '.join(SHARINGS)}, got {self.sharing!r}")
        require_gamma(self.gamma)
        if self.aggregator:
            require_aggregator(self.aggregator)
            require(
                self.sharing == "hard",
                f"got aggregator {self.aggregator} with {self.sharing} sharing; an aggregator combines gradients of "
                f"the same weights; use sharing=hard, or leave it out",
            )
        if self.sharing == "hard":
            require_no_plasticity(self.gradient)


class Joint(JointTraining):
    """Search of one architecture for several tasks that are trained at the same time.

    Args:
        tasks: tasks of images.
        space: space of cells.
        options: options of the search (default: soft sharing).
        device: device of the computation (default: CPU).
    """

    name = "joint"
    options: JointOptions

    def __init__(
        self,
        tasks: Sequence[Task],
        space: Space,
        options: JointOptions | None = None,
        *,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(tasks, space, options or JointOptions(), device=device)
        self._aggregator = aggregator(self.options.aggregator) if self.options.aggregator else None

    @property
    def same_start(self) -> bool:
        """Encoders that are drawn together start together."""
        return self.options.sharing != "architecture"

    def _new_slots(self, seed: int) -> list[LearnerState]:
        slots = super()._new_slots(seed)
        if self.options.sharing != "hard":
            return slots
        first, others = slots[0].supernet, [slot.supernet for slot in slots[1:]]
        for supernet in others:
            for part in (name for name, _ in supernet.named_children() if name != "head"):
                setattr(supernet, part, with_same_weights(getattr(first, part)))
        return shared_slots(slots, [first, *others], self.gradient)

    def _combined(self, state: JointState, gradients: Sequence[Gradients]) -> Gradients:
        if self._aggregator is None:
            return super()._combined(state, gradients)
        factors = state.weighting.factors
        weighted = [
            {weight: factor * gradient for weight, gradient in task.items()}
            for factor, task in zip(factors, gradients, strict=True)
        ]
        dice = state.slots[0].dice
        dice.enter()  # some aggregators are random
        try:
            return aggregate(weighted, self._aggregator)
        finally:
            dice.leave()

    def _apply(self, state: MultitaskState, rate: float, sizes: Sequence[int]) -> None:
        if self.options.sharing == "hard":
            apply_shared_gradients(state.slots, self.gradient)
            return
        if self.options.sharing == "soft" and self.options.gamma > 0 and self.num_tasks > 1:
            encoders = [encoder_weights(slot) for slot in state.slots]
            pairs = [weight_distance(one, other) for one, other in combinations(encoders, 2)]
            (self.options.gamma * torch.stack(pairs).sum()).backward()  # adds to the gradients
        for learner, slot, size in zip(self.learners, state.slots, sizes, strict=True):
            learner.apply_gradients(slot, rate, size)


def encoder_weights(slot: LearnerState) -> dict[str, torch.Tensor]:
    """Weights of the encoder of a slot: all but those of its head."""
    return {name: value for name, value in slot.weights.items() if not name.startswith(HEAD)}
