"""Figures of a page: a picture for wide pages, one for phones, a caption, and the table behind them."""

from collections.abc import Callable
from dataclasses import dataclass

from markupsafe import Markup

from nearkin.report.axes import NARROW, WIDTH
from nearkin.report.page import Table
from nearkin.report.svg import svg_width


@dataclass(frozen=True)
class Figure:
    """A picture in a page.

    Attributes:
        label: what it is called where it can be scrolled.
        wide: SVG.
        narrow: the same for phones; empty where the wide one is scrolled there.
        caption: how to read it.
        table: the values that it shows.
        natural: width of the wide picture in pixels.
    """

    label: str
    wide: Markup
    narrow: Markup
    caption: str
    table: Table
    natural: int


def figure(
    draw: Callable[[int, str], str], name: str, label: str, caption: str, table: Table, *, narrow: bool = True
) -> Figure:
    """A figure drawn twice, by `draw(width, name)`; names make the ids of both pictures their own."""
    wide = draw(WIDTH, name)
    small = draw(NARROW, f"{name}-narrow") if narrow else ""
    return Figure(label, Markup(wide), Markup(small), caption, table, svg_width(wide))
