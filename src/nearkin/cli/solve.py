"""`solve`: a new task from end to end, from the command line."""

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import nearkin as nk
from nearkin.cli.console import Restart, Settings, answer, escape, run, say, table
from nearkin.cli.recipe import recipe_options
from nearkin.cli.zoo import Json
from nearkin.core.errors import require
from nearkin.core.files import write_durably
from nearkin.core.lazy import Lazy
from nearkin.core.text import MISSING, counted

if TYPE_CHECKING:
    from nearkin.core import budget as budgets
    from nearkin.core import device as devices
    from nearkin.report import solution_page
    from nearkin.solver import plan as plans
    from nearkin.solver import result as standings
    from nearkin.solver import solving
    from nearkin.solver.solution import Solution
else:
    devices, solution_page, budgets, plans, solving, standings = map(
        Lazy,
        (
            "nearkin.core.device",
            "nearkin.report.solution_page",
            "nearkin.core.budget",
            "nearkin.solver.plan",
            "nearkin.solver.solving",
            "nearkin.solver.result",
        ),
    )

MINUTES = 5.0
NOT_OF_SOLVE = ("epochs", "steps", "target", "patience", "validation")
"""Recipe options that `solve` decides, or has under a meaning of its own."""
FILES = ("report.html", "solution.json", "solution.safetensors")


def register(app: typer.Typer) -> None:
    """Hang the command into the application."""
    app.command("solve")(solve)


@recipe_options(without=NOT_OF_SOLVE)
def solve(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="What to call the task.")],
    data: Annotated[
        str, typer.Argument(help="Data string, such as folder:photos/ or 'mnist?classes=3,5,8&rest=drop'.")
    ],
    budget: Annotated[float | None, typer.Option(help="Minutes of the whole; 5 where nothing is said.")] = None,
    evaluations: Annotated[
        int | None,
        typer.Option(min=1, help="Cells of each search, instead of minutes: the same seed, the same answer."),
    ] = None,
    space: Annotated[str, typer.Option(help="nearest, full, or a task whose cells to begin with.")] = "nearest",
    method: Annotated[
        str, typer.Option(help="How architectures are searched; see nearkin search --help.")
    ] = "evolution",
    measures: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Measures of kin, commas between; see nearkin near --help."),
    ] = None,
    networks: Annotated[
        str, typer.Option(help="Hand-made networks of the contest; 'none' for none.")
    ] = "vgg16,resnet18,densenet121",
    only: Annotated[
        str, typer.Option(help="Who takes part in the contest, such as kin-search,finetune,svm; all by default.")
    ] = "",
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Of every network's training; by default what suits the data.")
    ] = None,
    width: Annotated[
        float | None,
        typer.Option(help="Factor on the channels of the hand-made networks; by default as wide as the time allows."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for report and solution; NAME-solution where nothing is said.")
    ] = None,
    restart: Restart = False,
    as_json: Json = False,
    *,
    recipe: dict[str, Any],
) -> None:
    """Solve a task: its kin, a search that begins with their cells, a contest under equal budget, one report.

    The task joins the zoo. Interrupted, the same command continues where it stopped.
    """
    settings: Settings = context.obj
    require(bool(name.strip()), "a task needs a name, got an empty one; say what to call it")
    minutes = budget if budget is not None or evaluations is not None else MINUTES
    plan = plans.Plan(
        budget=budgets.Budget(minutes=minutes, evaluations=evaluations),
        measures=tuple(measures.split(",")) if measures else plans.Plan.measures,
        space=space,
        method=method,
        hand_made=() if networks in ("none", "") else tuple(networks.split(",")),
        only=tuple(only.split(",")) if only else (),
        epochs=epochs,
        training=recipe,
        width=width,
        seed=settings.seed,
        device=devices.device(settings.device),
        command=shlex.join(["nearkin", *sys.argv[1:]]),
    )
    folder = out or Path(f"{_slug(name)}-solution")
    require(not folder.is_file(), f"{folder} is a file; give a folder with --out")
    task = nk.task(data, name=name)  # before a zoo is made: bad data leaves no trace
    plans.require_answerable(task)
    with nk.Zoo(settings.zoo_path) as zoo:
        solution = run(solving.solve.work(task, zoo, plan=plan, restart=restart), settings)
    facts = written(solution, folder)
    answer(facts, as_json, lambda: show(solution, folder))


def written(solution: "Solution", folder: Path) -> dict[str, Any]:
    """Write report, figures and model into a folder; the answer as plain values, with the report's path."""
    page, figures, model = (folder / name for name in FILES)
    facts = {**solution.to_dict(), "report": str(page), "solution": str(model)}
    folder.mkdir(parents=True, exist_ok=True)
    write_durably(page, solution_page.solution_page(solution).encode())
    write_durably(figures, json.dumps(facts, indent=1, allow_nan=False).encode())
    solution.save(model)
    return facts


def show(solution: "Solution", folder: Path) -> None:
    """The answer for people: the sentence, who is kin, everything that was tried, where to read more."""
    say(f"\n[bold]{escape(solution.sentence)}[/bold]\n")
    for line in _kin_lines(solution):
        say(line)
    _contest(standings.ordered(solution.standings), solution)
    for one in solution.standings:
        if one.refused:
            say(f"[dim]{escape(one.title)} took no part: {escape(one.refused)}[/dim]")
    report = folder / FILES[0]
    say(f"\nThe report: [bold]{escape(str(report))}[/bold]")


def _kin_lines(solution: "Solution") -> list[str]:
    relations = solution.relations
    nearest = relations.nearest
    if not nearest:
        return [f"[dim]{escape(relations.why)}[/dim]\n"]
    by = ", ".join(f"{escape(name)} by {measure}" for measure, name in nearest.items())
    return [f"Nearest kin: {by}; {escape(relations.why)}.\n"]


def _contest(ranked: "Sequence[standings.Result]", solution: "Solution") -> None:
    metric = solution.quality.title
    rows = [
        (
            "→" if one.name == solution.chosen else "",
            one.title,
            f"{one.validation:.4f}",
            f"{one.test:.4f}",
            MISSING if one.samples is None else counted(one.samples),
            counted(one.parameters),
            counted(one.multiply_adds),
            f"{one.seconds:.1f}",
        )
        for one in ranked
    ]
    head = ["", "tried", f"{metric}, choice", "test", "samples", "parameters", "multiply-adds", "s"]
    table(head, rows, right=head[2:])
    again = ", ".join(f"{one.title} {solution.finals[one.name]:.4f}" for one in ranked if one.name in solution.finals)
    say(
        f"[dim]chosen by the column choice; the test part decided nothing. Trained again with the validation data: "
        f"{escape(again)} on the test part[/dim]"
    )


def _slug(name: str) -> str:
    """The name as a folder's."""
    kept = "".join(sign if sign.isalnum() or sign in "-_." else "-" for sign in name).strip("-.")
    return kept or "task"
