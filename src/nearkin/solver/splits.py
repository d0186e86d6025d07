"""Splits of the training data into samples to learn from and samples to validate on."""

from dataclasses import dataclass, replace

from torch import Tensor

from nearkin.core.rng import derived_seed
from nearkin.solver.simple.data import fold_splits
from nearkin.tasks.split import split_index
from nearkin.tasks.task import Task

MOST_CROSS_VALIDATED = 2000  # training samples; with more, one validation set is large enough


@dataclass(frozen=True, eq=False)
class Splits:
    """One split, or the five splits of a cross-validation, of a task's training data.

    Attributes:
        parts: positions of the samples to learn from and of those to validate on, both rising.
    """

    parts: tuple[tuple[Tensor, Tensor], ...]

    @classmethod
    def of(cls, task: Task, share: float, seed: int, cross_validate: bool) -> "Splits":
        """Splits of a task, stratified by class; `share` is that of the validation set of a single split."""
        labels = task.train.labels() if task.likelihood == "categorical" else None
        if cross_validate:
            folds = fold_splits(labels, len(task.train), seed)
            return cls(tuple((train, held_out) for train, held_out in folds if len(train) and len(held_out)))
        return cls((split_index(labels, len(task.train), share, derived_seed(seed, "held out")),))

    def __len__(self) -> int:
        return len(self.parts)

    def rows(self, number: int = 0) -> Tensor:
        """Positions of the validation samples of a split; numbers beyond the last start again."""
        return self.parts[number % len(self)][1]

    def task(self, whole: Task, number: int = 0) -> Task:
        """The task with training data (`train`) and validation data (`test`) of a split; its test set is left out."""
        train, held_out = self.parts[number % len(self)]
        return replace(whole, train=whole.train.chosen(train), test=whole.train.chosen(held_out), source="")
