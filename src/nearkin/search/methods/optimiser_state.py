"""Tensors of optimisers in checkpoints."""

from collections.abc import Mapping

import torch
from torch import Tensor


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Moments and counts of an optimiser, under `NUMBER/NAME` with the number of the weight."""
    inner = optimiser.state_dict()["state"]
    return {f"{i}/{key}": torch.as_tensor(value) for i, entry in inner.items() for key, value in entry.items()
            if value is not None}  # fmt: skip


def load_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """The inverse of `optimiser_tensors`."""
    shell = optimiser.state_dict()
    shell["state"] = {}
    for name, value in tensors.items():
        number, key = name.split("/")
        shell["state"].setdefault(int(number), {})[key] = value.clone()
    optimiser.load_state_dict(shell)
