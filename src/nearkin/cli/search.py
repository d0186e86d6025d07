"""`search` and `export-model`: an architecture for a task, and a network out of the house."""

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
    escape,
    named_values,
    note_resume,
    run,
    say,
    show_options,
    table,
)
from nearkin.cli.kin import Measured, task_of
from nearkin.cli.zoo import Json, task_names
from nearkin.core.errors import require
from nearkin.core.events import Listener
from nearkin.core.lazy import Lazy
from nearkin.core.text import counted, duration
from nearkin.tasks.metrics import metric_title

if TYPE_CHECKING:
    from nearkin.core import device as devices
    from nearkin.distance import registry as measures
    from nearkin.run import tracking
    from nearkin.search import registry as methods
    from nearkin.search.networks import build as network
    from nearkin.solver import solution as solutions
    from nearkin.solver import solving
    from nearkin.zoo import export as outside
    from nearkin.zoo import model_file as modelfile
    from nearkin.zoo import search as architecture
else:
    devices, measures, tracking, methods, network, solutions, solving, architecture, modelfile, outside = map(
        Lazy,
        (
            "nearkin.core.device",
            "nearkin.distance.registry",
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

Track = Annotated[str | None, typer.Option(metavar="DIR", help="Also write the figures for TensorBoard.")]


def register(app: typer.Typer) -> None:
    """Hang the commands into the application."""
    app.command("search", cls=MethodHelp)(search)
    app.command("export-model")(export_model)


def _list_options(context: typer.Context, wanted: bool) -> None:
    """Print the options of the method that `--method` names, of all methods where it names none, and exit."""
    if not wanted:
        return
    name = context.params.get("method")
    _show_methods([methods.method_named(name)] if name else list(methods.METHODS.values()))
    raise typer.Exit


def _show_methods(known: "Sequence[methods.Method]") -> None:
    """Methods with what ends them, the depth they compare genotypes in, and their options."""
    rows = [(one.name, one.summary, one.ends.replace("`", "") or "budget", str(one.num_cells)) for one in known]
    table(["method", "does", "ends", "cells"], rows)
    for method in known:
        show_options(method.name, method.options)


class MethodHelp(TyperCommand):
    """A command whose help ends with the list of search methods and their options."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show the help; the registry is imported for it, and for nothing else at the start of a command."""
        super().format_help(ctx, formatter)
        _show_methods(list(methods.METHODS.values()))


def search(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help="A task of the zoo, or a data string.", autocompletion=task_names)],
    method: Annotated[str, typer.Option(metavar="NAME", is_eager=True, help="How to search; see below.")] = "fuse",
    space: Annotated[
        str,
        typer.Option(
            help="full, nearest (what the cells of the nearest task used), a task's name, or a space such as darts."
        ),
    ] = "nearest",
    minutes: Annotated[float | None, typer.Option(help="Stop searching after so many.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Stop after so many steps of the method.")] = None,
    evaluations: Annotated[int | None, typer.Option(min=1, help="Stop after so many genotypes.")] = None,
    channels: Annotated[int, typer.Option(min=2, help="Width of the cells.")] = 16,
    cells: Annotated[
        int | None, typer.Option(min=1, help="Cells of the network; by default what suits the method.")
    ] = None,
    final_channels: Annotated[int | None, typer.Option(min=2, help="Width of the network that is trained.")] = None,
    final_cells: Annotated[int | None, typer.Option(min=1, help="Cells of the network that is trained.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Of the last training.")] = None,
    augment: Annotated[str, typer.Option(help="Of the last training, such as crop=2,flip,cutout=4.")] = "",
    drop_path: Annotated[float, typer.Option(min=0, max=0.99, help="Of the last training.")] = 0.0,
    auxiliary: Annotated[bool, typer.Option("--auxiliary", help="A second head in the last training.")] = False,
    parameters: Annotated[int | None, typer.Option(min=1, help="Most weights that a network may have.")] = None,
    multiply_adds: Annotated[int | None, typer.Option(min=1, help="Most multiply-adds for one input.")] = None,
    latency: Annotated[float | None, typer.Option(help="Most milliseconds for one input, measured here.")] = None,
    measure: Measured = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Of the method, see below; may be repeated."),
    ] = None,
    options: Annotated[
        bool,
        typer.Option(
            "--options", is_eager=True, callback=_list_options, help="List the options of --method, and exit."
        ),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write the trained network to this .safetensors file.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace that file if it is there.")] = False,
    seed_cells: Annotated[
        bool,
        typer.Option(
            "--seed-cells/--no-seed-cells",
            help="Begin with the cells of the kin in whose space it searches; without them, random is a pure control.",
        ),
    ] = True,
    restart: Restart = False,
    resume: Resume = False,
    tensorboard: Track = None,
    mlflow: Annotated[str | None, typer.Option(metavar="URI", help="Also log the figures to MLflow.")] = None,
    as_json: Json = False,
) -> None:
    """Search an architecture for a task, train it from scratch and say what it is worth.

    Interrupted, the same command continues where it stopped.
    """
    settings: Settings = context.obj
    note_resume(resume)
    require(
        overwrite or out is None or not out.exists(), f"{out} is there already; choose another --out, or --overwrite"
    )
    require(out is None or out.suffix == ".safetensors", f"a model file ends in .safetensors, got {out}; name it so")
    chosen = methods.method_named(method)
    budget = chosen.budget(minutes, steps, evaluations)
    with nk.Zoo(settings.zoo_path) as zoo, _trackers(tensorboard, mlflow, target) as listeners:
        task = zoo.task(target) if target in zoo else task_of(target, zoo)
        depth = cells or chosen.num_cells
        skeleton = network.Skeleton.of_task(task, channels=channels, num_cells=depth)
        final = network.Skeleton.of_task(
            task, channels=final_channels or channels, num_cells=final_cells or depth,
            drop_path=drop_path, auxiliary=auxiliary,
        )  # fmt: skip
        recipe = nk.Recipe.suited(task, augment=augment, **({} if epochs is None else {"epochs": epochs}))
        how = architecture.Search(
            method=method, space=space, budget=budget, skeleton=skeleton, final=final, recipe=recipe,
            measure=measure or measures.STRUCTURE,
            parameters=parameters, multiply_adds=multiply_adds, latency=latency and latency / 1000,
            options=named_values(option), seed_cells=seed_cells,
        )  # fmt: skip
        work = zoo.search.work(
            target if target in zoo else task, how, seed=settings.seed, device=settings.device, restart=restart
        )
        found = run(work, settings, *listeners)
        if out is not None:
            modelfile.saved(architecture.solved(found, task, settings.seed), out)
        if target in zoo:
            zoo.keep_architecture(target, architecture.solved(found, task, settings.seed))
    facts = {"target": task.name, **found.to_dict(), **({"out": str(out)} if out else {})}
    answer(facts, as_json, lambda: _say_found(facts, task, target))


