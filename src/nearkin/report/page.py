"""The map of a task space as one HTML page."""

from collections.abc import Mapping
from typing import Any

from nearkin.core.text import MISSING, fact_text, number, percent, plain
from nearkin.core.types import Facts
from nearkin.distance.matrix import DistanceMatrix
from nearkin.report.glossary import glossary
from nearkin.report.heatmap import DRAWN, NUMBERED, heatmap, reason
from nearkin.report.html import Figure, HtmlTable, figure, render
from nearkin.report.map_layout import MapLayout, layout
from nearkin.report.nearest_kin import answer, nearest_kin, position, require_drawable, scale_of
from nearkin.report.taskmap import taskmap

_ALL_PAIRS = 40
_NEAREST = 10


def map_page(
    matrix: DistanceMatrix,
    taskinfo: Mapping[str, Facts] | None = None,
    *,
    target: str | None = None,
    title: str = "Task map",
    about: str = "",
    command: str = "",
) -> str:
    """The map of a task space as one HTML file: a sentence, the pictures, and tables of all figures.

    Args:
        matrix: distances of the tasks.
        taskinfo: facts about each task, as plain values by name; one column for every name.
        target: a task to highlight, whose kin are listed in order.
        title: heading of the page.
        about: a sentence on the measure.
        command: the command that made the page.

    >>> import torch
    >>> matrix = DistanceMatrix(("a", "b"), "frechet", torch.tensor([[[0.0, 0.2], [0.4, 0.0]]]).double())
    >>> page = map_page(matrix, {"a": {"classes": 2}})
    >>> page.startswith("<!DOCTYPE html>"), "each other’s nearest kin" in page
    (True, True)
    """
    values = map_values(matrix, taskinfo, target=target, title=title, about=about, command=command)
    return render("map.html", map=values)


def map_values(
    matrix: DistanceMatrix,
    taskinfo: Mapping[str, Facts] | None = None,
    *,
    target: str | None = None,
    title: str = "Task map",
    about: str = "",
    command: str = "",
) -> Mapping[str, Any]:
    """Values for the macros of `map_parts.html`; arguments as in `map_page`."""
    require_drawable(matrix)
    placed, size, trials = layout(matrix), len(matrix.tasks), len(matrix.trials)
    counted = "one trial" if trials == 1 else f"{trials} trials"
    facts = [("tasks", str(size)), ("measure", plain(matrix.title)), ("measured in", counted)]
    if trials > 1 and size > 2:
        same = sum(kin.wins == kin.trials > 0 for kin in nearest_kin(matrix))
        facts.append(("same nearest kin in every trial", f"{same} of {size} tasks"))
    return {
        "title": plain(title),
        "answer": answer(matrix, target),
        "facts": facts,
        "figures": _figures(matrix, target, placed) if size > 1 else None,
        "shift": number(-placed.shift) if placed.shift else "",
        "ranking": ranking_table(matrix, target) if target is not None and size > 1 else None,
        "kin": _kin_table(matrix, target),
        "pairs": pairs_table(matrix),
        "tasks": _tasks_table(matrix, taskinfo or {}, target),
        "measure": plain(matrix.title),
        "about": plain(about),
        "trials": trials,
        "command": plain(command),
        "glossary": glossary("map"),
    }


def _figures(matrix: DistanceMatrix, target: str | None, placed: MapLayout) -> tuple[Figure, Figure]:
    """The map and the heat map."""
    size, several = len(matrix.tasks), len(matrix.trials) > 1
    reason_plain = "the trials show no difference" if several else "both are equal or one is unknown"
    near = (
        "Tasks that lie near each other have a small distance. A line links every task with its nearest kin. An arrow "
        "points from source to target in the nearer direction; it is wider if the two directions differ more. A line "
        f"without an arrow means that {reason_plain}."
    )
    halo = (
        "The radius of the circle around a task is the mean standard deviation of its distances over trials."
        if several
        else ""
    )
    pairs = (
        "A row is a source, the task that is already solved; a column is a target, the task to be solved. Bright cells "
        "are near. Read down a column to find the sources for its task; the nearest one is outlined."
    )
    own = "The diagonal compares a task with itself and has no colour."
    return (
        figure(
            lambda width, _: taskmap(matrix, target, width=width, placed=placed),
            "nk-map",
            "Map",
            " ".join(filter(None, (near, halo, _stress(placed.stress) if size > 3 else ""))),
            narrow=size <= _ALL_PAIRS,
        ),
        figure(
            lambda *_: heatmap(matrix),
            "nk-heatmap",
            "Heat map",
            " ".join(filter(None, (pairs, _spread_shown(size) if several else "", own))),
            narrow=False,
        ),
    )


