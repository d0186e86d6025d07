"""`near`, `matrix`, `map`: what a task is like, from the command line."""

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import nearkin as nk
from nearkin.cli.console import Settings, answer, escape, run, say, table
from nearkin.cli.zoo import Json, task_names
from nearkin.core.errors import NearkinError, ZooError, require
from nearkin.core.files import write_durably
from nearkin.core.lazy import Lazy
from nearkin.core.text import byte_text, counted, duration

if TYPE_CHECKING:
    from nearkin.core import device
    from nearkin.distance.matrix import DistanceMatrix
    from nearkin.distance.ranking import Ranking
    from nearkin.report import page, taskmap
    from nearkin.zoo import comparison
else:
    device, comparison, page, taskmap = map(
        Lazy, ("nearkin.core.device", "nearkin.zoo.comparison", "nearkin.report.page", "nearkin.report.taskmap")
    )

ABOUT = {
    "frechet": "Distance between the Fisher information of the source's network and of the target's own, both on the "
    "target's training data and at unit trace: 0 where both rest on the same weights in the same measure, 1 where they "
    "share none. Networks of one trial start from the same weights.",
}

MEASURE_NAMES = (
    "kin, kin-drawn, frechet, logme, leep, hscore, nce, knn, head, gradnorm, task2vec, task2vec-asymmetric, evidence, "
    "cka, mmd, fid, source, random or finetune; smaller is nearer for all."
)
Trials = Annotated[int | None, typer.Option(min=1, help="Trials; by default as many as all tasks have.")]
Samples = Annotated[int, typer.Option(min=2, help="Samples of a target that networks look at.")]
Reading = Annotated[
    str,
    typer.Option(
        help="Of frechet: padded (the target's labels), model (label-free), refit, or auto: padded where labels can be "
        "padded and starts are shared, else model."
    ),
]
Aggregate = Annotated[
    str, typer.Option(help="Of frechet: weight, filter, layer, sorted, mixed, or auto: what suits the reading best.")
]
Align = Annotated[bool, typer.Option("--align", help="Of frechet: match neurons before weights are compared.")]
Names = Annotated[
    list[str] | None, typer.Argument(help="Tasks of the zoo; all when none is named.", autocompletion=task_names)
]


def register(app: typer.Typer) -> None:
    """Hang the commands into the application."""
    app.command("near")(near)
    app.command("matrix")(matrix)
    app.command("map")(map_)


def near(
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(help="A task of the zoo, or a data string.", autocompletion=task_names)
    ],
    measure: Annotated[str, typer.Option(help=MEASURE_NAMES)] = "kin",
    top: Annotated[int | None, typer.Option(min=1, help="How many kin to show.")] = None,
    trials: Trials = None,
    samples: Samples = 1000,
    reading: Reading = "auto",
    aggregate: Aggregate = "auto",
    align: Align = False,
    screen: Annotated[
        int | None, typer.Option(min=1, help="Of frechet: measure it on so many tasks only, found by screening.")
    ] = None,
    epsilon: Annotated[float, typer.Option(min=0, max=1, help="Networks below 1 − ε are named.")] = 0.2,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Kin of a target in order: of all that is solved, what is this task like?"""
    settings: Settings = context.obj
    with nk.Zoo(settings.zoo_path, create=False) as zoo:
        how = comparison.Comparison(
            measure=measure, trials=trials, samples=samples, reading=reading, aggregate=aggregate, align=align,
            epsilon=epsilon, screen=screen, device=device.device(settings.device),
        )  # fmt: skip
        found = run(zoo.near.work(target if target in zoo else task_of(target, zoo), how=how), settings).top(top)
    answer(found.to_dict(), as_json, lambda: _say_ranking(found))


def matrix(
    context: typer.Context,
    names: Names = None,
    measure: Annotated[str, typer.Option(help="As in near.")] = "frechet",
    trials: Trials = None,
    samples: Samples = 1000,
    reading: Reading = "auto",
    aggregate: Aggregate = "auto",
    align: Align = False,
    out: Annotated[
        Path | None, typer.Option(help="Also write a picture (.svg or .html) or the figures (.json).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Distances of all pairs of tasks: rows are sources, columns targets; what was measured before is kept."""
    settings: Settings = context.obj
    with nk.Zoo(settings.zoo_path, create=False) as zoo:
        found = _compared(zoo, settings, names, measure, trials, samples, reading, aggregate, align)
        if out is not None:
            _write(out, found, zoo)
    answer({**found.to_dict(), **({"out": str(out)} if out else {})}, as_json, lambda: _say_matrix(found, out))


def map_(
    context: typer.Context,
    names: Names = None,
    out: Annotated[Path, typer.Option(help="The page to write: .html, or .svg for the map alone.")] = Path("map.html"),
    measure: Annotated[str, typer.Option(help="As in near.")] = "frechet",
    trials: Trials = None,
    samples: Samples = 1000,
    reading: Reading = "auto",
    aggregate: Aggregate = "auto",
    align: Align = False,
    as_json: Json = False,
) -> None:
    """A picture of the task space: every task a point, near kin close together."""
    settings: Settings = context.obj
    with nk.Zoo(settings.zoo_path, create=False) as zoo:
        found = _compared(zoo, settings, names, measure, trials, samples, reading, aggregate, align)
        _write(out, found, zoo)
    size = out.stat().st_size
    answer(
        {**found.to_dict(), "out": str(out), "bytes": size},
        as_json,
        lambda: say(f"wrote the map of {counted(len(found.tasks), 'task')} to {escape(str(out))}, {byte_text(size)}"),
    )


def _compared(
    zoo: "nk.Zoo", settings: Settings, names: list[str] | None, measure: str, trials: int | None, samples: int,
    reading: str, aggregate: str, align: bool,
) -> "DistanceMatrix":  # fmt: skip
    """All pairs, as `matrix` and `map` ask for them."""
    how = comparison.Comparison(
        measure=measure, trials=trials, samples=samples, reading=reading, aggregate=aggregate, align=align,
        device=device.device(settings.device),
    )  # fmt: skip
    return run(zoo.matrix.work(names, how=how), settings)


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
            found, info, about=ABOUT.get(found.measure, ""), command=shlex.join(["nearkin", *sys.argv[1:]])
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
