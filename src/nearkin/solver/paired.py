"""Paired differences of two models that predict the same samples."""

from torch import Tensor

from nearkin.solver.validation import Margin, difference
from nearkin.tasks.prediction import Prediction


def paired_difference(first: Prediction, second: Prediction, targets: Tensor) -> Margin:
    r"""Metric of the first model minus that of the second, and the ends of its 95 % interval.

    $\bar d \pm 1.96\, s / \sqrt n$ for the differences $d_i$ of the samples: of being right for classes `[N]`, of
    squared errors divided by the variance for values `[N, K]`, so that $\bar d$ is a difference of R².
    """
    if first.probabilities is not None:
        return difference((first.labels == targets).double(), (second.labels == targets).double())
    spread = (targets - targets.mean(0)).square().mean().clamp_min(1e-12)
    errors = [(predicted.mean - targets).square().mean(1) / spread for predicted in (first, second)]
    return difference(-errors[0], -errors[1])
