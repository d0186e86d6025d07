"""Quality of a model on the test set: metric with interval, mistakes, calibration.

Notation: N samples, C classes.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

from nearkin.core.plain import typed
from nearkin.solver.load import LoadEffect
from nearkin.tasks.examples import Scaling
from nearkin.tasks.metrics import ACCURACY, R2, Metric, is_of_classes, metric_identifier, metric_title, share_interval
from nearkin.transfer.labels.calibration import calibration

RESAMPLES = 1000
METRIC_RESAMPLES = 200  # of metrics that take milliseconds each
MISTAKES = 12
COVERAGE = 0.95  # of the interval of a new value
WIDEST = 60  # classes; with more, no confusion matrix is stored
MOST_LOGITS = 2**22  # logits used to fit a temperature


@dataclass(frozen=True)
class Mistake:
    """One wrongly classified test sample: its class, the predicted class and its probability."""

    row: int
    given: str
    said: str
    probability: float


@dataclass(frozen=True)
class Quality:
    """Quality of a model on the test set.

    Attributes:
        metric: value of the metric by which the answer was selected (default: accuracy or R²).
        name: identifier of the metric (`nearkin.tasks.metrics`).
        interval: 95 % confidence interval of the metric, from the noise of the test samples and `run_noise`.
        count: number of test samples.
        loss: mean loss.
        guess: metric of predicting the class shares of the training labels; for regression, of their mean.
        best_constant: metric of the best constant prediction on the test set; None if unknown.
        classes: names of the classes; empty for regression.
        confusion: counts `[C, C]`, true class by row, predicted class by column; None for regression or many classes.
        calibration: for each bin of confidence its mean confidence, accuracy and count.
        calibration_error: expected calibration error; None for regression.
        mistakes: wrong predictions, most confident first.
        residuals: for regression, some pairs of true and predicted value.
        run_noise: standard deviation of the metric over runs with other seeds; 0 if not estimated.
        half_widths: for regression, half of the 95 % interval of a new value by target; empty for few test samples.
        load: what a busy machine changed; None if it was idle or wall time was not limited.
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
    run_noise: float = 0.0
    half_widths: tuple[float, ...] = ()
    load: LoadEffect | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", metric_identifier(self.name))  # files of version 0.1 store the title

    @property
    def of_classes(self) -> bool:
        """Whether the model predicts classes."""
        return is_of_classes(self.name)

    @property
    def title(self) -> str:
        """Name of the metric for readers."""
        return metric_title(self.name)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `Quality.from_dict` makes it again."""
        return asdict(self)

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> "Quality":
        """The inverse of `to_dict`, also after a trip through JSON."""
        return typed(cls, dict(facts), "the quality of a solution")


def r_squared(outputs: Tensor, targets: Tensor) -> float:
    """R² of outputs `[N, K]` over all K columns; 0 if the targets are constant."""
    rest = (outputs - targets).square().sum()
    total = (targets - targets.mean(0)).square().sum()
    return float(1 - rest / total) if total > 0 else 0.0


def r_squared_interval(outputs: Tensor, targets: Tensor, seed: int = 0) -> tuple[float, float]:
    """95 % bootstrap interval of R²."""
    return bootstrap_interval(lambda index: r_squared(outputs[index], targets[index]), len(targets), seed)


def bootstrap_interval(
    statistic: Callable[[Tensor], float], count: int, seed: int = 0, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """95 % percentile interval of a statistic of `count` samples, given the positions of those that are drawn.

    >>> x = torch.arange(100.0)
    >>> low, high = bootstrap_interval(lambda index: float(x[index].mean()), 100)
    >>> 42 < low < 46 and 53 < high < 57
    True
    """
    rng = Generator().manual_seed(seed)
    drawn = [statistic(torch.randint(count, (count,), generator=rng)) for _ in range(resamples)]
    ends = torch.tensor([0.025, 0.975], dtype=torch.float64)
    low, high = torch.tensor(drawn, dtype=torch.float64).quantile(ends).tolist()
    return low, high


def with_metric(quality: Quality, metric: Metric, outputs: Tensor, targets: Tensor, constant: Tensor) -> Quality:
    """The same quality with another metric, its interval, and its value for a constant prediction.

    Args:
        quality: of the same predictions by the usual metric.
        metric: the other metric.
        outputs: logits `[N, C]` or values `[N, K]`.
        targets: classes `[N]` or values `[N, K]`.
        constant: logits `[C]` or values `[K]` of the constant prediction.
    """
    return replace(
        quality,
        metric=metric.compute(outputs, targets),
        name=metric.name,
        interval=bootstrap_interval(
            lambda index: metric.compute(outputs[index], targets[index]), len(targets), resamples=METRIC_RESAMPLES
        ),
        guess=metric.compute(constant.expand(len(targets), -1), targets),
        best_constant=None,
    )


def metric_difference(metric: Metric, first: Tensor, second: Tensor, targets: Tensor) -> tuple[float, float, float]:
    """How much better the first outputs are than the second by a metric, with a paired 95 % bootstrap interval."""

    def ahead(index: Tensor) -> float:
        better, other = (metric.compute(outputs[index], targets[index]) for outputs in (first, second))
        return metric.gain(better) - metric.gain(other)

    return ahead(torch.arange(len(targets))), *bootstrap_interval(ahead, len(targets), resamples=METRIC_RESAMPLES)


def fitted_temperature(logits: Tensor, labels: Tensor) -> float:
    r"""Temperature $T$ in [1/20, 20] with the largest likelihood of $\mathrm{softmax}(z / T)$ on held-out data.

    A label counts as its class with weight $1 - \epsilon$ and as the others with $\epsilon = 1 / (n + 2)$ together, as
    in Platt's method: n samples that are all right show a share of mistakes of about $1 / (n + 2)$, not of 0.
    The log-likelihood is concave in $1/T$, so its slope changes sign once and bisection in $\log T$ finds it.

    >>> z = 3 * torch.randn(4000, 3, generator=Generator().manual_seed(0))
    >>> y = torch.distributions.Categorical(logits=z / 2).sample()
    >>> 1.7 < fitted_temperature(z, y) < 2.3
    True
    """
    rows = min(len(logits), max(1, MOST_LOGITS // logits.shape[1]))
    index = torch.linspace(0, len(logits) - 1, rows).round().long()
    z, labels = logits[index].double(), labels[index]
    rest = 1 / (len(z) + 2) / max(1, z.shape[1] - 1)
    weights = torch.full_like(z, rest).scatter(1, labels[:, None], 1 - 1 / (len(z) + 2))
    own = (weights * z).sum(1)

    def rising(inverse: float) -> bool:
        """Whether the likelihood increases with 1/T."""
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
    predicted: Tensor | None = None,
) -> Quality:
    """Quality of probabilities `[N, C]` given labels `[N]`; `predicted` defaults to the most probable classes."""
    confidence, most_probable = probabilities.max(1)
    predicted = most_probable if predicted is None else predicted
    wrong = torch.nonzero(predicted != labels).flatten()
    worst = wrong[confidence[wrong].argsort(descending=True, stable=True)][:MISTAKES].tolist()
    mistakes = [
        Mistake(row, classes[int(labels[row])], classes[int(predicted[row])], float(confidence[row])) for row in worst
    ]
    table = None
    if len(classes) <= WIDEST:
        counts = torch.bincount(labels * len(classes) + predicted, minlength=len(classes) ** 2)
        table = tuple(map(tuple, counts.view(len(classes), -1).tolist()))
    calibrated = calibration(probabilities, labels)
    accuracy = (len(labels) - len(wrong)) / len(labels)
    return Quality(
        accuracy, ACCURACY, share_interval(accuracy, len(labels)), len(labels), loss, guess, classes, table,
        calibrated.bins, calibrated.error, tuple(mistakes), best_constant=best_constant,
    )  # fmt: skip


def value_quality(
    outputs: Tensor, targets: Tensor, *, loss: float, metric: float | None = None, scaling: Scaling | None = None
) -> Quality:
    """Quality of predictions `[N, K]` given targets `[N, K]`, both in the units of the data.

    R² weighs the columns after `scaling`, the units that networks see; `metric` is R² if it is known.
    """
    scaled, true = ((scaling or Scaling())(values) for values in (outputs, targets))
    thinned = torch.linspace(0, outputs.numel() - 1, min(300, outputs.numel())).long()
    pairs = torch.stack([targets.flatten()[thinned], outputs.flatten()[thinned]], 1).tolist()
    return Quality(
        r_squared(scaled, true) if metric is None else metric, R2, r_squared_interval(scaled, true), len(targets), loss,
        0.0, residuals=tuple((target, output) for target, output in pairs), half_widths=half_widths(outputs - targets),
    )  # fmt: skip


def half_widths(residuals: Tensor) -> tuple[float, ...]:
    """Half widths of intervals that hold a new value with probability 0.95 or more, for residuals `[N, K]`.

    For each column it is the ⌈0.95 (N + 1)⌉-th smallest absolute residual of samples that the model was not trained on
    (split conformal prediction). Below 19 samples there is none.

    >>> half_widths(torch.ones(18, 1)), half_widths(torch.arange(-99.0, 0)[:, None])
    ((), (95.0,))
    """
    rank = math.ceil(COVERAGE * (len(residuals) + 1))
    if rank > len(residuals):
        return ()
    return tuple(residuals.abs().double().sort(0).values[rank - 1].tolist())
