"""Heat map of distances: a cell for every source and target, coloured by the mean distance."""

import math
from functools import cache

import matplotlib
import numpy as np
from matplotlib.colors import to_hex

from nearkin.core.text import MISSING, number, plain, with_spread
from nearkin.distance.matrix import DistanceMatrix
from nearkin.report.grid import Grid
from nearkin.report.labels import text_width
from nearkin.report.nearest_kin import nearest_kin, plain_answer, require_drawable, scale_of
from nearkin.report.svg import Canvas
from nearkin.report.theme import readable_on

NUMBERED = 12
"""Up to this many tasks every cell shows its number."""
DRAWN = 40
"""Above this many tasks the cells are one image; the table has their numbers."""

_COLOURS = "viridis"
_RANGE = (0.97, 0.12)
"""Near is bright, far is dark; the darkest colours are left out, so that cells are visible on a dark page."""
_LONGEST_NAME = 130.0
_LEGEND = 100.0


def heatmap(matrix: DistanceMatrix) -> str:
    """SVG of the K × K means; rows are sources, columns targets, the nearest other task of each column is outlined.

    Up to 12 tasks a cell shows its mean and below it the standard deviation over trials; above, an inner square whose
    side grows with it. A pair that could not be compared is a dash whose tooltip gives the reason.

    >>> import torch
    >>> svg = heatmap(DistanceMatrix(("a", "b"), "frechet", torch.tensor([[[0.0, 0.2], [0.4, 0.0]]]).double()))
    >>> svg.startswith("<svg"), "0.200" in svg
    (True, True)
    """
    require_drawable(matrix)
    return _HeatmapDrawing(matrix).svg()


def cell_colour(value: float, low: float, high: float) -> str:
    """Colour of a distance between the smallest and the largest shown.

    >>> cell_colour(0.0, 0.0, 1.0), cell_colour(1.0, 0.0, 1.0)
    ('#eae51a', '#472c7a')
    """
    share = (value - low) / (high - low) if high > low else 0.0
    near, far = _RANGE
    return _colour_table()[round((near + (far - near) * share) * 255)]


@cache
def _colour_table() -> tuple[str, ...]:
    return tuple(str(to_hex(colour)) for colour in matplotlib.colormaps[_COLOURS](np.arange(256)))


