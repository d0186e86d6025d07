"""Tables in csv files: input columns of any kind, and one or more target columns."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from nearkin.core.errors import DataError, OptionError, require
from nearkin.core.opening import local_path
from nearkin.tasks.datastring import one_of
from nearkin.tasks.readers.language import plain_stem, text_content
from nearkin.tasks.table_cells import numbers as numbers
from nearkin.tasks.table_cells import with_decimal_points
from nearkin.tasks.table_examples import LIKELIHOODS as LIKELIHOODS
from nearkin.tasks.table_examples import read_table
from nearkin.tasks.task import Task

OPTIONS: tuple[str, ...] = ("target", "drop", "keep", "likelihood", "test", "weight", "raw")

DELIMITERS = ",;\t|"
SHOWN = 5  # rows in an error

Columns: TypeAlias = dict[str, tuple[str, ...]]


def read(location: str, options: Mapping[str, str]) -> Task:
    """A task from one csv file with a header, plain or `.gz`; without `test=` a fifth of the rows is the test set.

    Missing cells, dates, truth values, categories and free text are encoded (`nearkin.tasks.table_encoding`), rows
    without a target are left out, identifiers and constant columns are dropped; `Task.notes` says what was done.

    Args:
        location: the file; comma, semicolon, tab or | between cells; with semicolons, a comma in a number is
            decimal.
        options: `target=COLUMN` (or several of real values, `a,b`), `drop=a,b` to leave columns out, `keep=a,b` for
            columns that are no identifiers, `test=FILE2`, `weight=COLUMN` for the weights of the training rows,
            `likelihood` (default: categorical for text and up to 20 distinct whole numbers, else gaussian);
            `raw=COLUMN` for a task of the texts of one column as they are, for networks that bring a tokenizer.
    """
    path = local_path(location)
    train = columns(path)
    test = columns(_test_path(path, options["test"])) if options.get("test") else None
    targets, drop, keep, weight, raw = (
        _named_columns(path, train, options, option) for option in ("target", "drop", "keep", "weight", "raw")
    )
    require("raw" not in options or len(raw) == 1, f"raw must be one column of texts, got {options.get('raw')!r}")
    if raw:
        drop = [name for name in train if name not in (*targets, *weight, *raw)]
    require(len(weight) <= 1, f"weight must be one column, got {', '.join(weight)}; name one")
    absent = [] if test is None else [name for name in train if name not in (*test, *drop, *weight)]
    if absent:
        raise DataError(f"{options['test']} has no column {', '.join(absent)}; add it or drop it")
    likelihood = options.get("likelihood")
    if likelihood is not None:
        require(
            one_of(likelihood, "likelihood", LIKELIHOODS) != "categorical" or len(targets) == 1,
            f"classes must be one column, got target={','.join(targets)}; name one, or set ?likelihood=gaussian",
        )
    table = read_table(
        str(path),
        train,
        targets,
        test,
        likelihood=likelihood,
        drop=drop,
        keep=keep,
        weight=next(iter(weight), None),
        raw=next(iter(raw), None),
    )
    return Task.of(plain_stem(path), **table._asdict())


def columns(path: Path) -> Columns:
    """The cells of a csv file by column, as text, without empty lines."""
    text = text_content(path)
    first = re.sub(r'"[^"]*"', "", text.lstrip("\n").split("\n", 1)[0])
    delimiter = max(DELIMITERS, key=first.count)
    try:
        rows = [row for row in csv.reader(io.StringIO(text), delimiter=delimiter) if row]
    except csv.Error as error:
        raise DataError(f"{path} is not a csv table ({error}); save it as csv again") from error
    if len(rows) < 2:
        lines = "1 line" if len(rows) == 1 else "no lines"
        raise DataError(f"{path} has {lines}, expected a header and at least one row; add them")
    header, rows = [name.strip() for name in rows[0]], rows[1:]
    if numbers(header) is not None:
        shown = ", ".join(header[:5])
        raise DataError(f"{path} has no header: its first line is {shown}; add a line with the names of the columns")
    problems = [*_repeated_names(header), *_uneven_rows(header, rows)]
    if problems:
        raise DataError(f"{path}: {'; '.join(problems)}")
    table = dict(zip(header, zip(*rows, strict=True), strict=True))
    if delimiter != ";":
        return table
    return {name: tuple(with_decimal_points(cells)) for name, cells in table.items()}


def _repeated_names(header: Sequence[str]) -> list[str]:
    repeated = sorted({name or "(no name)" for name in header if header.count(name) > 1})
    return [f"several columns are named {', '.join(repeated)}: give each its own name"] if repeated else []


def _uneven_rows(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """One line about all rows that have more or fewer cells than the header."""
    uneven = [(number, len(row)) for number, row in enumerate(rows, 1) if len(row) != len(header)]
    if not uneven:
        return []
    listed = ", ".join(f"row {number} has {size} cells" for number, size in uneven[:SHOWN])
    more = f" and {len(uneven) - SHOWN} other rows differ too" if len(uneven) > SHOWN else ""
    return [f"{listed}{more}, the header {len(header)}: fix {'that row' if len(uneven) == 1 else 'these rows'}"]


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
