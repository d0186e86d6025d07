"""Logistic regression and ridge regression of scikit-learn, read out as linear machines.

Logistic regression goes a block of steps at a time, so that it can be stopped at any time.
"""

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nearkin.core.events import Work
from nearkin.core.rng import derived_seed
from nearkin.solver.simple.data import Choice, Clock, Ground, Pair, Sample, affordable, gridding, standard
from nearkin.solver.simple.machines import LinearMachine, Machine

STEPS = 300
ENOUGH_STEPS = 60  # few samples and so many steps rather than more samples and fewer
BLOCK = 50  # steps between two events
PROBES = (200, 1000)  # samples
PROBE_TRIALS = 3
PROBE_STEPS = 2
TOLERANCE = 1e-4  # of the largest slope, scikit-learn's default
BLOCK_WORK = 2**27  # inputs times classes above which a block is shorter
MOST_LOGITS = 2**27  # samples times classes: 1 GiB
LBFGS_WEIGHTS = 2**23  # above it L-BFGS would remember more than 2 GiB; SAGA remembers nothing
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
        """By the time of a few steps on two small parts, which grows with samples and classes."""
        if not self.ground.classes:
            columns = draw(1).x.shape[1]
            return count if columns <= LARGEST_SOLVE else min(count, LARGEST_SOLVE)
        count = min(count, max(1, MOST_LOGITS // self.ground.size))
        if clock.seconds is None:
            return count
        points: list[tuple[int, float]] = []
        for size in PROBES:
            some = draw(min(count, size))
            points.append((len(some.y), _Logistic(some, self.ground, 1.0).step_seconds()))
            yield from self.ground.moment(0, None)
            if points[-1][1] * ENOUGH_STEPS > clock.left or len(some.y) == count:
                break
        return affordable(points, 0.4 * clock.left / (1.25 * ENOUGH_STEPS), count)[0]

    def choosing(self, pairs: Sequence[Pair], sample: Sample, clock: Clock) -> Work[Choice]:
        """The default, then stronger and weaker regularisation."""
        return (yield from gridding(self, self.ground, self._grid(), pairs, clock))

    def learning(self, sample: Sample, settings: Mapping[str, Any], clock: Clock) -> Work[tuple[Machine, int]]:
        """A linear machine, its standardisation folded in, and the steps it took."""
        if not self.ground.classes:
            return _ridge(sample, self.ground, float(settings["alpha"])), 1
        fit, steps = _Logistic(sample, self.ground, float(settings["C"])), 0
        block = BLOCK if sample.x.numel() * self.ground.size < BLOCK_WORK else BLOCK // 10
        while True:
            taken = fit.go(block)
            steps += taken
            yield from self.ground.moment(steps, STEPS)
            if taken < block or steps >= STEPS or clock.left <= 0:
                return fit.machine(), steps


class _Logistic:
    """A logistic regression of scikit-learn on its way down."""

    def __init__(self, sample: Sample, ground: Ground, strength: float) -> None:
        from sklearn.linear_model import LogisticRegression

        self.mean, self.std = standard(sample.x, ground.images)
        self.x, self.y = ((sample.x - self.mean) / self.std).numpy(), sample.y.numpy()
        self.seen, self.size = sample.y.unique(), ground.size
        solver = "lbfgs" if self.x.shape[1] * ground.size <= LBFGS_WEIGHTS else "saga"
        seed = derived_seed(ground.seed, "logistic") % 2**31
        self.model = LogisticRegression(C=strength, tol=TOLERANCE, solver=solver, warm_start=True, random_state=seed)

    def go(self, steps: int) -> int:
        """At most so many steps more; how many there were before the slope was nearly flat."""
        if len(self.seen) < 2:
            return 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a block of steps does not converge
            self.model.set_params(max_iter=steps).fit(self.x, self.y)
        return int(self.model.n_iter_.max())

    def step_seconds(self) -> float:
        """Seconds of a step with all classes: the least of a few, since other work on the machine only adds to it."""
        self.go(1)  # loads what it needs before the time counts
        least = math.inf
        for _ in range(PROBE_TRIALS):
            begun = time.monotonic()
            steps = self.go(PROBE_STEPS)
            least = min(least, (time.monotonic() - begun) / max(1, steps))
        return least * self.size / max(1, len(self.seen))

    def machine(self) -> LinearMachine:
        """The machine of the weights as they are; of two classes one has half the logit, the other its negative.

        A class without a sample gets a logit that is below all others by the logarithm of their number.
        """
        seen, columns = self.seen, self.x.shape[1]
        weight, bias = torch.zeros(len(seen), columns), torch.zeros(len(seen))
        if len(seen) > 1:
            weight, bias = (torch.from_numpy(v).float() for v in (self.model.coef_, self.model.intercept_))
            weight, bias = _unfolded(weight, bias, self.mean, self.std)
        if len(seen) == 2:
            weight, bias = torch.cat([-weight, weight]) / 2, torch.cat([-bias, bias]) / 2
        weights = torch.zeros(self.size, columns).index_copy(0, seen, weight)
        least = float(bias.min()) - math.log(len(self.y) + 1)
        return LinearMachine(weights, torch.full((self.size,), least).index_copy(0, seen, bias))


def _ridge(sample: Sample, ground: Ground, alpha: float) -> LinearMachine:
    r"""$\min_W \|y - Wx - b\|^2 + \alpha\|W\|^2$ in float64."""
    from sklearn.linear_model import Ridge

    mean, std = (v.double() for v in standard(sample.x, ground.images))
    model = Ridge(alpha=alpha).fit(((sample.x - mean) / std).numpy(), sample.y.double().numpy())
    weight = torch.from_numpy(model.coef_).reshape(sample.y.shape[1], -1)
    return LinearMachine(*(v.float() for v in _unfolded(weight, torch.from_numpy(model.intercept_), mean, std)))


def _unfolded(weight: Tensor, bias: Tensor, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """Weights for inputs as they come from those for standardised ones."""
    weight = weight / std
    return weight, bias - weight @ mean
