"""Tasks as stored states, for data without a data string: arrays from Python."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nearkin.core.state import State
from nearkin.tasks.examples import Examples, Scaling
from nearkin.tasks.rows import Chosen, Pixels, Rows, Values, gathered, subset_index
from nearkin.tasks.task import Task

PACKED_BYTES = 256 * 2**20
PROBE_SAMPLES = 2048


def packed_bytes(task: Task) -> int:
    """Bytes of all data of a task when packed."""
    return sum(_bytes(rows) for examples in (task.train, task.test) for rows in (examples.inputs, examples.targets))


def packed(task: Task, limit: int = PACKED_BYTES) -> State:
    """All data of a task if it fits the limit, else 2,048 samples of each split.

    >>> x = torch.randn(10, 3)
    >>> task = Task.from_arrays("toy", x, torch.arange(10) % 2)
    >>> again = unpacked("toy", task.facts(), packed(task))
    >>> again.fingerprint() == task.fingerprint()
    True
    """
    whole = packed_bytes(task) <= limit
    tensors: dict[str, Tensor] = {}
    for split, examples in (("train", task.train), ("test", task.test)):
        index = subset_index(len(examples), len(examples) if whole else PROBE_SAMPLES)
        tensors[f"{split}/inputs"] = _raw(examples.inputs, index)
        tensors[f"{split}/targets"] = _raw(examples.targets, index)
        if examples.weights is not None:
            tensors[f"{split}/weights"] = examples.weights[index]
    return State(tensors, {"whole": whole})


def unpacked(name: str, facts: Mapping[str, Any], state: State) -> Task:
    """Rebuild a task from its `packed` state and from the facts that the zoo stores."""
    scaling, target_scaling = Scaling.from_dict(facts["scaling"]), Scaling.from_dict(facts["target_scaling"])

    def examples(split: str) -> Examples:
        tensor, targets = state.tensors[f"{split}/inputs"], Values(state.tensors[f"{split}/targets"])
        inputs = Pixels(tensor) if tensor.dtype == torch.uint8 and tensor.dim() == 4 else Values(tensor)
        return Examples(inputs, targets, scaling, target_scaling, state.tensors.get(f"{split}/weights"))

    return Task(name, examples("train"), examples("test"), facts["likelihood"], tuple(facts["classes"]),
                tuple(facts["input_shape"]), facts["source"], facts.get("preprocessing", {}))  # fmt: skip


def _raw(rows: Rows, index: Tensor) -> Tensor:
    """The rows at `index` in their own type: byte images stay bytes."""
    if isinstance(rows, Chosen):
        return _raw(rows.rows, rows.index[index])
    if isinstance(rows, Pixels):
        return rows.tensor[index]
    return gathered(Chosen(rows, index))


def _bytes(rows: Rows) -> int:
    return _raw(rows, torch.zeros(1, dtype=torch.int64)).element_size() * math.prod(rows.shape) * len(rows)
