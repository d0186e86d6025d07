"""`serve`: show the zoo in a browser."""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from nearkin.cli.console import Interrupted, Settings, answer, escape, say
from nearkin.cli.zoo import Json
from nearkin.core.errors import optional
from nearkin.core.lazy import Lazy

if TYPE_CHECKING:
    from types import ModuleType

    from nearkin.store import read_only

    server: ModuleType
else:  # cli and web do not import each other; web is imported when it is used
    server, read_only = Lazy("nearkin.web.server"), Lazy("nearkin.store.read_only")

PURPOSE = "nearkin serve"


def serve(
    context: typer.Context,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any free port.")] = 8321,
    host: Annotated[str, typer.Option(help="Address to listen on (default: this machine only).")] = "127.0.0.1",
    as_json: Json = False,
) -> None:
    """Show the zoo in a browser, read-only: tasks, their map, and running work."""
    settings: Settings = context.obj
    for package in ("starlette", "uvicorn"):
        optional(package, "web", PURPOSE)
    with ExitStack() as opened:
        zoo = opened.enter_context(read_only.ReadOnlyStore(settings.zoo_path, settings.blobs))
        zoo.tasks()  # a wrong address is an error here, not in the browser
        socket = opened.enter_context(server.open_socket(host, port))
        token = server.chosen_token(socket)
        address, name = server.address(socket, token), settings.zoo_name
        if not server.is_local(socket):
            typer.echo(
                f"warning: {host} can be reached from other machines; everyone who has the token in the address can "
                f"read the zoo, and the connection is not encrypted",
                err=True,
            )
        facts = {"address": address, "host": host, "port": socket.getsockname()[1], "zoo": name}
        answer(facts, as_json, lambda: say(f"{address} shows {escape(name)}; stop with Ctrl-C"))
        try:
            server.serve(zoo, socket, token)
        except Interrupted:
            return
