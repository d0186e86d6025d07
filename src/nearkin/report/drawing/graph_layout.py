"""Positions of the nodes of a directed acyclic graph in columns from left to right, by the method of Sugiyama.

Every edge is a path through one item in each column between its ends, so that lines only run from a column to the next
and never through other items. Items are ordered within columns so that few lines cross, and lie as near to the height
of their neighbours as their sizes allow.
"""

import itertools
from collections.abc import Collection, Sequence

from nearkin.report.labels import set_apart

SWEEPS = 24
_STIFF = 3.0


def heights(
    columns: Sequence[Sequence[int]],
    links: Sequence[tuple[int, int]],
    sizes: Sequence[float],
    bends: Collection[int] = (),
) -> list[float]:
    """The vertical position of the middle of each item, 0 in the middle of the picture.

    Args:
        columns: the items of each column; items are numbered from 0, and each is in one column.
        links: pairs of items in neighbouring columns, left one first.
        sizes: the height that each item takes, margins included.
        bends: items where a line only passes; they are kept level with the items before and after.

    >>> heights([[0], [1, 2], [3]], [(0, 1), (0, 2), (1, 3), (2, 3)], [10, 10, 10, 10])
    [0.0, -5.0, 5.0, 0.0]
    """
    left: list[list[int]] = [[] for _ in sizes]
    right: list[list[int]] = [[] for _ in sizes]
    for start, end in links:
        right[start].append(end)
        left[end].append(start)
    order = _ordered([list(column) for column in columns], left, right, links)
    positions = [0.0] * len(sizes)
    for column in order:
        _settle(column, sizes, positions, [(0.0, 1.0)] * len(column))
    for sweep in range(SWEEPS):
        for column in order if sweep % 2 else order[::-1]:
            _settle(
                column, sizes, positions, [_pull(item, left[item] + right[item], positions, bends) for item in column]
            )
    top = min((position - sizes[item] / 2 for item, position in enumerate(positions)), default=0.0)
    bottom = max((position + sizes[item] / 2 for item, position in enumerate(positions)), default=0.0)
    return [round(position - (top + bottom) / 2, 2) for position in positions]


def crossings(columns: Sequence[Sequence[int]], links: Sequence[tuple[int, int]]) -> int:
    """The number of pairs of lines that cross.

    >>> crossings([[0, 1], [2, 3]], [(0, 3), (1, 2)]), crossings([[0, 1], [3, 2]], [(0, 3), (1, 2)])
    (1, 0)
    """
    column = {item: number for number, items in enumerate(columns) for item in items}
    position = {item: number for items in columns for number, item in enumerate(items)}
    return sum(
        column[a] == column[c] and (position[a] - position[c]) * (position[b] - position[d]) < 0
        for (a, b), (c, d) in itertools.combinations(links, 2)
    )


def _ordered(
    columns: list[list[int]], left: list[list[int]], right: list[list[int]], links: Sequence[tuple[int, int]]
) -> list[list[int]]:
    """The order with fewest crossings of several, each by the mean position of neighbours on alternating sides."""
    best = columns
    for sweep in range(SWEEPS):
        forwards = sweep % 2 == 0
        columns = [list(column) for column in columns]
        position = {item: number - len(items) / 2 for items in columns for number, item in enumerate(items)}
        for column in columns if forwards else columns[::-1]:
            side = left if forwards else right
            means = {item: _mean([position[other] for other in side[item]], position[item]) for item in column}
            column.sort(key=means.__getitem__)
            position.update({item: number - len(column) / 2 for number, item in enumerate(column)})
        if crossings(columns, links) < crossings(best, links):
            best = columns
    return best


def _pull(item: int, others: Sequence[int], positions: Sequence[float], bends: Collection[int]) -> tuple[float, float]:
    """Weighted mean height of an item's neighbours, and the total weight."""
    weights = [(1 + _STIFF * (item in bends)) * (1 + _STIFF * (other in bends)) for other in others]
    if not others:
        return positions[item], 1.0
    total = sum(weights)
    return sum(weight * positions[other] for weight, other in zip(weights, others, strict=True)) / total, total


def _settle(
    column: Sequence[int], sizes: Sequence[float], positions: list[float], pulls: Sequence[tuple[float, float]]
) -> None:
    """Move the items of a column, in their order and without overlap, as near as possible to the wanted heights."""
    if column:
        wanted, weights = zip(*pulls, strict=True)
        gaps = [(sizes[a] + sizes[b]) / 2 for a, b in itertools.pairwise(column)]
        for item, position in zip(column, set_apart(wanted, gaps, weights), strict=True):
            positions[item] = float(position)


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
