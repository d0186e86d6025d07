"""RBF support vector machines for classification (one against the rest) and regression, as kernel machines."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nearkin.core.clock import now
from nearkin.core.events import Work, finish
from nearkin.solver.simple.data import ChosenSettings, Clock, FitContext, Fold, Sample, grid_search, standard
from nearkin.solver.simple.machines import KernelMachine, Machine, squared_distances

MOST_SAMPLES = 20_000  # time and memory grow quadratically
GRAM_SAMPLES = 6_000  # up to this many samples the whole kernel matrix is kept: 288 MB
PROBE = 300
GRID = ((1.0, 1.0), (10.0, 1.0), (10.0, 3.0), (10.0, 0.3), (100.0, 0.3), (1.0, 3.0))
"""C, and gamma as a multiple of scikit-learn's default 1 / (D var)."""
TEMPERATURE = 2.0  # used when there are no validation samples


@dataclass(frozen=True)
class KernelLearner:
    """Learner of kernel machines."""

    context: FitContext

    @property
    def needed(self) -> tuple[str, ...]:
        """The penalty C and the kernel parameter gamma."""
        return ("C", "gamma")

    def default(self, sample: Sample) -> dict[str, Any]:
        """Defaults of scikit-learn."""
        return {"C": 1.0, "gamma": _scale_gamma(sample, self.context)}

    def affordable_size(self, draw: Callable[[int], Sample], count: int, clock: Clock) -> Work[int]:
        """Extrapolated quadratically from the time of a fit on few samples."""
        most = min(count, MOST_SAMPLES)
        if clock.seconds is None or most <= PROBE:
            return most
        some = draw(max(PROBE, 2 * self.context.size))
        _solved(np.eye(2), np.arange(2), True, 1.0, self.context.classes)  # imports scikit-learn before the timing
        begun = now()
        yield from self.fit(some, self.default(some), clock)
        each = max(now() - begun, 1e-3) / len(some.y) ** 2
        return min(most, max(len(some.y), int((0.3 * max(0.0, clock.left) / each) ** 0.5)))

    def choose(self, folds: Sequence[Fold], sample: Sample, clock: Clock) -> Work[ChosenSettings]:
        """Grid search over C and gamma, the defaults first."""
        default_gamma = _scale_gamma(sample, self.context)
        grid = [{"C": penalty, "gamma": default_gamma * factor} for penalty, factor in GRID]
        return (yield from grid_search(self, self.context, grid, folds, clock))

    def fit(self, sample: Sample, settings: Mapping[str, Any], clock: Clock) -> Work[tuple[Machine, int]]:
        """Kernel machine over the support vectors of all outputs, and their number."""
        mean, std = standard(sample.x, self.context)
        scale = float(settings["gamma"]) ** 0.5 / std
        z = (sample.x - mean) * scale
        whole = len(z) <= GRAM_SAMPLES
        inputs = _gram(z) if whole else z.double().numpy()
        problems = _problems(sample.y, self.context)
        weights, biases = torch.zeros(len(z), len(problems)), torch.zeros(len(problems))
        for number, target in enumerate(problems):
            options = whole, float(settings["C"]), self.context.classes, sample.weight_array
            support, dual, bias = _solved(inputs, target, *options)
            weights[support, number], biases[number] = dual, bias
            yield from self.context.report(number + 1, None)
        if self.context.classes and len(problems) == 1:  # two classes: plus and minus half the logit
            weights, biases = torch.cat([-weights, weights], 1) / 2, torch.cat([-biases, biases]) / 2
        used = weights.abs().amax(1) > 0
        used[0] |= not bool(used.any())  # keep one vector of zero weight if the best prediction is a constant
        machine = KernelMachine(z[used].contiguous(), weights[used].contiguous(), biases, scale, -mean * scale)
        return machine, int(used.sum())


def predicted_seconds(sample: Sample, count: int, context: FitContext) -> float:
    """Processor seconds to select and fit a machine for `count` samples, extrapolated from a fit to a few of them.

    On images of 800 to 1,600 samples the true time was 0.6 to 1.1 of it.
    """
    learner = KernelLearner(context)
    _solved(np.eye(2), np.arange(2), True, 1.0, context.classes)  # imports scikit-learn before the timing
    begun = time.thread_time()
    finish(learner.fit(sample, learner.default(sample), Clock(None)))
    return (time.thread_time() - begun) * (count / len(sample.y)) ** 2


def sharpness(outputs: Tensor, targets: Tensor) -> float:
    """Factor from 0.1 to 100 that turns outputs `[N, C]` into logits with the smallest cross-entropy on classes `[N]`.

    Labels are smoothed by 1 / (N + 2): N samples that are all right do not show that there are no mistakes.

    >>> sharpness(torch.eye(2).repeat(8, 1), torch.tensor([0, 1] * 7 + [1, 0])) < 3
    True
    """
    factors = torch.logspace(-1, 2, 121)
    smoothing = 1 / (len(targets) + 2)
    losses = [F.cross_entropy(outputs * factor, targets, label_smoothing=smoothing) for factor in factors]
    return float(factors[int(torch.stack(losses).argmin())])


def _scale_gamma(sample: Sample, context: FitContext) -> float:
    """Default of scikit-learn, `1 / (D var)`, for standardised inputs."""
    mean, std = standard(sample.x, context)
    variance = float(((sample.x - mean) / std).var(correction=0))
    return 1 / (sample.x.shape[1] * variance) if variance > 0 else 1.0


def _gram(z: Tensor) -> Any:
    """Kernel matrix `[N, N]` in float64, exactly symmetric."""
    kernel = torch.exp(-squared_distances(z, z)).double()
    return ((kernel + kernel.T) / 2).fill_diagonal_(1.0).numpy()


def _problems(y: Tensor, context: FitContext) -> list[Any]:
    """Targets of each binary or regression problem: one per class, one for two classes, one per column."""
    if not context.classes:
        return list(y.double().T.contiguous().numpy())
    return [(y == group).numpy().astype(np.int64) for group in (range(context.size) if context.size > 2 else (1,))]


def _solved(
    inputs: Any, target: Any, whole: bool, penalty: float, classes: bool, weights: Any = None
) -> tuple[Tensor, Tensor, float]:
    """Indices of the support vectors, their weights, and the bias of one machine."""
    from sklearn.svm import SVC, SVR

    options = {"C": penalty, "cache_size": 400, "kernel": "precomputed" if whole else "rbf"}
    options |= {} if whole else {"gamma": 1.0}
    model = (SVC if classes else SVR)(**options).fit(inputs, target, weights)
    dual = torch.from_numpy(np.asarray(model.dual_coef_, dtype=np.float64)[0]).float()
    return torch.from_numpy(model.support_.astype(np.int64)), dual, float(model.intercept_[0])
