"""Confusion matrix: which classes are mistaken for which, as a picture of up to 20 classes and as tables."""

import math

from nearkin.core.text import MISSING, counted, percent, plain
from nearkin.report.axes import NARROW
from nearkin.report.grid import Grid
from nearkin.report.html import HtmlTable
from nearkin.report.labels import labels, text_width
from nearkin.report.svg import Canvas
from nearkin.solver.quality import Quality

DRAWN = 20
"""Classes of a picture."""
WORST = 25
"""Confusions of the table."""
DARKEST = 0.5
"""Opacity of a full cell: its number stays readable in both colour schemes."""

_LEAST = 22.0


def drawable(quality: Quality) -> bool:
    """Whether a picture can show all classes."""
    return quality.confusion is not None and 2 <= len(quality.classes) <= DRAWN


def fits_phone(quality: Quality) -> bool:
    """Whether the cells are large enough on a phone."""
    return _ConfusionDrawing(quality, NARROW).grid.cell >= _LEAST


def confusion_picture(quality: Quality, width: int, name: str = "nk-confusion") -> str:
    """SVG of counts; rows are true classes, columns answers: right ones in blue, wrong ones in orange."""
    return _ConfusionDrawing(quality, width).svg(name)


def opacity(count: int, total: int, most: float, *, right: bool) -> float:
    """Opacity of a cell: by its share for right answers, by the root of it for wrong ones, so that few are visible.

    >>> opacity(50, 100, 0.1, right=True), opacity(10, 100, 0.1, right=False), opacity(0, 9, 0.1, right=False)
    (0.3, 0.5, 0.0)
    """
    if not count or not total:
        return 0.0
    share = count / total if right else math.sqrt(count / total / most)
    return round(0.1 + (DARKEST - 0.1) * share, 3)


class _ConfusionDrawing:
    """Geometry of one picture, in pixels."""

    def __init__(self, quality: Quality, width: int) -> None:
        self.quality, self.width = quality, width
        assert quality.confusion is not None
        self.counts = quality.confusion
        self.size, narrow = len(quality.classes), width <= NARROW
        font = 10.0 if narrow or self.size > 12 else 12.0
        cell = 64.0 if self.size < 5 else 46.0
        self.grid = Grid(quality.classes, cell, font, 70.0 if narrow else 120.0, width)
        self.totals = [sum(row) for row in self.counts]
        wrong = [self.counts[a][b] / self.totals[a] for a in range(self.size) for b in range(self.size)
                 if a != b and self.totals[a]]  # fmt: skip
        self.most = max([*wrong, 1e-12])

    def svg(self, name: str) -> str:
        """The whole picture as SVG."""
        grid = self.grid
        width = max(grid.left + grid.side + max(grid.over, 2.0), 210.0)
        draw = Canvas(min(self.width, round(width)), round(grid.top + grid.side + 6))
        grid.headings(draw, "true", "answer")
        draw.rect(grid.corner(0, 0), (grid.side, grid.side), fill="panel")
        names = grid.names
        for a in range(self.size):
            for b in range(self.size):
                if self.counts[a][b]:
                    self._cell(draw, a, b, f"true class {names[a]}, answer {names[b]}: {counted(self.counts[a][b])}")
        for row in range(1, self.size):
            draw.line(grid.corner(0, row), grid.corner(self.size, row), stroke="paper")
            draw.line(grid.corner(row, 0), grid.corner(row, self.size), stroke="paper")
        return draw.svg(name, f"Confusions of {self.size} classes", self._description())

    def _cell(self, draw: Canvas, a: int, b: int, tip: str) -> None:
        count, cell, (x, y) = self.counts[a][b], self.grid.cell, self.grid.corner(a, b)
        full = opacity(count, self.totals[a], self.most, right=a == b)
        draw.rect((x, y), (cell, cell), fill="kin" if a == b else "target", opacity=full, tip=tip)
        words = str(count)
        font = min(13.0, cell * 0.42, 13.0 * (cell - 4) / text_width(words, 13.0))
        draw.text(x + cell / 2, y + cell / 2 + font * 0.36, words, size=round(font, 1), anchor="middle")

    def _description(self) -> str:
        worst = worst_confusions(self.quality)
        text = "Rows are true classes, columns are answers; right answers lie on the diagonal."
        if not worst:
            return f"{text} There is no mistake."
        true_class, answer, count, _ = worst[0]
        return f"{text} The most frequent mistake: {true_class} is mistaken for {answer}, {count} times."


