"""Scores of a transfer method on the test set, by which methods are compared."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from nearkin.core.plain import typed
from nearkin.core.types import Facts
from nearkin.transfer.labels.calibration import calibration, class_loss, interval_error


@dataclass(frozen=True)
class TransferScores:
    """Scores of one transfer method on a task's test set.

    Attributes:
        name: of the method.
        metric: accuracy, or R² for values.
        nll: mean negative log probability of a test target; of values, in standardised units.
        ece: expected calibration error; of values, the mean error of central intervals.
        seconds: time of fitting and predicting.
        bins: of confidence, see `Calibration`.
        facts: options that the method chose, as plain JSON values.
    """

    name: str
    metric: float
    nll: float
    ece: float
    seconds: float
    bins: tuple[tuple[float, float, int], ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> "TransferScores":
        """The inverse of `to_dict`, also for values read from JSON."""
        return typed(cls, dict(facts), "an outcome of a transfer")


def score_classes(
    name: str, probabilities: Tensor, labels: Tensor, seconds: float, facts: Facts | None = None
) -> TransferScores:
    """Scores of class probabilities `[M, C]` for labels `[M]`.

    >>> score_classes("coin", torch.tensor([[0.5, 0.5], [0.5, 0.5]]), torch.tensor([0, 1]), 0.0).metric
    0.5
    """
    bins = calibration(probabilities, labels)
    metric = float((probabilities.argmax(1) == labels).double().mean())
    nll = class_loss(probabilities, labels)
    return TransferScores(name, metric, nll, bins.error, seconds, bins.bins, facts or {})


def score_values(
    name: str, mean: Tensor, variance: Tensor, targets: Tensor, seconds: float, facts: Facts | None = None
) -> TransferScores:
    r"""Scores of Gaussian predictions with means and variances `[M, K]` for targets `[M, K]`; R² over all columns.

    >>> y = torch.tensor([[0.0], [2.0]]).double()
    >>> score_values("mean", torch.ones(2, 1).double(), torch.ones(2, 1).double(), y, 0.0).metric
    0.0
    """
    mean, variance, targets = mean.double(), variance.double().expand_as(mean), targets.double()
    total = float((targets - targets.mean(0)).square().sum())
    metric = 1 - float((mean - targets).square().sum()) / total if total > 0 else 0.0
    nll = 0.5 * ((targets - mean).square() / variance + (2 * torch.pi * variance).log()).sum(1).mean()
    bins = interval_error(mean, variance, targets)
    return TransferScores(name, metric, float(nll), bins.error, seconds, bins.bins, facts or {})
