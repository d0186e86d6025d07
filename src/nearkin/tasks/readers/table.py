"""Tables in csv files: numbers as they are, text as one column a value, one or more columns as the target."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from nearkin.core.errors import DataError, OptionError, require
from nearkin.core.opening import local_path, require_bytes
from nearkin.tasks.readers.text import content
from nearkin.tasks.task import Task

OPTIONS: tuple[str, ...] = ("target", "drop", "likelihood", "test")

LIKELIHOODS = ("categorical", "gaussian", "heteroscedastic")
DELIMITERS = ",;\t"
MISSING = ("", "na", "n/a", "nan", "null", "none", "?")  # in a column of numbers; in one of text, the empty cell alone
MOST_VALUES = 100  # distinct values of a text column
MOST_CLASSES = 20  # distinct whole numbers that are taken for classes

Columns: TypeAlias = dict[str, tuple[str, ...]]


def read(location: str, options: Mapping[str, str]) -> Task:
    """A task from one csv file with a header, plain or `.gz`; without `test=` a fifth of the rows is set aside.

    Text columns become one column of zeros and ones a value; a value that only the test file has is all zeros.

    Args:
        location: the file; comma, semicolon or tab between cells.
        options: `target=COLUMN` (or several real ones, `a,b`), `drop=a,b` to leave columns out, `test=FILE2`,
            `likelihood` to overrule: text and up to 20 distinct whole numbers are classes, all else is real.
    """
    path = local_path(location)
    train = columns(path)
    test = columns(_beside(path, options["test"])) if options.get("test") else None
    targets = _chosen(path, train, options, "target")
    dropped = _chosen(path, train, options, "drop")
    inputs = [name for name in train if name not in (*targets, *dropped)]
    require(bool(inputs), f"{path} has no column left to learn from; drop fewer", DataError)
    if test is not None:
        lacking = [name for name in (*inputs, *targets) if name not in test]
        require(not lacking, f"{options['test']} lacks the column {', '.join(lacking)}; add it or drop it", DataError)
    x, x_test = _inputs(path, train, test, inputs)
    likelihood = _likelihood({name: train[name] for name in targets}, options.get("likelihood"))
    y, y_test = (None if part is None else _targets(path, part, targets, likelihood) for part in (train, test))
    if y is not None and y_test is not None and y.dtype.kind != y_test.dtype.kind:
        raise DataError(f"{path}: target {targets[0]} is text in one file and numbers in the other; make them agree")
    name = path.name.removesuffix(".gz").rsplit(".", 1)[0]
    classes = None if likelihood == "categorical" else targets
    return Task.from_arrays(name, x, y, x_test, y_test, likelihood=likelihood, classes=classes)


def columns(path: Path) -> Columns:
    """The cells of a csv file by column, as text; lines that are empty do not count."""
    text = content(path)
    first = text.lstrip("\n").split("\n", 1)[0]
    delimiter = max(DELIMITERS, key=first.count)
    try:
        rows = [row for row in csv.reader(io.StringIO(text), delimiter=delimiter) if row]
    except csv.Error as fault:
        raise DataError(f"{path} is not a csv table ({fault}); save it as csv again") from fault
    require(len(rows) >= 2, f"{path} has {len(rows)} lines; a header and at least one row are wanted", DataError)
    header, rows = [name.strip() for name in rows[0]], rows[1:]
    _check_header(path, header)
    for number, row in enumerate(rows):
        if len(row) != len(header):
            raise DataError(f"{path}: row {number + 1} has {len(row)} cells, the header {len(header)}; mend that row")
    return dict(zip(header, zip(*rows, strict=True), strict=True))


def numbers(cells: Sequence[str]) -> np.ndarray[Any, Any] | None:
    """The cells as float64 `[N]` with NaN where one is missing, or None if they are text.

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


def _beside(path: Path, other: str) -> Path:
    """Another file, named from the working folder or from the folder of the first."""
    given = local_path(other)
    return given if given.exists() else local_path(str(path.parent / Path(other)))


def _check_header(path: Path, header: list[str]) -> None:
    require(
        numbers(header) is None,
        f"{path} has no header: its first line is {', '.join(header[:5])}; add a line with the names of the columns",
        DataError,
    )
    doubled = sorted({name or "(no name)" for name in header if header.count(name) > 1})
    require(not doubled, f"{path} has several columns named {', '.join(doubled)}; give each its own name", DataError)


