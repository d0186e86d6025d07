"""Encodings of one column of a table: values that turn text cells `[N]` into float32 columns `[N, K]`.

Every class has `fit(cells)`, which learns from training cells, `encode(cells)`, `titles`, the names of the K columns,
and `marks`, which of them are shares from 0 to 1. An encoded column never holds NaN or infinity.
"""

import math
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias

import numpy as np

from nearkin.core.errors import DataError, require
from nearkin.tasks.table_cells import (
    FORMATS,
    Array,
    Cells,
    date_format,
    is_missing,
    missing_cells,
    read_dates,
    read_numbers,
    read_truth,
    terms,
)

MOST_VALUES = 400  # one-hot columns of a category
FEWER_VALUES = 100  # of a category in a table of very many rows; with more values, each must occur twice
ONE_HOT_NUMBERS = 2**25  # numbers of the one-hot columns of a category: 128 MiB
MOST_COUNTED = 1000  # values of a category whose frequencies are stored
RARE = 1 / 500  # share of the training rows below which a value counts as rare
MOST_WORDS = 2000  # columns of all texts of a table
LEAST_WORDS = 64  # columns of one text
LONGEST_VALUE = 200  # characters of a category that are compared
LATEST = 1e12  # seconds; later dates cannot be read
PARTS = ("year", "month", "weekday", "hour", "seconds")
SEASON = ("sine of the season", "cosine of the season")
YEAR = 31_556_952.0  # seconds of a mean year of the Gregorian calendar


class ColumnEncoding(Protocol):
    """Encoding of one column."""

    kind: ClassVar[str]

    @property
    def titles(self) -> tuple[str, ...]:
        """What each encoded column holds."""
        ...

    @property
    def marks(self) -> tuple[bool, ...]:
        """Which encoded columns mark a value, a word or a gap by a number from 0 to 1; they keep this scale.

        Divided by their standard deviation, the mark of a rare value would be larger than all other numbers of its row.
        """
        ...

    def encode(self, cells: Cells) -> Array:
        """Cells as float32 `[N, K]`."""
        ...


@dataclass(frozen=True)
class NumberColumn:
    """Numbers; a missing one becomes `fill`, the training median, and with `gaps` a second column marks it.

    >>> column = NumberColumn.fit(["1", "", "5", "3"])
    >>> column.encode(["7", "NA"]).tolist()
    [[7.0, 0.0], [3.0, 1.0]]
    """

    kind: ClassVar[str] = "number"
    fill: float
    gaps: bool

    def __post_init__(self) -> None:
        _require(abs(self.fill) <= float(np.finfo(np.float32).max), f"the fill value {self.fill}", "a finite number")

    @staticmethod
    def read(cells: Cells) -> Array:
        """Cells as float64 `[N]`, NaN for cells that cannot be read."""
        return read_numbers(cells)

    @classmethod
    def fit(cls, cells: Cells) -> "NumberColumn":
        """Median and missing cells of the training rows."""
        values = cls.read(cells)
        missing = np.isnan(values)
        return cls(0.0 if missing.all() else float(np.nanmedian(values)), bool(missing.any()))

    @property
    def titles(self) -> tuple[str, ...]:
        """The value, and whether it is missing."""
        return ("value", "missing")[: 1 + self.gaps]

    @property
    def marks(self) -> tuple[bool, ...]:
        """Only the mark of a missing value."""
        return (False, True)[: 1 + self.gaps]

    def encode(self, cells: Cells) -> Array:
        """Values `[N, 1]`, or values and marks `[N, 2]`."""
        values = self.read(cells)
        _require_readable(cells, values, self.kind)
        return _filled(values, self.fill, self.gaps)


@dataclass(frozen=True)
class TruthColumn(NumberColumn):
    """Truth values as 0 and 1, missing ones as in `NumberColumn`.

    >>> TruthColumn.fit(["yes", "no", "yes"]).encode(["no", "True", ""]).tolist()
    [[0.0], [1.0], [1.0]]
    """

    kind: ClassVar[str] = "boolean"

    @property
    def marks(self) -> tuple[bool, ...]:
        """All."""
        return (True,) * len(self.titles)

    @staticmethod
    def read(cells: Cells) -> Array:
        """Cells as 0 and 1, NaN for cells that cannot be read."""
        return read_truth(cells)


