"""Report of an architecture search as one HTML page: the network, the course of the search, and its forgetting."""

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from nearkin import __version__
from nearkin.core.text import counted, duration, fact_text, metric_places, number, plain, verbatim
from nearkin.report.architecture import CellDrawing
from nearkin.report.curves import Curve, chart
from nearkin.report.drawing.genotype_drawing import draw_genotype
from nearkin.report.forgetting_section import forgetting_section, forgetting_tile
from nearkin.report.glossary import glossary
from nearkin.report.html import Figure, HtmlTable, figure, render
from nearkin.report.svg import svg_width
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
        forgetting=forgetting_section(architecture.outcome.forgetting, task.likelihood),
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
        tiles.append(forgetting_tile(epochs, task.likelihood))
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
