"""What the baselines ask of features, labels and targets, checked in one place; float64 on the CPU from here on.

Notation: N samples, D features, K target columns, C classes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from nearkin.core.errors import DataError, MismatchError, require


def rows(features: Tensor, what: str = "features", least: int = 2) -> Tensor:
    """Features `[N, D]` in float64, finite, of so many samples at least; `[N]` counts as one column.

    >>> rows(torch.ones(3)).shape
    torch.Size([3, 1])
    >>> rows(torch.tensor([[1.0], [float("nan")]]))
    Traceback (most recent call last):
    nearkin.core.errors.DataError: 1 of 2 features are NaN or infinite, first in sample 1; look at the network that \
made them
    """
    table = features.detach().to("cpu", torch.float64)
    table = table[:, None] if table.dim() == 1 else table
    require(
        table.dim() == 2 and table.shape[1] >= 1,
        f"{what} have shape {tuple(features.shape)}, wanted [N, D], one row a sample; flatten them",
        MismatchError,
    )
    require(len(table) >= least, f"{what} hold {len(table)} samples, wanted {least} or more; add some", DataError)
    finite = table.isfinite()
    if not bool(finite.all()):
        first = int(torch.nonzero(~finite.all(1))[0])
        raise DataError(
            f"{int((~finite).sum())} of {table.numel()} {what} are NaN or infinite, first in sample {first}; "
            f"look at the network that made them"
        )
    return table


def classes(labels: Tensor, count: int, num_classes: int | None = None, what: str = "labels") -> Tensor:
    """Labels `[N]` as int64, whole numbers in 0 … C − 1, one for each of `count` samples.

    >>> classes(torch.tensor([0, 3]), 2, 3)
    Traceback (most recent call last):
    nearkin.core.errors.DataError: labels run from 0 to 3, wanted 0 to 2; mend the labels or give the number of classes
    """
    require(
        labels.dim() == 1 and len(labels) == count,
        f"{what} have shape {tuple(labels.shape)}, wanted [{count}], one class a sample",
        MismatchError,
    )
    whole = labels.detach().to("cpu", torch.int64)
    require(
        not labels.is_floating_point() or bool((whole == labels.detach().cpu()).all()),
        f"{what} are not whole numbers; real targets want the regression form",
        DataError,
    )
    low, high = int(whole.min()), int(whole.max())
    bound = high + 1 if num_classes is None else num_classes
    require(
        low >= 0 and high < bound,
        f"{what} run from {low} to {high}, wanted 0 to {bound - 1}; mend the labels or give the number of classes",
        DataError,
    )
    return whole


def several(labels: Tensor) -> Tensor:
    """The same labels, of two classes at least.

    >>> several(torch.tensor([4, 4]))
    Traceback (most recent call last):
    nearkin.core.errors.DataError: all 2 samples are of class 4, wanted two classes or more; add samples of another
    """
    alone = bool((labels == labels[0]).all())
    require(
        not alone,
        f"all {len(labels)} samples are of class {int(labels[0])}, wanted two classes or more; add samples of another",
        DataError,
    )
    return labels


def columns(targets: Tensor, count: int, what: str = "targets") -> Tensor:
    """Targets `[N, K]`: real ones as they are, labels `[N]` of whole numbers as indicators of the classes present.

    >>> columns(torch.tensor([0, 2, 2]), 3).tolist()
    [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
    """
    if targets.dim() == 1 and not targets.is_floating_point():
        return one_hot(several(classes(targets, count, what=what)))
    table = rows(targets, what)
    require(
        len(table) == count,
        f"{what} have {len(table)} rows, wanted {count}, one a sample of the features",
        MismatchError,
    )
    return table


def one_hot(labels: Tensor) -> Tensor:
    """Indicators `[N, C]` of the C classes that are present."""
    return F.one_hot(labels.unique(return_inverse=True)[1]).double()


def centred(table: Tensor) -> Tensor:
    """A table `[N, D]` less the mean of each column; a column without spread becomes exactly 0.

    >>> centred(torch.tensor([[0.1, 1.0], [0.1, 3.0]]).double()).tolist()
    [[0.0, -1.0], [0.0, 1.0]]
    """
    return (table - table.mean(0)) * (table != table[0]).any(0)
