"""`demo`: build a small zoo of digit tasks and solve a new task with it."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import nearkin as nk
from nearkin.cli.console import Restart, Settings, answer, command_text, run, say
from nearkin.cli.solve import show, written
from nearkin.cli.zoo import Json
from nearkin.core.lazy import Lazy
from nearkin.core.text import counted, duration

if TYPE_CHECKING:
    from nearkin.core import budget as budgets
    from nearkin.core import device as devices
    from nearkin.solver import contenders, solving
    from nearkin.solver import plan as plans
else:
    devices, budgets, contenders, plans, solving = map(
        Lazy,
        (
            "nearkin.core.device",
            "nearkin.core.budget",
            "nearkin.solver.contenders",
            "nearkin.solver.plan",
            "nearkin.solver.solving",
        ),
    )

TASKS = (
    ("zero", "digits?part=1/2&detect=0", "is it a zero?"),
    ("six", "digits?part=1/2&detect=6", "is it a six?"),
    ("even", "digits?part=1/2&parity", "even or odd?"),
    ("some", "digits?part=1/2&classes=0,1,2,3&rest=other", "0, 1, 2, 3, or another digit?"),
    ("high", "digits?part=1/2&classes=5,6,7,8,9&rest=drop", "5, 6, 7, 8 or 9?"),
    ("all", "digits?part=1/2", "which of the ten digits?"),
)  # the new task has the other half: networks that know its validation samples would not be used
TARGET = ("round", "digits?part=2/2&classes=0,6,8,9&rest=other", "a round digit, 0, 6, 8 or 9, or another?")
TRIALS = 2
EPOCHS = 20
CELLS = 6  # evaluations of the cell search of each task
MINUTES = 0.9  # for the new task
ONLY: tuple[str, ...] = ()  # contenders of the new task; empty: all


def demo(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder for the zoo, the report and the solution.")] = Path("nearkin-demo"),
    restart: Restart = False,
    as_json: Json = False,
) -> None:
    """Build a zoo of six digit tasks and solve a seventh; after an interruption the same command continues."""
    settings: Settings = context.obj
    start = time.perf_counter()
    talk = say if not as_json else lambda _: None
    talk(
        "[bold]nearkin keeps a zoo of solved tasks.[/bold] This demo builds one: six questions about half of\n"
        "scikit-learn's training digits (8×8 pixels). For each, two small networks are trained, their Fisher\n"
        "information is stored (which weights matter), and a few small architectures (cells) are compared.\n"
    )
    with nk.Zoo(out / "zoo") as zoo:
        if restart:
            _discard(zoo)
        for name, data, question in TASKS:
            talk(_known(zoo, name, nk.task(data, name=name), question, settings))
        name, data, question = TARGET
        talk(
            f"\n[bold]A new task:[/bold] '{name}', {question} Which solved tasks are related to it?\n"
            f"nearkin ranks the six tasks, starts an architecture search from the cells of the nearest, and compares\n"
            f"the result with standard models. Each gets the same time, {duration(60 * MINUTES)} in total."
        )
        plan = plans.Plan(
            budget=budgets.Budget(minutes=MINUTES), only=ONLY, compare_all=True, seed=settings.seed,
            device=devices.device(settings.device),
            command=command_text(),
        )  # fmt: skip
        solution = run(solving.solve.work(nk.task(data, name=name), zoo, plan=plan), settings)
        records = zoo.records()
    facts: dict[str, Any] = {
        **written(solution, out),
        "zoo": str(out / "zoo"),
        "tasks": [record.name for record in records],
        "demo_seconds": time.perf_counter() - start,
    }

    def show_answer() -> None:
        show(solution, out)
        say(
            f"The new task is now in the zoo too. The whole demo took {duration(facts['demo_seconds'])}.\n"
            f"Details:        nearkin --zoo {out / 'zoo'} show {TARGET[0]}\n"
            f"Your own data:  nearkin solve mine folder:photos/   (docs/guides/solve.md)"
        )

    answer(facts, as_json, show_answer)


def _discard(zoo: "nk.Zoo") -> None:
    """Remove the tasks of the demo and all unfinished work of its zoo."""
    for name in (*(name for name, *_ in TASKS), TARGET[0]):
        if name in zoo:
            zoo.remove(name)
    for files in (zoo.catalogue.work, zoo.catalogue.stages):
        files.clear()


def _known(zoo: "nk.Zoo", name: str, task: "nk.Task", question: str, settings: Settings) -> str:
    """Add one task with its cells to the zoo if it is missing; returns a line about it."""
    lead = f"  {name:5s} {question:31s}"
    if name in zoo and zoo.cells(name) is not None:
        return f"{lead}is already in the zoo"
    if name not in zoo:
        recipe = nk.Recipe.suited(task, epochs=EPOCHS)
        run(
            zoo.add.work(task, "lenet", trials=TRIALS, recipe=recipe, seed=settings.seed, device=settings.device),
            settings,
        )
    skeleton, budget = contenders.search_skeleton(task), budgets.Budget(evaluations=CELLS)
    cells = run(zoo.search_cells.work(name, skeleton, budget, seed=settings.seed), settings)
    record = zoo.record(name)
    return (
        f"{lead}{record.metric:.1%} of {len(task.test)} test samples correct "
        f"(majority class {task.majority_baseline():.1%}); "
        f"{counted(len(cells.found), 'cell')} stored"
    )
