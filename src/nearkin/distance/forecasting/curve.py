"""Compact record of a training run: the lowest loss and the best metric so far, by the sum of learning rates.

Half the learning rate takes about twice the steps, so runs with other learning rates and schedules become comparable
on a clock that is the sum of the learning rates of the steps done.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nearkin.core.errors import DataError, require
from nearkin.nets.history import History
from nearkin.nets.recipe import Recipe

POINTS = 64
WINDOW = 10  # steps, at most an epoch, over which losses are averaged


@dataclass(frozen=True, eq=False)
class RunCurve:
    """What a run had reached, and when.

    Attributes:
        clocks: sums of the learning rates after some steps `[S]`, rising.
        losses: lowest mean training loss of a window of steps so far `[S]`, not rising.
        validated: sums of the learning rates at validations `[V]`.
        metrics: best metric on validation data so far `[V]`, not falling.

    >>> recipe = Recipe(steps=4, learning_rate=0.5, schedule="constant", warmup=0.0)
    >>> curve = RunCurve.of(History(torch.tensor([4.0, 2.0, 1.0, 0.5])), recipe)
    >>> curve.clocks.tolist(), curve.clock_to_loss(1.0), curve.clock_to_loss(0.1)
    ([0.5, 1.0, 1.5, 2.0], (1.5, True), (2.0, False))
    """

    clocks: Tensor
    losses: Tensor
    validated: Tensor
    metrics: Tensor

    def __post_init__(self) -> None:
        sizes = [tuple(value.shape) for value in (self.clocks, self.losses, self.validated, self.metrics)]
        fits = sizes[0] == sizes[1] and sizes[2] == sizes[3] and all(len(size) == 1 for size in sizes) and sizes[0][0]
        require(bool(fits), f"a recorded run has curves of shapes {sizes}, expected two pairs of equal ones", DataError)
        sound = all(bool(value.isfinite().all()) for value in vars(self).values())
        rising = all(bool((clock > 0).all() and (clock.diff() >= 0).all()) for clock in (self.clocks, self.validated))
        require(sound and rising, "a recorded run has values that are not finite, or times that do not rise", DataError)

    @classmethod
    def of(cls, history: History, recipe: Recipe, points: int = POINTS) -> "RunCurve":
        """The record of a run."""
        steps = len(history.losses)
        clock = clock_of(recipe, steps, history.steps_per_epoch)
        width = min(WINDOW, history.steps_per_epoch, steps)
        sums = torch.cat([torch.zeros(1, dtype=torch.float64), history.losses.double().cumsum(0)])
        means = (sums[width:] - sums[:-width]) / width
        best = means.cummin(0).values
        kept = _spread_out(len(best), points)
        rows = [row for row in history.measured if 0 < row.step <= steps]
        chosen = _spread_out(len(rows), points).tolist()
        metrics = torch.tensor([row.metric for row in rows], dtype=torch.float64)
        metrics = metrics.cummax(0).values if rows else metrics
        at = torch.tensor([rows[index].step - 1 for index in chosen], dtype=torch.int64)
        return cls(clock[kept + width - 1], best[kept], clock[at], metrics[chosen])

    def clock_to_loss(self, loss: float) -> tuple[float, bool]:
        """The clock at which the training loss reaches a value, or the last clock and False."""
        return _crossing(self.clocks, self.losses - loss)

    def clock_to_metric(self, metric: float) -> tuple[float, bool]:
        """The clock at which the validation metric reaches a value, or the last clock and False."""
        require(len(self.metrics) > 0, "this run was not validated, so its metric is not known", DataError)
        return _crossing(self.validated, metric - self.metrics)

    def thinned(self, points: int) -> "RunCurve":
        """The curve with fewer points."""
        kept, chosen = _spread_out(len(self.clocks), points), _spread_out(len(self.validated), points)
        return RunCurve(self.clocks[kept], self.losses[kept], self.validated[chosen], self.metrics[chosen])

    def to_tensors(self) -> dict[str, Tensor]:
        """Tensors for a file."""
        return {name: value.float() for name, value in vars(self).items()}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> "RunCurve":
        """The inverse of `to_tensors`."""
        names = ("clocks", "losses", "validated", "metrics")
        missing = [name for name in names if name not in tensors]
        require(not missing, f"a recorded run has no {', '.join(missing)}; its file is not complete", DataError)
        return cls(*(tensors[name].double() for name in names))


def clock_of(recipe: Recipe, steps: int, steps_per_epoch: int) -> Tensor:
    """Sum of the learning rates after each of `steps` steps `[steps]`.

    The schedule of a run with a time limit follows the share of time; steps are taken to be equally long.

    >>> clock_of(Recipe(steps=2, learning_rate=0.5, schedule="constant", warmup=0.0), 2, 1).tolist()
    [0.5, 1.0]
    """
    total = steps if recipe.seconds is not None else max(steps, recipe.total_steps(steps_per_epoch))
    return torch.tensor([recipe.rate(step, total) for step in range(steps)], dtype=torch.float64).cumsum(0)


def _crossing(clocks: Tensor, above: Tensor) -> tuple[float, bool]:
    """Where falling values reach 0, between points on a line in log clock; else the last clock and False."""
    times, values = clocks.numpy(), above.numpy()
    if values[-1] > 0:
        return float(times[-1]), False
    index = int(np.argmax(values <= 0))
    right, high = float(times[index]), float(values[index])
    if index == 0 or high == 0:
        return right, True
    left, low = float(times[index - 1]), float(values[index - 1])
    share = low / (low - high)
    return math.exp(math.log(left) + share * (math.log(right) - math.log(left))), True


def _spread_out(count: int, points: int) -> Tensor:
    """Up to `points` of `count` positions, at about equal ratios, with the first and the last."""
    if count <= points:
        return torch.arange(count)
    ratios = np.geomspace(1, count, points)
    return torch.from_numpy(np.unique(ratios.round().astype(np.int64)) - 1)
