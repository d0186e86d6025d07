"""`connect`: path of low loss between two solutions of the zoo."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearkin.cli.console import Settings, answer, command_text, escape, run, say, table
from nearkin.cli.zoo import Json, task_names
from nearkin.core.errors import require
from nearkin.core.files import write_durably
from nearkin.core.lazy import Lazy
from nearkin.core.text import counted, duration

if TYPE_CHECKING:
    from nearkin.report import connection_page
    from nearkin.zoo import connect as connecting
else:
    connection_page, connecting = map(Lazy, ("nearkin.report.connection_page", "nearkin.zoo.connect"))


def connect(
    context: typer.Context,
    start: Annotated[str, typer.Argument(help="A task of the zoo.", autocompletion=task_names)],
    end: Annotated[
        str | None,
        typer.Argument(help="Another task with the same network (default: START).", autocompletion=task_names),
    ] = None,
    trials: Annotated[
        str | None, typer.Option(metavar="A,B", help="Trials of START and END (default: 0,0; for one task 0,1).")
    ] = None,
    data: Annotated[str, typer.Option(help="Task whose loss is measured: start, end or both.")] = "end",
    align: Annotated[
        bool, typer.Option("--align", help="First put the hidden units of END into the order of START's.")
    ] = False,
    samples: Annotated[int, typer.Option(min=2, help="Largest number of training samples of a task.")] = 500,
    images: Annotated[int, typer.Option(min=3, help="Points of the path, with both ends.")] = 9,
    iterations: Annotated[int, typer.Option(min=1, help="Largest number of steps of the string method.")] = 200,
    out: Annotated[Path | None, typer.Option(help="Also write a report (.html) or the plot alone (.svg).")] = None,
    as_json: Json = False,
) -> None:
    """Find a path of low loss between two solutions, and the barrier on it and on the straight line.

    The solutions are the networks of two tasks, or two trials of one task. After an interruption the same command
    continues.
    """
    settings: Settings = context.obj
    if out is not None:
        require(out.suffix in (".html", ".htm", ".svg"), f"got --out {out}, expected a file name in .html or .svg")
        require(not out.is_dir(), f"{out} is a folder, expected a file; choose another --out")
    pair = _pair(trials) if trials is not None else (0, 1) if end in (None, start) else (0, 0)
    with settings.open_zoo(create=False) as zoo:
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)  # an unwritable folder is an error before the work starts
        how = connecting.ConnectOptions(
            trials=pair, data=data, align=align, samples=samples, images=images, iterations=iterations
        )
        result = run(zoo.connect.work(start, end, how=how), settings)
    if out is not None:
        command = command_text()
        picture = connection_page.connection_picture(result) if out.suffix == ".svg" else None
        write_durably(out, (picture or connection_page.connection_page(result, command=command)).encode())
    facts = {**result.to_dict(), **({"out": str(out)} if out else {})}
    answer(facts, as_json, lambda: _show(result, out))


def _pair(text: str) -> tuple[int, int]:
    """Two trials, written as `A,B`."""
    numbers = text.split(",")
    require(
        len(numbers) == 2 and all(number.strip().isdecimal() for number in numbers),
        f"got --trials {text}, expected two numbers such as 0,1",
    )
    return int(numbers[0]), int(numbers[1])


def _show(result: "connecting.Connection", out: Path | None) -> None:
    say(escape(connection_page.connection_sentence(result)))
    say("")
    heads = ["share of the path", "loss, straight line", "loss, minimised path"]
    table(
        heads,
        [[f"{100 * share:.4g} %", f"{line:.4f}", f"{path:.4f}"] for share, line, path in result.images],
        right=heads,
    )
    say("")
    for text in (*connection_page.measured_text(result), *connection_page.noise_text(result)):
        say(f"[dim]{escape(text)}[/dim]")
    say(f"[dim]{counted(result.iterations, 'iteration')}, {duration(result.seconds)}[/dim]")
    if out is not None:
        say(f"\nWritten to [bold]{escape(str(out))}[/bold]")
