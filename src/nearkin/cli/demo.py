"""`demo`: a small zoo of digit tasks, built from nothing on data that ships with the packages."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

import nearkin as nk
from nearkin.cli.console import Settings, answer, run, say, table
from nearkin.cli.zoo import Json

TASKS = (
    ("zero", "digits?detect=0", "is it a zero?"),
    ("six", "digits?detect=6", "is it a six?"),
    ("some", "digits?classes=0,1,2,3&rest=other", "0, 1, 2, 3, or another digit?"),
    ("all", "digits", "which of the ten digits?"),
)


def register(app: typer.Typer) -> None:
    """Hang the command into the application."""
    app.command("demo")(demo)


def demo(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder for the demonstration's zoo.")] = Path("nearkin-demo"),
    as_json: Json = False,
) -> None:
    """Build a zoo of four digit tasks from nothing and show it; run again, it goes on where it was."""
    settings: Settings = context.obj
    start = time.perf_counter()
    talk = say if not as_json else _silent
    talk(
        "[bold]nearkin keeps a zoo of solved tasks.[/bold] Here is one in the making: four questions about the same "
        "1,797\nhandwritten digits (8×8 pixels, from scikit-learn), each answered twice by a small network.\n"
    )
    with nk.Zoo(out / "zoo") as zoo:
        for name, data, question in TASKS:
            if name in zoo:
                talk(f"  {name:5s} {question:31s}is in the zoo already")
                continue
            task = nk.task(data, name=name)
            record = run(zoo.adding(task, "lenet", trials=2, seed=settings.seed, device=settings.device), settings)
            talk(
                f"  {name:5s} {question:31s}{record.metric:.1%} right of {len(task.test)} unseen digits "
                f"(blind guess {task.guess():.1%}), {record.seconds:.1f} s"
            )
        records = zoo.catalogue.tasks()
    seconds = time.perf_counter() - start
    facts: dict[str, Any] = {
        "zoo": str(out / "zoo"),
        "tasks": [
            {
                "name": record.name,
                "data": record.data,
                "network": record.network,
                "metric": record.metric,
                "epsilon": record.epsilon,
                "trials": record.trials,
                "seconds": record.seconds,
            }
            for record in records
        ],
        "seconds": seconds,
    }

    def show() -> None:
        say(f"\n[bold]The zoo[/bold] in {out / 'zoo'}, after {seconds:.1f} s:\n")
        table(
            ["name", "data", "network", "accuracy", "ε", "weights"],
            [(r.name, r.data, r.network, f"{r.metric:.4f}", f"{r.epsilon:.4f}", f"{r.parameters:,}") for r in records],
            right=["accuracy", "ε", "weights"],
        )
        say(
            f"\nKept of each: the weights and the Fisher information of both trials. Networks of one trial start from\n"
            f"the same weights in every task, which is what lets their Fisher information be compared.\n"
            f"Look closer:             nearkin --zoo {out / 'zoo'} show some\n"
            f"Add a task of your own:  nearkin add mine npz:my.npz   (docs/guides/own-data.md)"
        )

    answer(facts, as_json, show)


def _silent(text: str) -> None:
    """With `--json` the story is not told."""
