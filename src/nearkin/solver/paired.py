"""Paired differences of two models that predict the same samples."""

from torch import Tensor

from nearkin.tasks.metrics import CONFIDENCE
from nearkin.tasks.prediction import Prediction


def paired_difference(
    first: Prediction, second: Prediction, targets: Tensor, rows: Tensor | None = None
) -> tuple[float, float, float]:
    r"""Metric of the first model minus that of the second on the samples at `rows`, and the ends of its 95 % interval.

    $\bar d \pm 1.96\, s / \sqrt n$ for the differences $d_i$ of the samples: of being right for classes `[N]`, of
    squared errors divided by the variance for values `[N, K]`, so that $\bar d$ is a difference of R².
    """
    targets = targets if rows is None else targets[rows]
    scores = []
    for predicted in (first, second):
        if predicted.probabilities is not None:
            labels = predicted.labels if rows is None else predicted.labels[rows]
            scores.append((labels == targets).double())
        else:
            mean = predicted.mean if rows is None else predicted.mean[rows]
            spread = (targets - targets.mean(0)).square().mean().clamp_min(1e-12)
            scores.append(-((mean - targets).square().mean(1) / spread).double())
    difference = scores[0] - scores[1]
    half = CONFIDENCE * float(difference.std()) / len(difference) ** 0.5 if len(difference) > 1 else 0.0
    ahead = float(difference.mean())
    return ahead, ahead - half, ahead + half
