"""The web application: the page of each address, and the answer to requests that fail."""

import logging
from collections.abc import Callable
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
from nearkin.web.task_page import task_page
from nearkin.web.work import work_facts, work_page

Page = Callable[[ReadOnlyStore, Request], str | Response]
Figures = Callable[[ReadOnlyStore, Request], dict[str, Any]]

log = logging.getLogger(__name__)


class PageNotFound(Exception):
    """The requested page does not exist; `like` are names of similar tasks."""

    def __init__(self, text: str, like: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.like = like


def application(zoo: ReadOnlyStore, allowed: Allowed = is_loopback, token: str = "") -> Starlette:
    """Pages of a zoo; each request reads it again, and none changes it.

    Args:
        zoo: the zoo.
        allowed: which host names a request may be addressed to (default: those of loopback).
        token: what a visitor must know (default: nothing).
    """
    pages: dict[str, Page] = {
        "/": lambda zoo, request: list_page(zoo, request.query_params),
        "/map": lambda zoo, request: map_view(zoo, request.query_params),
        "/work": lambda zoo, request: work_page(zoo),
        "/task/{rest:path}": _task,
        "/{rest:path}": _not_found,
    }
    figures: dict[str, Figures] = {
        "/tasks.json": lambda zoo, request: {"zoo": zoo.address, "tasks": [task_facts(task) for task in zoo.tasks()]},
        "/work.json": lambda zoo, request: work_facts(zoo),
        "/health": lambda zoo, request: {"status": "ok", "version": __version__, "tasks": len(zoo.tasks())},
    }
    routes = [Route(path, _json(zoo, facts)) for path, facts in figures.items()]
    routes += [Route(path, _html(zoo, page)) for path, page in pages.items()]
    return Starlette(routes=routes, middleware=[Middleware(Guard, policy=policy(), allowed=allowed, token=token)])


def _task(zoo: ReadOnlyStore, request: Request) -> str | Response:
    """The page of a task, or its report."""
    _, *segments = _path_segments(request)
    name = segments[0] if segments else ""
    if len(segments) == 1 and name:
        return task_page(zoo, _named(zoo, name))
    if len(segments) == 2 and segments[1] == "report":
        report = report_html(zoo, _named(zoo, name))
        if report is not None:
            return HTMLResponse(report, headers={"Content-Security-Policy": answer_policy()})
        raise PageNotFound(f"The zoo has no report of “{plain(name)}”.", (name,))
    return _not_found(zoo, request)


def _named(zoo: ReadOnlyStore, name: str) -> TaskRecord:
    task = zoo.task(name)
    if task is None:
        raise PageNotFound(f"The zoo has no task named “{_short(name)}”.", tuple(zoo.similar_names(name)))
    return task


def _not_found(zoo: ReadOnlyStore, request: Request) -> str:
    raise PageNotFound(f"There is no page {_short(request.url.path)}.")


def _path_segments(request: Request) -> list[str]:
    """Segments of the path as they were sent, each decoded; an encoded slash belongs to a name.

    >>> _path_segments(Request({"type": "http", "path": "/task/a/b", "raw_path": b"/task/a%2Fb?c", "headers": []}))
    ['task', 'a/b']
    """
    raw = request.scope.get("raw_path") or request.scope["path"].encode()
    path = raw.decode("ascii", "replace").partition("?")[0]
    return [unquote(segment, errors="replace") for segment in path.removeprefix("/").split("/")]


def _html(zoo: ReadOnlyStore, page: Page) -> Callable[[Request], Response]:
    """Answer with a page; errors are pages too."""

    def answer(request: Request) -> Response:
        try:
            content = page(zoo, request)
            return HTMLResponse(content) if isinstance(content, str) else content
        except PageNotFound as error:
            links = [task_link(name) for name in error.like]
            return _message(zoo, "Not found", str(error), 404, links=links)
        except NearkinError as refused:
            return _message(zoo, "The zoo cannot be read", plain(str(refused)), 503)
        except Exception as error:
            log.exception("%s", request.url.path)
            words = f"This page cannot be shown: unexpected {type(error).__name__}. See the log of the server."
            return _message(zoo, "Something went wrong", words, 500)

    return answer


def _json(zoo: ReadOnlyStore, facts: Figures) -> Callable[[Request], Response]:
    """Answer a request with JSON."""

    def answer(request: Request) -> Response:
        try:
            return JSONResponse(facts(zoo, request))
        except NearkinError as refused:
            return JSONResponse({"status": "error", "error": plain(str(refused))}, 503)
        except Exception as error:
            log.exception("%s", request.url.path)
            return JSONResponse({"status": "error", "error": f"unexpected {type(error).__name__}"}, 500)

    return answer


def _message(zoo: ReadOnlyStore, title: str, words: str, status: int, links: Any = ()) -> Response:
    page = render("web_message.html", "", zoo.address, title=title, words=words, links=links)
    return HTMLResponse(page, status)


def _short(text: str) -> str:
    shown = plain(text)
    return shown if len(shown) <= 120 else shown[:119] + "…"
