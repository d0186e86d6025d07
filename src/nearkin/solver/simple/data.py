"""What the simple models learn from: samples drawn evenly, parts to choose settings by, and the time that is left."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from nearkin.core.events import Checkpoint, Event, Progress, Work
from nearkin.core.rng import Streams, derived_seed
from nearkin.core.state import State
from nearkin.search.genotype_evaluation import VALIDATION
from nearkin.solver.simple.machines import Machine
from nearkin.tasks.examples import is_constant
from nearkin.tasks.likelihood import Likelihood
from nearkin.tasks.split import split_index

FEW = 500  # below so many samples settings are chosen by cross-validation
FOLDS = 5


class Sample(NamedTuple):
    """Inputs `[N, D]` as networks see them, and targets: classes `[N]` or scaled values `[N, K]`."""

    x: Tensor
    y: Tensor


class Pair(NamedTuple):
    """A part to learn from and a part to judge by."""

    learn: Sample
    judge: Sample


@dataclass(frozen=True)
class Clock:
    """The time that a fit may take; without `seconds` there is no end."""

    seconds: float | None
    start: float = field(default_factory=time.monotonic)

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.start

    @property
    def left(self) -> float:
        """Seconds that are left; infinite without a limit."""
        return math.inf if self.seconds is None else self.seconds - self.spent

    def share(self, part: float) -> "Clock":
        """A clock that stops when this part of what is left is gone."""
        return Clock(None if self.seconds is None else max(0.0, part * self.left))


@dataclass(frozen=True)
class Ground:
    """What a learner knows of the task: its likelihood, C classes or columns, whether inputs are images."""

    stage: str
    form: Likelihood
    size: int
    images: bool
    seed: int

    @property
    def classes(self) -> bool:
        """Whether targets are classes."""
        return self.form.metric == "accuracy"

    def moment(self, done: int, total: int | None, **values: float) -> "tuple[Event, Event]":
        """Progress, and a checkpoint at which stopping loses only this model."""
        return Progress(self.stage, done, total, values), Checkpoint(lambda: State({}, {}))

    def judged(self, outputs: Tensor, targets: Tensor) -> tuple[float, float]:
        """Metric and negative loss: the larger, the better."""
        if self.classes:
            return self.form.score(self.form.tally(outputs, targets)), -float(self.form.loss(outputs, targets))
        error = float((outputs - targets).square().mean())
        return -error, -error


@dataclass(frozen=True, eq=False)
class Choice:
    """Settings, and what the model with these said of samples it did not learn from."""

    settings: Mapping[str, Any]
    outputs: Tensor | None = None
    targets: Tensor | None = None


class Learner(Protocol):
    """Three kinds, one protocol."""

    @property
    def needed(self) -> tuple[str, ...]:
        """Names of the settings that `learning` reads."""
        ...

    def default(self, sample: Sample) -> dict[str, Any]:
        """The settings that are tried first."""
        ...

    def fitting_in(self, draw: Callable[[int], Sample], count: int, clock: Clock) -> Work[int]:
        """How many of `count` samples can be learned from in the time."""
        ...

    def choosing(self, pairs: Sequence[Pair], sample: Sample, clock: Clock) -> Work[Choice]:
        """The best settings that can be found in the time, the default ones first."""
        ...

    def learning(self, sample: Sample, settings: Mapping[str, Any], clock: Clock) -> Work[tuple[Machine, int]]:
        """A model with these settings, and how many steps or rounds it took."""
        ...


def affordable(times: Sequence[tuple[int, float]], allowed: float, count: int) -> tuple[int, float]:
    """How many of `count` samples take the allowed seconds, and how many seconds these take, along a line.

    Args:
        times: samples and seconds of a small and of a larger part, or of one part.
        allowed: seconds.
        count: of all samples.

    >>> affordable([(100, 2.0), (200, 3.0)], 10.0, 5000)
    (900, 10.0)
    """
    (small, base), (large, more) = times[0], times[-1]
    slope = max((more - base) / max(1, large - small), 0.1 * more / large)
    size = min(count, max(large, int(large + (allowed - more) / slope)))
    return size, more + slope * (size - large)


def evenly(labels: Tensor | None, count: int, size: int, seed: int) -> Tensor:
    """Positions of `size` of `count` samples in rising order, of every class its share and, where it goes, one.

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


