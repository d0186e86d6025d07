"""The nearest kin of every task in a distance matrix, and one sentence about them."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from torch import Tensor

from nearkin.core.errors import OptionError, require
from nearkin.core.text import decimals, number, plain, with_spread
from nearkin.distance.matrix import DistanceMatrix

MOST_TASKS = 150
_MOST_NAMED = 6
_MOST_PAIRS = 3


@dataclass(frozen=True)
class NearestKin:
    """The nearest kin of one target; positions are those in `matrix.tasks`.

    Attributes:
        target: the task whose kin it is.
        order: all tasks that could be compared, nearest first.
        distance: mean over trials from the nearest; NaN if there is none.
        std: its standard deviation over trials.
        margin: how much farther away the second is; NaN if there is none.
        wins: trials in which the nearest by the mean was nearest.
        trials: trials with a known distance.
    """

    target: int
    order: tuple[int, ...]
    distance: float
    std: float
    margin: float
    wins: int
    trials: int

    @property
    def source(self) -> int | None:
        """The nearest task, if any."""
        return self.order[0] if self.order else None


def require_drawable(matrix: DistanceMatrix) -> None:
    """Refuse a matrix without tasks, or with more than a picture can show."""
    require(len(matrix.tasks) >= 1, "there is no task to draw; add one with nearkin add NAME DATA")
    require(
        len(matrix.tasks) <= MOST_TASKS,
        f"a picture of {len(matrix.tasks)} tasks cannot be read; choose at most {MOST_TASKS} of them by name",
    )


def position(matrix: DistanceMatrix, task: str) -> int:
    """The row and column of a task in the matrix."""
    if task not in matrix.tasks:
        raise OptionError(f"the matrix has no task named {task!r}; it has {', '.join(matrix.tasks[:8])}")
    return matrix.tasks.index(task)


def nearest_kin(matrix: DistanceMatrix) -> tuple[NearestKin, ...]:
    """The kin of every task, in the order of `matrix.tasks`.

    >>> import torch
    >>> trials = torch.tensor([[[0.0, 0.2, 0.5], [0.4, 0.0, 0.3], [0.6, 0.7, 0.0]]]).double()
    >>> [kin.order for kin in nearest_kin(DistanceMatrix(("a", "b", "c"), "frechet", trials))]
    [(1, 2), (0, 2), (1, 0)]
    """
    mean, trials, std = _others(matrix.mean), _others(matrix.trials), matrix.std.tolist()
    firsts, known = trials.argmin(1), np.isfinite(trials.min(1))
    rows = []
    for target, column in enumerate(mean.T):
        order = tuple(int(source) for source in column.argsort(kind="stable") if np.isfinite(column[source]))
        nearest, second = (float(column[source]) for source in (*order, target, target)[:2])
        distance, margin = (nearest if order else math.nan), (second - nearest if len(order) > 1 else math.nan)
        spread = std[order[0]][target] if order else math.nan
        wins = (firsts[:, target] == order[0])[known[:, target]].sum() if order else 0
        rows.append(NearestKin(target, order, distance, spread, margin, int(wins), int(known[:, target].sum())))
    return tuple(rows)


def _others(values: Tensor) -> NDArray[np.float64]:
    """Distances `[..., K, K]` between different tasks; infinite where unknown, and on the diagonal."""
    other = values.double().numpy().copy()
    other[~np.isfinite(other)] = np.inf
    other[..., range(other.shape[-1]), range(other.shape[-1])] = np.inf
    return other


def scale_of(matrix: DistanceMatrix) -> int:
    """Decimals that suit the distances between different tasks."""
    mean = matrix.mean.tolist()
    between = [value for a, row in enumerate(mean) for b, value in enumerate(row) if a != b]
    return decimals(between or [mean[0][0]])


def answer(matrix: DistanceMatrix, target: str | None = None) -> Markup:
    """One sentence on the nearest kin of the target, or of all tasks; names of tasks are bold.

    >>> import torch
    >>> matrix = DistanceMatrix(("a", "b"), "frechet", torch.tensor([[[0.0, 0.2], [0.4, 0.0]]]).double())
    >>> answer(matrix)
    Markup('<b>a</b> and <b>b</b> are each other’s nearest kin (0.200, back 0.400).')
    >>> answer(matrix, "b")
    Markup('The nearest kin of <b class="target">b</b> is <b>a</b> (0.200).')
    """
    kin = nearest_kin(matrix)
    names = [
        Markup('<b class="target">{}</b>' if task == target else "<b>{}</b>").format(plain(task))
        for task in matrix.tasks
    ]
    if len(kin) == 1:
        return Markup("There is one task, {}, and nothing to compare it with.").format(names[0])
    if target is not None:
        return _target_sentence(matrix, names, kin[position(matrix, target)])
    return _all_sentence(matrix, names, kin)


def plain_answer(matrix: DistanceMatrix, target: str | None = None) -> str:
    """The sentence of `answer` as text."""
    return answer(matrix, target).striptags()


def _target_sentence(matrix: DistanceMatrix, names: Sequence[Markup], kin: NearestKin) -> Markup:
    places, mean, target = scale_of(matrix), matrix.mean.tolist(), names[kin.target]
    if not kin.order:
        return Markup("No task could be compared with {}.").format(target)
    sentence = Markup("The nearest kin of {} is {} ({})").format(
        target, names[kin.order[0]], with_spread(kin.distance, kin.std, places)
    )
    for lead, source in zip((", then ", " and "), kin.order[1:3], strict=False):
        sentence += Markup("{}{} ({})").format(lead, names[source], number(mean[source][kin.target], places))
    return sentence + (f"; it is nearest in {kin.wins} of {kin.trials} trials." if kin.wins < kin.trials else ".")


def _all_sentence(matrix: DistanceMatrix, names: Sequence[Markup], kin: Sequence[NearestKin]) -> Markup:
    """Pairs of mutual nearest kin, nearest first, then the nearest kin of the others; a few at most."""
    places, mean, many = scale_of(matrix), matrix.mean.tolist(), len(kin) > _MOST_NAMED
    pairs = [
        (row.source, row.target) for row in kin
        if row.source is not None and row.source < row.target == kin[row.source].source
    ]  # fmt: skip
    pairs.sort(key=lambda pair: (mean[pair[0]][pair[1]] + mean[pair[1]][pair[0]], pair))
    named = pairs[:_MOST_PAIRS] if many else pairs
    clauses = [
        Markup("{} and {}{} ({}, back {})").format(
            names[a],
            names[b],
            "" if count else " are each other’s nearest kin",
            number(mean[a][b], places),
            number(mean[b][a], places),
        )
        for count, (a, b) in enumerate(named)
    ]
    if left := len(pairs) - len(named):
        clauses[-1] += " and one more pair" if left == 1 else f" and {left} more pairs"
    if many:
        for hub, times in Counter(row.source for row in kin if row.source is not None).most_common(1):
            if times > 1:
                clauses.append(Markup("{} is the nearest kin of {} tasks").format(names[hub], times))
    else:
        clauses += [
            Markup("the nearest kin of {} is {} ({})").format(
                names[row.target], names[row.source], number(row.distance, places)
            )
            for row in kin
            if row.source is not None and all(row.target not in pair for pair in pairs)
        ]
    lone = [names[row.target] for row in kin if row.source is None]
    if lone:
        subject = lone[0] if len(lone) == 1 else f"{len(lone)} tasks"
        clauses.append(Markup("{} could not be compared with any other task").format(subject))
    sentence = Markup("; ").join(clauses)
    return sentence[:1].upper() + sentence[1:] + "."
