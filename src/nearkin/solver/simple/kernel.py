"""RBF support vector machines for classes, one against the rest, and for values, as kernel machines."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.core.events import Work
from nearkin.solver.simple.data import Choice, Clock, Ground, Pair, Sample, gridding, standard
from nearkin.solver.simple.machines import KernelMachine, Machine, squared_distances

MOST_SAMPLES = 20_000  # beyond it, time and memory grow out of hand
GRAM_SAMPLES = 6_000  # up to so many all kernel values are kept: 288 MB
PROBE = 300
GRID = ((1.0, 1.0), (10.0, 1.0), (10.0, 3.0), (10.0, 0.3), (100.0, 0.3), (1.0, 3.0))
"""C, and gamma as a multiple of scikit-learn's default 1 / (D var)."""
TEMPERATURE = 2.0  # where no sample is left to find it by


@dataclass(frozen=True)
class Kernel:
    """The learner of kernel machines."""

    ground: Ground

    @property
    def needed(self) -> tuple[str, ...]:
        """Stiffness and width."""
        return ("C", "gamma")

    def default(self, sample: Sample) -> dict[str, Any]:
        """Scikit-learn's own defaults."""
        return {"C": 1.0, "gamma": _scale_gamma(sample, self.ground)}

    def fitting_in(self, draw: Callable[[int], Sample], count: int, clock: Clock) -> Work[int]:
        """By the time of a fit on a small part, which grows with the square of the samples."""
        most = min(count, MOST_SAMPLES)
        if clock.seconds is None or most <= PROBE:
            return most
        some = draw(max(PROBE, 2 * self.ground.size))
        _solved(np.eye(2), np.arange(2), True, 1.0, self.ground.classes)  # loads what it needs before the time counts
        begun = time.monotonic()
        yield from self.learning(some, self.default(some), clock)
        each = max(time.monotonic() - begun, 1e-3) / len(some.y) ** 2
        return min(most, max(len(some.y), int((0.3 * max(0.0, clock.left) / each) ** 0.5)))

    def choosing(self, pairs: Sequence[Pair], sample: Sample, clock: Clock) -> Work[Choice]:
        """From the default to stiffer, narrower and wider ones."""
        usual = _scale_gamma(sample, self.ground)
        grid = [{"C": stiff, "gamma": usual * factor} for stiff, factor in GRID]
        return (yield from gridding(self, self.ground, grid, pairs, clock))

    def learning(self, sample: Sample, settings: Mapping[str, Any], clock: Clock) -> Work[tuple[Machine, int]]:
        """A kernel machine over all support vectors of its outputs, and how many there are."""
        mean, std = standard(sample.x, self.ground.images)
        scale = float(settings["gamma"]) ** 0.5 / std
        z = (sample.x - mean) * scale
        whole = len(z) <= GRAM_SAMPLES
        given = _gram(z) if whole else z.double().numpy()
        problems = _problems(sample.y, self.ground)
        weights, biases = torch.zeros(len(z), len(problems)), torch.zeros(len(problems))
        for number, target in enumerate(problems):
            place, dual, bias = _solved(given, target, whole, float(settings["C"]), self.ground.classes)
            weights[place, number], biases[number] = dual, bias
            yield from self.ground.moment(number + 1, None)
        if self.ground.classes and len(problems) == 1:  # of two classes one has half the logit, the other its negative
            weights, biases = torch.cat([-weights, weights], 1) / 2, torch.cat([-biases, biases]) / 2
        used = weights.abs().amax(1) > 0
        used[0] |= not bool(used.any())  # one vector of no weight, where a constant answers best
        machine = KernelMachine(z[used].contiguous(), weights[used].contiguous(), biases, scale, -mean * scale)
        return machine, int(used.sum())


def sharpness(outputs: Tensor, targets: Tensor) -> float:
    """The factor, 0.1 to 100, by which outputs `[N, C]` become the logits that fit the classes `[N]` best.

    >>> sharpness(torch.eye(2).repeat(8, 1), torch.tensor([0, 1] * 7 + [1, 0])) < 3
    True
    """
    factors = torch.logspace(-1, 2, 121)
    losses = [torch.nn.functional.cross_entropy(outputs * factor, targets) for factor in factors]
    return float(factors[int(torch.stack(losses).argmin())])


def _scale_gamma(sample: Sample, ground: Ground) -> float:
    """`1 / (D var)` of standardised inputs."""
    mean, std = standard(sample.x, ground.images)
    variance = float(((sample.x - mean) / std).var(correction=0))
    return 1 / (sample.x.shape[1] * variance) if variance > 0 else 1.0


def _gram(z: Tensor) -> Any:
    """Kernel values `[N, N]` in float64, exactly symmetric."""
    kernel = torch.exp(-squared_distances(z, z)).double()
    return ((kernel + kernel.T) / 2).fill_diagonal_(1.0).numpy()


def _problems(y: Tensor, ground: Ground) -> list[Any]:
    """Targets of every machine that is solved: each class against the rest, two classes once, or each column."""
    if not ground.classes:
        return list(y.double().T.contiguous().numpy())
    return [(y == group).numpy().astype(np.int64) for group in (range(ground.size) if ground.size > 2 else (1,))]


def _solved(given: Any, target: Any, whole: bool, stiff: float, classes: bool) -> tuple[Tensor, Tensor, float]:
    """Positions of support vectors, their weights, and the bias of one two-sided machine."""
    from sklearn.svm import SVC, SVR

    options = {"C": stiff, "cache_size": 400, "kernel": "precomputed" if whole else "rbf"}
    options |= {} if whole else {"gamma": 1.0}
    model = (SVC if classes else SVR)(**options).fit(given, target)
    dual = torch.from_numpy(np.asarray(model.dual_coef_, dtype=np.float64)[0]).float()
    return torch.from_numpy(model.support_.astype(np.int64)), dual, float(model.intercept_[0])
