"""Comparison of all contenders: test score against size as a picture, their table, and what it says in words."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from matplotlib.markers import MarkerStyle
from numpy.typing import NDArray

from nearkin.core.text import MISSING, brief, counted, enumeration, number, plain
from nearkin.report.axes import FONT, NARROW, Field, frame, legend_positions, scale_around, whisker
from nearkin.report.html import HtmlTable
from nearkin.report.labels import Box, draw_labels, draw_leaders, labels, place_labels, text_width
from nearkin.report.svg import Canvas
from nearkin.solver.result import KINDS, Result, ordered
from nearkin.solver.sentence import margin_text, runner_up, score_text
from nearkin.solver.solution import Solution
from nearkin.tasks.metrics import ACCURACY, gain, is_in_units, share_interval

CLOSE = 0.01
"""A smaller contender is recommended if its validation score is at most this much lower."""
OUTLIER = 3.0
"""How many times farther below the median than the best is above it a contender lies to be drawn at the edge."""

_RADIUS, _CHOSEN = 5.0, 6.5
_ROW = 18.0
_DASH = 6.0
_NAME = 11.5
_MARKS = {
    "tuned": ("D", 1.8), "frozen": ("p", 2.3), "made": ("s", 1.8), "simple": ("^", 2.3), "transfer": ("P", 2.4),
    "outlier": ("v", 2.3),
}  # fmt: skip
_SHORT = {
    "searched": "searched", "tuned": "fine-tuned", "frozen": "frozen", "made": "hand-made", "simple": "simple",
    "transfer": "closed form",
}  # fmt: skip


def score(solution: Solution, value: float | None) -> str:
    """A score of this solution's metric, for readers."""
    return score_text(value, solution.quality.name, solution.quality.count)


def score_on_test(solution: Solution, result: Result) -> float | None:
    """A contender's test score: that of its final training if it had one."""
    return solution.finals.get(result.name, result.test)


@dataclass(frozen=True)
class ContenderMark:
    """A contender in the picture; `value` is its test score, or its validation score where it was not tested."""

    result: Result
    value: float
    interval: tuple[float, float] | None
    chosen: bool

    @property
    def parameters(self) -> int:
        """At least one, for the logarithm."""
        return max(self.result.parameters, 1)

    @property
    def low(self) -> float:
        """The smallest of its values."""
        return min(self.value, *(self.interval or (self.value,)), self.result.validation or self.value)


def marks(solution: Solution) -> list[ContenderMark]:
    """All contenders that ran, best on the validation set first."""
    rows = []
    for result in ordered(solution.standings):
        test = score_on_test(solution, result)
        value = float(result.validation or 0.0) if test is None else test
        known = test is not None and solution.quality.name == ACCURACY and 0 <= test <= 1
        interval = share_interval(value, solution.quality.count) if known else None
        rows.append(ContenderMark(result, value, interval, result.name == solution.chosen))
    return rows


def lower_limit(shown: Sequence[ContenderMark]) -> float:
    """The value below which contenders are drawn at the edge, so that one outlier does not compress all others."""
    if len(shown) < 3:
        return -math.inf
    middle = median(mark.value for mark in shown)
    best: float = max(end for mark in shown for end in (mark.value, *(mark.interval or ())))
    return min([middle - OUTLIER * (best - middle), *(mark.low for mark in shown if mark.chosen)])


def comparison_picture(solution: Solution, width: int, name: str = "nk-comparison") -> str:
    """SVG of test score against parameters, a mark for every contender that ran."""
    return _ComparisonDrawing(solution, width).svg(name)


