"""Cells of new rows that a table encoding cannot represent: other kinds, and values that training did not have."""

from collections.abc import Iterator, Sequence

import numpy as np

from nearkin.tasks.column_encodings import MOST_COUNTED, AnyColumn, CategoryColumn, DateColumn, TextColumn
from nearkin.tasks.table_cells import Array, Cells, Columns, missing_cells, read_dates, words
from nearkin.tasks.table_encoding import TableEncoding

SHOWN = 20  # lines
FILLED = "filled with the training median"


def unknown_cells(encoding: TableEncoding, table: Columns) -> tuple[str, ...]:
    """One line for each column whose new cells are filled, or unknown to the model.

    >>> encoding, _ = TableEncoding.fit({"size": ["1", "2", "3"], "colour": ["red", "blue", "red"]})
    >>> for line in unknown_cells(encoding, {"size": ["big", "5"], "colour": ["red", "green"]}):
    ...     print(line)
    column 'size': 1 of 2 cells is not a number, such as 'big': filled with the training median
    column 'colour': 1 of 2 cells is a value that training did not have, such as 'green'
    """
    lines = [
        f"column {column.name!r}: {line}"
        for column in encoding.columns
        for line in _lines(column.encoding, table[column.name])
    ]
    more = [f"{len(lines) - SHOWN} more lines about columns"] if len(lines) > SHOWN else []
    return (*lines[:SHOWN], *more)


def _lines(encoding: AnyColumn, cells: Cells) -> Iterator[str]:
    if isinstance(encoding, CategoryColumn):
        if new := _unseen(encoding, cells):
            yield f"{_count(new, cells, 'a value')} that training did not have, {_such_as(new, cells)}"
        return
    if isinstance(encoding, TextColumn):
        known = set(encoding.words)
        if without := [row for row, cell in enumerate(cells) if known.isdisjoint(words(cell))]:
            yield f"{_count(without, cells, 'a text')} without a word of the training texts"
        return
    values = read_dates(cells, encoding.form) if isinstance(encoding, DateColumn) else encoding.read(cells)
    missing = missing_cells(cells)
    kind = f"{encoding.kind} ({encoding.form})" if isinstance(encoding, DateColumn) else encoding.kind
    if wrong := _rows(np.isnan(values) & ~missing):
        yield f"{_count(wrong, cells, f'not a {kind}')}, {_such_as(wrong, cells)}: {FILLED}"
    if missing.any() and not encoding.gaps:
        yield f"{_count(_rows(missing), cells, 'missing')}, none was in training: {FILLED}"


def _unseen(encoding: CategoryColumn, cells: Cells) -> list[int]:
    """Rows whose value is surely new; values that are rare in training may not be stored."""
    if encoding.other and (encoding.counts is None or len(encoding.counts) >= MOST_COUNTED):
        return []
    known = {*encoding.values, *(encoding.counts or {})}
    return [row for row, cell in enumerate(cells) if cell.strip() not in known and len(cell) < 200]


def _rows(marked: Array) -> list[int]:
    return [int(row) for row in np.flatnonzero(marked)]


def _count(rows: Sequence[int], cells: Cells, what: str) -> str:
    return f"{len(rows)} of {len(cells)} cells {'is' if len(rows) == 1 else 'are'} {what}"


def _such_as(rows: Sequence[int], cells: Cells) -> str:
    return f"such as {cells[rows[0]].strip()[:40]!r}"
