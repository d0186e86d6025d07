"""Tables in csv files: columns of numbers, one-hot columns of text, and one or more target columns."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from nearkin.core.errors import DataError, OptionError, require
from nearkin.core.opening import local_path, require_bytes
from nearkin.tasks.datastring import one_of
from nearkin.tasks.readers.language import plain_stem, text_content
from nearkin.tasks.task import Task

OPTIONS: tuple[str, ...] = ("target", "drop", "likelihood", "test")

LIKELIHOODS = ("categorical", "gaussian", "heteroscedastic")
DELIMITERS = ",;\t"
MISSING = ("", "na", "n/a", "nan", "null", "none", "?")  # in a column of numbers; in a text column only the empty cell
MOST_VALUES = 100  # distinct values of a text column
MOST_CLASSES = 20  # distinct whole numbers of a class column

Columns: TypeAlias = dict[str, tuple[str, ...]]


def read(location: str, options: Mapping[str, str]) -> Task:
    """A task from one csv file with a header, plain or `.gz`; without `test=` a fifth of the rows is the test set.

    Text columns become one-hot columns; a value that only the test file has is all zeros.

    Args:
        location: the file; comma, semicolon or tab between cells.
        options: `target=COLUMN` (or several of real values, `a,b`), `drop=a,b` to leave columns out, `test=FILE2`,
            `likelihood` (default: categorical for text and up to 20 distinct whole numbers, else gaussian).
    """
    path = local_path(location)
    train = columns(path)
    test = columns(_test_path(path, options["test"])) if options.get("test") else None
    targets = _named_columns(path, train, options, "target")
    dropped = _named_columns(path, train, options, "drop")
    inputs = [name for name in train if name not in (*targets, *dropped)]
    if not inputs:
        raise DataError(f"{path} has no input column left; drop fewer columns")
    missing = [] if test is None else [name for name in (*inputs, *targets) if name not in test]
    if missing:
        raise DataError(f"{options['test']} has no column {', '.join(missing)}; add it or drop it")
    x, x_test = _inputs(path, train, test, inputs)
    likelihood = _likelihood({name: train[name] for name in targets}, options.get("likelihood"))
    y, y_test = (None if split is None else _targets(path, split, targets, likelihood) for split in (train, test))
    if y is not None and y_test is not None and y.dtype.kind != y_test.dtype.kind:
        raise DataError(
            f"{path}: target {targets[0]} is text in one file and numbers in the other; convert one of them"
        )
    classes = None if likelihood == "categorical" else targets
    return Task.from_arrays(plain_stem(path), x, y, x_test, y_test, likelihood=likelihood, classes=classes)


def columns(path: Path) -> Columns:
    """The cells of a csv file by column, as text, without empty lines."""
    text = text_content(path)
    first = text.lstrip("\n").split("\n", 1)[0]
    delimiter = max(DELIMITERS, key=first.count)
    try:
        rows = [row for row in csv.reader(io.StringIO(text), delimiter=delimiter) if row]
    except csv.Error as error:
        raise DataError(f"{path} is not a csv table ({error}); save it as csv again") from error
    if len(rows) < 2:
        raise DataError(f"{path} has {len(rows)} lines, expected a header and at least one row; add them")
    header, rows = [name.strip() for name in rows[0]], rows[1:]
    if numbers(header) is not None:
        shown = ", ".join(header[:5])
        raise DataError(f"{path} has no header: its first line is {shown}; add a line with the names of the columns")
    repeated = sorted({name or "(no name)" for name in header if header.count(name) > 1})
    if repeated:
        raise DataError(f"{path} has several columns named {', '.join(repeated)}; give each its own name")
    for number, row in enumerate(rows):
        if len(row) != len(header):
            raise DataError(f"{path}: row {number + 1} has {len(row)} cells, the header {len(header)}; fix that row")
    return dict(zip(header, zip(*rows, strict=True), strict=True))


def numbers(cells: Sequence[str]) -> np.ndarray[Any, Any] | None:
    """The cells as float64 `[N]` with NaN for missing ones, or None if they are text.

    >>> numbers(["1", "2.5", ""]), numbers(["1", "two"])
    (array([1. , 2.5, nan]), None)
    """
    try:
        return np.array(cells, np.float64)
    except ValueError:
        pass
    known = ["nan" if cell.strip().lower() in MISSING else cell for cell in cells]
    if known.count("nan") == len(known):
        return None
    try:
        return np.array(known, np.float64)
    except ValueError:
        return None


def _test_path(path: Path, test: str) -> Path:
    """The test file, relative to the working folder or to the folder of the training file."""
    from_here = local_path(test)
    return from_here if from_here.exists() else local_path(str(path.parent / Path(test)))


def _named_columns(path: Path, table: Columns, options: Mapping[str, str], option: str) -> list[str]:
    names = [name.strip() for name in options.get(option, "").split(",") if name.strip()]
    listed = ", ".join(table)
    if option == "target" and not names:
        raise OptionError(f"csv needs ?target=COLUMN; the columns of {path} are {listed}")
    for name in names:
        require(name in table, f"{path} has no column {name!r} to {option}; its columns are {listed}")
    return names


def _inputs(
    path: Path, train: Columns, test: Columns | None, names: Sequence[str]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any] | None]:
    """Training and test inputs `[N, D]` in float32, with the columns in the order of the training file."""
    blocks: list[np.ndarray[Any, Any]] = []
    for name in names:
        blocks.append(_encoded(path, name, train[name], () if test is None else test[name]))
        require_bytes(2 * sum(block.nbytes for block in blocks), f"{path} as numbers")
    both = np.concatenate(blocks, axis=1)
    count = len(train[names[0]])
    return both[:count], None if test is None else both[count:]


def _encoded(path: Path, name: str, train: tuple[str, ...], test: tuple[str, ...]) -> np.ndarray[Any, Any]:
    """One column as numbers `[N, 1]` or one-hot columns `[N, K]`, the training rows before the test rows."""
    values = numbers(train)
    if values is not None:
        test_values = numbers(test)
        if test_values is None:
            raise DataError(f"{path}: column {name} is numbers, but text in the test file; fix it or ?drop={name}")
        _refuse_missing(path, name, ~np.isfinite(values), f"or leave the column out with ?drop={name}")
        _refuse_missing(path, f"{name} of the test file", ~np.isfinite(test_values), f"or set ?drop={name}")
        both = np.concatenate([values, test_values])
        large = np.flatnonzero(np.abs(both) > np.finfo(np.float32).max)
        if len(large):
            raise DataError(
                f"{path}: the value {both[large[0]]:g} of column {name} in row {large[0] + 1} is beyond float32 "
                f"(3.4e+38); rescale the column or ?drop={name}"
            )
        return both[:, None].astype(np.float32)
    _refuse_missing(path, name, _blank(train), f"or leave the column out with ?drop={name}")
    distinct = sorted(set(train))
    if len(distinct) > MOST_VALUES:
        raise DataError(
            f"{path}: column {name} is text with {len(distinct):,} distinct values, at most {MOST_VALUES} are allowed; "
            f"leave it out with ?drop={name}"
        )
    require_bytes(4 * len(distinct) * (len(train) + len(test)), f"{path}: column {name} as one-hot columns")
    number = {value: number for number, value in enumerate(distinct)}
    one_hot = np.eye(len(distinct) + 1, len(distinct), dtype=np.float32)  # the last row, of unknown values, is zero
    return one_hot[[number.get(cell, -1) for cell in (*train, *test)]]


def _blank(cells: Sequence[str]) -> np.ndarray[Any, Any]:
    return np.fromiter((not cell.strip() for cell in cells), np.bool_, count=len(cells))


def _refuse_missing(path: Path, name: str, missing: np.ndarray[Any, Any], advice: str) -> None:
    if missing.any():
        raise DataError(
            f"{path}: {int(missing.sum())} cells of column {name} are missing, the first in row "
            f"{int(missing.argmax()) + 1}; fill them in {advice}"
        )


def _likelihood(targets: Mapping[str, Sequence[str]], option: str | None) -> str:
    """The likelihood of the option, else the one that fits the target columns."""
    if option is not None:
        require(
            one_of(option, "likelihood", LIKELIHOODS) != "categorical" or len(targets) == 1,
            f"classes must be one column, got target={','.join(targets)}; name one, or set ?likelihood=gaussian",
        )
        return option
    if len(targets) > 1:
        return "gaussian"
    values = numbers(*targets.values())
    if values is None:
        return "categorical"
    whole = bool((values == np.round(values))[~np.isnan(values)].all())
    return "categorical" if whole and len(np.unique(values)) <= MOST_CLASSES else "gaussian"


def _targets(path: Path, table: Columns, names: Sequence[str], likelihood: str) -> np.ndarray[Any, Any]:
    """Classes `[N]`, as numbers or as text, or real values `[N, K]`."""
    targets = []
    for name in names:
        values = numbers(table[name])
        if values is None and likelihood != "categorical":
            raise DataError(
                f"{path}: target column {name} is text, {likelihood} needs numbers; set ?likelihood=categorical"
            )
        missing = _blank(table[name]) if values is None else ~np.isfinite(values)
        _refuse_missing(path, name, missing, "or remove those rows")
        targets.append(np.array(table[name]) if values is None else values)
    return targets[0] if likelihood == "categorical" else np.stack(targets, axis=1)
