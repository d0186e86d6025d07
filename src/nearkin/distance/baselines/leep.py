r"""LEEP and NCE: how well the source's predicted classes determine those of the target, without fitting.

Notation: N samples, Z source classes z, C target classes y.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from nearkin.core.errors import DataError, require
from nearkin.distance.baselines.inputs import classes, rows

SLACK = 1e-3  # allowed difference of a row's sum from 1 before it is scaled to 1; half precision needs it


def leep(probabilities: Tensor, labels: Tensor, num_classes: int) -> float:
    r"""Log expected empirical prediction; source -> target, larger is better, at most 0.

    $$\frac1N \sum_n \log \sum_z \hat P(y_n \mid z)\, \theta(x_n)_z, \quad
    \hat P(y, z) = \frac1N \sum_{n: y_n = y} \theta(x_n)_z$$

    (Nguyen, Hassner, Seeger, Archambeau 2020, "LEEP: A New Measure to Evaluate Transferability of Learned
    Representations".) The likelihood of a classifier that draws a source class and then a target class. It is 0 if
    only one class is present, never below the negative entropy of the labels, and with one-hot θ it is the NCE. The
    paper's lower bound, NCE of hard labels plus their mean log probability, holds only with $\hat P(y \mid z)$ in both.

    Args:
        probabilities: θ, of the source's classes on the target's samples `[N, Z]`; rows sum to 1.
        labels: classes of the target `[N]`.
        num_classes: C.

    >>> import math
    >>> theta, y = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 0, 1, 1])
    >>> leep(theta, y, 2), round(leep(torch.full((4, 2), 0.5), y, 2) / math.log(2), 9)
    (0.0, -1.0)
    """
    theta = rows(probabilities, "probabilities", least=1)
    require(num_classes >= 1, f"num_classes must be 1 or more, got {num_classes}")
    total = theta.sum(1, keepdim=True)
    low, off = float(theta.min()), float((total - 1).abs().max())
    require(
        low >= 0 and off <= SLACK,
        f"probabilities must be >= 0 and sum to 1 in every row, got a minimum of {low:.3g} and sums that differ from "
        f"1 by {off:.3g}; give the softmax of the source's logits",
        DataError,
    )
    theta = theta / total
    hot = F.one_hot(classes(labels, len(theta), num_classes), num_classes).double()
    joint = hot.T @ theta  # N P(y, z)
    conditional = joint / joint.sum(0).clamp_min(torch.finfo(torch.float64).tiny)
    return min(0.0, float((hot * (theta @ conditional.T)).sum(1).log().mean()))


def nce(source_labels: Tensor, labels: Tensor) -> float:
    r"""Negative conditional entropy of the labels given the source's; source -> target, larger is better, at most 0.

    $$-H(Y \mid Z) = \sum_{y, z} \hat P(y, z) \log \hat P(y \mid z)$$

    (Tran, Nguyen, Hassner 2019, "Transferability and Hardness of Supervised Classification Tasks".) It is 0 if each
    source class occurs with one target class only, and never below the negative entropy of the labels.

    Args:
        source_labels: classes of the source on the target's samples `[N]`: its labels, or its predictions.
        labels: classes of the target `[N]`.

    >>> import math
    >>> y = torch.tensor([0, 0, 1, 1])
    >>> nce(torch.tensor([5, 5, 7, 7]), y), round(nce(torch.tensor([5, 7, 5, 7]), y) / math.log(2), 9)
    (0.0, -1.0)
    """
    require(
        source_labels.dim() == 1 and len(source_labels) >= 1,
        f"source_labels have shape {tuple(source_labels.shape)}, expected [N]; give one class for each sample",
        DataError,
    )
    z = classes(source_labels, len(source_labels), name="source_labels")
    y = classes(labels, len(z))
    pairs = torch.stack([y, z]).unique(dim=1, return_counts=True)[1].double()
    marginal = z.unique(return_counts=True)[1].double()
    return min(0.0, float((torch.xlogy(pairs, pairs).sum() - torch.xlogy(marginal, marginal).sum()) / len(y)))
