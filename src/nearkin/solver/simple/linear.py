"""Logistic and ridge regression by scikit-learn, converted to linear machines.

Logistic regression runs in blocks of steps, so that it can stop at a time limit.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nearkin.core.clock import now
from nearkin.core.events import Work
from nearkin.core.rng import derived_seed
from nearkin.solver.simple.data import (
    ChosenSettings,
    Clock,
    FitContext,
    Fold,
    Sample,
    affordable,
    grid_search,
    standard,
)
from nearkin.solver.simple.machines import LinearMachine, Machine

STEPS = 300
ENOUGH_STEPS = 60  # steps that are preferred to more samples
BLOCK = 50  # steps between two events
PROBES = (200, 1000)  # samples
PROBE_TRIALS = 3
PROBE_STEPS = 2
TOLERANCE = 1e-4  # of the gradient, the default of scikit-learn
BLOCK_WORK = 2**27  # inputs times classes; above this, blocks are shorter
MOST_LOGITS = 2**27  # samples times classes: 1 GiB
LBFGS_WEIGHTS = 2**23  # above this L-BFGS would need more than 2 GiB, and SAGA is used
LARGEST_SOLVE = 6000  # columns or samples of a ridge regression
STRENGTHS = (1.0, 0.1, 0.01, 10.0, 0.001)
STRENGTHS_OF_IMAGES = (0.01, 0.001, 0.1, 1.0)  # pixels are many and correlated, so stronger penalties do better


@dataclass(frozen=True)
class LinearLearner:
    """Learner of linear machines."""

    context: FitContext

    @property
    def needed(self) -> tuple[str, ...]:
        """C of logistic regression, or alpha of ridge regression."""
        return ("C",) if self.context.classes else ("alpha",)

    def default(self, sample: Sample) -> dict[str, Any]:
        """Default of scikit-learn for tables; stronger regularisation for images and features."""
        return self._grid()[0]

    def _grid(self) -> list[dict[str, float]]:
        """Settings to try, in this order; alpha of ridge regression is 1 / C."""
        strengths = STRENGTHS_OF_IMAGES if self.context.shared_scale else STRENGTHS
        return [{"C": value} if self.context.classes else {"alpha": 1 / value} for value in strengths]

    def affordable_size(self, draw: Callable[[int], Sample], count: int, clock: Clock) -> Work[int]:
        """Extrapolated linearly from the time of a few steps on two small samples."""
        if not self.context.classes:
            columns = draw(1).x.shape[1]
            return count if columns <= LARGEST_SOLVE else min(count, LARGEST_SOLVE)
        count = min(count, max(1, MOST_LOGITS // self.context.size))
        if clock.seconds is None:
            return count
        points: list[tuple[int, float]] = []
        for size in PROBES:
            some = draw(min(count, size))
            points.append((len(some.y), _Logistic(some, self.context, 1.0).step_seconds()))
            yield from self.context.report(0, None)
            if points[-1][1] * ENOUGH_STEPS > clock.left or len(some.y) == count:
                break
        return affordable(points, 0.4 * clock.left / (1.25 * ENOUGH_STEPS), count)[0]

    def choose(self, folds: Sequence[Fold], sample: Sample, clock: Clock) -> Work[ChosenSettings]:
        """Grid search over the regularisation, the default first."""
        return (yield from grid_search(self, self.context, self._grid(), folds, clock))

    def fit(self, sample: Sample, settings: Mapping[str, Any], clock: Clock) -> Work[tuple[Machine, int]]:
        """Linear machine that includes the standardisation, and its number of steps."""
        if not self.context.classes:
            return _ridge(sample, self.context, float(settings["alpha"])), 1
        fit, steps = _Logistic(sample, self.context, float(settings["C"])), 0
        block = BLOCK if sample.x.numel() * self.context.size < BLOCK_WORK else BLOCK // 10
        while True:
            steps_taken = fit.run(block)
            steps += steps_taken
            yield from self.context.report(steps, STEPS)
            if steps_taken < block or steps >= STEPS or clock.left <= 0:
                return fit.machine(), steps


class _Logistic:
    """Logistic regression of scikit-learn that runs in blocks of steps."""

    def __init__(self, sample: Sample, context: FitContext, strength: float) -> None:
        from sklearn.linear_model import LogisticRegression

        self.mean, self.std = standard(sample.x, context)
        self.x, self.y = ((sample.x - self.mean) / self.std).numpy(), sample.y.numpy()
        self.weights = sample.weight_array
        self.seen, self.size = sample.y.unique(), context.size
        solver = "lbfgs" if self.x.shape[1] * context.size <= LBFGS_WEIGHTS else "saga"
        seed = derived_seed(context.seed, "logistic") % 2**31
        self.model = LogisticRegression(C=strength, tol=TOLERANCE, solver=solver, warm_start=True, random_state=seed)

    def run(self, steps: int) -> int:
        """Run at most this many further steps; returns the number before convergence."""
        if len(self.seen) < 2:
            return 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a block that ends before convergence
            self.model.set_params(max_iter=steps).fit(self.x, self.y, self.weights)
        return int(self.model.n_iter_.max())

    def step_seconds(self) -> float:
        """Seconds of one step with all classes; the minimum of a few timings, since other processes only add time."""
        self.run(1)  # imports scikit-learn before the timing starts
        least = math.inf
        for _ in range(PROBE_TRIALS):
            begun = now()
            steps = self.run(PROBE_STEPS)
            least = min(least, (now() - begun) / max(1, steps))
        return least * self.size / max(1, len(self.seen))

    def machine(self) -> LinearMachine:
        """Linear machine with the present weights; two classes get plus and minus half the logit.

        The logit of a class without samples is below all others by the logarithm of the sample count.
        """
        seen, columns = self.seen, self.x.shape[1]
        weight, bias = torch.zeros(len(seen), columns), torch.zeros(len(seen))
        if len(seen) > 1:
            weight, bias = (torch.from_numpy(v).float() for v in (self.model.coef_, self.model.intercept_))
            weight, bias = _for_raw_inputs(weight, bias, self.mean, self.std)
        if len(seen) == 2:
            weight, bias = torch.cat([-weight, weight]) / 2, torch.cat([-bias, bias]) / 2
        weights = torch.zeros(self.size, columns).index_copy(0, seen, weight)
        least = float(bias.min()) - math.log(len(self.y) + 1)
        return LinearMachine(weights, torch.full((self.size,), least).index_copy(0, seen, bias))


def _ridge(sample: Sample, context: FitContext, alpha: float) -> LinearMachine:
    r"""$\min_W \|y - Wx - b\|^2 + \alpha\|W\|^2$ in float64."""
    from sklearn.linear_model import Ridge

    mean, std = (v.double() for v in standard(sample.x, context))
    x, y = ((sample.x - mean) / std).numpy(), sample.y.double().numpy()
    model = Ridge(alpha=alpha).fit(x, y, sample.weight_array)
    weight = torch.from_numpy(model.coef_).reshape(sample.y.shape[1], -1)
    return LinearMachine(*(v.float() for v in _for_raw_inputs(weight, torch.from_numpy(model.intercept_), mean, std)))


def _for_raw_inputs(weight: Tensor, bias: Tensor, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """Weights for raw inputs, from weights for standardised inputs."""
    weight = weight / std
    return weight, bias - weight @ mean
