"""Axes of a chart: scales from values to pixels, ticks, names of axes, whiskers, and a legend in rows."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from matplotlib.ticker import LogLocator, MaxNLocator

from nearkin.core.text import brief, number
from nearkin.report.labels import text_width
from nearkin.report.svg import Canvas, Point

WIDTH, NARROW = 760, 358
"""Pixels of a chart on a wide page, and on a phone."""

FONT = 11.0
_PAD = 0.06
_FLAT = 1e-9


@dataclass(frozen=True)
class Scale:
    """Values from `low` to `high` on the pixels from `start` to `end`, linear or logarithmic; `whole` for counts.

    >>> scale = Scale(1.0, 100.0, 0.0, 10.0, log=True)
    >>> scale(10.0), scale.ticks()
    (5.0, [1.0, 3.0, 10.0, 30.0, 100.0])
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    whole: bool = False

    def __call__(self, value: float) -> float:
        """Position of a value in pixels; the middle if `low` equals `high`."""
        low, high, at = map(math.log10, (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        share = (at - low) / (high - low) if high != low else 0.5
        return self.start + (self.end - self.start) * share

    def ticks(self, most: int = 6) -> list[float]:
        """Round values within the scale: 1, 2 or 5 times powers of ten, about `most` at most."""
        for factors in ((1, 2, 5), (1, 3), (1,)) if self.log else ():
            ticks = self._inside(LogLocator(subs=factors, numticks=400).tick_values(self.low, self.high))
            if len(ticks) <= most:
                break
        if self.log and len(ticks) > 1:
            return ticks[:: math.ceil(len(ticks) / most)]
        locator = MaxNLocator(most, steps=[1, 2, 5, 10], integer=self.whole, min_n_ticks=1)
        return self._inside(locator.tick_values(self.low, self.high))

    def _inside(self, ticks: Iterable[float]) -> list[float]:
        along = replace(self, start=0.0, end=1.0)
        valid = (tick for tick in ticks if tick > 0 or not self.log)
        return [float(f"{tick:.15g}") for tick in valid if -1e-9 <= along(tick) <= 1 + 1e-9]

    def label(self, tick: float, most: int = 6) -> str:
        """Text of a tick, with the decimals that the distance to its neighbour requires."""
        if self.log:
            return brief(tick).replace("e-0", "e−")
        ticks = self.ticks(most)
        step = ticks[1] - ticks[0] if len(ticks) > 1 else abs(tick) or 1.0
        if max(abs(self.low), abs(self.high)) >= 10_000:
            return brief(tick).replace("-", "−")
        return number(tick, max(0, -math.floor(math.log10(step) + 1e-9)))


def scale_around(
    values: Iterable[float],
    start: float,
    end: float,
    *,
    log: bool = False,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Scale:
    """A scale that contains all finite values with a margin, within `bounds`.

    >>> scale = scale_around([0.5, 1.0], 0, 100, bounds=(0.0, 1.0))
    >>> round(scale.low, 2), scale.high
    (0.47, 1.0)
    """
    valid = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    low, high = (min(valid), max(valid)) if valid else (1.0, 1.0)
    if log:
        low, high = math.log10(low), math.log10(high)
    margin = _PAD * (high - low)
    if margin <= _FLAT * max(1.0, abs(low), abs(high)):
        margin = 0.5 if log else 0.05 * max(1.0, abs(low))
    low, high = low - margin, high + margin
    if log:
        low, high = 10.0**low, 10.0**high
    floor, ceiling = bounds
    low, high = max(low, floor), min(high, ceiling)
    if high <= low:  # all values at one bound
        low, high = (low, low + 1.0) if not math.isfinite(floor) else (floor, floor + 1.0)
    return Scale(low, high, start, end, log)


@dataclass(frozen=True)
class Field:
    """The rectangle of a canvas in which values are drawn."""

    left: float
    top: float
    right: float
    bottom: float


def frame(draw: Canvas, field: Field, x: Scale, y: Scale, words: tuple[str, str]) -> None:
    """Horizontal grid lines, ticks and the names of both axes: y above its axis, x below to the right."""
    down = max(2, int((field.bottom - field.top) / 45))
    for tick in y.ticks(down):
        draw.line((field.left, y(tick)), (field.right, y(tick)), width=0.8)
        draw.text(field.left - 7, y(tick) + 4, y.label(tick, down), size=FONT, fill="muted", anchor="end")
    draw.text(0, field.top - 10, words[1], size=FONT, fill="muted")
    x_axis(draw, field, x, words[0])


def x_axis(draw: Canvas, field: Field, x: Scale, word: str, *, grid: bool = False) -> None:
    """The axis below a field with its ticks and its name, and optionally vertical grid lines."""
    across = max(2, int((field.right - field.left) / 70))
    for tick in x.ticks(across):
        if grid:
            draw.line((x(tick), field.top), (x(tick), field.bottom), width=0.8)
        else:
            draw.line((x(tick), field.bottom), (x(tick), field.bottom + 4), stroke="muted")
        draw.text(x(tick), field.bottom + 17, x.label(tick, across), size=FONT, fill="muted", anchor="middle")
    draw.line((field.left, field.bottom), (field.right, field.bottom), stroke="muted")
    draw.text(field.right, field.bottom + 33, word, size=FONT, fill="muted", anchor="end")


def whisker(draw: Canvas, low: Point, high: Point, *, stroke: str, width: float = 1.2, cap: float = 3.0) -> None:
    """A vertical or horizontal line with a cap at each end."""
    draw.line(low, high, stroke=stroke, width=width)
    vertical = low[0] == high[0]
    for x, y in (low, high):
        ends = ((x - cap, y), (x + cap, y)) if vertical else ((x, y - cap), (x, y + cap))
        draw.line(*ends, stroke=stroke, width=width)


def legend_positions(words: Sequence[str], width: float, lead: float, gap: float = 18.0) -> list[Point]:
    """Start of each legend entry, which is `lead` pixels and a text wide: column in pixels, and row.

    >>> legend_positions(["a", "b"], 1000, 10)[1][1], legend_positions(["a", "b"], 20, 10)[1]
    (0.0, (0.0, 1.0))
    """
    positions, x, row = [], 0.0, 0.0
    for text in words:
        size = lead + text_width(text, FONT)
        if x and x + size > width:
            x, row = 0.0, row + 1
        positions.append((x, row))
        x += size + gap
    return positions
