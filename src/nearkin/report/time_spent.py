"""Seconds of every stage as bars, a table and a sentence; stages of earlier runs are shown apart."""

import math
from collections.abc import Sequence

from nearkin.core.text import MISSING, duration, number, percent, plain
from nearkin.report.axes import NARROW
from nearkin.report.html import HtmlTable
from nearkin.report.labels import labels, text_width
from nearkin.report.svg import Canvas
from nearkin.run.stages import StageTime

_ROW = 24.0
_FONT = 12.0
_MOST, _SMALL = 12, 0.01


def time_picture(stages: Sequence[StageTime], width: int, name: str = "nk-time") -> str:
    """SVG of a bar for each stage; hollow bars are stages of an earlier run."""
    short = labels((stage.stage for stage in stages), _FONT, 120.0 if width <= NARROW else 220.0)
    values = [duration(stage.seconds) + (" (earlier)" if stage.known else "") for stage in stages]
    left = max(text_width(text, _FONT) for text in short) + 10
    longest_bar = width - left - max(text_width(text, 11.0) for text in values) - 12
    most = max([stage.seconds for stage in stages if stage.seconds > 0], default=1.0)
    draw = Canvas(width, round(_ROW * len(stages) + 8))
    for row, (stage, text, value) in enumerate(zip(stages, short, values, strict=True)):
        top = 4 + _ROW * row
        length = max(1.5, longest_bar * stage.seconds / most)
        tip = f"{plain(stage.stage)}: {value}"
        draw.text(left - 8, top + 15, text, size=_FONT, anchor="end", tip=tip)
        if stage.known:
            draw.rect((left, top + 4), (length, _ROW - 9), fill="panel", stroke="kin", width=1.2, tip=tip)
        else:
            draw.rect((left, top + 4), (length, _ROW - 9), fill="kin", tip=tip)
        draw.text(left + length + 6, top + 15, value, size=11, fill="muted")
    return draw.svg(name, "Seconds by stage", time_text(stages))


def merge_small(stages: Sequence[StageTime]) -> list[StageTime]:
    """The stages of a picture: if there are many, those below 1 % of the time become one.

    >>> [stage.stage for stage in merge_small([StageTime("a", 99.0)] + [StageTime(f"b{k}", 0.01) for k in range(20)])]
    ['a', '20 small stages']
    """
    total = sum(stage.seconds for stage in stages)
    small = [stage for stage in stages if stage.seconds < _SMALL * total]
    if len(stages) <= _MOST or len(small) < 2:
        return list(stages)
    rest = StageTime(f"{len(small)} small stages", sum(stage.seconds for stage in small), all(s.known for s in small))
    return [*(stage for stage in stages if stage.seconds >= _SMALL * total), rest]


def time_table(stages: Sequence[StageTime]) -> HtmlTable:
    """Seconds and shares of all stages."""
    total = sum(stage.seconds for stage in stages)
    rows = [
        (plain(stage.stage), number(stage.seconds, 2), percent(stage.seconds / total) if total else MISSING,
         "an earlier run" if stage.known else "this run")
        for stage in stages
    ]  # fmt: skip
    return HtmlTable("Seconds by stage", ("Stage", "Seconds", "Share", "Done in"), rows, frozenset({1, 2}))


def time_text(stages: Sequence[StageTime]) -> str:
    """Total time and longest stage in a sentence.

    >>> time_text([StageTime("kin", 10.0), StageTime("search", 30.0, True)])
    'All stages together took 40 s. The longest was “search” (75 %). 30 s of the total were done in an earlier run.'
    """
    total = sum(stage.seconds for stage in stages)
    if not total or not math.isfinite(total):
        return "No time was recorded."
    longest = max(stages, key=lambda stage: stage.seconds)
    share = percent(longest.seconds / total)
    text = f"All stages together took {duration(total)}. The longest was “{plain(longest.stage)}” ({share})."
    known = sum(stage.seconds for stage in stages if stage.known)
    return f"{text} {duration(known)} of the total were done in an earlier run." if known else text
