"""Gradient boosting of decision trees for classes and values, grown a few rounds at a time."""

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
from nearkin.solver.simple.data import Choice, Clock, Ground, Pair, Sample, affordable
from nearkin.solver.simple.machines import Machine
from nearkin.solver.simple.trees import boosted_from

ROUNDS = 300  # at the most
PATIENCE = 20  # rounds without a better loss on what is held out
ENOUGH_ROUNDS = 8  # where time is short; 9 rounds on 3,000 MNIST images beat 20 rounds on 1,000
RATES = (0.1, 0.3, 0.05)
REACH = 8.0  # learning rate times rounds that usually suffices
LEAVES = 16
LEAST = 5  # samples of a leaf
COLUMNS = 16  # that a split chooses from, or the root of their number: faster, and better on images than all of them
SUBSAMPLE = 0.5  # of the samples for each tree: twice as fast, and seldom worse
WORK = 2 * 10**6  # samples times columns times trees between two events
PROBES = (300, 1000)
PROBE_ROUNDS = 3


@dataclass
class Boosting:
    """The learner of boosted trees; it remembers how long a round takes where there is a time limit."""

    ground: Ground
    round_seconds: float = 0.0

    @property
    def needed(self) -> tuple[str, ...]:
        """Pace, length and size of trees; `columns` are those that a split chooses from."""
        return ("learning_rate", "rounds", "leaves", "least", "columns")

    def default(self, sample: Sample) -> dict[str, Any]:
        """Trees of a few leaves on half of the samples, each split by the best of some columns."""
        count, columns = sample.x.shape
        return {
            "learning_rate": RATES[0], "rounds": 100, "leaves": LEAVES, "least": max(1, min(LEAST, count // 25)),
            "columns": min(columns, max(COLUMNS, math.isqrt(columns))),
        }  # fmt: skip

    def fitting_in(self, draw: Callable[[int], Sample], count: int, clock: Clock) -> Work[int]:
        """By the time of a round on two small parts, taken to grow along a line."""
        if clock.seconds is None:
            return count
        self._measured(draw(2 * self.ground.size + 20))  # what is loaded at the first call is not the sample's fault
        points: list[tuple[int, float]] = []
        for size in PROBES:
            some = draw(min(count, max(size, 2 * self.ground.size)))
            points.append((len(some.y), self._measured(some)))
            yield from self.ground.moment(0, None)
            if points[-1][1] * ENOUGH_ROUNDS > clock.left or len(some.y) == count:
                break
        size, self.round_seconds = affordable(points, 0.4 * clock.left / ENOUGH_ROUNDS, count)
        return size

    def choosing(self, pairs: Sequence[Pair], sample: Sample, clock: Clock) -> Work[Choice]:
        """Rounds by the loss on what is held out; then other learning rates, while the time allows.

        Where there is time for few rounds, the first rate is larger.
        """
        first = RATES[0]
        if clock.seconds is not None and self.round_seconds > 0:
            affordable = 0.4 * clock.left / (self.round_seconds * len(pairs))
            first = round(min(max(RATES), max(first, REACH / max(affordable, 1.0))), 2)
        best, least, longest = Choice(self.default(sample)), math.inf, 0.0
        targets = torch.cat([judge.y for _, judge in pairs])
        for number, rate in enumerate([first, *(rate for rate in RATES if rate != first)]):
            if number and clock.left < longest * (1 + 1.6 / len(pairs)):
                break
            begun = clock.spent
            settings = {**self.default(sample), "learning_rate": rate}
            rounds, loss, outputs = yield from self._grown(pairs, targets, settings, clock.share(0.45))
            if loss < least:
                best, least = Choice({**settings, "rounds": rounds}, outputs, targets), loss
            longest = max(longest, clock.spent - begun)
        return best

    def learning(self, sample: Sample, settings: Mapping[str, Any], clock: Clock) -> Work[tuple[Machine, int]]:
        """Boosted trees, and how many rounds there was time for."""
        grove, rounds, stride = Grove(sample, self.ground, settings), int(settings["rounds"]), self._stride(sample)
        last = 0.0
        while grove.rounds < rounds and (grove.rounds == 0 or clock.left > last):
            begun = clock.spent
            grove.grow(min(stride, rounds - grove.rounds))
            last = clock.spent - begun
            yield from self.ground.moment(grove.rounds, rounds)
        return boosted_from(grove.models, self.ground.size), grove.rounds

    def _grown(
        self, pairs: Sequence[Pair], targets: Tensor, settings: Mapping[str, Any], clock: Clock
    ) -> Work[tuple[int, float, Tensor]]:
        """The best number of rounds, loss and outputs, grown until nothing is gained or the time is gone."""
        groves = [Grove(learn, self.ground, settings) for learn, _ in pairs]
        stride, best, done = self._stride(pairs[0].learn), (0, math.inf, torch.zeros(0)), 0
        last = 0.0
        while done < ROUNDS and done - best[0] < PATIENCE and (done == 0 or clock.left > last):
            begun, said = clock.spent, []
            for grove, (_, judge) in zip(groves, pairs, strict=True):
                grove.grow(stride)
                said.append(grove.outputs(judge.x))
                yield from self.ground.moment(done, ROUNDS)
            outputs = torch.cat(said)
            done += stride
            last = clock.spent - begun
            loss = -self.ground.judged(outputs, targets)[1]
            if loss < best[1]:
                best = done, loss, outputs
        if best[0] == done < ROUNDS:  # the time ended it while it still gained: where some is left, it may go on
            best = min(ROUNDS, 2 * done), *best[1:]
        return best

    def _stride(self, sample: Sample) -> int:
        """Rounds between two events: some seconds of work at the most."""
        work = len(sample.y) * int(self.default(sample)["columns"]) * self.ground.size
        return min(10, max(2, WORK // work))

    def _measured(self, sample: Sample) -> float:
        """Seconds of a round."""
        begun = time.monotonic()
        Grove(sample, self.ground, self.default(sample)).grow(PROBE_ROUNDS)
        return (time.monotonic() - begun) / PROBE_ROUNDS


class Grove:
    """Scikit-learn's boosters of one sample: one for all classes, or one for each column of values."""

    def __init__(self, sample: Sample, ground: Ground, settings: Mapping[str, Any]) -> None:
        from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor

        self.x, self.ground, self.rounds = sample.x.numpy(), ground, 0
        self.targets = [sample.y.numpy()] if ground.classes else list(sample.y.double().T.contiguous().numpy())
        maker = GradientBoostingClassifier if ground.classes else GradientBoostingRegressor
        self.models: list[Any] = [
            maker(
                learning_rate=float(settings["learning_rate"]), max_leaf_nodes=int(settings["leaves"]), max_depth=None,
                min_samples_leaf=int(settings["least"]), max_features=min(int(settings["columns"]), sample.x.shape[1]),
                subsample=SUBSAMPLE, warm_start=True,
                random_state=derived_seed(ground.seed, "boosting", number) % 2**31,
            )
            for number in range(len(self.targets))
        ]  # fmt: skip

    def grow(self, rounds: int) -> None:
        """So many rounds more."""
        self.rounds += rounds
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "The number of unique classes"
            )  # few samples of many classes are no error
            for model, target in zip(self.models, self.targets, strict=True):
                model.set_params(n_estimators=self.rounds).fit(self.x, target)

    def outputs(self, x: Tensor) -> Tensor:
        """Logits or values `[N, C]` as the machine will give them."""
        if not self.ground.classes:
            return torch.stack([torch.from_numpy(model.predict(x.numpy())) for model in self.models], 1).float()
        logits = torch.from_numpy(self.models[0].decision_function(x.numpy())).float()
        return torch.stack([torch.zeros_like(logits), logits], 1) if logits.dim() == 1 else logits
