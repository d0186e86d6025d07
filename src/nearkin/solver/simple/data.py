"""Samples, cross-validation folds, time limits and grid search for the simple models."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from nearkin.core.clock import now
from nearkin.core.events import Checkpoint, Event, Progress, Work
from nearkin.core.rng import Streams, derived_seed
from nearkin.core.state import State
from nearkin.search.genotype_evaluation import VALIDATION
from nearkin.solver.simple.machines import Machine
from nearkin.tasks.examples import is_constant
from nearkin.tasks.likelihood import Likelihood
from nearkin.tasks.metrics import MAE, METRICS
from nearkin.tasks.split import split_index

PROBES = (300, 1000)  # samples of the timed fits
FEW = 500  # samples; below this, settings are chosen by cross-validation
FOLDS = 5


class Sample(NamedTuple):
    """Scaled inputs `[N, D]`, targets (classes `[N]` or scaled values `[N, K]`), and weights `[N]` (None: all 1)."""

    x: Tensor
    y: Tensor
    weights: Tensor | None = None

    def at(self, index: Tensor) -> "Sample":
        """The samples at these positions."""
        return Sample(self.x[index], self.y[index], None if self.weights is None else self.weights[index])

    @property
    def weight_array(self) -> Any:
        """Weights as scikit-learn takes them."""
        return None if self.weights is None else self.weights.double().numpy()


class Fold(NamedTuple):
    """Samples to train on, and samples to validate on."""

    train: Sample
    validation: Sample


@dataclass(frozen=True)
class Clock:
    """Time limit of a fit; None means no limit."""

    seconds: float | None
    start: float = field(default_factory=now)

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return now() - self.start

    @property
    def left(self) -> float:
        """Remaining seconds; infinite without a limit."""
        return math.inf if self.seconds is None else self.seconds - self.spent

    def share(self, fraction: float) -> "Clock":
        """A clock limited to this fraction of the remaining time."""
        return Clock(None if self.seconds is None else max(0.0, fraction * self.left))


@dataclass(frozen=True)
class FitContext:
    """Facts of the task for a learner.

    Attributes:
        stage: name of the model, for progress.
        form: the likelihood.
        size: number of classes, or of target columns.
        shared_scale: whether all inputs have one scale: pixels of images, features of a network.
        seed: of subsets, folds and trees.
        metric: by which settings are chosen (default: accuracy or R²).
        scaled: whether the columns of a table are on a common scale, so that they are not divided by their deviation.
    """

    stage: str
    form: Likelihood
    size: int
    shared_scale: bool
    seed: int
    metric: str = ""
    scaled: bool = False

    @property
    def classes(self) -> bool:
        """Whether targets are classes."""
        return self.form.metric == "accuracy"

    def report(self, done: int, total: int | None, **values: float) -> "tuple[Event, Event]":
        """Progress, and a checkpoint; stopping here loses only this model."""
        return Progress(self.stage, done, total, values), Checkpoint(lambda: State({}, {}))

    def score(self, outputs: Tensor, targets: Tensor) -> tuple[float, float]:
        """Metric and negative loss; larger is better."""
        if self.metric and self.classes:
            metric = METRICS[self.metric]
            return metric.gain(metric.compute(outputs, targets)), -float(self.form.loss(outputs, targets))
        if self.metric == MAE:
            return -float((outputs - targets).abs().mean()), -float((outputs - targets).square().mean())
        if self.classes:
            return self.form.score(self.form.tally(outputs, targets)), -float(self.form.loss(outputs, targets))
        error = float((outputs - targets).square().mean())
        return -error, -error


@dataclass(frozen=True, eq=False)
class ChosenSettings:
    """Settings, with the outputs on validation samples and their targets."""

    settings: Mapping[str, Any]
    outputs: Tensor | None = None
    targets: Tensor | None = None


class Learner(Protocol):
    """Interface of the linear, kernel and boosting learners."""

    @property
    def needed(self) -> tuple[str, ...]:
        """Names of the settings that `fit` reads."""
        ...

    def default(self, sample: Sample) -> dict[str, Any]:
        """Default settings; they are tried first."""
        ...

    def affordable_size(self, draw: Callable[[int], Sample], count: int, clock: Clock) -> Work[int]:
        """Number of samples, at most `count`, that the learner can train on within the time limit."""
        ...

    def choose(self, folds: Sequence[Fold], sample: Sample, clock: Clock) -> Work[ChosenSettings]:
        """Best settings found within the time limit."""
        ...

    def fit(self, sample: Sample, settings: Mapping[str, Any], clock: Clock) -> Work[tuple[Machine, int]]:
        """Fitted model, and the number of steps or rounds."""
        ...


def affordable(times: Sequence[tuple[int, float]], allowed: float, count: int) -> tuple[int, float]:
    """Number of samples that fit into the allowed seconds, and their predicted seconds, by linear extrapolation.

    Args:
        times: pairs of sample count and measured seconds, for a small and a larger sample, or for one sample.
        allowed: seconds.
        count: number of available samples.

    >>> affordable([(100, 2.0), (200, 3.0)], 10.0, 5000)
    (900, 10.0)
    """
    (small, base), (large, more) = times[0], times[-1]
    slope = max((more - base) / max(1, large - small), 0.1 * more / large)
    size = min(count, max(large, int(large + (allowed - more) / slope)))
    return size, more + slope * (size - large)


def size_by_time(
    seconds: Callable[[Sample], float],
    draw: Callable[[int], Sample],
    count: int,
    enough: int,
    clock: Clock,
    context: FitContext,
) -> Work[tuple[int, float]]:
    """Number of samples on which `enough` rounds or trees take 0.4 of the time, and the predicted seconds of one.

    Args:
        seconds: measures the time of one round or tree on a sample.
        draw: draws a sample.
        count: number of available samples.
        enough: rounds or trees that are preferred to more samples.
        clock: time limit.
        context: of the fit.
    """
    seconds(draw(2 * context.size + 20))  # imports scikit-learn before the timing starts
    points: list[tuple[int, float]] = []
    for size in PROBES:
        some = draw(min(count, max(size, 2 * context.size)))
        points.append((len(some.y), seconds(some)))
        yield from context.report(0, None)
        if points[-1][1] * enough > clock.left or len(some.y) == count:
            break
    return affordable(points, 0.4 * clock.left / enough, count)


def evenly(labels: Tensor | None, count: int, size: int, seed: int) -> Tensor:
    """Sorted indices of a stratified draw of `size` from `count` samples, with one per class where possible.

    >>> labels = torch.tensor([0] * 80 + [1] * 19 + [2])
    >>> torch.bincount(labels[evenly(labels, 100, 10, seed=0)])
    tensor([7, 2, 1])
    """
    if size >= count:
        return torch.arange(count)
    order, rank, groups = _ranks(labels, count, seed, "evenly")
    sizes = torch.bincount(groups)[groups].double()
    key = torch.where(rank == 0, torch.zeros_like(sizes), rank / sizes)
    return order[key.argsort(stable=True)[:size]].sort().values


def folds_of(sample: Sample, classes: bool, seed: int, cross_validate: bool | None = None) -> list[Fold]:
    """One train and validation split, or five folds; a class's only sample is always trained on.

    `cross_validate` asks for five folds (default: below 500 samples).

    >>> toy = Sample(torch.zeros(12, 1), torch.arange(12) % 2)
    >>> folds = folds_of(toy, True, seed=0)
    >>> len(folds), sum(len(fold.validation.y) for fold in folds)
    (5, 12)
    """
    count, labels = len(sample.y), sample.y if classes else None
    several = count < FEW if cross_validate is None else cross_validate
    if several:
        splits = fold_splits(labels, count, seed)
    else:
        splits = [split_index(labels, count, VALIDATION, derived_seed(seed, "held out"))]
    return [
        Fold(sample.at(train), sample.at(validation))
        for train, validation in splits
        if len(train) > 1 and len(validation) > 0
    ]


def fold_splits(labels: Tensor | None, count: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Positions of the training and the validation samples of five stratified folds.

    >>> [len(validation) for _, validation in fold_splits(torch.arange(12) % 2, 12, seed=0)]
    [3, 3, 2, 2, 2]
    """
    order, rank, groups = _ranks(labels, count, seed, "folds")
    alone = torch.bincount(groups)[groups] == 1
    fold = torch.empty(count, dtype=torch.int64)
    fold[order] = torch.where(alone, -1, (rank + groups) % FOLDS)
    return [((fold != k).nonzero().flatten(), (fold == k).nonzero().flatten()) for k in range(FOLDS)]


