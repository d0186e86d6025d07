"""Convert the trees of scikit-learn's gradient boosting and forests to tensors."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nearkin.solver.simple.tree_machines import AveragedTrees, BoostedTrees, TreeMachine

LEAF = -1  # marks a node without children in scikit-learn


def boosted_from(models: Sequence[Any], num_outputs: int) -> BoostedTrees:
    """Convert a fitted `GradientBoostingClassifier`, or one fitted regressor per output.

    For two classes scikit-learn fits the logit of the second; the first has logit 0.
    """
    trees, values, outputs, baseline = [], [], [], torch.zeros(num_outputs)
    for number, model in enumerate(models):
        width = model.estimators_.shape[1]
        first = num_outputs - width if len(models) == 1 else number
        trees += [fitted.tree_ for round_ in model.estimators_ for fitted in round_]
        values += [
            model.learning_rate * fitted.tree_.value[:, 0, 0] for round_ in model.estimators_ for fitted in round_
        ]
        outputs += list(range(first, first + width)) * len(model.estimators_)
        zeros = np.zeros((1, model.n_features_in_), dtype=np.float32)
        answer = (model.decision_function if hasattr(model, "classes_") else model.predict)(zeros).reshape(-1)
        added = [model.learning_rate * sum(tree.predict(zeros)[0] for tree in column) for column in model.estimators_.T]
        baseline[first : first + width] = torch.from_numpy(answer - np.array(added)).float()
    machine = BoostedTrees(
        len(trees), max(tree.node_count for tree in trees), max(tree.max_depth for tree in trees), num_outputs
    )
    for number, (tree, value) in enumerate(zip(trees, values, strict=True)):
        _write(machine, number * machine.nodes, tree, value)
    machine.output.copy_(torch.tensor(outputs))
    machine.baseline.copy_(baseline)
    return machine


def averaged_from(model: Any, num_outputs: int) -> AveragedTrees:
    """Convert a fitted forest or extra-trees model of scikit-learn; classes that it never saw have probability 0."""
    classes = getattr(model, "classes_", None)
    trees = [fitted.tree_ for fitted in model.estimators_]
    machine = AveragedTrees(
        len(trees), max(tree.node_count for tree in trees), max(tree.max_depth for tree in trees), num_outputs,
        log=classes is not None,
    )  # fmt: skip
    for number, tree in enumerate(trees):
        value = np.zeros((tree.node_count, num_outputs))
        if classes is None:
            value[:] = tree.value[:, :, 0]
        else:
            value[:, classes] = tree.value[:, 0] / tree.value[:, 0].sum(1, keepdims=True)
        _write(machine, number * machine.nodes, tree, value)
    return machine


def floored(threshold: NDArray[np.float64]) -> NDArray[np.float32]:
    """Largest float32 not above each float64; it splits float32 inputs exactly as the float64 does.

    >>> floored(np.array([0.1, 0.5])).astype(np.float64) <= np.array([0.1, 0.5])
    array([ True,  True])
    """
    near = threshold.astype(np.float32)
    below: NDArray[np.float32] = np.where(near > threshold, np.nextafter(near, np.float32(-np.inf)), near)
    return below


def _write(machine: TreeMachine, start: int, tree: Any, value: NDArray[np.float64]) -> None:
    rows = slice(start, start + tree.node_count)
    leaf = tree.children_left == LEAF
    own = np.arange(tree.node_count)
    children = np.stack([np.where(leaf, own, side) for side in (tree.children_left, tree.children_right)], 1)
    machine.feature[rows] = torch.from_numpy(np.where(leaf, 0, tree.feature).astype(np.int32))
    machine.threshold[rows] = torch.from_numpy(np.where(leaf, np.float32(0), floored(tree.threshold)))
    machine.below[rows] = torch.from_numpy((children + start).astype(np.int32))
    machine.value[rows] = torch.from_numpy((value.T * leaf).T.astype(np.float32))
