"""Calibration of probabilities, and for values the predictions against the truth."""

import math
from collections.abc import Sequence
from statistics import fmean, median
from typing import TypeAlias

from nearkin.core.text import counted, decimals, interval, number
from nearkin.report.axes import NARROW, Field, Scale, frame, scale_around, whisker
from nearkin.report.html import HtmlTable
from nearkin.report.svg import Canvas
from nearkin.solver.quality import Quality
from nearkin.tasks.metrics import share_interval

_SIDE = 360.0

Bin: TypeAlias = tuple[float, float, int]
"""Mean probability of the answers, the share of right answers, and the number of samples."""


def reliability_picture(quality: Quality, width: int, name: str = "nk-reliability") -> str:
    """SVG of the share of right answers against their mean probability, a larger point for a bin of more samples."""
    side = min(_SIDE, width - 66.0)
    field = Field(50.0, 30.0, 50.0 + side, 30.0 + side)
    draw = Canvas(round(field.right + 14), round(field.bottom + 40))
    x, y = Scale(0.0, 1.0, field.left, field.right), Scale(0.0, 1.0, field.bottom, field.top)
    frame(draw, field, x, y, ("probability of the answer", "share of right answers"))
    draw.line((x(0), y(0)), (x(1), y(1)), stroke="muted", dashed=True)
    draw_bins(draw, x, y, quality.calibration)
    spoken = f"On the dashed line the model is right as often as it claims. {calibration_text(quality)}"
    return draw.svg(name, "Reliability", spoken)


def draw_bins(draw: Canvas, x: Scale, y: Scale, bins: Sequence[Bin], *, colour: str = "kin", size: float = 9.0) -> None:
    """A point for each bin of probability, `size` pixels for the one with most samples, and its 95 % interval."""
    most = max((count for _, _, count in bins), default=1)
    for probability, right, count in bins:
        low, high = share_interval(right, count)
        whisker(draw, (x(probability), y(low)), (x(probability), y(high)), stroke=colour, cap=size / 3)
        tip = f"{counted(count)} samples: probability {number(probability)}, {number(right)} right"
        radius = size * (1 + 2 * math.sqrt(count / most)) / 3
        draw.circle(x(probability), y(right), radius, fill=colour, stroke="paper", tip=tip)


BIN_HEADS = ("Mean probability", "Share right", "95 % interval", "Samples")


def bin_rows(bins: Sequence[Bin]) -> list[tuple[str, ...]]:
    """Cells under `BIN_HEADS`."""
    return [
        (number(probability), number(right), interval(*share_interval(right, count)), counted(count))
        for probability, right, count in bins
    ]


def calibration_table(quality: Quality) -> HtmlTable:
    """The bins of probability."""
    rows = bin_rows(quality.calibration)
    return HtmlTable("Probability of answers and share of right ones", BIN_HEADS, rows, frozenset({0, 1, 2, 3}))


def calibration_text(quality: Quality) -> str:
    """The calibration error in a sentence.

    >>> bins = ((0.9, 0.8, 10),)
    >>> quality = Quality(0.8, "accuracy", (0, 1), 10, 0.1, 0.5, calibration=bins, calibration_error=0.1)
    >>> calibration_text(quality).split(": ")[1]
    'its probabilities are too high.'
    """
    if quality.calibration_error is None or not quality.calibration:
        return ""
    return bins_text(quality.calibration, quality.calibration_error)


def bins_text(bins: Sequence[Bin], error: float) -> str:
    """The same for bins of probability and their calibration error.

    >>> bins_text([(0.7, 0.9, 10)], 0.2)[-32:]
    ': its probabilities are too low.'
    """
    total = sum(count for _, _, count in bins)
    excess = sum(count * (probability - right) for probability, right, count in bins) / total
    verdict = ", which is little" if error < 0.02 else ": some probabilities are too high and others too low"
    if error >= 0.02 and abs(excess) > error / 2:
        verdict = f": its probabilities are too {'high' if excess > 0 else 'low'}"
    points = f"{100 * error:.1f}" if error < 0.0995 else f"{100 * error:.0f}"
    return (
        f"On average its probabilities differ from the share of right answers by {points} percentage points (expected "
        f"calibration error {number(error)}){verdict}."
    )


def residual_picture(quality: Quality, width: int, name: str = "nk-values") -> str:
    """SVG of predicted against true values; on the dashed line both are equal."""
    side = min(_SIDE + 40, width - 74.0)
    left = 58.0 if width <= NARROW else 64.0
    field = Field(left, 30.0, left + side, 30.0 + side)
    draw = Canvas(round(field.right + 14), round(field.bottom + 40))
    both = [value for pair in quality.residuals for value in pair]
    x = scale_around(both, field.left, field.right)
    y = Scale(x.low, x.high, field.bottom, field.top)
    frame(draw, field, x, y, ("true value", "predicted value"))
    draw.line((x(x.low), y(y.low)), (x(x.high), y(y.high)), stroke="muted", dashed=True)
    points = [(x(true), y(value)) for true, value in quality.residuals if math.isfinite(true) and math.isfinite(value)]
    draw.dots(points, 3.2, fill="kin", opacity=0.65)
    text = f"On the dashed line both are equal. {residual_text(quality)}"
    return draw.svg(name, "Predicted against true values", text)


def residual_text(quality: Quality) -> str:
    """How far predictions lie from the truth."""
    errors = [value - true for true, value in quality.residuals if math.isfinite(true) and math.isfinite(value)]
    if not errors:
        return ""
    places = decimals([abs(error) for error in errors])
    sizes = sorted(abs(error) for error in errors)
    most, bias = sizes[math.ceil(0.9 * len(sizes)) - 1], fmean(errors)
    return (
        f"Half of the predictions differ from the true value by at most {number(median(sizes), places)}, nine of ten "
        f"by at most {number(most, places)}. On average they are {number(abs(bias), places)} too "
        f"{'high' if bias > 0 else 'low'}."
    )


def residual_table(quality: Quality) -> HtmlTable:
    """The pairs of true and predicted values in the picture."""
    places = decimals([value for pair in quality.residuals for value in pair])
    rows = [
        (number(true, places), number(value, places), number(value - true, places)) for true, value in quality.residuals
    ]
    heads = ("True", "Predicted", "Predicted − true")
    return HtmlTable(f"{len(rows)} of the predictions", heads, rows, frozenset({0, 1, 2}))