class _ComparisonDrawing:
    """Geometry of one picture, in pixels."""

    def __init__(self, solution: Solution, width: int) -> None:
        self.solution, self.marks = solution, marks(solution)
        narrow = width <= NARROW
        self.percent = solution.quality.name == ACCURACY
        better = gain(solution.quality.name, 1.0) > 0  # of higher values; the better end of the axis is above
        limit = lower_limit(self.marks) if better else -math.inf
        self.outliers = {mark.result.name for mark in self.marks if mark.value < limit}
        inside = [mark for mark in self.marks if mark.result.name not in self.outliers]
        kinds = [kind for kind in KINDS if any(mark.result.kind == kind for mark in inside)]
        words = [*(KINDS[kind] for kind in kinds), *(["below the axis"] if self.outliers else []), "validation score"]
        signs = [*kinds, *(["outlier"] if self.outliers else []), ""]
        self.legend = list(zip(signs, words, legend_positions(words, width - 8, 16), strict=True))
        rows = int(self.legend[-1][2][1]) + 1
        tall = (380.0 if narrow else 360.0) + 6 * max(0, len(self.marks) - 10)
        self.field = field = Field(48.0 if narrow else 54.0, 34.0, width - 10.0, 34.0 + tall)
        self.canvas = Canvas(width, round(field.bottom + 48 + _ROW * rows))
        shown = [mark.value for mark in inside] + [end for mark in inside for end in mark.interval or ()]
        shown += [mark.result.validation for mark in inside if mark.result.validation is not None]
        bounds = (0.0, 100.0) if self.percent else (-math.inf, math.inf)
        self.x = scale_around((mark.parameters for mark in self.marks), field.left + 14, field.right - 14, log=True)
        self.y = scale_around(
            (self._unit(max(value, limit)) for value in shown),
            *((field.bottom - 6, field.top + 6) if better else (field.top + 6, field.bottom - 6)),
            bounds=bounds,
        )
        self.tips = [self._tip(mark) for mark in self.marks]
        names = [
            f"{mark.result.title}: {score(solution, mark.value)}" if mark.result.name in self.outliers
            else mark.result.title for mark in self.marks
        ]  # fmt: skip
        self.short = labels(names, _NAME, 110.0 if narrow else 180.0)
        self.anchors = np.array([self._spot(mark) for mark in self.marks]).reshape(-1, 2)

    def _unit(self, value: float) -> float:
        return 100 * value if self.percent else value

    def _height(self, value: float) -> float:
        """Pixels of a score; the edge of the field where it lies beyond."""
        return self.y(min(max(self._unit(value), self.y.low), self.y.high))

    def _spot(self, mark: ContenderMark) -> tuple[float, float]:
        return self.x(mark.parameters), self._height(mark.value)

    def svg(self, name: str) -> str:
        """The whole picture, from back to front."""
        draw, metric = self.canvas, self.solution.quality.title
        frame(draw, self.field, self.x, self.y, ("parameters", f"test {metric}{' (%)' if self.percent else ''}"))
        self._draw_baseline()
        radii = np.array([_CHOSEN + 4 if mark.chosen else _RADIUS for mark in self.marks])
        boxes = self._label_boxes(radii)
        draw_leaders(draw, self.anchors, radii, boxes)
        drawn = list(zip(self.marks, self.anchors.tolist(), self.tips, strict=True))
        for mark, (x, _), _ in drawn:
            self._draw_bars(mark, x)
        for mark, (x, y), tip in sorted(drawn, key=lambda row: row[0].chosen):
            size, colour = (_CHOSEN, "target") if mark.chosen else (_RADIUS, "kin")
            if mark.chosen:
                draw.circle(x, y, size + 4, stroke="target", width=1.5)
            sign = "outlier" if mark.result.name in self.outliers else mark.result.kind
            draw_sign(draw, sign, x, y, size, colour, tip)
        chosen = next((rank for rank, mark in enumerate(self.marks) if mark.chosen), None)
        draw_labels(draw, boxes, self.short, self.tips, _NAME, chosen)
        self._draw_legend()
        text = f"{len(self.marks)} contenders; those to the right are larger, those above are better."
        text += "" if chosen is None else f" Chosen: {self.tips[chosen]}."
        return draw.svg(name, f"Test {metric} against parameters", text)

    def _tip(self, mark: ContenderMark) -> str:
        result = mark.result
        test, validation = (
            score(self.solution, value) for value in (score_on_test(self.solution, result), result.validation)
        )
        ends = " to ".join(score(self.solution, end) for end in mark.interval or ())
        within = f" ({ends})" if ends else ""
        size = counted(result.parameters)
        return f"{plain(result.title)}: test {test}{within}, validation {validation}, {size} parameters"

    def _draw_baseline(self) -> None:
        """The score of a constant answer, where it lies in the picture."""
        level = self._unit(self.solution.quality.guess)
        if self.y.low < level < self.y.high:
            left, right = self.field.left, self.field.right
            self.canvas.line((left, self.y(level)), (right, self.y(level)), stroke="muted", dashed=True)
            words = "majority class" if self.solution.quality.of_classes else "mean value"
            self.canvas.text(right, self.y(level) - 4, words, size=10, fill="muted", anchor="end")

    def _draw_bars(self, mark: ContenderMark, x: float) -> None:
        """The interval of the test score, and a dash at the validation score."""
        if mark.result.name in self.outliers:
            return
        if mark.interval:
            low, high = map(self._height, mark.interval)
            whisker(self.canvas, (x, low), (x, high), stroke="target" if mark.chosen else "kin", width=1.1)
        if mark.result.validation is not None and self._unit(mark.result.validation) >= self.y.low:
            y = self._height(mark.result.validation)
            self.canvas.line((x - _DASH, y), (x + _DASH, y), stroke="ink", width=1.6)

    def _label_boxes(self, radii: NDArray[np.float64]) -> list[Box]:
        widths = [text_width(text, _NAME, bold=mark.chosen) for text, mark in zip(self.short, self.marks, strict=True)]
        sizes = np.array([(width, _NAME * 1.25) for width in widths])
        busy = [np.zeros((0, 2))]
        for mark, (x, _) in zip(self.marks, self.anchors.tolist(), strict=True):
            ends = [*(mark.interval or ()), mark.result.validation or mark.value, mark.value]
            down = list(map(self._height, ends))
            steps = np.arange(min(down), max(down) + 4, 4.0)
            busy.append(np.stack([np.full_like(steps, x), steps], axis=1))
        bounds = Box(self.field.left + 2, self.field.top - 2, self.field.right, self.field.bottom - 2)
        return place_labels(self.anchors, sizes, radii, bounds, np.concatenate(busy)) if len(self.anchors) else []

    def _draw_legend(self) -> None:
        top = self.field.bottom + 56
        for sign, words, (column, row) in self.legend:
            x, y = 4 + column, top + row * _ROW
            if sign:
                draw_sign(self.canvas, sign, x + 5, y - 4, _RADIUS, "kin")
            else:
                self.canvas.line((x, y - 4), (x + 11, y - 4), stroke="ink", width=1.6)
            self.canvas.text(x + 16, y, words, size=FONT, fill="muted")


