"""Examples from the columns of a table: targets, rows without a target, and encoded inputs.

The encoding is learned from the training rows only; the rows that are set aside for the test are encoded by it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from nearkin.core.errors import DataError, require
from nearkin.tasks.arrays import read_arrays
from nearkin.tasks.examples import Examples
from nearkin.tasks.packed_texts import COLUMN, KIND, TEXT, text_notes, text_rows
from nearkin.tasks.split import held_out_split
from nearkin.tasks.table_cells import Array, Columns, is_missing, numbers, read_numbers, written_numbers
from nearkin.tasks.table_encoding import TableEncoding, TableReport
from nearkin.tasks.weights import read_weights

LIKELIHOODS = ("categorical", "gaussian", "heteroscedastic")
MOST_CLASSES = 20  # distinct whole numbers of a class column
TABLE, TARGET = "table", "target"
"""Keys of the stored preprocessing: the encoding, and the names of the target columns."""


class TableExamples(NamedTuple):
    """Training and test examples of a table, with what `Task.of` needs besides."""

    train: Examples
    test: Examples | None
    likelihood: str
    classes: tuple[str, ...]
    preprocessing: dict[str, Any]
    notes: tuple[str, ...]


def read_table(
    name: str,
    train: Columns,
    targets: Sequence[str],
    test: Columns | None = None,
    *,
    likelihood: str | None = None,
    drop: Sequence[str] = (),
    keep: Sequence[str] = (),
    weight: Any = None,
    raw: str | None = None,
) -> TableExamples:
    """Read the columns of a table as examples.

    Args:
        name: name of the file or the task, for errors.
        train: cells by column.
        targets: names of the target columns.
        test: cells of the test rows; without them a fifth of the rows is set aside.
        likelihood: (default: categorical for text and up to 20 distinct whole numbers, else gaussian).
        drop: names of columns to leave out.
        keep: names of columns that are not dropped as identifiers.
        weight: name of the column with the weights of the training rows, or their values `[N]`.
        raw: name of a column of texts, which are the inputs as they are; the other columns are left out.

    >>> table = {"x": ["1", "2", "", "4"], "y": ["no", "yes", "no", ""]}
    >>> examples = read_table("toy", table, ["y"])
    >>> examples.classes, examples.notes[0]
    (('no', 'yes'), '1 of 4 rows has no target: left out')
    """
    for columns in (train, test):
        absent = [column for column in targets if columns is not None and column not in columns]
        require(not absent, f"{name} has no column {', '.join(absent)}; check the name of the target", DataError)
    weights = None if weight is None else _weights(name, train, weight, targets)
    if isinstance(weight, str):
        drop = (*drop, weight)
    kind = likelihood or _likelihood([train[column] for column in targets])
    splits = [_with_target(columns, targets) for columns in (train, test) if columns is not None]
    notes = [
        f"{len(missing)} of {count} {split}rows {'has' if len(missing) == 1 else 'have'} no target: left out"
        for (_, missing, count), split in zip(splits, ("", "test "), strict=False)
        if missing
    ]
    y, *y_test = (_targets(name, columns, targets, kind) for columns, _, _ in splits)
    _require_varied(name, y, targets)
    if y_test and y.dtype.kind != y_test[0].dtype.kind:
        raise DataError(
            f"{name}: target {targets[0]} is text in one file and numbers in the other; convert one of them"
        )
    if raw is None:
        inputs = [
            {column: cells for column, cells in columns.items() if column not in (*targets, *drop)}
            for columns, _, _ in splits
        ]
        x, preprocessing, lines = _encoded(name, inputs, y if kind == "categorical" else None, keep)
    else:
        x, preprocessing, lines = _texts(name, [columns for columns, _, _ in splits], raw, targets)
    classes = None if kind == "categorical" else tuple(targets)
    held_out = (x[1], y_test[0]) if y_test else (None, None)
    arrays = read_arrays(name, x[0], y, *held_out, likelihood=kind, classes=classes)
    if weights is not None:
        kept = read_weights(name, np.delete(weights, splits[0][1]), len(arrays.train))
        arrays = arrays._replace(train=replace(arrays.train, weights=kept))
    return TableExamples(*arrays, {**preprocessing, TARGET: list(targets)}, (*notes, *lines))


def _encoded(
    name: str, inputs: Sequence[Columns], classes: Array | None, keep: Sequence[str]
) -> tuple[list[Any], dict[str, Any], list[str]]:
    """Encoded columns of each split, the encoding as JSON values, and what was done."""
    require(bool(inputs[0]), f"{name} has no input column left; drop fewer columns", DataError)
    encoding, report = _fitted(name, inputs[0], classes, len(inputs) > 1, keep)
    written = [line for line in (_written(column, inputs[0][column]) for column in encoding.names) if line]
    return [encoding.encode(columns) for columns in inputs], {TABLE: encoding.to_dict()}, [*written, *report.shown()]


def _texts(
    name: str, splits: Sequence[Columns], raw: str, targets: Sequence[str]
) -> tuple[list[Any], dict[str, Any], list[str]]:
    """Texts of each split as rows of bytes, their column, and what was done."""
    for columns in splits:
        listed = ", ".join(columns)
        require(raw in columns, f"{name} has no column {raw!r} of texts; its columns are {listed}", DataError)
    require(raw not in targets, f"{name}: {raw!r} is the target and the text; choose another column", DataError)
    texts = [columns[raw] for columns in splits]
    rows = text_rows(name, *texts)
    notes = text_notes([text for split in texts for text in split])
    return [values for values in rows if values is not None], {KIND: TEXT, COLUMN: raw}, notes


def column_titles(preprocessing: Mapping[str, Any]) -> tuple[str, ...]:
    """What each number of an encoded row holds, by the stored preprocessing of a task; empty if it has no table."""
    if TABLE not in preprocessing:
        return ()
    encoding = TableEncoding.from_dict(preprocessing[TABLE], "the preprocessing of the task")
    return tuple(
        f"{column.name}: {column.encoding.titles[position]}" for column in encoding.columns for position in column.kept
    )


def _written(column: str, cells: Sequence[str]) -> str:
    """How numbers with a comma, a currency sign or a percent sign are read; empty if there are none."""
    if numbers(cells) is not None or written_numbers(cells) is None:
        return ""
    first = next(cell for cell in cells if not is_missing(cell) and numbers([cell]) is None)
    return f"column {column!r}: numbers such as {first[:40]!r} are read as {read_numbers([first])[0]:g}"


def mark_positions(preprocessing: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """Positions of the encoded columns of a table that keep their scale; none if the inputs are no encoded table."""
    stored = preprocessing.get(TABLE)
    return () if stored is None else TableEncoding.from_dict(stored, f"the preprocessing of '{name}'").marks


def _weights(name: str, table: Columns, weight: Any, targets: Sequence[str]) -> Array:
    """Weights of all rows, from a column or as given."""
    if not isinstance(weight, str):
        shape, count = list(np.shape(weight)), len(table[targets[0]])
        require(
            shape == [count],
            f"{name}: got sample weights of shape {shape}, expected [{count}]; give one per row",
            DataError,
        )
        return np.asarray(weight)
    listed = ", ".join(table)
    require(weight in table, f"{name} has no column {weight!r} for weights; its columns are {listed}", DataError)
    require(weight not in targets, f"{name}: {weight!r} is the target and the weight; choose another weight", DataError)
    values = written_numbers(table[weight])
    require(values is not None, f"{name}: the weight column {weight} is text, expected numbers; convert it", DataError)
    assert values is not None
    return values


def _fitted(
    name: str, inputs: Columns, classes: Array | None, has_test: bool, keep: Sequence[str]
) -> tuple[TableEncoding, TableReport]:
    """The encoding, learned from the rows that will be training rows."""
    count = len(next(iter(inputs.values())))
    training: Columns = inputs
    if not has_test:
        labels = None if classes is None else torch.from_numpy(np.unique(classes, return_inverse=True)[1])
        index = held_out_split(labels, count)[0].tolist()
        training = {column: [cells[row] for row in index] for column, cells in inputs.items()}
    encoding, report = TableEncoding.fit(training, keep)
    require(
        bool(encoding.columns),
        f"{name} has no column to learn from: {'; '.join(report.lines[:5])}; add columns"
        + (", or keep identifiers with keep=NAME" if "identifier" in " ".join(report.lines) else ""),
        DataError,
    )
    return encoding, report


def _with_target(columns: Columns, targets: Sequence[str]) -> tuple[Columns, list[int], int]:
    """The rows that have all targets, the positions of the others, and the number of all rows."""
    count = len(columns[targets[0]])
    missing: set[int] = set()
    for target in targets:
        values = written_numbers(columns[target])
        if values is None:  # "none" can be a class
            missing |= {row for row, cell in enumerate(columns[target]) if is_missing(cell) and cell.lower() != "none"}
        else:
            missing |= set(np.flatnonzero(~np.isfinite(values)).tolist())
    if not missing:
        return columns, [], count
    rows = [row for row in range(count) if row not in missing]
    return {name: [cells[row] for row in rows] for name, cells in columns.items()}, sorted(missing), count


def _likelihood(targets: Sequence[Sequence[str]]) -> str:
    """The likelihood that fits the target columns."""
    if len(targets) > 1:
        return "gaussian"
    values = written_numbers(targets[0])
    if values is None:
        return "categorical"
    known = values[np.isfinite(values)]
    return "categorical" if (known == np.round(known)).all() and len(np.unique(known)) <= MOST_CLASSES else "gaussian"


def _targets(name: str, table: Mapping[str, Sequence[str]], targets: Sequence[str], likelihood: str) -> Array:
    """Classes `[N]`, as numbers or as text, or real values `[N, K]`."""
    columns = []
    for target in targets:
        require(len(table[target]) > 0, f"{name}: no row has the target {target}; fill it in", DataError)
        values = (numbers if likelihood == "categorical" else written_numbers)(table[target])
        if values is None and likelihood != "categorical":
            raise DataError(
                f"{name}: target column {target} is text, {likelihood} needs numbers; set likelihood=categorical"
            )
        columns.append(np.array(table[target]) if values is None else values)
    return columns[0] if likelihood == "categorical" else np.stack(columns, axis=1)


def _require_varied(name: str, y: Array, targets: Sequence[str]) -> None:
    """Refuse a target of one value; several columns of values are checked one by one."""
    for column, target in zip(y.reshape(len(y), -1).T, targets, strict=True):
        require(
            len(y) < 2 or bool((column != column[0]).any()),
            f"{name}: target {target} is {str(column[0])[:40]!r} in all {len(y)} rows that have one, so there is "
            f"nothing to learn; choose another target or add rows",
            DataError,
        )
