"""Canvas: a matplotlib figure in pixels, written as small SVG that follows the reader's colour scheme.

Colours are roles of `nearkin.report.theme` or `#rrggbb`. matplotlib sets no real text: it has one font, and names come
in every script, so each text is drawn as a stand-in whose words are put back when the picture is written.
"""

import io
import re
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, PathPatch, Polygon, Rectangle
from matplotlib.path import Path as Outline
from matplotlib.text import Text
from matplotlib.transforms import Affine2D
from numpy.typing import NDArray

from nearkin.core.palette import LIGHT
from nearkin.report.theme import picture_style

_SPACE = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_DOTS = 72
_WRITING = threading.Lock()
"""matplotlib's settings are global."""

Point = tuple[float, float]


@dataclass(frozen=True)
class _Mark:
    """A shape for matplotlib to draw, and what it is not told of it."""

    shape: Callable[[Figure], Artist]
    fill: str | None
    stroke: str | None
    tip: str
    words: str = ""
    halo: bool = False


class Canvas:
    """A drawing of `width` × `height` pixels; x to the right, y down; later shapes lie above earlier ones.

    `tip` is the text that a reader sees who points at the shape.

    >>> canvas = Canvas(100, 50)
    >>> canvas.circle(20, 20, 5, fill="kin", tip="a <b>")
    >>> svg = canvas.svg("example", "A point", "One point.")
    >>> "nk-f-kin" in svg, "a &lt;b&gt;" in svg
    (True, True)
    """

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self._marks: list[_Mark] = []

    def rect(
        self,
        corner: Point,
        size: Point,
        *,
        fill: str | None = None,
        stroke: str | None = None,
        width: float = 1.0,
        opacity: float | None = None,
        tip: str = "",
    ) -> None:
        """A rectangle from its upper left corner."""

        def shape(_: Figure) -> Artist:
            rectangle = Rectangle(corner, *size, linewidth=width, facecolor=_hex(fill), edgecolor=_hex(stroke))
            rectangle.set_alpha(opacity)
            return rectangle

        self._marks.append(_Mark(shape, fill, stroke, tip))

    def circle(
        self,
        x: float,
        y: float,
        radius: float,
        *,
        fill: str | None = None,
        stroke: str | None = None,
        width: float = 1.0,
        opacity: float | None = None,
        tip: str = "",
    ) -> None:
        """A circle from its centre."""

        def shape(_: Figure) -> Artist:
            return Circle((x, y), radius, linewidth=width, facecolor=_hex(fill), edgecolor=_hex(stroke), alpha=opacity)

        self._marks.append(_Mark(shape, fill, stroke, tip))

    def polygon(self, points: Sequence[Point], *, fill: str, opacity: float | None = None, tip: str = "") -> None:
        """A filled, closed shape."""

        def shape(_: Figure) -> Artist:
            return Polygon(points, closed=True, facecolor=_hex(fill), edgecolor="none", alpha=opacity)

        self._marks.append(_Mark(shape, fill, None, tip))

    def line(
        self,
        start: Point,
        end: Point,
        *,
        stroke: str = "line",
        width: float = 1.0,
        dashed: bool = False,
        tip: str = "",
    ) -> None:
        """A straight line."""
        self.polyline((start, end), stroke=stroke, width=width, dashed=dashed, tip=tip)

    def polyline(
        self,
        points: Sequence[Point],
        *,
        stroke: str = "line",
        width: float = 1.0,
        dashed: bool = False,
        tip: str = "",
    ) -> None:
        """Straight lines from point to point."""
        across, down = zip(*points, strict=True)

        def shape(_: Figure) -> Artist:
            return Line2D(
                across,
                down,
                linewidth=width,
                color=_hex(stroke),
                linestyle=(0, (4 / width, 3 / width)) if dashed else "solid",  # lengths count in widths of the line
                solid_capstyle="butt",
                solid_joinstyle="round",
            )

        self._marks.append(_Mark(shape, None, stroke, tip))

    def dots(self, points: Sequence[Point], radius: float, *, fill: str, opacity: float | None = None) -> None:
        """Many small diamonds as one shape: a circle each would be ten times the text."""
        ways = ((radius, 0.0), (0.0, radius), (-radius, 0.0), (0.0, -radius), (radius, 0.0))
        corners = [(x + across, y + down) for x, y in points for across, down in ways]
        codes = [Outline.MOVETO, *[Outline.LINETO] * 3, Outline.CLOSEPOLY] * len(points)

        def shape(_: Figure) -> Artist:
            return PathPatch(Outline(corners, codes), facecolor=_hex(fill), edgecolor="none", alpha=opacity)

        self._marks.append(_Mark(shape, fill, None, ""))

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: float = 12.0,
        fill: str = "ink",
        anchor: str = "left",
        angle: float = 0.0,
        bold: bool = False,
        halo: bool = False,
        tip: str = "",
    ) -> None:
        """A text on its baseline, anchored `left`, `center` or `right`, turned by `angle` degrees against the clock."""

        def shape(_: Figure) -> Artist:
            stand_in = Text(x, y, "x", fontsize=size, color=_hex(fill), rotation=angle, rotation_mode="anchor")
            stand_in.set(ha=anchor, va="baseline", fontweight="bold" if bold else "normal")
            return stand_in

        self._marks.append(_Mark(shape, fill, None, tip, words, halo))

    def image(self, corner: Point, size: Point, pixels: NDArray[np.uint8]) -> None:
        """Pixels `[H, W, 4]` stretched over a rectangle, without smoothing."""
        (left, top), (width, height) = corner, size

        def shape(figure: Figure) -> Artist:
            axes = figure.add_axes((0, 0, 1, 1))
            axes.set_axis_off()
            extent = (left, left + width, top + height, top)
            image = AxesImage(axes, extent=extent, origin="upper", interpolation="none")
            image.set_data(pixels)
            return image

        self._marks.append(_Mark(shape, None, None, ""))

    def svg(self, name: str, title: str, description: str) -> str:
        """The picture; `name` makes its ids its own within a page, title and description are its alternative text."""
        root = ElementTree.Element("svg", self._head(name))
        for tag, words in (("title", title), ("desc", description)):
            ElementTree.SubElement(root, tag, id=f"{name}-{tag}").text = words
        ElementTree.SubElement(root, "style").text = picture_style()
        drawn = {element.get("id"): element for element in self._drawing().iter() if element.get("id")}
        for place, mark in enumerate(self._marks):
            group = drawn[_label(place)]
            shapes = group if group.tag == f"{_SPACE}g" else [group]  # an image bears its label itself
            root.extend(_themed(shape, mark) for shape in shapes)
        root.text = "\n"
        for child in root:
            child.tail = "\n"
        return ElementTree.tostring(root, encoding="unicode") + "\n"

    def _head(self, name: str) -> dict[str, str]:
        width, height = f"{self.width:g}", f"{self.height:g}"
        return {
            "xmlns": "http://www.w3.org/2000/svg",
            "class": "nk-picture",
            "role": "img",
            "aria-labelledby": f"{name}-title {name}-desc",
            "width": width,
            "height": height,
            "viewBox": f"0 0 {width} {height}",
        }

    def _figure(self) -> Figure:
        """Built only now, because artists take settings along from where they are born."""
        figure = Figure(figsize=(self.width / _DOTS, self.height / _DOTS), dpi=_DOTS)
        upright = Affine2D().scale(1, -1).translate(0, self.height)
        for place, mark in enumerate(self._marks):
            artist = mark.shape(figure)
            artist.set_gid(_label(place))
            artist.set_transform(upright)
            figure.add_artist(artist)
        return figure

    def _drawing(self) -> ElementTree.Element:
        """What matplotlib makes of it, under its own default settings whatever the reader's are."""
        written = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        with _WRITING, matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams["svg.fonttype"] = "none"
            matplotlib.rcParams["svg.hashsalt"] = "nearkin"
            self._figure().savefig(written, format="svg", transparent=True, metadata=nothing)
        return ElementTree.fromstring(written.getvalue())


