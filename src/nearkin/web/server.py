"""The server: a socket that is bound before anything is promised, and the application on it."""

import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from nearkin.core.errors import OptionError
from nearkin.web.app import application
from nearkin.web.guard import any_host, is_loopback

GRACE_SECONDS = 2


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 takes a free one.

    >>> with bound("127.0.0.1", 0) as taken:
    ...     address(taken).startswith("http://127.0.0.1:")
    True
    """
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as unknown:
        raise OptionError(f"{host} is no address of this machine ({unknown.strerror}); try --host 127.0.0.1") from None
    taken = socket.socket(family, kind, protocol)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(place)
        taken.listen(128)
    except OSError as refused:
        taken.close()
        raise OptionError(
            f"cannot listen on {host}, port {port}: {refused.strerror or refused}; "
            f"choose another with --port, or --port 0 for a free one"
        ) from None
    return taken


def address(taken: socket.socket) -> str:
    """What to type into a browser."""
    host, port = taken.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def is_local(taken: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    return is_loopback(taken.getsockname()[0])


def served(zoo: Path, taken: socket.socket, ready: Callable[[uvicorn.Server], None] | None = None) -> None:
    """Answer until a signal comes; on loopback only questions that are addressed to loopback."""
    pages = application(zoo, is_loopback if is_local(taken) else any_host)
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
    server.run(sockets=[taken])
