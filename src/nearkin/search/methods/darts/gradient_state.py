"""State of a gradient-based search: weights, architecture, both optimisers and monitored quantities."""

import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.func import functional_call

from nearkin.core.rng import Streams
from nearkin.core.state import State, copied, prefixed
from nearkin.nets.training import ScopedRng
from nearkin.search.methods.darts.architecture_step import Loss
from nearkin.search.methods.optimiser_state import load_optimiser, optimiser_tensors
from nearkin.search.plasticity.forgetting_control import ForgettingControl
from nearkin.search.supernet.fused.supernet import Supernet
from nearkin.tasks.examples import Batch
from nearkin.tasks.likelihood import Likelihood


@dataclass
class GradientSearchState:
    """State of a gradient-based search.

    Attributes:
        supernet: supernet with weights and running statistics.
        architecture: α and β.
        weight_optimiser: SGD on the weights.
        architecture_optimiser: Adam on the architecture; it takes no step in the warm-up.
        streams: random generators.
        dice: torch's global generator, for operations that draw from it.
        control: forgetting of every epoch, and plasticity.
        done: number of steps.
        figures: training and validation loss of the last steps.
        entropies: entropy at the end of every epoch after the warm-up.
        eigenvalues: largest eigenvalue at the end of these epochs, if it is monitored.
        past: architecture weights at the end of the last of these epochs, if eigenvalues are monitored.
        ended: why a guard stopped the search.
    """

    supernet: Supernet
    architecture: dict[str, Tensor]
    weight_optimiser: torch.optim.Optimizer
    architecture_optimiser: torch.optim.Optimizer
    streams: Streams
    dice: ScopedRng
    control: ForgettingControl
    done: int = 0
    figures: dict[str, float] = field(default_factory=dict)
    entropies: list[float] = field(default_factory=list)
    eigenvalues: list[float] = field(default_factory=list)
    past: list[dict[str, Tensor]] = field(default_factory=list)
    ended: str = ""

    @property
    def weights(self) -> dict[str, Tensor]:
        """Weights of the supernet by name."""
        return dict(self.supernet.named_parameters())

    @property
    def buffers(self) -> dict[str, Tensor]:
        """Running statistics of the supernet by name."""
        return dict(self.supernet.named_buffers())


def stateless_loss(state: GradientSearchState, form: Likelihood, batch: Batch) -> Loss:
    """Loss on a batch as a function of weights and architecture, which updates copies of the running statistics."""
    buffers, supernet = state.buffers, state.supernet

    def loss(weights: dict[str, Tensor], architecture: dict[str, Tensor]) -> Tensor:
        copies = {name: value.clone() for name, value in buffers.items()}
        return form.loss(functional_call(supernet, {**weights, **copies}, (batch.x, architecture)), batch.y)

    return loss


def drift(state: GradientSearchState) -> dict[str, Tensor]:
    """Terms that the optimiser adds to the gradient of the weights: momentum and weight decay."""
    options, terms = state.weight_optimiser.param_groups[0], {}
    for name, value in state.weights.items():
        terms[name] = options["weight_decay"] * value.detach()
        velocity = state.weight_optimiser.state.get(value, {}).get("momentum_buffer")
        if velocity is not None:
            terms[name] += options["momentum"] * velocity
    return terms


_FACTS = ("done", "figures", "entropies", "eigenvalues", "ended")


def capture_state(state: GradientSearchState) -> State:
    """Copy the whole state."""
    tensors = {
        **prefixed("supernet", state.supernet.state_dict()),
        **prefixed("architecture", state.architecture),
        **prefixed("weight_optimiser", optimiser_tensors(state.weight_optimiser)),
        **prefixed("architecture_optimiser", optimiser_tensors(state.architecture_optimiser)),
        **{name: value for i, past in enumerate(state.past) for name, value in prefixed(f"past/{i}", past).items()},
        "dice": state.dice.state,
    }
    control = state.control.capture()
    facts = {name: copy.copy(getattr(state, name)) for name in _FACTS}
    facts |= {"seed": state.streams.seed, "num_past": len(state.past), "control": dict(control.facts)}
    return State({**copied(tensors), **prefixed("control", control.tensors)}, facts)


def restore_state(fresh: GradientSearchState, saved: State) -> GradientSearchState:
    """Load a captured state into a new one that was made with the same seed."""
    fresh.supernet.load_state_dict(saved.section("supernet"))
    with torch.no_grad():
        for name, value in saved.section("architecture").items():
            fresh.architecture[name].copy_(value)
    for name in ("weight_optimiser", "architecture_optimiser"):
        load_optimiser(getattr(fresh, name), saved.section(name))
    fresh.dice.state = saved.tensors["dice"]
    fresh.past = [saved.section(f"past/{i}") for i in range(saved.facts["num_past"])]
    for name in _FACTS:
        setattr(fresh, name, saved.facts[name])
    fresh.control.restore(State(saved.section("control"), saved.facts["control"]))
    return fresh
