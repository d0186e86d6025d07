"""Labels of pictures: their width, how they are shortened, and positions without overlap.

`place_labels` puts labels beside points. Every label tries boxes on rings around its point and takes the one of least
cost: distance costs little, covering a line more, covering a point still more, and covering another label most. The
labels are placed in turns until none moves.
"""

import math
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.font_manager import get_font
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import isotonic_regression

from nearkin.core.text import plain
from nearkin.report.svg import Canvas

Array = NDArray[np.float64]

_UNITS = 1000
_RINGS = (0.0, 5.0, 11.0, 18.0, 26.0, 36.0, 48.0, 62.0, 78.0, 96.0, 120.0, 150.0, 190.0, 240.0)
_ANGLES = np.linspace(0, 2 * np.pi, 24, endpoint=False)
_GAP = 3.0
_TURNS = 12
_LEADER = 9.0
_LABEL, _OUTSIDE, _POINT, _LINE, _FAR, _SIDE = 1e6, 1e4, 60.0, 2.5, 0.35, 2.0


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Width of a text in pixels in DejaVu Sans, which is wider than most system fonts and so a safe bound.

    >>> text_width("mm", 10) > text_width("ii", 10) > 0, text_width("", 10)
    (True, 0)
    """
    return sum(_advance(sign, bold) for sign in text) * size


@lru_cache(maxsize=4096)
def _advance(sign: str, bold: bool) -> float:
    """Advance of one character in units of the font size."""
    font = get_font(Path(matplotlib.get_data_path(), "fonts", "ttf", f"DejaVuSans{'-Bold' * bold}.ttf"))
    if font.get_char_index(ord(sign)) == 0:
        return 1.0 if unicodedata.east_asian_width(sign) in "WF" else 0.8
    font.set_size(_UNITS, 72)
    return float(font.load_char(ord(sign)).linearHoriAdvance) / 65536 / _UNITS


def shorten(text: str, size: float, width: float) -> str:
    """The text if it fits into `width` pixels, otherwise its beginning and its end.

    >>> shorten("digits-0-vs-6", 10, 200), shorten("mnist?classes=0,1,2,3&rest=other", 10, 100)
    ('digits-0-vs-6', 'mnist?cla…t=other')
    """
    if text_width(text, size) <= width:
        return text
    for length in range(len(text) - 1, 1, -1):
        head = math.ceil(length * 0.55)
        short = text[:head] + "…" + text[len(text) - length + head :]
        if text_width(short, size) <= width:
            return short
    return "…"


def labels(names: Iterable[str], size: float, width: float) -> tuple[str, ...]:
    """Names shortened to `width` pixels that still differ from each other: equal ones are numbered.

    >>> labels(["task-aaaaaaaaaaaa-x", "task-aaaabaaaaaaa-x", "b"], 10, 60)
    ('task-…a-x·1', 'task-…a-x·2', 'b')
    """
    full = [plain(name) for name in names]
    short = [shorten(name, size, width) for name in full]
    for twin in {name for name in short if short.count(name) > 1}:
        for count, index in enumerate([k for k, name in enumerate(short) if name == twin], 1):
            mark = f"·{count}"
            short[index] = shorten(full[index], size, width - text_width(mark, size)) + mark
    return tuple(short)


def set_apart(wanted: ArrayLike, gaps: ArrayLike, weights: ArrayLike | None = None) -> Array:
    """Positions `[K]` nearest to the wanted ones in weighted least squares, in the given order, `gaps` `[K - 1]` apart.

    >>> set_apart([10, 11, 50], [5, 5]).tolist()
    [8.0, 13.0, 50.0]
    """
    offsets = np.concatenate([[0.0], np.cumsum(gaps)])
    return np.asarray(isotonic_regression(np.asarray(wanted) - offsets, weights=weights).x + offsets)


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions near the wanted ones, in their order, `gap` apart, and within bounds if there is enough space.

    >>> spread([11, 10, 50], 5, 0, 100)
    [13.0, 8.0, 50.0]
    """
    order, offsets = np.argsort(wanted, kind="stable"), gap * np.arange(len(wanted))
    apart = set_apart(np.clip(np.take(wanted, order), low, high), np.full(len(wanted) - 1, gap)) - offsets
    positions = np.empty(len(wanted))
    positions[order] = np.clip(apart, low, max(high - offsets[-1], low)) + offsets
    return [float(position) for position in positions]


class Box(NamedTuple):
    """A rectangle in pixels, y down."""

    left: float
    top: float
    right: float
    bottom: float


def overlap(a: Box, b: Box) -> bool:
    """Whether two boxes share an area.

    >>> overlap(Box(0, 0, 2, 2), Box(1, 1, 3, 3)), overlap(Box(0, 0, 2, 2), Box(2, 0, 4, 2))
    (True, False)
    """
    return a.left < b.right and b.left < a.right and a.top < b.bottom and b.top < a.bottom