def draw_sign(draw: Canvas, sign: str, x: float, y: float, size: float, fill: str, tip: str = "") -> None:
    """The sign of a kind of contender, so that readers need no colour to tell kinds apart."""
    if sign not in _MARKS:
        draw.circle(x, y, size, fill=fill, tip=tip)
        return
    style, grown = MarkerStyle(_MARKS[sign][0]), _MARKS[sign][1] * size
    corners = np.asarray(style.get_path().transformed(style.get_transform()).vertices, dtype=np.float64)[:-1]
    draw.polygon([(x + grown * across, y - grown * up) for across, up in corners.tolist()], fill=fill, tip=tip)


def comparison_table(solution: Solution) -> HtmlTable:
    """All contenders that ran, best on the validation set first; the columns that a reader needs first come first."""
    metric, trained = solution.quality.title, solution.samples.get("finals", {})
    rows, chosen = [], None
    for rank, mark in enumerate(marks(solution)):
        result = mark.result
        chosen = rank if mark.chosen else chosen
        samples = trained.get(result.name, result.samples)
        rows.append((
            f"✔ {plain(result.title)} (chosen)" if mark.chosen else plain(result.title),
            score(solution, score_on_test(solution, result)),
            score(solution, result.validation),
            MISSING if samples is None else counted(samples),
            number(result.seconds, 1),
            " to ".join(score(solution, end) for end in mark.interval or ()) or MISSING,
            counted(result.parameters),
            counted(result.multiply_adds),
            score(solution, result.test) if result.name in solution.finals else MISSING,
            _SHORT.get(result.kind, result.kind),
        ))  # fmt: skip
    heads = (
        "Contender", f"Test {metric}", f"Validation {metric}", "Training samples", "Seconds",
        "Test interval (95\u00a0%)", "Parameters", "Multiply-adds", "Before final training", "Kind",
    )  # fmt: skip
    return HtmlTable(
        "Contenders, best on the validation set first", heads, rows,
        frozenset(range(1, 9)), chosen, frozenset({9}),
        kind="results",
    )  # fmt: skip


def refusals(solution: Solution) -> list[tuple[str, str]]:
    """Contenders that did not run, and why."""
    return [
        (plain(result.title), plain(result.refused) or "no reason was recorded")
        for result in solution.standings
        if result.validation is None
    ]


def samples_text(solution: Solution) -> str:
    """From how many training samples the contenders learned."""
    ran = [result for result in solution.standings if result.validation is not None]
    available = solution.samples.get("available")
    if available is None or any(result.samples is None for result in ran):
        return "From how many training samples each contender learned was not recorded."
    if solution.samples.get("cross_validated"):
        whole = solution.task.get("num_train")
        return f"All contenders learned from the {counted(whole)} training samples." if whole else ""
    fewer = [result for result in ran if (result.samples or 0) < available]
    if not fewer:
        return f"All contenders learned from the same {counted(available)} training samples."
    names = enumeration([f"{plain(result.title)} ({counted(result.samples or 0)})" for result in fewer])
    rest = "" if len(fewer) == len(ran) else "; all others learned from all of them"
    return f"{counted(available)} training samples were available. Fewer were used by {names}{rest}."


