"""What a distance matrix says in words: the nearest kin of every task, how sure that is, and one sentence on it."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from nearkin.core.errors import OptionError, require
from nearkin.core.text import decimals, number, plain, with_spread
from nearkin.distance.matrix import DistanceMatrix

MOST_TASKS = 150
_TOLD_WHOLE = 6
_TOLD_PAIRS = 3

Words = tuple[tuple[str, bool], ...]
"""A sentence in pieces: text, and whether it is the name of a task."""


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
    mean, std = matrix.mean.tolist(), matrix.std.tolist()
    size = len(matrix.tasks)
    trials = [_first_of_columns(trial) for trial in matrix.trials.tolist()]
    found = []
    for target in range(size):
        others = [source for source in range(size) if source != target and math.isfinite(mean[source][target])]
        order = tuple(sorted(others, key=lambda source: mean[source][target]))
        firsts = [trial[target] for trial in trials if trial[target] is not None]
        distance, margin, spread, wins = math.nan, math.nan, math.nan, 0
        if order:
            distance, spread = mean[order[0]][target], std[order[0]][target]
            wins = firsts.count(order[0])
        if len(order) > 1:
            margin = mean[order[1]][target] - distance
        found.append(Kin(target, order, distance, spread, margin, wins, len(firsts)))
    return tuple(found)


def _first_of_columns(trial: Sequence[Sequence[float]]) -> list[int | None]:
    """The nearest other source of every column in one trial."""
    firsts: list[int | None] = []
    for target in range(len(trial)):
        column = {source: row[target] for source, row in enumerate(trial) if source != target}
        known = {source: value for source, value in column.items() if math.isfinite(value)}
        firsts.append(min(known, key=lambda source: known[source]) if known else None)
    return firsts


def scale_of(matrix: DistanceMatrix) -> int:
    """Decimals that suit the distances between different tasks; of all values for a single task."""
    mean = matrix.mean.tolist()
    between = [value for a, row in enumerate(mean) for b, value in enumerate(row) if a != b]
    return decimals(between or [mean[0][0]])


def answer(matrix: DistanceMatrix, target: str | None = None) -> Words:
    """One sentence: the kin of the target, or without one who is kin of whom.

    >>> import torch
    >>> matrix = DistanceMatrix(("a", "b"), "frechet", torch.tensor([[[0.0, 0.2], [0.4, 0.0]]]).double())
    >>> "".join(text for text, _ in answer(matrix))
    'a and b are each other’s nearest kin (0.200, back 0.400).'
    >>> "".join(text for text, _ in answer(matrix, "b"))
    'The nearest kin of b is a (0.200).'
    """
    kin = nearest_kin(matrix)
    if len(kin) == 1:
        return (
            ("There is one task, ", False),
            (plain(matrix.tasks[0]), True),
            (", and nothing to compare it with.", False),
        )
    if target is not None:
        return _of_target(matrix, kin[position(matrix, target)])
    return _of_all(matrix, kin)


def plain_answer(matrix: DistanceMatrix, target: str | None = None) -> str:
    """The sentence of `answer` without its marks."""
    return "".join(text for text, _ in answer(matrix, target))


def _of_target(matrix: DistanceMatrix, kin: Kin) -> Words:
    names, places, mean = [plain(task) for task in matrix.tasks], scale_of(matrix), matrix.mean.tolist()
    who = (names[kin.target], True)
    if not kin.order:
        return (("No task could be compared with ", False), who, (".", False))
    first = (names[kin.order[0]], True)
    said: list[tuple[str, bool]] = [("The nearest kin of ", False), who, (" is ", False), first]
    said.append((f" ({with_spread(kin.distance, kin.std, places)})", False))
    for count, source in enumerate(kin.order[1:3]):
        value = number(mean[source][kin.target], places)
        said += [(", then " if count == 0 else " and ", False), (names[source], True), (f" ({value})", False)]
    if kin.wins < kin.trials:
        said.append((f"; it came first in {kin.wins} of {kin.trials} trials", False))
    return (*said, (".", False))


def _of_all(matrix: DistanceMatrix, kin: Sequence[Kin]) -> Words:
    """Pairs that choose each other, nearest first, then whom the others choose; at most a handful."""
    names, places, mean = [plain(task) for task in matrix.tasks], scale_of(matrix), matrix.mean.tolist()
    pairs = [(one.source, one.target) for one in kin if one.source is not None and kin[one.source].source == one.target]
    pairs = sorted((a, b) for a, b in pairs if a < b)
    pairs.sort(key=lambda pair: mean[pair[0]][pair[1]] + mean[pair[1]][pair[0]])
    paired = {task for pair in pairs for task in pair}
    lone = [one.target for one in kin if one.source is None]
    clauses: list[list[tuple[str, bool]]] = []
    brief = len(kin) > _TOLD_WHOLE
    for count, (a, b) in enumerate(pairs[:_TOLD_PAIRS] if brief else pairs):
        kind = " are each other’s nearest kin" if count == 0 else ""
        values = f" ({number(mean[a][b], places)}, back {number(mean[b][a], places)})"
        clauses.append([(names[a], True), (" and ", False), (names[b], True), (kind + values, False)])
    if brief and len(pairs) > _TOLD_PAIRS:
        left = len(pairs) - _TOLD_PAIRS
        clauses[-1].append((" and one more pair" if left == 1 else f" and {left} more pairs", False))
    if brief:
        for hub, times in Counter(one.source for one in kin if one.source is not None).most_common(1):
            if times > 1:
                clauses.append([(names[hub], True), (f" is the nearest kin of {times} tasks", False)])
    else:
        for one in kin:
            if one.source is not None and one.target not in paired:
                value = f" ({number(one.distance, places)})"
                clauses.append([("the nearest kin of ", False), (names[one.target], True), (" is ", False)])
                clauses[-1] += [(names[one.source], True), (value, False)]
    if lone:
        subject = (names[lone[0]], True) if len(lone) == 1 else (f"{len(lone)} tasks", False)
        clauses.append([subject, (" could not be compared with any other task", False)])
    said = [piece for count, clause in enumerate(clauses) for piece in ([("; ", False)] if count else []) + clause]
    return (_capital(said[0]), *said[1:], (".", False))


def _capital(piece: tuple[str, bool]) -> tuple[str, bool]:
    """A sentence begins with a capital, unless it begins with a name."""
    text, is_name = piece
    return (text if is_name else text[:1].upper() + text[1:], is_name)
