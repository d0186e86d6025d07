"""`transfer`: another task from few labels, in closed form, from the command line."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

import nearkin as nk
from nearkin.cli.console import Settings, answer, escape, run, say, table
from nearkin.cli.kin import task_of
from nearkin.cli.zoo import Json, task_names
from nearkin.core.errors import require
from nearkin.core.files import write_durably
from nearkin.core.lazy import Lazy
from nearkin.core.text import counted, duration

if TYPE_CHECKING:
    from nearkin.report import transfer_page
    from nearkin.run import checkpoints, stages
    from nearkin.tasks import metrics
    from nearkin.zoo import transfer as transferring
else:
    transfer_page, checkpoints, stages, metrics, transferring = map(
        Lazy,
        (
            "nearkin.report.transfer_page",
            "nearkin.run.checkpoints",
            "nearkin.run.stages",
            "nearkin.tasks.metrics",
            "nearkin.zoo.transfer",
        ),
    )

LONGEST = 60  # characters that a task's name gives to the name of a file


def register(app: typer.Typer) -> None:
    """Hang the command into the application."""
    app.command("transfer")(transfer)


def transfer(
    context: typer.Context,
    source: Annotated[
        str, typer.Argument(help="A task of the zoo, whose network is transferred.", autocompletion=task_names)
    ],
    target: Annotated[
        str, typer.Argument(help="A task of the zoo, or a data string.", autocompletion=task_names)
    ],
    shots: Annotated[
        int | None, typer.Option(min=1, help="Labels a class, for values samples in all; by default up to 2,000.")
    ] = None,
    method: Annotated[str, typer.Option(help="For classes: dirichlet or laplace.")] = "dirichlet",
    weights: Annotated[
        str, typer.Option(help="Free to move: all, head, norm, adapters, a layer or a regular expression.")
    ] = "all",
    probabilities: Annotated[str, typer.Option(help="Of classes: softmax of the mean, or sampled.")] = "mean",
    trial: Annotated[int, typer.Option(min=0, help="Which trial's network of the source.")] = 0,
    samples: Annotated[int, typer.Option(min=1, help="Test samples at the most that judge.")] = 2000,
    steps: Annotated[int, typer.Option(min=1, help="Of the baselines that train in steps.")] = 200,
    baselines: Annotated[bool, typer.Option(help="Measure the usual ways beside it.")] = True,
    restart: Annotated[
        bool, typer.Option("--restart", help="Begin again: forget the finished parts of an interrupted run.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="The report to write, .html; SOURCE-to-TARGET.html where nothing is said.")
    ] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Learn a task from few labels without training: a solved task's network, linearized, as a Gaussian process.

    Interrupted, the same command continues: the closed form and each baseline are kept once they are finished.
    """
    settings: Settings = context.obj
    page = out or Path(f"{_slug(source)}-to-{_slug(target)}.html")
    require(page.suffix in (".html", ".htm"), f"{page} ends in {page.suffix!r}; write the report to a file .html")
    require(not page.is_dir(), f"{page} is a folder; give a file with --out")
    with nk.Zoo(settings.zoo_path, create=False) as zoo:
        page.parent.mkdir(parents=True, exist_ok=True)  # an unwritable folder is an error before the work
        how = transferring.TransferOptions(
            shots=shots, method=cast(Any, method), weights=weights, how=cast(Any, probabilities), trial=trial,
            samples=samples, steps=steps, baselines=baselines,
        )  # fmt: skip
        facing = target if target in zoo else task_of(target, zoo)
        task = zoo.task(facing) if isinstance(facing, str) else facing
        asked = {"source": source, "how": repr(how), "seed": settings.seed}
        parts = zoo.work.within(f"transfer-{task.fingerprint()}-{checkpoints.mark(asked)}")
        if restart:
            parts.clear()
        cache = stages.StageCache(parts, task.digest())
        found = run(zoo.transfer.work(source, facing, how=how, seed=settings.seed, stages=cache), settings)
        parts.clear()  # finished: the report holds it all
    made = shlex.join(["nearkin", *sys.argv[1:]])
    write_durably(page, transfer_page.transfer_page(found, command=made).encode())
    answer({**found.to_dict(), "report": str(page)}, as_json, lambda: _say(found, page))


def _slug(name: str) -> str:
    """A task's name, or a data string, as part of a file's."""
    kept = "".join(sign if sign.isalnum() or sign in "-_." else "-" for sign in name)
    return kept[:LONGEST].strip("-.") or "task"


def _say(found: "transferring.Transfer", page: Path) -> None:
    labels = counted(found.num_train, "label" if found.metric_name == "accuracy" else "value")
    metric, best = metrics.metric_title(found.metric_name), found.best_constant
    constant = f"a blind guess: {found.guess:.4f}"
    if best is not None and best > found.guess:
        constant += f"; the best constant answer: {best:.4f}"
    say(
        f"[bold]{escape(found.source)}[/bold] → [bold]{escape(found.target)}[/bold]: {metric} "
        f"{found.metric:.4f} from {labels} in {duration(found.seconds)} ({constant})"
    )
    say("")
    figures = [metric, "nll", "ece", "seconds"]
    rows = [
        [one.name, f"{one.metric:.4f}", f"{one.nll:.3f}", f"{one.ece:.3f}", f"{one.seconds:.1f}"]
        for one in (found.outcome, *found.baselines)
    ]
    table(["", *figures], rows, right=figures)
    say(f"[dim]judged by {counted(found.num_test, 'test sample')}; small nll and ece are good[/dim]")
    say(f"\nThe report: [bold]{escape(str(page))}[/bold]")
