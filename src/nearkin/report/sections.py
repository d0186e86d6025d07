"""Sections of a solution's report: pictures, tables and sentences, ready for the template."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from nearkin.core.text import counted, metric_places, number, percent, plain
from nearkin.distance.registry import about, title_of
from nearkin.report import confusion, curves, kinship, mistakes, reliability, spent
from nearkin.report.architecture import architecture_words, architectures
from nearkin.report.contest import contest, contest_table, contest_words, learned_words, refusals
from nearkin.report.html import Figure, Table, figure
from nearkin.report.layout import layout
from nearkin.report.page import pairs_table, ranking_table
from nearkin.report.taskmap import taskmap
from nearkin.solver.quality import Quality
from nearkin.solver.relations import Relations
from nearkin.solver.solution import Solution
from nearkin.tasks.metrics import ACCURACY

Section = Mapping[str, Any]
"""What a template is given, by name."""


def contest_section(solution: Solution) -> Section:
    """All contestants."""
    table, name = contest_table(solution), solution.quality.title
    caption = (
        f"Each mark is the {name} on the test part of one contestant that learned from part of the training data. "
    )
    if solution.quality.name == ACCURACY:
        caption += f"Its whisker is the 95 % interval of {counted(solution.quality.count)} samples. "
    caption += (
        "The dash is its result on the validation data, by which the answer was chosen. The ringed one was chosen."
    )
    return {
        "words": contest_words(solution),
        "metric": name,
        "learned": learned_words(solution),
        "final": _final(solution),
        "table": table,
        "refused": refusals(solution),
        "figure": figure(partial(contest, solution), "nk-contest", "Contest", caption, table),
    }


def _final(solution: Solution) -> str:
    """What `finals` are, with their figures."""
    finals, places = solution.finals, metric_places(solution.quality.count)
    if solution.chosen not in finals:
        return ""
    count, whole = solution.samples.get("finals", {}).get(solution.chosen), solution.task.get("num_train")
    learned = f", from {counted(count)} of {counted(whole)} training samples" if count and whole else ""
    said = (
        f"The winner was then trained again, with the validation data among its training data{learned}: "
        f"{number(finals[solution.chosen], places)} on the test part is the answer’s own figure."
    )
    others = [one for one in solution.standings if one.name in finals and one.name != solution.chosen]
    told = " and ".join(f"{plain(one.title)}, {number(finals[one.name], places)}" for one in others)
    return f"{said} So was the best simple model: {told}." if told else said


def kin_section(solution: Solution) -> Section:
    """Who is kin, by every measure, and what was taken from whom."""
    relations = solution.relations
    refused = [(plain(name), plain(why)) for name, why in relations.refused.items()]
    return {
        "words": kinship.kin_words(relations),
        "threshold": kinship.threshold_words(relations),
        "map": _map(solution),
        "rankings": [
            _ranking(place, measure, rows, relations)
            for place, (measure, rows) in enumerate(relations.rankings.items())
            if rows
        ],
        "agreement": kinship.agreement_table(relations),
        "refused": Table("Could not be compared", ("Task", "Why"), refused) if refused else None,
    }


def _ranking(place: int, measure: str, rows: Sequence[kinship.Row], relations: Relations) -> Figure:
    several = any(len(row.get("trials", ())) > 1 for row in rows)
    said = [text] if (text := about(measure)) else []
    said.append(
        "Whiskers: standard deviation over trials; small dots: single trials." if several else "One trial each."
    )
    if form := kinship.form_words(rows):
        said.append(form)
    if len(rows) > kinship.DRAWN:
        said.append(f"The nearest {kinship.DRAWN} of {len(rows)}.")
    return figure(
        partial(kinship.ranking_picture, measure, rows, relations),
        f"nk-ranking-{place}",
        f"Nearest by {title_of(measure)}",
        " ".join(said),
        kinship.ranking_table(measure, rows),
    )


def _map(solution: Solution) -> Figure | None:
    matrix = kinship.mapped(solution.matrix, solution.name)
    if matrix is None:
        return None
    target, placed = solution.name if solution.name in matrix.tasks else None, layout(matrix)
    caption = "Tasks that lie near each other are near by the measure; each is linked with its nearest kin."
    caption += f" The ringed one is {plain(solution.name)}." if target else ""
    if len(matrix.tasks) > 3:
        caption += (
            f" A flat map cannot hold every distance: this one is off by about {percent(placed.stress)} (stress)."
        )
    return figure(
        lambda width, _: taskmap(matrix, target, width=width, placed=placed),
        "nk-map",
        "Map",
        caption,
        ranking_table(matrix, target) if target else pairs_table(matrix),
    )


def cell_section(solution: Solution) -> Section:
    """Drawings of what searches found."""
    found = architectures(solution)
    return {"words": architecture_words(solution, found), "first": found[0] if found else None, "others": found[1:]}


def learning_section(solution: Solution) -> Section:
    """Curves of trainings and searches."""
    learning, searching = curves.learning(solution), curves.searching(solution)
    losses = search = None
    if learning:
        losses = figure(
            partial(curves.learning_picture, learning),
            "nk-learning",
            "Learning curves",
            "Training loss after so many steps, means over equal stretches. Networks see the data in other orders and "
            "widths, so only the shape and the end can be compared.",
            curves.learning_table(learning),
        )
    if searching:
        search = figure(
            partial(curves.search_picture, searching),
            "nk-search",
            "Search curves",
            "The best score that a search had seen after so many cells. The score is that of a short training of a "
            "small network: it ranks cells and is no result.",
            curves.search_table(solution, searching),
        )
    return {"losses": losses, "search": search, "searches": curves.searches_table(solution)}


def quality_section(solution: Solution) -> Section:
    """What the answer is worth, what it confuses, whether its certainty is earned."""
    quality = solution.quality
    heat = f"Class scores are divided by {solution.temperature:.3g} before they become probabilities; that number was "
    heat += "learned on the validation data."
    return {
        "words": _worth(quality),
        "classes": bool(quality.classes) and quality.name == ACCURACY,
        "confused": confusion.confusion_words(quality),
        "matrix": _matrix(quality),
        "worst": confusion.worst_table(quality),
        "by_class": confusion.classes_table(quality),
        "calibration": reliability.calibration_words(quality),
        "heat": heat if solution.temperature != 1 else "",
        "reliability": _reliability(quality),
        "scatter": _scatter(quality),
        "residuals": reliability.residual_words(quality),
        "mistakes": mistakes.seen_mistakes(solution),
        "mistakes_table": mistakes.mistakes_table(solution),
        "count": counted(quality.count),
    }


def _worth(quality: Quality) -> list[str]:
    places, (low, high) = metric_places(quality.count), quality.interval
    blind = "always the majority class of the training labels" if quality.name == ACCURACY else "always the mean"
    constant = f"The constant baseline, {blind}, gives {number(quality.guess, places)}"
    if (quality.best_constant or 0.0) > quality.guess:
        constant += f"; the best constant answer has {number(quality.best_constant or 0.0, places)}"
    return [
        f"On {counted(quality.count)} test samples, which nothing learned from and nothing was chosen by, the "
        f"{quality.title} is {number(quality.metric, places)}; with 95 % certainty that of all such data lies between "
        f"{number(low, places)} and {number(high, places)}.",
        f"{constant}. The mean loss is {number(quality.loss)}.",
    ]


def _matrix(quality: Quality) -> Figure | None:
    if not confusion.drawable(quality):
        return None
    return figure(
        partial(confusion.confusion_picture, quality),
        "nk-confusion",
        "Confusion matrix",
        "Rows are the classes that were given, columns what the model said. Blue, on the diagonal: right; orange: "
        "wrong.",
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
        "Test samples sorted by how sure the model was. On the dashed line it is right as often as it says. Larger "
        "points stand for more samples, whiskers are 95 % intervals.",
        reliability.calibration_table(quality),
    )


def _scatter(quality: Quality) -> Figure | None:
    if not quality.residuals:
        return None
    return figure(
        partial(reliability.residual_picture, quality),
        "nk-values",
        "Said against true",
        "Each point is one answer; on the dashed line it is exact.",
        reliability.residual_table(quality),
    )


def spent_section(solution: Solution) -> Section:
    """Where the time went."""
    stages = solution.stages
    if not stages:
        return {"words": spent.spent_words(stages), "figure": None}
    shown, caption = spent.gathered(stages), "Seconds of work of each stage."
    if any(stage.known for stage in stages):
        caption += " An open bar was done in an earlier run and kept."
    drawn = figure(
        partial(spent.spent_picture, shown),
        "nk-spent",
        "Time by stage",
        caption,
        spent.spent_table(stages),
    )
    return {"words": spent.spent_words(stages), "figure": drawn}