def _chosen(path: Path, table: Columns, options: Mapping[str, str], option: str) -> list[str]:
    """The columns that an option names."""
    names = [name.strip() for name in options.get(option, "").split(",") if name.strip()]
    held = ", ".join(table)
    if option == "target" and not names:
        raise OptionError(f"csv wants ?target=COLUMN; the columns of {path} are {held}")
    for name in names:
        require(name in table, f"{path} has no column {name!r} to {option}; its columns are {held}")
    return names


def _inputs(
    path: Path, train: Columns, test: Columns | None, names: Sequence[str]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any] | None]:
    """Inputs `[N, D]` in float32 of both parts, in the order of the training file's columns."""
    blocks: list[np.ndarray[Any, Any]] = []
    for name in names:
        blocks.append(_encoded(path, name, train[name], () if test is None else test[name]))
        require_bytes(2 * sum(block.nbytes for block in blocks), f"{path} as numbers")
    both = np.concatenate(blocks, axis=1)
    count = len(train[names[0]])
    return both[:count], None if test is None else both[count:]


def _encoded(path: Path, name: str, train: tuple[str, ...], test: tuple[str, ...]) -> np.ndarray[Any, Any]:
    """One column as `[N, 1]` numbers or `[N, K]` zeros and ones, the rows of the test file after the others."""
    values = numbers(train)
    if values is not None:
        rest = numbers(test)
        if rest is None:
            raise DataError(f"{path}: column {name} holds numbers, but in the test file text; mend it or ?drop={name}")
        _refuse_missing(path, name, ~np.isfinite(values), f"or leave the column out with ?drop={name}")
        _refuse_missing(path, f"{name} of the test file", ~np.isfinite(rest), f"or set ?drop={name}")
        both = np.concatenate([values, rest])
        large = np.flatnonzero(np.abs(both) > np.finfo(np.float32).max)
        if len(large):
            raise DataError(
                f"{path}: the value {both[large[0]]:g} of column {name} in row {large[0] + 1} is beyond float32 "
                f"(3.4e+38); rescale the column or ?drop={name}"
            )
        return both[:, None].astype(np.float32)
    _refuse_missing(path, name, _blank(train), f"or leave the column out with ?drop={name}")
    found = sorted(set(train))
    require(
        len(found) <= MOST_VALUES,
        f"{path}: column {name} is text with {len(found):,} distinct values, at most {MOST_VALUES} are taken; leave it "
        f"out with ?drop={name}",
        DataError,
    )
    require_bytes(4 * len(found) * (len(train) + len(test)), f"{path}: column {name} as zeros and ones")
    place = {value: number for number, value in enumerate(found)}
    flags = np.concatenate([np.eye(len(found), dtype=np.float32), np.zeros((1, len(found)), np.float32)])
    return flags[[place.get(cell, -1) for cell in (*train, *test)]]


def _blank(cells: Sequence[str]) -> np.ndarray[Any, Any]:
    """Which cells are empty."""
    return np.fromiter((not cell.strip() for cell in cells), np.bool_, count=len(cells))


def _refuse_missing(path: Path, name: str, missing: np.ndarray[Any, Any], cure: str) -> None:
    if missing.any():
        raise DataError(
            f"{path}: {int(missing.sum())} cells of column {name} are missing, the first in row "
            f"{int(missing.argmax()) + 1}; fill them in {cure}"
        )


def _likelihood(targets: Mapping[str, Sequence[str]], asked: str | None) -> str:
    """What was asked for, or what the target columns look like."""
    if asked is not None:
        require(asked in LIKELIHOODS, f"the likelihood of a table is one of {', '.join(LIKELIHOODS)}, got {asked!r}")
        require(
            asked != "categorical" or len(targets) == 1,
            f"classes are one column, got target={','.join(targets)}; name one, or set ?likelihood=gaussian",
        )
        return asked
    if len(targets) > 1:
        return "gaussian"
    values = numbers(*targets.values())
    if values is None:
        return "categorical"
    whole = bool((values == np.round(values))[~np.isnan(values)].all())
    return "categorical" if whole and len(np.unique(values)) <= MOST_CLASSES else "gaussian"


def _targets(path: Path, table: Columns, names: Sequence[str], likelihood: str) -> np.ndarray[Any, Any]:
    """Classes `[N]`, as numbers or as text, or real values `[N, K]`."""
    found = []
    for name in names:
        values = numbers(table[name])
        if values is None:
            require(
                likelihood == "categorical",
                f"{path}: target column {name} holds text, {likelihood} wants numbers; set ?likelihood=categorical",
                DataError,
            )
        missing = _blank(table[name]) if values is None else ~np.isfinite(values)
        _refuse_missing(path, name, missing, "or remove those rows")
        found.append(np.array(table[name]) if values is None else values)
    return found[0] if likelihood == "categorical" else np.stack(found, axis=1)
