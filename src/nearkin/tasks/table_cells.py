"""Cells of a table: text that is read as numbers, truth values, dates or words.

Every function takes the cells of one column as text. A missing cell is empty or one of the words in `MISSING`.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

MISSING = ("", "na", "n/a", "nan", "null", "none", "?")
NEARLY_ALL = 0.95  # share of the cells of a column that must be readable; the others count as missing
TRUTH = {"true": 1.0, "yes": 1.0, "y": 1.0, "t": 1.0, "false": 0.0, "no": 0.0, "n": 0.0, "f": 0.0}
ISO = "iso"
DATES = (
    "%Y/%m/%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y.%m.%d", "%Y-%m",
    "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%b %d %Y", "%B %d %Y", "%d-%b-%Y", "%m/%d/%y", "%d/%m/%y",
)  # fmt: skip
TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
FORMATS = (ISO, *(date + time for date in DATES for time in TIMES))
LONGEST_DATE = 40  # characters
TRIED = 50  # cells that decide whether a format is tried on the whole column
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

WRITTEN = re.compile(
    r"([+-]?) ?(?:[$€£¥] ?)?([+-]?)((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\d{1,3}(?:\.\d{3})+,\d+|\d+,\d+) ?[%$€£¥]?"
)
THOUSANDS = re.compile(r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")
DECIMAL_COMMA = re.compile(r"[+-]?(?:\d{1,3}(?:\.\d{3})+|\d+)(?:,\d+)?(?:[eE][+-]?\d+)?")

Cells: TypeAlias = Sequence[str]
Columns: TypeAlias = Mapping[str, Cells]
Array: TypeAlias = np.ndarray[Any, Any]

_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_]+(?:'[^\W_]+)?")
_IDEOGRAPH = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


def is_missing(cell: str) -> bool:
    """Whether a cell of numbers, truth values or dates is missing.

    >>> is_missing(" NA "), is_missing("0")
    (True, False)
    """
    return cell.strip().lower() in MISSING


def missing_cells(cells: Cells) -> Array:
    """Which cells are missing, `[N]`."""
    return np.fromiter((is_missing(cell) for cell in cells), np.bool_, count=len(cells))


def numbers(cells: Cells) -> Array | None:
    """The cells as float64 `[N]` with NaN for missing ones, or None if any of them is text.

    >>> numbers(["1", "2.5", ""]), numbers(["1", "two"])
    (array([1. , 2.5, nan]), None)
    """
    try:
        return np.array(cells, np.float64)
    except ValueError:
        pass
    known = ["nan" if is_missing(cell) else cell for cell in cells]
    if known.count("nan") == len(known):
        return None
    try:
        return np.array(known, np.float64)
    except ValueError:
        return None


def parse_numbers(cells: Cells) -> Array:
    """The cells as float64 `[N]`, with infinity for large ones; NaN for missing cells and text."""
    values = numbers(cells)
    return _each(cells, cell_number) if values is None else values


def written_numbers(cells: Cells) -> Array | None:
    """As `numbers`, also for numbers with a decimal comma, separators of thousands, a currency sign or a percent sign.

    >>> written_numbers(["$1,200.50", "", "7"]), written_numbers(["1,5", "two"])
    (array([1200.5,    nan,    7. ]), None)
    """
    values = parse_numbers(cells)
    return None if np.isnan(values[~missing_cells(cells)]).any() or np.isnan(values).all() else values


def read_numbers(cells: Cells) -> Array:
    """The cells as float64 `[N]`; NaN for missing cells, text, infinity and values beyond float32.

    >>> read_numbers(["1", "two", "1e300", ""])
    array([ 1., nan, nan, nan])
    """
    values = parse_numbers(cells)
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(values) <= np.finfo(np.float32).max, values, np.nan)


def read_truth(cells: Cells) -> Array:
    """The cells as 0 and 1 in float64 `[N]`; NaN for missing and other cells.

    >>> read_truth(["yes", "No", "", "TRUE"])
    array([ 1.,  0., nan,  1.])
    """
    return _each(cells, lambda cell: TRUTH.get(cell.strip().lower(), np.nan))


def read_dates(cells: Cells, form: str) -> Array:
    """Seconds since 1970 in float64 `[N]`, NaN for cells of another form; times without a zone are UTC.

    >>> read_dates(["1970-01-02", "", "soon"], ISO)
    array([86400.,    nan,    nan])
    """
    return _each(cells, lambda cell: date_seconds(cell.strip(), form))


def date_format(cells: Cells) -> str | None:
    """The first of `FORMATS` that reads nearly all cells that are not missing; None without one.

    >>> date_format(["31/12/2024", "01/02/2024"]), date_format(["2024-05-01T12:30:00Z", ""]), date_format(["May"])
    ('%d/%m/%Y', 'iso', None)
    """
    known = [cell for cell in dict.fromkeys(cells) if not is_missing(cell)]
    first = known[:TRIED]
    for form in FORMATS if first else ():
        if nearly_all(np.isfinite(read_dates(first, form))) and nearly_all(np.isfinite(read_dates(known, form))):
            return form
    return None


def nearly_all(readable: Array) -> bool:
    """Whether enough cells could be read for the column to have that kind."""
    return bool(readable.mean() >= NEARLY_ALL) if len(readable) else False


def words(text: str) -> list[str]:
    """The words of a text in lower case; a Chinese, Japanese or Korean sign is a word.

    >>> words("It's a Dog, no cat_1")
    ["it's", 'a', 'dog', 'no', 'cat', '1']
    """
    return _WORD.findall(text.lower())


def terms(text: str) -> list[str]:
    """The words of a text, and the pairs of neighbouring words.

    >>> terms("No good dog")
    ['no', 'good', 'dog', 'no good', 'good dog']
    """
    single = words(text)
    return single + [f"{first} {second}" for first, second in pairwise(single)]


def num_words(text: str) -> int:
    """Number of words between white space; identifiers and addresses of web pages count as one."""
    return max(len(text.split()), len(_IDEOGRAPH.findall(text)))


def _each(cells: Cells, function: Callable[[str], float]) -> Array:
    """`function` of every cell, computed once for equal cells."""
    known = {cell: function(cell) for cell in dict.fromkeys(cells)}
    return np.fromiter((known[cell] for cell in cells), np.float64, count=len(cells))


def cell_number(cell: str) -> float:
    """A number as people write it, NaN for any other text; a comma before three last digits separates thousands.

    >>> cell_number("1.234,5"), cell_number("-€ 1,200"), cell_number("3,5 %"), cell_number("1,2,3")
    (1234.5, -1200.0, 3.5, nan)
    """
    try:
        return float(cell)
    except ValueError:
        match = WRITTEN.fullmatch(cell.strip())
    if match is None:
        return math.nan
    sign, digits = match.group(1) or match.group(2) or "", match.group(3)
    if THOUSANDS.fullmatch(digits):
        return float(sign + digits.replace(",", ""))
    return float(sign + digits.replace(".", "").replace(",", "."))


def with_decimal_points(cells: Cells) -> Cells:
    """Cells of a column in a file whose comma is decimal; unchanged unless at least half of them are numbers.

    >>> with_decimal_points(["1,234", "7", "1.234,5"]), with_decimal_points(["a,b", "c"])
    (['1.234', '7', '1234.5'], ['a,b', 'c'])
    """
    if not any("," in cell for cell in cells):
        return cells
    known = [cell for cell in cells if not is_missing(cell)]
    if 2 * sum(DECIMAL_COMMA.fullmatch(cell.strip()) is not None for cell in known) < len(known):
        return cells
    return [
        cell.strip().replace(".", "").replace(",", ".")
        if "," in cell and DECIMAL_COMMA.fullmatch(cell.strip())
        else cell
        for cell in cells
    ]


def date_seconds(cell: str, form: str) -> float:
    """Seconds since 1970 of a date of one format, NaN for any other text."""
    if not cell or len(cell) > LONGEST_DATE or not any(sign.isdigit() for sign in cell):
        return math.nan
    try:
        time = datetime.fromisoformat(cell) if form == ISO else datetime.strptime(cell, form)
        return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - EPOCH).total_seconds()
    except (ValueError, OverflowError):
        return math.nan
