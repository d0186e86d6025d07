"""Metrics: identifiers (in JSON and stored files), titles (in texts and figures), values, and intervals of shares.

Notation: N samples, C classes, K target columns. scikit-learn computes the values.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from nearkin.core.errors import OptionError, require

if TYPE_CHECKING:  # commands start without torch
    from torch import Tensor

ACCURACY = "accuracy"
BALANCED_ACCURACY = "balanced-accuracy"
F1 = "f1"
AUC = "auc"
LOG_LOSS = "log-loss"
R2 = "r2"
MAE = "mae"
RMSE = "rmse"
AP50 = "ap50"


@dataclass(frozen=True)
class Metric:
    """A metric by which an answer can be selected.

    Attributes:
        name: identifier.
        title: name for readers.
        of_classes: whether it is for classes; otherwise for values.
        compute: value for logits `[N, C]` and classes `[N]`, or for values `[N, K]` and targets `[N, K]`.
        about: what it is, in one sentence for readers.
        higher_is_better: whether a larger value is a better one.
        in_units: whether it has the units of the targets.
    """

    name: str
    title: str
    of_classes: bool
    compute: "Callable[[Tensor, Tensor], float]"
    about: str
    higher_is_better: bool = True
    in_units: bool = False

    def gain(self, value: float) -> float:
        """The value, negated if lower is better: a larger gain is always better."""
        return value if self.higher_is_better else -value


def _accuracy(logits: "Tensor", labels: "Tensor") -> float:
    return float((logits.argmax(1) == labels).double().mean())


def _balanced_accuracy(logits: "Tensor", labels: "Tensor") -> float:
    """Mean recall of the classes that occur."""
    from sklearn.metrics import recall_score

    return float(recall_score(labels, logits.argmax(1), labels=labels.unique(), average="macro", zero_division=0))


def _f1(logits: "Tensor", labels: "Tensor") -> float:
    """Mean F1 of the classes that occur or are predicted."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels, logits.argmax(1), average="macro", zero_division=0))


def _auc(logits: "Tensor", labels: "Tensor") -> float:
    """Area under the ROC curve, for more than two classes the mean of each class against the rest.

    Classes without a sample, or with all samples, are left out; 0.5 if none is left.
    """
    from sklearn.metrics import roc_auc_score

    probabilities = logits.double().softmax(1)
    areas = [
        roc_auc_score(labels == number, probabilities[:, number])
        for number in ([1] if logits.shape[1] == 2 else labels.unique().tolist())
        if 0 < int((labels == number).sum()) < len(labels)
    ]
    return fmean(areas) if areas else 0.5


def _log_loss(logits: "Tensor", labels: "Tensor") -> float:
    from sklearn.metrics import log_loss

    return float(log_loss(labels, logits.double().softmax(1), labels=range(logits.shape[1])))


def _r2(values: "Tensor", targets: "Tensor") -> float:
    """R² over all columns; 0 if the targets are constant."""
    rest, total = (values - targets).square().sum(), (targets - targets.mean(0)).square().sum()
    return float(1 - rest / total) if total > 0 else 0.0


def _mae(values: "Tensor", targets: "Tensor") -> float:
    from sklearn.metrics import mean_absolute_error

    return float(mean_absolute_error(targets.double(), values.double()))


def _rmse(values: "Tensor", targets: "Tensor") -> float:
    from sklearn.metrics import root_mean_squared_error

    return float(root_mean_squared_error(targets.double(), values.double()))


