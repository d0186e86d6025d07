"""HTML pages that hold all they need: tables, figures, and the templates with their style and scripts."""

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
    """A cell of a table that leads to another page."""

    text: str
    href: str


@dataclass(frozen=True)
class Table:
    """A table of a page.

    Attributes:
        caption: what it shows.
        heads: names of the columns.
        rows: cells, as text or links.
        numeric: columns that are set to the right.
        marked: a row that is set off.
        tight: columns of single words, which are not broken.
        sortable: whether readers may order it by a column.
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
        label: its name where it can be scrolled.
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
    table: Table | None
    natural: int


def figure(
    draw: Callable[[int, str], str],
    name: str,
    label: str,
    caption: str,
    table: Table | None = None,
    *,
    narrow: bool = True,
) -> Figure:
    """A figure drawn for wide pages and for phones, by `draw(width, name)`; names make the ids of both unique."""
    wide = draw(WIDTH, name)
    small = draw(NARROW, f"{name}-narrow") if narrow else ""
    return Figure(label, Markup(wide), Markup(small), caption, table, svg_width(wide))


@cache
def environment(*packages: str) -> Environment:
    """Templates of packages, the first that has a name; every value is escaped unless it is `Markup`."""
    loader = ChoiceLoader([PackageLoader(package, "templates") for package in packages])
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def render(template: str, **values: Any) -> str:
    """A report from a template that extends `base.html`.

    The page may run the one script it brings and load nothing: the browser is told so by its content policy.
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
    """What a browser may do with a report: show it and run its own script."""
    return _frame()["policy"]


def template_text(package: str, name: str) -> str:
    """A file beside the templates of a package."""
    return (files(package) / "templates" / name).read_text("utf-8")


def digest(script: str) -> str:
    """The source of a script in a content policy.

    >>> digest("")
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
    """
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
