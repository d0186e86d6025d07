"""Trees of scikit-learn's histogram gradient boosting, read out into tensors."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearkin.core.errors import NearkinError
from nearkin.solver.simple.machines import BoostedTrees

FIELDS = ("value", "feature_idx", "num_threshold", "missing_go_to_left", "left", "right", "is_leaf", "is_categorical")


def boosted_from(models: Sequence[Any], num_outputs: int, columns: Tensor | None = None) -> BoostedTrees:
    """The machine of one fitted classifier, or of one fitted regressor for each output.

    Of two classes scikit-learn grows the second one's logit; the first one's is 0. `columns` are the inputs that the
    models were shown; all in their order where nothing is said.
    """
    nodes, outputs = [], []
    baseline = torch.zeros(num_outputs)
    for number, model in enumerate(models):
        grown, start = _read(model)
        first = num_outputs - len(start) if len(models) == 1 else number
        baseline[first : first + len(start)] = torch.from_numpy(start)
        nodes += [tree for trees in grown for tree in trees]
        outputs += [first + place for trees in grown for place in range(len(trees))]
    machine = BoostedTrees(len(nodes), max(map(len, nodes)), max(_depth(tree) for tree in nodes), num_outputs)
    for number, tree in enumerate(nodes):
        _write(machine, number, tree)
    if columns is not None:
        machine.feature.copy_(columns[machine.feature.long()])
    machine.output.copy_(torch.tensor(outputs))
    machine.baseline.copy_(baseline)
    return machine


def floored(threshold: NDArray[np.float64]) -> NDArray[np.float32]:
    """The largest float32 not above each float64, which parts float32 inputs just as the float64 does.

    >>> floored(np.array([0.1, 0.5])).astype(np.float64) <= np.array([0.1, 0.5])
    array([ True,  True])
    """
    near = threshold.astype(np.float32)
    below: NDArray[np.float32] = np.where(near > threshold, np.nextafter(near, np.float32(-np.inf)), near)
    return below


def _read(model: Any) -> tuple[list[list[Any]], NDArray[np.float64]]:
    """Node tables by round and output, and the baseline; one clear line where scikit-learn keeps them elsewhere."""
    try:
        grown = [[tree.nodes for tree in trees] for trees in model._predictors]
        start = np.asarray(model._baseline_prediction, dtype=np.float64).reshape(-1)
        known = all(name in (grown[0][0].dtype.names or ()) for name in FIELDS) and len(start) == len(grown[0])
        known = known and not any(tree["is_categorical"].any() for trees in grown for tree in trees)
    except (AttributeError, IndexError, TypeError) as other:
        raise NearkinError(_unknown()) from other
    if not known:
        raise NearkinError(_unknown())
    return grown, start


def _unknown() -> str:
    import sklearn

    return (
        f"cannot read the trees of scikit-learn {sklearn.__version__}: it keeps them in another form than 1.4 to 1.9; "
        f"install one of these, or leave gradient boosting out"
    )


def _depth(tree: Any) -> int:
    """Comparisons on the longest way to a leaf."""
    front, depth = np.array([0]), 0
    while True:
        front = front[tree["is_leaf"][front] == 0]
        if len(front) == 0:
            return depth
        front = np.concatenate([tree["left"][front], tree["right"][front]]).astype(np.int64)
        depth += 1


def _write(machine: BoostedTrees, number: int, tree: Any) -> None:
    start = number * machine.nodes
    here = slice(start, start + len(tree))
    leaf = tree["is_leaf"].astype(bool)
    own = np.arange(len(tree))
    children = np.stack([np.where(leaf, own, tree[side].astype(np.int64)) for side in ("left", "right")], 1)
    machine.feature[here] = torch.from_numpy(np.where(leaf, 0, tree["feature_idx"]).astype(np.int32))
    machine.threshold[here] = torch.from_numpy(np.where(leaf, np.float32(0), floored(tree["num_threshold"])))
    machine.missing[here] = torch.from_numpy((1 - tree["missing_go_to_left"]).astype(np.uint8))
    machine.below[here] = torch.from_numpy((children + start).astype(np.int32))
    machine.value[here] = torch.from_numpy(np.where(leaf, tree["value"], 0.0).astype(np.float32))
