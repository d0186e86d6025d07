"""`serve`: the zoo in a browser."""

from pathlib import Path
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
else:  # packages of one level do not import each other: the web package is looked up when it is wanted
    server, read_only = Lazy("nearkin.web.server"), Lazy("nearkin.store.read_only")

PURPOSE = "nearkin serve"


def register(app: typer.Typer) -> None:
    """Hang the command into the application."""
    app.command("serve")(serve)


def serve(
    context: typer.Context,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8321,
    host: Annotated[str, typer.Option(help="Where to listen; by default only this machine is answered.")] = "127.0.0.1",
    as_json: Json = False,
) -> None:
    """Show the zoo in a browser: tasks, their map, and work while it runs. Nothing can be changed there."""
    settings: Settings = context.obj
    for package in ("starlette", "uvicorn"):
        optional(package, "web", PURPOSE)
    zoo = Path(settings.zoo_path)
    read_only.ReadOnlyStore(zoo).tasks()  # a wrong path is an error here, not in the browser
    with server.open_socket(host, port) as taken:
        address = server.address(taken)
        if not server.is_local(taken):
            typer.echo(
                f"warning: {host} can be reached from other machines; whoever reaches it reads the whole zoo", err=True
            )
        facts = {"address": address, "host": host, "port": taken.getsockname()[1], "zoo": str(zoo)}
        answer(facts, as_json, lambda: say(f"{address} shows {escape(str(zoo))}; Ctrl-C ends it"))
        try:
            server.serve(zoo, taken)
        except Interrupted:
            return
