"""Several tasks on the same inputs, of which not every sample has a label for every task.

A task learns from the samples that have its label. The others are not lost: their inputs take part in the transfer,
which needs no labels.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearkin.core.errors import DataError, require
from nearkin.tasks.rows import Rows
from nearkin.tasks.task import Task


class PartlyLabelled(NamedTuple):
    """Tasks on the same inputs, and for each task the inputs without its label, by name."""

    tasks: list[Task]
    unlabelled: dict[str, Rows]


def tasks_with_missing_labels(
    x: Any, targets: Mapping[str, Any], x_test: Any = None, test_targets: Mapping[str, Any] | None = None
) -> PartlyLabelled:
    """Tasks that share inputs; a label that is None or NaN is missing.

    Args:
        x: images as in `Task.from_arrays`, one row for each sample.
        targets: labels or values of every sample, by the name of the task.
        x_test: test images (default: a fifth of the labelled samples of each task).
        test_targets: their labels or values, by the name of the task; missing ones are left out.

    >>> x = torch.rand(12, 1, 4, 4)
    >>> found = tasks_with_missing_labels(x, {"parity": [0, 1] * 6, "half": ["a", "b", None] * 4})
    >>> [(task.name, len(task.train) + len(task.test)) for task in found.tasks]
    [('parity', 12), ('half', 8)]
    >>> {name: len(rows) for name, rows in found.unlabelled.items()}
    {'half': 4}
    """
    require(len(targets) >= 1, "got no targets; give labels by the name of each task")
    require(
        (x_test is None) == (test_targets is None),
        "got test inputs or test targets alone; give both, or neither",
    )
    tasks, unlabelled = [], {}
    for name, values in targets.items():
        there = present(values)
        require(
            len(there) == len(x),
            f"{name}: got {len(there)} targets for {len(x)} inputs; give None or NaN where a label is missing",
            DataError,
        )
        require(bool(there.any()), f"{name}: every label is missing; add some, or leave the task out", DataError)
        rest: tuple[Any, ...] = ()
        if test_targets is not None:
            require(name in test_targets, f"{name}: got no test targets; give those of every task", DataError)
            known = present(test_targets[name])
            rest = (_rows(x_test, known), _labels(test_targets[name], known))
        labelled, labels = _rows(x, there), _labels(values, there)
        tasks.append(Task.from_arrays(name, labelled, labels, *rest))
        if not there.all():
            others = _rows(x, ~there)
            read = Task.from_arrays(name, labelled, labels, others, np.repeat(labels[:1], len(others), 0))
            unlabelled[name] = read.test.inputs
    return PartlyLabelled(tasks, unlabelled)


def present(values: Any) -> NDArray[np.bool_]:
    """Which samples have a label `[N]`: it is neither None nor NaN, nor does an image or a row of values have a NaN.

    >>> present([1.0, float("nan")]).tolist(), present(["a", None]).tolist(), present(np.zeros((2, 3))).tolist()
    ([True, False], [True, False], [True, True])
    """
    array = np.asarray(values)
    if array.dtype == object:
        return np.array([value is not None and value == value for value in array], dtype=bool)
    if not np.issubdtype(array.dtype, np.floating):
        return np.ones(len(array), dtype=bool)
    found: NDArray[np.bool_] = ~np.isnan(array.reshape(len(array), -1)).any(1)
    return found


def _rows(x: Any, there: NDArray[np.bool_]) -> Any:
    return x[torch.from_numpy(there)] if isinstance(x, Tensor) else np.asarray(x)[there]


def _labels(values: Any, there: NDArray[np.bool_]) -> NDArray[Any]:
    """The labels that are there, in the type that they have among themselves."""
    return np.array(np.asarray(values)[there].tolist())
