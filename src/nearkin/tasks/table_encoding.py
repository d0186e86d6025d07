"""TableEncoding: the columns of a table as float32 `[N, D]`, fitted on training rows and stored as plain JSON."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NotRequired, TypedDict

import numpy as np

from nearkin.core.errors import DataError, require
from nearkin.core.opening import require_bytes
from nearkin.core.plain import typed
from nearkin.tasks.column_encodings import (
    KINDS,
    LEAST_WORDS,
    MOST_WORDS,
    AnyColumn,
    CategoryColumn,
    DateColumn,
    NumberColumn,
    TextColumn,
)
from nearkin.tasks.column_kinds import ColumnKind, column_kind, fit_text
from nearkin.tasks.table_cells import Array, Cells, Columns, is_missing, missing_cells, numbers

VERSION = 1
TEXT_NUMBERS = 2**26  # numbers of all encoded texts of a table
SHOWN = 30  # lines of a report


class _ColumnFacts(TypedDict):
    """Stored facts of one column, beside those of its kind."""

    name: str
    kind: str
    kept: tuple[int, ...]


class _EncodingFacts(TypedDict):
    """Stored facts of a table encoding."""

    version: int
    columns: list[dict[str, Any]]
    target: NotRequired[list[str]]


@dataclass(frozen=True)
class TableReport:
    """What was done to a table, one line for each change."""

    lines: tuple[str, ...] = ()

    def shown(self, most: int = SHOWN) -> tuple[str, ...]:
        """The first lines, and how many are left out.

        >>> TableReport(("a", "b", "c")).shown(2)
        ('a', 'b', '1 more line about columns')
        """
        left = len(self.lines) - most
        if left <= 0:
            return self.lines
        return (*self.lines[:most], f"{left} more line{'s' if left > 1 else ''} about columns")


@dataclass(frozen=True)
class EncodedColumn:
    """Encoding of one column; of its numbers only those at the positions `kept` varied in training and are used."""

    name: str
    encoding: AnyColumn
    kept: tuple[int, ...]

    def encode(self, cells: Cells) -> Array:
        """Cells as float32 `[N, len(kept)]`."""
        try:
            return self.encoding.encode(cells)[:, list(self.kept)]
        except DataError as error:
            raise DataError(f"column {self.name!r}: {error}; fix the column or leave it out of the task") from None


@dataclass(frozen=True)
class TableEncoding:
    """Encoding of a table, learned from its training rows only.

    Attributes:
        columns: the input columns that are used, in the order of the encoded numbers.

    >>> encoding, report = TableEncoding.fit({"size": ["1", "2", ""], "colour": ["red", "blue", "red"]})
    >>> encoding.encode({"colour": ["green", "blue"], "size": ["5", "?"]}).tolist()
    [[5.0, 0.0, 0.0, 0.0], [1.5, 1.0, 1.0, 0.0]]
    >>> report.lines
    ("column 'size': missing in 1 of 3 training rows: filled with 1.5 and marked",)
    >>> TableEncoding.from_dict(encoding.to_dict(), "this table") == encoding
    True
    """

    columns: tuple[EncodedColumn, ...]

    @property
    def width(self) -> int:
        """Number D of encoded columns."""
        return sum(len(column.kept) for column in self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that are used."""
        return tuple(column.name for column in self.columns)

    @property
    def marks(self) -> tuple[int, ...]:
        """Positions of the encoded columns that mark something by a number from 0 to 1 and keep this scale."""
        every = [column.encoding.marks[position] for column in self.columns for position in column.kept]
        return tuple(position for position, mark in enumerate(every) if mark)

    @classmethod
    def fit(cls, table: Columns, keep: Collection[str] = ()) -> tuple["TableEncoding", TableReport]:
        """Detect the kind of every column of the training rows, and learn its encoding.

        Args:
            table: training cells by column, without the targets.
            keep: names of columns that are not dropped as identifiers.
        """
        kinds = {name: column_kind(name, cells, name in keep) for name, cells in table.items()}
        texts = [name for name, kind in kinds.items() if kind.text]
        if texts:
            room = TEXT_NUMBERS // max(1, len(table[texts[0]]))
            most = max(LEAST_WORDS, min(MOST_WORDS, room) // len(texts))
            kinds |= {name: fit_text(table[name], most) for name in texts}
        columns, lines = [], []
        for name, kind in kinds.items():
            column = None if kind.encoding is None else _varying(name, kind.encoding, table[name])
            if column is not None:
                columns.append(column)
            elif kind.encoding is not None:
                kind = ColumnKind(None, "does not vary within the precision of float32: dropped as constant")
            lines += _lines(name, kind, table[name], column)
        return cls(tuple(columns)), TableReport(tuple(lines))

    def encode(self, table: Columns) -> Array:
        """The table as float32 `[N, D]`; further columns are ignored, absent ones are an error that names them."""
        absent = [name for name in self.names if name not in table]
        require(
            not absent,
            f"the table has no column {', '.join(map(repr, absent[:10]))}; it needs {_listed(self.names)}: add "
            f"{'it' if len(absent) == 1 else 'them'}, with empty cells if the values are unknown",
            DataError,
        )
        count = len(table[self.names[0]]) if self.columns else 0
        require_bytes(8 * count * self.width, "the table as numbers")
        encoded = np.empty((count, self.width), np.float32)
        start = 0
        for column in self.columns:
            encoded[:, start : start + len(column.kept)] = column.encode(table[column.name])
            start += len(column.kept)
        return encoded

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        columns = [
            {"name": column.name, "kind": column.encoding.kind, "kept": list(column.kept), **_plain(column.encoding)}
            for column in self.columns
        ]
        return {"version": VERSION, "columns": columns}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any], origin: str) -> "TableEncoding":
        """The inverse of `to_dict`; `origin` is for errors."""
        known = typed(_EncodingFacts, facts, origin)
        require(
            known["version"] == VERSION,
            f"{origin}: its table encoding has version {known['version']}, expected {VERSION}; solve the task again",
            DataError,
        )
        columns = tuple(_read_column(column, origin) for column in known["columns"])
        names = [column.name for column in columns]
        require(
            len(set(names)) == len(names) > 0,
            f"{origin}: its table encoding has no columns or several of one name; write or fetch it again",
            DataError,
        )
        return cls(columns)


