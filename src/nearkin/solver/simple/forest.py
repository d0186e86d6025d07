"""Random forests and extremely randomised trees for classification and regression, a few trees at a time."""

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from nearkin.core.events import Work
from nearkin.core.rng import derived_seed
from nearkin.solver.simple.data import ChosenSettings, Clock, FitContext, Fold, Sample, grid_search, size_by_time
from nearkin.solver.simple.machines import Machine
from nearkin.solver.simple.tree_machines import NODE_NUMBERS
from nearkin.solver.simple.trees import averaged_from

TREES = 200  # of the fitted model
TRIAL_TREES = 50  # when settings are compared
ENOUGH_TREES = 30  # when time is short
STRIDE = 10  # trees between two events
WORK = 2 * 10**7  # samples times columns times trees between two events
LEAST = (1, 3, 10)  # samples per leaf
MOST_NUMBERS = 2**23  # in the tables of all trees together
PROBE_TREES = 3


@dataclass
class ForestLearner:
    """Learner of random forests: each tree learns from a bootstrap sample and tests random columns at each split."""

    context: FitContext
    name: ClassVar[str] = "forest"
    estimators: ClassVar[tuple[str, str]] = ("RandomForestClassifier", "RandomForestRegressor")

    @property
    def needed(self) -> tuple[str, ...]:
        """Names of the settings: trees, samples per leaf, and candidate columns of a split."""
        return ("trees", "least", "columns")

    def default(self, sample: Sample) -> dict[str, Any]:
        """Fully grown trees; the square root of the columns for classes, a third of them for values."""
        return {**self._grid(sample)[0], "trees": TREES}

    def _grid(self, sample: Sample) -> list[dict[str, Any]]:
        """Settings to try, in this order: larger leaves, then more columns."""
        columns = sample.x.shape[1]
        usual = max(1, math.isqrt(columns) if self.context.classes else columns // 3)
        more = max(1, columns // 2 if self.context.classes else columns)
        pairs = dict.fromkeys([*((least, usual) for least in LEAST), *((least, more) for least in LEAST[:2])])
        return [{"trees": TRIAL_TREES, "least": least, "columns": candidates} for least, candidates in pairs]

    def affordable_size(self, draw: Callable[[int], Sample], count: int, clock: Clock) -> Work[int]:
        """Extrapolated linearly from the time of a tree on two small samples."""
        if clock.seconds is None:
            return count
        size, _ = yield from size_by_time(self._tree_seconds, draw, count, ENOUGH_TREES, clock, self.context)
        return size

    def choose(self, folds: Sequence[Fold], sample: Sample, clock: Clock) -> Work[ChosenSettings]:
        """Grid search over samples per leaf and columns, the defaults first, with few trees."""
        best = yield from grid_search(self, self.context, self._grid(sample), folds, clock)
        return replace(best, settings={**best.settings, "trees": TREES})

    def fit(self, sample: Sample, settings: Mapping[str, Any], clock: Clock) -> Work[tuple[Machine, int]]:
        """Averaged trees, and their number within the time limit."""
        model = self._model(sample, settings)
        trees, grown, last = int(settings["trees"]), 0, 0.0
        stride = min(STRIDE, max(1, WORK // (len(sample.y) * int(settings["columns"]))))
        while grown < trees and (grown == 0 or clock.left > last):
            begun = clock.spent
            grown = min(trees, grown + stride)
            _grow(model, grown, sample)
            last = clock.spent - begun
            yield from self.context.report(grown, trees)
        return averaged_from(model, self.context.size), grown

    def _model(self, sample: Sample, settings: Mapping[str, Any]) -> Any:
        """Estimator of scikit-learn; the number of leaves is limited only for very many samples."""
        from sklearn import ensemble

        count, columns = sample.x.shape
        leaves = max(2, MOST_NUMBERS // (2 * int(settings["trees"]) * (NODE_NUMBERS + self.context.size)))
        return getattr(ensemble, self.estimators[0 if self.context.classes else 1])(
            min_samples_leaf=int(settings["least"]), max_features=min(columns, int(settings["columns"])),
            max_leaf_nodes=leaves if leaves < count else None, warm_start=True, n_jobs=torch.get_num_threads(),
            random_state=derived_seed(self.context.seed, self.name) % 2**31,
        )  # fmt: skip

    def _tree_seconds(self, sample: Sample) -> float:
        """Seconds of one tree."""
        begun = time.monotonic()
        _grow(self._model(sample, self.default(sample)), PROBE_TREES, sample)
        return (time.monotonic() - begun) / PROBE_TREES


class ExtraTreesLearner(ForestLearner):
    """Learner of extremely randomised trees: all samples for each tree, and random thresholds."""

    name = "extra-trees"
    estimators = ("ExtraTreesClassifier", "ExtraTreesRegressor")


def _grow(model: Any, trees: int, sample: Sample) -> None:
    """Add trees up to this number."""
    target = sample.y[:, 0] if sample.y.dim() == 2 and sample.y.shape[1] == 1 else sample.y
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The number of unique classes")  # many classes with few samples
        model.set_params(n_estimators=trees).fit(sample.x.numpy(), target.numpy(), sample.weight_array)
