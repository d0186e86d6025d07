"""Groups of hidden units that may trade places, and weights with their units moved.

A network computes the same function when the hidden units of a layer are permuted, if every weight that writes or
reads them is permuted along. Inputs and outputs stay in place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nearkin.core.errors import MismatchError, require
from nearkin.distance.fisher_based.unit_trace import Place, Trace
from nearkin.nets.functional import evaluation_mode, outputs_of

ROUNDING = 1e-4  # of the largest output; sums of float32 in another order stay far below, wrong weights do not


@dataclass(frozen=True)
class UnitGroup:
    """Hidden units that move together: the weight that writes them first, how many they are, where they are counted."""

    name: str
    num: int
    places: tuple[Place, ...]


def unit_groups(model: nn.Module, x: Tensor) -> tuple[UnitGroup, ...]:
    """The groups of two hidden units or more, in the order in which they are first written.

    What was followed is tried out: the network is run with all units moved, and must answer the same.

    Args:
        model: a network.
        x: inputs `[N, ...]`, of which two are looked at.

    >>> model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
    >>> (group,) = unit_groups(model, torch.rand(2, 1, 4, 4))
    >>> group.name, group.num, [(place.tensor, place.axis, place.size) for place in group.places]
    ('0.weight', 3, [('0.weight', 0, 3), ('0.bias', 0, 3), ('3.weight', 1, 12)])
    """
    outputs = outputs_of(model, x[:2])
    trace = Trace(model)
    with evaluation_mode(model):
        with trace:
            trace.freeze(trace.units_of(model(x[:2])))
        groups = tuple(UnitGroup(places[0].tensor, num, places) for num, places in trace.places())
        moved = permuted(trace.values, groups, {group.name: torch.arange(group.num).roll(1) for group in groups})
        again = functional_call(model, moved, (x[:2],))
    scale = float(outputs.abs().nan_to_num(0, 0, 0).max())
    if not torch.allclose(outputs, again, rtol=0, atol=ROUNDING * scale, equal_nan=True):
        trace.refuse("some of its code (compiled, scripted, mapped) hides what it does with them")
    return groups


def permuted(
    values: Mapping[str, Tensor], groups: Sequence[UnitGroup], permutations: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Weights, buffers or whatever else is kept by weight, with unit `permutation[i]` moved to place i.

    Args:
        values: by name, in the shapes of the network; names that no group knows are kept, missing ones do not matter.
        groups: of the network.
        permutations: `[num]` integers by the name of the group; groups without one stay.

    >>> group = UnitGroup("w", 2, (Place("w", 0, 0, 4),))
    >>> permuted({"w": torch.arange(4)}, [group], {"w": torch.tensor([1, 0])})["w"]
    tensor([2, 3, 0, 1])
    """
    indices: dict[tuple[str, int], Tensor] = {}
    for group in groups:
        order = permutations.get(group.name, torch.arange(group.num)).cpu()
        require(
            torch.equal(order.sort().values, torch.arange(group.num)),
            f"a permutation of {group.name} holds each of 0 to {group.num - 1} once, got {order.tolist()[:8]}",
        )
        for name, axis, start, size in (place for place in group.places if place.tensor in values):
            shape = values[name].shape
            require(
                len(shape) > axis and shape[axis] >= start + size,
                f"{name} has shape {tuple(shape)}, the groups want {start + size} or more on axis {axis}; take groups "
                f"and values from one network",
                MismatchError,
            )
            blocks = torch.arange(start, start + size).reshape(group.num, -1)
            indices.setdefault((name, axis), torch.arange(shape[axis]))[start : start + size] = blocks[order].flatten()
    moved = {name: value.detach() for name, value in values.items()}
    for (name, axis), index in indices.items():
        moved[name] = moved[name].index_select(axis, index.to(moved[name].device))
    return moved
