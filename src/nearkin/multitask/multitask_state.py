"""State of a search of one architecture for several tasks, and its checkpoints."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from nearkin.core.plain import typed
from nearkin.core.rng import Streams
from nearkin.core.state import State, prefixed
from nearkin.core.types import Params
from nearkin.multitask.encoder_transfer import Encoder
from nearkin.search.methods.darts.gradient_state import ArchitectureState, capture_architecture, restore_architecture
from nearkin.search.methods.darts.supernet_learner import LearnerState, capture_learner, restore_learner
from nearkin.search.plasticity.telemetry import Forgetting
from nearkin.search.supernet.supernet_layout import Architecture

HEAD = "head."
"""Prefix of the weights of a supernet that are not part of its encoder."""


@dataclass(frozen=True)
class RoundRecord:
    """Figures of one task after its turn in a round, in the last pass of an epoch.

    Attributes:
        epoch: number of the epoch, from 1.
        round: number of the round, from 1.
        task: name of the task.
        loss: loss of the supernet on fixed validation samples.
        metric: its metric on them.
        active: share of pairs of augmentation sets on which student and teacher disagreed in this turn; None without
            transfer.
    """

    epoch: int
    round: int
    task: str
    loss: float
    metric: float
    active: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


@dataclass(kw_only=True)
class MultitaskState(ArchitectureState):
    """State of a search for several tasks.

    Attributes:
        slots: a supernet with its optimiser for each task, or for each round and task.
        streams: random generators.
        scales: validation loss of each task at the first step of the architecture, by which the losses are divided.
        figures: losses of the last pass.
        active: for every pass with transfer, the mean share of pairs on which student and teacher disagreed.
        rounds: figures after each round, in the last pass of every epoch.
    """

    slots: list[LearnerState]
    streams: Streams
    scales: list[float] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    active: list[float] = field(default_factory=list)
    rounds: list[RoundRecord] = field(default_factory=list)


def capture_multitask(state: MultitaskState) -> State:
    """Copy the whole state."""
    saved = capture_architecture(state)
    slots = [capture_learner(slot) for slot in state.slots]
    tensors = {
        name: value for i, slot in enumerate(slots) for name, value in prefixed(f"slot/{i}", slot.tensors).items()
    }
    facts = {
        "architecture": dict(saved.facts),
        "slots": [dict(slot.facts) for slot in slots],
        "seed": state.streams.seed,
        "scales": list(state.scales),
        "figures": dict(state.figures),
        "active": list(state.active),
        "rounds": [record.to_dict() for record in state.rounds],
    }
    return State({**prefixed("shared", saved.tensors), **tensors}, facts)


def restore_multitask(fresh: MultitaskState, saved: State) -> MultitaskState:
    """Load a captured state into a new one that was made with the same seed."""
    restore_architecture(fresh, State(saved.section("shared"), saved.facts["architecture"]))
    for number, (slot, facts) in enumerate(zip(fresh.slots, saved.facts["slots"], strict=True)):
        restore_learner(slot, State(saved.section(f"slot/{number}"), facts))
    fresh.scales, fresh.figures = list(saved.facts["scales"]), dict(saved.facts["figures"])
    fresh.active = list(saved.facts["active"])
    fresh.rounds = [typed(RoundRecord, record, saved.origin) for record in saved.facts["rounds"]]
    return fresh


def merge_forgetting(logs: Sequence[Sequence[Forgetting]]) -> list[Forgetting]:
    """Forgetting of every epoch over several tasks: means of the means, the largest maximum.

    >>> merge_forgetting([[Forgetting(0.5, 0.25, 1.0, 8)], [Forgetting(0.0, 0.25, 2.0, 8)]])
    [Forgetting(mean=0.25, best=0.25, maximum=2.0, architectures=16)]
    """
    return [
        Forgetting(fmean(one.mean for one in epoch), fmean(one.best for one in epoch),
                   max(one.maximum for one in epoch), sum(one.architectures for one in epoch))
        for epoch in zip(*logs, strict=False)
    ]  # fmt: skip


class EmbeddingModule(nn.Module):
    """A supernet that returns embeddings, so that `functional_call` can replace its weights."""

    def __init__(self, supernet: nn.Module) -> None:
        super().__init__()
        self.supernet = supernet

    def forward(self, x: Tensor, architecture: Architecture) -> Tensor:
        """Images `[N, c, H, W]` to embeddings `[N, D]`."""
        embeddings: Tensor = self.supernet.embed(x, architecture)  # type: ignore[operator]
        return embeddings


def encoder_of(slot: LearnerState, architecture: Architecture, weights: Params | None = None) -> Encoder:
    """Encoder of a slot with its own or given weights; its running statistics stay unchanged.

    Args:
        slot: supernet with its running statistics.
        architecture: architecture weights.
        weights: other weights by name (default: those of the supernet).
    """
    module, buffers = EmbeddingModule(slot.supernet), slot.buffers
    replaced = {} if weights is None else {f"supernet.{name}": value for name, value in weights.items()}

    def embed(x: Tensor) -> Tensor:
        copies = {f"supernet.{name}": value.clone() for name, value in buffers.items()}
        embeddings: Tensor = functional_call(module, {**replaced, **copies}, (x, architecture))
        return embeddings

    own = slot.weights if weights is None else weights
    return Encoder(embed, {name: value for name, value in own.items() if not name.startswith(HEAD)})
