"""Reliability: whether a model is right as often as it is sure; for values, what was said against the truth."""

import math
from collections.abc import Sequence
from statistics import fmean, median
from typing import TypeAlias

from nearkin.core.text import counted, decimals, interval, number
from nearkin.report.axes import NARROW, Field, Scale, frame, scale_around, whisker
from nearkin.report.html import Table
from nearkin.report.svg import Canvas
from nearkin.solver.quality import Quality
from nearkin.tasks.metrics import share_interval

_SIDE = 360.0

Bin: TypeAlias = tuple[float, float, int]
"""Mean certainty, the share that was right, and the count."""


def reliability_picture(quality: Quality, width: int, name: str = "nk-reliability") -> str:
    """SVG of the share that was right against mean certainty, a point for each bin, larger for more samples."""
    side = min(_SIDE, width - 66.0)
    field = Field(50.0, 30.0, 50.0 + side, 30.0 + side)
    draw = Canvas(round(field.right + 14), round(field.bottom + 40))
    x, y = Scale(0.0, 1.0, field.left, field.right), Scale(0.0, 1.0, field.bottom, field.top)
    frame(draw, field, x, y, ("how sure it was", "share that was right"))
    draw.line((x(0), y(0)), (x(1), y(1)), stroke="muted", dashed=True)
    draw_bins(draw, x, y, quality.calibration)
    spoken = f"On the dashed line certainty is earned. {calibration_words(quality)}"
    return draw.svg(name, "Reliability", spoken)


def draw_bins(draw: Canvas, x: Scale, y: Scale, bins: Sequence[Bin], *, colour: str = "kin", size: float = 9.0) -> None:
    """A point for each bin of certainty, up to `size` pixels for the one with most samples, and its 95 % interval."""
    most = max((count for _, _, count in bins), default=1)
    for sure, right, count in bins:
        low, high = share_interval(right, count)
        whisker(draw, (x(sure), y(low)), (x(sure), y(high)), stroke=colour, cap=size / 3)
        tip = f"{counted(count)} samples: {number(sure)} sure, {number(right)} right"
        radius = size * (1 + 2 * math.sqrt(count / most)) / 3
        draw.circle(x(sure), y(right), radius, fill=colour, stroke="paper", tip=tip)


BIN_HEADS = ("How sure (mean)", "Share right", "95 % interval", "Samples")


def bin_rows(bins: Sequence[Bin]) -> list[tuple[str, ...]]:
    """Cells under `BIN_HEADS`."""
    return [
        (number(sure), number(right), interval(*share_interval(right, count)), counted(count))
        for sure, right, count in bins
    ]


def calibration_table(quality: Quality) -> Table:
    """The bins of certainty."""
    rows = bin_rows(quality.calibration)
    return Table("Certainty and how often it was right", BIN_HEADS, rows, frozenset({0, 1, 2, 3}))


def calibration_words(quality: Quality) -> str:
    """The calibration error in plain words.

    >>> bins = ((0.9, 0.8, 10),)
    >>> one = Quality(0.8, "accuracy", (0, 1), 10, 0.1, 0.5, calibration=bins, calibration_error=0.1)
    >>> calibration_words(one).split(": ")[1]
    'it is too sure of itself.'
    """
    if quality.calibration_error is None or not quality.calibration:
        return ""
    return certainty_words(quality.calibration, quality.calibration_error)


def certainty_words(bins: Sequence[Bin], error: float) -> str:
    """The same of bins of certainty and their calibration error.

    >>> certainty_words([(0.7, 0.9, 10)], 0.2)[-38:]
    ': it is right more often than it says.'
    """
    total = sum(count for _, _, count in bins)
    lean = sum(count * (sure - right) for sure, right, count in bins) / total
    judged = ", which is little" if error < 0.02 else ": it is about as often too sure as not sure enough"
    if error >= 0.02 and abs(lean) > error / 2:
        judged = ": it is too sure of itself" if lean > 0 else ": it is right more often than it says"
    points = f"{100 * error:.1f}" if error < 0.0995 else f"{100 * error:.0f}"
    said = (
        f"On the mean its certainty is off by {points} points of a hundred (expected calibration error {number(error)})"
    )
    return f"{said}{judged}."


def residual_picture(quality: Quality, width: int, name: str = "nk-values") -> str:
    """SVG of said against true values; on the dashed line both are the same."""
    side = min(_SIDE + 40, width - 74.0)
    left = 58.0 if width <= NARROW else 64.0
    field = Field(left, 30.0, left + side, 30.0 + side)
    draw = Canvas(round(field.right + 14), round(field.bottom + 40))
    both = [value for pair in quality.residuals for value in pair]
    x = scale_around(both, field.left, field.right)
    y = Scale(x.low, x.high, field.bottom, field.top)
    frame(draw, field, x, y, ("true value", "value that was said"))
    draw.line((x(x.low), y(y.low)), (x(x.high), y(y.high)), stroke="muted", dashed=True)
    points = [(x(true), y(said)) for true, said in quality.residuals if math.isfinite(true) and math.isfinite(said)]
    draw.dots(points, 3.2, fill="kin", opacity=0.65)
    return draw.svg(
        name, "Said against true values", f"On the dashed line both are the same. {residual_words(quality)}"
    )


def residual_words(quality: Quality) -> str:
    """How far answers lie from the truth."""
    errors = [said - true for true, said in quality.residuals if math.isfinite(true) and math.isfinite(said)]
    if not errors:
        return ""
    places = decimals([abs(error) for error in errors])
    sizes = sorted(abs(error) for error in errors)
    most, lean = sizes[math.ceil(0.9 * len(sizes)) - 1], fmean(errors)
    return (
        f"Half of the answers lie within {number(median(sizes), places)} of the truth, nine of ten within "
        f"{number(most, places)}; on the mean they are {number(abs(lean), places)} too {'high' if lean > 0 else 'low'}."
    )


def residual_table(quality: Quality) -> Table:
    """The pairs of the picture."""
    places = decimals([value for pair in quality.residuals for value in pair])
    rows = [
        (number(true, places), number(said, places), number(said - true, places)) for true, said in quality.residuals
    ]
    heads = ("True", "Said", "Said − true")
    return Table(f"{len(rows)} of the answers", heads, rows, frozenset({0, 1, 2}))
