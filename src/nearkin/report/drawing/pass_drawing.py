"""Drawing of one pass of an interleaved search: the turns of the tasks, what they pass on, the architecture."""

import itertools
from collections.abc import Sequence

from nearkin.core.errors import require
from nearkin.core.text import counted
from nearkin.report.drawing.graph_drawing import arrow_head
from nearkin.report.labels import shorten, text_width
from nearkin.report.svg import Canvas, Point, curve, point

ROW = 58.0
BOX = (30.0, 34.0)
SHOWN = 12
"""Largest number of turns that are drawn one by one; of more, those of the first and the last round are drawn."""

_TOP, _MARGIN, _SIZE = 46.0, 14.0, 12.0


def draw_pass(tasks: Sequence[str], num_rounds: int, width: int, name: str = "pass", *, transfer: bool = True) -> str:
    """SVG of a pass: a row for each task, a box for each of its turns, and the architecture at the end.

    Args:
        tasks: names of the tasks in the order of their turns.
        num_rounds: number of rounds.
        width: width of the picture in pixels.
        name: makes its ids unique in a page.
        transfer: whether tasks learn from the one before them; if not, no arrows lead from turn to turn.

    >>> svg = draw_pass(["low", "high"], 2, 600)
    >>> svg.count(">W<"), "round 2" in svg
    (4, True)
    """
    require(len(tasks) >= 1 and num_rounds >= 1, f"got {len(tasks)} tasks and {num_rounds} rounds, expected some")
    rounds = list(range(1, num_rounds + 1))
    if len(tasks) * num_rounds > SHOWN and num_rounds > 2:
        rounds = [1, num_rounds]
    left = min(0.3 * width, max(text_width(task, _SIZE) for task in tasks)) + 2 * _MARGIN
    columns = len(rounds) * len(tasks)
    step = (width - left - _MARGIN) / (columns + 1.2)
    canvas = Canvas(width, _TOP + ROW * len(tasks) + 34)
    places = [(left + step * (number + 0.5), _TOP + ROW * (number % len(tasks) + 0.5)) for number in range(columns)]
    _rows(canvas, tasks, left, width)
    for position, number in enumerate(rounds):
        start = left + step * len(tasks) * position
        _round(canvas, f"round {number}", (start, start + step * len(tasks)), canvas.height - 34)
    half = min(BOX[0], 0.62 * step) / 2
    for before, after in itertools.pairwise(places if transfer else ()):
        jump = len(rounds) < num_rounds and after == places[len(tasks)]
        _arrow(canvas, (before[0] + half, before[1]), (after[0] - half, after[1]), "kin", dashed=jump)
    end = (left + step * (columns + 0.6), _TOP + ROW * len(tasks) / 2)
    for place in places[-len(tasks) :]:
        _arrow(canvas, (place[0] + half, place[1]), (end[0] - half, end[1]), "target")
    for place in places:
        _box(canvas, place, half, "W", "kin")
    _box(canvas, end, half, "A", "target")
    _legend(canvas, left, transfer)
    title = f"One pass: {counted(num_rounds, 'round')} of {counted(len(tasks), 'task')}"
    taught = " and from the encoder of the task before it" if transfer else ""
    spoken = (
        f"In each round {', then '.join(tasks)} learn in turn; each learns from its own labels{taught}. After the last "
        f"round the shared architecture learns from the validation data of all."
    )
    return canvas.svg(name, title, spoken)


def _rows(canvas: Canvas, tasks: Sequence[str], left: float, width: float) -> None:
    for number, task in enumerate(tasks):
        middle = _TOP + ROW * (number + 0.5)
        canvas.line((left, middle), (width - _MARGIN, middle), dashed=True)
        canvas.text(left - _MARGIN, middle + 4, shorten(task, _SIZE, left - 2 * _MARGIN + 1), size=_SIZE, anchor="end")


def _round(canvas: Canvas, words: str, span: Point, bottom: float) -> None:
    canvas.rect((span[0] + 3, _TOP), (span[1] - span[0] - 6, bottom - _TOP), radius=8, stroke="line")
    canvas.text(sum(span) / 2, _TOP - 8, words, size=_SIZE, fill="muted", anchor="middle")


def _box(canvas: Canvas, place: Point, half: float, words: str, role: str) -> None:
    height = BOX[1]
    canvas.rect(
        (place[0] - half, place[1] - height / 2), (2 * half, height), radius=6, fill="panel", stroke=role, width=1.5
    )
    canvas.text(place[0], place[1] + 4.5, words, size=13, fill=role, anchor="middle", bold=True)


def _arrow(canvas: Canvas, start: Point, end: Point, role: str, *, dashed: bool = False) -> None:
    tip = (end[0] - 5, end[1])
    canvas.path(f"M{point(start)}{curve(start, tip)}", stroke=role, width=1.4, dashed=dashed)
    arrow_head(canvas, end, fill=role)


def _legend(canvas: Canvas, left: float, transfer: bool) -> None:
    y, x = canvas.height - 10, left
    entries = (("kin", "transfer to the next task"), ("target", "validation"))
    if canvas.width < 520:
        entries = (("kin", "transfer"), ("target", "validation"))
    for role, words in entries if transfer else entries[1:]:
        canvas.line((x, y - 4), (x + 20, y - 4), stroke=role, width=1.8)
        canvas.text(x + 26, y, words, size=_SIZE, fill="muted")
        x += 26 + text_width(words, _SIZE) + 22
