"""Report of a search for several tasks as one HTML page: results, a pass, cells, the course, the order."""

from collections.abc import Sequence
from statistics import fmean

from markupsafe import Markup

from nearkin import __version__
from nearkin.core.text import (
    MISSING,
    counted,
    duration,
    enumeration,
    fact_text,
    metric_places,
    number,
    percent,
    plain,
    verbatim,
)
from nearkin.distance.matrix import DistanceMatrix
from nearkin.distance.registry import title_of
from nearkin.multitask.encoder_transfer import EncoderTransfer
from nearkin.multitask.interleave import InterleaveOptions
from nearkin.multitask.methods import multitask_method
from nearkin.multitask.task_order import loop_length
from nearkin.report.architecture import CellDrawing
from nearkin.report.curves import Curve, chart
from nearkin.report.drawing.genotype_drawing import draw_genotype
from nearkin.report.drawing.pass_drawing import SHOWN, draw_pass
from nearkin.report.forgetting_section import forgetting_section, forgetting_tile
from nearkin.report.glossary import glossary
from nearkin.report.heatmap import heatmap
from nearkin.report.html import Figure, HtmlTable, figure, render
from nearkin.report.page import pairs_table
from nearkin.report.sections import Section
from nearkin.report.svg import svg_width
from nearkin.tasks.metrics import metric_title
from nearkin.tasks.task import Task
from nearkin.zoo.interleaving import InterleavedSearch

TILED = 4
"""Largest number of tasks that have a tile each, and of tasks whose first round is drawn beside the last one."""

PRECISION = (("mean", "IoU .5 to .95"), ("at_50", "IoU .5"), ("at_75", "IoU .75"), ("small", "Small"),
             ("medium", "Medium"), ("large", "Large"))  # fmt: skip
"""Figures of average precision, and their titles."""


def interleave_page(result: InterleavedSearch, *, command: str = "") -> str:
    """The report of a search for several tasks as one HTML file that loads nothing from elsewhere.

    Args:
        result: result of the search, with the trained networks.
        command: the command that reproduces it.
    """
    return render(
        "interleave.html",
        own=len(result.outcomes) > 1,
        tasks=enumeration([f"“{plain(name)}”" for name in result.order]),
        sentence=_sentence(result),
        tiles=_tiles(result),
        results=_results(result),
        precision=_precision(result),
        turns=_turns(result),
        cells=_cells(result),
        course=_course(result),
        transfer=_transfer(result),
        order=_order(result),
        forgetting=forgetting_section(result.forgetting, ""),
        command=verbatim(command),
        settings=_settings(result),
        glossary=glossary("interleave"),
    )


def _sentence(result: InterleavedSearch) -> str:
    metrics = {task.form.metric for task in result.tasks}
    has = "One architecture serves all tasks: trained from scratch for each, it has"
    if len(result.outcomes) > 1:
        has = "Each task has an architecture of its own: trained from scratch, they have"
    if len(metrics) == 1:
        has += f" {metric_title(result.tasks[0].form.metric)}"
    values = [
        f"{_metric(result, task)}{f' ({metric_title(task.form.metric)})' if len(metrics) > 1 else ''} on "
        f"“{plain(task.name)}”"
        for task in result.tasks
    ]
    return (
        f"{has} {enumeration(values)}, after {duration(result.search_seconds)} of search and "
        f"{duration(result.evaluated.seconds)} of training."
    )


def _metric(result: InterleavedSearch, task: Task) -> str:
    done = result.evaluated.tasks[task.name]
    return number(done.metric, metric_places(done.count))


def _constant(result: InterleavedSearch, task: Task) -> str:
    return number(task.majority_baseline(), metric_places(result.evaluated.tasks[task.name].count))


def _tiles(result: InterleavedSearch) -> list[tuple[str, str, str]]:
    tiles = [
        (
            plain(task.name), _metric(result, task),
            f"{metric_title(task.form.metric)} on the test set; a constant answer has {_constant(result, task)}",
        )
        for task in (result.tasks if len(result.tasks) <= TILED else ())
    ]  # fmt: skip
    tiles.append(("search", duration(result.search_seconds), plain(result.outcomes[0].reason)))
    if _shares(result):
        tiles.append(("active pairs", percent(fmean(result.active)), "mean over passes; only these transfer something"))
    if result.forgetting:
        tiles.append(forgetting_tile(result.forgetting, ""))
    return tiles


