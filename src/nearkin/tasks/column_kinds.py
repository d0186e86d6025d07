"""Kind of a column of a table, detected from its training cells."""

import re
from typing import NamedTuple

import numpy as np

from nearkin.tasks.column_encodings import AnyColumn, CategoryColumn, DateColumn, NumberColumn, TextColumn, TruthColumn
from nearkin.tasks.table_cells import (
    Array,
    Cells,
    date_format,
    missing_cells,
    nearly_all,
    num_words,
    numbers,
    parse_numbers,
    read_numbers,
    read_truth,
)

FEWEST_ROWS = 20  # with fewer rows, distinct values are no evidence of an identifier
FIRST_NUMBER = 10  # the largest number that row numbers start from; a later start may be a year
DENSE = 0.5  # share of the numbers between the first and the last that row numbers contain
TEXT_WORDS = 3.0  # mean words of a cell from which a column is free text
TEXT_VALUES = 1000  # distinct values from which repeated cells can be free text

_ID_NAME = re.compile(r"(?:^|[\W_])(?:id|uuid|guid|index|idx|key)$", re.IGNORECASE)
_CAMEL_ID = re.compile(r"(?:^|[a-z\W_])(?:Id|ID)$")


class ColumnKind(NamedTuple):
    """Encoding of a column, or None with the reason why it is dropped; `text` asks for a `TextColumn`."""

    encoding: AnyColumn | None
    reason: str = ""
    text: bool = False


def column_kind(name: str, cells: Cells, keep: bool = False) -> ColumnKind:
    """Detect the kind of a column from its training cells.

    Args:
        name: name of the column; a name such as `user_id` tells numbers that identify from numbers that measure.
        cells: training cells.
        keep: never drop the column as an identifier.

    >>> column_kind("when", ["1 May 2024", "3 June 2024"]).encoding.kind, column_kind("x", ["1", "1"]).reason
    ('date', "has the one value '1': dropped as constant")
    >>> column_kind("key", [f"k{i}" for i in range(50)]).reason
    'has 50 distinct values in 50 training rows: dropped as an identifier'
    """
    values = numbers(cells)
    if values is not None and np.isfinite(values).all() and values.min() < values.max():  # without a look at each cell
        return _number_kind(name, cells, values, keep)
    known = [cell.strip() for cell, missing in zip(cells, missing_cells(cells).tolist(), strict=True) if not missing]
    distinct = len(set(known))
    if not known:
        return ColumnKind(None, "has no values: dropped")
    if distinct == 1 and len(known) == len(cells):
        return ColumnKind(None, f"has the one value {known[0][:40]!r}: dropped as constant")
    values = parse_numbers(known)
    if nearly_all(~np.isnan(values)):
        if not np.isfinite(read_numbers(known)).any():
            return ColumnKind(None, "has no value within float32: dropped")
        return _number_kind(name, cells, values, keep)
    if np.isfinite(read_truth(known)).all():
        return ColumnKind(TruthColumn.fit(cells))
    if form := date_format(known):
        return ColumnKind(DateColumn.fit(cells, form))
    mean_words = sum(map(num_words, known)) / len(known)
    if mean_words >= TEXT_WORDS and (2 * distinct > len(known) or distinct > TEXT_VALUES):
        return ColumnKind(None, text=True)
    if not keep and distinct == len(known) >= FEWEST_ROWS:
        return _identifier(distinct, len(cells))
    return ColumnKind(CategoryColumn.fit(cells))


def fit_text(cells: Cells, most: int) -> ColumnKind:
    """A column of free text with at most `most` words; dropped if no word occurs in two rows."""
    encoding = TextColumn.fit(cells, most)
    return ColumnKind(encoding) if encoding.words else ColumnKind(None, "is text without repeated words: dropped")


def _identifier(distinct: int, count: int) -> ColumnKind:
    return ColumnKind(None, f"has {distinct} distinct values in {count} training rows: dropped as an identifier")


def _number_kind(name: str, cells: Cells, values: Array, keep: bool) -> ColumnKind:
    if not keep and _identifies(name, values):
        return _identifier(len(values), len(cells))
    whole = len(values) == len(cells) and bool((np.abs(values) <= np.finfo(np.float32).max).all())
    return ColumnKind(NumberColumn(float(np.median(values)), False) if whole else NumberColumn.fit(cells))


def _identifies(name: str, values: Array) -> bool:
    """Whether distinct whole numbers count the rows, or belong to a column named as an identifier."""
    if len(values) < FEWEST_ROWS or not np.isfinite(values).all() or (values != np.floor(values)).any():
        return False
    if len(np.unique(values)) < len(values):
        return False
    rising = bool((np.diff(values) > 0).all())
    low, high = float(values.min()), float(values.max())
    counts = rising and 0 <= low <= FIRST_NUMBER and len(values) >= DENSE * (high - low + 1)
    return counts or bool(_ID_NAME.search(name) or _CAMEL_ID.search(name))
