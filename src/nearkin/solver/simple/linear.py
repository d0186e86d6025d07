r"""Logistic regression and ridge regression, as linear machines.

Logistic regression minimises what scikit-learn's does, $\frac1N \sum_n -\log p(y_n \mid x_n) + \frac{1}{2CN}\|W\|^2$
(of two classes $W$ is one row), by L-BFGS in blocks of a few steps, so that it can be stopped at any time and takes
ten thousand classes in pieces. Ridge regression is solved in closed form.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nearkin.core.events import Work
from nearkin.solver.simple.data import Choice, Clock, Ground, Pair, Sample, gridding, standard
from nearkin.solver.simple.machines import LinearMachine, Machine

STEPS = 300
ENOUGH_STEPS = 60  # few samples and so many steps rather than more samples and fewer
BLOCK = 10  # steps between two events
TOLERANCE = 1e-4  # of the largest slope, as scikit-learn's
GAIN = 1e-5  # of the loss in a block of steps, relative
PIECE = 2**24  # logits at once
MEMORY = 2**28  # numbers that L-BFGS may remember
LARGEST_SOLVE = 6000  # equations of a ridge regression
STRENGTHS = (1.0, 0.1, 0.01, 10.0, 0.001)
STRENGTHS_OF_IMAGES = (0.01, 0.001, 0.1, 1.0)  # pixels are many and alike: less is better there, and found sooner


@dataclass(frozen=True)
class Linear:
    """The learner of linear machines."""

    ground: Ground

    @property
    def needed(self) -> tuple[str, ...]:
        """The one setting."""
        return ("C",) if self.ground.classes else ("alpha",)

    def default(self, sample: Sample) -> dict[str, Any]:
        """Scikit-learn's own default for tables, a stronger regularisation for images."""
        return self._grid()[0]

    def _grid(self) -> list[dict[str, float]]:
        """Settings to try, in their order; the penalty of a ridge regression is the inverse of a strength."""
        strengths = STRENGTHS_OF_IMAGES if self.ground.images else STRENGTHS
        return [{"C": value} if self.ground.classes else {"alpha": 1 / value} for value in strengths]

    def fitting_in(self, draw: Callable[[int], Sample], count: int, clock: Clock) -> Work[int]:
        """By the time of one slope on a small part, which grows with the samples."""
        if not self.ground.classes:
            columns = draw(1).x.shape[1]
            return count if columns <= LARGEST_SOLVE else min(count, LARGEST_SOLVE)
        if clock.seconds is None:
            return count
        some = draw(min(count, 200))
        trial = _Logistic(some, self.ground, 1.0)
        trial.slope()  # loads what it needs before the time counts
        begun = time.monotonic()
        trial.slope()
        each = (time.monotonic() - begun) / len(some.y)
        yield from self.ground.moment(0, None)
        return min(count, max(len(some.y), int(0.4 * clock.left / (1.25 * ENOUGH_STEPS * each))))

    def choosing(self, pairs: Sequence[Pair], sample: Sample, clock: Clock) -> Work[Choice]:
        """The default, then stronger and weaker regularisation."""
        return (yield from gridding(self, self.ground, self._grid(), pairs, clock))

    def learning(self, sample: Sample, settings: Mapping[str, Any], clock: Clock) -> Work[tuple[Machine, int]]:
        """A linear machine, its standardisation folded in, and the steps it took."""
        if not self.ground.classes:
            return _ridge(sample, self.ground, float(settings["alpha"])), 1
        fit = _Logistic(sample, self.ground, float(settings["C"]))
        for steps in fit.descending():
            yield from self.ground.moment(steps, STEPS, loss=fit.loss)
            if clock.left <= 0:
                break
        return fit.machine(), fit.steps


class _Logistic:
    """A logistic regression on its way down."""

    def __init__(self, sample: Sample, ground: Ground, strength: float) -> None:
        self.mean, self.std = standard(sample.x, ground.images)
        self.x, self.y = (sample.x - self.mean) / self.std, sample.y
        self.rows = 1 if ground.size == 2 else ground.size
        self.decay = 1 / (strength * len(self.y))
        self.weight = torch.zeros(self.rows, self.x.shape[1], requires_grad=True)
        self.bias = torch.zeros(self.rows, requires_grad=True)
        self.steps, self.loss = 0, float("inf")

    def slope(self) -> Tensor:
        """The objective, its gradient left in the weights."""
        self.weight.grad = self.bias.grad = None
        total = 0.5 * self.decay * self.weight.square().sum()
        total.backward()
        for x, y in zip(*(v.split(max(1, PIECE // self.rows)) for v in (self.x, self.y)), strict=True):
            logits = F.linear(x, self.weight, self.bias)
            if self.rows == 1:
                part = F.binary_cross_entropy_with_logits(logits[:, 0], y.to(x.dtype), reduction="sum") / len(self.y)
            else:
                part = F.cross_entropy(logits, y, reduction="sum") / len(self.y)
            part.backward()
            total = total.detach() + part.detach()
        return total.detach()

    def descending(self) -> Iterator[int]:
        """Steps so far, after every block of them, until the slope is nearly flat."""
        history = max(2, min(10, MEMORY // (2 * self.weight.numel())))
        block = BLOCK if self.x.numel() * self.rows < 2**27 else 1
        walk = torch.optim.LBFGS(
            [self.weight, self.bias], max_iter=block, history_size=history, tolerance_grad=TOLERANCE,
            line_search_fn="strong_wolfe",
        )  # fmt: skip
        while self.steps < STEPS:
            before = self.loss
            walk.step(self.slope)
            self.steps += block
            with torch.enable_grad():
                self.loss = float(self.slope())
            yield self.steps
            steepest = max(float(v.grad.abs().max()) for v in (self.weight, self.bias) if v.grad is not None)
            if steepest < TOLERANCE or before - self.loss < GAIN * abs(self.loss):
                return

    def machine(self) -> LinearMachine:
        """The machine of the weights as they are; of two classes one has half the logit, the other its negative."""
        weight, bias = _unfolded(self.weight.detach(), self.bias.detach(), self.mean, self.std)
        if self.rows == 1:
            weight, bias = torch.cat([-weight, weight]) / 2, torch.cat([-bias, bias]) / 2
        return LinearMachine(weight, bias)


def _ridge(sample: Sample, ground: Ground, alpha: float) -> LinearMachine:
    r"""$\min_W \|y - Wx - b\|^2 + \alpha\|W\|^2$ in float64, by the smaller of the two systems of equations."""
    mean, std = standard(sample.x, ground.images)
    x, y = ((sample.x - mean) / std).double(), sample.y.double()
    middle = y.mean(0)
    if x.shape[1] <= len(x):
        eye = torch.eye(x.shape[1], dtype=x.dtype)
        weight = torch.linalg.solve(x.T @ x + alpha * eye, x.T @ (y - middle)).T
    else:
        weight = (x.T @ torch.linalg.solve(x @ x.T + alpha * torch.eye(len(x), dtype=x.dtype), y - middle)).T
    return LinearMachine(*(v.float() for v in _unfolded(weight, middle, mean.double(), std.double())))


def _unfolded(weight: Tensor, bias: Tensor, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """Weights for inputs as they come from those for standardised ones."""
    weight = weight / std
    return weight, bias - weight @ mean
