"""`search` and `export-model`: search an architecture for a task, and export a trained network."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from typer.core import TyperCommand

import nearkin as nk
from nearkin.cli.console import (
    Restart,
    Resume,
    Settings,
    answer,
    baseline_text,
    command_text,
    escape,
    named_values,
    note_resume,
    run,
    say,
    show_options,
    table,
)
from nearkin.cli.near import Measured, task_of
from nearkin.cli.predict import solution_file
from nearkin.cli.zoo import Json, task_names
from nearkin.core.errors import require
from nearkin.core.events import Listener
from nearkin.core.files import write_durably
from nearkin.core.lazy import Lazy
from nearkin.core.text import counted, duration
from nearkin.tasks.metrics import metric_title

if TYPE_CHECKING:
    from nearkin.distance import registry as measures
    from nearkin.report import search_page
    from nearkin.run import tracking
    from nearkin.search import registry as methods
    from nearkin.search.networks import build as network
    from nearkin.solver import solution as solutions
    from nearkin.solver import solving
    from nearkin.zoo import export as outside
    from nearkin.zoo import model_file as modelfile
    from nearkin.zoo import search as architecture
else:
    measures, search_page, tracking, methods, network, solutions, solving, architecture, modelfile, outside = map(
        Lazy,
        (
            "nearkin.distance.registry",
            "nearkin.report.search_page",
            "nearkin.run.tracking",
            "nearkin.search.registry",
            "nearkin.search.networks.build",
            "nearkin.solver.solution",
            "nearkin.solver.solving",
            "nearkin.zoo.search",
            "nearkin.zoo.model_file",
            "nearkin.zoo.export",
        ),
    )

_CHANGES = {"mean": "mean", "best": "best five", "maximum": "largest"}

Track = Annotated[str | None, typer.Option(metavar="DIR", help="Also write the values for TensorBoard.")]


def _list_options(context: typer.Context, wanted: bool) -> None:
    """Print the options of `--method`, or of all methods, and exit."""
    if not wanted:
        return
    name = context.params.get("method")
    _show_methods([methods.method_named(name)] if name else list(methods.METHODS.values()))
    raise typer.Exit


def _show_methods(known: "Sequence[methods.Method]") -> None:
    """Print methods with their stopping rule, number of cells and options."""
    rows = [
        (method.name, method.summary, method.ends.replace("`", "") or "budget", str(method.num_cells))
        for method in known
    ]
    table(["method", "does", "ends", "cells"], rows)
    for method in known:
        show_options(method.name, method.options)


class MethodHelp(TyperCommand):
    """A command whose help lists the search methods and their options."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the help; only this imports the registry."""
        super().format_help(ctx, formatter)
        _show_methods(list(methods.METHODS.values()))


