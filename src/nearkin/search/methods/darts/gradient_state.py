"""State of a gradient-based search: weights, architecture, both optimisers and monitored quantities."""

import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nearkin.core.state import State, copied, prefixed
from nearkin.search.methods.darts.supernet_learner import LearnerState, capture_learner, restore_learner
from nearkin.search.methods.optimiser_state import load_optimiser, optimiser_tensors


@dataclass(kw_only=True)
class ArchitectureState:
    """Architecture weights with their optimiser, and what the guards watch.

    Attributes:
        architecture: α and β.
        architecture_optimiser: Adam on the architecture; it takes no step in the warm-up.
        done: number of steps.
        entropies: entropy at the end of every epoch after the warm-up.
        eigenvalues: largest eigenvalue at the end of these epochs, if it is monitored.
        past: architecture weights at the end of the last of these epochs, if eigenvalues are monitored.
        ended: why a guard stopped the search.
    """

    architecture: dict[str, Tensor]
    architecture_optimiser: torch.optim.Optimizer
    done: int = 0
    entropies: list[float] = field(default_factory=list)
    eigenvalues: list[float] = field(default_factory=list)
    past: list[dict[str, Tensor]] = field(default_factory=list)
    ended: str = ""


@dataclass(kw_only=True)
class GradientSearchState(LearnerState, ArchitectureState):
    """State of a gradient-based search for one task."""


_FACTS = ("done", "entropies", "eigenvalues", "ended")


def capture_architecture(state: ArchitectureState) -> State:
    """Copy the architecture weights, their optimiser and monitored quantities."""
    tensors = {
        **prefixed("architecture", state.architecture),
        **prefixed("architecture_optimiser", optimiser_tensors(state.architecture_optimiser)),
        **{name: value for i, past in enumerate(state.past) for name, value in prefixed(f"past/{i}", past).items()},
    }
    facts = {name: copy.copy(getattr(state, name)) for name in _FACTS}
    return State(copied(tensors), facts | {"num_past": len(state.past)})


def restore_architecture(fresh: ArchitectureState, saved: State) -> None:
    """Load captured architecture weights into a new state that was made with the same seed."""
    with torch.no_grad():
        for name, value in saved.section("architecture").items():
            fresh.architecture[name].copy_(value)
    load_optimiser(fresh.architecture_optimiser, saved.section("architecture_optimiser"))
    fresh.past = [saved.section(f"past/{i}") for i in range(saved.facts["num_past"])]
    for name in _FACTS:
        setattr(fresh, name, saved.facts[name])


def capture_state(state: GradientSearchState) -> State:
    """Copy the whole state."""
    learner, architecture = capture_learner(state), capture_architecture(state)
    facts = {**learner.facts, **architecture.facts, "seed": state.streams.seed}
    return State({**learner.tensors, **architecture.tensors}, facts)


def restore_state(fresh: GradientSearchState, saved: State) -> GradientSearchState:
    """Load a captured state into a new one that was made with the same seed."""
    restore_learner(fresh, saved)
    restore_architecture(fresh, saved)
    return fresh
