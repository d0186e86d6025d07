r"""LogME: evidence of a linear model on features for labels or real targets.

Notation: N samples, D features, C classes, K target columns.

You, Liu, Wang and Long (2021, "LogME: Practical Assessment of Pre-trained Models for Transfer Learning") put a
Gaussian on the weights of a linear model, $w \sim \mathcal N(0, \alpha^{-1} I)$, $y = Fw + \mathcal N(0, \beta^{-1})$,
and take

$$\frac1N \max_{\alpha, \beta} \left[ \tfrac N2 \log \beta + \tfrac D2 \log \alpha - \tfrac N2 \log 2\pi
- \tfrac\beta2 \|Fm - y\|^2 - \tfrac\alpha2 \|m\|^2 - \tfrac12 \log|A| \right],
\quad A = \alpha I + \beta F^\top F,\; m = \beta A^{-1} F^\top y$$

for every column y of the targets, and the mean over columns. Features are neither centred nor scaled; the value does
not depend on their scale. The paper's fixed point for α and β, if it converges, is a maximum of the same function;
here β/α is found by a search over one number, which always converges to the global maximum.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from nearkin.core.errors import require
from nearkin.distance.baselines.gaussian_evidence import largest_evidence, of_features
from nearkin.distance.baselines.inputs import classes, columns, rows, several


def logme(features: Tensor, labels: Tensor, num_classes: int) -> float:
    r"""LogME of features for classes; source -> target, larger is better.

    A column of targets is 1 for the samples of one class and 0 for the others; the mean is over classes that are
    present. Features that are all zero give the evidence of noise alone. If a class lies exactly in the span of fewer
    features than samples, the evidence is unbounded; the value at a noise of 1e-12 of the largest signal is returned.

    Args:
        features: of the source network on the target's samples `[N, D]`, usually the inputs of its head.
        labels: classes of the target `[N]`, two or more of them present.
        num_classes: C.

    >>> f, y = torch.tensor([[0.0], [0.1], [1.0], [0.9]]), torch.tensor([0, 0, 1, 1])
    >>> logme(f, y, 2) > logme(f[[0, 2, 1, 3]], y, 2)
    True
    >>> import math
    >>> round(logme(torch.zeros(4, 1), y, 2) / -math.log(math.pi * math.e), 9)  # noise of variance 1/2
    0.5
    """
    table = rows(features)
    require(num_classes >= 2, f"num_classes must be 2 or more, got {num_classes}")
    hot = F.one_hot(several(classes(labels, len(table), num_classes)), num_classes).double()
    return float(largest_evidence(of_features(table, hot[:, hot.any(0)])).mean())


def logme_regression(features: Tensor, targets: Tensor) -> float:
    r"""LogME of features for real targets; source -> target, larger is better.

    Args:
        features: `[N, D]`.
        targets: `[N, K]` or `[N]`, neither centred nor scaled; standardise them to compare values of several tasks.

    >>> f = torch.tensor([[1.0], [-1.0], [2.0], [-2.0]])
    >>> y = torch.tensor([[1.1], [-0.9], [2.1], [-1.9]])
    >>> logme_regression(f, y) > logme_regression(f[[2, 0, 1, 3]], y)
    True
    """
    table = rows(features)
    return float(largest_evidence(of_features(table, columns(targets.to(torch.float64), len(table)))).mean())
