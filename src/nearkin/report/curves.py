"""Curves: training losses of the contestants, and the best score of their searches."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from nearkin.core.numbers import real_number
from nearkin.core.text import MISSING, counted, duration, metric_places, number, plain
from nearkin.report.axes import NARROW, Field, Scale, frame, scale_around
from nearkin.report.html import Table
from nearkin.report.labels import labels, spread, text_width
from nearkin.report.svg import Canvas, Point
from nearkin.search.searcher import current_method
from nearkin.solver.result import Result
from nearkin.solver.solution import Solution

_NAME = 11.0
_ROOM = 14.0
_QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Curve:
    """A line of a chart: points in order, and whether it is the one to look at."""

    title: str
    points: tuple[Point, ...]
    chosen: bool


def learning(solution: Solution) -> list[Curve]:
    """Training losses by step, of all that have any."""
    return _curves(solution, {one.name: list(one.curve) for one in solution.standings})


def searching(solution: Solution) -> list[Curve]:
    """The best score after so many evaluations, of all that were searched."""
    found = {one.name: _history(one) for one in solution.standings}
    return _curves(solution, found)


def _history(one: Result) -> list[Point]:
    return [(float(count), float(score)) for count, score in (one.search or {}).get("history", ())]


def _curves(solution: Solution, found: dict[str, list[Point]]) -> list[Curve]:
    kept = []
    for one in solution.standings:
        points = tuple((float(x), float(y)) for x, y in found[one.name] if math.isfinite(x) and math.isfinite(y))
        if points:
            kept.append(Curve(plain(one.title), points, one.name == solution.chosen))
    return kept


def learning_picture(curves: Sequence[Curve], width: int, name: str = "nk-learning") -> str:
    """SVG of losses, on a logarithmic scale where all are above zero."""
    log = all(y > 0 for curve in curves for _, y in curve.points)
    words = ("steps", "training loss" + (", logarithmic" if log else ""))
    ends = [f"{curve.title} ends at {number(curve.points[-1][1])}" for curve in curves if curve.chosen]
    spoken = f"Training losses of {len(curves)} contestants. {'; '.join(ends)}".strip()
    return _chart(curves, width, words, log=log, steps=False).svg(name, "Learning curves", f"{spoken.rstrip('.')}.")


def search_picture(curves: Sequence[Curve], width: int, name: str = "nk-search") -> str:
    """SVG of best scores, as steps."""
    ends = [f"{curve.title} reaches {number(curve.points[-1][1])}" for curve in curves]
    words = ("cells that were tried", "best score so far")
    return _chart(curves, width, words, log=False, steps=True).svg(name, "Search curves", f"{'; '.join(ends)}.")


def _chart(curves: Sequence[Curve], width: int, words: tuple[str, str], *, log: bool, steps: bool) -> Canvas:
    """The curves with their names at the right, the chosen one above the others."""
    narrow, values = width <= NARROW, [point for curve in curves for point in curve.points]
    short = labels((curve.title for curve in curves), _NAME, 92.0 if narrow else 170.0)
    room = max(text_width(text, _NAME, bold=curve.chosen) for text, curve in zip(short, curves, strict=True))
    tall = max(250.0 if narrow else 290.0, _ROOM * len(curves) + 10)
    field = Field(46.0 if narrow else 54.0, 30.0, width - room - 26, 30.0 + tall)
    draw = Canvas(width, round(field.bottom + 42))
    x = Scale(0.0, max(x for x, _ in values) or 1.0, field.left, field.right, whole=True)
    y = scale_around((y for _, y in values), field.bottom, field.top + 4, log=log)
    frame(draw, field, x, y, words)
    for curve in sorted(curves, key=lambda curve: curve.chosen):
        points = [(x(across), y(up)) for across, up in curve.points]
        if steps:
            corners = ((one, (other[0], one[1])) for one, other in itertools.pairwise(points))
            points = [*itertools.chain.from_iterable(corners), points[-1]]
        colour, wide = ("target", 2.6) if curve.chosen else ("kin", 1.3)
        if len(points) > 1:
            draw.line(*points, stroke=colour, width=wide, tip=curve.title)
        draw.circle(*points[-1], 3.4 if curve.chosen else 2.4, fill=colour)
    ends = [(x(curve.points[-1][0]), y(curve.points[-1][1])) for curve in curves]
    heights, left = spread([down for _, down in ends], _ROOM, field.top + 4, field.bottom), field.right + 16
    for curve, text, end, height in zip(curves, short, ends, heights, strict=True):
        draw.line(end, (max(end[0], field.right) + 4, end[1]), (left - 3, height), stroke="arrow", width=0.7)
        colour = "target" if curve.chosen else "ink"
        draw.text(left, height + 4, text, size=_NAME, fill=colour, bold=curve.chosen, tip=curve.title)
    return draw


def learning_table(curves: Sequence[Curve]) -> Table:
    """Every curve at its quarters."""
    return _table("Training loss on the way", "Steps", curves, 4)


def search_table(solution: Solution, curves: Sequence[Curve]) -> Table:
    """Best scores at the quarters of every search."""
    return _table("Best score on the way", "Cells tried", curves, metric_places(solution.quality.count))


def _table(caption: str, unit: str, curves: Sequence[Curve], places: int) -> Table:
    rows = []
    for curve in curves:
        at = [curve.points[round(share * (len(curve.points) - 1))] for share in _QUARTERS]
        title = f"✔ {curve.title} (chosen)" if curve.chosen else curve.title
        rows.append((title, counted(curve.points[-1][0]), *(number(y, places) for _, y in at)))
    heads = ("Contestant", unit, "First", "A quarter", "Half", "Three quarters", "Last")
    marked = next((place for place, curve in enumerate(curves) if curve.chosen), None)
    return Table(caption, heads, rows, frozenset(range(1, 7)), marked)


def searches_table(solution: Solution) -> Table | None:
    """What every search did: method, cells, seconds, why it ended."""
    rows = []
    for one in solution.standings:
        if one.search:
            facts = one.search
            score = facts.get("best", {}).get("score")
            rows.append((
                plain(one.title),
                plain(current_method(str(facts.get("method", MISSING)))),
                counted(facts.get("evaluations", 0)),
                number(float(facts.get("seconds", math.nan)), 1),
                MISSING if score is None else number(float(score), metric_places(solution.quality.count)),
                _ended(plain(str(facts.get("reason", "")))),
            ))  # fmt: skip
    heads = ("Search", "Method", "Cells tried", "Seconds", "Best score", "Ended by")
    return Table("The searches", heads, rows, frozenset({2, 3, 4}), tight=frozenset({1})) if rows else None


def _ended(reason: str) -> str:
    """Why a search ended; minutes as people write them.

    >>> _ended("0.0382 minutes"), _ended("16 evaluations"), _ended("")
    ('2.3 s', '16 evaluations', '–')
    """
    number_of, _, unit = reason.partition(" ")
    minutes = real_number(number_of)
    if unit == "minutes" and minutes is not None:
        return duration(60 * minutes)
    return reason or MISSING
