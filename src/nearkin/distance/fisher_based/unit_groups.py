"""Groups of hidden units that can be permuted, and permutation of weights by units.

A network computes the same function after its hidden units are permuted, if the weights that compute them and the
weights that read them are permuted in the same way. Inputs and outputs keep their order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nearkin.core.errors import MismatchError, require
from nearkin.distance.fisher_based.unit_trace import Trace, UnitSlice
from nearkin.nets.functional import evaluation_mode, outputs_of

ROUNDING = 1e-4  # of the largest output; rounding errors stay far below, errors of wrong weights do not


@dataclass(frozen=True)
class UnitGroup:
    """Hidden units that are permuted together.

    Attributes:
        name: of the first weight that computes them.
        num: number of units.
        slices: of tensors that have entries for them.
    """

    name: str
    num: int
    slices: tuple[UnitSlice, ...]


def unit_groups(model: nn.Module, x: Tensor) -> tuple[UnitGroup, ...]:
    """The groups of two hidden units or more, in the order in which they are first computed.

    The result is checked: the network with all units permuted must give the same outputs.

    Args:
        model: a network.
        x: inputs `[N, ...]`, of which two are used.

    >>> model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
    >>> (group,) = unit_groups(model, torch.rand(2, 1, 4, 4))
    >>> group.name, group.num, [(item.tensor, item.axis, item.size) for item in group.slices]
    ('0.weight', 3, [('0.weight', 0, 3), ('0.bias', 0, 3), ('3.weight', 1, 12)])
    """
    outputs = outputs_of(model, x[:2])
    trace = Trace(model)
    with evaluation_mode(model):
        with trace:
            trace.freeze(trace.units_of(model(x[:2])))
        groups = tuple(UnitGroup(slices[0].tensor, num, slices) for num, slices in trace.slices())
        moved = permuted(trace.values, groups, {group.name: torch.arange(group.num).roll(1) for group in groups})
        again = functional_call(model, moved, (x[:2],))
    scale = float(outputs.abs().nan_to_num(0, 0, 0).max())
    if not torch.allclose(outputs, again, rtol=0, atol=ROUNDING * scale, equal_nan=True):
        trace.refuse("some of its code (compiled, scripted, mapped) cannot be traced")
    return groups


def permuted(
    values: Mapping[str, Tensor], groups: Sequence[UnitGroup], permutations: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Weights, buffers or other values by name, with unit `permutation[i]` moved to position i.

    Args:
        values: by name, in the shapes of the network; names outside all groups are not changed, names may be missing.
        groups: of the network.
        permutations: `[num]` integers by the name of the group; groups without one are not permuted.

    >>> group = UnitGroup("w", 2, (UnitSlice("w", 0, 0, 4),))
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
        for name, axis, start, size in (item for item in group.slices if item.tensor in values):
            shape = values[name].shape
            require(
                len(shape) > axis and shape[axis] >= start + size,
                f"{name} has shape {tuple(shape)}, the groups need {start + size} or more on axis {axis}; use groups "
                f"and values of one network",
                MismatchError,
            )
            blocks = torch.arange(start, start + size).reshape(group.num, -1)
            indices.setdefault((name, axis), torch.arange(shape[axis]))[start : start + size] = blocks[order].flatten()
    moved = {name: value.detach() for name, value in values.items()}
    for (name, axis), index in indices.items():
        moved[name] = moved[name].index_select(axis, index.to(moved[name].device))
    return moved
