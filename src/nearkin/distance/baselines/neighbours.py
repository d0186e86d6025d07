r"""Accuracy and R² of nearest neighbours in feature space.

Notation: N training samples, M test samples, D features, P columns.

(Fix, Hodges 1951, "Discriminatory Analysis: Nonparametric Discrimination".) The distance is euclidean, or that of rows
scaled to length one, which gives the order of the cosine. Without test samples each training sample is predicted from
all others (leave-one-out). Neighbours that tie for the last of the k places share the remaining weight, so that the
order of samples does not matter. With fewer than k samples, all are neighbours.
"""

from collections.abc import Iterator
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from nearkin.core.errors import MismatchError, require
from nearkin.distance.baselines.feature_table import Features, FeatureTable
from nearkin.distance.baselines.inputs import classes, rows
from nearkin.tasks.likelihood import Gaussian

Metric: TypeAlias = Literal["euclidean", "cosine"]

TIE = 1e-10  # differences of squared distances, relative to the largest, and of vote shares that count as ties
ROWS = 1024  # samples in a block


def knn_accuracy(
    features_train: Features,
    labels_train: Tensor,
    features_test: Tensor | None = None,
    labels_test: Tensor | None = None,
    k: int = 5,
    metric: Metric = "euclidean",
) -> float:
    """Accuracy of a vote of the k nearest neighbours; source -> target, larger is better, in [0, 1].

    A tied vote between m classes, one of them correct, counts 1/m.

    Args:
        features_train: `[N, D]`.
        labels_train: `[N]`.
        features_test: `[M, D]`; None for leave-one-out over the training samples.
        labels_test: `[M]`; a class that is not in the training set is never correct. None for leave-one-out.
        k: number of neighbours.
        metric: `euclidean` or `cosine`.

    >>> x, y = torch.tensor([[0.0], [1.0], [10.0], [11.0]]), torch.tensor([0, 0, 1, 1])
    >>> knn_accuracy(x, y, torch.tensor([[0.4], [10.4]]), torch.tensor([0, 1]), k=2)
    1.0
    >>> knn_accuracy(x, y, torch.tensor([[0.4], [10.4]]), torch.tensor([0, 1]), k=4)
    0.5
    >>> knn_accuracy(x, y, k=1), knn_accuracy(x, torch.tensor([0, 1, 0, 1]), k=1)
    (1.0, 0.0)
    """
    train, test = _both(features_train, features_test)
    y = classes(labels_train, len(train), name="training labels")
    wanted = y if test is None else classes(_require_targets(labels_test), len(test), name="test labels")
    votes = _neighbour_mean(
        train, F.one_hot(y, int(torch.maximum(y.max(), wanted.max())) + 1).double(), test, k, metric
    )
    winners = (votes >= votes.amax(1, keepdim=True) - TIE).double()
    return float((winners.gather(1, wanted[:, None])[:, 0] / winners.sum(1)).mean())


def knn_r2(
    features_train: Features,
    targets_train: Tensor,
    features_test: Tensor | None = None,
    targets_test: Tensor | None = None,
    k: int = 5,
    metric: Metric = "euclidean",
) -> float:
    """R² of the mean of the k nearest neighbours' targets; source -> target, larger is better, at most 1.

    Args:
        features_train: `[N, D]`.
        targets_train: `[N, P]` or `[N]`.
        features_test: `[M, D]`; None for leave-one-out over the training samples.
        targets_test: `[M, P]` or `[M]`; constant ones have no variance and give a very negative R². None for
            leave-one-out.
        k: number of neighbours.
        metric: `euclidean` or `cosine`.

    >>> x = torch.tensor([[0.0], [2.0], [10.0], [12.0]])
    >>> knn_r2(x, x, torch.tensor([[1.0], [11.0]]), torch.tensor([[1.0], [11.0]]), k=2)
    1.0
    """
    train, test = _both(features_train, features_test)
    y = rows(targets_train, "training targets", 1)
    wanted = y if test is None else rows(_require_targets(targets_test), "test targets", 1)
    num_wanted = len(train if test is None else test)
    require(
        len(y) == len(train) and len(wanted) == num_wanted and y.shape[1] == wanted.shape[1],
        f"targets have shapes {tuple(y.shape)} and {tuple(wanted.shape)}, expected {len(train)} and {num_wanted} rows "
        f"and the same columns; give one row for each sample",
        MismatchError,
    )
    form = Gaussian()
    return form.score(form.tally(_neighbour_mean(train, y, test, k, metric), wanted))


def _both(features_train: Features, features_test: Tensor | None) -> tuple[FeatureTable, Tensor | None]:
    if features_test is None:
        return FeatureTable.of(features_train, "training features"), None
    train, test = FeatureTable.of(features_train, "training features", 1), rows(features_test, "test features", 1)
    columns = train.values.shape[1]
    require(
        columns == test.shape[1],
        f"training features have {columns} columns, test features {test.shape[1]}; compute both with one network",
        MismatchError,
    )
    return train, test


def _require_targets(targets: Tensor | None) -> Tensor:
    if targets is None:
        raise MismatchError("got test features without test targets; give both, or neither for leave-one-out")
    return targets


def _neighbour_mean(train: FeatureTable, values: Tensor, test: Tensor | None, k: int, metric: Metric) -> Tensor:
    """Mean of the values `[N, P]` over the k nearest training samples of every test sample: `[M, P]`.

    Without test samples it is computed for the training samples, none of which is its own neighbour.
    """
    require(k >= 1, f"k is the number of neighbours and must be 1 or more, got {k}")
    require(metric in ("euclidean", "cosine"), f"metric must be euclidean or cosine, got {metric!r}")
    leave_one_out, means = test is None, []
    k = min(k, len(train) - leave_one_out)
    for start, apart, slack in _squared_distances(train, test, metric):
        if leave_one_out:
            apart.diagonal(start).fill_(torch.inf)
        near = apart.topk(min(k + 1, apart.shape[1]), largest=False)
        last = near.values[:, k - 1 : k]
        if bool((near.values[:, k:] > last + slack).all()):  # none ties for the last place
            means.append(values[near.indices[:, :k]].mean(1))
            continue
        inside, tied = (apart < last - slack).double(), ((apart - last).abs() <= slack).double()
        left = (k - inside.sum(1, keepdim=True)) / tied.sum(1, keepdim=True)
        means.append((inside + left * tied) @ values / k)
    return torch.cat(means)


def _squared_distances(train: FeatureTable, test: Tensor | None, metric: Metric) -> Iterator[tuple[int, Tensor, float]]:
    """Blocks of squared distances `[B, N]` of test to training samples, with their first row and their precision.

    Without test samples, they are those of the training samples.
    """
    if test is None and metric == "euclidean" and train.wide:
        length = train.gram.diagonal()
        lengths, products = length, train.gram.split(ROWS)
    else:
        known, asked = train.values, train.values if test is None else test
        if metric == "cosine":
            known, asked = F.normalize(known, dim=1), F.normalize(asked, dim=1)
        centre = known.mean(0)
        known, asked = known - centre, asked - centre  # smaller rounding errors near 0
        length, lengths = known.square().sum(1), asked.square().sum(1)
        products = (block @ known.T for block in asked.split(ROWS))
    slack, start = TIE * float(length.max() + lengths.max()), 0
    for product, own in zip(products, lengths.split(ROWS), strict=True):
        yield start, length + own[:, None] - 2 * product, slack
        start += ROWS
