"""The application: which address shows which page, and how a question that cannot be answered ends."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from nearkin import __version__
from nearkin.core.errors import NearkinError
from nearkin.core.text import plain
from nearkin.store.read_only import ReadOnlyStore
from nearkin.store.records import TaskRecord
from nearkin.web.frame import policy, render, task_link
from nearkin.web.guard import Allowed, Guard, is_loopback
from nearkin.web.overview import list_page, map_view, task_facts
from nearkin.web.reports import answer_policy, report_html
from nearkin.web.task import task_page
from nearkin.web.work import work_facts, work_page

Page = Callable[[ReadOnlyStore, Request], str | Response]
Figures = Callable[[ReadOnlyStore, Request], dict[str, Any]]

log = logging.getLogger(__name__)


class Missing(Exception):
    """There is no such page; says what there is instead."""

    def __init__(self, text: str, like: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.like = like


def application(zoo_path: str | Path, allowed: Allowed = is_loopback) -> Starlette:
    """Pages over the zoo in a folder; each request opens it anew, and none changes it.

    Args:
        zoo_path: the folder.
        allowed: which host names may be asked for; by default those of loopback.
    """
    zoo = ReadOnlyStore(zoo_path)
    pages: dict[str, Page] = {
        "/": lambda zoo, request: list_page(zoo, request.query_params),
        "/map": lambda zoo, request: map_view(zoo, request.query_params),
        "/work": lambda zoo, request: work_page(zoo),
        "/task/{rest:path}": _task,
        "/{rest:path}": _nowhere,
    }
    figures: dict[str, Figures] = {
        "/tasks.json": lambda zoo, request: {"zoo": str(zoo.path), "tasks": [task_facts(one) for one in zoo.tasks()]},
        "/work.json": lambda zoo, request: work_facts(zoo),
        "/health": lambda zoo, request: {"status": "ok", "version": __version__, "tasks": len(zoo.tasks())},
    }
    routes = [Route(path, _json(zoo, made)) for path, made in figures.items()]
    routes += [Route(path, _html(zoo, made)) for path, made in pages.items()]
    return Starlette(routes=routes, middleware=[Middleware(Guard, policy=policy(), allowed=allowed)])


def _task(zoo: ReadOnlyStore, request: Request) -> str | Response:
    """The page of a task, or its report."""
    _, *parts = _parts(request)
    name = parts[0] if parts else ""
    if len(parts) == 1 and name:
        return task_page(zoo, _named(zoo, name))
    if len(parts) == 2 and parts[1] == "report":
        found = report_html(zoo, _named(zoo, name))
        if found is not None:
            return HTMLResponse(found, headers={"Content-Security-Policy": answer_policy()})
        raise Missing(f"No report of {plain(name)} is kept.", (name,))
    return _nowhere(zoo, request)


def _named(zoo: ReadOnlyStore, name: str) -> TaskRecord:
    task = zoo.task(name)
    if task is None:
        raise Missing(f"The zoo has no task named {_short(name)}.", tuple(zoo.similar_names(name)))
    return task


def _nowhere(zoo: ReadOnlyStore, request: Request) -> str:
    raise Missing(f"There is no page {_short(request.url.path)}.")


def _parts(request: Request) -> list[str]:
    """The parts of the path as they were sent, each decoded: a slash within a name is no end of a part.

    >>> _parts(Request({"type": "http", "path": "/task/a/b", "raw_path": b"/task/a%2Fb?c", "headers": []}))
    ['task', 'a/b']
    """
    raw = request.scope.get("raw_path") or request.scope["path"].encode()
    path = raw.decode("ascii", "replace").partition("?")[0]
    return [unquote(part, errors="replace") for part in path.removeprefix("/").split("/")]


def _html(zoo: ReadOnlyStore, made: Page) -> Callable[[Request], Response]:
    """A page as an answer; what goes wrong is a page too."""

    def answer(request: Request) -> Response:
        try:
            page = made(zoo, request)
            return HTMLResponse(page) if isinstance(page, str) else page
        except Missing as missing:
            links = [task_link(name) for name in missing.like]
            return _told(zoo, "Not found", str(missing), 404, links=links)
        except NearkinError as refused:
            return _told(zoo, "The zoo cannot be read", plain(str(refused)), 503)
        except Exception as error:
            log.exception("%s", request.url.path)
            words = f"This page cannot be made: unexpected {type(error).__name__}. The server’s log tells where."
            return _told(zoo, "Something went wrong", words, 500)

    return answer


def _json(zoo: ReadOnlyStore, made: Figures) -> Callable[[Request], Response]:
    """Figures as an answer."""

    def answer(request: Request) -> Response:
        try:
            return JSONResponse(made(zoo, request))
        except NearkinError as refused:
            return JSONResponse({"status": "error", "error": plain(str(refused))}, 503)
        except Exception as error:
            log.exception("%s", request.url.path)
            return JSONResponse({"status": "error", "error": f"unexpected {type(error).__name__}"}, 500)

    return answer


def _told(zoo: ReadOnlyStore, title: str, words: str, status: int, links: Any = ()) -> Response:
    page = render("web_told.html", "", str(zoo.path), title=title, words=words, links=links)
    return HTMLResponse(page, status)


def _short(text: str) -> str:
    shown = plain(text)
    return shown if len(shown) <= 120 else shown[:119] + "…"
