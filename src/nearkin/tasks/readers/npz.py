"""npz files of arrays `x_train`, `y_train`, `x_test`, `y_test`; nothing in them is ever unpickled."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.core.errors import DataError, require
from nearkin.core.opening import local_path, read_file
from nearkin.tasks.readers.npy import opened_archive
from nearkin.tasks.task import Task

OPTIONS: tuple[str, ...] = ("labels", "likelihood")

LIKELIHOODS = ("categorical", "gaussian", "heteroscedastic", "dense")
NAME_KEYS = {  # where a classes.json keeps the names that go with `labels=`
    "fine": ("classes", "fine", "fine_label_names", "label_names", "names"),
    "coarse": ("superclasses", "coarse", "coarse_label_names"),
}


def read(location: str, options: Mapping[str, str]) -> Task:
    """A task from one npz file; without `x_test` and `y_test` a fifth is set aside.

    Names of classes come from an array `classes` in the file or from `classes.json` beside it.

    Args:
        location: the file.
        options: `labels=coarse` reads `coarse_train` and `coarse_test` in place of `y_train` and `y_test`;
            `likelihood` overrules what the targets look like.
    """
    path = local_path(location)
    require(path.exists(), f"there is no file {path}; npz wants one made by numpy.savez", DataError)
    likelihood, labels = options.get("likelihood"), options.get("labels") or "fine"
    require(
        likelihood is None or likelihood in LIKELIHOODS,
        f"likelihood must be one of {', '.join(LIKELIHOODS)}, got {likelihood!r}",
    )
    held = _arrays(path, "y" if labels == "fine" else labels)
    x, y, x_test, y_test = (held.get(part) for part in ("x", "y", "x_test", "y_test"))
    classes: Sequence[str] | None = None
    if labels == "fine" and "classes" in held:
        require(held["classes"].ndim == 1, f"{path}: classes must be a list of names [K]; save it again", DataError)
        classes = [str(name) for name in held["classes"].tolist()]
    elif y is not None and likelihood in (None, "categorical") and y.dtype.kind != "f":
        classes = _names_beside(path, labels)
    return Task.from_arrays(path.stem, x, y, x_test, y_test, likelihood=likelihood, classes=classes)


def _arrays(path: Path, targets: str) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a task under the names x, y, x_test, y_test and classes."""
    with opened_archive(path) as archive:
        keys = _keys(path, archive.members, targets)
        arrays = archive.arrays(keys.values())
        return {part: _text(arrays[key]) for part, key in keys.items()}


def _keys(path: Path, members: Mapping[str, Any], targets: str) -> dict[str, str]:
    """Which array of the file is which part of the task."""
    choices = {
        "x": ("x_train", "x"),
        "y": (f"{targets}_train", targets),
        "x_test": ("x_test",),
        "y_test": (f"{targets}_test",),
        "classes": ("classes",),
    }
    keys = {part: key for part, names in choices.items() for key in reversed(names) if key in members}
    for part in ("x", "y"):
        require(
            part in keys,
            f"{path} lacks an array {choices[part][0]}; it holds {', '.join(sorted(members)[:20]) or 'none'}: save "
            f"x_train, y_train, x_test, y_test with numpy.savez",
            DataError,
        )
    return keys


def _text(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Bytes of letters as letters; letters that Unicode does not have are refused."""
    if array.dtype.kind == "U":
        codes = np.frombuffer(array.astype(array.dtype.newbyteorder("=")).tobytes(), np.uint32)
        if bool(((codes > 0x10FFFF) | ((codes >= 0xD800) & (codes < 0xE000))).any()):
            raise ValueError("its text has characters that Unicode does not know")
    return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array


def _names_beside(path: Path, labels: str) -> list[str] | None:
    """Names of the classes from `classes.json` in the same folder: a list, or a table with one."""
    beside = path.with_name("classes.json")
    if not beside.is_file():
        return None
    try:
        content = json.loads(read_file(beside))
    except (ValueError, RecursionError) as fault:
        raise DataError(f"{beside} is not JSON ({fault}); fix or remove it") from fault
    if isinstance(content, list) and labels == "fine":
        return [str(name) for name in content]
    keys = NAME_KEYS.get(labels, (labels,))
    for key in keys:
        if isinstance(content, dict) and isinstance(content.get(key), list):
            return [str(name) for name in content[key]]
    if labels in NAME_KEYS:
        raise DataError(f"{beside} names no classes; make it a list of names, or a table with one under {keys[0]!r}")
    return None
