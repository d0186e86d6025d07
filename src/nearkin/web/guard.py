"""Guard: what every answer says and what no question may be, whatever page is asked for.

Pages are read only, hold no script but ours and load nothing from elsewhere. On loopback a question must be addressed
to loopback: a foreign site whose name is pointed at 127.0.0.1 gets nothing.
"""

import ipaddress
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

METHODS = ("GET", "HEAD")
Allowed = Callable[[str], bool]
"""Whether a host's name, without its port, may be asked for."""


def is_loopback(host: str) -> bool:
    """Whether a name means this machine and no other.

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
    """For a server that is meant to be reached from elsewhere."""
    return True


class Guard:
    """Middleware: methods, hosts, and the headers of every answer."""

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
        """Answer, or refuse to."""
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

        await self._door(scope)(scope, receive, guarded)

    def _door(self, scope: Scope) -> ASGIApp:
        if not self.allowed(_host(Headers(scope=scope).get("host", ""))):
            return PlainTextResponse("This server answers on the name it was started with only.\n", 421)
        if scope["method"] not in METHODS:
            words = "These pages are read only: GET and HEAD, nothing else.\n"
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
