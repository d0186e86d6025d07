"""`complexity`: information that a network stores about a task."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearkin.cli.console import Settings, answer, command_text, escape, run, say, table
from nearkin.cli.near import task_of
from nearkin.cli.zoo import Json, task_names
from nearkin.core.errors import require
from nearkin.core.files import write_durably
from nearkin.core.lazy import Lazy
from nearkin.core.text import brief, counted, duration
from nearkin.nets.adopted_spec import network_label

if TYPE_CHECKING:
    from nearkin.report import complexity_page
    from nearkin.zoo import complexity as measuring
else:
    complexity_page, measuring = map(Lazy, ("nearkin.report.complexity_page", "nearkin.zoo.complexity"))

FORMATS = (".html", ".htm", ".svg", ".json")


def complexity(
    context: typer.Context,
    task: Annotated[str, typer.Argument(help="A task of the zoo, or a data string.", autocompletion=task_names)],
    beta: Annotated[float, typer.Option(help="Price of one nat of information.")] = 1.0,
    network: Annotated[
        str | None, typer.Option(help="Network for a data string (default: one that suits the data).")
    ] = None,
    samples: Annotated[int, typer.Option(min=2, help="Largest number of training samples.")] = 1000,
    curvature: Annotated[
        str, typer.Option(help="auto (by the number of weights), full, block, kronecker, lanczos or diagonal.")
    ] = "auto",
    given: Annotated[
        str | None,
        typer.Option(help="A task of the zoo: measure relative to its trained weights.", autocompletion=task_names),
    ] = None,
    steps: Annotated[
        int, typer.Option(min=0, help="L-BFGS iterations that bring the weights to a minimum; 0 keeps them.")
    ] = 100,
    decay: Annotated[float, typer.Option(help="Weight decay γ of the mean loss: prior variance 1 / (Nγ).")] = 1e-3,
    refit: Annotated[
        int, typer.Option(min=0, help="L-BFGS iterations for every β of the curve; 0 keeps the weights.")
    ] = 20,
    trial: Annotated[int, typer.Option(min=0, help="Trial whose network is used.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Also write a page (.html), the plot (.svg) or the values (.json).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Complexity of a task: loss and information in the weights, and the loss for every amount of information.

    The stored network of a task of the zoo is used; for a data string a network is trained first.
    """
    settings: Settings = context.obj
    require(
        out is None or out.suffix in FORMATS,
        f"got --out {out}, a file of type {'' if out is None else out.suffix!r}; write to .html, .svg or .json",
    )
    how = measuring.ComplexityOptions(
        beta=beta, network=network, samples=samples, steps=steps, curvature=curvature, decay=decay, refit=refit,
        given=given, trial=trial,
    )  # fmt: skip
    with settings.open_zoo() as zoo:
        known = task if task in zoo else task_of(task, zoo)
        work = zoo.complexity.work(known, how=how, seed=settings.seed, device=settings.device)
        result = run(work, settings, at_once=True)
    if out is not None:
        write_durably(out, _text(out, result).encode())
    facts = {**result.to_dict(), **({"out": str(out)} if out else {})}
    answer(facts, as_json, lambda: _show(result, out))


def _text(out: Path, result: "measuring.TaskComplexity") -> str:
    """The content of a file, by its suffix."""
    if out.suffix == ".json":
        return json.dumps(result.to_dict(), allow_nan=False) + "\n"
    if out.suffix == ".svg":
        return complexity_page.structure_picture(result)
    return complexity_page.complexity_page(result, command=command_text())


def _show(result: "measuring.TaskComplexity", out: Path | None) -> None:
    found = result.found
    relative = f", given the network of [bold]{escape(result.given)}[/bold]" if result.given else ""
    say(
        f"The weights of {escape(network_label(result.network))} store [bold]{found.information:,.0f} nats[/bold] "
        f"({found.information_bits:,.0f} bits) about [bold]{escape(result.task)}[/bold]{relative}."
    )
    say("")
    error = f" ± {found.error:,.1f}" if found.error else ""
    rows = [
        [f"complexity, β = {brief(found.beta)}", f"{found.complexity:,.1f}{error} nats", "loss + β · information"],
        ["expected loss", f"{found.expected_loss:,.1f} nats", "weights drawn from N(w, Σ*), second order"],
        ["information", f"{found.information:,.1f} nats", "KL divergence from the prior"],
        ["loss of the weights", f"{found.loss:,.1f} nats", f"sum over {counted(found.num_samples, 'sample')}"],
        ["effective dimension", f"{found.effective_dimension.value:,.1f}", f"of {counted(found.num_weights)} weights"],
    ]
    if result.critical_beta is not None:
        rows.append(["critical β", brief(result.critical_beta), "information falls fastest there"])
    table(["", "value", "meaning"], rows, right=["value"])
    say(f"[dim]curvature: {found.curvature} ({found.reason}); {duration(result.seconds)}[/dim]")
    if out is not None:
        say(f"[dim]written to {escape(str(out))}[/dim]")
