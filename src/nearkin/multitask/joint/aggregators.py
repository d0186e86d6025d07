"""Gradient aggregators of TorchJD: one direction from the gradients of several tasks.

Listed are those that need no further solver: UPGrad and DualProj need quadprog, CAGrad and NashMTL need cvxpy.
GradVac, PCD and ExcessMTL are left out because they keep a state that a checkpoint does not hold, Krum and TrimmedMean
because they are for many workers, and Constant because it is the weighting `given`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.core.errors import optional, require

AGGREGATORS: Mapping[str, Mapping[str, Any]] = {
    "Mean": {}, "Sum": {}, "MGDA": {}, "PCGrad": {}, "IMTLG": {}, "AlignedMTL": {}, "ConFIG": {}, "GradDrop": {},
    "FairGrad": {"alpha": 1.0}, "Random": {},
}  # fmt: skip
"""Arguments of every aggregator by its name in TorchJD."""

Gradients = dict[nn.Parameter, Tensor]
"""Gradients by weight; a weight without an entry has none."""


def require_aggregator(name: str) -> None:
    """Raise if a name is not that of a supported aggregator."""
    require(name in AGGREGATORS, f"aggregator must be one of {', '.join(AGGREGATORS)}, got {name!r}")


def aggregator(name: str) -> Callable[[Tensor], Tensor]:
    """An aggregator of TorchJD: the gradients of K tasks `[K, P]` to one direction `[P]`.

    >>> aggregator("Mean")(torch.tensor([[1.0, 0.0], [0.0, 3.0]])).tolist()
    [0.5, 1.5]
    """
    require_aggregator(name)
    library = optional("torchjd.aggregation", "multitask", "a gradient aggregator")
    made: Callable[[Tensor], Tensor] = getattr(library, name)(**AGGREGATORS[name])
    return made


def aggregate(gradients: Sequence[Gradients], direction: Callable[[Tensor], Tensor]) -> Gradients:
    """Direction of the weights that all tasks have a gradient of; the gradients of other weights are summed."""
    shared = [weight for weight in gradients[0] if all(weight in other for other in gradients[1:])]
    total = weighted_sum_of_gradients(gradients, [1.0] * len(gradients))
    if not shared:
        return total
    rows = torch.stack([torch.cat([task[weight].flatten() for weight in shared]) for task in gradients])
    pieces = direction(rows).split([weight.numel() for weight in shared])
    return total | {weight: piece.view_as(weight) for weight, piece in zip(shared, pieces, strict=True)}


def weighted_sum_of_gradients(gradients: Sequence[Gradients], factors: Sequence[float]) -> Gradients:
    """Gradient of the weighted sum of the losses."""
    total: Gradients = {}
    for task, factor in zip(gradients, factors, strict=True):
        for weight, gradient in task.items():
            term = gradient if factor == 1 else factor * gradient
            total[weight] = total[weight] + term if weight in total else term
    return total
