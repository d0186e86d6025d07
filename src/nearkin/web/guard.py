"""Middleware that refuses unsafe requests and adds security headers to every response.

Pages are read-only, contain no scripts of others and load nothing from elsewhere. A server on loopback only answers
requests that are addressed to loopback, so that a foreign site whose name points to 127.0.0.1 gets nothing. With a
token, only those who know it are answered: a program sends it as `Authorization: Bearer`, and a browser opens the
address with `?token=`, which sets a cookie and leads to the same address without the token.
"""

import hashlib
import hmac
import ipaddress
from collections.abc import Callable
from urllib.parse import urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse
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
    """Middleware that checks host, method and token, and sets the headers of every response."""

    def __init__(self, app: ASGIApp, policy: str, allowed: Allowed, token: str = "") -> None:
        self.app, self.allowed, self.policy, self.token = app, allowed, policy, token
        # the name differs between servers, because a browser sends the cookies of all ports of a host
        self.cookie = f"nearkin_{hashlib.sha256(token.encode()).hexdigest()[:8]}"
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
        return self._admitted(scope) if self.token else self.app

    def _admitted(self, scope: Scope) -> ASGIApp:
        """The pages for those who know the token; a redirect if it is in the address, which is shown and remembered."""
        request = Request(scope)
        query = request.query_params.multi_items()
        given = [value for name, value in query if name == "token"]
        if given and all(map(self._right, given)):
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            raw = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1").partition("?")[0]
            answer = RedirectResponse(f"/{raw.lstrip('/')}{f'?{rest}' if rest else ''}", 303)
            answer.set_cookie(self.cookie, self.token, httponly=True, samesite="strict")
            return answer
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not given and (self._right(bearer) or self._right(request.cookies.get(self.cookie, ""))):
            return self.app
        words = "A token is needed: open the address that nearkin serve printed, or send Authorization: Bearer TOKEN.\n"
        return PlainTextResponse(words, 401, {"WWW-Authenticate": "Bearer"})

    def _right(self, token: str) -> bool:
        return hmac.compare_digest(token.encode("utf-8", "replace"), self.token.encode())


def _host(header: str) -> str:
    """A host header without its port.

    >>> _host("localhost:8321"), _host("[::1]:8321"), _host("::1")
    ('localhost', '[::1]', '')
    """
    if header.startswith("["):
        name, _, rest = header.partition("]")
        return f"{name}]" if not rest or rest.startswith(":") else ""
    return header.partition(":")[0]
