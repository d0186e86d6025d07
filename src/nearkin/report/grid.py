"""Square cells of a matrix with the names of its rows and columns."""

import math
from collections.abc import Sequence

from nearkin.core.text import plain
from nearkin.report.labels import labels, text_width
from nearkin.report.svg import Canvas, Point

TURN = 45.0
"""Degrees by which names of columns that are wider than a cell are turned."""


class Grid:
    """Where the cells and names of a square matrix lie, in pixels.

    Args:
        names: of rows and columns.
        cell: side of a cell; smaller where `width` asks for it.
        font: size of the names.
        room: pixels of the longest name.
        width: of the whole picture.
    """

    def __init__(self, names: Sequence[str], cell: float, font: float, room: float, width: float = math.inf) -> None:
        self.names, self.short, self.font = [plain(name) for name in names], labels(names, font, room), font
        widest = max(text_width(name, font) for name in self.short)
        lean = math.sin(math.radians(TURN))
        self.left = max(widest + 14, 66.0)
        self.cell = min(cell, (width - self.left - 8) / len(names))
        self.level = widest <= self.cell - 6
        beyond = 0.0 if self.level else widest * lean + font
        self.over = max(0.0, beyond - self.cell / 2)  # by which the last name leans out
        self.cell = min(self.cell, (width - self.left - self.over) / len(names))
        self.top = 28 + max(beyond, font)
        self.side = self.cell * len(names)

    def corner(self, row: int, column: int) -> Point:
        """The upper left corner of a cell."""
        return self.left + column * self.cell, self.top + row * self.cell

    def headings(self, draw: Canvas, rows: str, columns: str) -> None:
        """Names of all rows and columns, and what rows and columns are."""
        draw.text(self.left, 14, f"{columns} →", size=11, fill="muted")
        draw.text(self.left - 8, self.top - 8, f"{rows} ↓", size=11, fill="muted", anchor="end")
        middle = self.font * 0.36
        for place, (name, short) in enumerate(zip(self.names, self.short, strict=True)):
            x, y = self.left + (place + 0.5) * self.cell, self.top + (place + 0.5) * self.cell
            draw.text(self.left - 8, y + middle, short, size=self.font, anchor="end", tip=name)
            if self.level:
                draw.text(x, self.top - 8, short, size=self.font, anchor="middle", tip=name)
            else:
                draw.text(x + middle, self.top - 7, short, size=self.font, angle=TURN, tip=name)
