"""Training losses of the contenders over steps, and the best scores of their searches, as charts and tables."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from nearkin.core.numbers import real_number
from nearkin.core.text import MISSING, counted, duration, metric_places, number, plain
from nearkin.report.axes import NARROW, Field, Scale, frame, scale_around
from nearkin.report.html import HtmlTable
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
    """A line of a chart; that of the chosen contender is highlighted."""

    title: str
    points: tuple[Point, ...]
    chosen: bool


def loss_curves(solution: Solution) -> list[Curve]:
    """Training loss by step of every contender that was trained in steps."""
    return _curves(solution, lambda result: result.curve)


def search_curves(solution: Solution) -> list[Curve]:
    """Best score by number of evaluated cells, of every search."""
    return _curves(solution, lambda result: (result.search or {}).get("history", ()))


def _curves(solution: Solution, points_of: Callable[[Result], Iterable[Point]]) -> list[Curve]:
    curves = []
    for result in solution.standings:
        pairs = ((float(x), float(y)) for x, y in points_of(result))
        points = tuple(pair for pair in pairs if all(map(math.isfinite, pair)))
        if points:
            curves.append(Curve(plain(result.title), points, result.name == solution.chosen))
    return curves


def loss_picture(curves: Sequence[Curve], width: int, name: str = "nk-learning") -> str:
    """SVG of losses, on a logarithmic scale if all are above zero."""
    log = all(y > 0 for curve in curves for _, y in curve.points)
    words = ("steps", "training loss" + (", logarithmic" if log else ""))
    ends = [f"{curve.title} ends at {number(curve.points[-1][1])}" for curve in curves if curve.chosen]
    spoken = f"Training losses of {len(curves)} contenders. {'; '.join(ends)}".strip()
    return chart(curves, width, words, log=log, steps=False).svg(name, "Learning curves", f"{spoken.rstrip('.')}.")


def search_picture(curves: Sequence[Curve], width: int, name: str = "nk-search") -> str:
    """SVG of best scores, as steps."""
    ends = [f"{curve.title} reaches {number(curve.points[-1][1])}" for curve in curves]
    words = ("cells tried", "best score so far")
    return chart(curves, width, words, log=False, steps=True).svg(name, "Search curves", f"{'; '.join(ends)}.")


def chart(curves: Sequence[Curve], width: int, words: tuple[str, str], *, log: bool, steps: bool) -> Canvas:
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
            corners = ((point, (after[0], point[1])) for point, after in itertools.pairwise(points))
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


def loss_table(curves: Sequence[Curve]) -> HtmlTable:
    """Training losses at the quarters of every curve."""
    return _table("Training loss during training", "Steps", curves, 4)


def search_table(solution: Solution, curves: Sequence[Curve]) -> HtmlTable:
    """Best scores at the quarters of every search."""
    return _table("Best score during the search", "Cells tried", curves, metric_places(solution.quality.count))


def _table(caption: str, unit: str, curves: Sequence[Curve], places: int) -> HtmlTable:
    rows = []
    for curve in curves:
        at = [curve.points[round(share * (len(curve.points) - 1))] for share in _QUARTERS]
        title = f"✔ {curve.title} (chosen)" if curve.chosen else curve.title
        rows.append((title, counted(curve.points[-1][0]), *(number(y, places) for _, y in at)))
    heads = ("Contender", unit, "First", "A quarter", "Half", "Three quarters", "Last")
    marked = next((row for row, curve in enumerate(curves) if curve.chosen), None)
    return HtmlTable(caption, heads, rows, frozenset(range(1, 7)), marked)


def searches_table(solution: Solution) -> HtmlTable | None:
    """Method, cells, seconds and end of every search."""
    rows = []
    for result in solution.standings:
        if result.search:
            facts = result.search
            score = facts.get("best", {}).get("score")
            rows.append((
                plain(result.title),
                plain(current_method(str(facts.get("method", MISSING)))),
                counted(facts.get("evaluations", 0)),
                number(float(facts.get("seconds", math.nan)), 1),
                MISSING if score is None else number(float(score), metric_places(solution.quality.count)),
                _end_text(plain(str(facts.get("reason", "")))),
            ))  # fmt: skip
    heads = ("Search", "Method", "Cells tried", "Seconds", "Best score", "Ended after")
    return HtmlTable("The searches", heads, rows, frozenset({2, 3, 4}), tight=frozenset({1})) if rows else None


def _end_text(reason: str) -> str:
    """Why a search ended; minutes as a duration.

    >>> _end_text("0.0382 minutes"), _end_text("16 evaluations"), _end_text("")
    ('2.3 s', '16 evaluations', '–')
    """
    amount, _, unit = reason.partition(" ")
    minutes = real_number(amount)
    if unit == "minutes" and minutes is not None:
        return duration(60 * minutes)
    return reason or MISSING
