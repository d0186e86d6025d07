"""Gradient boosting of decision trees for classification and regression, a few rounds at a time."""

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
from nearkin.solver.simple.data import ChosenSettings, Clock, FitContext, Fold, Sample, size_by_time
from nearkin.solver.simple.machines import Machine
from nearkin.solver.simple.trees import boosted_from

ROUNDS = 300  # maximum
PATIENCE = 20  # rounds without a better validation loss
ENOUGH_ROUNDS = 8  # when time is short; 9 rounds on 3,000 MNIST images beat 20 rounds on 1,000
RATES = (0.1, 0.3, 0.05)
REACH = 8.0  # learning rate times rounds that is usually enough
LEAVES = 16
LEAST = 5  # samples per leaf
COLUMNS = 16  # candidates of a split, or the square root of their number: faster than all, and better on images
SUBSAMPLE = 0.5  # of the samples for each tree: twice as fast, and rarely worse
WORK = 2 * 10**6  # samples times columns times trees between two events
PROBE_ROUNDS = 3


@dataclass
class BoostingLearner:
    """Learner of boosted trees; `round_seconds` is the measured time of a round under a time limit."""

    context: FitContext
    round_seconds: float = 0.0

    @property
    def needed(self) -> tuple[str, ...]:
        """Names of the settings; `columns` is the number of candidate columns of a split."""
        return ("learning_rate", "rounds", "leaves", "least", "columns")

    def default(self, sample: Sample) -> dict[str, Any]:
        """Small trees on half of the samples, with random candidate columns for each split."""
        count, columns = sample.x.shape
        return {
            "learning_rate": RATES[0], "rounds": 100, "leaves": LEAVES, "least": max(1, min(LEAST, count // 25)),
            "columns": min(columns, max(COLUMNS, math.isqrt(columns))),
        }  # fmt: skip

    def affordable_size(self, draw: Callable[[int], Sample], count: int, clock: Clock) -> Work[int]:
        """Extrapolated linearly from the time of a round on two small samples."""
        if clock.seconds is None:
            return count
        size, self.round_seconds = yield from size_by_time(
            self._measured, draw, count, ENOUGH_ROUNDS, clock, self.context
        )
        return size

    def choose(self, folds: Sequence[Fold], sample: Sample, clock: Clock) -> Work[ChosenSettings]:
        """Number of rounds by early stopping, then other learning rates while time remains.

        The first rate is larger when there is time for few rounds only.
        """
        first = RATES[0]
        if clock.seconds is not None and self.round_seconds > 0:
            affordable = 0.4 * clock.left / (self.round_seconds * len(folds))
            first = round(min(max(RATES), max(first, REACH / max(affordable, 1.0))), 2)
        best, least, longest = ChosenSettings(self.default(sample)), math.inf, 0.0
        targets = torch.cat([fold.validation.y for fold in folds])
        for number, rate in enumerate([first, *(rate for rate in RATES if rate != first)]):
            if number and clock.left < longest * (1 + 1.6 / len(folds)):
                break
            begun = clock.spent
            settings = {**self.default(sample), "learning_rate": rate}
            rounds, loss, outputs = yield from self._grow_folds(folds, targets, settings, clock.share(0.45))
            if loss < least:
                best, least = ChosenSettings({**settings, "rounds": rounds}, outputs, targets), loss
            longest = max(longest, clock.spent - begun)
        return best

    def fit(self, sample: Sample, settings: Mapping[str, Any], clock: Clock) -> Work[tuple[Machine, int]]:
        """Boosted trees, and the number of rounds within the time limit."""
        boosters, rounds, stride = (
            Boosters(sample, self.context, settings),
            int(settings["rounds"]),
            self._stride(sample),
        )
        last = 0.0
        while boosters.rounds < rounds and (boosters.rounds == 0 or clock.left > last):
            begun = clock.spent
            boosters.grow(min(stride, rounds - boosters.rounds))
            last = clock.spent - begun
            yield from self.context.report(boosters.rounds, rounds)
        return boosted_from(boosters.models, self.context.size), boosters.rounds

    def _grow_folds(
        self, folds: Sequence[Fold], targets: Tensor, settings: Mapping[str, Any], clock: Clock
    ) -> Work[tuple[int, float, Tensor]]:
        """Best number of rounds with its loss and outputs; stops early or at the time limit."""
        all_boosters = [Boosters(train, self.context, settings) for train, _ in folds]
        stride, best, done = self._stride(folds[0].train), (0, math.inf, torch.zeros(0)), 0
        last = 0.0
        while done < ROUNDS and done - best[0] < PATIENCE and (done == 0 or clock.left > last):
            begun, fold_outputs = clock.spent, []
            for boosters, (_, validation) in zip(all_boosters, folds, strict=True):
                boosters.grow(stride)
                fold_outputs.append(boosters.outputs(validation.x))
                yield from self.context.report(done, ROUNDS)
            outputs = torch.cat(fold_outputs)
            done += stride
            last = clock.spent - begun
            loss = -self.context.score(outputs, targets)[1]
            if loss < best[1]:
                best = done, loss, outputs
        if best[0] == done < ROUNDS:  # stopped by time while still improving: allow more rounds in the last fit
            best = min(ROUNDS, 2 * done), *best[1:]
        return best

    def _stride(self, sample: Sample) -> int:
        """Rounds between two events, at most some seconds of work."""
        work = len(sample.y) * int(self.default(sample)["columns"]) * self.context.size
        return min(10, max(2, WORK // work))

    def _measured(self, sample: Sample) -> float:
        """Seconds of one round."""
        begun = now()
        Boosters(sample, self.context, self.default(sample)).grow(PROBE_ROUNDS)
        return (now() - begun) / PROBE_ROUNDS


class Boosters:
    """Boosters of scikit-learn on one sample: one for all classes, or one per target column."""

    def __init__(self, sample: Sample, context: FitContext, settings: Mapping[str, Any]) -> None:
        from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor

        self.x, self.context, self.rounds, self.weights = sample.x.numpy(), context, 0, sample.weight_array
        self.targets = [sample.y.numpy()] if context.classes else list(sample.y.double().T.contiguous().numpy())
        maker = GradientBoostingClassifier if context.classes else GradientBoostingRegressor
        self.models: list[Any] = [
            maker(
                learning_rate=float(settings["learning_rate"]), max_leaf_nodes=int(settings["leaves"]), max_depth=None,
                min_samples_leaf=int(settings["least"]), max_features=min(int(settings["columns"]), sample.x.shape[1]),
                subsample=SUBSAMPLE, warm_start=True,
                random_state=derived_seed(context.seed, "boosting", number) % 2**31,
            )
            for number in range(len(self.targets))
        ]  # fmt: skip

    def grow(self, rounds: int) -> None:
        """Add rounds."""
        self.rounds += rounds
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The number of unique classes")  # many classes with few samples
            for model, target in zip(self.models, self.targets, strict=True):
                model.set_params(n_estimators=self.rounds).fit(self.x, target, self.weights)

    def outputs(self, x: Tensor) -> Tensor:
        """Logits or values `[N, C]`, the same as the converted machine gives."""
        if not self.context.classes:
            return torch.stack([torch.from_numpy(model.predict(x.numpy())) for model in self.models], 1).float()
        logits = torch.from_numpy(self.models[0].decision_function(x.numpy())).float()
        return torch.stack([torch.zeros_like(logits), logits], 1) if logits.dim() == 1 else logits
