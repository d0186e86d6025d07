"""Report of a forecast as one HTML page: when the goal is reached, what was measured, and what happened."""

import math

from nearkin import __version__
from nearkin.core.text import brief, counted, duration, number, percent, plain, verbatim
from nearkin.nets.adopted_spec import network_label
from nearkin.report.curves import Curve, chart
from nearkin.report.glossary import glossary
from nearkin.report.html import Figure, HtmlTable, figure, render
from nearkin.report.sections import Section
from nearkin.solver.contenders import thinned
from nearkin.tasks.metrics import metric_title
from nearkin.zoo.forecast import LOSS, CheckedForecast

NOT_KNOWN = "not known"
SHARES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)


def forecast_page(found: CheckedForecast, *, command: str = "") -> str:
    """The report of a forecast as one HTML file that loads nothing from elsewhere."""
    forecast = found.forecast
    return render(
        "forecast.html",
        source=plain(forecast.source),
        target=plain(forecast.target),
        sentence=f"{plain(forecast.verdict[:1].upper() + forecast.verdict[1:])}.",
        tiles=_tiles(found),
        notes=[plain(note) for note in forecast.notes],
        reached=_reached(found),
        basis=_basis(found),
        short=_short(found),
        check=_check(found),
        command=verbatim(command),
        settings=_settings(found),
        glossary=glossary("forecast"),
    )


def _tiles(found: CheckedForecast) -> list[tuple[str, str, str]]:
    forecast = found.forecast
    low, high = forecast.interval
    tiles = [
        ("goal", f"{_goal_name(found)} {brief(forecast.goal)}", f"network {plain(network_label(forecast.network))}"),
        ("steps", counted(round(forecast.steps)), f"80 % interval {counted(round(low))} to {_steps(high)}"),
        ("time of the steps", duration(forecast.seconds), f"{duration(1000 * forecast.step_seconds)} for 1,000 steps"),
    ]
    if forecast.probability is not None and forecast.budget is not None:
        within = f"within {counted(round(forecast.budget))} steps"
        tiles.append(("probability", percent(forecast.probability), within))
    return tiles


def _reached(found: CheckedForecast) -> Figure:
    """Probability that the goal has been reached, by steps."""
    residuals, rate = found.times.residuals, found.plan.rate
    steps = [math.exp(found.times.log_time + value) / rate for value in residuals.values.tolist()]
    points = [(0.0, 0.0), *zip(steps, residuals.shares.tolist(), strict=True)]
    end = found.times.quantile(0.95)
    last = math.exp(end) / rate if math.isfinite(end) else points[-1][0]
    curve = Curve("forecast", tuple(point for point in points if point[0] <= last), True)
    curves = [curve]
    if found.measured is not None:
        curves.append(Curve("measured", ((found.measured, 0.0), (found.measured, 1.0)), False))
    elif found.forecast.budget is not None and found.forecast.budget <= last:
        curves.append(Curve("budget", ((found.forecast.budget, 0.0), (found.forecast.budget, 1.0)), False))
    spoken = f"With a probability of one half the goal is reached after {counted(round(found.forecast.steps))} steps."

    def draw(width: int, name: str) -> str:
        words = ("steps", "probability that the goal is reached")
        return chart(curves, width, words, log=False, steps=True).svg(name, "Probability by steps", spoken)

    rows = [(percent(share), _steps(math.exp(found.times.quantile(share)) / rate)) for share in SHARES]
    table = HtmlTable("Steps by probability", ("Probability", "Steps"), rows, frozenset({0, 1}))
    caption = (
        "Probability that the goal has been reached, by the number of steps: the median forecast, with the errors that "
        "such forecasts had on recorded runs which the model had not seen."
    )
    return figure(draw, "nk-reached", "Probability by steps", caption, table)


def _basis(found: CheckedForecast) -> list[str]:
    forecast = found.forecast
    texts = [
        f"Before the forecast, the network was fine-tuned for {len(found.signals.losses)} large steps. A model of "
        f"{counted(forecast.own_runs, 'recorded run')} of this network and {counted(forecast.other_runs)} of other "
        f"networks predicts the time to the goal from these losses.",
        f"The mean loss of the short run is {number(forecast.distance)}, and its loss rises {number(forecast.barrier)} "
        f"above that of a constant answer.",
    ]
    if forecast.complexity is not None:
        texts.append(
            f"The complexity of the task for a linear model on the features is {number(forecast.complexity)} nats for "
            f"each sample; it is shown for comparison with other sources and is not part of the model."
        )
    return texts


def _short(found: CheckedForecast) -> Figure:
    """Losses of the short fine-tuning."""
    losses, constant = found.signals.losses, found.signals.constant_loss
    points = tuple((float(step), loss) for step, loss in enumerate(losses, 1))
    level = ((0.0, constant), (float(len(losses)), constant))
    curves = [Curve("short fine-tuning", points, True), Curve("constant answer", level, False)]
    return _losses(curves, "nk-short", "Losses of the short fine-tuning", "Losses of the steps of the short run.")


def _check(found: CheckedForecast) -> Section | None:
    if found.run is None:
        return None
    low, high = found.forecast.interval
    done = counted(found.steps_done, "step")
    if found.measured is None:
        text = f"The goal was not reached in {done}."
    else:
        inside = "inside" if low <= found.measured <= high else "outside"
        text = f"The goal was reached after {counted(round(found.measured))} steps, {inside} the 80 % interval."
    history = found.run.fit.history
    losses = [Curve("training loss", thinned(history.losses.tolist()), True)]
    if found.forecast.metric == LOSS:
        losses.append(
            Curve("goal", ((0.0, found.forecast.goal), (float(found.steps_done), found.forecast.goal)), False)
        )
    caption = "Training loss of the run, means over intervals."
    return {"text": [f"{text} The run is recorded, so later forecasts learn from it."],
            "figure": _losses(losses, "nk-check", "Training loss of the run", caption)}  # fmt: skip


def _losses(curves: list[Curve], name: str, label: str, caption: str) -> Figure:
    log = all(y > 0 for curve in curves for _, y in curve.points)
    spoken = f"{curves[0].title} ends at {number(curves[0].points[-1][1])}."

    def draw(width: int, name: str) -> str:
        words = ("steps", "loss" + (", logarithmic" if log else ""))
        return chart(curves, width, words, log=log, steps=False).svg(name, label, spoken)

    rows = [(counted(round(x)), number(y)) for x, y in curves[0].points]
    return figure(draw, name, label, caption, HtmlTable(label, ("Step", "Loss"), rows, frozenset({0, 1})))


def _settings(found: CheckedForecast) -> HtmlTable:
    plan, forecast = found.plan, found.forecast
    rows = [
        ("Goal", f"{_goal_name(found)} {brief(forecast.goal)}"),
        ("Optimiser", plan.optimiser),
        ("Learning rate, constant", brief(plan.rate)),
        ("Batch size", counted(plan.batch_size)),
        ("Network", plain(network_label(forecast.network))),
        ("Version of nearkin", __version__),
    ]
    return HtmlTable("Settings", ("Setting", "Value"), rows, sortable=False)


def _goal_name(found: CheckedForecast) -> str:
    metric = found.forecast.metric
    return "training loss" if metric == LOSS else f"validation {metric_title(metric)}"


def _steps(value: float) -> str:
    return counted(round(value)) if math.isfinite(value) else NOT_KNOWN
