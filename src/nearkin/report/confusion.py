"""Confusions: which classes are taken for which, as a picture of up to 20 classes and as tables."""

import math
from collections.abc import Sequence

from nearkin.core.text import MISSING, counted, percent, plain
from nearkin.report.axes import NARROW
from nearkin.report.grid import Grid
from nearkin.report.html import Table
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
    return _Drawing(quality, NARROW).grid.cell >= _LEAST


def confusion_picture(quality: Quality, width: int, name: str = "nk-confusion") -> str:
    """SVG of counts; rows are the given classes, columns what was said: right in blue, wrong in orange."""
    return _Drawing(quality, width).svg(name)


def opacity(count: int, total: int, most: float, *, right: bool) -> float:
    """How full a cell is: right ones by their share, wrong ones by the root of theirs, so that few can be seen.

    >>> opacity(50, 100, 0.1, right=True), opacity(10, 100, 0.1, right=False), opacity(0, 9, 0.1, right=False)
    (0.3, 0.5, 0.0)
    """
    if not count or not total:
        return 0.0
    share = count / total if right else math.sqrt(count / total / most)
    return round(0.1 + (DARKEST - 0.1) * share, 3)


class _Drawing:
    """Geometry shared by the parts of one picture, in pixels."""

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
        """All of it."""
        grid = self.grid
        room = max(grid.left + grid.side + max(grid.over, 2.0), 210.0)
        draw = Canvas(min(self.width, round(room)), round(grid.top + grid.side + 6))
        grid.headings(draw, "given", "said")
        draw.rect(grid.corner(0, 0), (grid.side, grid.side), fill="panel")
        names = grid.names
        for a in range(self.size):
            for b in range(self.size):
                if self.counts[a][b]:
                    self._cell(draw, a, b, f"given {names[a]}, said {names[b]}: {counted(self.counts[a][b])}")
        for place in range(1, self.size):
            draw.line(grid.corner(0, place), grid.corner(self.size, place), stroke="paper")
            draw.line(grid.corner(place, 0), grid.corner(place, self.size), stroke="paper")
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
        said = "Rows are the given classes, columns what was said; right answers lie on the diagonal."
        if not worst:
            return f"{said} There is no mistake."
        given, other, count, _ = worst[0]
        return f"{said} Most often {given} is taken for {other}, {count} times."


def worst_confusions(quality: Quality) -> list[tuple[str, str, int, float]]:
    """Given class, class that was said, count, share of the given class; most frequent first.

    >>> two = Quality(0.8, "accuracy", (0.0, 1.0), 5, 0.1, 0.5, ("a", "b"), ((2, 1), (0, 2)))
    >>> [(given, said, count) for given, said, count, _ in worst_confusions(two)]
    [('a', 'b', 1)]
    """
    if quality.confusion is None:
        return []
    names = [plain(name) for name in quality.classes]
    found = [
        (names[a], names[b], count, count / sum(row))
        for a, row in enumerate(quality.confusion) for b, count in enumerate(row) if a != b and count
    ]  # fmt: skip
    return sorted(found, key=lambda one: (-one[2], -one[3]))


def worst_table(quality: Quality) -> Table | None:
    """The most frequent confusions."""
    worst = worst_confusions(quality)
    rows = [(given, said, counted(count), percent(share)) for given, said, count, share in worst[:WORST]]
    caption = f"The {len(rows)} most frequent confusions of {len(worst)}" if len(worst) > WORST else "All confusions"
    return Table(caption, ("Given", "Said", "Samples", "Of the given class"), rows, frozenset({2, 3})) if rows else None


def counts_table(quality: Quality) -> Table:
    """The whole matrix of counts."""
    names, short = [plain(name) for name in quality.classes], labels(quality.classes, 12.0, 130.0)
    rows = [(name, *map(counted, row)) for name, row in zip(names, quality.confusion or (), strict=True)]
    return Table(
        "Test samples by given class (rows) and class that was said (columns)", ("Given", *short), rows,
        frozenset(range(1, len(names) + 1)),
    )  # fmt: skip


def classes_table(quality: Quality) -> Table | None:
    """For every class how much of it is found, how far its name can be trusted, and what it is taken for."""
    if quality.confusion is None:
        return None
    counts, names = quality.confusion, [plain(name) for name in quality.classes]
    rows = []
    for a, name in enumerate(names):
        given, said, right = sum(counts[a]), sum(row[a] for row in counts), counts[a][a]
        others = [b for b in range(len(names)) if b != a and counts[a][b]]
        most = max(others, key=lambda b: counts[a][b], default=None)
        rows.append((
            name, counted(given), _share(right, given), _share(right, said),
            MISSING if most is None else f"{names[most]} ({counts[a][most]})",
        ))  # fmt: skip
    heads = ("Class", "Test samples", "Found (recall)", "Right when said (precision)", "Most often taken for")
    return Table("Class by class", heads, rows, frozenset({1, 2, 3}))


def _share(part: int, whole: int) -> str:
    return percent(part / whole) if whole else MISSING


def confusion_words(quality: Quality) -> str:
    """Which confusion is the most frequent."""
    worst: Sequence[tuple[str, str, int, float]] = worst_confusions(quality)
    if quality.confusion is None:
        return f"With {counted(len(quality.classes))} classes the confusions are not kept."
    if not worst:
        return "No test sample was answered wrongly."
    given, said, count, share = worst[0]
    if count == 1:
        return (
            f"There are {len(worst)} confusions, each of them once."
            if len(worst) > 1
            else f"“{given}” was taken for “{said}”, once."
        )
    return f"Most often “{given}” is taken for “{said}”: {count} times, {percent(share)} of all that are so given."
