"""Outcome: what a way of transfer is worth on the test part, so that several can stand side by side."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from nearkin.core.plain import typed
from nearkin.core.types import Facts
from nearkin.transfer.labels.calibration import calibration, class_loss, interval_error


@dataclass(frozen=True)
class Outcome:
    """One way of transfer on a task's test part.

    Attributes:
        name: of the way.
        metric: accuracy, or R² for values.
        nll: mean negative log probability of a test target; of values, in the units in which networks see them.
        ece: expected calibration error; of values, the mean error of central intervals.
        seconds: of fitting and predicting.
        bins: of certainty, see `Calibration`.
        facts: what was chosen on the way, as plain JSON values.
    """

    name: str
    metric: float
    nll: float
    ece: float
    seconds: float
    bins: tuple[tuple[float, float, int], ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> "Outcome":
        """The inverse of `to_dict`, also after a trip through JSON."""
        return typed(cls, dict(facts), "an outcome of a transfer")


def class_outcome(
    name: str, probabilities: Tensor, labels: Tensor, seconds: float, facts: Facts | None = None
) -> Outcome:
    """Of class probabilities `[M, C]` against labels `[M]`.

    >>> class_outcome("coin", torch.tensor([[0.5, 0.5], [0.5, 0.5]]), torch.tensor([0, 1]), 0.0).metric
    0.5
    """
    found = calibration(probabilities, labels)
    metric = float((probabilities.argmax(1) == labels).double().mean())
    return Outcome(name, metric, class_loss(probabilities, labels), found.error, seconds, found.bins, facts or {})


def value_outcome(
    name: str, mean: Tensor, variance: Tensor, targets: Tensor, seconds: float, facts: Facts | None = None
) -> Outcome:
    r"""Of Gaussian answers with means and variances `[M, K]` against targets `[M, K]`; R² over all columns.

    >>> y = torch.tensor([[0.0], [2.0]]).double()
    >>> value_outcome("mean", torch.ones(2, 1).double(), torch.ones(2, 1).double(), y, 0.0).metric
    0.0
    """
    mean, variance, targets = mean.double(), variance.double().expand_as(mean), targets.double()
    total = float((targets - targets.mean(0)).square().sum())
    metric = 1 - float((mean - targets).square().sum()) / total if total > 0 else 0.0
    nll = 0.5 * ((targets - mean).square() / variance + (2 * torch.pi * variance).log()).sum(1).mean()
    found = interval_error(mean, variance, targets)
    return Outcome(name, metric, float(nll), found.error, seconds, found.bins, facts or {})
