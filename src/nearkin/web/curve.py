"""Curve: figures over time or steps as one line of a small picture."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT, RIM = 240, 60, 3
POINTS = 240
LOGARITHMIC = 100.0  # largest over smallest, from which on a line is drawn by magnitude


@dataclass(frozen=True)
class Curve:
    """A line within `WIDTH` × `HEIGHT`, and what to write beside it."""

    name: str
    path: str
    last: str
    text: str
    label: str


def curve(name: str, points: Sequence[tuple[float, float]], axis: str = "s") -> Curve | None:
    """The curve of `(place, value)`; places grow. None where two points or more are not there.

    >>> found = curve("loss", [(0, 2.0), (10, 1.0)], "steps")
    >>> found.path, found.last, found.text
    ('M3,3L237,57', '1', 'from 2 within 10 steps, between 1 and 2')
    """
    points = [(place, value) for place, value in points if math.isfinite(place) and math.isfinite(value)]
    if len(points) < 2:
        return None
    values = [value for _, value in points]
    low, high = min(values), max(values)
    by_magnitude = low > 0 and high / low > LOGARITHMIC
    drawn = _thinned([(place, math.log(value) if by_magnitude else value) for place, value in points])
    left, right = drawn[0][0], drawn[-1][0]
    bottom, top = min(value for _, value in drawn), max(value for _, value in drawn)
    spots = [
        (RIM + (WIDTH - 2 * RIM) * _share(place, left, right), RIM + (HEIGHT - 2 * RIM) * _share(value, top, bottom))
        for place, value in drawn
    ]
    path = "M" + "L".join(f"{x:.4g},{y:.4g}" for x, y in spots)
    within = f"within {points[-1][0] - points[0][0]:.4g} {axis}"
    scale = ", drawn by magnitude" if by_magnitude else ""
    text = f"from {values[0]:.4g} {within}, between {low:.4g} and {high:.4g}{scale}"
    return Curve(name, path, f"{values[-1]:.4g}", text, f"{name}, now {values[-1]:.4g}, {text}")


def _share(value: float, start: float, end: float) -> float:
    """How far along the way a value lies; the middle where there is no way."""
    return (value - start) / (end - start) if end != start else 0.5


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most `POINTS` points: means of runs of equal length.

    >>> _thinned([(0.0, 1.0), (1.0, 3.0)])
    [(0.0, 1.0), (1.0, 3.0)]
    """
    if len(points) <= POINTS:
        return list(points)
    edges = [place * len(points) // POINTS for place in range(POINTS + 1)]
    return [_middle(points[start:end]) for start, end in itertools.pairwise(edges)]


def _middle(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return sum(place for place, _ in points) / len(points), sum(value for _, value in points) / len(points)