def _results(result: InterleavedSearch) -> HtmlTable:
    rows = []
    for task in result.tasks:
        done = result.evaluated.tasks[task.name]
        rows.append((
            plain(task.name), metric_title(task.form.metric), _metric(result, task), _constant(result, task),
            counted(done.count), counted(done.parameters), counted(done.multiply_adds),
        ))  # fmt: skip
    heads = ("Task", "Metric", "On the test set", "Constant answer", "Test samples", "Weights", "Multiply-adds")
    return HtmlTable("The architecture on every task", heads, rows, frozenset(range(2, 7)))


def _precision(result: InterleavedSearch) -> HtmlTable | None:
    """Average precision of the detectors, as COCO defines it."""
    rows = []
    for task in result.tasks:
        further = result.evaluated.tasks[task.name].further
        if further:
            values = (further.get(key) for key, _ in PRECISION)
            rows.append((plain(task.name), *(MISSING if value is None else number(value) for value in values)))
    heads = ("Task", *(title for _, title in PRECISION))
    return HtmlTable("Average precision of the detectors", heads, rows, frozenset(range(1, 7))) if rows else None


def _turns(result: InterleavedSearch) -> Section:
    """What happens in a pass; the picture is that of the interleaved search."""
    method, rounds, options = multitask_method(result.how.method), result.how.num_rounds, _options(result)
    if options is None:
        steps = counted(rounds, "step")
        text = [f"The method is {method.name}: {method.summary}.", f"In a pass, every task takes {steps}."]
        return {"text": text, "figure": None}
    text = [f"In a pass, the tasks take turns for {counted(rounds, 'round')}. A box W is one step of a task’s weights."]
    if options.active:
        often = "every pass" if options.every == 1 else f"one of {options.every} passes"
        text.append(
            f"The task learns from its own labels and, in {often}, from the encoder of the task before it "
            f"({options.transfer})."
        )
    else:
        text.append("The task learns from its own labels alone, as nothing is transferred.")
    text.append("After the last turn the shared architecture A takes a step on the validation losses of all tasks.")
    names = [plain(name) for name in result.order]

    def draw(width: int, name: str) -> str:
        return draw_pass(names, rounds, width, name, transfer=options.active)

    caption = f"One pass: {counted(rounds * len(names), 'turn')} and a step of the architecture."
    if rounds > 2 and rounds * len(names) > SHOWN:
        caption += " Only the first and the last round are drawn."
    return {"text": text, "figure": figure(draw, "nk-pass", "One pass", caption)}


def _options(result: InterleavedSearch) -> EncoderTransfer | None:
    """Options of the transfer; None for methods that have none."""
    if not isinstance(multitask_method(result.how.method).settings, InterleaveOptions):
        return None
    names = ("transfer", "strength", "every", "num_augmentations")
    return EncoderTransfer(**{name: result.how.options[name] for name in names if name in result.how.options})


def _cells(result: InterleavedSearch) -> list[CellDrawing]:
    """Every genotype once, with the tasks that it serves."""
    owners: dict[str, list[str]] = {}
    for genotype, name in zip(result.genotypes, result.order, strict=True):
        owners.setdefault(str(genotype), []).append(f"“{plain(name)}”")
    by_text = {str(genotype): genotype for genotype in result.genotypes}
    drawings = []
    for at, (text, names) in enumerate(owners.items()):
        svg = draw_genotype(by_text[text], name=f"nk-cell-{at}")
        drawings.append(CellDrawing(enumeration(names), True, plain(text), "", Markup(svg), svg_width(svg)))
    return drawings


def _course(result: InterleavedSearch) -> list[Figure]:
    """For every metric, the figures of the supernets after each round, by epoch."""
    tasks = [task for task in result.tasks if any(record["task"] == task.name for record in result.rounds)]
    metrics = dict.fromkeys(task.form.metric for task in tasks)
    return [
        _metric_figure(result, [task.name for task in tasks if task.form.metric == metric], metric, at)
        for at, metric in enumerate(metrics)
    ]


def _metric_figure(result: InterleavedSearch, names: Sequence[str], metric: str, at: int) -> Figure:
    title, last = metric_title(metric), max(record["round"] for record in result.rounds)
    rounds = (1, last) if last > 1 and len(names) <= TILED else (last,)
    curves = [
        Curve(plain(name) if round_ == last else f"{plain(name)}, round 1", points, round_ == last)
        for name in names
        for round_ in rounds
        if (points := _points(result, name, round_))
    ]
    ends = [f"{curve.title} ends at {number(curve.points[-1][1])}" for curve in curves if curve.chosen]

    def draw(width: int, name: str) -> str:
        words = ("epoch", f"validation {title}")
        return chart(curves, width, words, log=False, steps=False).svg(name, title, f"{'; '.join(ends)}.")

    caption = f"{title[0].upper()}{title[1:]} of the supernet of each task on fixed validation samples"
    caption += ", after the first round (thin) and the last round (thick) of the last pass of an epoch." * (last > 1)
    caption += ", after the last pass of an epoch." * (last == 1)
    return figure(draw, f"nk-course-{at}", title, caption, _rounds_table(result, names, title))


