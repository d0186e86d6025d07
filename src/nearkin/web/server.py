"""Web server: its socket and the application on it."""

import os
import re
import secrets
import socket
from collections.abc import Callable

import uvicorn

from nearkin.core.errors import OptionError, require
from nearkin.store.read_only import ReadOnlyStore
from nearkin.web.application import application
from nearkin.web.guard import any_host, is_loopback

GRACE_SECONDS = 2
TOKEN = "NEARKIN_TOKEN"
"""Environment variable of the token that visitors must know."""
_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,}")


def open_socket(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 selects a free port.

    >>> with open_socket("127.0.0.1", 0) as listening:
    ...     address(listening).startswith("http://127.0.0.1:")
    True
    """
    try:
        family, kind, protocol, _, endpoint = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as unknown:
        raise OptionError(
            f"got the host {host}, expected an address of this machine ({unknown.strerror}); try --host 127.0.0.1"
        ) from None
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(endpoint)
        listening.listen(128)
    except OSError as refused:
        listening.close()
        raise OptionError(
            f"cannot listen on {host}, port {port}: {refused.strerror or refused}; "
            f"choose another with --port, or --port 0 for a free one"
        ) from None
    return listening


def address(listening: socket.socket, token: str = "") -> str:
    """The address to open in a browser."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/{f'?token={token}' if token else ''}"


def is_local(listening: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    return is_loopback(listening.getsockname()[0])


def chosen_token(listening: socket.socket) -> str:
    """The token that visitors must know: `$NEARKIN_TOKEN`, or a new one if other machines can reach the socket."""
    given = os.environ.get(TOKEN, "")
    require(
        not given or _TOKEN.fullmatch(given) is not None,
        f"${TOKEN} has {len(given)} characters, expected 16 or more of letters, digits, - and _; else unset it",
    )
    return given or ("" if is_local(listening) else secrets.token_urlsafe())


def serve(
    zoo: ReadOnlyStore,
    listening: socket.socket,
    token: str = "",
    ready: Callable[[uvicorn.Server], None] | None = None,
) -> None:
    """Answer requests until a signal ends it; on loopback only those that are addressed to loopback."""
    pages = application(zoo, is_loopback if is_local(listening) else any_host, token)
    config = uvicorn.Config(
        pages,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    server = uvicorn.Server(config)
    if ready is not None:
        ready(server)
    server.run(sockets=[listening])