_ALL = (
    Metric(ACCURACY, "accuracy", True, _accuracy, "the share of samples that are classified correctly."),
    Metric(
        BALANCED_ACCURACY, "balanced accuracy", True, _balanced_accuracy,
        "the mean over the classes of the share of their samples that are found: rare classes count as much as "
        "frequent ones.",
    ),
    Metric(
        F1, "macro F1", True, _f1,
        "the mean over the classes of F1, which is the harmonic mean of precision and recall; 1 is perfect.",
    ),
    Metric(
        AUC, "area under the ROC curve", True, _auc,
        "the probability that a sample of a class has a higher probability of that class than a sample of another "
        "class: 1 is perfect, 0.5 is chance.",
    ),
    Metric(
        LOG_LOSS, "log loss", True, _log_loss,
        "the mean of −log of the probability of the true class: 0 is perfect, lower is better.",
        higher_is_better=False,
    ),
    Metric(
        R2, "R²", False, _r2,
        "the share of the variation of the values that a model explains: 1 is perfect, 0 is as good as always "
        "answering the mean.",
    ),
    Metric(
        MAE, "mean absolute error", False, _mae,
        "the mean distance of predicted and true values, in the units of the data: lower is better.",
        higher_is_better=False, in_units=True,
    ),
    Metric(
        RMSE, "root mean squared error", False, _rmse,
        "the root of the mean squared distance of predicted and true values, in the units of the data: lower is "
        "better.",
        higher_is_better=False, in_units=True,
    ),
)  # fmt: skip
METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}
"""All metrics by their identifier."""

TITLES = {name: metric.title for name, metric in METRICS.items()} | {AP50: "average precision at IoU 0.5"}
"""Title of each metric by its identifier; that of detection selects no answer and is not one of `METRICS`."""

CONFIDENCE = 1.959964  # 95 % quantile of a normal deviate, two-sided
_IDENTIFIERS = {title: identifier for identifier, title in TITLES.items()}


def metric_title(identifier: str) -> str:
    """The title of a metric; an unknown identifier is returned unchanged.

    >>> metric_title("r2"), metric_title("accuracy")
    ('R²', 'accuracy')
    """
    return TITLES.get(identifier, identifier)


def metric_identifier(name: str) -> str:
    """The identifier of a stored metric name (files of version 0.1 contain titles).

    >>> metric_identifier("R²"), metric_identifier("r2")
    ('r2', 'r2')
    """
    return _IDENTIFIERS.get(name, name)


def known_metric(name: str) -> str:
    """The identifier of a metric that a user names.

    >>> known_metric("balanced_accuracy")
    'balanced-accuracy'
    """
    identifier = name.lower().replace("_", "-")
    require(identifier in METRICS, f"unknown metric {name!r}; choose one of {', '.join(METRICS)}")
    return identifier


def metric_for(name: str, usual: str, task: str) -> Metric:
    """The metric of this identifier, or the usual one of a task's likelihood if it is empty.

    >>> metric_for("", "r2", "prices").title, metric_for("mae", "r2", "prices").higher_is_better
    ('R²', False)
    """
    metric, of_classes = METRICS[name or usual], METRICS[usual].of_classes
    if metric.of_classes != of_classes:
        fitting = [other.name for other in METRICS.values() if other.of_classes == of_classes]
        kind, wanted = ("values", "classes") if metric.of_classes else ("classes", "values")
        raise OptionError(
            f"metric {metric.name} is for {wanted}, '{task}' predicts {kind}; choose one of {', '.join(fitting)}"
        )
    return metric


def gain(name: str, value: float) -> float:
    """A value of a metric, negated if lower is better; an unknown metric counts as higher is better.

    >>> gain("rmse", 3.0), gain("accuracy", 0.9), gain("", 0.9)
    (-3.0, 0.9, 0.9)
    """
    return METRICS[name].gain(value) if name in METRICS else value


def is_of_classes(name: str) -> bool:
    """Whether a metric is for classes."""
    return name in METRICS and METRICS[name].of_classes


def is_in_units(name: str) -> bool:
    """Whether a metric has the units of the targets."""
    return name in METRICS and METRICS[name].in_units


def share_interval(share: float, count: int) -> tuple[float, float]:
    r"""Wilson's 95 % interval of a share observed on `count` samples.

    $$\frac{p + z^2/2n \pm z\sqrt{p(1-p)/n + z^2/4n^2}}{1 + z^2/n}$$

    >>> [round(end, 3) for end in share_interval(0.9, 100)], round(share_interval(1.0, 10)[1], 9)
    ([0.826, 0.945], 1.0)
    """
    square = CONFIDENCE**2 / count
    middle = share + square / 2
    half = CONFIDENCE * math.sqrt(share * (1 - share) / count + square / (4 * count))
    return max(0.0, (middle - half) / (1 + square)), min(1.0, (middle + half) / (1 + square))
