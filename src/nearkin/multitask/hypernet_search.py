r"""Interleaved search in which one hypernetwork computes the weights of the encoders of all tasks and rounds.

In its turn task $k$ of round $r$ has the encoder weights $W = h_V(k, r, A)$. The gradient of its training loss and of
its transfer loss with respect to $W$ is computed as usual, and then that with respect to the parameters $V$ of the
hypernetwork: $W$ is computed a second time, so the graphs of encoder and hypernetwork never exist together. Adam
changes $V$ and the heads. Only the weights of student and teacher exist in a turn, and no encoder weights after it.

The architecture $A$ is a constant input of the hypernetwork, also when its own gradient is computed. $h_V$ is trained
at the architectures of the search only, which change slowly along one path, so its derivative in other directions of
$A$ is not trained. `through_hypernet` adds the gradient along $W = h_V(k, M, A)$.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.core.errors import require
from nearkin.core.events import Work
from nearkin.core.rng import derived_seed, seeded
from nearkin.core.state import State, copied, prefixed
from nearkin.multitask.encoder_transfer import EncoderTransfer
from nearkin.multitask.hypernet import HyperNetwork, encoder_weights
from nearkin.multitask.interleave import Interleave, InterleaveOptions, Turn
from nearkin.multitask.matching import Matching
from nearkin.multitask.multitask_state import MultitaskState
from nearkin.search.methods.darts.architecture_step import Loss, Tensors
from nearkin.search.methods.darts.supernet_learner import LearnerState
from nearkin.search.methods.optimiser_state import load_optimiser, optimiser_tensors
from nearkin.search.supernet.choice_layout import Architecture
from nearkin.tasks.examples import Batch

IMAGES_AT_ONCE = 64  # as many as in a training step, so that a transfer does not need more memory


@dataclass(frozen=True, kw_only=True)
class HypernetOptions(InterleaveOptions):
    """Options of the interleaved search with a hypernetwork.

    Attributes:
        printed: whether the inputs of the hypernetwork are the numbers of task, round and piece, as in the paper.
        hypernet_rate: initial learning rate of Adam on the hypernetwork and the heads; it falls as that of the weights.
        through_hypernet: whether the gradient of the architecture includes the change of the computed weights.
    """

    transfer: EncoderTransfer = field(default_factory=lambda: EncoderTransfer(images_at_once=IMAGES_AT_ONCE))
    printed: bool = False
    hypernet_rate: float = 0.02
    through_hypernet: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.hypernet_rate > 0, f"hypernet_rate must be above 0, got {self.hypernet_rate}")
        require(not self.literal, "a hypernetwork computes the weights of all rounds; use literal=false")
        require(self.gradient.order == 1, "with a hypernetwork there is no gradient of order 2; use order=1")
        require(
            not self.gradient.forgetting.plasticity,
            "plasticity pulls stored weights, and a hypernetwork stores none; use plasticity=false, or the method "
            "interleave",
        )


@dataclass(kw_only=True)
class HypernetState(MultitaskState):
    """State of a search with a hypernetwork. The slots have heads and running statistics, and no encoder weights.

    Attributes:
        hypernet: the hypernetwork.
        hypernet_optimiser: Adam on its parameters.
    """

    hypernet: HyperNetwork
    hypernet_optimiser: torch.optim.Optimizer


class HypernetInterleave(Interleave):
    """Interleaved search with the encoder weights of a hypernetwork.

    >>> from nearkin.core.budget import Budget
    >>> from nearkin.multitask.encoder_transfer import EncoderTransfer
    >>> from nearkin.search.methods.darts.gradient_options import GradientOptions
    >>> from nearkin.search.searcher import run_search
    >>> from nearkin.search.spaces.general import GeneralSpace
    >>> from nearkin.search.supernet.reference import Frame
    >>> from nearkin.tasks.task import Task
    >>> x, y = torch.rand(48, 1, 6, 6), torch.arange(48) % 2
    >>> tasks = [Task.from_arrays(name, x, y, x, y) for name in ("one", "two")]
    >>> gradient = GradientOptions(frame=Frame(channels=4, num_cells=1), epochs=1, batch_size=12)
    >>> options = HypernetOptions(gradient=gradient, transfer=EncoderTransfer(num_sets=4, num_augmentations=2))
    >>> run_search(HypernetInterleave(tasks, GeneralSpace((3,), ("zero", "conv3")), options), Budget()).reason
    'all epochs are done'
    """

    name = "hypernet"
    options: HypernetOptions

    def init(self, seed: int) -> HypernetState:
        """State with a new hypernetwork, and supernets without encoder weights."""
        state = super().init(seed)
        with seeded(derived_seed(seed, "hypernet")):
            hypernet = HyperNetwork(encoder_weights(state.slots[0].supernet), state.architecture, self.num_tasks,
                                    self.options.num_rounds, printed=self.options.printed)  # fmt: skip
        hypernet.to(self.learners[0].device)
        for slot in state.slots:
            _release(slot.supernet)
            slot.weight_optimiser = self._adam(slot.supernet.head)
        return HypernetState(**vars(state), hypernet=hypernet, hypernet_optimiser=self._adam(hypernet))

    def _adam(self, module: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(module.parameters(), self.options.hypernet_rate)

    def _computed(self, state: MultitaskState, task: int, number: int, architecture: Architecture) -> Tensors:
        """Encoder weights of a task in a round."""
        assert isinstance(state, HypernetState)
        weights: Tensors = state.hypernet(task, number, architecture)
        return weights

    @contextmanager
    def _filled(self, state: MultitaskState, task: int, number: int) -> Iterator[None]:
        """In this context the supernet of a task has the encoder weights of a round."""
        supernet = state.slots[task].supernet
        with torch.no_grad():
            weights = self._computed(state, task, number, state.architecture)
        for name, value in encoder_weights(supernet).items():
            value.data = weights[name]
        del weights
        try:
            yield
        finally:
            _release(supernet)

    def _take_turn(self, state: MultitaskState, turn: Turn, rate: float) -> tuple[float, float | None]:
        with self._filled(state, turn.task, turn.round):
            return super()._take_turn(state, turn, rate)

    def _transfer(self, state: MultitaskState, turn: Turn) -> Matching | None:
        if not self._transfers_now(state, turn):
            return None
        assert turn.before is not None
        with self._filled(state, turn.before.task, turn.before.round):
            return super()._transfer(state, turn)

    def _weight_step(self, state: MultitaskState, turn: Turn, rate: float, penalty: Tensor | None) -> float:
        """Step of the head, then one of the hypernetwork along the gradient of the encoder weights."""
        assert isinstance(state, HypernetState)
        rate = self.options.hypernet_rate * rate / self.gradient.learning_rate
        loss = super()._weight_step(state, turn, rate, penalty)
        encoder = encoder_weights(state.slots[turn.task].supernet)
        slopes = {name: value.grad for name, value in encoder.items() if value.grad is not None}
        weights = self._computed(state, turn.task, turn.round, _constant(state.architecture))
        state.hypernet_optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward([weights[name] for name in slopes], list(slopes.values()))
        for group in state.hypernet_optimiser.param_groups:
            group["lr"] = rate
        state.hypernet_optimiser.step()
        return loss

    def _record(self, state: MultitaskState, number: int, task: int, slot: LearnerState, active: float | None) -> None:
        with self._filled(state, task, number):  # the weights after the step
            super()._record(state, number, task, slot, active)

    def _watch(self, state: MultitaskState, task: int, per_epoch: int) -> Work[None]:
        with self._filled(state, task, self.options.num_rounds - 1):
            yield from super()._watch(state, task, per_epoch)

    def _loss(self, state: MultitaskState, task: int, batch: Batch) -> Loss:
        """Loss of a task with the encoder weights of the last round."""
        loss, last = super()._loss(state, task, batch), self.options.num_rounds - 1

        def computed_loss(weights: Tensors, architecture: Tensors) -> Tensor:
            if self.options.through_hypernet:
                computed = self._computed(state, task, last, architecture)
            else:
                with torch.no_grad():
                    computed = self._computed(state, task, last, _constant(architecture))
            return loss({**weights, **computed}, architecture)

        return computed_loss

    def capture(self, state: MultitaskState) -> State:
        """Copy hypernetwork, heads, statistics, architecture, optimisers and monitored quantities."""
        assert isinstance(state, HypernetState)
        saved = super().capture(state)
        own = {
            **prefixed("hypernet", state.hypernet.state_dict()),
            **prefixed("hypernet_optimiser", optimiser_tensors(state.hypernet_optimiser)),
        }
        return State({**saved.tensors, **copied(own)}, saved.facts)

    def restore(self, saved: State) -> MultitaskState:
        """The inverse of `capture`."""
        state = super().restore(saved)
        assert isinstance(state, HypernetState)
        state.hypernet.load_state_dict(saved.section("hypernet"))
        load_optimiser(state.hypernet_optimiser, saved.section("hypernet_optimiser"))
        return state

    def num_weights(self, state: MultitaskState) -> int:
        """Number of parameters of the hypernetwork and of the heads."""
        assert isinstance(state, HypernetState)
        return super().num_weights(state) + state.hypernet.num_parameters

    def details(self, state: MultitaskState) -> Mapping[str, Any]:
        """Also the number of parameters of the hypernetwork, and the number of weights that are not stored."""
        assert isinstance(state, HypernetState)
        hypernet = state.hypernet
        return {**super().details(state), "hypernet": {"parameters": hypernet.num_parameters,
                                                       "weights": hypernet.num_stored}}  # fmt: skip


def _constant(architecture: Architecture) -> Tensors:
    return {name: value.detach() for name, value in architecture.items()}


def _release(supernet: nn.Module) -> None:
    """Free the encoder weights of a supernet and their gradients."""
    for value in encoder_weights(supernet).values():
        value.data, value.grad = torch.empty(0, device=value.device), None
