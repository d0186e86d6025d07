"""Columns of text cells from a pandas DataFrame or a list of dicts, as a csv file would hold them."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any

from nearkin.core.errors import DataError, require


def is_frame(value: object) -> bool:
    """Whether a value is a DataFrame; pandas is not imported for this."""
    return type(value).__name__ == "DataFrame" and hasattr(value, "columns") and hasattr(value, "iloc")


def is_records(value: object) -> bool:
    """Whether a value is a list of dicts.

    >>> is_records([{"a": 1}]), is_records([1])
    (True, False)
    """
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(row, Mapping) for row in value)


def frame_cells(frame: Any, name: str) -> dict[str, list[str]]:
    """The cells of a DataFrame as text, by column."""
    require(
        is_frame(frame),
        f"{name}: got {type(frame).__name__}, expected a pandas DataFrame; use Task.from_arrays for arrays",
        DataError,
    )
    names = [str(column) for column in frame.columns]
    repeated = sorted({column for column in names if names.count(column) > 1})
    require(not repeated, f"{name} has several columns named {', '.join(repeated)}; give each its own name", DataError)
    return {
        column: [cell_text(value) for value in frame.iloc[:, number].tolist()] for number, column in enumerate(names)
    }


def record_cells(records: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The cells of a list of dicts as text, by column; a key that a dict lacks is a missing cell.

    >>> record_cells([{"a": 1.5, "b": None}, {"a": True}])
    {'a': ['1.5', 'true'], 'b': ['', '']}
    """
    names = list(dict.fromkeys(key for record in records for key in record))
    return {str(name): [cell_text(record.get(name)) for record in records] for name in names}


def cell_text(value: Any) -> str:
    """A value as the text of a cell; None, NaN and the marks of pandas for them are empty.

    >>> cell_text(float("nan")), cell_text(2.0), cell_text(date(2024, 5, 1)), cell_text(" red ")
    ('', '2.0', '2024-05-01', ' red ')
    """
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime | date):
        return value.isoformat()
    return cell_text(str(value))
