"""The contest: what every contestant is worth against what it costs, as a picture, tables and words."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.markers import MarkerStyle
from numpy.typing import NDArray

from nearkin.core.text import MISSING, brief, counted, enumeration, interval, metric_places, number, plain
from nearkin.report.axes import FONT, NARROW, Field, flowed, frame, scale_around, whisker
from nearkin.report.html import Table
from nearkin.report.labels import Box, draw_labels, draw_leaders, labels, place, text_width
from nearkin.report.svg import Canvas
from nearkin.solver.result import KINDS, Result, ordered
from nearkin.solver.solution import Solution
from nearkin.tasks.metrics import share_interval

CLOSE = 0.01
"""Differences of a metric below this are worth fewer parameters."""

_RADIUS, _CHOSEN = 5.0, 6.5
_ROW = 18.0
_DASH = 6.0
_NAME = 11.5
_MARKS = {"tuned": ("D", 1.8), "made": ("s", 1.8), "simple": ("^", 2.3), "transfer": ("P", 2.4)}
_SHORT = {
    "searched": "searched", "tuned": "fine-tuned", "made": "hand-made", "simple": "simple", "transfer": "closed form",
}  # fmt: skip


@dataclass(frozen=True)
class Spot:
    """A contestant in the picture: its costs, its test metric with 95 % interval, its metric on validation data."""

    standing: Result
    value: float
    interval: tuple[float, float] | None
    chosen: bool

    @property
    def parameters(self) -> int:
        """At least one, for the logarithm."""
        return max(self.standing.parameters, 1)


def spots(solution: Solution) -> list[Spot]:
    """Those that ran, best on validation data first; what has no test metric stands at its validation."""
    return [
        Spot(
            one,
            one.test if one.test is not None else float(one.validation or 0.0),
            metric_interval(solution, one.test),
            one.name == solution.chosen,
        )
        for one in ordered(solution.standings)
    ]


def metric_interval(solution: Solution, value: float | None) -> tuple[float, float] | None:
    """In which a test accuracy lies with 95 %; nothing is known for R², nor where the metric is missing."""
    if value is None or solution.quality.name != "accuracy" or not 0 <= value <= 1:
        return None
    return share_interval(value, solution.quality.count)


def contest(solution: Solution, width: int, name: str = "nk-contest") -> str:
    """SVG of metric against parameters, a mark for every contestant that ran."""
    return _Drawing(solution, width).svg(name)


class _Drawing:
    """Geometry shared by the parts of one picture, in pixels."""

    def __init__(self, solution: Solution, width: int) -> None:
        self.solution, self.spots = solution, spots(solution)
        self.places = metric_places(solution.quality.count)
        narrow = width <= NARROW
        self.kinds = [kind for kind in KINDS if any(spot.standing.kind == kind for spot in self.spots)]
        words = [KINDS[kind] for kind in self.kinds] + ["on validation data"]
        self.legend = list(zip([*self.kinds, ""], words, flowed(words, width - 8, 16), strict=True))
        rows = int(self.legend[-1][2][1]) + 1
        tall = (380.0 if narrow else 360.0) + 6 * max(0, len(self.spots) - 10)
        self.field = Field(48.0 if narrow else 54.0, 34.0, width - 10.0, 34.0 + tall)
        self.height = self.field.bottom + 48 + _ROW * rows
        self.canvas = Canvas(width, round(self.height))
        field, bounds = self.field, (-math.inf, math.inf)
        shown = [spot.value for spot in self.spots]
        shown += [end for spot in self.spots for end in spot.interval or ()]
        shown += [spot.standing.validation for spot in self.spots if spot.standing.validation is not None]
        if solution.quality.name == "accuracy":
            bounds = (0.0, 1.0)
        self.x = scale_around((spot.parameters for spot in self.spots), field.left + 14, field.right - 14, log=True)
        self.y = scale_around(shown, field.bottom - 6, field.top + 6, bounds=bounds)
        self.short = labels((spot.standing.title for spot in self.spots), _NAME, 110.0 if narrow else 180.0)
        self.anchors = np.array([(self.x(spot.parameters), self.y(spot.value)) for spot in self.spots]).reshape(-1, 2)

    def svg(self, name: str) -> str:
        """All of it, from back to front."""
        draw, field = self.canvas, self.field
        metric_name = self.solution.quality.title
        frame(draw, field, self.x, self.y, ("parameters", f"{metric_name} on the test part"))
        self._guess()
        radii = np.array([_CHOSEN + 4 if spot.chosen else _RADIUS for spot in self.spots])
        boxes = self._labels(radii)
        draw_leaders(draw, self.anchors, radii, boxes)
        for spot, (x, _) in zip(self.spots, self.anchors.tolist(), strict=True):
            self._bars(spot, x)
        for spot, (x, y) in sorted(
            zip(self.spots, self.anchors.tolist(), strict=True), key=lambda pair: pair[0].chosen
        ):
            size, colour = (_CHOSEN, "target") if spot.chosen else (_RADIUS, "kin")
            if spot.chosen:
                draw.circle(x, y, size + 4, stroke="target", width=1.5)
            mark(draw, spot.standing.kind, x, y, size, colour, self._tip(spot))
        chosen = next((place for place, spot in enumerate(self.spots) if spot.chosen), None)
        draw_labels(draw, boxes, self.short, list(map(self._tip, self.spots)), _NAME, chosen)
        self._legend()
        return draw.svg(name, f"{metric_name.capitalize()} against parameters", self._description())

    def _description(self) -> str:
        first = next((spot for spot in self.spots if spot.chosen), None)
        said = f"{len(self.spots)} contestants; to the right are larger ones, above are better ones."
        return f"{said} Chosen: {self._tip(first)}." if first else said

    def _tip(self, spot: Spot) -> str:
        one, places = spot.standing, self.places
        test, validation = number(one.test, places), number(one.validation, places)
        within = f" ({interval(*spot.interval, places)})" if spot.interval else ""
        return f"{plain(one.title)}: test {test}{within}, validation {validation}, {counted(one.parameters)} parameters"

    def _guess(self) -> None:
        """The level of an answer that ignores the input, where it lies in the picture."""
        guess = self.solution.quality.guess
        if self.y.low < guess < self.y.high:
            left, right = self.field.left, self.field.right
            self.canvas.line((left, self.y(guess)), (right, self.y(guess)), stroke="muted", dashed=True)
            self.canvas.text(right, self.y(guess) - 4, "a blind guess", size=10, fill="muted", anchor="end")

    def _bars(self, spot: Spot, x: float) -> None:
        """The interval of the test metric, and a dash at the validation metric."""
        colour = "target" if spot.chosen else "kin"
        if spot.interval:
            low, high = (self.y(min(max(end, self.y.low), self.y.high)) for end in spot.interval)
            whisker(self.canvas, (x, low), (x, high), stroke=colour, width=1.1)
        if spot.standing.validation is not None:
            at = self.y(spot.standing.validation)
            self.canvas.line((x - _DASH, at), (x + _DASH, at), stroke="ink", width=1.6)

    def _labels(self, radii: NDArray[np.float64]) -> list[Box]:
        wide = [text_width(text, _NAME, bold=spot.chosen) for text, spot in zip(self.short, self.spots, strict=True)]
        sizes = np.array([(size, _NAME * 1.25) for size in wide])
        busy = [np.zeros((0, 2))]
        for spot, (x, _) in zip(self.spots, self.anchors.tolist(), strict=True):
            ends = [*(spot.interval or ()), spot.standing.validation or spot.value, spot.value]
            down = [self.y(min(max(end, self.y.low), self.y.high)) for end in ends]
            steps = np.arange(min(down), max(down) + 4, 4.0)
            busy.append(np.stack([np.full_like(steps, x), steps], axis=1))
        bounds = Box(self.field.left + 2, self.field.top - 2, self.field.right, self.field.bottom - 2)
        return place(self.anchors, sizes, radii, bounds, np.concatenate(busy)) if len(self.anchors) else []

    def _legend(self) -> None:
        top = self.field.bottom + 56
        for kind, words, (column, row) in self.legend:
            x, y = 4 + column, top + row * _ROW
            if kind:
                mark(self.canvas, kind, x + 5, y - 4, _RADIUS, "kin")
            else:
                self.canvas.line((x, y - 4), (x + 11, y - 4), stroke="ink", width=1.6)
            self.canvas.text(x + 16, y, words, size=FONT, fill="muted")


def mark(draw: Canvas, kind: str, x: float, y: float, size: float, fill: str, tip: str = "") -> None:
    """The sign of a kind of contestant, so that colour need not tell them apart."""
    if kind not in _MARKS:
        draw.circle(x, y, size, fill=fill, tip=tip)
        return
    style, grown = MarkerStyle(_MARKS[kind][0]), _MARKS[kind][1] * size
    corners = np.asarray(style.get_path().transformed(style.get_transform()).vertices, dtype=np.float64)[:-1]
    draw.polygon([(x + grown * across, y - grown * up) for across, up in corners.tolist()], fill=fill, tip=tip)


def contest_table(solution: Solution) -> Table:
    """All that ran, best on validation data first."""
    places, rows, marked = metric_places(solution.quality.count), [], None
    for rank, spot in enumerate(spots(solution)):
        one, low_high = spot.standing, spot.interval
        if spot.chosen:
            marked = rank
        within = f" ({number(low_high[0], places)}–{number(low_high[1], places)})" if low_high else ""
        cells = (
            f"✔ {plain(one.title)} (chosen)" if spot.chosen else plain(one.title),
            _SHORT.get(one.kind, one.kind),
            number(one.validation, places),
            number(one.test, places) + within,
            number(solution.finals.get(one.name), places),
            MISSING if one.samples is None else counted(one.samples),
            counted(one.parameters),
            counted(one.multiply_adds),
            number(one.seconds, 1),
        )
        rows.append(cells)
    sure = " (95 %)" if solution.quality.name == "accuracy" else ""
    heads = (
        *("Contestant", "Kind", "Validation", f"Test{sure}", "Trained again", "Learned from"),
        *("Parameters", "Multiply-adds", "Seconds"),
    )
    return Table("Contestants, best on validation first", heads, rows, frozenset(range(2, 9)), marked, frozenset({1}))


def refusals(solution: Solution) -> list[tuple[str, str]]:
    """What did not run, and why."""
    return [(plain(one.title), plain(one.refused) or "no reason is known") for one in solution.standings
            if one.validation is None]  # fmt: skip


def learned_words(solution: Solution) -> str:
    """From how many training samples the contestants learned."""
    ran = [one for one in solution.standings if one.validation is not None]
    available = solution.samples.get("available")
    if available is None or any(one.samples is None for one in ran):
        return "From how many training samples each contestant learned was not recorded."
    fewer = [one for one in ran if (one.samples or 0) < available]
    if not fewer:
        return f"All contestants learned from the same {counted(available)} training samples."
    names = enumeration([f"{plain(one.title)} ({counted(one.samples or 0)})" for one in fewer])
    rest = "" if len(fewer) == len(ran) else "; all others learned from all of them"
    return f"Contestants could learn from {counted(available)} training samples. Fewer were used by {names}{rest}."


def contest_words(solution: Solution) -> list[str]:
    """What the contest says, in a few sentences."""
    ran, places = spots(solution), metric_places(solution.quality.count)
    chosen = next((spot for spot in ran if spot.chosen), None)
    others = [spot for spot in ran if not spot.chosen]
    if chosen is None or not others:
        return (
            [] if chosen is None else [f"Only {plain(chosen.standing.title)} ran: nothing could be compared with it."]
        )
    said = [_lead(solution, chosen.standing, others[0].standing, places)]
    alike = [spot for spot in others if _meet(spot, chosen)]
    if alike:
        names = (
            enumeration([plain(spot.standing.title) for spot in alike]) if len(alike) <= 3 else f"{len(alike)} others"
        )
        said.append(
            f"On {counted(solution.quality.count)} test samples its 95 % interval overlaps that of {names}: more "
            f"samples would be needed to tell them apart for sure."
        )
    best = max(others, key=lambda spot: spot.value)
    if best.standing.test is not None and chosen.standing.test is not None and best.value > chosen.value:
        said.append(
            f"On the test part {plain(best.standing.title)} did better ({number(best.value, places)} against "
            f"{number(chosen.value, places)}); choosing by that would have spoilt the test as an honest judge."
        )
    return [*said, *_smaller(chosen, others)]


def _smaller(chosen: Spot, others: Sequence[Spot]) -> list[str]:
    """The smallest that comes close, if it has at most half of the parameters."""
    close = (chosen.standing.validation or 0.0) - CLOSE
    near = [spot for spot in others if (spot.standing.validation or -math.inf) >= close]
    least = min(near, key=lambda spot: spot.parameters, default=chosen)
    if 2 * least.parameters > chosen.parameters:
        return []
    sizes = f"{brief(least.parameters)} parameters instead of {brief(chosen.parameters)}"
    return [f"Smaller, and within {CLOSE} on the validation data: {plain(least.standing.title)}, with {sizes}."]


def _lead(solution: Solution, own: Result, second: Result, places: int) -> str:
    """By how much the chosen one was ahead of the next, and whether that may be chance."""
    gap = (own.validation or 0.0) - (second.validation or 0.0)
    first, next_one = plain(own.title), plain(second.title)
    if gap < 0:
        return f"The answer is {first}, though {next_one} did better on the validation data."
    lead = f"Best on the validation data was {first} ({number(own.validation, places)}), "
    lead += f"ahead of {next_one} by {number(gap, places)}" if gap > 0 else f"level with {next_one}"
    if second.name not in solution.margins:
        return f"{lead}."
    _, low, high = solution.margins[second.name]
    chance = " and may be chance" if low <= 0 else ""
    return f"{lead}; with 95 % the difference lies between {number(low, places)} and {number(high, places)}{chance}."


def _meet(one: Spot, other: Spot) -> bool:
    if one.interval is None or other.interval is None:
        return False
    return one.interval[0] <= other.interval[1] and other.interval[0] <= one.interval[1]
