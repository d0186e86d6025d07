"""Places for the nodes of a directed acyclic graph in columns from left to right, by the method of Sugiyama.

Every edge is given as a path through one item in each column between its ends, so that lines only run from a column to
the next and never through what stands in between. Items are ordered within columns to cross few lines, and set as near
to the height of their neighbours as their sizes allow.
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
        columns: the items of each column; items are numbered from 0 and stand in one column each.
        links: pairs of items in neighbouring columns, left one first.
        sizes: the height that each item takes, margins included.
        bends: items that a line only passes, which are kept level with what comes before and after.

    >>> heights([[0], [1, 2], [3]], [(0, 1), (0, 2), (1, 3), (2, 3)], [10, 10, 10, 10])
    [0.0, -5.0, 5.0, 0.0]
    """
    left: list[list[int]] = [[] for _ in sizes]
    right: list[list[int]] = [[] for _ in sizes]
    for one, other in links:
        right[one].append(other)
        left[other].append(one)
    order = _ordered([list(column) for column in columns], left, right, links)
    places = [0.0] * len(sizes)
    for column in order:
        _settle(column, sizes, places, [(0.0, 1.0)] * len(column))
    for sweep in range(SWEEPS):
        for column in order if sweep % 2 else order[::-1]:
            _settle(column, sizes, places, [_pull(item, left[item] + right[item], places, bends) for item in column])
    top = min((place - sizes[item] / 2 for item, place in enumerate(places)), default=0.0)
    bottom = max((place + sizes[item] / 2 for item, place in enumerate(places)), default=0.0)
    return [round(place - (top + bottom) / 2, 2) for place in places]


def crossings(columns: Sequence[Sequence[int]], links: Sequence[tuple[int, int]]) -> int:
    """How many pairs of lines cross.

    >>> crossings([[0, 1], [2, 3]], [(0, 3), (1, 2)]), crossings([[0, 1], [3, 2]], [(0, 3), (1, 2)])
    (1, 0)
    """
    column = {item: number for number, items in enumerate(columns) for item in items}
    place = {item: number for items in columns for number, item in enumerate(items)}
    return sum(
        column[a] == column[c] and (place[a] - place[c]) * (place[b] - place[d]) < 0
        for (a, b), (c, d) in itertools.combinations(links, 2)
    )


def _ordered(
    columns: list[list[int]], left: list[list[int]], right: list[list[int]], links: Sequence[tuple[int, int]]
) -> list[list[int]]:
    """The best of several orders, each item at the mean place of its neighbours to one side in turn."""
    best = columns
    for sweep in range(SWEEPS):
        forwards = sweep % 2 == 0
        columns = [list(column) for column in columns]
        place = {item: number - len(items) / 2 for items in columns for number, item in enumerate(items)}
        for column in columns if forwards else columns[::-1]:
            side = left if forwards else right
            means = {item: _mean([place[other] for other in side[item]], place[item]) for item in column}
            column.sort(key=means.__getitem__)
            place.update({item: number - len(column) / 2 for number, item in enumerate(column)})
        if crossings(columns, links) < crossings(best, links):
            best = columns
    return best


def _pull(item: int, others: Sequence[int], places: Sequence[float], bends: Collection[int]) -> tuple[float, float]:
    """Where an item's neighbours would have it, and how strongly."""
    weights = [(1 + _STIFF * (item in bends)) * (1 + _STIFF * (other in bends)) for other in others]
    if not others:
        return places[item], 1.0
    total = sum(weights)
    return sum(weight * places[other] for weight, other in zip(weights, others, strict=True)) / total, total


def _settle(
    column: Sequence[int], sizes: Sequence[float], places: list[float], pulls: Sequence[tuple[float, float]]
) -> None:
    """Set the items of a column, in their order and without overlap, as near as can be to where they are drawn."""
    if column:
        wanted, weights = zip(*pulls, strict=True)
        gaps = [(sizes[a] + sizes[b]) / 2 for a, b in itertools.pairwise(column)]
        for item, place in zip(column, set_apart(wanted, gaps, weights), strict=True):
            places[item] = float(place)


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
