"""Related tasks (kin) of a solved target: rankings by every measure, their agreement, and what was reused."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from nearkin.core.text import MISSING, decimals, number, percent, plain, with_spread
from nearkin.distance.matrix import DistanceMatrix
from nearkin.distance.registry import STRUCTURE, title_of
from nearkin.report.axes import NARROW, Field, scale_around, whisker, x_axis
from nearkin.report.html import HtmlTable
from nearkin.report.labels import labels, text_width
from nearkin.report.nearest_kin import position
from nearkin.report.svg import Canvas
from nearkin.solver.relations import Relations

DRAWN = 15
"""Kin in one picture; the table lists all of them."""
MAPPED = 60
"""Kin on a map."""

_ROW = 22.0

Row = Mapping[str, Any]


def form_text(rows: Sequence[Row]) -> str:
    """The form of the Fréchet distance in a sentence; empty for other measures.

    >>> form_text([{"form": "padded/mixed"}, {"form": "padded/mixed"}]), form_text([{}])
    ('Form: padded/mixed.', '')
    """
    forms = sorted({plain(str(row["form"])) for row in rows if row.get("form")})
    return f"Form{'s' if len(forms) > 1 else ''}: {', '.join(forms)}." if forms else ""


def ranking_picture(
    measure: str, rows: Sequence[Row], relations: Relations, width: int, name: str = "nk-ranking"
) -> str:
    """SVG of the nearest kin, a row each: mean and standard deviation over trials, single trials as small dots."""
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
    word = "mean over trials" if narrow else f"{plain(measure)} distance"
    x_axis(draw, field, x, f"{word}; nearer tasks to the left", grid=True)
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
    """The nearest kin, and those whose cells or weights were used."""
    used = {relations.cells_of, relations.tuned}
    return [row for rank, row in enumerate(rows) if rank < DRAWN or row["name"] in used]


def _roles(row: Row, relations: Relations, *, brief: bool) -> str:
    """What was reused from a kin."""
    reused = [
        kind for kind, name in (("cells", relations.cells_of), ("weights", relations.tuned)) if name == row["name"]
    ]
    if brief:
        return "← both" if len(reused) == 2 else f"← {reused[0]}" if reused else ""
    return f"← {' and '.join(reused)} used" if reused else ""


def _reach(row: Row) -> tuple[float, float]:
    mean, std = float(row["distance"]), float(row.get("std") or 0.0)
    return mean - std, mean + std


def _shown(row: Row, places: int) -> str:
    return with_spread(float(row["distance"]), row.get("std"), places)


def _limit(measure: str, relations: Relations) -> float | None:
    value = (relations.threshold or {}).get("value")
    return float(value) if measure == STRUCTURE and value is not None and math.isfinite(value) else None


def ranking_table(measure: str, rows: Sequence[Row]) -> HtmlTable:
    """All kin by one measure, nearest first."""
    places = decimals([float(row["distance"]) for row in rows])
    beside = list(dict.fromkeys(name for row in rows for name in row.get("beside", {})))
    several = any(len(row.get("trials", ())) > 1 for row in rows)
    several_forms = len({row.get("form", "") for row in rows}) > 1
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
        note = "; ".join(filter(None, (weak, plain(str(row.get("form", ""))) if several_forms else "")))
        head = (str(rank), plain(str(row["name"])), number(float(row["distance"]), places))
        cells.append((*head, *(spread if several else ()), *others, note))
    heads = [
        "Rank",
        "Kin",
        "Distance",
        *(["±", "Nearest in (trials)", "This rank in (trials)"] if several else []),
        *map(plain, beside),
    ]
    numeric = frozenset({0, *range(2, len(heads))})
    noted = any(row[-1] for row in cells)
    return HtmlTable(
        f"All kin by {title_of(plain(measure))}, nearest first",
        (*heads, "Note")[: len(heads) + noted],
        [row[: len(heads) + noted] for row in cells],
        numeric,
    )


def agreement_table(relations: Relations) -> HtmlTable | None:
    """Rank correlation of each pair of measures."""
    rows = [
        (plain(pair), number(float(value), 2), _agreement(float(value))) for pair, value in relations.agreement.items()
    ]
    heads = ("Measures", "Rank correlation", "In words")
    return (
        HtmlTable("Agreement of the measures on the order of the tasks", heads, rows, frozenset({1})) if rows else None
    )


def _agreement(value: float) -> str:
    """A rank correlation in words.

    >>> _agreement(0.95), _agreement(0.1), _agreement(-0.8)
    ('nearly the same order', 'little agreement', 'nearly the opposite order')
    """
    if value >= 0.9:
        return "nearly the same order"
    if value >= 0.6:
        return "mostly the same order"
    if value >= 0.3:
        return "a similar order"
    return "little agreement" if value > -0.3 else "nearly the opposite order"


def kin_text(relations: Relations) -> list[str]:
    """The nearest kin, and what was reused from which."""
    sentences = []
    nearest = relations.nearest
    if nearest:
        firsts = list(dict.fromkeys(nearest.values()))
        by = {first: [plain(measure) for measure, name in nearest.items() if name == first] for first in firsts}
        if len(firsts) == 1:
            every = "by every measure" if len(nearest) > 1 else f"by {by[firsts[0]][0]}"
            sentences.append(f"The nearest kin {every} is “{plain(firsts[0])}”.")
        else:
            names = [f"“{plain(first)}” by {' and '.join(by[first])}" for first in firsts]
            sentences.append(f"The measures give different nearest kin: {'; '.join(names)}.")
    else:
        sentences.append("There was no other task to compare with.")
    if relations.why:
        text = plain(relations.why)
        sentences.append(f"Cells that the search starts from: {text}{'' if text.endswith('.') else '.'}")
    if relations.tuned:
        sentences.append(
            f"The network of “{plain(relations.tuned)}” was fine-tuned, that is trained further on the new task, as "
            f"one of the contenders."
        )
    return sentences


def threshold_text(relations: Relations) -> list[str]:
    """Up to which distance a kin's cells are used, and from how many trials that was learned."""
    facts = relations.threshold
    if not facts:
        return []
    if text := plain(str(facts.get("words") or "")):
        return [text]
    value, low_high = facts.get("value"), facts.get("interval")
    if value is None:
        return []
    within = f" (95 % interval {number(float(low_high[0]))} to {number(float(low_high[1]))})" if low_high else ""
    limit = f"Cells of a kin are used up to a Fréchet distance of {number(float(value))}{within}"
    effects = []
    for side, where in (("below", "up to this limit"), ("above", "beyond it")):
        count, gain = facts.get(f"num_{side}"), facts.get(f"gain_{side}")
        if count:
            change = f"{'+' if gain and gain > 0 else ''}{number(float(gain or 0.0))}"
            effects.append(f"{where} they changed the metric by {change} on average over {count} trials")
        elif count == 0:
            effects.append(f"{where} no trial was made")
    return [f"{limit}: {'; '.join(effects)}." if effects else f"{limit}."]


def mapped(matrix: DistanceMatrix | None, target: str) -> DistanceMatrix | None:
    """Distances for the map: the target and its nearest kin; None if there are fewer than two tasks."""
    if matrix is None or len(matrix.tasks) < 2:
        return None
    if len(matrix.tasks) <= MAPPED + 1:
        return matrix
    own = position(matrix, target) if target in matrix.tasks else 0
    order = matrix.mean[:, own].nan_to_num(nan=math.inf, posinf=math.inf).argsort(stable=True).tolist()
    rows = sorted([own, *[row for row in order if row != own][:MAPPED]])
    index = torch.tensor(rows)
    trials = matrix.trials[:, index][:, :, index]
    names = tuple(matrix.tasks[row] for row in rows)
    return DistanceMatrix(names, matrix.measure, trials, matrix.reasons, matrix.forms)