def _stress(stress: float) -> str:
    """How exact the map is."""
    if stress < 0.005:
        return "The map shows all distances exactly (stress 0)."
    verdict = "fairly exact" if stress < 0.1 else "a sketch" if stress < 0.2 else "a rough sketch: use the tables below"
    off = f"{percent(stress)} (stress {stress:.2f})"
    return f"A flat map cannot show all distances exactly. These are off by about {off}: {verdict}."


def _spread_shown(size: int) -> str:
    if size <= NUMBERED:
        return "Below each mean is its standard deviation over trials."
    return "A larger inner square means a larger standard deviation over trials." if size <= DRAWN else ""


def ranking_table(matrix: DistanceMatrix, target: str) -> HtmlTable:
    """The kin of a target, nearest first."""
    names, mean, std, places = *_values(matrix), scale_of(matrix)
    own = position(matrix, target)
    rows = [
        (str(rank), names[a], number(mean[a][own], places), _spread(std[a][own], places), number(mean[own][a], places))
        for rank, a in enumerate(nearest_kin(matrix)[own].order, 1)
    ]
    heads = ("Rank", "Source", "Distance", "±", "Distance back")
    return HtmlTable(f"Kin of “{plain(target)}”, nearest first", heads, rows, frozenset({0, 2, 3, 4}))


def _kin_table(matrix: DistanceMatrix, target: str | None) -> HtmlTable:
    names, mean, _, places = *_values(matrix), scale_of(matrix)
    rows = []
    for kin in nearest_kin(matrix):
        first, second = (next((names[row] for row in kin.order[rank : rank + 1]), MISSING) for rank in (0, 1))
        back = number(mean[kin.target][kin.source], places) if kin.source is not None else MISSING
        shown = (number(kin.distance, places), _spread(kin.std, places), back)
        wins = f"{kin.wins} of {kin.trials}" if kin.trials else MISSING
        rows.append((names[kin.target], first, *shown, second, number(kin.margin, places), wins))
    heads = ("Target", "Nearest kin", "Distance", "±", "Distance back", "Second", "Farther by", "Nearest in")
    marked = None if target is None else position(matrix, target)
    return HtmlTable("The nearest kin of every task", heads, rows, frozenset({2, 3, 4, 6, 7}), marked)


def pairs_table(matrix: DistanceMatrix) -> HtmlTable:
    """Every pair, or of a large matrix the nearest sources of every target, nearest first."""
    names, mean, std, places = *_values(matrix), scale_of(matrix)
    size, rows = len(names), []
    for kin in nearest_kin(matrix):
        b = kin.target
        for rank, a in enumerate(kin.order if size <= _ALL_PAIRS else kin.order[:_NEAREST], 1):
            forward, back = mean[a][b], mean[b][a]
            shown = (number(forward, places), _spread(std[a][b], places), number(back, places))
            rows.append((names[b], names[a], str(rank), *shown, number(back - forward, places), ""))
        for a in range(size):
            if a != b and a not in kin.order:
                blank = (MISSING,) * 3
                why = reason(matrix, a, b).strip(" ()") or "not comparable"
                rows.append((names[b], names[a], *blank, number(mean[b][a], places), MISSING, why))
    columns = 8 if any(row[-1] for row in rows) else 7
    heads = ("Target", "Source", "Rank", "Distance", "±", "Distance back", "Difference", "Note")
    title = f"The {_NEAREST} nearest sources of every target"
    title = f"All {size * (size - 1)} pairs" if size <= _ALL_PAIRS else title
    return HtmlTable(title, heads[:columns], [row[:columns] for row in rows], frozenset({2, 3, 4, 5, 6}))


def _tasks_table(matrix: DistanceMatrix, taskinfo: Mapping[str, Facts], target: str | None) -> HtmlTable | None:
    known = [taskinfo.get(task, {}) for task in matrix.tasks]
    columns = list(dict.fromkeys(key for facts in known for key in facts))
    if not columns:
        return None
    rows = [
        (plain(task), *(fact_text(facts.get(key)) for key in columns))
        for task, facts in zip(matrix.tasks, known, strict=True)
    ]
    numeric = [
        column
        for column, key in enumerate(columns, 1)
        if all(_is_number(facts.get(key)) for facts in known if key in facts)
    ]
    heads = ("Task", *(plain(key).replace("_", " ").capitalize() for key in columns))
    marked = None if target is None else position(matrix, target)
    return HtmlTable("Facts about the tasks", heads, rows, frozenset(numeric), marked)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _values(matrix: DistanceMatrix) -> tuple[list[str], list[list[float]], list[list[float]]]:
    return [plain(task) for task in matrix.tasks], matrix.mean.tolist(), matrix.std.tolist()


def _spread(std: float, places: int) -> str:
    return number(std, places) if std > 0 else MISSING
