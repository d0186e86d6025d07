"""What a distance matrix says in words: the nearest kin of every task, how sure that is, and one sentence on it."""

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
_TOLD_WHOLE = 6
_TOLD_PAIRS = 3


@dataclass(frozen=True)
class Kin:
    """The nearest kin of one target; positions are those in `matrix.tasks`.

    Attributes:
        target: whose kin it is.
        order: other tasks that could be compared, nearest first.
        distance: mean over trials from the first of them; NaN where there is none.
        std: its standard deviation over trials.
        margin: what the second is farther away; NaN where there is none.
        wins: trials in which the first was nearest.
        trials: trials that could tell.
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
        """The nearest, if any."""
        return self.order[0] if self.order else None


def require_drawable(matrix: DistanceMatrix) -> None:
    """Between one task and as many as a picture can show."""
    require(len(matrix.tasks) >= 1, "there is no task to draw; add one with nearkin add NAME DATA")
    require(
        len(matrix.tasks) <= MOST_TASKS,
        f"a picture of {len(matrix.tasks)} tasks cannot be read; choose at most {MOST_TASKS} of them by name",
    )


def position(matrix: DistanceMatrix, task: str) -> int:
    """Where a task stands in the matrix."""
    if task not in matrix.tasks:
        raise OptionError(f"the matrix has no task named {task!r}; it has {', '.join(matrix.tasks[:8])}")
    return matrix.tasks.index(task)


def nearest_kin(matrix: DistanceMatrix) -> tuple[Kin, ...]:
    """The kin of every task, in the order of `matrix.tasks`.

    >>> import torch
    >>> trials = torch.tensor([[[0.0, 0.2, 0.5], [0.4, 0.0, 0.3], [0.6, 0.7, 0.0]]]).double()
    >>> [kin.order for kin in nearest_kin(DistanceMatrix(("a", "b", "c"), "frechet", trials))]
    [(1, 2), (0, 2), (1, 0)]
    """
    mean, trials, std = _others(matrix.mean), _others(matrix.trials), matrix.std.tolist()
    firsts, known = trials.argmin(1), np.isfinite(trials.min(1))
    found = []
    for target, column in enumerate(mean.T):
        order = tuple(int(source) for source in column.argsort(kind="stable") if np.isfinite(column[source]))
        nearest, second = (float(column[source]) for source in (*order, target, target)[:2])
        distance, margin = (nearest if order else math.nan), (second - nearest if len(order) > 1 else math.nan)
        spread = std[order[0]][target] if order else math.nan
        wins = (firsts[:, target] == order[0])[known[:, target]].sum() if order else 0
        found.append(Kin(target, order, distance, spread, margin, int(wins), int(known[:, target].sum())))
    return tuple(found)


def _others(values: Tensor) -> NDArray[np.float64]:
    """Distances `[..., K, K]` between different tasks; infinite where unknown, and on the diagonal."""
    other = values.double().numpy().copy()
    other[~np.isfinite(other)] = np.inf
    other[..., range(other.shape[-1]), range(other.shape[-1])] = np.inf
    return other


def scale_of(matrix: DistanceMatrix) -> int:
    """Decimals that suit the distances between different tasks; of all values for a single task."""
    mean = matrix.mean.tolist()
    between = [value for a, row in enumerate(mean) for b, value in enumerate(row) if a != b]
    return decimals(between or [mean[0][0]])


def answer(matrix: DistanceMatrix, target: str | None = None) -> Markup:
    """One sentence: the kin of the target, or without one who is kin of whom; names of tasks are bold.

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
        return _of_target(matrix, names, kin[position(matrix, target)])
    return _of_all(matrix, names, kin)


def plain_answer(matrix: DistanceMatrix, target: str | None = None) -> str:
    """The sentence of `answer` as text."""
    return answer(matrix, target).striptags()


def _of_target(matrix: DistanceMatrix, names: Sequence[Markup], kin: Kin) -> Markup:
    places, mean, who = scale_of(matrix), matrix.mean.tolist(), names[kin.target]
    if not kin.order:
        return Markup("No task could be compared with {}.").format(who)
    said = Markup("The nearest kin of {} is {} ({})").format(
        who, names[kin.order[0]], with_spread(kin.distance, kin.std, places)
    )
    for lead, source in zip((", then ", " and "), kin.order[1:3], strict=False):
        said += Markup("{}{} ({})").format(lead, names[source], number(mean[source][kin.target], places))
    return said + (f"; it came first in {kin.wins} of {kin.trials} trials." if kin.wins < kin.trials else ".")


def _of_all(matrix: DistanceMatrix, names: Sequence[Markup], kin: Sequence[Kin]) -> Markup:
    """Pairs that choose each other, nearest first, then whom the others choose; at most a handful."""
    places, mean, many = scale_of(matrix), matrix.mean.tolist(), len(kin) > _TOLD_WHOLE
    pairs = [
        (one.source, one.target) for one in kin
        if one.source is not None and one.source < one.target == kin[one.source].source
    ]  # fmt: skip
    pairs.sort(key=lambda pair: (mean[pair[0]][pair[1]] + mean[pair[1]][pair[0]], pair))
    told = pairs[:_TOLD_PAIRS] if many else pairs
    clauses = [
        Markup("{} and {}{} ({}, back {})").format(
            names[a],
            names[b],
            "" if count else " are each other’s nearest kin",
            number(mean[a][b], places),
            number(mean[b][a], places),
        )
        for count, (a, b) in enumerate(told)
    ]
    if left := len(pairs) - len(told):
        clauses[-1] += " and one more pair" if left == 1 else f" and {left} more pairs"
    if many:
        for hub, times in Counter(one.source for one in kin if one.source is not None).most_common(1):
            if times > 1:
                clauses.append(Markup("{} is the nearest kin of {} tasks").format(names[hub], times))
    else:
        clauses += [
            Markup("the nearest kin of {} is {} ({})").format(
                names[one.target], names[one.source], number(one.distance, places)
            )
            for one in kin
            if one.source is not None and all(one.target not in pair for pair in pairs)
        ]
    lone = [names[one.target] for one in kin if one.source is None]
    if lone:
        subject = lone[0] if len(lone) == 1 else f"{len(lone)} tasks"
        clauses.append(Markup("{} could not be compared with any other task").format(subject))
    said = Markup("; ").join(clauses)
    return said[:1].upper() + said[1:] + "."
