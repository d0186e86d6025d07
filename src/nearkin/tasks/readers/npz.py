"""npz files of arrays `x_train`, `y_train`, `x_test`, `y_test`, read without unpickling."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.core.errors import DataError
from nearkin.core.opening import local_path, read_file
from nearkin.tasks.datastring import one_of
from nearkin.tasks.readers.npy import opened_archive
from nearkin.tasks.task import Task

OPTIONS: tuple[str, ...] = ("labels", "likelihood")

LIKELIHOODS = ("categorical", "gaussian", "heteroscedastic", "dense")
NAME_KEYS = {  # keys of classes.json for the names of `labels=`
    "fine": ("classes", "fine", "fine_label_names", "label_names", "names"),
    "coarse": ("superclasses", "coarse", "coarse_label_names"),
}


def read(location: str, options: Mapping[str, str]) -> Task:
    """A task from one npz file; without `x_test` and `y_test` a fifth becomes the test set.

    Names of classes come from an array `classes` in the file or from `classes.json` in the same folder.

    Args:
        location: the file.
        options: `labels=coarse` reads `coarse_train` and `coarse_test` in place of `y_train` and `y_test`;
            `likelihood` (default: from the type of the targets).
    """
    path = local_path(location)
    if not path.exists():
        raise DataError(f"there is no file {path}; name one written by numpy.savez")
    likelihood, labels = options.get("likelihood"), options.get("labels") or "fine"
    if likelihood is not None:
        one_of(likelihood, "likelihood", LIKELIHOODS)
    arrays = _arrays(path, "y" if labels == "fine" else labels)
    x, y, x_test, y_test = (arrays.get(role) for role in ("x", "y", "x_test", "y_test"))
    classes: Sequence[str] | None = None
    if labels == "fine" and "classes" in arrays:
        if arrays["classes"].ndim != 1:
            raise DataError(f"{path}: classes must be a list of names [K]; save it again")
        classes = [str(name) for name in arrays["classes"].tolist()]
    elif y is not None and likelihood in (None, "categorical") and y.dtype.kind != "f":
        classes = _names_from_json(path.with_name("classes.json"), labels)
    return Task.from_arrays(path.stem, x, y, x_test, y_test, likelihood=likelihood, classes=classes)


def _arrays(path: Path, targets: str) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a task under the names x, y, x_test, y_test and classes."""
    choices = {
        "x": ("x_train", "x"),
        "y": (f"{targets}_train", targets),
        "x_test": ("x_test",),
        "y_test": (f"{targets}_test",),
        "classes": ("classes",),
    }
    with opened_archive(path) as archive:
        keys = {role: key for role, names in choices.items() for key in reversed(names) if key in archive.members}
        for role in ("x", "y"):
            if role not in keys:
                listed = ", ".join(sorted(archive.members)[:20]) or "none"
                advice = "save x_train, y_train, x_test, y_test with numpy.savez"
                raise DataError(f"{path} has no array {choices[role][0]}; it has {listed}: {advice}")
        arrays = archive.arrays(keys.values())
        return {role: _text(arrays[key]) for role, key in keys.items()}


def _text(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Text from bytes; characters outside Unicode are refused."""
    if array.dtype.kind == "U":
        codes = np.frombuffer(array.astype(array.dtype.newbyteorder("=")).tobytes(), np.uint32)
        if bool(((codes > 0x10FFFF) | ((codes >= 0xD800) & (codes < 0xE000))).any()):
            raise ValueError("its text has characters that are not in Unicode")
    return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array


def _names_from_json(path: Path, labels: str) -> list[str] | None:
    """Names of the classes from a list, or from a table that contains one."""
    if not path.is_file():
        return None
    try:
        content = json.loads(read_file(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON ({error}); fix or remove it") from error
    if isinstance(content, list) and labels == "fine":
        return [str(name) for name in content]
    keys = NAME_KEYS.get(labels, (labels,))
    for key in keys:
        if isinstance(content, dict) and isinstance(content.get(key), list):
            return [str(name) for name in content[key]]
    if labels in NAME_KEYS:
        raise DataError(f"{path} names no classes; make it a list of names, or a table with one under {keys[0]!r}")
    return None
