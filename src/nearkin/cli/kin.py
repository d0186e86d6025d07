"""`near`, `matrix`, `map`: what a task is like, from the command line."""

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from typer.core import TyperCommand

import nearkin as nk
from nearkin.cli.console import Settings, answer, escape, named_values, run, say, show_options, table
from nearkin.cli.zoo import Json, task_names
from nearkin.core.errors import NearkinError, ZooError, require
from nearkin.core.files import write_durably
from nearkin.core.lazy import Lazy
from nearkin.core.text import byte_text, counted, duration

if TYPE_CHECKING:
    from nearkin.core import device
    from nearkin.distance import registry as measures
    from nearkin.distance.matrix import DistanceMatrix
    from nearkin.distance.ranking import Ranking
    from nearkin.report import page, taskmap
    from nearkin.zoo import comparison
else:
    device, measures, comparison, page, taskmap = map(
        Lazy,
        (
            "nearkin.core.device",
            "nearkin.distance.registry",
            "nearkin.zoo.comparison",
            "nearkin.report.page",
            "nearkin.report.taskmap",
        ),
    )

Measured = Annotated[
    str | None, typer.Option(metavar="NAME", help="How tasks are compared; nearkin near --help lists all.")
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="Of the measure, such as steps=32; may be repeated."),
]
Trials = Annotated[int | None, typer.Option(min=1, help="Trials; by default as many as all tasks have.")]
Samples = Annotated[int, typer.Option(min=2, help="Samples of a target that networks look at.")]
Reading = Annotated[str | None, typer.Option(help="The same as --option reading=TEXT.")]
Aggregate = Annotated[str | None, typer.Option(help="The same as --option aggregate=TEXT.")]
Align = Annotated[bool, typer.Option("--align", help="The same as --option align=true.")]
Names = Annotated[
    list[str] | None, typer.Argument(help="Tasks of the zoo; all when none is named.", autocompletion=task_names)
]


class MeasureHelp(TyperCommand):
    """A command whose help ends with the list of measures."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show the help; the registry is imported for it, and for nothing else at the start of a command."""
        super().format_help(ctx, formatter)
        rows = [
            (name + (" (default)" if name == measures.DEFAULT else ""), measure.summary, ", ".join(measure.needs))
            for name, measure in measures.MEASURES.items()
        ]
        say("[bold]Measures[/bold]; smaller is nearer for all of them")
        table(["measure", "value", "needs"], rows)
        for measure in measures.MEASURES.values():
            show_options(measure.name, measure.options)


def register(app: typer.Typer) -> None:
    """Hang the commands into the application."""
    app.command("near", cls=MeasureHelp)(near)
    app.command("matrix")(matrix)
    app.command("map")(map_)


def near(
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(help="A task of the zoo, or a data string.", autocompletion=task_names)
    ],
    measure: Annotated[str | None, typer.Option(metavar="NAME", help="How tasks are compared; see below.")] = None,
    top: Annotated[int | None, typer.Option(min=1, help="How many kin to show.")] = None,
    trials: Trials = None,
    samples: Samples = 1000,
    option: Options = None,
    reading: Reading = None,
    aggregate: Aggregate = None,
    align: Align = False,
    screen: Annotated[
        int | None, typer.Option(min=1, help="Measure so many tasks only, found by screening, where the measure can.")
    ] = None,
    epsilon: Annotated[float, typer.Option(min=0, max=1, help="Networks below 1 − ε are named.")] = 0.2,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Kin of a target in order: of all that is solved, what is this task like?"""
    settings: Settings = context.obj
    with nk.Zoo(settings.zoo_path, create=False) as zoo:
        how = comparison.Comparison(
            measure=measure or measures.DEFAULT, options=_options(option, reading, aggregate, align), trials=trials,
            samples=samples, epsilon=epsilon, screen=screen, device=device.device(settings.device),
        )  # fmt: skip
        found = run(zoo.near.work(target if target in zoo else task_of(target, zoo), how=how), settings).top(top)
    answer(found.to_dict(), as_json, lambda: _say_ranking(found))


def matrix(
    context: typer.Context,
    names: Names = None,
    measure: Measured = None,
    trials: Trials = None,
    samples: Samples = 1000,
    option: Options = None,
    reading: Reading = None,
    aggregate: Aggregate = None,
    align: Align = False,
    out: Annotated[
        Path | None, typer.Option(help="Also write a picture (.svg or .html) or the figures (.json).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Distances of all pairs of tasks: rows are sources, columns targets; what was measured before is kept."""
    settings: Settings = context.obj
    with nk.Zoo(settings.zoo_path, create=False) as zoo:
        how = comparison.Comparison(
            measure=measure or measures.STRUCTURE, options=_options(option, reading, aggregate, align), trials=trials,
            samples=samples, device=device.device(settings.device),
        )  # fmt: skip
        found = run(zoo.matrix.work(names, how=how), settings)
        if out is not None:
            _write(out, found, zoo)
    answer({**found.to_dict(), **({"out": str(out)} if out else {})}, as_json, lambda: _say_matrix(found, out))


