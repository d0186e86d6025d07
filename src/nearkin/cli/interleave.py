"""`interleave`: one architecture for several tasks."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from typer.core import TyperCommand

from nearkin.cli.console import (
    Restart,
    Resume,
    Settings,
    answer,
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
from nearkin.cli.zoo import Json, task_names
from nearkin.core.budget import Budget
from nearkin.core.errors import require
from nearkin.core.files import write_durably
from nearkin.core.lazy import Lazy
from nearkin.core.text import counted, duration
from nearkin.tasks.metrics import metric_title

if TYPE_CHECKING:
    from nearkin.distance import registry as measures
    from nearkin.multitask import evaluation, methods, named_options
    from nearkin.report import interleave_page
    from nearkin.zoo import interleaving
else:
    measures, evaluation, methods, named_options, interleave_page, interleaving = map(
        Lazy,
        (
            "nearkin.distance.registry",
            "nearkin.multitask.evaluation",
            "nearkin.multitask.methods",
            "nearkin.multitask.named_options",
            "nearkin.report.interleave_page",
            "nearkin.zoo.interleaving",
        ),
    )


class InterleaveHelp(TyperCommand):
    """A command whose help lists the methods and their options."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the help; only this imports the registry."""
        super().format_help(ctx, formatter)
        known = methods.MULTITASK_METHODS.values()
        table(["method", "does"], [(method.name, method.summary) for method in known])
        for method in known:
            show_options(method.name, method.options)
        show_options("the supernets", named_options.gradient_fields())


def interleave(
    context: typer.Context,
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME…", help="Two or more tasks of the zoo, or data strings.", autocompletion=task_names
        ),
    ],
    rounds: Annotated[int, typer.Option(metavar="M", help="Turns of every task before each architecture step.")] = 2,
    transfer: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="How a task learns from the one before it: mmd, l2-weights, l2-embedding, similarity or none "
            "(default: mmd).",
        ),
    ] = None,
    method: Annotated[str, typer.Option(metavar="NAME", help="Search method; see below.")] = "interleave",
    order: Annotated[
        str, typer.Option(help="given, or near: tasks that are near each other take their turns one after the other.")
    ] = "given",
    measure: Measured = None,
    space: Annotated[str, typer.Option(help="Space of cells or chains, such as darts or mobile.")] = "darts",
    search_epochs: Annotated[int | None, typer.Option(min=1, help="Epochs of the search (default: 20).")] = None,
    minutes: Annotated[float | None, typer.Option(help="Stop the search after this many minutes.")] = None,
    channels: Annotated[int, typer.Option(min=2, help="Width of the final networks.")] = 16,
    cells: Annotated[int, typer.Option(min=1, help="Cells of the final networks.")] = 8,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs of their trainings.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Samples in one step of their trainings.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Peak learning rate of their trainings.")] = None,
    augment: Annotated[str, typer.Option(help="Augmentation of their trainings, such as crop=2,flip,cutout=4.")] = "",
    drop_path: Annotated[float, typer.Option(min=0, max=0.99, help="Share of edges that they drop.")] = 0.0,
    auxiliary: Annotated[bool, typer.Option("--auxiliary", help="Use an auxiliary head in their trainings.")] = False,
    plasticity: Annotated[
        bool, typer.Option("--plasticity", help="Pull shared weights to the values that earlier architectures need.")
    ] = False,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Option of the method or the supernets; may be repeated."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Try three passes, and print stages, memory and time of the search.")
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Write a report to this .html file.")] = None,
    restart: Restart = False,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Search one architecture for several tasks, and train it from scratch for each.

    After an interruption the same command continues.
    """
    settings: Settings = context.obj
    note_resume(resume)
    require(
        report is None or report.suffix in (".html", ".htm"),
        f"got --report {report}, expected a file name that ends in .html",
    )
    given: dict[str, Any] = named_values(option)
    given |= {} if transfer is None else {"transfer": transfer}
    given |= {} if search_epochs is None else {"epochs": str(search_epochs)}
    given |= {"plasticity": "true"} if plasticity else {}
    how = interleaving.Interleaving(
        method=method, num_rounds=rounds, space=space, order=order, measure=measure or measures.STRUCTURE,
        budget=Budget(minutes=minutes), options=given,
        evaluation=evaluation.EvaluationOptions(
            channels=channels, num_cells=cells, epochs=epochs, batch_size=batch_size, learning_rate=learning_rate,
            augment=augment, drop_path=drop_path, auxiliary=auxiliary,
        ),
    )  # fmt: skip
    with settings.open_zoo() as zoo:
        targets = [name if name in zoo else task_of(name, zoo) for name in names]
        if dry_run:
            plan = run(interleaving.plan_interleaving(zoo, targets, how, seed=settings.seed), settings)
            answer(plan.to_dict(), as_json, lambda: _show_plan(plan))
            return
        work = zoo.interleave.work(targets, how=how, seed=settings.seed, device=settings.device, restart=restart)
        result = run(work, settings)
        interleaving.keep_networks(zoo, result, settings.seed)
    if report is not None:
        command = command_text()
        write_durably(report, interleave_page.interleave_page(result, command=command).encode())
    facts = {**result.to_dict(), **({} if report is None else {"report": str(report)})}
    answer(facts, as_json, lambda: _show_result(result, facts))


def _show_plan(plan: "interleaving.InterleavePlan") -> None:
    say(f"order: {escape(' → '.join(plan.order))} → …")
    say(
        f"{plan.passes:,} passes of {counted(plan.stages, 'stage')}, {counted(plan.weights, 'weight')} in all supernets"
    )
    say(
        f"about {duration(plan.seconds)} on this machine and {plan.mebibytes:,.0f} MiB of memory, measured on three "
        f"passes; the trainings after the search come on top"
    )


def _show_result(result: "interleaving.InterleavedSearch", facts: dict[str, Any]) -> None:
    say(f"One architecture for {escape(', '.join(result.order))}:")
    for genotype in dict.fromkeys(map(str, result.genotypes)):
        say(f"  {escape(genotype)}")
    say("")
    rows: list[Sequence[str]] = []
    for task in result.tasks:
        done = result.evaluated.tasks[task.name]
        rows.append(
            (
                task.name, metric_title(task.form.metric), f"{done.metric:.4f}", f"{task.majority_baseline():.4f}",
                counted(done.parameters), counted(done.multiply_adds),
            )
        )  # fmt: skip
    head = ["task", "metric", "on the test set", "constant answer", "weights", "multiply-adds"]
    table(head, rows, right=head[2:])
    active = facts["active_fraction"]
    words = "" if active is None else f"; {100 * active:.0f} % of the pairs of sets were active"
    say(
        f"[dim]{escape(result.how.method)} in {escape(result.how.space)}, "
        f"{counted(result.how.num_rounds, 'round')}: {duration(result.search_seconds)} "
        f"({escape(facts['search']['reason'])}){words}; trained in {duration(result.evaluated.seconds)}[/dim]"
    )
    if "report" in facts:
        say(f"Report: [bold]{escape(facts['report'])}[/bold]")
