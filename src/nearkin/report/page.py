"""Pages: one HTML file each, with all it needs inside, and nothing fetched."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from nearkin import __version__
from nearkin.core.text import MISSING, fact_text, number, plain
from nearkin.core.types import Facts
from nearkin.distance.matrix import DistanceMatrix
from nearkin.report.heatmap import DRAWN, NUMBERED, heatmap, reason
from nearkin.report.kin import answer, nearest_kin, position, require_drawable, scale_of
from nearkin.report.layout import layout
from nearkin.report.taskmap import WIDTH, taskmap
from nearkin.report.theme import page_style

_ALL_PAIRS = 40
_NEAREST = 10
_NARROW = 358


@dataclass(frozen=True)
class Table:
    """A table of a page.

    Attributes:
        caption: what it shows.
        heads: names of the columns.
        rows: cells as text.
        numeric: columns that are set to the right.
        marked: a row that is set off.
        tight: columns of single words, which are not broken.
        sortable: whether readers may order it by a column.
    """

    caption: str
    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numeric: frozenset[int] = frozenset()
    marked: int | None = None
    tight: frozenset[int] = frozenset()
    sortable: bool = True


@cache
def environment() -> Environment:
    """Templates of this room; every value is escaped unless it is `Markup`."""
    loader = PackageLoader("nearkin.report", "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def render(template: str, **values: Any) -> str:
    """A page from a template that extends `base.html`.

    The page may run the one script it brings and load nothing: the browser is told so by its content policy.
    """
    return environment().get_template(template).render(page=_frame(), **values)


@cache
def _frame() -> Mapping[str, str]:
    """What `base.html` puts around every page."""
    folder = files("nearkin.report") / "templates"
    script = "".join((folder / name).read_text("utf-8") for name in ("sort.js", "print.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return {
        "theme": Markup(page_style()),
        "style": Markup((folder / "style.css").read_text("utf-8")),
        "script": Markup(script),
        "script_hash": Markup(f"sha256-{digest}"),
        "version": __version__,
    }


def map_page(
    matrix: DistanceMatrix,
    taskinfo: Mapping[str, Facts] | None = None,
    *,
    target: str | None = None,
    title: str = "Task map",
    about: str = "",
    command: str = "",
) -> str:
    """The map of a task space as one HTML file: the answer in a sentence, the pictures, the figures behind them.

    Args:
        matrix: distances of the tasks.
        taskinfo: what is known of each task, plain values by name; one column for every name that occurs.
        target: a task to set off, whose kin are then listed in order.
        title: heading of the page.
        about: a sentence on the measure.
        command: what to type to get this page again.

    >>> import torch
    >>> matrix = DistanceMatrix(("a", "b"), "frechet", torch.tensor([[[0.0, 0.2], [0.4, 0.0]]]).double())
    >>> page = map_page(matrix, {"a": {"classes": 2}})
    >>> page.startswith("<!DOCTYPE html>"), "each other’s nearest kin" in page
    (True, True)
    """
    require_drawable(matrix)
    placed, size, trials = layout(matrix), len(matrix.tasks), len(matrix.trials)
    picture = heatmap(matrix) if size > 1 else ""
    counted = "one trial" if trials == 1 else f"{trials} trials"
    facts = [("tasks", str(size)), ("measure", plain(matrix.title)), ("measured in", counted)]
    if trials > 1 and size > 2:
        agreed = sum(kin.wins == kin.trials > 0 for kin in nearest_kin(matrix))
        facts.append(("same nearest kin in every trial", f"{agreed} of {size} tasks"))
    return render(
        "map.html",
        title=plain(title),
        answer=answer(matrix, target),
        target=None if target is None else plain(target),
        facts=facts,
        map=Markup(taskmap(matrix, target, placed=placed)) if size > 1 else "",
        map_width=WIDTH,
        map_narrow=Markup(taskmap(matrix, target, width=_NARROW, placed=placed)) if 1 < size <= _ALL_PAIRS else "",
        heatmap=Markup(picture),
        heatmap_width=picture.partition('width="')[2].partition('"')[0],
        spread_shown=_spread_shown(size) if trials > 1 else "",
        stress=_stress(placed.stress) if size > 3 else "",
        shift=number(-placed.shift) if placed.shift else "",
        ranking=_ranking(matrix, target) if target is not None and size > 1 else None,
        kin=_kin_table(matrix, target),
        pairs=_pairs(matrix),
        pairs_title=_pairs_title(matrix),
        tasks=_tasks(matrix, taskinfo or {}, target),
        measure=plain(matrix.title),
        about=plain(about),
        trials=trials,
        command=plain(command),
    )


def _stress(stress: float) -> str:
    """How far a reader may trust the map."""
    if stress < 0.005:
        return "The plane holds all the distances (stress 0)."
    judged = (
        "fairly true" if stress < 0.1 else "a sketch" if stress < 0.2 else "a rough sketch: trust the figures below"
    )
    return (
        f"A flat map cannot hold every distance; this one is off by about {stress:.0%} (stress {stress:.2f}), {judged}."
    )


def _spread_shown(size: int) -> str:
    if size <= NUMBERED:
        return "Below each mean stands its standard deviation over trials."
    return "The side of an inner square grows with the standard deviation over trials." if size <= DRAWN else ""


def _ranking(matrix: DistanceMatrix, target: str) -> Table:
    names, mean, std, places = *_values(matrix), scale_of(matrix)
    own = position(matrix, target)
    rows = [
        (str(rank), names[a], number(mean[a][own], places), _spread(std[a][own], places), number(mean[own][a], places))
        for rank, a in enumerate(nearest_kin(matrix)[own].order, 1)
    ]
    heads = ("Rank", "Source", "Distance", "±", "Back")
    return Table(f"Kin of {plain(target)}, nearest first", heads, rows, frozenset({0, 2, 3, 4}))


def _kin_table(matrix: DistanceMatrix, target: str | None) -> Table:
    names, mean, _, places = *_values(matrix), scale_of(matrix)
    rows = []
    for kin in nearest_kin(matrix):
        first, second = (names[place] for place in kin.order[:1]), (names[place] for place in kin.order[1:2])
        back = number(mean[kin.target][kin.source], places) if kin.source is not None else MISSING
        shown = (number(kin.distance, places), _spread(kin.std, places), back)
        wins = f"{kin.wins} of {kin.trials}" if kin.trials else MISSING
        follow = (next(second, MISSING), number(kin.margin, places), wins)
        rows.append((names[kin.target], next(first, MISSING), *shown, *follow))
    heads = ("Target", "Nearest kin", "Distance", "±", "Back", "Second", "Farther by", "First in")
    marked = None if target is None else position(matrix, target)
    return Table("The nearest kin of every task", heads, rows, frozenset({2, 3, 4, 6, 7}), marked)


def _pairs_title(matrix: DistanceMatrix) -> str:
    size = len(matrix.tasks)
    if size > _ALL_PAIRS:
        return f"The {_NEAREST} nearest sources of every target"
    return f"All {size * (size - 1)} pairs"


def _pairs(matrix: DistanceMatrix) -> Table:
    """Every pair, or of a large matrix the nearest sources of every target, nearest first."""
    names, mean, std, places = *_values(matrix), scale_of(matrix)
    size, rows = len(names), []
    for kin in nearest_kin(matrix):
        b = kin.target
        kept = kin.order if size <= _ALL_PAIRS else kin.order[:_NEAREST]
        for rank, a in enumerate(kept, 1):
            there, back = mean[a][b], mean[b][a]
            shown = (number(there, places), _spread(std[a][b], places), number(back, places))
            rows.append((names[b], names[a], str(rank), *shown, number(back - there, places), ""))
        for a in range(size):
            if a != b and a not in kin.order:
                blank = (MISSING,) * 3
                why = reason(matrix, a, b).strip(" ()") or "not comparable"
                rows.append((names[b], names[a], *blank, number(mean[b][a], places), MISSING, why))
    noted = any(row[-1] for row in rows)
    heads = ("Target", "Source", "Rank", "Distance", "±", "Back", "Difference", "Note")
    cut = len(heads) if noted else len(heads) - 1
    return Table(_pairs_title(matrix), heads[:cut], [row[:cut] for row in rows], frozenset({2, 3, 4, 5, 6}))


def _tasks(matrix: DistanceMatrix, taskinfo: Mapping[str, Facts], target: str | None) -> Table | None:
    known = [taskinfo.get(task, {}) for task in matrix.tasks]
    columns = list(dict.fromkeys(key for facts in known for key in facts))
    if not columns:
        return None
    rows = [
        (plain(task), *(fact_text(facts.get(key)) for key in columns))
        for task, facts in zip(matrix.tasks, known, strict=True)
    ]
    numeric = [
        place
        for place, key in enumerate(columns, 1)
        if all(_is_number(facts.get(key)) for facts in known if key in facts)
    ]
    heads = ("Task", *(plain(key).replace("_", " ").capitalize() for key in columns))
    marked = None if target is None else position(matrix, target)
    return Table("What is known of the tasks", heads, rows, frozenset(numeric), marked)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _values(matrix: DistanceMatrix) -> tuple[list[str], list[list[float]], list[list[float]]]:
    return [plain(task) for task in matrix.tasks], matrix.mean.tolist(), matrix.std.tolist()


def _spread(std: float, places: int) -> str:
    return number(std, places) if std > 0 else MISSING
