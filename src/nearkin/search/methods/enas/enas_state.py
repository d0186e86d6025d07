"""State of ENAS: shared weights, controller, both optimisers, baseline and selection."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from nearkin.core.state import State, copied, prefixed
from nearkin.search.methods.enas.controller import Controller
from nearkin.search.methods.optimiser_state import load_optimiser, optimiser_tensors
from nearkin.search.searcher import ScoredGenotype

_MODULES = ("net", "controller")
_OPTIMISERS = ("weight_optimiser", "controller_optimiser")
_FACTS = ("done", "evaluations", "baseline")


@dataclass
class EnasState:
    """State of the search.

    Attributes:
        seed: seed of all random numbers.
        net: network with the shared weights.
        weight_optimiser: SGD on the shared weights.
        controller: the controller.
        controller_optimiser: Adam on the controller.
        done: number of steps.
        evaluations: number of genotypes that were measured.
        baseline: moving average of rewards; None before the first step of the controller.
        selected: samples of the controller at the end of the last epoch, best first; in the first epoch, those of its
            last step.
        figures: last training loss and mean reward.
    """

    seed: int
    net: nn.Module
    weight_optimiser: torch.optim.Optimizer
    controller: Controller
    controller_optimiser: torch.optim.Optimizer
    done: int = 0
    evaluations: int = 0
    baseline: float | None = None
    selected: list[ScoredGenotype] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)


def capture_state(state: EnasState) -> State:
    """Copy the whole state."""
    tensors: dict[str, Tensor] = {}
    for name in _MODULES:
        tensors |= prefixed(name, getattr(state, name).state_dict())
    for name in _OPTIMISERS:
        tensors |= prefixed(name, optimiser_tensors(getattr(state, name)))
    facts = {name: getattr(state, name) for name in ("seed", *_FACTS)}
    selected = [scored.to_dict() for scored in state.selected]
    return State(copied(tensors), {**facts, "figures": dict(state.figures), "selected": selected})


def restore_state(fresh: EnasState, saved: State) -> EnasState:
    """Load a captured state into a new one that was made with the same seed."""
    for name in _MODULES:
        getattr(fresh, name).load_state_dict(saved.section(name))
    for name in _OPTIMISERS:
        load_optimiser(getattr(fresh, name), saved.section(name))
    for name in _FACTS:
        setattr(fresh, name, saved.facts[name])
    fresh.figures = dict(saved.facts["figures"])
    fresh.selected = [ScoredGenotype.from_dict(facts) for facts in saved.facts["selected"]]
    return fresh
