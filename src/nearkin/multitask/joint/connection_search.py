"""Search for the connections between tasks beside the operations of the cells: the common part of two such searches.

Every connection has a logit. The logits are part of the architecture: they learn on validation losses, with Adam and
a learning rate of their own, and a penalty draws them to a decision. Supernets take the values of the connections as
the entry `connections` of the architecture. Paths of a genotype use the connections that would be kept at present,
which are a buffer of the supernet.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nearkin.core.errors import require, require_positive
from nearkin.core.events import Work
from nearkin.core.rng import Streams
from nearkin.multitask.joint.common_weights import apply_shared_gradients, require_no_plasticity
from nearkin.multitask.joint.joint_training import JointTraining, JointTrainingOptions
from nearkin.multitask.multitask_state import MultitaskState
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.searcher import ScoredGenotype
from nearkin.search.supernet.reference import Frame, StackedCells
from nearkin.search.supernet.supernet_layout import Architecture, SupernetLayout

CONNECTIONS = "connections"
"""Logits of the connections in the architecture, and their values in that of a task."""


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions(JointTrainingOptions):
    """Options of a search for connections between tasks.

    Attributes:
        connection_rate: learning rate of Adam on the logits of the connections.
        connection_penalty: factor of the penalty on the connections.
    """

    connection_rate: float = 0.01
    connection_penalty: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("connection_rate", self.connection_rate)
        require(self.connection_penalty >= 0, f"connection_penalty must be 0 or more, got {self.connection_penalty}")
        require_no_plasticity(self.gradient)


class ConnectedSupernet(StackedCells):
    """Supernet of one task with connections to others.

    Args:
        layout: cells of the supernet.
        frame: macro-architecture.
        decided: connections that paths of a genotype use.
    """

    connections: Tensor

    def __init__(self, layout: SupernetLayout, frame: Frame, decided: Tensor) -> None:
        super().__init__(layout, frame)
        self.register_buffer(CONNECTIONS, decided)

    def values(self, architecture: Architecture | Genotype) -> Tensor:
        """Values of the connections."""
        return self.connections if isinstance(architecture, Genotype) else architecture[CONNECTIONS]

    def last_maps(self, outputs: list[Tensor]) -> list[Tensor]:
        """The last feature map of every resolution from the outputs of all cells."""
        last = len(outputs) - 1
        return [output for number, output in enumerate(outputs) if number == last or self.frame.reduces(number + 1)]


class ConnectionSearch(JointTraining):
    """Search of one architecture and of the connections between tasks."""

    options: ConnectionOptions

    def init(self, seed: int) -> MultitaskState:
        """State with new supernets and undecided connections."""
        state = super().init(seed)
        logits = self._logits(state.streams).to(self.learners[0].device).requires_grad_()
        state.architecture[CONNECTIONS] = logits
        state.architecture_optimiser.add_param_group(
            {"params": [logits], "lr": self.options.connection_rate, "weight_decay": 0.0}
        )
        return state

    @abstractmethod
    def _logits(self, streams: Streams) -> Tensor:
        """Logits before the first step."""

    @abstractmethod
    def _values(self, state: MultitaskState, task: int, logits: Tensor) -> Tensor:
        """Values of the connections of a task in this pass."""

    @abstractmethod
    def _decided(self, task: int, logits: Tensor) -> Tensor:
        """Connections of a task that would be kept, as 0 and 1."""

    @abstractmethod
    def penalty(self, state: MultitaskState, logits: Tensor) -> Tensor:
        """Penalty on the connections, with its factor."""

    @abstractmethod
    def connection_facts(self, state: MultitaskState) -> Mapping[str, float | str]:
        """The connections that would be kept, as facts of the result."""

    def _task_architecture(
        self, state: MultitaskState, task: int, architecture: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        return architecture | {CONNECTIONS: self._values(state, task, architecture[CONNECTIONS])}

    def _penalised(self, state: MultitaskState, slopes: dict[str, Tensor]) -> dict[str, Tensor]:
        logits = state.architecture[CONNECTIONS].detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.penalty(state, logits), [logits])
        return slopes | {CONNECTIONS: slopes[CONNECTIONS] + slope}

    def _train(self, state: MultitaskState, rate: float) -> Work[None]:
        for task, slot in enumerate(state.slots):
            assert isinstance(slot.supernet, ConnectedSupernet)
            slot.supernet.connections.copy_(self._decided(task, state.architecture[CONNECTIONS].detach()))
        yield from super()._train(state, rate)

    def _apply(self, state: MultitaskState, rate: float, sizes: object) -> None:
        apply_shared_gradients(state.slots, self.gradient)

    def best(self, state: MultitaskState) -> ScoredGenotype | None:
        """Genotype of the largest architecture weights, with the connections as facts."""
        scored = super().best(state)
        if scored is None:
            return None
        return replace(scored, facts={**scored.facts, **self.connection_facts(state)})
