"""Figures over time or steps as one line of a small picture."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nearkin.report.axes import Scale
from nearkin.report.svg import Point, path

WIDTH, HEIGHT, RIM = 240, 60, 3
POINTS = 240
LOGARITHMIC = 100.0  # largest over smallest value, from which on the scale is logarithmic


@dataclass(frozen=True)
class Curve:
    """The path of a line within `WIDTH` × `HEIGHT`, and what to write beside it."""

    name: str
    path: str
    last: str
    text: str
    label: str


def curve(name: str, points: Sequence[Point], axis: str = "s") -> Curve | None:
    """The curve of `(x, value)` with rising x; None where there are fewer than two points.

    >>> found = curve("loss", [(0, 2.0), (10, 1.0)], "steps")
    >>> found.path, found.last, found.text
    ('M3,3L237,57', '1', 'from 2 within 10 steps, between 1 and 2')
    """
    points = [(x, value) for x, value in points if math.isfinite(x) and math.isfinite(value)]
    if len(points) < 2:
        return None
    start, end = points[0][0], points[-1][0]
    low, high = min(value for _, value in points), max(value for _, value in points)
    log = low > 0 and high / low > LOGARITHMIC
    across = Scale(start, end, RIM, WIDTH - RIM)
    down = Scale(low, high, HEIGHT - RIM, RIM, log=log)
    runs = np.array_split([(across(x), down(value)) for x, value in points], min(len(points), POINTS))
    drawn = [(float(x), float(y)) for x, y in (run.mean(0) for run in runs)]
    scale = ", drawn by magnitude" if log else ""
    text = f"from {points[0][1]:.4g} within {end - start:.4g} {axis}, between {low:.4g} and {high:.4g}{scale}"
    last = f"{points[-1][1]:.4g}"
    return Curve(name, path(drawn), last, text, f"{name}, now {last}, {text}")
