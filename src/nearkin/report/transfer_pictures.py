"""Pictures of a transfer: what every way came to, and whether its certainty is earned."""

import math
from collections.abc import Sequence

from nearkin.core.text import number, plain
from nearkin.report.axes import FONT, NARROW, Field, Scale, scale_around, whisker, x_axis
from nearkin.report.labels import labels, text_width
from nearkin.report.reliability import draw_bins
from nearkin.report.svg import Canvas
from nearkin.tasks.metrics import share_interval
from nearkin.transfer.outcome import TransferScores

_NAME = 12.0
_ROW = 30.0
_TITLE, _BELOW, _GAP = 44.0, 24.0, 26.0  # above, below and between panels
_HALVES = (0.0, 0.5, 1.0)


def ways_picture(
    ways: Sequence[TransferScores], metric: str, num_test: int, guess: float, width: int, name: str = "nk-ways"
) -> str:
    """SVG of the metric of every way, the closed form first; shares have the 95 % interval of the test samples."""
    shares = metric == "accuracy"
    room = 110.0 if width <= NARROW else 190.0
    short = labels((one.name for one in ways), _NAME, room)
    left = max(text_width(text, _NAME, bold=place == 0) for place, text in enumerate(short)) + 16
    ends = [share_interval(one.metric, num_test) if shares else (one.metric, one.metric) for one in ways]
    field = Field(left, 24.0, width - 18.0, 24.0 + _ROW * len(ways))
    draw = Canvas(width, round(field.bottom + 40))
    bounds = (0.0, 1.0) if shares else (-math.inf, 1.0)
    x = scale_around([guess, *(end for pair in ends for end in pair)], field.left, field.right, bounds=bounds)
    x_axis(draw, field, x, metric, grid=True)
    draw.line((x(guess), field.top - 4), (x(guess), field.bottom), stroke="muted", dashed=True, tip="a blind guess")
    anchor = "start" if x(guess) < (field.left + field.right) / 2 else "end"
    draw.text(x(guess), field.top - 10, "a blind guess", size=FONT, fill="muted", anchor=anchor)
    for place, (one, text, (low, high)) in enumerate(zip(ways, short, ends, strict=True)):
        y, colour = field.top + _ROW * (place + 0.5), "target" if place == 0 else "kin"
        draw.text(
            0, y + 4, text, size=_NAME, fill=colour if place == 0 else "ink", bold=place == 0, tip=plain(one.name)
        )
        if shares:
            whisker(draw, (x(low), y), (x(high), y), stroke=colour)
        tip = f"{plain(one.name)}: {metric} {number(one.metric)}"
        draw.circle(x(one.metric), y, 5.5, fill=colour, stroke="paper", tip=tip)
    spoken = "; ".join(f"{plain(one.name)} {number(one.metric)}" for one in ways)
    return draw.svg(name, f"The {metric} of every way", f"{spoken}. A blind guess: {number(guess)}.")


def certainty_picture(ways: Sequence[TransferScores], shares: bool, width: int, name: str = "nk-certainty") -> str:
    """SVG of what happened against what was said, a panel for each way.

    Args:
        ways: with their bins.
        shares: of classes, the share that was right; else the share of values within central intervals.
        width: of the picture.
        name: of its ids.
    """
    columns = min(len(ways), 2 if width <= NARROW else 3)
    left, gap = (41.0, 8.0) if width <= NARROW else (44.0, _GAP)
    side = min(230.0, (width - 8 - columns * left - (columns - 1) * gap) / columns)
    rows = math.ceil(len(ways) / columns)
    tall = _TITLE + side + _BELOW
    draw = Canvas(width, round(rows * tall + (rows - 1) * 10 + 22))
    for place, one in enumerate(ways):
        across, down = place % columns, place // columns
        corner = left + across * (side + left + gap), down * (tall + 10) + _TITLE
        field = Field(*corner, corner[0] + side, corner[1] + side)
        _panel(draw, field, one, shares, chosen=place == 0)
        if across == 0:
            draw.text(9, field.top + side / 2, "share right" if shares else "share inside", size=FONT, fill="muted",
                      anchor="middle", angle=90)  # fmt: skip
        if place + columns >= len(ways):
            word = "how sure it was" if shares else "level of the interval"
            draw.text(field.right, field.bottom + 33, word, size=FONT, fill="muted", anchor="end")
    spoken = "; ".join(f"{plain(one.name)} is off by {number(one.ece)}" for one in ways)
    return draw.svg(name, "Certainty and truth", f"On the dashed lines certainty is earned. {spoken}.")


def _panel(draw: Canvas, field: Field, one: TransferScores, shares: bool, *, chosen: bool) -> None:
    x, y = Scale(0.0, 1.0, field.left, field.right), Scale(0.0, 1.0, field.bottom, field.top)
    colour, title = "target" if chosen else "kin", labels([one.name], _NAME, field.right - field.left)[0]
    draw.text(field.left, field.top - 26, title, size=_NAME, fill="target" if chosen else "ink", bold=chosen,
              tip=plain(one.name))  # fmt: skip
    draw.text(field.left, field.top - 10, f"off by {number(one.ece)}", size=FONT, fill="muted")
    for tick in _HALVES:
        draw.line((field.left, y(tick)), (field.right, y(tick)), stroke="line", width=0.8)
        draw.line((x(tick), field.top), (x(tick), field.bottom), stroke="line", width=0.8)
        draw.text(field.left - 6, y(tick) + 4, f"{tick:g}", size=FONT, fill="muted", anchor="end")
        draw.text(x(tick), field.bottom + 16, f"{tick:g}", size=FONT, fill="muted", anchor="middle")
    draw.line((x(0), y(0)), (x(1), y(1)), stroke="muted", dashed=True)
    if not shares:
        points = [(x(said), y(true)) for said, true, _ in one.bins]
        draw.line((x(0), y(0)), *points, stroke=colour, width=1.8)
        for (said, true, _), point in zip(one.bins, points, strict=True):
            draw.circle(
                *point, 2.6, fill=colour, tip=f"{number(true)} of the values are inside the {said:.0%} intervals"
            )
        return
    draw_bins(draw, x, y, one.bins, colour=colour, size=7.0)
