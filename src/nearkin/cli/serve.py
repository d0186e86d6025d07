"""`serve`: show the zoo in a browser."""

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
    zoo = settings.zoo_folder
    read_only.ReadOnlyStore(zoo).tasks()  # a wrong path is an error here, not in the browser
    with server.open_socket(host, port) as socket:
        address = server.address(socket)
        if not server.is_local(socket):
            typer.echo(
                f"warning: {host} can be reached from other machines; everyone who reaches it can read the zoo",
                err=True,
            )
        facts = {"address": address, "host": host, "port": socket.getsockname()[1], "zoo": str(zoo)}
        answer(facts, as_json, lambda: say(f"{address} shows {escape(str(zoo))}; stop with Ctrl-C"))
        try:
            server.serve(zoo, socket)
        except Interrupted:
            return
