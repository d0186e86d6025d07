r"""Nearest neighbours in feature space: what a source's features tell without any fitting.

Notation: N samples to learn from, M to judge by, D features, P columns.

(Fix, Hodges 1951, "Discriminatory Analysis: Nonparametric Discrimination".) The distance is euclidean, or that of rows
scaled to length one, which has the order of the cosine. Without samples to judge by, each sample is judged by all
others (leave-one-out). Neighbours that tie for the last of the k places share what is left of them, so that the order
of samples does not matter; where there are fewer than k samples, all are neighbours.
"""

from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from nearkin.core.errors import MismatchError, require
from nearkin.distance.baselines.inputs import classes, rows
from nearkin.tasks.likelihood import Gaussian

Metric: TypeAlias = Literal["euclidean", "cosine"]

TIE = 1e-10  # squared distances, in units of the largest possible, and shares of votes that count as equal
ROWS = 1024  # samples judged at once


def knn_accuracy(
    features_train: Tensor,
    labels_train: Tensor,
    features_test: Tensor | None = None,
    labels_test: Tensor | None = None,
    k: int = 5,
    metric: Metric = "euclidean",
) -> float:
    """Accuracy of a vote of the k nearest neighbours; source -> target, larger is better, in [0, 1].

    A vote that ties between m classes, one of them right, counts 1/m.

    Args:
        features_train: `[N, D]`.
        labels_train: `[N]`.
        features_test: `[M, D]`; None for leave-one-out over the training samples.
        labels_test: `[M]`; a class unknown to the training part is never right. None for leave-one-out.
        k: neighbours asked.
        metric: `euclidean` or `cosine`.

    >>> know, y = torch.tensor([[0.0], [1.0], [10.0], [11.0]]), torch.tensor([0, 0, 1, 1])
    >>> knn_accuracy(know, y, torch.tensor([[0.4], [10.4]]), torch.tensor([0, 1]), k=2)
    1.0
    >>> knn_accuracy(know, y, torch.tensor([[0.4], [10.4]]), torch.tensor([0, 1]), k=4)
    0.5
    >>> knn_accuracy(know, y, k=1), knn_accuracy(know, torch.tensor([0, 1, 0, 1]), k=1)
    (1.0, 0.0)
    """
    known, asked = _both(features_train, features_test)
    y = classes(labels_train, len(known), what="training labels")
    judge = y if asked is None else classes(_given(labels_test), len(asked), what="test labels")
    votes = _mean(known, F.one_hot(y, int(torch.maximum(y.max(), judge.max())) + 1).double(), asked, k, metric)
    winners = (votes >= votes.amax(1, keepdim=True) - TIE).double()
    return float((winners.gather(1, judge[:, None])[:, 0] / winners.sum(1)).mean())


def knn_r2(
    features_train: Tensor,
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
        targets_test: `[M, P]` or `[M]`; constant ones have next to no variance to explain and give a huge negative R².
            None for leave-one-out.
        k: neighbours asked.
        metric: `euclidean` or `cosine`.

    >>> know = torch.tensor([[0.0], [2.0], [10.0], [12.0]])
    >>> knn_r2(know, know, torch.tensor([[1.0], [11.0]]), torch.tensor([[1.0], [11.0]]), k=2)
    1.0
    """
    known, asked = _both(features_train, features_test)
    y = rows(targets_train, "training targets", 1)
    judge = y if asked is None else rows(_given(targets_test), "test targets", 1)
    num_judged = len(known if asked is None else asked)
    require(
        len(y) == len(known) and len(judge) == num_judged and y.shape[1] == judge.shape[1],
        f"targets have shapes {tuple(y.shape)} and {tuple(judge.shape)}, wanted {len(known)} and {num_judged} rows "
        f"and the same columns",
        MismatchError,
    )
    form = Gaussian()
    return form.score(form.tally(_mean(known, y, asked, k, metric), judge))


def _both(features_train: Tensor, features_test: Tensor | None) -> tuple[Tensor, Tensor | None]:
    if features_test is None:
        return rows(features_train, "training features"), None
    known, asked = rows(features_train, "training features", 1), rows(features_test, "test features", 1)
    require(
        known.shape[1] == asked.shape[1],
        f"training features have {known.shape[1]} columns, test features {asked.shape[1]}; take both from one network",
        MismatchError,
    )
    return known, asked


def _given(targets: Tensor | None) -> Tensor:
    if targets is None:
        raise MismatchError("there are test features but no test targets; give both, or none for leave-one-out")
    return targets


def _mean(known: Tensor, values: Tensor, asked: Tensor | None, k: int, metric: Metric) -> Tensor:
    """Mean of the values `[N, P]` over the k nearest known samples of every asked one: `[M, P]`.

    Without asked samples, every known one is asked about, and is not its own neighbour.
    """
    require(k >= 1, f"k counts neighbours and must be 1 or more, got {k}")
    require(metric in ("euclidean", "cosine"), f"metric must be euclidean or cosine, got {metric!r}")
    alone = asked is None
    asked = known if asked is None else asked
    if metric == "cosine":
        known, asked = F.normalize(known, dim=1), F.normalize(asked, dim=1)
    middle, k = known.mean(0), min(k, len(known) - alone)
    known, asked = known - middle, asked - middle  # nearer to 0, where products lose less
    length = known.square().sum(1)
    slack = TIE * float(length.max() + asked.square().sum(1).max())
    found = []
    for start in range(0, len(asked), ROWS):
        part = asked[start : start + ROWS]
        apart = length + part.square().sum(1, keepdim=True) - 2 * part @ known.T
        if alone:
            apart.diagonal(start).fill_(torch.inf)
        last = apart.topk(k, largest=False).values.amax(1, keepdim=True)
        inside, tied = (apart < last - slack).double(), ((apart - last).abs() <= slack).double()
        left = (k - inside.sum(1, keepdim=True)) / tied.sum(1, keepdim=True)
        found.append((inside + left * tied) @ values / k)
    return torch.cat(found)