def place_labels(anchors: Array, sizes: Array, radii: Array, bounds: Box, lines: Array) -> list[Box]:
    """Boxes for labels of `sizes` `[K, 2]` at `anchors` `[K, 2]`, whose points have `radii` `[K]`.

    Args:
        anchors: the points, in pixels.
        sizes: width and height of every label.
        radii: of the points, which labels do not cover.
        bounds: where labels may lie.
        lines: `[M, 2]` points on lines that labels should not cover.

    >>> boxes = place_labels(np.array([[50.0, 50.0], [52.0, 50.0]]), np.full((2, 2), (30.0, 10.0)), np.full(2, 4.0),
    ...                      Box(0, 0, 100, 100), np.zeros((0, 2)))
    >>> overlap(*boxes)
    False
    """
    count = len(anchors)
    choices = [_candidates(anchors[k], sizes[k], radii[k]) for k in range(count)]
    costs = [_own_costs(choices[k], k, anchors, radii, bounds, lines) for k in range(count)]
    crowd = [(np.hypot(*(anchors - anchors[k]).T) < 60).sum() for k in range(count)]
    chosen = np.full((count, 4), np.nan)
    for turn in range(_TURNS):
        moved = False
        for k in sorted(range(count), key=lambda k: (-crowd[k], k)):
            others = np.delete(chosen, k, axis=0)
            total = costs[k] + _LABEL * _shared(choices[k], others[~np.isnan(others[:, 0])])
            best = choices[k][int(np.argmin(total))]
            moved |= not np.array_equal(best, chosen[k])
            chosen[k] = best
        if turn and not moved:
            break
    return [Box(*(float(side) for side in box)) for box in chosen]


def draw_leaders(draw: Canvas, anchors: Array, radii: Array, boxes: Sequence[Box]) -> None:
    """Thin lines from points to labels that lie far from them."""
    for (x, y), radius, box in zip(anchors.tolist(), radii.tolist(), boxes, strict=True):
        end = (min(max(x, box.left), box.right), min(max(y, box.top), box.bottom))
        if math.hypot(end[0] - x, end[1] - y) > radius + _LEADER:
            draw.line((x, y), end, stroke="muted", width=0.7)


def draw_labels(
    draw: Canvas, boxes: Sequence[Box], words: Sequence[str], tips: Sequence[str], size: float, chosen: int | None
) -> None:
    """Texts in their boxes, the chosen one highlighted."""
    for number, (box, text, tip) in enumerate(zip(boxes, words, tips, strict=True)):
        y, own = box.bottom - 0.28 * size, number == chosen
        draw.text(box.left, y, text, size=size, fill="target" if own else "ink", bold=own, halo=True, tip=tip)


def _candidates(anchor: Array, size: Array, radius: float) -> Array:
    """Boxes `[C, 4]` around a point: on every ring the box touches it from outside, at every angle."""
    angles, rings = (grid.ravel() for grid in np.meshgrid(_ANGLES, radius + _GAP + np.array(_RINGS)))
    directions = np.stack([np.cos(angles), -np.sin(angles)], axis=1)
    # the corner or side that faces the point lies on the ring, the rest of the box outside it
    centres = anchor + directions * rings[:, None] + np.clip(directions * 2.0, -1, 1) * size / 2
    return np.concatenate([centres - size / 2, centres + size / 2], axis=1)


def _own_costs(boxes: Array, own: int, anchors: Array, radii: Array, bounds: Box, lines: Array) -> Array:
    """Cost of every box without regard to the other labels `[C]`."""
    left, top, right, bottom = boxes.T
    beyond = [bounds.left - left, right - bounds.right, bounds.top - top, bottom - bounds.bottom]
    outside = sum(np.clip(side, 0, None) for side in beyond)
    gap = _distance(boxes, anchors)
    far = gap[:, own] - radii[own]
    covered = (gap < radii + 2).sum(1)
    crossed = _inside(boxes, lines).sum(1)
    # to the right reads best, then to the left, then above and below
    sideways = np.abs((top + bottom) / 2 - anchors[own, 1]) / (bottom - top) + 0.5 * (right < anchors[own, 0])
    costs = _OUTSIDE * np.asarray(outside) + _POINT * covered + _LINE * crossed + _FAR * far + _SIDE * sideways
    return np.asarray(costs)


def _distance(boxes: Array, points: Array) -> Array:
    """Distance of every point to every box `[C, M]`; 0 inside."""
    across = np.maximum(boxes[:, None, 0] - points[:, 0], points[:, 0] - boxes[:, None, 2]).clip(min=0)
    down = np.maximum(boxes[:, None, 1] - points[:, 1], points[:, 1] - boxes[:, None, 3]).clip(min=0)
    return np.asarray(np.hypot(across, down))


def _inside(boxes: Array, points: Array) -> NDArray[np.bool_]:
    """Whether every point lies in every box `[C, M]`."""
    across = (boxes[:, None, 0] < points[:, 0]) & (points[:, 0] < boxes[:, None, 2])
    return np.asarray(across & (boxes[:, None, 1] < points[:, 1]) & (points[:, 1] < boxes[:, None, 3]))


def _shared(boxes: Array, others: Array) -> Array:
    """How many of the other boxes each box overlaps `[C]`, with a pixel to spare."""
    across = (boxes[:, None, 0] < others[:, 2] + 1) & (others[:, 0] < boxes[:, None, 2] + 1)
    down = (boxes[:, None, 1] < others[:, 3] + 1) & (others[:, 1] < boxes[:, None, 3] + 1)
    return np.asarray((across & down).sum(1), dtype=np.float64)