@dataclass(frozen=True)
class DateColumn:
    """Dates of one form: year, month, day of the week (Monday is 0), hour, seconds since the first date, and season.

    The season is the sine and the cosine of the time in mean years: December is near January. A missing date becomes
    `fill`, the training median, and with `gaps` a column before the season marks it.

    >>> DateColumn.fit(["2024-01-01", "2024-03-05"]).encode(["2024-01-02"]).round(1).tolist()
    [[2024.0, 1.0, 1.0, 0.0, 86400.0, 0.0, 1.0]]
    """

    kind: ClassVar[str] = "date"
    form: str
    first: float
    fill: float
    gaps: bool

    def __post_init__(self) -> None:
        _require(self.form in FORMATS, f"the date format {self.form!r}", "one of the known formats")
        inside = all(math.isfinite(value) and abs(value) < LATEST for value in (self.first, self.fill))
        _require(inside, f"the dates {self.first}, {self.fill}", "seconds since 1970")

    @classmethod
    def fit(cls, cells: Cells, form: str | None = None) -> "DateColumn":
        """Format, first and median date of the training rows."""
        form = form or date_format(cells) or FORMATS[0]
        seconds = read_dates(cells, form)
        missing = np.isnan(seconds)
        first, median = (0.0, 0.0) if missing.all() else (float(np.nanmin(seconds)), float(np.nanmedian(seconds)))
        return cls(form, first, median, bool(missing.any()))

    @property
    def titles(self) -> tuple[str, ...]:
        """The parts of a date, whether it is missing, and the season."""
        return (*PARTS, *["missing"] * self.gaps, *SEASON)

    @property
    def marks(self) -> tuple[bool, ...]:
        """Only the mark of a missing date."""
        return tuple(title == "missing" for title in self.titles)

    def encode(self, cells: Cells) -> Array:
        """Parts and season `[N, 7]`, or parts, marks and season `[N, 8]`."""
        seconds = read_dates(cells, self.form)
        _require_readable(cells, seconds, f"date ({self.form})")
        known = np.where(np.isnan(seconds), self.fill, seconds)
        time = np.floor(known).astype(np.int64).astype("datetime64[s]")
        parts = (
            time.astype("datetime64[Y]").astype(np.int64) + 1970,
            time.astype("datetime64[M]").astype(np.int64) % 12 + 1,
            (time.astype("datetime64[D]").astype(np.int64) + 3) % 7,
            time.astype(np.int64) // 3600 % 24,
            known - self.first,
            *([np.isnan(seconds)] if self.gaps else []),
            np.sin(2 * np.pi / YEAR * known),
            np.cos(2 * np.pi / YEAR * known),
        )
        return np.stack(parts, axis=1).astype(np.float32)


