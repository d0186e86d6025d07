"""The state of a gradient-based search: weights, architecture, both optimisers and what was observed, saved whole."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from nearkin.core.rng import Streams
from nearkin.core.state import State, copied, prefixed
from nearkin.nets.training import ScopedRng
from nearkin.search.methods.darts.architecture_step import Loss
from nearkin.search.supernet.fused.supernet import Supernet
from nearkin.tasks.examples import Batch
from nearkin.tasks.likelihood import Likelihood


@dataclass
class Search:
    """All that the rest of a search depends on.

    Attributes:
        supernet: with weights and running statistics.
        architecture: α and β.
        weight_optimiser: SGD on the weights.
        architecture_optimiser: Adam on the architecture; it has made no step in the warm-up.
        streams: the seed's generators.
        dice: torch's global generator, for operations that draw from it.
        done: steps.
        figures: training and validation loss of the last steps.
        entropies: at the end of every epoch after the warm-up.
        eigenvalues: the same, where they are watched.
        past: architecture weights at the end of these epochs, where eigenvalues are watched.
        ended: why the guards stopped the search.
    """

    supernet: Supernet
    architecture: dict[str, Tensor]
    weight_optimiser: torch.optim.Optimizer
    architecture_optimiser: torch.optim.Optimizer
    streams: Streams
    dice: ScopedRng
    done: int = 0
    figures: dict[str, float] = field(default_factory=dict)
    entropies: list[float] = field(default_factory=list)
    eigenvalues: list[float] = field(default_factory=list)
    past: list[dict[str, Tensor]] = field(default_factory=list)
    ended: str = ""

    @property
    def weights(self) -> dict[str, Tensor]:
        """Those of the supernet, by name."""
        return dict(self.supernet.named_parameters())

    @property
    def buffers(self) -> dict[str, Tensor]:
        """Running statistics, by name."""
        return dict(self.supernet.named_buffers())


def quiet_loss(state: Search, form: Likelihood, batch: Batch) -> Loss:
    """The loss on a batch; running statistics are those of copies, so that none moves at weights that are tried."""
    buffers, supernet = state.buffers, state.supernet

    def loss(weights: dict[str, Tensor], architecture: dict[str, Tensor]) -> Tensor:
        copies = {name: value.clone() for name, value in buffers.items()}
        return form.loss(functional_call(supernet, {**weights, **copies}, (batch.x, architecture)), batch.y)

    return loss


def drift(state: Search) -> dict[str, Tensor]:
    """What the optimiser of the weights adds to their gradient: momentum and weight decay."""
    options, found = state.weight_optimiser.param_groups[0], {}
    for name, value in state.weights.items():
        found[name] = options["weight_decay"] * value.detach()
        speed = state.weight_optimiser.state.get(value, {}).get("momentum_buffer")
        if speed is not None:
            found[name] += options["momentum"] * speed
    return found


_FACTS = ("done", "figures", "entropies", "eigenvalues", "ended")


def captured(state: Search) -> State:
    """A copy of everything."""
    tensors = {
        **prefixed("supernet", state.supernet.state_dict()),
        **prefixed("architecture", state.architecture),
        **prefixed("weight_optimiser", _moments(state.weight_optimiser)),
        **prefixed("architecture_optimiser", _moments(state.architecture_optimiser)),
        **{name: value for i, past in enumerate(state.past) for name, value in prefixed(f"past/{i}", past).items()},
        "dice": state.dice.state,
    }
    facts: dict[str, Any] = {name: getattr(state, name) for name in _FACTS}
    copies = {name: list(value) if isinstance(value, list) else value for name, value in facts.items()}
    copies["figures"] = dict(state.figures)
    return State(copied(tensors), {**copies, "seed": state.streams.seed, "num_past": len(state.past)})


def restored(fresh: Search, saved: State) -> Search:
    """What was captured, put into a state that was made with the same seed."""
    fresh.supernet.load_state_dict(saved.section("supernet"))
    with torch.no_grad():
        for name, value in saved.section("architecture").items():
            fresh.architecture[name].copy_(value)
    for optimiser, name in (
        (fresh.weight_optimiser, "weight_optimiser"),
        (fresh.architecture_optimiser, "architecture_optimiser"),
    ):
        _load_moments(optimiser, saved.section(name))
    fresh.dice.state = saved.tensors["dice"]
    fresh.past = [saved.section(f"past/{i}") for i in range(saved.facts["num_past"])]
    for name in _FACTS:
        setattr(fresh, name, saved.facts[name])
    return fresh


def _moments(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    inner = optimiser.state_dict()["state"]
    return {f"{i}/{key}": torch.as_tensor(value) for i, entry in inner.items() for key, value in entry.items()
            if value is not None}  # fmt: skip


def _load_moments(optimiser: torch.optim.Optimizer, moments: Mapping[str, Tensor]) -> None:
    shell = optimiser.state_dict()
    shell["state"] = {}
    for name, value in moments.items():
        place, key = name.split("/")
        shell["state"].setdefault(int(place), {})[key] = value
    optimiser.load_state_dict(shell)
