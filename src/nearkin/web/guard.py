"""Middleware that refuses unsafe requests and adds security headers to every response.

Pages are read-only, contain no scripts of others and load nothing from elsewhere. A server on loopback only answers
requests that are addressed to loopback, so that a foreign site whose name points to 127.0.0.1 gets nothing.
"""

import ipaddress
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

METHODS = ("GET", "HEAD")
Allowed = Callable[[str], bool]
"""Whether requests may be addressed to a host name (without its port)."""


def is_loopback(host: str) -> bool:
    """Whether a name is this machine.

    >>> is_loopback("127.0.0.1"), is_loopback("[::1]"), is_loopback("LocalHost"), is_loopback("127.0.0.1.evil.example")
    (True, True, True, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def any_host(host: str) -> bool:
    """Allow every name, for a server that other machines may reach."""
    return True


class Guard:
    """Middleware that checks method and host and sets the headers of every response."""

    def __init__(self, app: ASGIApp, policy: str, allowed: Allowed) -> None:
        self.app, self.allowed, self.policy = app, allowed, policy
        self.headers = {
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cache-Control": "no-store",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or refuse a request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(self.headers)
                headers.setdefault("Content-Security-Policy", self.policy)
            await send(message)

        await self._checked(scope)(scope, receive, guarded)

    def _checked(self, scope: Scope) -> ASGIApp:
        if not self.allowed(_host(Headers(scope=scope).get("host", ""))):
            return PlainTextResponse("This server only answers requests to the host it was started with.\n", 421)
        if scope["method"] not in METHODS:
            words = "These pages are read-only: use GET or HEAD.\n"
            return PlainTextResponse(words, 405, {"Allow": ", ".join(METHODS)})
        return self.app


def _host(header: str) -> str:
    """A host header without its port.

    >>> _host("localhost:8321"), _host("[::1]:8321"), _host("::1")
    ('localhost', '[::1]', '')
    """
    if header.startswith("["):
        name, _, rest = header.partition("]")
        return f"{name}]" if not rest or rest.startswith(":") else ""
    return header.partition(":")[0]