def export_model(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            help="A model file, a solution file, or a task of the zoo: the chosen model of its solution, else its "
            "searched network, else that of a trial.",
            autocompletion=task_names,
        ),
    ],
    to: Annotated[str, typer.Option("--to", help="torch, onnx or python.")] = "torch",
    out: Annotated[Path | None, typer.Option(help="The file to write; named after the model when not given.")] = None,
    trial: Annotated[
        int | None, typer.Option(min=0, help="This trial's network of a task of the zoo, whatever else it has.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it is there.")] = False,
    as_json: Json = False,
) -> None:
    """Write a trained network for use without nearkin: weights, ONNX, or a .py file with its weights beside it.

    Of a solution it is the chosen model, and its outputs are class scores before the solution's temperature: divide
    them by it (solution.json) to have the same probabilities; the order of the classes does not change.
    """
    settings: Settings = context.obj
    require(to in outside.SUFFIXES, f"a model is written to {', '.join(outside.SUFFIXES)}; got {to!r}")
    given = Path(model)
    stem = f"{given.stem}-exported" if given.is_file() else model.replace(" ", "-").replace("/", "-")
    file = out or Path(stem).with_suffix(outside.SUFFIXES[to])
    for one in outside.files(to, file):
        require(one.resolve() != given.resolve(), f"{one} is the model itself; choose another --out")
        require(overwrite or not one.exists(), f"{one} is there already; choose another --out, or say --overwrite")
    if given.is_file():
        solved = _of_file(given)
    else:
        with nk.Zoo(settings.zoo_path, create=False) as zoo:
            solved = zoo.solved(model) if trial is not None else _of_zoo(zoo, model)
    written = outside.exported(solved, to, file, trial or 0)
    facts = {"model": model, "to": to, "network": solved.network, **written}

    def show() -> None:
        files = " and ".join(f"[bold]{escape(name)}[/bold]" for name in written["files"])
        say(f"wrote {files}; outputs agree with ours to {written['error']:.1g}")

    answer(facts, as_json, show)


def _of_file(file: Path) -> "nk.Solved":
    """The model of a file that `train`, `search` or `solve` wrote."""
    facts = modelfile.facts_of(file)
    return solutions.Solution.load(file).solved if facts.get("format") == solutions.FORMAT else modelfile.loaded(file)


def _of_zoo(zoo: "nk.Zoo", name: str) -> "nk.Solved":
    """The best that the zoo has of a task: what solve chose, what search found, its first trial."""
    solution = solving.kept_solution(zoo, name)
    return solution.solved if solution is not None else zoo.architecture(name) or zoo.solved(name)


@contextmanager
def _trackers(tensorboard: str | None, mlflow: str | None, name: str) -> Iterator[list[Listener]]:
    """Listeners that write the figures elsewhere, closed at the end."""
    with ExitStack() as stack:
        found: list[Listener] = []
        if tensorboard is not None:
            found.append(stack.enter_context(tracking.tensorboard(tensorboard)))
        if mlflow is not None:
            found.append(stack.enter_context(tracking.mlflow(mlflow, run=f"search {name}")))
        yield found


def _say_found(facts: dict[str, Any], task: "nk.Task", target: str) -> None:
    asked = counted(facts["evaluations"], "genotype") if facts["evaluations"] else "one supernet"
    begun = "beginning with its cells" if facts["seed_cells"] else "without its own cells"
    kin = f", the space of {escape(facts['kin'])}, {begun}" if facts["kin"] else ""
    say(
        f"[bold]{escape(facts['target'])}[/bold]: {metric_title(task.form.metric)} {facts['metric']:.4f} on the "
        f"test part (a blind guess: {task.majority_baseline():.4f}), {counted(facts['parameters'], 'weight')}, "
        f"{counted(facts['multiply_adds'], 'multiply-add')}"
    )
    say(f"  {escape(facts['genotype'])}")
    say(
        f"[dim]{escape(facts['method'])} in {escape(facts['space'])}{kin}: {asked}, "
        f"{duration(facts['search']['seconds'])} ({escape(facts['search']['reason'])}); trained in "
        f"{duration(facts['training']['seconds'])}[/dim]"
    )
    if "out" in facts:
        say(f"[dim]nearkin export-model {escape(facts['out'])} --to python writes it as a file of its own[/dim]")
