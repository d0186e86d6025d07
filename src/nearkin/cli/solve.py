"""`solve`: solve a new task, from data to report."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import nearkin as nk
from nearkin.cli.console import Restart, Settings, answer, command_text, escape, run, say, table
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
    from nearkin.solver import joining, solving
    from nearkin.solver import plan as plans
    from nearkin.solver import result as standings
    from nearkin.solver import zoo_value as values
    from nearkin.solver.solution import Solution
else:
    devices, solution_page, budgets, joining, plans, solving, standings, values = map(
        Lazy,
        (
            "nearkin.core.device",
            "nearkin.report.solution_page",
            "nearkin.core.budget",
            "nearkin.solver.joining",
            "nearkin.solver.plan",
            "nearkin.solver.solving",
            "nearkin.solver.result",
            "nearkin.solver.zoo_value",
        ),
    )

MINUTES = 5.0
NOT_OF_SOLVE = ("epochs", "steps", "seconds", "target", "patience", "validation")
"""Recipe options that `solve` sets itself or uses with another meaning."""
FILES = ("report.html", "solution.json", "solution.safetensors")


@recipe_options(without=NOT_OF_SOLVE)
def solve(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the task.")],
    data: Annotated[
        str, typer.Argument(help="Data string, such as folder:photos/ or 'mnist?classes=3,5,8&rest=drop'.")
    ],
    budget: Annotated[float | None, typer.Option(help="Total time in minutes (default: 5).")] = None,
    cpu_budget: Annotated[
        float | None,
        typer.Option(help="Total processor time in minutes; with --budget, the limit that is used up first counts."),
    ] = None,
    evaluations: Annotated[
        int | None,
        typer.Option(
            min=1, help="Cells of each search, instead of minutes; the same seed then gives the same solution."
        ),
    ] = None,
    space: Annotated[
        str, typer.Option(help="nearest, full, or a task whose cells the search starts from.")
    ] = "nearest",
    method: Annotated[str, typer.Option(help="Search method; see nearkin search --help.")] = "evolution",
    measures: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Measures of distance, separated by commas; see nearkin near --help."),
    ] = None,
    networks: Annotated[
        str, typer.Option(help="Hand-made networks that take part; 'none' for none.")
    ] = "vgg16,resnet18,densenet121",
    only: Annotated[
        str, typer.Option(help="Contenders that take part, such as kin-search,finetune,svm (default: all).")
    ] = "",
    compare_all: Annotated[
        bool, typer.Option("--compare-all", help="Give every contender the same time, as in the paper.")
    ] = False,
    measure_zoo_value: Annotated[
        bool,
        typer.Option(
            "--measure-zoo-value",
            help="Run once more with an empty zoo after the answer, to measure what the zoo brought; doubles the time.",
        ),
    ] = False,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs of every network (default: by the number of samples).")
    ] = None,
    width: Annotated[
        float | None,
        typer.Option(help="Factor on the channels of hand-made networks (default: as wide as time allows)."),
    ] = None,
    metric: Annotated[
        str,
        typer.Option(
            help="Metric by which the answer is selected: accuracy, balanced-accuracy, f1, auc, log-loss for classes, "
            "r2, mae, rmse for values (default: accuracy or r2)."
        ),
    ] = "",
    class_weight: Annotated[
        str | None,
        typer.Option(
            metavar="WEIGHTS",
            help="Weights of the classes in training: balanced, or NAME=WEIGHT,… (default: all 1).",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for report and solution (default: NAME-solution).")] = None,
    restart: Restart = False,
    as_json: Json = False,
    *,
    recipe: dict[str, Any],
) -> None:
    """Solve a task: find related tasks, train and compare models within the time, write a report.

    The task is added to the zoo. After an interruption the same command continues.
    """
    settings: Settings = context.obj
    wall_start, processor_start = settings.started
    require(bool(name.strip()), "got an empty name; give the task a name")
    limited = budget is not None or cpu_budget is not None or evaluations is not None
    limits = budgets.Budget(minutes=budget if limited else MINUTES, cpu_minutes=cpu_budget, evaluations=evaluations)
    plan = plans.Plan(
        budget=limits,
        elapsed=limits.used(time.perf_counter() - wall_start, time.process_time() - processor_start),
        measures=tuple(measures.split(",")) if measures else plans.Plan.measures,
        space=space,
        method=method,
        hand_made=() if networks in ("none", "") else tuple(networks.split(",")),
        only=tuple(only.split(",")) if only else (),
        compare_all=compare_all,
        measure_zoo_value=measure_zoo_value,
        epochs=epochs,
        training=recipe,
        width=width,
        class_weight=class_weight,
        metric=metric,
        seed=settings.seed,
        device=devices.device(settings.device),
        command=command_text(),
    )
    folder = out or Path(f"{_slug(name)}-solution")
    require(not folder.is_file(), f"{folder} is a file, expected a folder; choose another --out")
    task = nk.task(data, name=name)  # before a zoo is created: bad data changes nothing
    plans.require_answerable(task, plan.metric, plan.class_weight)
    with settings.open_zoo() as zoo:
        first = replace(plan, join=plan.joins)
        solution = run(solving.solve.work(task, zoo, plan=first, restart=restart), settings)
        facts = written(solution, folder)
        if plan.joins_later:  # the answer is there; an interruption loses nothing of it
            run(joining.add_solved.work(solution, task, zoo, plan), settings)
    answer(facts, as_json, lambda: show(solution, folder))


def written(solution: "Solution", folder: Path) -> dict[str, Any]:
    """Write report, values and model to a folder; returns the answer as JSON values."""
    page, figures, model = (folder / name for name in FILES)
    facts = {**solution.to_dict(), "report": str(page), "solution": str(model)}
    folder.mkdir(parents=True, exist_ok=True)
    write_durably(page, solution_page.solution_page(solution).encode())
    write_durably(figures, json.dumps(facts, indent=1, allow_nan=False).encode())
    solution.save(model)
    return facts


def show(solution: "Solution", folder: Path) -> None:
    """Print the answer: the sentence, the nearest tasks, all results, the path of the report."""
    say(f"\n[bold]{escape(solution.sentence)}[/bold]\n")
    for line in _kin_lines(solution):
        say(line)
    _contest(standings.ordered(solution.standings), solution)
    for result in solution.standings:
        if result.refused:
            say(f"[dim]{escape(result.title)} was left out: {escape(result.refused)}[/dim]")
    if solution.relations.nearest:
        say(f"\n{escape(' '.join(values.value_sentences(solution)))}")
    report = folder / FILES[0]
    say(f"\nReport: [bold]{escape(str(report))}[/bold]")


def _kin_lines(solution: "Solution") -> list[str]:
    relations = solution.relations
    nearest = relations.nearest
    if not nearest:
        return [f"[dim]{escape(relations.why)}[/dim]\n"]
    by = ", ".join(f"'{escape(name)}' by {measure}" for measure, name in nearest.items())
    return [f"Nearest task: {by}; {escape(relations.why)}.\n"]


def _contest(ranked: "Sequence[standings.Result]", solution: "Solution") -> None:
    metric = solution.quality.title
    rows = [
        (
            "→" if result.name == solution.chosen else "",
            result.title,
            f"{result.validation:.4f}",
            MISSING if (test := solution.finals.get(result.name, result.test)) is None else f"{test:.4f}",
            MISSING if result.samples is None else counted(result.samples) + ("*" if result.starved else ""),
            counted(result.parameters),
            counted(result.multiply_adds),
            f"{result.seconds:.1f}",
        )
        for result in ranked
    ]
    head = ["", "contender", f"validation {metric}", "test", "samples", "parameters", "multiply-adds", "s"]
    table(head, rows, right=head[2:])
    finals = ", ".join(
        f"{result.title} {solution.finals[result.name]:.4f}" for result in ranked if result.name in solution.finals
    )
    say(
        f"[dim]Selected on validation {metric}; the test set was not used. Test {metric} after the final training on "
        f"all training data: {escape(finals)}.[/dim]"
    )
    if any(result.starved for result in ranked):
        say("[dim]* fewer samples or steps than it needs: its result says little about its kind[/dim]")


def _slug(name: str) -> str:
    """The name as a folder name."""
    slug = "".join(sign if sign.isalnum() or sign in "-_." else "-" for sign in name).strip("-.")
    return slug or "task"
