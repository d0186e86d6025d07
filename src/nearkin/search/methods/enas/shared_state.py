"""What the states of all searches with shared weights have in common, and its form in a checkpoint."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from nearkin.core.state import State, copied, prefixed
from nearkin.search.methods.optimiser_state import load_optimiser, optimiser_tensors
from nearkin.search.plasticity.forgetting_control import ForgettingControl

_FACTS = ("done", "evaluations")


class SharedState(Protocol):
    """What the state of every search with shared weights has.

    Attributes:
        seed: seed of all random numbers.
        net: network with the shared weights.
        weight_optimiser: SGD on the shared weights.
        control: forgetting of every epoch, and plasticity.
        done: number of steps.
        evaluations: number of genotypes that were measured.
        figures: last training loss and other figures for progress displays.
    """

    seed: int
    net: nn.Module
    weight_optimiser: torch.optim.Optimizer
    control: ForgettingControl
    done: int
    evaluations: int
    figures: dict[str, float]


S = TypeVar("S", bound=SharedState)


def capture_shared(
    state: SharedState, modules: Sequence[str] = ("net",), optimisers: Sequence[str] = ("weight_optimiser",)
) -> State:
    """Copy the common part of a state.

    Args:
        state: state of a search.
        modules: names of the modules to copy.
        optimisers: names of the optimisers to copy.
    """
    tensors: dict[str, Tensor] = {}
    for name in modules:
        tensors |= prefixed(name, getattr(state, name).state_dict())
    for name in optimisers:
        tensors |= prefixed(name, optimiser_tensors(getattr(state, name)))
    control = state.control.capture()
    facts = {name: getattr(state, name) for name in ("seed", *_FACTS)}
    facts |= {"figures": dict(state.figures), "control": dict(control.facts)}
    return State({**copied(tensors), **prefixed("control", control.tensors)}, facts)


def restore_shared(
    fresh: S, saved: State, modules: Sequence[str] = ("net",), optimisers: Sequence[str] = ("weight_optimiser",)
) -> S:
    """Load what `capture_shared` copied into a new state that was made with the same seed."""
    for name in modules:
        getattr(fresh, name).load_state_dict(saved.section(name))
    for name in optimisers:
        load_optimiser(getattr(fresh, name), saved.section(name))
    for name in _FACTS:
        setattr(fresh, name, saved.facts[name])
    fresh.figures = dict(saved.facts["figures"])
    fresh.control.restore(State(saved.section("control"), saved.facts["control"]))
    return fresh
