"""Report of an architecture search as one HTML page: the network, the course of the search, and its forgetting."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from nearkin import __version__
from nearkin.core.text import brief, counted, duration, fact_text, metric_places, number, plain, verbatim
from nearkin.report.architecture import CellDrawing
from nearkin.report.curves import Curve, chart
from nearkin.report.drawing.genotype_drawing import draw_genotype
from nearkin.report.glossary import glossary
from nearkin.report.html import Figure, HtmlTable, figure, render
from nearkin.report.sections import Section
from nearkin.report.svg import svg_width
from nearkin.search.plasticity.telemetry import Forgetting
from nearkin.tasks.metrics import metric_title
from nearkin.tasks.task import Task
from nearkin.zoo.search import Architecture


def search_page(
    architecture: Architecture, task: Task, *, options: Mapping[str, Any] | None = None, command: str = ""
) -> str:
    """The report of a search as one HTML file that loads nothing from elsewhere.

    Args:
        architecture: result of the search, with the trained network.
        task: the task.
        options: options of the method that were set.
        command: the command that reproduces it.
    """
    svg = draw_genotype(architecture.evaluated.genotype, name="nk-cell")
    method, genotype = plain(architecture.outcome.method), plain(str(architecture.evaluated.genotype))
    cell = CellDrawing(method, True, genotype, "", Markup(svg), svg_width(svg))
    return render(
        "search.html",
        target=plain(task.name),
        sentence=_sentence(architecture, task),
        tiles=_tiles(architecture, task),
        cell=cell,
        course=_course(architecture),
        forgetting=_forgetting(architecture, task),
        command=verbatim(command),
        settings=_settings(architecture, options or {}),
        glossary=glossary("search"),
    )


def _sentence(architecture: Architecture, task: Task) -> str:
    done, outcome = architecture.evaluated, architecture.outcome
    value = number(done.metric, metric_places(done.count))
    searched = f"{counted(outcome.evaluations, 'architecture')} measured" if outcome.evaluations else "one supernet"
    return (
        f"The network that {plain(outcome.method)} found for “{plain(task.name)}” has {metric_title(task.form.metric)} "
        f"{value} on {counted(done.count, 'test sample')}, after {duration(outcome.seconds)} of search ({searched}) "
        f"and {duration(done.seconds)} of training."
    )


def _tiles(architecture: Architecture, task: Task) -> list[tuple[str, str, str]]:
    done, places = architecture.evaluated, metric_places(architecture.evaluated.count)
    tiles = [
        (
            f"test {metric_title(task.form.metric)}",
            number(done.metric, places),
            f"a constant answer has {number(task.majority_baseline(), places)}",
        ),
        ("parameters", counted(done.parameters), "weights of the trained network"),
        ("multiply-adds", counted(done.multiply_adds), "for one input"),
        ("search", duration(architecture.outcome.seconds), plain(architecture.outcome.reason)),
    ]
    if epochs := architecture.outcome.forgetting:
        mean = sum(epoch.mean for epoch in epochs) / len(epochs)
        tiles.append(("forgetting", _change(mean, task), "mean over epochs and watched architectures"))
    return tiles


def _course(architecture: Architecture) -> Figure | None:
    points = tuple((float(count), score) for count, score in architecture.outcome.history)
    if not points or points[-1][0] == 0:
        return None
    curves, words = [Curve(plain(architecture.outcome.method), points, True)], ("architectures measured", "best score")
    spoken = f"The best score is {number(points[-1][1])} after {counted(round(points[-1][0]))} measured architectures."

    def draw(width: int, name: str) -> str:
        return chart(curves, width, words, log=False, steps=True).svg(name, "Best score", spoken)

    caption = (
        "Score of the best architecture, by the number of architectures that were measured. Methods that share weights "
        "measure with the present weights, so that their best score can also fall."
    )
    rows = [(counted(round(x)), number(y)) for x, y in points]
    table = HtmlTable("Best score during the search", ("Measured", "Best score"), rows, frozenset({0, 1}))
    return figure(draw, "nk-course", "Best score", caption, table)


def _forgetting(architecture: Architecture, task: Task) -> Section | None:
    epochs = architecture.outcome.forgetting
    if not epochs:
        return None
    unit = _unit(task)
    largest = max(epochs, key=lambda epoch: epoch.maximum)
    text = [
        f"Architectures share weights, so training one changes others. Watched architectures were measured right after "
        f"their training and again at the end of the epoch. On average, their {unit} changed by "
        f"{_change(sum(epoch.mean for epoch in epochs) / len(epochs), task)}; the largest increase is "
        f"{_change(largest.maximum, task)}. A positive number means that later training made an architecture worse."
    ]
    heads = ("Epoch", "Watched", "Mean", "Best five", "Maximum")
    rows = [
        (str(epoch), counted(row.architectures), *(_change(value, task) for value in (row.mean, row.best, row.maximum)))
        for epoch, row in enumerate(epochs, 1)
    ]
    table = HtmlTable(f"Change of the {unit} within an epoch", heads, rows, frozenset(range(5)))
    caption = "Change from right after training to the end of the epoch; above 0, architectures forgot."
    picture = figure(
        lambda width, name: forgetting_picture(epochs, unit, width, name), "nk-forgetting", "Forgetting", caption, table
    )
    return {"text": text, "figure": picture}


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


def _unit(task: Task) -> str:
    return "loss" if task.likelihood == "language" else "error"


def _change(value: float, task: Task) -> str:
    """A difference of errors in points, or of losses, with its sign."""
    text = f"{value:+.3f}" if _unit(task) == "loss" else f"{100 * value:+.2f} points"
    return text.replace("-", "−")


def _settings(architecture: Architecture, options: Mapping[str, Any]) -> HtmlTable:
    rows = [
        ("Method", plain(architecture.outcome.method)),
        ("Space", plain(architecture.domain.space.name)),
        ("Kin", plain(architecture.domain.kin or "none")),
        *((plain(name), fact_text(value)) for name, value in sorted(options.items())),
        *((plain(name), fact_text(value)) for name, value in architecture.skeleton.to_dict().items()),
        ("Version of nearkin", __version__),
    ]
    return HtmlTable("Settings", ("Setting", "Value"), rows, sortable=False)