def pairs_of(sample: Sample, classes: bool, seed: int) -> list[Pair]:
    """One pair of parts, or five folds of few samples; a class's only sample is never judged by.

    >>> toy = Sample(torch.zeros(12, 1), torch.arange(12) % 2)
    >>> pairs = pairs_of(toy, True, seed=0)
    >>> len(pairs), sum(len(pair.judge.y) for pair in pairs)
    (5, 12)
    """
    count = len(sample.y)
    labels = sample.y if classes else None
    if count >= FEW:
        parts = [split_index(labels, count, VALIDATION, derived_seed(seed, "held out"))]
    else:
        order, rank, groups = _ranks(labels, count, seed, "folds")
        alone = torch.bincount(groups)[groups] == 1
        fold = torch.empty(count, dtype=torch.int64)
        fold[order] = torch.where(alone, -1, (rank + groups) % FOLDS)
        parts = [((fold != k).nonzero().flatten(), (fold == k).nonzero().flatten()) for k in range(FOLDS)]
    whole = [(learn, judge) for learn, judge in parts if len(learn) > 1 and len(judge) > 0]
    return [Pair(Sample(*(v[a] for v in sample)), Sample(*(v[b] for v in sample))) for a, b in whole]


def _ranks(labels: Tensor | None, count: int, seed: int, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """A random order sorted by class, each sample's rank within its class, and its class."""
    shuffled = torch.randperm(count, generator=Streams(seed).at("simple", name))
    groups = torch.zeros(count, dtype=torch.int64) if labels is None else labels[shuffled]
    by_class = groups.argsort(stable=True)
    groups = groups[by_class]
    sizes = torch.bincount(groups)
    starts = sizes.cumsum(0) - sizes
    return shuffled[by_class], torch.arange(count) - starts[groups], groups


def standard(x: Tensor, images: bool) -> tuple[Tensor, Tensor]:
    """Mean and deviation `[D]` of columns, 1 where constant; of images all pixels share one deviation.

    A pixel that is almost always background has almost no deviation of its own, and what little there is would count
    as much as the figure: on 3,000 MNIST images an RBF machine falls from 0.92 to 0.18 that way.
    """
    mean = x.double().mean(0)
    variance = (x.double() - mean).square().mean(0)
    if images:
        variance = variance.mean().expand(len(mean))
    constant = is_constant(variance.sqrt(), x.double().abs().amax(0), x.dtype)
    std = torch.where(constant, torch.ones_like(variance), variance.sqrt())
    return mean.to(x.dtype), std.to(x.dtype)


def gridding(
    learner: Learner, ground: Ground, grid: Sequence[Mapping[str, Any]], pairs: Sequence[Pair], clock: Clock
) -> Work[Choice]:
    """The settings of a grid that judge best; the first are always tried, the others while the time allows."""
    best, mark, longest = Choice(grid[0]), (-math.inf, -math.inf), 0.0
    for number, settings in enumerate(grid):
        begun = clock.spent
        # A whole fit afterwards costs about as much as a pass over one pair, 1.6 times that for n².
        if number and clock.left < longest * (1 + 1.6 / len(pairs)):
            break
        outputs = []
        for learn, judge in pairs:
            machine, _ = yield from learner.learning(learn, settings, clock.share(0.4))
            with torch.inference_mode():
                outputs.append(machine(judge.x))
        said, truth = torch.cat(outputs), torch.cat([judge.y for _, judge in pairs])
        reached = ground.judged(said, truth)
        if reached > mark:
            best, mark = Choice(settings, said, truth), reached
        longest = max(longest, clock.spent - begun)
        yield from ground.moment(number + 1, len(grid), metric=mark[0])
    return best