@dataclass(frozen=True)
class CategoryColumn:
    """One-hot columns of `values`; with `other`, a column for every other value; with `counts`, a frequency.

    The frequency of a value is log(1 + its number of training rows), stored for the most frequent values only, and 0
    for others. A missing cell is the value "". Without `other`, a value that training did not have is all zeros: no
    weight could have been learned for it.

    >>> CategoryColumn.fit(["red", "blue", "red"]).encode([" red", "green"]).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """

    kind: ClassVar[str] = "category"
    values: tuple[str, ...]
    other: bool = False
    counts: dict[str, int] | None = None

    def __post_init__(self) -> None:
        _require(len(set(self.values)) == len(self.values) <= MOST_VALUES, "the values", "up to 400 distinct ones")
        counts = self.counts or {}
        _require(len(counts) <= MOST_COUNTED and min(counts.values(), default=0) >= 0, "the counts", "up to 1000 of 0+")

    @classmethod
    def fit(cls, cells: Cells) -> "CategoryColumn":
        """The frequent values of the training rows; frequencies if there are more values than one-hot columns."""
        counts = Counter(map(_value, cells))
        least, most = RARE * len(cells), max(FEWER_VALUES, min(MOST_VALUES, ONE_HOT_NUMBERS // max(1, len(cells))))
        many = len(counts) > most
        frequent = [
            value
            for value, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
            if count >= max(least, 2 if len(counts) > FEWER_VALUES else 1)
        ][:most]
        stored = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MOST_COUNTED]
        return cls(tuple(sorted(frequent)), len(frequent) < len(counts), dict(stored) if many else None)

    @property
    def titles(self) -> tuple[str, ...]:
        """The values, and what stands for the others."""
        return (*self.values, *["other values"] * self.other, *["frequency"] * (self.counts is not None))

    @property
    def marks(self) -> tuple[bool, ...]:
        """All but the frequency."""
        return (True,) * (len(self.values) + self.other) + (False,) * (self.counts is not None)

    def encode(self, cells: Cells) -> Array:
        """One-hot `[N, K]`."""
        known, size = {value: i for i, value in enumerate(self.values)}, len(self.values)
        rows = np.array([known.get(_value(cell), size) for cell in cells], np.int64)
        one_hot = np.eye(size + 1, size + self.other, dtype=np.float32)[rows]
        if self.counts is None:
            return one_hot
        frequency = np.log1p([self.counts.get(_value(cell), 0) for cell in cells], dtype=np.float32)
        return np.concatenate([one_hot, frequency[:, None]], axis=1)


@dataclass(frozen=True)
class TextColumn:
    r"""TF-IDF of the most frequent words and pairs: $(1 + \log n_w) \log\frac{1 + N}{1 + d_w}$, rows of length 1.

    A pair is two neighbouring words. $n_w$ counts a word or pair in the cell, $d_w$ the training rows that have it, N
    all training rows.

    >>> column = TextColumn.fit(["good dog", "bad dog", "good cat", "bad cat"])
    >>> column.words, column.encode(["dog", "horse"]).tolist()
    (('bad', 'cat', 'dog', 'good'), [[0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    """

    kind: ClassVar[str] = "text"
    words: tuple[str, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        _require(len(set(self.words)) == len(self.words) == len(self.weights), "the words", "one weight for each word")
        _require(
            all(0 <= weight < 1e6 for weight in self.weights), "the weights of words", "finite numbers of 0 or more"
        )

    @classmethod
    def fit(cls, cells: Cells, most: int = MOST_WORDS) -> "TextColumn":
        """The `most` words and pairs that occur in the most training rows, but not in one row only and not in all."""
        counts = Counter(term for cell in cells for term in set(terms(cell)))
        frequent = [item for item in counts.items() if 2 <= item[1] < len(cells)]
        chosen = sorted(sorted(frequent, key=lambda item: (-item[1], item[0]))[:most])
        weights = [math.log((1 + len(cells)) / (1 + count)) for _, count in chosen]
        return cls(tuple(word for word, _ in chosen), tuple(weights))

    @property
    def titles(self) -> tuple[str, ...]:
        """The words and pairs, one for each encoded column."""
        return self.words

    @property
    def marks(self) -> tuple[bool, ...]:
        """All."""
        return (True,) * len(self.words)

    def encode(self, cells: Cells) -> Array:
        """Rows of length 1, or 0 without any known word, `[N, K]`."""
        known, weights = {word: i for i, word in enumerate(self.words)}, np.array(self.weights, np.float32)
        counts = np.zeros((len(cells), len(known)), np.float32)
        for row, cell in zip(counts, cells, strict=True):
            for word, count in Counter(terms(cell)).items():
                if word in known:
                    row[known[word]] = 1 + math.log(count)
        counts *= weights
        counts /= np.linalg.norm(counts, axis=1, keepdims=True).clip(1e-12)
        return counts


AnyColumn: TypeAlias = NumberColumn | TruthColumn | DateColumn | CategoryColumn | TextColumn
KINDS: dict[str, type[AnyColumn]] = {
    kind.kind: kind for kind in (NumberColumn, TruthColumn, DateColumn, CategoryColumn, TextColumn)
}


def _require_readable(cells: Cells, values: Array, kind: str) -> None:
    """Refuse a column of which no cell can be read, unless all are missing."""
    if not np.isfinite(values).any() and not missing_cells(cells).all():
        first = next(cell for cell in cells if not is_missing(cell))
        raise DataError(f"got cells such as {first[:40]!r}, expected the kind {kind}")


def _filled(values: Array, fill: float, gaps: bool) -> Array:
    missing = np.isnan(values)
    known = np.where(missing, fill, values)
    return np.stack([known, missing] if gaps else [known], axis=1).astype(np.float32)


def _value(cell: str) -> str:
    return cell.strip()[:LONGEST_VALUE]


def _require(condition: bool, received: str, expected: str) -> None:
    require(
        condition, f"a table encoding has {received}, expected {expected}; write or fetch the file again", DataError
    )
