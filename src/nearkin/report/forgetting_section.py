"""How much architectures that share weights forgot in a search: a tile, sentences, a picture and a table."""

from collections.abc import Sequence
from functools import partial
from statistics import fmean

from nearkin.core.text import brief, counted
from nearkin.report.curves import Curve, chart
from nearkin.report.html import HtmlTable, figure
from nearkin.report.sections import Section
from nearkin.search.plasticity.telemetry import Forgetting


def forgetting_tile(epochs: Sequence[Forgetting], likelihood: str) -> tuple[str, str, str]:
    """Label, value and explanation of the mean forgetting of a search.

    >>> forgetting_tile([Forgetting(0.25, 0.0, 0.5, 8), Forgetting(-0.2, 0.0, 0.1, 8)], "categorical")
    ('forgetting', '+2.50 points', 'mean over epochs and watched architectures')
    """
    mean = _change(fmean(epoch.mean for epoch in epochs), _unit(likelihood))
    return "forgetting", mean, "mean over epochs and watched architectures"


def forgetting_section(epochs: Sequence[Forgetting], likelihood: str) -> Section | None:
    """Sentences and a figure; None if no architecture was watched.

    Args:
        epochs: forgetting of every epoch.
        likelihood: of the task: for text, differences are those of the loss, else of the error.
    """
    if not epochs:
        return None
    unit = _unit(likelihood)
    largest = max(epochs, key=lambda epoch: epoch.maximum)
    text = [
        f"Architectures share weights, so training one changes others. Watched architectures were measured right after "
        f"their training and again at the end of the epoch. On average, their {unit} changed by "
        f"{_change(fmean(epoch.mean for epoch in epochs), unit)}; the largest increase is "
        f"{_change(largest.maximum, unit)}. A positive number means that later training made an architecture worse."
    ]
    heads = ("Epoch", "Watched", "Mean", "Best five", "Maximum")
    rows = [
        (str(epoch), counted(row.architectures), *(_change(value, unit) for value in (row.mean, row.best, row.maximum)))
        for epoch, row in enumerate(epochs, 1)
    ]
    table = HtmlTable(f"Change of the {unit} within an epoch", heads, rows, frozenset(range(5)))
    caption = "Change from right after training to the end of the epoch; above 0, architectures forgot."
    draw = partial(forgetting_picture, epochs, unit)
    return {"text": text, "figure": figure(draw, "nk-forgetting", "Forgetting", caption, table)}


def forgetting_picture(epochs: Sequence[Forgetting], unit: str, width: int, name: str = "nk-forgetting") -> str:
    """SVG of mean, best five and maximum by epoch; one epoch is drawn as points."""
    curves = [
        Curve(title, tuple((float(at), getattr(row, key)) for at, row in enumerate(epochs, 1)), key == "mean")
        for key, title in (("maximum", "maximum"), ("mean", "mean"), ("best", "best five"))
    ]
    last = epochs[-1]
    spoken = f"In the last epoch the mean is {brief(last.mean)}, the maximum {brief(last.maximum)}."
    return chart(curves, width, ("epoch", f"change of the {unit}"), log=False, steps=False).svg(
        name, "Forgetting by epoch", spoken
    )


def _unit(likelihood: str) -> str:
    return "loss" if likelihood == "language" else "error"


def _change(value: float, unit: str) -> str:
    """A difference of errors in points, or of losses, with its sign."""
    text = f"{value:+.3f}" if unit == "loss" else f"{100 * value:+.2f} points"
    return text.replace("-", "−")
