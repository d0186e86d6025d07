"""State of ENAS: shared weights, controller, both optimisers, baseline and selection."""

from dataclasses import dataclass, field

import torch
from torch import nn

from nearkin.core.state import State
from nearkin.search.methods.enas.controller import Controller
from nearkin.search.methods.enas.shared_state import capture_shared, restore_shared
from nearkin.search.plasticity.forgetting_control import ForgettingControl
from nearkin.search.searcher import ScoredGenotype

_MODULES = ("net", "controller")
_OPTIMISERS = ("weight_optimiser", "controller_optimiser")


@dataclass
class EnasState:
    """State of the search.

    Attributes:
        seed: seed of all random numbers.
        net: network with the shared weights.
        weight_optimiser: SGD on the shared weights.
        control: forgetting of every epoch, and plasticity.
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
    control: ForgettingControl
    controller: Controller
    controller_optimiser: torch.optim.Optimizer
    done: int = 0
    evaluations: int = 0
    baseline: float | None = None
    selected: list[ScoredGenotype] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)


def capture_state(state: EnasState) -> State:
    """Copy the whole state."""
    shared = capture_shared(state, _MODULES, _OPTIMISERS)
    selected = [scored.to_dict() for scored in state.selected]
    return State(shared.tensors, {**shared.facts, "baseline": state.baseline, "selected": selected})


def restore_state(fresh: EnasState, saved: State) -> EnasState:
    """Load a captured state into a new one that was made with the same seed."""
    restore_shared(fresh, saved, _MODULES, _OPTIMISERS)
    fresh.baseline = saved.facts["baseline"]
    fresh.selected = [ScoredGenotype.from_dict(facts) for facts in saved.facts["selected"]]
    return fresh
