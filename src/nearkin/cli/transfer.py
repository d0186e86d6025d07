"""`transfer`: closed-form transfer to a task with few labels."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from nearkin.cli.console import Settings, answer, baseline_text, command_text, escape, run, say, table
from nearkin.cli.near import task_of
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

LONGEST = 60  # characters of a task name in a file name


def transfer(
    context: typer.Context,
    source: Annotated[
        str, typer.Argument(help="A task of the zoo, whose network is transferred.", autocompletion=task_names)
    ],
    target: Annotated[
        str, typer.Argument(help="A task of the zoo, or a data string.", autocompletion=task_names)
    ],
    shots: Annotated[
        int | None, typer.Option(min=1, help="Labels per class; for regression, samples (default: all, at most 2,000).")
    ] = None,
    method: Annotated[str, typer.Option(help="For classification: dirichlet or laplace.")] = "dirichlet",
    weights: Annotated[
        str,
        typer.Option(help="Weights that may change: all, head, norm, lora?r=4, adapters, a layer, or a pattern."),
    ] = "all",
    probabilities: Annotated[str, typer.Option(help="Class probabilities: mean or sampled.")] = "mean",
    trial: Annotated[int, typer.Option(min=0, help="Trial of the source.")] = 0,
    samples: Annotated[int, typer.Option(min=1, help="Largest number of test samples.")] = 2000,
    steps: Annotated[int, typer.Option(min=1, help="Training steps of the baselines.")] = 200,
    baselines: Annotated[bool, typer.Option(help="Also measure the usual baselines.")] = True,
    restart: Annotated[
        bool, typer.Option("--restart", help="Discard the saved state of an interrupted run, and start again.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="The report to write, .html (default: SOURCE-to-TARGET.html).")
    ] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Learn a task from few labels without training: the linearized network of a solved task as a Gaussian process.

    After an interruption the same command continues.
    """
    settings: Settings = context.obj
    page = out or Path(f"{_slug(source)}-to-{_slug(target)}.html")
    require(page.suffix in (".html", ".htm"), f"got --out {page}, expected a file name that ends in .html")
    require(not page.is_dir(), f"{page} is a folder, expected a file; choose another --out")
    with settings.open_zoo(create=False) as zoo:
        page.parent.mkdir(parents=True, exist_ok=True)  # an unwritable folder is an error before the work starts
        how = transferring.TransferOptions(
            shots=shots, method=cast(Any, method), weights=weights, how=cast(Any, probabilities), trial=trial,
            samples=samples, steps=steps, baselines=baselines,
        )  # fmt: skip
        known = target if target in zoo else task_of(target, zoo)
        task = zoo.task(known) if isinstance(known, str) else known
        facts = {"source": source, "how": repr(how), "seed": settings.seed}
        saved = zoo.work.within(f"transfer-{task.fingerprint()}-{checkpoints.facts_digest(facts)}")
        if restart:
            saved.clear()
        cache = stages.StageCache(saved, task.digest())
        result = run(zoo.transfer.work(source, known, how=how, seed=settings.seed, stages=cache), settings)
        saved.clear()
    command = command_text()
    write_durably(page, transfer_page.transfer_page(result, command=command).encode())
    answer({**result.to_dict(), "report": str(page)}, as_json, lambda: _show(result, page))


def _slug(name: str) -> str:
    """A task name or data string as part of a file name."""
    slug = "".join(sign if sign.isalnum() or sign in "-_." else "-" for sign in name)
    return slug[:LONGEST].strip("-.") or "task"


def _show(result: "transferring.Transfer", page: Path) -> None:
    labels = counted(result.num_train, "label" if result.metric_name == "accuracy" else "value")
    metric, best = metrics.metric_title(result.metric_name), result.best_constant
    constant = baseline_text(result.metric_name, result.guess)
    if best is not None and best > result.guess:
        constant += f"; best constant prediction: {best:.4f}"
    say(
        f"[bold]{escape(result.source)}[/bold] → [bold]{escape(result.target)}[/bold]: {metric} "
        f"{result.metric:.4f} from {labels} in {duration(result.seconds)} ({constant})"
    )
    say("")
    figures = [metric, "nll", "ece", "seconds"]
    rows = [
        [scores.name, f"{scores.metric:.4f}", f"{scores.nll:.3f}", f"{scores.ece:.3f}", f"{scores.seconds:.1f}"]
        for scores in (result.outcome, *result.baselines)
    ]
    table(["", *figures], rows, right=figures)
    say(f"[dim]{counted(result.num_test, 'test sample')}; smaller nll and ece are better[/dim]")
    say(f"\nReport: [bold]{escape(str(page))}[/bold]")