def worst_confusions(quality: Quality) -> list[tuple[str, str, int, float]]:
    """True class, answer, count, share of the true class; most frequent first.

    >>> two = Quality(0.8, "accuracy", (0.0, 1.0), 5, 0.1, 0.5, ("a", "b"), ((2, 1), (0, 2)))
    >>> [(true_class, answer, count) for true_class, answer, count, _ in worst_confusions(two)]
    [('a', 'b', 1)]
    """
    if quality.confusion is None:
        return []
    names = [plain(name) for name in quality.classes]
    confusions = [
        (names[a], names[b], count, count / sum(row))
        for a, row in enumerate(quality.confusion) for b, count in enumerate(row) if a != b and count
    ]  # fmt: skip
    return sorted(confusions, key=lambda row: (-row[2], -row[3]))


def worst_table(quality: Quality) -> HtmlTable | None:
    """The most frequent confusions."""
    worst = worst_confusions(quality)
    rows = [(true_class, answer, counted(count), percent(share)) for true_class, answer, count, share in worst[:WORST]]
    caption = f"The {len(rows)} most frequent confusions of {len(worst)}" if len(worst) > WORST else "All confusions"
    heads = ("True class", "Answer", "Samples", "Share of the true class")
    return HtmlTable(caption, heads, rows, frozenset({2, 3})) if rows else None


def counts_table(quality: Quality) -> HtmlTable:
    """The whole matrix of counts."""
    names, short = [plain(name) for name in quality.classes], labels(quality.classes, 12.0, 130.0)
    rows = [(name, *map(counted, row)) for name, row in zip(names, quality.confusion or (), strict=True)]
    return HtmlTable(
        "Test samples by true class (rows) and answer (columns)", ("True class", *short), rows,
        frozenset(range(1, len(names) + 1)),
    )  # fmt: skip


def classes_table(quality: Quality) -> HtmlTable | None:
    """Recall, precision and the most frequent mistake of every class."""
    if quality.confusion is None:
        return None
    counts, names = quality.confusion, [plain(name) for name in quality.classes]
    rows = []
    for a, name in enumerate(names):
        samples, answers, right = sum(counts[a]), sum(row[a] for row in counts), counts[a][a]
        others = [b for b in range(len(names)) if b != a and counts[a][b]]
        most = max(others, key=lambda b: counts[a][b], default=None)
        rows.append((
            name, counted(samples), _share(right, samples), _share(right, answers),
            MISSING if most is None else f"{names[most]} ({counts[a][most]})",
        ))  # fmt: skip
    heads = ("Class", "Test samples", "Recognised (recall)", "Right if answered (precision)", "Most often mistaken for")
    return HtmlTable("Class by class", heads, rows, frozenset({1, 2, 3}))


def _share(count: int, whole: int) -> str:
    return percent(count / whole) if whole else MISSING


def confusion_text(quality: Quality) -> str:
    """The most frequent confusion, in a sentence."""
    worst = worst_confusions(quality)
    if quality.confusion is None:
        return f"With {counted(len(quality.classes))} classes, the confusions were not stored."
    if not worst:
        return "All test samples are classified correctly."
    true_class, answer, count, share = worst[0]
    if count == 1:
        single = f"There is one mistake: “{true_class}” is mistaken for “{answer}”."
        return single if len(worst) == 1 else f"There are {len(worst)} kinds of mistakes, each of them once."
    return (
        f"The most frequent mistake: “{true_class}” is mistaken for “{answer}”, {count} times, which is "
        f"{percent(share)} of the test samples of “{true_class}”."
    )
