"""A task as a state, for data that no data string can read again: arrays given from Python."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nearkin.core.state import State
from nearkin.tasks.examples import Examples, Scaling
from nearkin.tasks.rows import Chosen, Pixels, Rows, Values, gathered, glance
from nearkin.tasks.task import Task

PACKED_BYTES = 256 * 2**20
PROBE_SAMPLES = 2048


def packed_bytes(task: Task) -> int:
    """How large the data of a task is when packed whole."""
    return sum(_row_bytes(rows) * len(rows) for part in (task.train, task.test) for rows in (part.inputs, part.targets))


def packed(task: Task, limit: int = PACKED_BYTES) -> State:
    """The data of a task, whole where it fits the limit, else 2,048 samples of each part.

    >>> x = torch.randn(10, 3)
    >>> task = Task.from_arrays("toy", x, torch.arange(10) % 2)
    >>> again = unpacked("toy", task.facts(), packed(task))
    >>> again.fingerprint() == task.fingerprint()
    True
    """
    whole = packed_bytes(task) <= limit
    tensors: dict[str, Tensor] = {}
    for name, part in (("train", task.train), ("test", task.test)):
        count = len(part) if whole else min(len(part), PROBE_SAMPLES)
        index = glance(len(part), count)
        tensors[f"{name}/inputs"], tensors[f"{name}/targets"] = _raw(part.inputs, index), _raw(part.targets, index)
    return State(tensors, {"whole": whole})


def unpacked(name: str, facts: Mapping[str, Any], state: State) -> Task:
    """The inverse of `packed`, with the facts the zoo keeps of the task."""
    scaling, target_scaling = Scaling.from_dict(facts["scaling"]), Scaling.from_dict(facts["target_scaling"])

    def part(which: str) -> Examples:
        inputs, targets = _rows(state.tensors[f"{which}/inputs"]), Values(state.tensors[f"{which}/targets"])
        return Examples(inputs, targets, scaling, target_scaling)

    return Task(name, part("train"), part("test"), facts["likelihood"], tuple(facts["classes"]),
                tuple(facts["input_shape"]), facts["source"])  # fmt: skip


def _raw(rows: Rows, index: Tensor) -> Tensor:
    """Rows in their own type: bytes of images stay bytes."""
    if isinstance(rows, Chosen):
        return _raw(rows.rows, rows.index[index])
    if isinstance(rows, Pixels):
        return rows.tensor[index]
    return gathered(Chosen(rows, index))


def _rows(tensor: Tensor) -> Rows:
    return Pixels(tensor) if tensor.dtype == torch.uint8 and tensor.dim() == 4 else Values(tensor)


def _row_bytes(rows: Rows) -> int:
    return _raw(rows, torch.zeros(1, dtype=torch.int64)).element_size() * math.prod(rows.shape)
