"""`demo`: a small zoo of digit tasks, built from nothing, and a new task solved beside it: the main job, small."""

import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import nearkin as nk
from nearkin.cli.console import Restart, Settings, answer, run, say
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
    ("zero", "digits?detect=0", "is it a zero?"),
    ("six", "digits?detect=6", "is it a six?"),
    ("even", "digits?parity", "even or odd?"),
    ("some", "digits?classes=0,1,2,3&rest=other", "0, 1, 2, 3, or another digit?"),
    ("high", "digits?classes=5,6,7,8,9&rest=drop", "5, 6, 7, 8 or 9?"),
    ("all", "digits", "which of the ten digits?"),
)
TARGET = ("round", "digits?classes=0,6,8,9&rest=other", "a round digit, 0, 6, 8 or 9, or another?")
TRIALS = 2
EPOCHS = 20
CELLS = 6  # evaluations of each known task's own search
MINUTES = 0.9  # of the new task
ONLY: tuple[str, ...] = ()  # of its contenders; all of them


def register(app: typer.Typer) -> None:
    """Hang the command into the application."""
    app.command("demo")(demo)


def demo(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder for the zoo, the report and the solution.")] = Path("nearkin-demo"),
    restart: Restart = False,
    as_json: Json = False,
) -> None:
    """Build a zoo of six digit tasks from nothing and solve a seventh; interrupted, the same command continues."""
    settings: Settings = context.obj
    start = time.perf_counter()
    talk = say if not as_json else _silent
    talk(
        "[bold]nearkin keeps a zoo of solved tasks.[/bold] Here is one in the making: six questions about the same "
        "1,797\nhandwritten digits (8×8 pixels, from scikit-learn). Each is answered twice by a small network, whose\n"
        "Fisher information says which weights matter; and a few small architectures (cells) are tried on it.\n"
    )
    with nk.Zoo(out / "zoo") as zoo:
        if restart:
            _discard(zoo)
        for name, data, question in TASKS:
            talk(_known(zoo, name, nk.task(data, name=name), question, settings))
        name, data, question = TARGET
        talk(
            f"\n[bold]Now a new task comes:[/bold] {name}, {question} Whose kin is it?\n"
            f"nearkin compares Fisher information, begins a search with the nearest kin's cells, and holds what it\n"
            f"finds against what a person would try first, each with the same time; {duration(60 * MINUTES)} in all."
        )
        plan = plans.Plan(
            budget=budgets.Budget(minutes=MINUTES), only=ONLY, seed=settings.seed,
            device=devices.device(settings.device),
            command=shlex.join(["nearkin", *sys.argv[1:]]),
        )  # fmt: skip
        solution = run(solving.solve.work(nk.task(data, name=name), zoo, plan=plan), settings)
        records = zoo.records()
    facts: dict[str, Any] = {
        **written(solution, out),
        "zoo": str(out / "zoo"),
        "tasks": [record.name for record in records],
        "demo_seconds": time.perf_counter() - start,
    }

    def tell() -> None:
        show(solution, out)
        say(
            f"The new task is the zoo's seventh now, so the next one has one more kin. All of it took "
            f"{duration(facts['demo_seconds'])}.\n"
            f"Look closer:        nearkin --zoo {out / 'zoo'} show {TARGET[0]}\n"
            f"A task of your own: nearkin solve mine folder:photos/   (docs/guides/solve.md)"
        )

    answer(facts, as_json, tell)


def _discard(zoo: "nk.Zoo") -> None:
    """Remove the demonstration's own tasks, and all unfinished work of its zoo."""
    for name in (*(name for name, *_ in TASKS), TARGET[0]):
        if name in zoo:
            zoo.remove(name)
    for folder in (zoo.catalogue.work, zoo.catalogue.stages):
        shutil.rmtree(folder, ignore_errors=True)


def _known(zoo: "nk.Zoo", name: str, task: "nk.Task", question: str, settings: Settings) -> str:
    """One task of the zoo, solved with its cells if it is not there yet; a line about it."""
    lead = f"  {name:5s} {question:31s}"
    if name in zoo and zoo.cells(name) is not None:
        return f"{lead}is in the zoo already"
    if name not in zoo:
        recipe = nk.Recipe.suited(task, epochs=EPOCHS)
        run(
            zoo.add.work(task, "lenet", trials=TRIALS, recipe=recipe, seed=settings.seed, device=settings.device),
            settings,
        )
    skeleton, budget = contenders.search_skeleton(task), budgets.Budget(evaluations=CELLS)
    found = run(zoo.search_cells.work(name, skeleton, budget, seed=settings.seed), settings)
    record = zoo.record(name)
    return (
        f"{lead}{record.metric:.1%} right of {len(task.test)} unseen (blind guess {task.majority_baseline():.1%}); "
        f"{counted(len(found.found), 'cell')} kept"
    )


def _silent(text: str) -> None:
    """With `--json` the story is not told."""
