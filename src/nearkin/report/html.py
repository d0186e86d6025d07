"""Self-contained HTML pages: tables, figures, and templates with their style and scripts."""

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from nearkin import __version__
from nearkin.report.axes import NARROW, WIDTH
from nearkin.report.svg import svg_width
from nearkin.report.theme import page_style

REPORT = "nearkin.report"


@dataclass(frozen=True)
class Link:
    """A table cell that links to another page."""

    text: str
    href: str


@dataclass(frozen=True)
class HtmlTable:
    """A table of a page.

    Attributes:
        caption: title above the table.
        heads: names of the columns.
        rows: cells, as text or links.
        numeric: columns that are aligned to the right.
        marked: a row that is highlighted.
        tight: columns of single words, which are not wrapped.
        sortable: whether readers may sort it by a column.
        head: the column that names a row.
        kind: a class of the style sheet.
    """

    caption: str
    heads: tuple[str, ...]
    rows: Sequence[tuple[str | Link, ...]]
    numeric: frozenset[int] = frozenset()
    marked: int | None = None
    tight: frozenset[int] = frozenset()
    sortable: bool = True
    head: int = 0
    kind: str = ""


@dataclass(frozen=True)
class Figure:
    """A picture in a page.

    Attributes:
        label: its title.
        wide: SVG for wide pages.
        narrow: SVG for phones; empty if phones scroll the wide one.
        caption: how to read it.
        table: the values of the picture.
        natural: width of the wide picture in pixels.
    """

    label: str
    wide: Markup
    narrow: Markup
    caption: str
    table: HtmlTable | None
    natural: int


def figure(
    draw: Callable[[int, str], str],
    name: str,
    label: str,
    caption: str,
    table: HtmlTable | None = None,
    *,
    narrow: bool = True,
) -> Figure:
    """A figure drawn by `draw(width, name)` for wide pages and for phones; names make the ids of both unique."""
    wide = draw(WIDTH, name)
    small = draw(NARROW, f"{name}-narrow") if narrow else ""
    return Figure(label, Markup(wide), Markup(small), caption, table, svg_width(wide))


@cache
def environment(*packages: str) -> Environment:
    """Templates of packages, the first package first; every value is escaped unless it is `Markup`."""
    loader = ChoiceLoader([PackageLoader(package, "templates") for package in packages])
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def render(template: str, **values: Any) -> str:
    """A report from a template that extends `base.html`.

    Its content policy lets the browser run only the page's own script and load nothing.
    """
    return environment(REPORT).get_template(template).render(page=_frame(), **values)


@cache
def _frame() -> Mapping[str, str]:
    script = template_text(REPORT, "sort.js") + template_text(REPORT, "print.js")
    return {
        "theme": Markup(page_style()),
        "style": Markup(template_text(REPORT, "style.css")),
        "script": Markup(script),
        "policy": Markup(f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {digest(script)}"),
        "version": __version__,
    }


def report_policy() -> str:
    """Content policy of a report: the browser may run its own script and load nothing."""
    return _frame()["policy"]


def template_text(package: str, name: str) -> str:
    """Text of a file in the templates folder of a package."""
    return (files(package) / "templates" / name).read_text("utf-8")


def digest(script: str) -> str:
    """The hash of a script in a content policy.

    >>> digest("")
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
    """
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
