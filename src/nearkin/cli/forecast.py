"""`forecast`: what will fine-tuning cost, and is the goal reachable within a budget?"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearkin.cli.console import Settings, answer, command_text, escape, run, say, table
from nearkin.cli.near import task_of
from nearkin.cli.zoo import Json, task_names
from nearkin.core.errors import require
from nearkin.core.files import write_durably
from nearkin.core.lazy import Lazy
from nearkin.core.text import counted, duration

if TYPE_CHECKING:
    from nearkin.distance.forecasting import forecasts
    from nearkin.report import forecast_page
    from nearkin.zoo import forecast as forecasting
else:
    forecasts, forecast_page, forecasting = map(
        Lazy, ("nearkin.distance.forecasting.forecasts", "nearkin.report.forecast_page", "nearkin.zoo.forecast")
    )


def forecast(
    context: typer.Context,
    source: Annotated[
        str, typer.Argument(help="A task of the zoo, whose network is fine-tuned.", autocompletion=task_names)
    ],
    target: Annotated[str, typer.Argument(help="A task of the zoo, or a data string.", autocompletion=task_names)],
    to: Annotated[
        str,
        typer.Option(
            metavar="GOAL",
            help="What to reach: loss=0.3, or the metric on validation data, such as accuracy=0.9 (default: a fifth of "
            "the loss of a constant answer).",
        ),
    ] = "",
    budget: Annotated[float | None, typer.Option(metavar="MINUTES", help="Time for the training steps.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Largest number of training steps.")] = None,
    optimiser: Annotated[str, typer.Option(help="adam, adam-l2 or sgd.")] = "adam",
    learning_rate: Annotated[
        float | None, typer.Option(help="Constant learning rate (default: 0.001, of sgd 0.01).")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples in a step.")] = 32,
    trial: Annotated[int, typer.Option(min=0, help="Trial of the source.")] = 0,
    samples: Annotated[int, typer.Option(min=2, help="Largest number of target samples that are measured.")] = 1000,
    check: Annotated[
        bool, typer.Option("--check", help="Also fine-tune, compare with the forecast, and record the run.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Also write a report, .html.")] = None,
    as_json: Json = False,
) -> None:
    """Predict the steps and seconds of fine-tuning with an 80 % interval, before it starts."""
    settings: Settings = context.obj
    if out is not None:
        require(out.suffix in (".html", ".htm"), f"got --out {out}, expected a file name that ends in .html")
    seconds = None if budget is None else 60 * budget
    plan = forecasts.PlannedRun(
        optimiser=optimiser, learning_rate=learning_rate, batch_size=batch_size, steps=steps, seconds=seconds
    )
    how = forecasting.ForecastOptions(to=to, plan=plan, samples=samples, trial=trial, check=check)
    with settings.open_zoo(create=False) as zoo:
        known = target if target in zoo else task_of(target, zoo)
        found = run(
            forecasting.forecast_finetuning.work(zoo, source, known, how, settings.seed), settings, at_once=True
        )
    if out is not None:
        command = command_text()
        write_durably(out, forecast_page.forecast_page(found, command=command).encode())
    report = {} if out is None else {"report": str(out)}
    answer({**found.to_dict(), **report}, as_json, lambda: _show(found, out))


def _show(found: "forecasting.CheckedForecast", out: Path | None) -> None:
    result = found.forecast
    say(f"[bold]{escape(result.source)}[/bold] → [bold]{escape(result.target)}[/bold]: {escape(result.verdict)}")
    say("")
    low, high = result.seconds_interval
    rows = [
        ["steps", f"{result.steps:,.0f}", *(_count(value) for value in result.interval)],
        ["time of steps", duration(result.seconds), duration(low), _time(high)],
    ]
    table(["", "median", "from", "to"], rows, right=["median", "from", "to"])
    facts = [f"{counted(result.own_runs, 'recorded run')} of this network, {counted(result.other_runs)} of others"]
    facts.append(f"mean loss of a short fine-tuning {result.distance:.3f}")
    if result.complexity is not None:
        facts.append(f"complexity {result.complexity:.3f} nats for each sample")
    facts.append(f"barrier {result.barrier:.3f}")
    say(f"[dim]80 % interval; {'; '.join(facts)}[/dim]")
    for note in result.notes:
        say(f"[dim]{escape(note)}[/dim]")
    if found.run is not None:
        spent = duration(found.run.fit.seconds)
        reached = "not reached" if found.measured is None else f"reached after {found.measured:,.0f} steps"
        say(f"\nChecked: {reached}, {found.steps_done:,} steps done in {spent}; the run is recorded.")
    if out is not None:
        say(f"\nReport: [bold]{escape(str(out))}[/bold]")


def _count(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) else "not known"


def _time(value: float) -> str:
    return duration(value) if math.isfinite(value) else "not known"