def search(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help="A task of the zoo, or a data string.", autocompletion=task_names)],
    method: Annotated[str, typer.Option(metavar="NAME", is_eager=True, help="Search method; see below.")] = "fuse",
    space: Annotated[
        str | None,
        typer.Option(
            help="full, nearest (the space of the nearest task's cells), a task's name, or a space such as darts "
            "(default: nearest; full for methods that do not start from cells)."
        ),
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Stop the search after this many minutes.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Stop after this many steps of the method.")] = None,
    evaluations: Annotated[int | None, typer.Option(min=1, help="Stop after this many genotypes.")] = None,
    channels: Annotated[int, typer.Option(min=2, help="Width of the cells.")] = 16,
    cells: Annotated[int | None, typer.Option(min=1, help="Cells of the network (default: by the method).")] = None,
    final_channels: Annotated[int | None, typer.Option(min=2, help="Width of the final network.")] = None,
    final_cells: Annotated[int | None, typer.Option(min=1, help="Cells of the final network.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs of the final training.")] = None,
    augment: Annotated[
        str, typer.Option(help="Augmentation of the final training, such as crop=2,flip,cutout=4.")
    ] = "",
    drop_path: Annotated[float, typer.Option(min=0, max=0.99, help="Share of edges that it drops.")] = 0.0,
    auxiliary: Annotated[
        bool, typer.Option("--auxiliary", help="Use an auxiliary head in the final training.")
    ] = False,
    dropout: Annotated[float, typer.Option(min=0, max=0.99, help="Dropout rate of the final network.")] = 0.0,
    weight_drop: Annotated[
        float, typer.Option(min=0, max=0.99, help="Share of recurrent weights that a step of it drops.")
    ] = 0.0,
    parameters: Annotated[int | None, typer.Option(min=1, help="Largest number of weights.")] = None,
    multiply_adds: Annotated[
        int | None, typer.Option(min=1, help="Largest number of multiply-adds for one input.")
    ] = None,
    latency: Annotated[
        float | None, typer.Option(help="Largest latency for one input in milliseconds, measured here.")
    ] = None,
    measure: Measured = None,
    plasticity: Annotated[
        bool,
        typer.Option(
            "--plasticity",
            help="Pull shared weights to the values that earlier architectures need; for methods that share weights.",
        ),
    ] = False,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Option of the method, see below; may be repeated."),
    ] = None,
    options: Annotated[
        bool,
        typer.Option(
            "--options", is_eager=True, callback=_list_options, help="List the options of --method, and exit."
        ),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write the trained network to this .safetensors file.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write a report to this .html file.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file of --out.")] = False,
    seed_cells: Annotated[
        bool,
        typer.Option(
            "--seed-cells/--no-seed-cells",
            help="Start from the cells of the task whose space is searched; without them, random is a control.",
        ),
    ] = True,
    restart: Restart = False,
    resume: Resume = False,
    tensorboard: Track = None,
    mlflow: Annotated[str | None, typer.Option(metavar="URI", help="Also log the values to MLflow.")] = None,
    as_json: Json = False,
) -> None:
    """Search an architecture for a task, train it from scratch and measure it.

    After an interruption the same command continues.
    """
    settings: Settings = context.obj
    note_resume(resume)
    require(overwrite or out is None or not out.exists(), f"{out} exists; choose another --out, or use --overwrite")
    require(
        out is None or out.suffix == ".safetensors", f"got --out {out}, expected a file name that ends in .safetensors"
    )
    require(
        report is None or report.suffix in (".html", ".htm"),
        f"got --report {report}, expected a file name that ends in .html",
    )
    chosen = methods.method_named(method)
    given = named_values(option)
    if plasticity:
        chosen.require_shared_weights()
        given["plasticity"] = "true"
    budget = chosen.budget(minutes, steps, evaluations)
    space = space or (architecture.FULL if chosen.kin_cells == "none" else architecture.NEAREST)
    with settings.open_zoo() as zoo, _trackers(tensorboard, mlflow, target) as listeners:
        task = zoo.task(target) if target in zoo else task_of(target, zoo)
        depth = cells or chosen.num_cells
        skeleton = network.Skeleton.of_task(task, channels=channels, num_cells=depth)
        final = network.Skeleton.of_task(
            task, channels=final_channels or channels, num_cells=final_cells or depth,
            drop_path=drop_path, auxiliary=auxiliary, dropout=dropout, weight_drop=weight_drop,
        )  # fmt: skip
        recipe = nk.Recipe.suited(task, augment=augment, **({} if epochs is None else {"epochs": epochs}))
        how = architecture.Search(
            method=method, space=space, budget=budget, skeleton=skeleton, final=final, recipe=recipe,
            measure=measure or measures.STRUCTURE,
            parameters=parameters, multiply_adds=multiply_adds, latency=latency and latency / 1000,
            options=given, seed_cells=seed_cells,
        )  # fmt: skip
        work = zoo.search.work(
            target if target in zoo else task, how, seed=settings.seed, device=settings.device, restart=restart
        )
        result = run(work, settings, *listeners)
        if out is not None:
            modelfile.saved(architecture.solved(result, task, settings.seed), out)
        if target in zoo:
            zoo.keep_architecture(target, architecture.solved(result, task, settings.seed))
    files = {name: str(file) for name, file in (("out", out), ("report", report)) if file is not None}
    if report is not None:
        command = command_text()
        write_durably(report, search_page.search_page(result, task, options=given, command=command).encode())
    facts = {"target": task.name, **result.to_dict(), **files}
    answer(facts, as_json, lambda: _show_result(facts, task, target))


