"""Small line charts of values over time or steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nearkin.report.axes import Scale
from nearkin.report.svg import Point, path

WIDTH, HEIGHT, RIM = 240, 60, 3
POINTS = 240
LOGARITHMIC = 100.0  # ratio of largest to smallest value from which the scale is logarithmic


@dataclass(frozen=True)
class Sparkline:
    """SVG path of a line within `WIDTH` × `HEIGHT`, and the texts beside it."""

    name: str
    path: str
    last: str
    text: str
    label: str


def sparkline(name: str, points: Sequence[Point], axis: str = "s") -> Sparkline | None:
    """The line through `(x, value)` with increasing x; None for fewer than two points.

    >>> line = sparkline("loss", [(0, 2.0), (10, 1.0)], "steps")
    >>> line.path, line.last, line.text
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
    scale = ", logarithmic scale" if log else ""
    text = f"from {points[0][1]:.4g} within {end - start:.4g} {axis}, between {low:.4g} and {high:.4g}{scale}"
    last = f"{points[-1][1]:.4g}"
    return Sparkline(name, path(drawn), last, text, f"{name}, now {last}, {text}")
