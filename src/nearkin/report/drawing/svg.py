"""A sheet of SVG: shapes in roles of colour, for light and dark, with text that stays text."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping

from nearkin.core.palette import DARK, FONTS, LIGHT

Point = tuple[float, float]


class Sheet:
    """Shapes that are drawn one above the other; x to the right, y down, in pixels.

    >>> sheet = Sheet()
    >>> sheet.text((10, 20), "a < b")
    >>> svg = sheet.svg("example", 100, 40, "Title", "Words.")
    >>> svg.startswith("<svg"), "a &lt; b" in svg
    (True, True)
    """

    def __init__(self) -> None:
        self._shapes: list[ElementTree.Element] = []

    def box(
        self, middle: Point, size: Point, *, fill: str, stroke: str, radius: float = 6.0, dashed: bool = False
    ) -> None:
        """A rectangle with round corners."""
        (x, y), (width, height) = middle, size
        place = {"x": x - width / 2, "y": y - height / 2, "width": width, "height": height, "rx": radius}
        shape = self._add("rect", {key: _number(value) for key, value in place.items()}, fill, stroke)
        if dashed:
            shape.set("stroke-dasharray", "4 3")

    def line(self, path: str, *, stroke: str, dashed: bool = False) -> None:
        """A line along an SVG path."""
        shape = self._add("path", {"d": path, "stroke-width": "1.4"}, None, stroke)
        if dashed:
            shape.set("stroke-dasharray", "4 3")

    def head(self, tip: Point, *, fill: str, down: bool = False) -> None:
        """The head of an arrow that points to the right, or down."""
        x, y = tip
        corners = [(x, y), *([(x - 3.5, y - 7), (x + 3.5, y - 7)] if down else [(x - 7, y - 3.5), (x - 7, y + 3.5)])]
        self._add("polygon", {"points": " ".join(point(corner) for corner in corners)}, fill, None)

    def text(self, place: Point, words: str, *, size: float = 12.0, fill: str = "ink", bold: bool = False) -> None:
        """A text whose middle stands at a place."""
        x, y = place[0], place[1] + 0.35 * size
        where = {"x": _number(x), "y": _number(y), "font-size": _number(size), "text-anchor": "middle"}
        shape = self._add("text", where, fill, None)
        shape.text = words
        if bold:
            shape.set("font-weight", "600")

    def svg(self, name: str, width: float, height: float, title: str, description: str) -> str:
        """The picture; `name` makes its ids its own within a page, title and description are its alternative text."""
        head = {
            "xmlns": "http://www.w3.org/2000/svg",
            "class": "nk-picture",
            "role": "img",
            "aria-labelledby": f"{name}-title {name}-desc",
            "width": _number(width),
            "height": _number(height),
            "viewBox": f"0 0 {_number(width)} {_number(height)}",
        }
        root = ElementTree.Element("svg", head)
        for tag, words in (("title", title), ("desc", description)):
            ElementTree.SubElement(root, tag, id=f"{name}-{tag}").text = words
        ElementTree.SubElement(root, "style").text = _style()
        root.extend(self._shapes)
        root.text = "\n"
        for child in root:
            child.tail = "\n"
        return ElementTree.tostring(root, encoding="unicode") + "\n"

    def _add(self, tag: str, attributes: dict[str, str], fill: str | None, stroke: str | None) -> ElementTree.Element:
        """A shape with the colours of the light scheme as attributes and those of both as classes."""
        shape = ElementTree.Element(tag, attributes)
        classes = [f"nk-{way}-{role}" for way, role in (("f", fill), ("s", stroke)) if role]
        shape.set("class", " ".join(classes))
        shape.set("fill", LIGHT[fill] if fill else "none")
        if stroke:
            shape.set("stroke", LIGHT[stroke])
        self._shapes.append(shape)
        return shape


def text_width(words: str, size: float = 12.0) -> float:
    """Room for a text in any of the fonts it may be set in."""
    return round(0.62 * size * len(words), 1)


def point(place: Point) -> str:
    """A point in a path.

    >>> point((1.0, 2.345))
    '1,2.35'
    """
    return ",".join(map(_number, place))


def curve(start: Point, end: Point) -> str:
    """The path of a smooth line that leaves and arrives level.

    >>> curve((0, 0), (10, 4))
    'C5,0 5,4 10,4'
    """
    middle = (start[0] + end[0]) / 2
    return f"C{point((middle, start[1]))} {point((middle, end[1]))} {point(end)}"


def _number(value: float) -> str:
    return f"{round(value, 2):g}" if abs(value) < 1000 else f"{value:.1f}"


def _style() -> str:
    rules = [f".nk-picture text{{font-family:{FONTS}}}", *_roles(LIGHT)]
    dark = "\n".join(_roles(DARK))
    return "\n".join([*rules, f"@media screen and (prefers-color-scheme:dark){{\n{dark}\n}}"])


def _roles(palette: Mapping[str, str]) -> list[str]:
    fills = [f".nk-f-{role}{{fill:{colour}}}" for role, colour in palette.items()]
    strokes = [f".nk-s-{role}{{stroke:{colour}}}" for role, colour in palette.items()]
    return [*fills, *strokes, f".nk-picture:root{{background:{palette['paper']}}}"]