class _HeatmapDrawing:
    """Geometry of one heat map, in pixels."""

    def __init__(self, matrix: DistanceMatrix) -> None:
        self.matrix, self.size = matrix, len(matrix.tasks)
        self.mean, self.std = matrix.mean.tolist(), matrix.std.tolist()
        self.places = scale_of(matrix)
        between = [
            value for a, row in enumerate(self.mean) for b, value in enumerate(row) if a != b and math.isfinite(value)
        ]
        self.low, self.high = min(between, default=0.0), max(between, default=0.0)
        self.spread = max((value for row in self.std for value in row if math.isfinite(value)), default=0.0)

        cell = 76.0 if self.size <= 6 else 58.0 if self.size <= NUMBERED else float(round(max(10.0, 660 / self.size)))
        self.grid = grid = Grid(matrix.tasks, cell, min(13.0, max(8.0, cell * 0.52)), _LONGEST_NAME)
        self.cell, self.side, self.names = grid.cell, grid.side, grid.names
        width = max(grid.left + grid.side + max(grid.over, 8), 420.0)
        self.canvas = Canvas(round(width), round(grid.top + grid.side + _LEGEND))

    def svg(self) -> str:
        """The whole picture, from back to front."""
        self.grid.headings(self.canvas, "source", "target")
        if self.size > DRAWN:
            self._image()
        else:
            for source in range(self.size):
                for target in range(self.size):
                    self._cell(source, target)
        self._outlines()
        self._legend()
        title = f"Distances between {self.size} tasks ({plain(self.matrix.title)})"
        return self.canvas.svg("nk-heatmap", title, self._description())

    def _description(self) -> str:
        text = f"Rows are sources, columns targets, near is bright. {plain_answer(self.matrix)}"
        if self.high > self.low:
            ends = f"{number(self.low, self.places)} to {number(self.high, self.places)}"
            text += f" Distances between different tasks range from {ends}."
        return text

    def _tip(self, source: int, target: int) -> str:
        pair = f"{self.names[source]} → {self.names[target]}"
        if not math.isfinite(self.mean[source][target]):
            return f"{pair}: not comparable{reason(self.matrix, source, target)}"
        return f"{pair}: {with_spread(self.mean[source][target], self.std[source][target], self.places)}"

    def _cell(self, source: int, target: int) -> None:
        draw, (x, y), value = self.canvas, self.grid.corner(source, target), self.mean[source][target]
        tip = self._tip(source, target)
        inner = (x + 0.5, y + 0.5), (self.cell - 1, self.cell - 1)
        if source == target or not math.isfinite(value):
            draw.rect(*inner, fill="panel", stroke="line", width=0.75, tip=tip)
            ink = "muted"
        else:
            colour = cell_colour(value, self.low, self.high)
            ink = readable_on(colour)
            draw.rect(*inner, fill=colour, tip=tip)
        middle = x + self.cell / 2
        if not math.isfinite(value):
            size = min(16.0, self.cell * 0.6)
            draw.text(middle, y + self.cell / 2 + size * 0.32, MISSING, size=size, fill=ink, anchor="middle")
        elif self.size <= NUMBERED:
            self._numbers(middle, y, source, target, ink)
        elif source != target:
            self._square(middle, y + self.cell / 2, self.std[source][target], ink)

    def _numbers(self, middle: float, top: float, source: int, target: int, ink: str) -> None:
        value, spread = number(self.mean[source][target], self.places), self.std[source][target]
        size = min(14.0, 14.0 * (self.cell - 10) / text_width(value, 14.0))
        with_bar = math.isfinite(spread) and spread > 0
        lift = 0.02 if with_bar else -0.1
        self.canvas.text(middle, top + self.cell * (0.5 - lift), value, size=size, fill=ink, anchor="middle")
        if with_bar:
            text = f"± {number(spread, self.places)}"
            small = min(10.5, 10.5 * (self.cell - 8) / text_width(text, 10.5))
            self.canvas.text(middle, top + self.cell * 0.77, text, size=small, fill=ink, anchor="middle")

    def _square(self, x: float, y: float, spread: float, ink: str) -> None:
        if math.isfinite(spread) and spread > 0:
            side = max(1.5, 0.7 * self.cell * spread / self.spread)
            self.canvas.rect((x - side / 2, y - side / 2), (side, side), stroke=ink, width=0.8)

    def _image(self) -> None:
        """All cells as pixels; one shape each would be megabytes."""
        pixels = np.zeros((self.size, self.size, 4), dtype=np.uint8)
        for source, row in enumerate(self.mean):
            for target, value in enumerate(row):
                if source != target and math.isfinite(value):
                    colour = cell_colour(value, self.low, self.high)
                    pixels[source, target] = (*bytes.fromhex(colour[1:]), 255)
        draw, corner, whole = self.canvas, self.grid.corner(0, 0), (self.side, self.side)
        draw.rect(corner, whole, fill="panel", stroke="line")
        draw.image(corner, whole, pixels)

    def _outlines(self) -> None:
        """A dark line on a light one, visible on every colour in both schemes."""
        thick = max(1.5, min(2.5, self.cell / 14))
        for kin in nearest_kin(self.matrix):
            if kin.source is not None:
                self._outline(*self.grid.corner(kin.source, kin.target), self.cell, thick)

    def _outline(self, x: float, y: float, side: float, thick: float) -> None:
        self.canvas.rect((x, y), (side, side), stroke="paper", width=thick + 2)
        self.canvas.rect((x, y), (side, side), stroke="ink", width=thick)

    def _legend(self) -> None:
        draw, left, top = self.canvas, 16.0, self.grid.top + self.side + 26
        length, steps = 150.0, 50
        for step in range(steps):
            fill = cell_colour((step + 0.5) / steps, 0.0, 1.0)
            draw.rect((left + step * length / steps, top), (length / steps + 0.3, 12), fill=fill)
        draw.text(left, top + 26, number(self.low, self.places), size=11, fill="muted")
        draw.text(left + length, top + 26, number(self.high, self.places), size=11, fill="muted", anchor="end")
        draw.text(left + length / 2, top + 26, "near to far", size=11, fill="muted", anchor="middle")
        middle = left + length + 32
        self._outline(middle - 6.5, top - 1, 13, 2.0)
        draw.text(middle + 16, top + 10, "nearest other task of its column", size=11, fill="muted")
        line = top + 31
        if NUMBERED < self.size <= DRAWN and self.spread > 0:
            side = 0.7 * self.cell
            draw.rect((middle - side / 2, line - 4 - side / 2), (side, side), stroke="ink")
            draw.text(
                middle + 16, line, f"deviation over trials: {number(self.spread, self.places)}", size=11, fill="muted"
            )
            line += 21
        if any(not math.isfinite(value) for row in self.mean for value in row):
            if self.size > DRAWN:
                draw.rect((middle - 6.5, line - 10), (13, 13), fill="panel", stroke="line")
            else:
                draw.text(middle, line, MISSING, size=13, fill="muted", anchor="middle")
            draw.text(middle + 16, line, "could not be compared", size=11, fill="muted")


def reason(matrix: DistanceMatrix, source: int, target: int) -> str:
    """Why a pair could not be compared, in parentheses; empty if no reason is known.

    >>> import torch
    >>> trials = torch.tensor([[[0.0, torch.nan], [0.4, 0.0]]]).double()
    >>> reason(DistanceMatrix(("a", "b"), "frechet", trials, {("a", "b"): "other shape"}), 0, 1)
    ' (other shape)'
    """
    text = (matrix.reasons or {}).get((matrix.tasks[source], matrix.tasks[target]), "")
    return f" ({plain(text)})" if text else ""
