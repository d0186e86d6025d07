"""Geometry of a square matrix: cells, and names of rows and columns."""

import math
from collections.abc import Sequence

from nearkin.core.text import plain
from nearkin.report.labels import labels, text_width
from nearkin.report.svg import Canvas, Point

TURN = 45.0
"""Degrees by which column names are turned that are wider than a cell."""


class Grid:
    """Positions of the cells and names of a square matrix, in pixels.

    Args:
        names: of rows and columns.
        cell: largest side of a cell; smaller if `width` requires it.
        font: size of the names.
        longest: largest width of a name in pixels; longer names are shortened.
        width: of the whole picture.
    """

    def __init__(self, names: Sequence[str], cell: float, font: float, longest: float, width: float = math.inf) -> None:
        self.names, self.short, self.font = [plain(name) for name in names], labels(names, font, longest), font
        widest = max(text_width(name, font) for name in self.short)
        lean = math.sin(math.radians(TURN))
        self.left = max(widest + 14, 66.0)
        self.cell = min(cell, (width - self.left - 8) / len(names))
        self.level = widest <= self.cell - 6
        beyond = 0.0 if self.level else widest * lean + font
        self.over = max(0.0, beyond - self.cell / 2)  # by how much the last name exceeds the matrix
        self.cell = min(self.cell, (width - self.left - self.over) / len(names))
        self.top = 28 + max(beyond, font)
        self.side = self.cell * len(names)

    def corner(self, row: int, column: int) -> Point:
        """The upper left corner of a cell."""
        return self.left + column * self.cell, self.top + row * self.cell

    def headings(self, draw: Canvas, rows: str, columns: str) -> None:
        """Names of all rows and columns, and what the axes mean."""
        draw.text(self.left, 14, f"{columns} →", size=11, fill="muted")
        draw.text(self.left - 8, self.top - 8, f"{rows} ↓", size=11, fill="muted", anchor="end")
        middle = self.font * 0.36
        for row, (name, short) in enumerate(zip(self.names, self.short, strict=True)):
            x, y = self.left + (row + 0.5) * self.cell, self.top + (row + 0.5) * self.cell
            draw.text(self.left - 8, y + middle, short, size=self.font, anchor="end", tip=name)
            if self.level:
                draw.text(x, self.top - 8, short, size=self.font, anchor="middle", tip=name)
            else:
                draw.text(x + middle, self.top - 7, short, size=self.font, angle=TURN, tip=name)