def _points(result: InterleavedSearch, name: str, round_: int) -> tuple[tuple[float, float], ...]:
    return tuple(
        (float(record["epoch"]), float(record["metric"]))
        for record in result.rounds
        if record["task"] == name and record["round"] == round_
    )


def _rounds_table(result: InterleavedSearch, names: Sequence[str], title: str) -> HtmlTable:
    rows = [
        (plain(record["task"]), str(record["epoch"]), str(record["round"]), number(record["metric"]),
         number(record["loss"]), MISSING if record["active"] is None else percent(record["active"]))
        for record in result.rounds
        if record["task"] in names
    ]  # fmt: skip
    heads = ("Task", "Epoch", "Round", f"Validation {title}", "Validation loss", "Active pairs")
    return HtmlTable(f"Validation {title} by epoch and round", heads, rows, frozenset(range(1, 6)))


def _shares(result: InterleavedSearch) -> list[tuple[float, float]]:
    """Pass and share of active pairs of every pass with transfer by maximum mean discrepancy."""
    options = _options(result)
    if options is None or options.transfer != "mmd":
        return []
    return [(float(1 + options.every * at), share) for at, share in enumerate(result.active)]


def _transfer(result: InterleavedSearch) -> Section | None:
    points = tuple((at, 100 * share) for at, share in _shares(result))
    if not points:
        return None
    lowest, mean = min(share for _, share in points), fmean(share for _, share in points)
    text = [
        f"On average, student and teacher disagreed on {percent(mean / 100)} of the pairs of augmentation sets, and at "
        f"least on {percent(lowest / 100)}. Only these pairs change the student’s weights: with none, nothing would be "
        f"transferred. The share falls if students learn to agree with their teachers."
    ]
    curves = [Curve("active", points, True)]
    spoken = (
        f"{percent(points[0][1] / 100)} in the first pass with transfer, {percent(points[-1][1] / 100)} in the last."
    )

    def draw(width: int, name: str) -> str:
        return chart(curves, width, ("pass", "active pairs in %"), log=False, steps=False).svg(
            name, "Active pairs by pass", spoken
        )

    caption = (
        "Share of pairs of augmentation sets on which student and teacher disagree, as a mean over the turns of a pass."
    )
    rows = [(counted(at), percent(share / 100)) for at, share in points]
    table = HtmlTable("Active pairs by pass", ("Pass", "Active pairs"), rows, frozenset({0, 1}))
    return {"text": text, "figure": figure(draw, "nk-active", "Active pairs", caption, table)}


def _order(result: InterleavedSearch) -> Section | None:
    if result.distances is None:
        return None
    names = [plain(name) for name in result.order]
    matrix = DistanceMatrix(tuple(names), result.how.measure, result.distances[None].double())
    length = loop_length(result.distances.nan_to_num(0.0), range(len(names)))
    text = [
        f"Each task learns from the one before it, so near tasks follow each other: {' → '.join(names)} → {names[0]}. "
        f"The sum of the distances ({title_of(result.how.measure)}) along this loop is {number(length)}."
    ]
    caption = "Rows are the tasks that are learned from, columns those that learn. Near is bright."
    picture = figure(
        lambda width, name: heatmap(matrix), "nk-order", "Distances", caption, pairs_table(matrix), narrow=False
    )
    return {"text": text, "figure": picture}


def _settings(result: InterleavedSearch) -> HtmlTable:
    how = result.how
    scales = result.outcomes[0].details.get("scales", ())
    rows = [
        ("Method", plain(how.method)),
        ("Space", plain(how.space)),
        ("Rounds", counted(how.num_rounds)),
        ("Order", how.order + (f", by {plain(how.measure)}" if result.distances is not None else "")),
        ("Passes", counted(sum(outcome.steps for outcome in result.outcomes))),
        *((plain(name), fact_text(value)) for name, value in sorted(how.options.items())),
        *((f"Training: {name}", fact_text(value)) for name, value in vars(how.evaluation).items()),
        *((f"First validation loss of “{plain(name)}”", number(scale))
          for name, scale in zip(result.order, scales, strict=False) if len(result.outcomes) == 1),
        *((f"Result of the search: {plain(name)}", fact_text(value))
          for name, value in result.outcomes[0].best.facts.items() if len(result.outcomes) == 1),
        ("Version of nearkin", __version__),
    ]  # fmt: skip
    return HtmlTable("Settings", ("Setting", "Value"), rows, sortable=False)
