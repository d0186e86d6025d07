"""Sections of a solution's report: pictures, tables and sentences, ready for the template."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from nearkin.core.text import counted, duration, number, percent, plain
from nearkin.distance.registry import about, title_of
from nearkin.report import confusion, curves, kinship, mistakes, model_comparison, reliability, time_spent
from nearkin.report.architecture import architecture_text, cell_drawings
from nearkin.report.html import Figure, HtmlTable, figure
from nearkin.report.map_layout import layout
from nearkin.report.page import pairs_table, ranking_table
from nearkin.report.taskmap import taskmap
from nearkin.solver.quality import Quality
from nearkin.solver.relations import Relations
from nearkin.solver.solution import Solution
from nearkin.tasks.metrics import ACCURACY, CONFIDENCE, METRICS

Section = Mapping[str, Any]
"""Values of a template, by name."""


def comparison_section(solution: Solution) -> Section:
    """All contenders: how they were compared, their table, the picture."""
    table, metric = model_comparison.comparison_table(solution), solution.quality.title
    caption = (
        f"Each mark is one contender. Higher marks have a better test {metric}, marks to the right are larger models. "
    )
    if solution.quality.name == ACCURACY:
        caption += (
            f"The vertical line through a mark is its 95 % interval on {counted(solution.quality.count)} samples. "
        )
    caption += f"The short dash is the {metric} on the validation set, on which the choice rests. "
    caption += "The chosen contender has a ring."
    refused = model_comparison.refusals(solution)
    return {
        "count": len(table.rows),
        "refused": refused,
        "metric": metric,
        "name": solution.quality.name,
        "about": METRICS[solution.quality.name].about if solution.quality.name in METRICS else "",
        "test": counted(solution.quality.count),
        "samples": model_comparison.samples_text(solution),
        "cross_validated": bool(solution.samples.get("cross_validated")),
        "rule": model_comparison.rule_text(solution),
        "final": model_comparison.final_text(solution),
        "text": model_comparison.comparison_text(solution),
        "table": table,
        "figure": figure(
            partial(model_comparison.comparison_picture, solution), "nk-comparison", "Comparison", caption, table
        ),
    }


def certainty_section(solution: Solution) -> Section:
    """How sure the result is: its interval, the difference from others, the probabilities."""
    quality = solution.quality
    scale = f"Class scores are divided by {solution.temperature:.3g} (the temperature) before they become "
    scale += "probabilities. That number was learned on the validation set."
    return {
        "result": _result_text(solution),
        "difference": model_comparison.certainty_text(solution),
        "calibration": reliability.calibration_text(quality),
        "temperature": scale if solution.temperature != 1 else "",
        "reliability": _reliability(quality),
    }


def _result_text(solution: Solution) -> list[str]:
    quality = solution.quality
    metric, low, high, guess = (
        model_comparison.score(solution, value) for value in (quality.metric, *quality.interval, quality.guess)
    )
    baseline, kind = "always answers the mean", "values"
    if quality.of_classes:
        baseline, kind = "always answers the majority class (the most frequent class of the training set)", "samples"
    sentences = [
        f"The {quality.title} on {counted(quality.count)} test samples is {metric}. On all {kind} of this sort it lies "
        f"between {low} and {high} with 95 % certainty; this range is the 95 % interval.",
        f"For comparison, a model that {baseline} has {guess}.",
        *_run_noise_text(solution),
    ]
    if (quality.best_constant or 0.0) > quality.guess:
        sentences.append(f"The best constant answer has {model_comparison.score(solution, quality.best_constant)}.")
    return [*sentences, f"The mean loss is {number(quality.loss)}."]


def _run_noise_text(solution: Solution) -> list[str]:
    """What another run with another seed could change, if that was estimated."""
    quality, noise = solution.quality, solution.quality.run_noise
    if noise <= 0:
        return []
    factor, places, unit = (100, 1, " points") if quality.name == ACCURACY else (1, 3, "")
    text = (
        f"The interval includes the noise between runs: another seed changes the training and perhaps the selection, "
        f"by about {number(factor * noise, places)}{unit} (standard deviation)."
    )
    low, high = quality.interval
    if CONFIDENCE * math.sqrt(2) * noise > (high - low) / 2:
        text += " Two such runs can differ by more than half of this interval."
    return [text]


def mistakes_section(solution: Solution) -> Section:
    """What the model gets wrong: confusions and mistakes for classes, deviations for values."""
    quality = solution.quality
    return {
        "classes": bool(quality.classes) and quality.of_classes,
        "confused": confusion.confusion_text(quality),
        "matrix": _matrix(quality),
        "worst": confusion.worst_table(quality),
        "by_class": confusion.classes_table(quality),
        "images": mistakes.mistake_images(solution),
        "table": mistakes.mistakes_table(solution),
        "count": counted(quality.count),
        "scatter": _scatter(quality),
        "residuals": reliability.residual_text(quality),
    }


def kin_section(solution: Solution) -> Section:
    """Related tasks by every measure, and what was reused from them."""
    relations = solution.relations
    refused = [(plain(name), plain(why)) for name, why in relations.refused.items()]
    return {
        "text": kinship.kin_text(relations),
        "threshold": kinship.threshold_text(relations),
        "map": _map(solution),
        "rankings": [
            _ranking(rank, measure, rows, relations)
            for rank, (measure, rows) in enumerate(relations.rankings.items())
            if rows
        ],
        "agreement": kinship.agreement_table(relations),
        "refused": HtmlTable("Tasks that could not be compared", ("Task", "Why"), refused) if refused else None,
    }


def _ranking(rank: int, measure: str, rows: Sequence[kinship.Row], relations: Relations) -> Figure:
    several = any(len(row.get("trials", ())) > 1 for row in rows)
    trials = (
        "Lines show the standard deviation over trials, small dots single trials." if several else "One trial each."
    )
    cut = f"The nearest {kinship.DRAWN} of {len(rows)} are shown." if len(rows) > kinship.DRAWN else ""
    return figure(
        partial(kinship.ranking_picture, measure, rows, relations),
        f"nk-ranking-{rank}",
        f"Nearest by {title_of(measure)}",
        " ".join(filter(None, (about(measure), trials, kinship.form_text(rows), cut))),
        kinship.ranking_table(measure, rows),
    )


def _map(solution: Solution) -> Figure | None:
    matrix = kinship.mapped(solution.matrix, solution.name)
    if matrix is None:
        return None
    target, placed = solution.name if solution.name in matrix.tasks else None, layout(matrix)
    caption = "Tasks that lie near each other have a small distance. A line links each task with its nearest kin."
    caption += f" The task with a ring is “{plain(solution.name)}”." if target else ""
    if len(matrix.tasks) > 3:
        caption += f" A flat map cannot show all distances exactly; these are off by about {percent(placed.stress)}."
    return figure(
        lambda width, _: taskmap(matrix, target, width=width, placed=placed),
        "nk-map",
        "Map",
        caption,
        ranking_table(matrix, target) if target else pairs_table(matrix),
    )


def architecture_section(solution: Solution) -> Section:
    """Drawings of the cells that searches found, and how the searches went."""
    drawings, searches = cell_drawings(solution), curves.search_curves(solution)
    search = None
    if any(len(curve.points) > 1 for curve in searches):
        search = figure(
            partial(curves.search_picture, searches),
            "nk-search",
            "Search curves",
            "The best score that a search had seen after so many cells. The score comes from a short training of a "
            "small network. It only ranks cells and cannot be compared with the results above.",
            curves.search_table(solution, searches),
        )
    return {
        "text": architecture_text(solution, drawings),
        "first": drawings[0] if drawings else None,
        "others": drawings[1:],
        "search": search,
        "searches": curves.searches_table(solution),
    }


def time_section(solution: Solution) -> Section:
    """Seconds by stage, and the loss of each training over its steps."""
    stages, curve_list = solution.stages, curves.loss_curves(solution)
    allocation = str(solution.made.get("allocation") or "")
    text = time_spent.time_text(stages)
    if 0 < solution.answer_seconds < solution.seconds:
        text += f" The answer was found after {duration(solution.answer_seconds)}; the rest was for the zoo."
    if allocation:
        text += f" How it was divided: {plain(allocation)}."
    values: dict[str, Any] = {"text": text, "figure": None, "losses": None}
    if stages:
        caption = "Seconds of each stage."
        if any(stage.known for stage in stages):
            caption += " Hollow bars were done in an earlier run and read from its files."
        values["figure"] = figure(
            partial(time_spent.time_picture, time_spent.merge_small(stages)),
            "nk-time",
            "Time by stage",
            caption,
            time_spent.time_table(stages),
        )
    if curve_list:
        values["losses"] = figure(
            partial(curves.loss_picture, curve_list),
            "nk-learning",
            "Learning curves",
            "Training loss after so many steps, as means over equal numbers of steps. Compare the shape and the end of "
            "the curves only: networks see the data in different orders.",
            curves.loss_table(curve_list),
        )
    return values


def _matrix(quality: Quality) -> Figure | None:
    if not confusion.drawable(quality):
        return None
    return figure(
        partial(confusion.confusion_picture, quality),
        "nk-confusion",
        "Confusion matrix",
        "Each row is a true class, each column an answer of the model. Blue, on the diagonal: right. Orange: wrong.",
        confusion.counts_table(quality),
        narrow=confusion.fits_phone(quality),
    )


def _reliability(quality: Quality) -> Figure | None:
    if not quality.calibration:
        return None
    return figure(
        partial(reliability.reliability_picture, quality),
        "nk-reliability",
        "Reliability",
        "Test samples grouped by the probability that the model gave to its answer. On the dashed line, the model is "
        "right as often as it claims. Larger points stand for more samples, vertical lines are 95 % intervals.",
        reliability.calibration_table(quality),
    )


def _scatter(quality: Quality) -> Figure | None:
    if not quality.residuals:
        return None
    return figure(
        partial(reliability.residual_picture, quality),
        "nk-values",
        "Predicted and true values",
        "Each point is one answer; on the dashed line it is exact.",
        reliability.residual_table(quality),
    )