def _ranks(labels: Tensor | None, count: int, seed: int, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """A random order sorted by class, the rank of each sample within its class, and its class."""
    shuffled = torch.randperm(count, generator=Streams(seed).at("simple", name))
    groups = torch.zeros(count, dtype=torch.int64) if labels is None else labels[shuffled]
    by_class = groups.argsort(stable=True)
    groups = groups[by_class]
    sizes = torch.bincount(groups)
    starts = sizes.cumsum(0) - sizes
    return shuffled[by_class], torch.arange(count) - starts[groups], groups


def standard(x: Tensor, context: FitContext) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation `[D]` of columns, 1 for constant columns and for columns that are scaled already.

    All pixels of images share one deviation, and so do all features of a network.

    A pixel that is almost always background has a tiny deviation. Dividing by it would amplify its noise: with one
    deviation per pixel, the accuracy of an RBF machine on 3,000 MNIST images falls from 0.92 to 0.18. A feature that is
    almost always zero is such a pixel.
    """
    mean = x.double().mean(0)
    if context.scaled and not context.shared_scale:
        return mean.to(x.dtype), torch.ones_like(mean, dtype=x.dtype)
    variance = (x.double() - mean).square().mean(0)
    if context.shared_scale:
        variance = variance.mean().expand(len(mean))
    constant = is_constant(variance.sqrt(), x.double().abs().amax(0), x.dtype)
    std = torch.where(constant, torch.ones_like(variance), variance.sqrt())
    return mean.to(x.dtype), std.to(x.dtype)


def grid_search(
    learner: Learner, context: FitContext, grid: Sequence[Mapping[str, Any]], folds: Sequence[Fold], clock: Clock
) -> Work[ChosenSettings]:
    """Settings of a grid with the best validation score; the first are always tried, the others while time remains."""
    best, best_score, longest = ChosenSettings(grid[0]), (-math.inf, -math.inf), 0.0
    for number, settings in enumerate(grid):
        begun = clock.spent
        # The fit on all samples afterwards costs about one fold, or 1.6 times that where the cost is quadratic.
        if number and clock.left < longest * (1 + 1.6 / len(folds)):
            break
        outputs = []
        for train, validation in folds:
            machine, _ = yield from learner.fit(train, settings, clock.share(0.4))
            with torch.inference_mode():
                outputs.append(machine(validation.x))
        predicted, targets = torch.cat(outputs), torch.cat([fold.validation.y for fold in folds])
        score = context.score(predicted, targets)
        if score > best_score:
            best, best_score = ChosenSettings(settings, predicted, targets), score
        longest = max(longest, clock.spent - begun)
        yield from context.report(number + 1, len(grid), metric=best_score[0])
    return best
