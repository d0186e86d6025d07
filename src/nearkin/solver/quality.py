"""Quality of an answer on the test part: its metric with an interval, its mistakes, whether its certainty is earned.

Notation: N samples, C classes; p the probability of the class that was said, B bins of p.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from nearkin.core.plain import typed
from nearkin.tasks.examples import Scaling
from nearkin.tasks.metrics import ACCURACY, R2, metric_identifier, metric_title, share_interval
from nearkin.transfer.labels.calibration import calibration

RESAMPLES = 1000
MISTAKES = 12
WIDEST = 60  # classes whose confusions are kept whole
MOST_LOGITS = 2**22  # that a temperature is learned from; one number wants no more


@dataclass(frozen=True)
class Mistake:
    """One test sample that was answered wrongly, and how surely."""

    row: int
    given: str
    said: str
    probability: float


@dataclass(frozen=True)
class Quality:
    """What a model is worth on the test part.

    Attributes:
        metric: accuracy or R².
        name: identifier of the metric, `accuracy` or `r2`.
        interval: in which the metric of all such data lies with 95 %.
        count: test samples.
        loss: mean loss.
        guess: the metric of the majority class of the training labels; for values that of their mean.
        best_constant: the metric of the best constant answer, which only the test labels tell; None where unknown.
        classes: names of the classes, empty for values.
        confusion: counts `[C, C]`, rows are the given classes, columns what was said; None for values, or where
            there are too many classes.
        calibration: for each bin of certainty its mean certainty, the share that was right, and the count.
        calibration_error: expected calibration error, the mean distance between the two; None for values.
        mistakes: the surest wrong answers, surest first.
        residuals: for values, pairs of true and said value, thinned out.
    """

    metric: float
    name: str
    interval: tuple[float, float]
    count: int
    loss: float
    guess: float
    classes: tuple[str, ...] = ()
    confusion: tuple[tuple[int, ...], ...] | None = None
    calibration: tuple[tuple[float, float, int], ...] = ()
    calibration_error: float | None = None
    mistakes: tuple[Mistake, ...] = ()
    residuals: tuple[tuple[float, float], ...] = ()
    best_constant: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", metric_identifier(self.name))  # files of version 0.1 hold the title

    @property
    def title(self) -> str:
        """The metric as people write it."""
        return metric_title(self.name)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `Quality.from_dict` makes it again."""
        return asdict(self)

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> "Quality":
        """The inverse of `to_dict`, also after a trip through JSON."""
        return typed(cls, dict(facts), "the quality of a solution")


def explained(outputs: Tensor, targets: Tensor) -> float:
    """R² of outputs `[N, K]` over all K columns; 0 where the targets are all the same."""
    rest = (outputs - targets).square().sum()
    total = (targets - targets.mean(0)).square().sum()
    return float(1 - rest / total) if total > 0 else 0.0


def explained_interval(outputs: Tensor, targets: Tensor, seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of R² over resampled rows."""
    rows = torch.randint(len(targets), (RESAMPLES, len(targets)), generator=Generator().manual_seed(seed))
    drawn = torch.tensor([explained(outputs[index], targets[index]) for index in rows], dtype=torch.float64)
    low, high = drawn.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return low, high


def temperature(logits: Tensor, labels: Tensor) -> float:
    r"""The $T$ that makes $\mathrm{softmax}(z / T)$ most likely on held-out data, between 1/20 and 20.

    The log-likelihood is concave in $1/T$, so its slope changes sign once: bisection on a logarithmic scale.

    >>> z = 3 * torch.randn(4000, 3, generator=Generator().manual_seed(0))
    >>> y = torch.distributions.Categorical(logits=z / 2).sample()
    >>> 1.7 < temperature(z, y) < 2.3
    True
    """
    rows = min(len(logits), max(1, MOST_LOGITS // logits.shape[1]))
    some = torch.linspace(0, len(logits) - 1, rows).round().long()
    z, labels = logits[some].double(), labels[some]
    own = z.gather(1, labels[:, None]).squeeze(1)

    def rising(inverse: float) -> bool:
        """Whether the likelihood still grows with 1/T."""
        return bool((own - ((z * inverse).softmax(1) * z).sum(1)).mean() > 0)

    low, high = math.log(1 / 20), math.log(20)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(math.exp(middle)) else (low, middle)
    return math.exp(-(low + high) / 2)


def class_quality(
    probabilities: Tensor,
    labels: Tensor,
    classes: tuple[str, ...],
    *,
    loss: float,
    guess: float,
    best_constant: float | None = None,
    said: Tensor | None = None,
) -> Quality:
    """Quality of probabilities `[N, C]` against labels `[N]`; `said` are the answers, by default the likeliest."""
    certainty, likeliest = probabilities.max(1)
    said = likeliest if said is None else said
    wrong = torch.nonzero(said != labels).flatten()
    surest = wrong[certainty[wrong].argsort(descending=True, stable=True)][:MISTAKES].tolist()
    mistakes = [
        Mistake(row, classes[int(labels[row])], classes[int(said[row])], float(certainty[row])) for row in surest
    ]
    table = None
    if len(classes) <= WIDEST:
        counts = torch.bincount(labels * len(classes) + said, minlength=len(classes) ** 2)
        table = tuple(map(tuple, counts.view(len(classes), -1).tolist()))
    sure = calibration(probabilities, labels)
    share = (len(labels) - len(wrong)) / len(labels)
    return Quality(
        share, ACCURACY, share_interval(share, len(labels)), len(labels), loss, guess, classes, table, sure.bins,
        sure.error, tuple(mistakes), best_constant=best_constant,
    )  # fmt: skip


def value_quality(
    outputs: Tensor, targets: Tensor, *, loss: float, metric: float | None = None, scaling: Scaling | None = None
) -> Quality:
    """Quality of real answers `[N, K]` against targets `[N, K]`, both in the units of the data.

    `scaling` gives the units in which R² weighs the columns, those that networks see; `metric` is R² if it is known.
    """
    said, true = ((scaling or Scaling())(values) for values in (outputs, targets))
    thinned = torch.linspace(0, outputs.numel() - 1, min(300, outputs.numel())).long()
    pairs = torch.stack([targets.flatten()[thinned], outputs.flatten()[thinned]], 1).tolist()
    return Quality(
        explained(said, true) if metric is None else metric, R2, explained_interval(said, true), len(targets), loss,
        0.0, residuals=tuple((true, said) for true, said in pairs),
    )  # fmt: skip
