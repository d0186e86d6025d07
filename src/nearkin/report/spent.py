"""What was spent where: seconds of every stage, those of earlier runs set apart."""

import math
from collections.abc import Sequence

from nearkin.core.text import MISSING, duration, number, percent, plain
from nearkin.report.axes import NARROW
from nearkin.report.html import Table
from nearkin.report.labels import labels, text_width
from nearkin.report.svg import Canvas
from nearkin.run.stages import StageTime

_ROW = 24.0
_FONT = 12.0
_MOST, _SMALL = 12, 0.01


def spent_picture(stages: Sequence[StageTime], width: int, name: str = "nk-spent") -> str:
    """SVG of a bar for each stage; an open bar was taken from an earlier run."""
    narrow = width <= NARROW
    short = labels((stage.stage for stage in stages), _FONT, 120.0 if narrow else 220.0)
    values = [duration(stage.seconds) + (" (kept)" if stage.known else "") for stage in stages]
    left = max(text_width(text, _FONT) for text in short) + 10
    room = width - left - max(text_width(text, 11.0) for text in values) - 12
    longest = max([stage.seconds for stage in stages if stage.seconds > 0], default=1.0)
    draw = Canvas(width, round(_ROW * len(stages) + 8))
    for place, (stage, text, value) in enumerate(zip(stages, short, values, strict=True)):
        top = 4 + _ROW * place
        long = max(1.5, room * stage.seconds / longest)
        tip = f"{plain(stage.stage)}: {value}"
        draw.text(left - 8, top + 15, text, size=_FONT, anchor="end", tip=tip)
        if stage.known:
            draw.rect((left, top + 4), (long, _ROW - 9), fill="panel", stroke="kin", width=1.2, tip=tip)
        else:
            draw.rect((left, top + 4), (long, _ROW - 9), fill="kin", tip=tip)
        draw.text(left + long + 6, top + 15, value, size=11, fill="muted")
    return draw.svg(name, "Seconds by stage", spent_words(stages))


def gathered(stages: Sequence[StageTime]) -> list[StageTime]:
    """What a picture shows: where there are many stages, the smallest are one bar.

    >>> [stage.stage for stage in gathered([StageTime("a", 99.0)] + [StageTime(f"b{k}", 0.01) for k in range(20)])]
    ['a', '20 small stages']
    """
    total = sum(stage.seconds for stage in stages)
    small = [stage for stage in stages if stage.seconds < _SMALL * total]
    if len(stages) <= _MOST or len(small) < 2:
        return list(stages)
    rest = StageTime(f"{len(small)} small stages", sum(one.seconds for one in small), all(one.known for one in small))
    return [*(stage for stage in stages if stage.seconds >= _SMALL * total), rest]


def spent_table(stages: Sequence[StageTime]) -> Table:
    """Seconds and shares."""
    total = sum(stage.seconds for stage in stages)
    rows = [
        (plain(stage.stage), number(stage.seconds, 2), percent(stage.seconds / total) if total else MISSING,
         "an earlier run" if stage.known else "this run")
        for stage in stages
    ]  # fmt: skip
    return Table("Seconds by stage", ("Stage", "Seconds", "Share", "Done in"), rows, frozenset({1, 2}))


def spent_words(stages: Sequence[StageTime]) -> str:
    """Where the time went, in a sentence.

    >>> spent_words([StageTime("kin", 10.0), StageTime("search", 30.0, True)])
    'All stages together took 40 s, the longest of them “search” (75 %). 30 s of that were done in an earlier run.'
    """
    total = sum(stage.seconds for stage in stages)
    if not total or not math.isfinite(total):
        return "No time was counted."
    most = max(stages, key=lambda stage: stage.seconds)
    share = percent(most.seconds / total)
    said = f"All stages together took {duration(total)}, the longest of them “{plain(most.stage)}” ({share})."
    known = sum(stage.seconds for stage in stages if stage.known)
    return f"{said} {duration(known)} of that were done in an earlier run." if known else said
