"""Checks of features, labels and targets for all baselines, and their conversion to float64 on the CPU.

Notation: N samples, D features, K target columns, C classes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from nearkin.core.errors import DataError, MismatchError, require


def rows(features: Tensor, name: str = "features", least: int = 2) -> Tensor:
    """Features `[N, D]` in float64, finite, of `least` samples or more; `[N]` counts as one column.

    >>> rows(torch.ones(3)).shape
    torch.Size([3, 1])
    >>> rows(torch.tensor([[1.0], [float("nan")]]))
    Traceback (most recent call last):
    nearkin.core.errors.DataError: 1 of 2 features are NaN or infinite, first in sample 1; check the network that \
computed them
    """
    table = features.detach().to("cpu", torch.float64)
    table = table[:, None] if table.dim() == 1 else table
    require(
        table.dim() == 2 and table.shape[1] >= 1,
        f"{name} have shape {tuple(features.shape)}, expected [N, D], one row per sample; flatten them",
        MismatchError,
    )
    require(len(table) >= least, f"{name} hold {len(table)} samples, expected {least} or more; add samples", DataError)
    finite = table.isfinite()
    if not bool(finite.all()):
        first = int(torch.nonzero(~finite.all(1))[0])
        raise DataError(
            f"{int((~finite).sum())} of {table.numel()} {name} are NaN or infinite, first in sample {first}; "
            f"check the network that computed them"
        )
    return table


def classes(labels: Tensor, count: int, num_classes: int | None = None, name: str = "labels") -> Tensor:
    """Labels `[N]` as int64, whole numbers in 0 … C − 1, one for each of `count` samples.

    >>> classes(torch.tensor([0, 3]), 2, 3)
    Traceback (most recent call last):
    nearkin.core.errors.DataError: labels run from 0 to 3, expected 0 to 2; fix the labels or set the number of classes
    """
    require(
        labels.dim() == 1 and len(labels) == count,
        f"{name} have shape {tuple(labels.shape)}, expected [{count}]; give one class for each sample",
        MismatchError,
    )
    whole = labels.detach().to("cpu", torch.int64)
    require(
        not labels.is_floating_point() or bool((whole == labels.detach().cpu()).all()),
        f"{name} are not whole numbers; use the regression form for real targets",
        DataError,
    )
    low, high = int(whole.min()), int(whole.max())
    bound = high + 1 if num_classes is None else num_classes
    require(
        low >= 0 and high < bound,
        f"{name} run from {low} to {high}, expected 0 to {bound - 1}; fix the labels or set the number of classes",
        DataError,
    )
    return whole


def several(labels: Tensor) -> Tensor:
    """The same labels; refuses those of a single class.

    >>> several(torch.tensor([4, 4]))
    Traceback (most recent call last):
    nearkin.core.errors.DataError: all 2 samples are of class 4, expected two classes or more; add others
    """
    require(
        bool((labels != labels[0]).any()),
        f"all {len(labels)} samples are of class {int(labels[0])}, expected two classes or more; add others",
        DataError,
    )
    return labels


def columns(targets: Tensor, count: int, name: str = "targets") -> Tensor:
    """Targets `[N, K]`: real ones as they are, labels `[N]` of whole numbers as indicators of the classes present.

    >>> columns(torch.tensor([0, 2, 2]), 3).tolist()
    [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
    """
    if targets.dim() == 1 and not targets.is_floating_point():
        return one_hot(several(classes(targets, count, name=name)))
    table = rows(targets, name)
    require(
        len(table) == count,
        f"{name} have {len(table)} rows, expected {count}, one for each sample of the features",
        MismatchError,
    )
    return table


def one_hot(labels: Tensor) -> Tensor:
    """Indicators `[N, C]` of the C classes that are present."""
    return F.one_hot(labels.unique(return_inverse=True)[1]).double()


def centred(table: Tensor) -> Tensor:
    """A table `[N, D]` minus the mean of each column; a constant column becomes exactly 0.

    >>> centred(torch.tensor([[0.1, 1.0], [0.1, 3.0]]).double()).tolist()
    [[0.0, -1.0], [0.0, 1.0]]
    """
    return (table - table.mean(0)) * (table != table[0]).any(0)


def canonical_order(x: Tensor, y: Tensor) -> Tensor:
    """Positions of samples sorted by their content, so that results do not depend on the order of the samples.

    >>> x, y = torch.tensor([[3.0], [1.0], [2.0]]), torch.tensor([0, 0, 1])
    >>> turn = torch.tensor([2, 0, 1])
    >>> torch.equal(x[canonical_order(x, y)], x[turn][canonical_order(x[turn], y[turn])])
    True
    """
    fields = [values.detach().cpu().reshape(len(values), -1).contiguous().view(torch.uint8) for values in (x, y)]
    table = torch.cat(fields, 1).numpy()
    return torch.from_numpy(table.view(f"V{table.shape[1]}").ravel().argsort(kind="stable"))
