"""Writer of SVG pictures: shapes in colours by role, for light and dark pages, with text as text.

Colours are roles of `nearkin.report.theme` or `#rrggbb`. Every shape has the colours of the light scheme as attributes
and the classes of the style block, which follows the reader's colour scheme.
"""

import base64
import io
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict, Unpack

import numpy as np
from matplotlib.image import imsave
from numpy.typing import NDArray

from nearkin.report.theme import LIGHT, picture_style

Point = tuple[float, float]


class Style(TypedDict, total=False):
    """Appearance of a shape; `tip` is its tooltip."""

    fill: str | None
    stroke: str | None
    width: float
    opacity: float | None
    dashed: bool
    tip: str


class Canvas:
    """A picture of `width` × `height` pixels; x to the right, y down; later shapes lie above earlier ones.

    >>> canvas = Canvas(100, 50)
    >>> canvas.circle(20, 20, 5, fill="kin", tip="a <b>")
    >>> svg = canvas.svg("example", "A point", "One point.")
    >>> "nk-f-kin" in svg, "a &lt;b&gt;" in svg
    (True, True)
    """

    def __init__(self, width: float = 0.0, height: float = 0.0) -> None:
        self.width, self.height = width, height
        self._shapes: list[ElementTree.Element] = []

    def rect(self, corner: Point, size: Point, *, radius: float = 0.0, **style: Unpack[Style]) -> None:
        """A rectangle from its upper left corner, with round corners of a radius."""
        (x, y), (width, height) = corner, size
        self._add("rect", {"x": x, "y": y, "width": width, "height": height, "rx": radius or None}, **style)

    def circle(self, x: float, y: float, radius: float, **style: Unpack[Style]) -> None:
        """A circle from its centre."""
        self._add("circle", {"cx": x, "cy": y, "r": radius}, **style)

    def polygon(self, points: Iterable[Point], **style: Unpack[Style]) -> None:
        """A closed shape through the given points."""
        self._add("polygon", {"points": " ".join(map(point, points))}, **style)

    def path(self, data: str, **style: Unpack[Style]) -> None:
        """A line along the data of an SVG path."""
        self._add("path", {"d": data}, **style)

    def line(self, *points: Point, **style: Unpack[Style]) -> None:
        """Straight lines from point to point."""
        style.setdefault("stroke", "line")
        self.path(path(points), **style)

    def dots(self, points: Iterable[Point], radius: float, **style: Unpack[Style]) -> None:
        """Many small diamonds as one path, which needs a tenth of the text of single circles."""
        r = number(radius)
        self.path("".join(f"M{point((x + radius, y))}l-{r},{r}l-{r},-{r}l{r},-{r}z" for x, y in points), **style)

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: float = 12.0,
        fill: str = "ink",
        anchor: str = "start",
        angle: float = 0.0,
        bold: bool = False,
        halo: bool = False,
        tip: str = "",
    ) -> None:
        """A text on its baseline, anchored at its `start`, `middle` or `end`, turned to the left by `angle` degrees."""
        attributes = {
            "x": x,
            "y": y,
            "font-size": size,
            "text-anchor": None if anchor == "start" else anchor,
            "font-weight": "700" if bold else None,
            "transform": f"rotate({number(-angle)} {number(x)} {number(y)})" if angle else None,
        }
        shape = self._add("text", attributes, fill=fill, tip=tip)
        shape.text = words
        if halo:
            shape.attrib |= {"stroke": LIGHT["paper"], "stroke-width": "3", "paint-order": "stroke"}
            shape.set("class", f"{shape.get('class', '')} nk-halo".strip())

    def image(self, corner: Point, size: Point, pixels: NDArray[np.uint8]) -> None:
        """Pixels `[H, W, 4]` stretched over a rectangle, without smoothing."""
        (x, y), (width, height) = corner, size
        options = {"href": png_uri(pixels), "preserveAspectRatio": "none", "image-rendering": "pixelated"}
        self._add("image", {"x": x, "y": y, "width": width, "height": height, **options})

    def svg(self, name: str, title: str, description: str) -> str:
        """The picture; `name` makes its ids unique in a page, title and description are its alternative text."""
        width, height = number(self.width), number(self.height)
        root = ElementTree.Element(
            "svg",
            {
                "xmlns": "http://www.w3.org/2000/svg",
                "class": "nk-picture",
                "role": "img",
                "aria-labelledby": f"{name}-title {name}-desc",
                "width": width,
                "height": height,
                "viewBox": f"0 0 {width} {height}",
            },
        )
        for tag, words in (("title", title), ("desc", description)):
            ElementTree.SubElement(root, tag, id=f"{name}-{tag}").text = words
        ElementTree.SubElement(root, "style").text = picture_style()
        root.extend(self._shapes)
        root.text = "\n"
        for child in root:
            child.tail = "\n"
        return ElementTree.tostring(root, encoding="unicode") + "\n"

    def _add(
        self,
        tag: str,
        attributes: Mapping[str, float | str | None],
        *,
        fill: str | None = None,
        stroke: str | None = None,
        width: float = 1.0,
        opacity: float | None = None,
        dashed: bool = False,
        tip: str = "",
    ) -> ElementTree.Element:
        classes = [f"nk-{kind}-{role}" for kind, role in (("f", fill), ("s", stroke)) if role in LIGHT]
        look = {
            "class": " ".join(classes) or None,
            "fill": "none" if fill is None else LIGHT.get(fill, fill),
            "stroke": None if stroke is None else LIGHT.get(stroke, stroke),
            "stroke-width": None if stroke is None else width,
            "stroke-dasharray": "4 3" if dashed else None,
            "opacity": opacity,
            "pointer-events": None if tip else "none",
        }
        present = ((key, value) for key, value in {**attributes, **look}.items() if value is not None)
        shape = ElementTree.Element(
            tag, {key: value if isinstance(value, str) else number(value) for key, value in present}
        )
        if tip:
            ElementTree.SubElement(shape, "title").text = tip
        self._shapes.append(shape)
        return shape


def number(value: float) -> str:
    """A number of pixels with at most two decimals.

    >>> number(2.345), number(-0.001), number(1200.0)
    ('2.35', '0', '1200')
    """
    return f"{round(float(value), 2) + 0.0:.7g}"


def point(position: Point) -> str:
    """A point in a path.

    >>> point((1.0, 2.345))
    '1,2.35'
    """
    return ",".join(map(number, position))


def path(points: Sequence[Point]) -> str:
    """The data of straight lines from point to point.

    >>> path([(0, 0), (10, 4)])
    'M0,0L10,4'
    """
    return "M" + "L".join(map(point, points))


def curve(start: Point, end: Point) -> str:
    """The data of a smooth line that leaves and arrives horizontally.

    >>> curve((0, 0), (10, 4))
    'C5,0 5,4 10,4'
    """
    middle = (start[0] + end[0]) / 2
    return f"C{point((middle, start[1]))} {point((middle, end[1]))} {point(end)}"


def svg_width(svg: str) -> int:
    """Width of a picture in pixels.

    >>> svg_width(Canvas(420, 9).svg("a", "b", "c"))
    420
    """
    return round(float(svg.partition(' width="')[2].partition('"')[0]))


def png_uri(pixels: NDArray[np.uint8]) -> str:
    """Pixels `[H, W, 3 or 4]` as the data URI of a PNG image.

    >>> png_uri(np.zeros((2, 2, 3), dtype=np.uint8)).startswith("data:image/png;base64,")
    True
    """
    file = io.BytesIO()
    imsave(file, pixels, format="png", metadata={"Software": ""})
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