def export_model(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            help="A model file, a folder or file of a solution, or a task of the zoo (the model of its solution, else "
            "its searched network, else the network of its first trial).",
            autocompletion=task_names,
        ),
    ],
    to: Annotated[str, typer.Option("--to", help="torch, onnx or python.")] = "torch",
    out: Annotated[Path | None, typer.Option(help="The file to write (default: named after the model).")] = None,
    trial: Annotated[int | None, typer.Option(min=0, help="Export the network of this trial of a task.")] = None,
    as_bytes: Annotated[
        bool, typer.Option("--bytes", help="The ONNX file takes images as bytes (uint8) instead of floats.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
    as_json: Json = False,
) -> None:
    """Export a trained model for use without nearkin: weights, ONNX, or a .py file with its weights.

    For a solution this is the selected model. onnx and python include the preprocessing: they take raw inputs and
    return probabilities, or values in the units of the data. For a table, ONNX takes the encoded numbers, and the .py
    file also encodes rows: python FILE.py new.csv prints predictions. torch is the network alone.
    """
    settings: Settings = context.obj
    require(to in outside.SUFFIXES, f"got --to {to!r}, expected one of {', '.join(outside.SUFFIXES)}")
    source = solution_file(Path(model))
    stem = (
        f"{source.stem}-exported"
        if source == Path(model) and source.is_file()
        else model.replace(" ", "-").replace("/", "-")
    )
    file = out or Path(stem).with_suffix(outside.SUFFIXES[to])
    for path in outside.files(to, file):
        require(path.resolve() != source.resolve(), f"{path} is the model itself; choose another --out")
        require(overwrite or not path.exists(), f"{path} exists; choose another --out, or use --overwrite")
    if source.is_file():
        stored = _of_file(source)
    else:
        with settings.open_zoo(create=False) as zoo:
            stored = zoo.solved(model) if trial is not None else _of_zoo(zoo, model)
    more: dict[str, Any] = {}
    if isinstance(stored, solutions.Solution):
        more = {"temperature": stored.temperature, "task": stored.task}
    solved = stored.solved if isinstance(stored, solutions.Solution) else stored
    written = outside.exported(solved, to, file, trial or 0, as_bytes=as_bytes, **more)
    facts = {"model": model, "to": to, "network": solved.network, **written}

    def show() -> None:
        files = " and ".join(f"[bold]{escape(name)}[/bold]" for name in written["files"])
        say(f"wrote {files}; largest difference of outputs {written['error']:.1g}")

    answer(facts, as_json, show)


def _of_file(file: Path) -> "nk.Solved | nk.Solution":
    """Model or solution of a file written by `train`, `search` or `solve`."""
    facts = modelfile.facts_of(file)
    return solutions.Solution.load(file) if facts.get("format") == solutions.FORMAT else modelfile.loaded(file)


def _of_zoo(zoo: "nk.Zoo", name: str) -> "nk.Solved | nk.Solution":
    """Best stored model of a task: its solution, the model of its search, or of its first trial."""
    return solving.kept_solution(zoo, name) or zoo.architecture(name) or zoo.solved(name)


@contextmanager
def _trackers(tensorboard: str | None, mlflow: str | None, name: str) -> Iterator[list[Listener]]:
    """Listeners for TensorBoard and MLflow."""
    with ExitStack() as stack:
        listeners: list[Listener] = []
        if tensorboard is not None:
            listeners.append(stack.enter_context(tracking.tensorboard(tensorboard)))
        if mlflow is not None:
            listeners.append(stack.enter_context(tracking.mlflow(mlflow, run=f"search {name}")))
        yield listeners


def _show_result(facts: dict[str, Any], task: "nk.Task", target: str) -> None:
    evaluated = counted(facts["evaluations"], "genotype") if facts["evaluations"] else "one supernet"
    start = "starting from its cells" if facts["seed_cells"] else "without its cells"
    kin = f", the space of '{escape(facts['kin'])}', {start}" if facts["kin"] else ""
    say(
        f"[bold]{escape(facts['target'])}[/bold]: {metric_title(task.form.metric)} {facts['metric']:.4f} on the "
        f"test set ({baseline_text(task.form.metric, task.majority_baseline())}), "
        f"{counted(facts['parameters'], 'weight')}, "
        f"{counted(facts['multiply_adds'], 'multiply-add')}"
    )
    say(f"  {escape(facts['genotype'])}")
    say(
        f"[dim]{escape(facts['method'])} in {escape(facts['space'])}{kin}: {evaluated}, "
        f"{duration(facts['search']['seconds'])} ({escape(facts['search']['reason'])}); trained in "
        f"{duration(facts['training']['seconds'])}[/dim]"
    )
    if forgetting := facts["forgetting"]:
        text = task.likelihood == "language"
        changes = ", ".join(
            f"{name} {forgetting[key]:+.3f}" if text else f"{name} {100 * forgetting[key]:+.2f} points"
            for key, name in _CHANGES.items()
        )
        what = f"change of the {'loss' if text else 'error'} from right after training to the end of an epoch"
        say(f"[dim]forgetting, {what}: {changes}[/dim]")
    if "report" in facts:
        say(f"Report: [bold]{escape(facts['report'])}[/bold]")
    if "out" in facts:
        say(f"[dim]nearkin export-model {escape(facts['out'])} --to python writes it as a Python file[/dim]")