def _label(place: int) -> str:
    return f"mark-{place}"


def _hex(colour: str | None) -> str:
    return "none" if colour is None else LIGHT.get(colour, colour)


def _themed(shape: ElementTree.Element, mark: _Mark) -> ElementTree.Element:
    """The shape without namespaces, its style as plain attributes (the light scheme) and classes (both)."""
    ours = ElementTree.Element(shape.tag.removeprefix(_SPACE))
    for key, value in shape.attrib.items():
        if key == "style":
            ours.attrib.update(_attributes(value))
        elif key not in ("id", "clip-path") and not value.startswith("rotate(-0 "):
            ours.set(key.replace(_LINK, "href"), _compact(value))
    roles = [f"nk-{way}-{role}" for way, role in (("f", mark.fill), ("s", mark.stroke)) if role in LIGHT]
    classes = [*roles, "nk-halo"] if mark.halo else roles
    if classes:
        ours.set("class", " ".join(classes))
    if mark.halo:
        ours.attrib.update({"stroke-width": "3", "paint-order": "stroke", "stroke": LIGHT["paper"]})
    ours.text = mark.words or None
    if mark.tip:
        ElementTree.SubElement(ours, "title").text = mark.tip
    else:
        ours.set("pointer-events", "none")
    return ours


def _attributes(style: str) -> dict[str, str]:
    pairs = (rule.split(":", 1) for rule in style.split(";") if ":" in rule)
    found = {key.strip(): value.strip().removesuffix("px") for key, value in pairs}
    return {key: value for key, value in found.items() if key != "font-family"}


def _compact(value: str) -> str:
    """One line, with two decimals where a number has more; data of images just lose their line breaks."""
    if value.startswith("data:"):
        return "".join(value.split())
    line = re.sub(r"\s*([MLCQz])\s*", r"\1", " ".join(value.split()))
    return re.sub(r"-?\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), line)
