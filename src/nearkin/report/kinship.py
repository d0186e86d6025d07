"""Kin of a solved target: their order by every measure, how far measures agree, and what the answer took from whom."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from nearkin.core.text import MISSING, decimals, number, percent, plain, with_spread
from nearkin.distance.matrix import DistanceMatrix
from nearkin.distance.registry import STRUCTURE, title_of
from nearkin.report.axes import NARROW, Field, scale_around, whisker, x_axis
from nearkin.report.html import Table
from nearkin.report.kin import position
from nearkin.report.labels import labels, text_width
from nearkin.report.svg import Canvas
from nearkin.solver.relations import Relations

DRAWN = 15
"""Kin of a picture; the table has them all."""
MAPPED = 60
"""Kin of a map."""

_ROW = 22.0

Row = Mapping[str, Any]


def form_words(rows: Sequence[Row]) -> str:
    """The form of the Fréchet distance in a sentence; empty for other measures.

    >>> form_words([{"form": "padded/mixed"}, {"form": "padded/mixed"}]), form_words([{}])
    ('Form: padded/mixed.', '')
    """
    forms = sorted({plain(str(row["form"])) for row in rows if row.get("form")})
    return f"Form{'s' if len(forms) > 1 else ''}: {', '.join(forms)}." if forms else ""


def ranking_picture(
    measure: str, rows: Sequence[Row], relations: Relations, width: int, name: str = "nk-ranking"
) -> str:
    """SVG of the nearest kin: a row each, the mean over trials, its deviation as whiskers, the trials as small dots."""
    shown = shown_rows(rows, relations)
    narrow = width <= NARROW
    short = labels((str(row["name"]) for row in shown), 12.0, 100.0 if narrow else 170.0)
    roles = [_roles(row, relations, brief=narrow) for row in shown]
    left = max(text_width(text, 12.0, bold=True) for text in short) + 14
    right = width - 12 - max(text_width(text, 10.5) for text in roles)
    field = Field(left, 12.0, right, 12.0 + _ROW * len(shown) + 4)
    draw = Canvas(width, round(field.bottom + 44))
    limit = _limit(measure, relations)
    values = [float(value) for row in shown for value in (*_reach(row), *row.get("trials", ()))]
    x = scale_around(values if limit is None else [*values, limit], field.left + 6, field.right - 8)
    word = "mean over trials" if narrow else plain(measure)
    x_axis(draw, field, x, f"{word}{', ' if narrow else ': '}nearer to the left", grid=True)
    if limit is not None:
        draw.line((x(limit), field.top), (x(limit), field.bottom), stroke="target", dashed=True, width=1.2)
        draw.text(x(limit), field.top - 2, "limit", size=10, fill="target", anchor="middle")
    places = decimals([float(row["distance"]) for row in rows])
    for rank, (row, text, role) in enumerate(zip(shown, short, roles, strict=True)):
        y = field.top + _ROW * (rank + 0.5)
        tip = f"{plain(str(row['name']))}: {_shown(row, places)}"
        first = rank == 0
        draw.text(field.left - 10, y + 4, text, size=12, anchor="end", bold=first, tip=tip)
        low, high = _reach(row)
        if high > low:
            whisker(draw, (x(low), y), (x(high), y), stroke="kin", cap=4)
        if len(row.get("trials", ())) > 1:
            draw.dots([(x(float(value)), y) for value in row["trials"]], 2.2, fill="muted")
        draw.circle(x(float(row["distance"])), y, 5.5 if first else 4.5, fill="kin", stroke="paper", width=1.0, tip=tip)
        if role:
            draw.text(width - 4, y + 4, role, size=10.5, fill="target", anchor="end")
    nearest = shown[0]
    spoken = f"Nearest is {plain(str(nearest['name']))} at {_shown(nearest, places)}."
    if len(rows) > len(shown):
        spoken += f" {len(shown)} of {len(rows)} are drawn."
    return draw.svg(name, f"Kin by {title_of(plain(measure))}", spoken)


def shown_rows(rows: Sequence[Row], relations: Relations) -> list[Row]:
    """The nearest so many, and those that the answer took something from."""
    used = {relations.cells_of, relations.tuned}
    return [row for rank, row in enumerate(rows) if rank < DRAWN or row["name"] in used]


def _roles(row: Row, relations: Relations, *, brief: bool) -> str:
    """What the answer took from a kin."""
    both = [word for word, who in (("cells", relations.cells_of), ("weights", relations.tuned)) if who == row["name"]]
    if brief:
        return "← both" if len(both) == 2 else f"← {both[0]}" if both else ""
    return f"← {' and '.join(both)} used" if both else ""


def _reach(row: Row) -> tuple[float, float]:
    mean, std = float(row["distance"]), float(row.get("std") or 0.0)
    return mean - std, mean + std


def _shown(row: Row, places: int) -> str:
    return with_spread(float(row["distance"]), row.get("std"), places)


def _limit(measure: str, relations: Relations) -> float | None:
    value = (relations.threshold or {}).get("value")
    return float(value) if measure == STRUCTURE and value is not None and math.isfinite(value) else None


def ranking_table(measure: str, rows: Sequence[Row]) -> Table:
    """All kin by one measure, nearest first."""
    places = decimals([float(row["distance"]) for row in rows])
    beside = list(dict.fromkeys(name for row in rows for name in row.get("beside", {})))
    several = any(len(row.get("trials", ())) > 1 for row in rows)
    unlike = len({row.get("form", "") for row in rows}) > 1
    cells = []
    for rank, row in enumerate(rows, 1):
        std = float(row.get("std") or 0.0)
        spread = (
            number(std, places) if std > 0 else MISSING,
            percent(float(row["wins"])) if "wins" in row else MISSING,
            percent(float(row["sure"])) if "sure" in row else MISSING,
        )
        others = (number(float(row.get("beside", {}).get(name, math.nan))) for name in beside)
        weak = f"weak: {number(float(row['weak']))} on its own task" if "weak" in row else ""
        weak = "; ".join(filter(None, (weak, plain(str(row.get("form", ""))) if unlike else "")))
        head = (str(rank), plain(str(row["name"])), number(float(row["distance"]), places))
        cells.append((*head, *(spread if several else ()), *others, weak))
    heads = ["Rank", "Kin", "Distance", *(["±", "Nearest in", "This rank"] if several else []), *map(plain, beside)]
    numeric = frozenset({0, *range(2, len(heads))})
    noted = any(row[-1] for row in cells)
    return Table(
        f"All kin by {title_of(plain(measure))}, nearest first",
        (*heads, "Note")[: len(heads) + noted],
        [row[: len(heads) + noted] for row in cells],
        numeric,
    )


def agreement_table(relations: Relations) -> Table | None:
    """Rank correlations of measures."""
    rows = [(plain(pair), number(float(value), 2), _alike(float(value))) for pair, value in relations.agreement.items()]
    heads = ("Measures", "Rank correlation", "In words")
    return Table("How far the measures agree on the order", heads, rows, frozenset({1})) if rows else None


def _alike(value: float) -> str:
    """A rank correlation in words.

    >>> _alike(0.95), _alike(0.1), _alike(-0.8)
    ('nearly the same order', 'hardly any agreement', 'rather the opposite order')
    """
    if value >= 0.9:
        return "nearly the same order"
    if value >= 0.6:
        return "much the same order"
    if value >= 0.3:
        return "a likeness"
    return "hardly any agreement" if value > -0.3 else "rather the opposite order"


def kin_words(relations: Relations) -> list[str]:
    """What was taken from whom, and why."""
    said = []
    nearest = relations.nearest
    if nearest:
        firsts = list(dict.fromkeys(nearest.values()))
        by = {first: [plain(measure) for measure, name in nearest.items() if name == first] for first in firsts}
        if len(firsts) == 1:
            every = " by every measure" if len(nearest) > 1 else f" by {by[firsts[0]][0]}"
            said.append(f"The nearest kin is {plain(firsts[0])}{every}.")
        else:
            parts = [f"{plain(first)} by {' and '.join(by[first])}" for first in firsts]
            said.append(f"The measures name different nearest kin: {'; '.join(parts)}.")
    else:
        said.append("There was no kin to compare with.")
    if relations.why:
        text = plain(relations.why)
        said.append(f"Search space: {text}{'' if text.endswith('.') else '.'}")
    if relations.tuned:
        said.append(f"The network of {plain(relations.tuned)} was fine-tuned as one of the contestants.")
    return said


def threshold_words(relations: Relations) -> list[str]:
    """How near is near enough, and what that rests on."""
    facts = relations.threshold
    if not facts:
        return []
    if words := plain(str(facts.get("words") or "")):
        return [words]
    value, low_high = facts.get("value"), facts.get("interval")
    if value is None:
        return []
    within = f" (95 % interval {number(float(low_high[0]))} to {number(float(low_high[1]))})" if low_high else ""
    line = f"The limit is a Fréchet distance of {number(float(value))}{within}"
    parts = []
    for side, words in (("below", "up to it"), ("above", "beyond it")):
        count, gain = facts.get(f"num_{side}"), facts.get(f"gain_{side}")
        if count:
            parts.append(
                f"{words} a kin’s cells changed the metric by {_signed(float(gain or 0.0))}, the mean of {count} trials"
            )
        elif count == 0:
            parts.append(f"{words} nothing was tried")
    return [f"{line}: {'; '.join(parts)}." if parts else f"{line}."]


def _signed(value: float) -> str:
    return f"+{number(value)}" if value > 0 else number(value)


def mapped(matrix: DistanceMatrix | None, target: str) -> DistanceMatrix | None:
    """What a map can show: the target and its nearest kin; None where there are no two."""
    if matrix is None or len(matrix.tasks) < 2:
        return None
    if len(matrix.tasks) <= MAPPED + 1:
        return matrix
    own = position(matrix, target) if target in matrix.tasks else 0
    order = matrix.mean[:, own].nan_to_num(nan=math.inf, posinf=math.inf).argsort(stable=True).tolist()
    kept = sorted([own, *[place for place in order if place != own][:MAPPED]])
    index = torch.tensor(kept)
    trials = matrix.trials[:, index][:, :, index]
    names = tuple(matrix.tasks[place] for place in kept)
    return DistanceMatrix(names, matrix.measure, trials, matrix.reasons, matrix.forms)
