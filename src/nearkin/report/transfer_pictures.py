"""Pictures of a transfer: the score of every method, and the calibration of its probabilities."""

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


def methods_picture(
    outcomes: Sequence[TransferScores],
    metric: str,
    num_test: int,
    baseline: tuple[float, str],
    width: int,
    name: str = "nk-methods",
) -> str:
    """SVG of the score of every method, the closed form first; accuracies have the 95 % interval of the test samples.

    Args:
        outcomes: of the methods.
        metric: title of the metric.
        num_test: test samples.
        baseline: score and name of a constant answer.
        width: of the picture in pixels.
        name: prefix of its ids.
    """
    shares, (guess, words) = metric == "accuracy", baseline
    short = labels((outcome.name for outcome in outcomes), _NAME, 110.0 if width <= NARROW else 190.0)
    left = max(text_width(text, _NAME, bold=row == 0) for row, text in enumerate(short)) + 16
    scores = [outcome.metric for outcome in outcomes]
    ends = [share_interval(score, num_test) if shares else (score, score) for score in scores]
    field = Field(left, 24.0, width - 18.0, 24.0 + _ROW * len(outcomes))
    draw = Canvas(width, round(field.bottom + 40))
    bounds = (0.0, 1.0) if shares else (-math.inf, 1.0)
    x = scale_around([guess, *(end for pair in ends for end in pair)], field.left, field.right, bounds=bounds)
    x_axis(draw, field, x, metric, grid=True)
    draw.line((x(guess), field.top - 4), (x(guess), field.bottom), stroke="muted", dashed=True, tip=words)
    anchor = "start" if x(guess) < (field.left + field.right) / 2 else "end"
    draw.text(x(guess), field.top - 10, words, size=FONT, fill="muted", anchor=anchor)
    for row, (outcome, text, (low, high)) in enumerate(zip(outcomes, short, ends, strict=True)):
        y, colour = field.top + _ROW * (row + 0.5), "kin" if row else "target"
        draw.text(0, y + 4, text, size=_NAME, fill="ink" if row else colour, bold=not row, tip=plain(outcome.name))
        if shares:
            whisker(draw, (x(low), y), (x(high), y), stroke=colour)
        tip = f"{plain(outcome.name)}: {metric} {number(outcome.metric)}"
        draw.circle(x(outcome.metric), y, 5.5, fill=colour, stroke="paper", tip=tip)
    values = "; ".join(f"{plain(outcome.name)} {number(outcome.metric)}" for outcome in outcomes)
    return draw.svg(name, f"The {metric} of every method", f"{values}. {words.capitalize()}: {number(guess)}.")


def calibration_picture(
    outcomes: Sequence[TransferScores], shares: bool, width: int, name: str = "nk-calibration"
) -> str:
    """SVG of calibration, a panel for each method.

    Args:
        outcomes: of the methods, with their bins.
        shares: for classes, show the share of right answers; for values, the share within central intervals.
        width: of the picture in pixels.
        name: prefix of its ids.
    """
    columns = min(len(outcomes), 2 if width <= NARROW else 3)
    left, gap = (41.0, 8.0) if width <= NARROW else (44.0, _GAP)
    side = min(230.0, (width - 8 - columns * left - (columns - 1) * gap) / columns)
    rows = math.ceil(len(outcomes) / columns)
    tall = _TITLE + side + _BELOW
    draw = Canvas(width, round(rows * tall + (rows - 1) * 10 + 22))
    for count, outcome in enumerate(outcomes):
        down, across = divmod(count, columns)
        corner = left + across * (side + left + gap), down * (tall + 10) + _TITLE
        field = Field(*corner, corner[0] + side, corner[1] + side)
        _panel(draw, field, outcome, shares, chosen=count == 0)
        if across == 0:
            draw.text(9, field.top + side / 2, "share right" if shares else "share inside", size=FONT, fill="muted",
                      anchor="middle", angle=90)  # fmt: skip
        if count + columns >= len(outcomes):
            word = "probability of the answer" if shares else "level of the interval"
            draw.text(field.right, field.bottom + 33, word, size=FONT, fill="muted", anchor="end")
    errors = "; ".join(f"{plain(outcome.name)} is off by {number(outcome.ece)}" for outcome in outcomes)
    return draw.svg(name, "Calibration", f"On the dashed lines, methods are right as often as they claim. {errors}.")


def _panel(draw: Canvas, field: Field, outcome: TransferScores, shares: bool, *, chosen: bool) -> None:
    x, y = Scale(0.0, 1.0, field.left, field.right), Scale(0.0, 1.0, field.bottom, field.top)
    colour, title = "target" if chosen else "kin", labels([outcome.name], _NAME, field.right - field.left)[0]
    draw.text(field.left, field.top - 26, title, size=_NAME, fill="target" if chosen else "ink", bold=chosen,
              tip=plain(outcome.name))  # fmt: skip
    draw.text(field.left, field.top - 10, f"off by {number(outcome.ece)}", size=FONT, fill="muted")
    for tick in _HALVES:
        draw.line((field.left, y(tick)), (field.right, y(tick)), stroke="line", width=0.8)
        draw.line((x(tick), field.top), (x(tick), field.bottom), stroke="line", width=0.8)
        draw.text(field.left - 6, y(tick) + 4, f"{tick:g}", size=FONT, fill="muted", anchor="end")
        draw.text(x(tick), field.bottom + 16, f"{tick:g}", size=FONT, fill="muted", anchor="middle")
    draw.line((x(0), y(0)), (x(1), y(1)), stroke="muted", dashed=True)
    if not shares:
        points = [(x(level), y(share)) for level, share, _ in outcome.bins]
        draw.line((x(0), y(0)), *points, stroke=colour, width=1.8)
        for (level, share, _), point in zip(outcome.bins, points, strict=True):
            tip = f"{number(share)} of the values are inside the {level:.0%} intervals"
            draw.circle(*point, 2.6, fill=colour, tip=tip)
        return
    draw_bins(draw, x, y, outcome.bins, colour=colour, size=7.0)