def map_(
    context: typer.Context,
    names: Names = None,
    out: Annotated[Path, typer.Option(help="The page to write: .html, or .svg for the map alone.")] = Path("map.html"),
    measure: Measured = None,
    trials: Trials = None,
    samples: Samples = 1000,
    option: Options = None,
    reading: Reading = None,
    aggregate: Aggregate = None,
    align: Align = False,
    as_json: Json = False,
) -> None:
    """A picture of the task space: every task a point, near kin close together."""
    settings: Settings = context.obj
    with nk.Zoo(settings.zoo_path, create=False) as zoo:
        how = comparison.Comparison(
            measure=measure or measures.STRUCTURE, options=_options(option, reading, aggregate, align), trials=trials,
            samples=samples, device=device.device(settings.device),
        )  # fmt: skip
        found = run(zoo.matrix.work(names, how=how), settings)
        _write(out, found, zoo)
    size = out.stat().st_size
    answer(
        {**found.to_dict(), "out": str(out), "bytes": size},
        as_json,
        lambda: say(f"wrote the map of {counted(len(found.tasks), 'task')} to {escape(str(out))}, {byte_text(size)}"),
    )


def _options(option: list[str] | None, reading: str | None, aggregate: str | None, align: bool) -> dict[str, Any]:
    """Options of the measure, from `--option` and from the flags that have names of their own."""
    flags = {"reading": reading, "aggregate": aggregate, "align": align or None}
    return {**named_values(option), **{name: value for name, value in flags.items() if value is not None}}


def task_of(text: str, zoo: "nk.Zoo") -> "nk.Task":
    """The task of a data string; a word that is neither says so."""
    try:
        return nk.task(text)
    except NearkinError as unread:
        if any(letter in text for letter in ":?/."):
            raise
        raise ZooError(
            f"{text} is neither a task of the zoo ({_some(zoo.names())}) nor a data set: {unread}"
        ) from unread


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (" …" if len(names) > 8 else "") if names else "which is empty"


def _write(out: Path, found: "DistanceMatrix", zoo: "nk.Zoo") -> None:
    """The picture or the figures, by the ending of the file."""
    if out.suffix == ".json":
        text = json.dumps(found.to_dict(), allow_nan=False) + "\n"
    elif out.suffix == ".svg":
        text = taskmap.taskmap(found)
    else:
        require(out.suffix in (".html", ".htm"), f"{out} ends in {out.suffix!r}; write to .html, .svg or .json")
        info = {name: _info(zoo, name) for name in found.tasks}
        text = page.map_page(
            found, info, about=measures.about(found.measure), command=shlex.join(["nearkin", *sys.argv[1:]])
        )
    write_durably(out, text.encode())


def _info(zoo: "nk.Zoo", name: str) -> dict[str, Any]:
    record = zoo.record(name)
    return {
        "data": record.data or "arrays",
        "network": record.network,
        "metric": f"{record.metric:.4f}",
        "trials": str(record.trials),
    }


def _say_ranking(found: "Ranking") -> None:
    nearest = found.nearest
    spread = f" ± {nearest.std:.3f}" if len(nearest.trials) > 1 else ""
    say(
        f"[bold]{escape(found.target)}[/bold] is nearest to [bold]{escape(nearest.name)}[/bold] "
        f"({escape(found.measure)} {nearest.distance:.3f}{spread})"
        + (f", by the form {nearest.form}" if nearest.form else "")
    )
    say("")
    head, rows = found.table()
    table(head, rows, right=[name for name in head if name not in ("kin", "form")])
    for name, reason in found.refused.items():
        say(f"[dim]not compared: {escape(name)}: {escape(reason)}[/dim]")
    passes = f", {found.passes:.3g} Fisher passes" if found.passes > 1 else ""
    say(f"[dim]{counted(len(found), 'source')}, {duration(found.seconds)}{passes}; smaller is nearer[/dim]")


def _say_matrix(found: "DistanceMatrix", out: Path | None) -> None:
    mean, std = found.mean.tolist(), found.std.tolist()
    several = len(found.trials) > 1

    def cell(a: int, b: int) -> str:
        if mean[a][b] != mean[a][b]:
            return "–"
        return f"{mean[a][b]:.3f}" + (f" ±{std[a][b]:.3f}" if several and a != b else "")

    rows = [[name, *(cell(a, b) for b in range(len(found.tasks)))] for a, name in enumerate(found.tasks)]
    table([f"{found.title}: source ↓ target →", *found.tasks], rows, right=found.tasks)
    say("")
    for target, source in found.nearest().items():
        say(f"nearest to {escape(target)}: [bold]{escape(source)}[/bold]")
    for (source, target), form in (found.forms or {}).items() if not found.form else ():
        say(f"[dim]{escape(source)} → {escape(target)}: {form}[/dim]")
    for (source, target), reason in (found.reasons or {}).items():
        say(f"[dim]not compared: {escape(source)} → {escape(target)}: {escape(reason)}[/dim]")
    if out is not None:
        say(f"[dim]written to {escape(str(out))}[/dim]")
