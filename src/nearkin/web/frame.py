"""The frame of every page: the report's look, ways to the other pages, and the scripts that may run."""

import base64
import hashlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from nearkin import __version__
from nearkin.core.text import plain
from nearkin.report.theme import page_style

PAGES = (("Tasks", "/"), ("Map", "/map"), ("Work", "/work"))


@dataclass(frozen=True)
class Link:
    """A cell that leads somewhere."""

    text: str
    href: str


def task_link(name: str) -> Link:
    """The way to a task's page.

    >>> task_link("a/b?c#d <i>").href
    '/task/a%2Fb%3Fc%23d%20%3Ci%3E'
    """
    return Link(plain(name), f"/task/{quote(name, safe='')}")


def command(zoo: Path, *words: str) -> str:
    """The command line that does something with a zoo.

    >>> command(Path("/data/my zoo"), "show", "zero")
    "nearkin --zoo '/data/my zoo' show zero"
    """
    return shlex.join(["nearkin", "--zoo", str(zoo), *words])


def render(template: str, here: str, zoo: str, **values: Any) -> str:
    """A page from a template of this room; every value is escaped unless it is `Markup`."""
    found = _environment().get_template(template)
    return found.render(frame=_constants(), pages=PAGES, here=here, zoo=plain(zoo), **values)


@cache
def policy() -> str:
    """What a browser may do with our pages: run the two scripts that they bring, ask this server, and no more."""
    hashes = " ".join(f"'{_hash(script)}'" for script in _scripts().values())
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
        f"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


@cache
def _environment() -> Environment:
    loader = ChoiceLoader([PackageLoader("nearkin.web", "templates"), PackageLoader("nearkin.report", "templates")])
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


@cache
def _constants() -> Mapping[str, Any]:
    style = page_style() + _text("nearkin.report", "style.css") + _text("nearkin.web", "web.css")
    return {
        "style": Markup(style),
        "scripts": [Markup(script) for script in _scripts().values()],
        "version": __version__,
    }


@cache
def _scripts() -> Mapping[str, str]:
    return {"sort": _text("nearkin.report", "sort.js"), "live": _text("nearkin.web", "live.js")}


def _text(package: str, name: str) -> str:
    return (files(package) / "templates" / name).read_text("utf-8")


def _hash(script: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"