def _read_column(facts: dict[str, Any], origin: str) -> EncodedColumn:
    known = typed(_ColumnFacts, facts, origin)
    kind = KINDS.get(known["kind"])
    if kind is None:
        raise DataError(
            f"{origin}: column kind {known['kind'][:40]!r} is not one of {', '.join(KINDS)}; fetch it again"
        )
    own = {name: value for name, value in facts.items() if name not in _ColumnFacts.__annotations__}
    encoding, kept = typed(kind, own, origin), known["kept"]
    inside = all(0 <= position < len(encoding.titles) for position in kept)
    require(
        inside and bool(kept) and list(kept) == sorted(set(kept)),
        f"{origin}: the kept positions of column {known['name'][:40]!r} do not fit its encoding; fetch it again",
        DataError,
    )
    return EncodedColumn(known["name"], encoding, kept)


def _plain(encoding: AnyColumn) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(encoding).items()}


def _varying(name: str, encoding: AnyColumn, cells: Cells) -> EncodedColumn | None:
    """The column without the numbers that are constant in training; None if all are."""
    encoded = encoding.encode(cells).astype(np.float64)
    largest = np.abs(encoded).max(0)
    varies = encoded.std(0) > 2 * np.finfo(np.float32).eps * largest
    kept = tuple(np.flatnonzero(varies).tolist())
    return EncodedColumn(name, encoding, kept) if kept else None


def _lines(name: str, kind: ColumnKind, cells: Cells, column: EncodedColumn | None) -> list[str]:
    """What was done to one column; nothing for whole columns of numbers and for one-hot columns."""
    encoding = kind.encoding
    if encoding is None or column is None:
        return [f"column {name!r} {kind.reason}"]
    titles, count = [encoding.titles[position] for position in column.kept], len(cells)
    match encoding:
        case NumberColumn(fill=fill, gaps=gaps):
            return [f"column {name!r}: {_unread(encoding, cells)}: filled with {fill:g} and marked"] if gaps else []
        case DateColumn(form=form, gaps=gaps):
            line = f"column {name!r} is a date ({form}): encoded as {', '.join(titles)}"
            missing = int(missing_cells(cells).sum())
            return [line + (f"; {_cells(missing, count)}" if gaps else "")]
        case TextColumn():
            return [f"column {name!r} is text: encoded as TF-IDF of its {len(titles)} most frequent words and pairs"]
        case CategoryColumn(values=values, other=other, counts=counts):
            missing = sum(not cell.strip() for cell in cells)
            lines = [f"column {name!r}: {_cells(missing, count)}: a value of its own"] if missing else []
            if other:
                frequency = ", one for the frequency" if counts is not None else ""
                total = len({cell.strip() for cell in cells})
                lines.append(
                    f"column {name!r} has {total} distinct values: one column for each of the {len(values)} most "
                    f"frequent, one for the others{frequency}"
                )
            return lines


def _unread(encoding: NumberColumn, cells: Cells) -> str:
    """How many cells are missing, too large or text."""
    unread = [cell for cell, value in zip(cells, encoding.read(cells).tolist(), strict=True) if math.isnan(value)]
    missing = sum(map(is_missing, unread))
    large = sum(numbers([cell]) is not None for cell in unread if not is_missing(cell))
    counts = {
        "missing": missing,
        "beyond float32 (3.4e+38)": large,
        f"not a {encoding.kind}": len(unread) - missing - large,
    }
    return (
        ", ".join(f"{words} in {count}" for words, count in counts.items() if count) + f" of {len(cells)} training rows"
    )


def _cells(number: int, count: int) -> str:
    return f"missing in {number} of {count} training rows"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (f" and {len(names) - 20} others" if len(names) > 20 else "")
