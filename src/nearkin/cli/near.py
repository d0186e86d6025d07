"""`near`, `matrix`, `map`: distances between tasks."""

import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from typer.core import TyperCommand

import nearkin as nk
from nearkin.cli.console import Settings, answer, command_text, escape, named_values, run, say, show_options, table
from nearkin.cli.recipe import shared_options
from nearkin.cli.zoo import Json, task_names
from nearkin.core.errors import NearkinError, ZooError, require
from nearkin.core.files import write_durably
from nearkin.core.lazy import Lazy
from nearkin.core.text import byte_text, counted, duration

if TYPE_CHECKING:
    from nearkin.core import device
    from nearkin.distance import questions
    from nearkin.distance import registry as measures
    from nearkin.distance.matrix import DistanceMatrix
    from nearkin.distance.ranking import Ranking
    from nearkin.report import page, taskmap
    from nearkin.zoo import comparison
else:
    device, questions, measures, comparison, page, taskmap = map(
        Lazy,
        (
            "nearkin.core.device",
            "nearkin.distance.questions",
            "nearkin.distance.registry",
            "nearkin.zoo.comparison",
            "nearkin.report.page",
            "nearkin.report.taskmap",
        ),
    )

Measured = Annotated[
    str | None, typer.Option(metavar="NAME", help="Measure of distance; nearkin near --help lists all.")
]
Names = Annotated[list[str] | None, typer.Argument(help="Tasks of the zoo (default: all).", autocompletion=task_names)]


def _options_of_comparison(
    *,
    measure: Measured = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Trials to use (default: all that every task has).")] = None,
    samples: Annotated[int, typer.Option(min=2, help="Largest number of target samples.")] = 1000,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", metavar="NAME=VALUE", help="Option of the measure, such as steps=32; may be repeated."
        ),
    ] = None,
    reading: Annotated[str | None, typer.Option(help="The same as --option reading=TEXT.")] = None,
    aggregate: Annotated[str | None, typer.Option(help="The same as --option aggregate=TEXT.")] = None,
    align: Annotated[bool | None, typer.Option("--align", help="The same as --option align=true.")] = None,
) -> None:
    """Holds the options that `near`, `matrix` and `map` share."""


def _comparison(values: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `Comparison`, from the options on the command line."""
    options: dict[str, Any] = named_values(values.pop("option", None))
    options |= {name: values.pop(name) for name in ("reading", "aggregate", "align") if name in values}
    return {**values, "options": options}


comparison_options = shared_options(
    "how", list(inspect.signature(_options_of_comparison).parameters.values()), _comparison
)


class MeasureHelp(TyperCommand):
    """A command whose help lists the measures."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the help; only this imports the registry."""
        super().format_help(ctx, formatter)
        rows = [(name, measure.summary, ", ".join(measure.needs)) for name, measure in measures.MEASURES.items()]
        asked = [
            (name + (" (default)" if name == questions.DEFAULT_QUESTION else ""), question.summary,
             ", ".join(question.measures))
            for name, question in questions.QUESTIONS.items()
        ]  # fmt: skip
        say("[bold]Questions[/bold] of near --for; several measures are combined by ranks")
        table(["question", "first is the source with", "measures"], asked)
        say("[bold]Measures[/bold]; smaller is nearer for all of them")
        table(["measure", "value", "needs"], rows)
        for measure in measures.MEASURES.values():
            show_options(measure.name, measure.options)


@comparison_options
def near(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help="A task of the zoo, or a data string.", autocompletion=task_names)],
    top: Annotated[int | None, typer.Option(min=1, help="Number of related tasks to show.")] = None,
    screen: Annotated[
        int | None, typer.Option(min=1, help="Measure only this many tasks, chosen by screening.")
    ] = None,
    epsilon: Annotated[float, typer.Option(min=0, max=1, help="Warn of networks with a metric below 1 − ε.")] = 0.2,
    question: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="QUESTION",
            help="final: lowest error after fine-tuning (default); speed: fastest fall of the loss. "
            "Chooses the measures.",
        ),
    ] = None,
    as_json: Json = False,
    *,
    how: dict[str, Any],
) -> None:
    """Rank the solved tasks by their distance to a target, nearest first."""
    settings: Settings = context.obj
    measure = how.pop("measure", None)
    require(
        measure is None or question is None,
        f"got --for {question} and --measure {measure}, expected one of them; leave one out",
    )
    if measure is None:
        question = questions.question_named(question or questions.DEFAULT_QUESTION).name
        require(
            not how["options"] and screen is None,
            f"options of a measure need --measure, got none; the question '{question}' has its own measures",
        )
    with settings.open_zoo(create=False) as zoo:
        compare = comparison.Comparison(
            **how, measure=measure or measures.DEFAULT, epsilon=epsilon, screen=screen,
            device=device.device(settings.device),
        )  # fmt: skip
        known = target if target in zoo else task_of(target, zoo)
        ranking = run(zoo.near.work(known, question=question, how=compare), settings).top(top)
    answer(ranking.to_dict(), as_json, lambda: _show_ranking(ranking))


@comparison_options
def matrix(
    context: typer.Context,
    names: Names = None,
    out: Annotated[
        Path | None, typer.Option(help="Also write a picture (.svg or .html) or the values (.json).")
    ] = None,
    as_json: Json = False,
    *,
    how: dict[str, Any],
) -> None:
    """Distances of all pairs of tasks: rows are sources, columns are targets. Measured distances are stored."""
    distances = _measure_all(context.obj, names, how, out)
    facts = {**distances.to_dict(), **({"out": str(out)} if out else {})}
    answer(facts, as_json, lambda: _show_matrix(distances, out))


