"""Frame of every web page: style, links to the other pages, and the scripts that may run."""

import shlex
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from nearkin import __version__
from nearkin.core.text import plain
from nearkin.report.html import REPORT, Link, digest, environment, template_text
from nearkin.report.theme import page_style

WEB = "nearkin.web"
PAGES = (("Tasks", "/"), ("Map", "/map"), ("Running work", "/work"))


def task_link(name: str) -> Link:
    """Link to the page of a task.

    >>> task_link("a/b?c#d <i>").href
    '/task/a%2Fb%3Fc%23d%20%3Ci%3E'
    """
    return Link(plain(name), f"/task/{quote(name, safe='')}")


def command(zoo: str, *words: str) -> str:
    """A nearkin command line for a zoo at an address without secrets.

    >>> command("/data/my zoo", "show", "zero")
    "nearkin --zoo '/data/my zoo' show zero"
    """
    return shlex.join(["nearkin", "--zoo", zoo, *words])


def render(template: str, here: str, zoo: str, **values: Any) -> str:
    """A page from a template of this package; every value is escaped unless it is `Markup`."""
    page = environment(WEB, REPORT).get_template(template)
    return page.render(frame=_constants(), pages=PAGES, here=here, zoo=plain(zoo), **values)


@cache
def policy() -> str:
    """Content policy: the browser may run the two scripts of the pages and send requests to this server only."""
    hashes = " ".join(map(digest, _scripts()))
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
        f"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


@cache
def _constants() -> Mapping[str, Any]:
    return {
        "style": Markup(page_style() + template_text(REPORT, "style.css") + template_text(WEB, "web.css")),
        "scripts": [Markup(script) for script in _scripts()],
        "version": __version__,
    }


@cache
def _scripts() -> tuple[str, str]:
    return template_text(REPORT, "sort.js"), template_text(WEB, "live.js")
