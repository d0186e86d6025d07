"""Training samples by whose features networks are ranked, and a hash of their inputs."""

import hashlib
from dataclasses import replace

import torch
from torch import Tensor

from nearkin.core.errors import DataError, require
from nearkin.tasks.rows import Chosen, Rows, TensorRows, Values, subset_index
from nearkin.tasks.split import paired_index
from nearkin.tasks.task import Task

BLOCK = 64  # samples that are read and hashed together


def ranking_sample(task: Task, size: int) -> Task:
    """The task with at most `size` of its training samples, the same in every call, so that few inputs are converted.

    Every class has two samples, if `size` suffices for them; classes without a sample are left out, since scores of
    features are those of the classes that are present. The test set, which no score uses, is one training sample.
    """
    classes, targets = task.classes, task.train.targets
    if task.likelihood == "categorical":
        labels = task.train.labels()
        pairs = int((torch.bincount(labels) > 1).sum())
        require(
            pairs >= 2,
            f"'{task.name}' has {pairs} classes of two training samples or more, expected two or more; add samples",
            DataError,
        )
        index = paired_index(labels, size, seed=0)
        present = labels[index].unique()
        classes = tuple(task.classes[i] for i in present.tolist())
        targets = Values(torch.searchsorted(present, labels))  # those of other classes are not used
    else:
        index = subset_index(len(task.train), size)
    train = replace(task.train, targets=targets).chosen(index)
    return replace(task, train=train, test=train.chosen(torch.arange(1)), classes=classes)


def inputs_digest(task: Task) -> str:
    """Hash of all training inputs as they are stored, so that images in memory are not converted, and of their form."""
    digest = hashlib.sha256(repr((task.input_shape, dict(task.preprocessing))).encode())
    for index in torch.arange(len(task.train)).split(BLOCK):
        digest.update(_stored(task.train.inputs, index).contiguous().numpy().tobytes())
    return digest.hexdigest()


def _stored(rows: Rows, index: Tensor) -> Tensor:
    """Rows at `index` as they are in memory; others are read."""
    if isinstance(rows, Chosen):
        return _stored(rows.rows, rows.index[index])
    return rows.tensor[index] if isinstance(rows, TensorRows) else rows.take(index)