def rule_text(solution: Solution) -> str:
    """The rule of the choice: the best validation score, or the lowest loss among the best if that was chosen."""
    best = ordered(solution.standings)
    metric = solution.quality.title
    if not best or best[0].name == solution.chosen:
        return f"The contender with the best {metric} on it was chosen."
    return (
        f"Contenders within one standard error of the best {metric} on it cannot be distinguished by it; among these "
        f"the one with the lowest loss of its probabilities was chosen."
    )


def final_text(solution: Solution) -> str:
    """What the final training is, and whose results in the table come from it."""
    if solution.chosen not in solution.finals or solution.samples.get("cross_validated"):
        return ""
    count, whole = solution.samples.get("finals", {}).get(solution.chosen), solution.task.get("num_train")
    learned = f" ({counted(count)} of {counted(whole)} training samples)" if count and whole else ""
    others = [result for result in ordered(solution.standings) if result.name in solution.finals]
    names = enumeration([plain(result.title) for result in others if result.name != solution.chosen])
    also = f" The best simple model, {names}, was trained again in the same way." if names else ""
    return (
        f"Then the chosen model was trained once more, with the validation samples added{learned}. Its test "
        f"{solution.quality.title} after this final training, {score(solution, solution.quality.metric)}, is the "
        f"result.{also} Rows of models with a final training show its test result."
    )


def comparison_text(solution: Solution) -> list[str]:
    """What the comparison shows, in a few sentences."""
    ran = marks(solution)
    chosen = next((mark for mark in ran if mark.chosen), None)
    others = [mark for mark in ran if not mark.chosen]
    if chosen is None or not others:
        title = "" if chosen is None else plain(chosen.result.title)
        return [f"Only {title} ran, so it could not be compared with another model."] if title else []
    sentences = [_lead_text(solution, chosen.result, others[0].result)]
    best = max(others, key=lambda mark: gain(solution.quality.name, mark.value))
    lead = gain(solution.quality.name, best.value) - gain(solution.quality.name, chosen.value)
    if score_on_test(solution, best.result) is not None and lead > 0:
        sentences.append(
            f"On the test set {plain(best.result.title)} scored better ({score(solution, best.value)} against "
            f"{score(solution, chosen.value)}). It was not chosen for that: a model selected on the test set would "
            f"have a test result that is too optimistic."
        )
    units = abs(chosen.result.validation or 0.0) if is_in_units(solution.quality.name) else 1.0
    near = [mark for mark in others if mark.result.gain >= chosen.result.gain - CLOSE * units]
    least = min(near, key=lambda mark: mark.parameters, default=chosen)
    if 2 * least.parameters <= chosen.parameters:
        sentences.append(
            f"A smaller model is nearly as good on the validation set (within {CLOSE * units:.3g}): "
            f"{plain(least.result.title)}, with {brief(least.parameters)} parameters instead of "
            f"{brief(chosen.parameters)}."
        )
    return sentences


def _lead_text(solution: Solution, chosen: Result, second: Result) -> str:
    """By how much the chosen contender was ahead on the validation set."""
    title, other = plain(chosen.title), plain(second.title)
    gap = chosen.gain - second.gain
    if gap < 0:
        return f"The chosen model is {title}, though {other} scored better on the validation set."
    lead = f"Best on the validation set is {title} ({score(solution, chosen.validation)}), "
    behind = f"{other} ({score(solution, second.validation)})"
    return f"{lead}followed by {behind}." if gap > 0 else f"{lead}level with {behind}."


def certainty_text(solution: Solution) -> list[str]:
    """Whether the differences between the chosen model and others are beyond chance."""
    second = runner_up(solution.chosen, solution.standings)
    titles = {result.name: plain(result.title) for result in solution.standings}
    sentences = []
    for name, margin in sorted(solution.margins.items(), key=lambda row: second is None or row[0] != second.name):
        role = "the runner-up, " if second is not None and name == second.name else ""
        sentences.append(
            f"On the validation set, the chosen model is ahead of {role}{titles.get(name, plain(name))} by "
            f"{margin_text(margin, solution.quality.name)}."
        )
    ran = marks(solution)
    own = next((mark.interval for mark in ran if mark.chosen), None)
    alike = [
        plain(mark.result.title) for mark in ran
        if own and not mark.chosen and mark.interval and mark.interval[0] <= own[1] and own[0] <= mark.interval[1]
    ]  # fmt: skip
    if alike:
        names = enumeration(alike) if len(alike) <= 3 else f"{len(alike)} other contenders"
        sentences.append(
            f"On the test set, its 95 % interval overlaps that of {names}. {counted(solution.quality.count)} test "
            f"samples are too few to tell them apart with certainty."
        )
    return sentences
