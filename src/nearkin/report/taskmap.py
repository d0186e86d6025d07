"""Map of tasks: points in the plane, with arrows from each task's nearest kin in the nearer direction."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearkin.core.text import number, plain, with_spread
from nearkin.distance.matrix import DistanceMatrix
from nearkin.report.axes import WIDTH, Scale
from nearkin.report.labels import Box, draw_labels, draw_leaders, labels, place_labels, text_width
from nearkin.report.map_layout import MapLayout, layout
from nearkin.report.nearest_kin import nearest_kin, plain_answer, position, require_drawable, scale_of
from nearkin.report.svg import Canvas

Array = NDArray[np.float64]

_POINT, _TARGET, _RING = 5.5, 7.0, 11.0
_THIN, _THICK = 1.2, 6.0
_LEGEND = 64.0


@dataclass(frozen=True)
class Arrow:
    """The link of a task and its nearest kin, in the nearer direction.

    Attributes:
        source: start of the arrow.
        target: end of the arrow: `d[source, target] <= d[target, source]`.
        asymmetry: how much larger the distance back is, `d[target, source] - d[source, target]`; NaN if one is unknown.
        sure: whether the asymmetry is more than two standard errors over trials; with one trial, whether there is any.
    """

    source: int
    target: int
    asymmetry: float
    sure: bool


def taskmap(
    matrix: DistanceMatrix, target: str | None = None, *, width: int = WIDTH, placed: MapLayout | None = None
) -> str:
    """SVG of the tasks in the plane; tasks with a small distance lie near each other.

    Every task is linked with its nearest kin by an arrow that points in the nearer direction, from source to target.
    It is wider for a larger asymmetry; a line without a head has no asymmetry beyond the noise of the trials.
    A halo's radius is the task's mean standard deviation over trials, in the units of the map.

    Args:
        matrix: distances to draw.
        target: a task to highlight.
        width: in pixels; below 500 the map is taller than wide.
        placed: the positions, if they are known already.

    >>> import torch
    >>> svg = taskmap(DistanceMatrix(("a", "b"), "frechet", torch.tensor([[[0.0, 0.2], [0.4, 0.0]]]).double()))
    >>> svg.startswith("<svg"), ">a<" in svg
    (True, True)
    """
    require_drawable(matrix)
    return _MapDrawing(matrix, target, width, placed or layout(matrix)).svg()


def arrows(matrix: DistanceMatrix) -> tuple[Arrow, ...]:
    """One link for every pair of a task and its nearest kin.

    >>> import torch
    >>> links = arrows(DistanceMatrix(("a", "b"), "frechet", torch.tensor([[[0.0, 0.2], [0.5, 0.0]]]).double()))
    >>> [(link.source, link.target, round(link.asymmetry, 3), link.sure) for link in links]
    [(0, 1, 0.3, True)]
    """
    mean, trials = matrix.mean.tolist(), matrix.trials.double().numpy()
    pairs = sorted(
        {(min(k.target, k.source), max(k.target, k.source)) for k in nearest_kin(matrix) if k.source is not None}
    )
    links = []
    for a, b in pairs:
        forward, back = mean[a][b], mean[b][a]
        swap = math.isnan(forward) or back < forward
        source, target = (b, a) if swap else (a, b)
        gaps = trials[:, target, source] - trials[:, source, target]
        gaps = gaps[np.isfinite(gaps)]
        asymmetry = mean[target][source] - mean[source][target]
        error = gaps.std(ddof=1) / math.sqrt(len(gaps)) if len(gaps) > 1 else 0.0
        links.append(Arrow(source, target, asymmetry, bool(asymmetry > 2 * error)))
    return tuple(links)


class _MapDrawing:
    """Geometry of one map, in pixels."""

    def __init__(self, matrix: DistanceMatrix, target: str | None, width: int, placed: MapLayout) -> None:
        self.matrix, self.placed, self.width = matrix, placed, float(width)
        self.size = len(matrix.tasks)
        self.chosen = None if target is None else position(matrix, target)
        self.target, self.places = target, scale_of(matrix)
        self.narrow = width < 500
        self.font = (11.0 if self.narrow else 13.0) if self.size <= 12 else (9.5 if self.narrow else 11.5)
        if self.size > 40:
            self.font = 8.5
        self.names = [plain(task) for task in matrix.tasks]
        self.kin, self.mean, self.std = nearest_kin(matrix), matrix.mean.tolist(), matrix.std.double().numpy()
        self.short = labels(matrix.tasks, self.font, 96.0 if self.narrow else 150.0)
        points = placed.points[:, ::-1] if self.narrow else placed.points
        self._fit(np.asarray(points))
        self.radii = np.array([_RING if k == self.chosen else _POINT for k in range(self.size)])
        self.canvas = Canvas(round(self.width), round(self.height))

    def _fit(self, points: Array) -> None:
        """One scale for both axes, with space for labels at the rim and for halos."""
        rim = min(110.0, max(text_width(name, self.font) for name in self.short) * 0.75)
        across, down = np.ptp(points[:, 0]), np.ptp(points[:, 1])
        tallest = self.width * (1.35 if self.narrow else 0.72) if self.size > 3 else self.width * 0.45
        inner = np.array([self.width - 2 * rim - 20, tallest - 90])
        around = np.array([[self._spread(k)] for k in range(self.size)])
        middle = (points.max(0) + points.min(0)) / 2
        reach = 2 * (abs(points - middle) + around).max(0)  # of the halos, from side to side
        wide = np.array([self.width - 8, tallest])
        scales = (*(inner / np.maximum([across, down], 1e-12)), *(wide / np.maximum(reach, 1e-12)))
        self.scale = float(min(scales)) if max(across, down) > 0 else 0.0
        self.field = max(down * self.scale + 90, reach[1] * self.scale + 8, 150.0)
        self.height = self.field + _LEGEND
        self.spots = (points - middle) * (self.scale, -self.scale) + (self.width / 2, self.field / 2)

    def svg(self) -> str:
        """The whole map, from back to front."""
        links = arrows(self.matrix)
        self._halos()
        widest = max((link.asymmetry for link in links if link.sure), default=0.0)
        for link in links:
            self._arrow(link, widest)
        boxes = place_labels(
            self.spots, self._sizes(), self.radii, Box(4, 4, self.width - 4, self.field - 4), self._points_on(links)
        )
        draw_leaders(self.canvas, self.spots, self.radii, boxes)
        for k in range(self.size):
            self._point(k)
        draw_labels(self.canvas, boxes, self.short, list(map(self._tip, range(self.size))), self.font, self.chosen)
        self._legend(widest)
        title = f"Map of {self.size} tasks ({plain(self.matrix.title)})"
        text = f"Near tasks lie near each other. {plain_answer(self.matrix, self.target)}"
        return self.canvas.svg("nk-map-narrow" if self.narrow else "nk-map", title, text)

    def _sizes(self) -> Array:
        widths = [text_width(name, self.font, bold=k == self.chosen) for k, name in enumerate(self.short)]
        return np.array([(width, self.font * 1.25) for width in widths])

    def _spread(self, k: int) -> float:
        """Mean standard deviation over trials of the distances to and from a task."""
        around = np.delete(np.concatenate([self.std[k], self.std[:, k]]), [k, self.size + k])
        around = around[np.isfinite(around)]
        return float(around.mean()) if len(around) else 0.0

    def _halos(self) -> None:
        for k, (x, y) in enumerate(self.spots):
            radius = self._spread(k) * self.scale
            if radius > 0:
                colour = "target" if k == self.chosen else "kin"
                self.canvas.circle(x, y, radius, fill=colour, opacity=0.11)

    def _point(self, k: int) -> None:
        x, y = self.spots[k]
        colour = "target" if k == self.chosen else "kin"
        if k == self.chosen:
            self.canvas.circle(x, y, _RING, stroke="target", width=1.5)
        self.canvas.circle(
            x, y, _TARGET if k == self.chosen else _POINT, fill=colour, stroke="paper", width=1.5, tip=self._tip(k)
        )

    def _tip(self, k: int) -> str:
        kin = self.kin[k]
        if kin.source is None:
            return f"{self.names[k]}: could not be compared"
        return (
            f"{self.names[k]}: nearest kin {self.names[kin.source]}, {with_spread(kin.distance, kin.std, self.places)}"
        )

    def _arrow(self, link: Arrow, widest: float) -> None:
        start, end = self.spots[link.source], self.spots[link.target]
        length = float(np.hypot(*(end - start)))
        near, far = self.radii[link.source] + 2, self.radii[link.target] + 3
        if length <= near + far + 2:
            return
        along = (end - start) / length
        across = np.array([-along[1], along[0]])
        touched = self.chosen in (link.source, link.target) and self.chosen is not None
        colour = "target" if touched else "arrow"
        first, last = start + along * near, end - along * far
        forward, back = (
            number(self.mean[a][b], self.places) for a, b in ((link.source, link.target), (link.target, link.source))
        )
        tip = f"{self.names[link.source]} → {self.names[link.target]}: {forward}, back {back}"
        if not link.sure:
            self.canvas.line(_pair(first), _pair(last), stroke=colour, width=1.3, tip=tip)
            return
        wide = _THIN + (_THICK - _THIN) * link.asymmetry / widest
        head = min(8 + wide, (length - near - far) * 0.6)
        neck = last - along * head
        half, barb = across * wide / 2, across * (wide / 2 + 3.2)
        outline = [first + half * 0.3, neck + half, neck + barb, last, neck - barb, neck - half, first - half * 0.3]
        self.canvas.polygon([_pair(corner) for corner in outline], fill=colour, opacity=0.85, tip=tip)

    def _points_on(self, links: tuple[Arrow, ...]) -> Array:
        """Points along all links, about every six pixels."""
        rows = [np.zeros((0, 2))]
        for link in links:
            start, end = self.spots[link.source], self.spots[link.target]
            shares = np.linspace(0, 1, max(2, int(np.hypot(*(end - start)) / 6)))[:, None]
            rows.append(start + shares * (end - start))
        return np.concatenate(rows)

    def _legend(self, widest: float) -> None:
        draw, top = self.canvas, self.field + 16
        unit = Scale(0.0, 0.2 * self.width / self.scale, 0.0, 1.0).ticks(3)[1] if self.scale else 0.0
        x = 14.0
        if unit:
            length = unit * self.scale
            draw.line((x, top), (x + length, top), stroke="ink", width=1.5)
            for tick in (x, x + length):
                draw.line((tick, top - 4), (tick, top + 4), stroke="ink", width=1.5)
            draw.text(x, top + 17, f"distance {unit:g}", size=11, fill="muted")
        notes = []
        if self.size > 1:
            notes.append("line: nearest kin" + ("; arrow: nearer direction" if widest else ""))
        if any(self._spread(k) for k in range(self.size)):
            notes.append("halo: standard deviation over trials")
        for line, note in enumerate(notes):
            position = (
                (14.0, top + 34 + 14 * line, "start") if self.narrow else (self.width - 14, top + 3 + 16 * line, "end")
            )
            draw.text(*position[:2], note, size=11, fill="muted", anchor=position[2])


def _pair(point: Array) -> tuple[float, float]:
    return float(point[0]), float(point[1])