@comparison_options
def map_(
    context: typer.Context,
    names: Names = None,
    out: Annotated[Path, typer.Option(help="The page to write: .html, or .svg for the map alone.")] = Path("map.html"),
    as_json: Json = False,
    *,
    how: dict[str, Any],
) -> None:
    """Draw a map of the tasks: every task is a point, related tasks are close to each other.

    Of more than 300 tasks without names, 60 that are far from each other are shown.
    """
    distances = _measure_all(context.obj, names, how, out, sample=True)
    size = out.stat().st_size
    text = f"wrote the map of {counted(len(distances.tasks), 'task')} to {escape(str(out))}, {byte_text(size)}"
    answer({**distances.to_dict(), "out": str(out), "bytes": size}, as_json, lambda: say(text))


def _measure_all(
    settings: Settings, names: list[str] | None, how: dict[str, Any], out: Path | None, sample: bool = False
) -> "DistanceMatrix":
    """Measure all pairs of tasks, and write the picture or the values to a file."""
    with settings.open_zoo(create=False) as zoo:
        compare = comparison.Comparison(**{"measure": measures.STRUCTURE, **how}, device=device.device(settings.device))
        if sample and not names:
            names = run(zoo.map_names.work(), settings)
        distances = run(zoo.matrix.work(names, how=compare), settings)
        if out is not None:
            _write(out, distances, zoo)
    return distances


def task_of(text: str, zoo: "nk.Zoo") -> "nk.Task":
    """Task of a data string; an error that also names the tasks of the zoo."""
    try:
        return nk.task(text)
    except NearkinError as error:
        if any(letter in text for letter in ":?/."):
            raise
        raise ZooError(
            f"'{text}' is neither a task of the zoo ({_some(zoo.names())}) nor a data set: {error}"
        ) from error


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (" …" if len(names) > 8 else "") if names else "which is empty"


def _write(out: Path, distances: "DistanceMatrix", zoo: "nk.Zoo") -> None:
    """Write the picture or the values, by the suffix of the file."""
    if out.suffix == ".json":
        text = json.dumps(distances.to_dict(), allow_nan=False) + "\n"
    elif out.suffix == ".svg":
        text = taskmap.taskmap(distances)
    else:
        require(
            out.suffix in (".html", ".htm"), f"got {out}, a file of type {out.suffix!r}; write to .html, .svg or .json"
        )
        info = {name: _info(zoo, name) for name in distances.tasks}
        text = page.map_page(distances, info, about=measures.about(distances.measure), command=command_text())
    write_durably(out, text.encode())


def _info(zoo: "nk.Zoo", name: str) -> dict[str, Any]:
    record = zoo.record(name)
    return {
        "data": record.data or "arrays",
        "network": record.network,
        "metric": f"{record.metric:.4f}",
        "trials": str(record.trials),
    }


def _show_ranking(ranking: "Ranking") -> None:
    nearest = ranking.nearest
    spread = f" ± {nearest.std:.3f}" if len(nearest.trials) > 1 else ""
    say(
        f"[bold]{escape(ranking.target)}[/bold] is nearest to [bold]{escape(nearest.name)}[/bold] "
        f"({escape(ranking.measure)} {nearest.distance:.3f}{spread})"
        + (f", form {nearest.form}" if nearest.form else "")
    )
    say("")
    head, rows = ranking.table()
    table(head, rows, right=[name for name in head if name not in ("kin", "form")])
    for name, reason in ranking.refused.items():
        say(f"[dim]not compared: {escape(name)}: {escape(reason)}[/dim]")
    if ranking.measure in questions.QUESTIONS:
        say(f"[dim]{ranking.measure}: mean rank by {', '.join(nearest.beside)}; 0 is first by all of them[/dim]")
    passes = f", {ranking.passes:.3g} Fisher passes" if ranking.passes > 1 else ""
    say(f"[dim]{counted(len(ranking), 'source')}, {duration(ranking.seconds)}{passes}; smaller is nearer[/dim]")


def _show_matrix(distances: "DistanceMatrix", out: Path | None) -> None:
    mean, std = distances.mean.tolist(), distances.std.tolist()
    several = len(distances.trials) > 1

    def cell(a: int, b: int) -> str:
        if mean[a][b] != mean[a][b]:
            return "–"
        return f"{mean[a][b]:.3f}" + (f" ±{std[a][b]:.3f}" if several and a != b else "")

    rows = [[name, *(cell(a, b) for b in range(len(distances.tasks)))] for a, name in enumerate(distances.tasks)]
    table([f"{distances.title}: source ↓ target →", *distances.tasks], rows, right=distances.tasks)
    say("")
    for target, source in distances.nearest().items():
        say(f"nearest to {escape(target)}: [bold]{escape(source)}[/bold]")
    for (source, target), form in (distances.forms or {}).items() if not distances.form else ():
        say(f"[dim]{escape(source)} → {escape(target)}: {form}[/dim]")
    for (source, target), reason in (distances.reasons or {}).items():
        say(f"[dim]not compared: {escape(source)} → {escape(target)}: {escape(reason)}[/dim]")
    if out is not None:
        say(f"[dim]written to {escape(str(out))}[/dim]")
