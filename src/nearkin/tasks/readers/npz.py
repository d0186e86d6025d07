"""npz files of arrays `x_train`, `y_train`, `x_test`, `y_test`; nothing in them is ever unpickled."""

import json
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from nearkin.core.errors import DataError, require
from nearkin.tasks.task import Task

OPTIONS: tuple[str, ...] = ("labels", "likelihood")

LIKELIHOODS = ("categorical", "gaussian", "heteroscedastic", "dense")
MAPPED_BYTES = 64 * 2**20  # a stored array beyond this is mapped, not read
LOCAL_HEADER = 30  # bytes of a zip member's own header before its name
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
    path = Path(location).expanduser()
    require(path.is_file(), f"there is no file {path}; npz wants one made by numpy.savez", DataError)
    likelihood, labels = options.get("likelihood"), options.get("labels") or "fine"
    require(
        likelihood is None or likelihood in LIKELIHOODS,
        f"likelihood must be one of {', '.join(LIKELIHOODS)}, got {likelihood!r}",
    )
    held = _arrays(path, "y" if labels == "fine" else labels)
    x, y, x_test, y_test = (held.get(part) for part in ("x", "y", "x_test", "y_test"))
    classes: Sequence[str] | None = None
    if labels == "fine" and "classes" in held:
        classes = [str(name) for name in held["classes"].tolist()]
    elif y is not None and likelihood in (None, "categorical") and y.dtype.kind != "f":
        classes = _names_beside(path, labels)
    return Task.from_arrays(path.stem, x, y, x_test, y_test, likelihood=likelihood, classes=classes)


def _arrays(path: Path, targets: str) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a task under the names x, y, x_test, y_test and classes."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            keys = _keys(path, members, targets)
            return {part: _text(_array(path, archive, members[key])) for part, key in keys.items()}
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        OSError,
        ValueError,
        RuntimeError,
        MemoryError,
        struct.error,
    ) as fault:
        reason = str(fault).splitlines()[0] if str(fault) else type(fault).__name__
        raise DataError(f"{path} is not a whole npz file ({reason}); save or fetch it again") from fault


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
            f"{path} lacks an array {choices[part][0]}; it holds {', '.join(sorted(members)) or 'none'}: save x_train, "
            f"y_train, x_test, y_test with numpy.savez",
            DataError,
        )
    return keys


def _array(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray[Any, Any]:
    """One member; a large one that was stored as it is gets mapped."""
    with archive.open(info) as file:
        shape, fortran, dtype = _header(file)
        start = file.tell()
    require(
        not dtype.hasobject,
        f"{path}: {info.filename} holds Python objects, which only pickle could read; save numbers or text of one "
        f"shape, as in numpy.asarray(values.tolist())",
        DataError,
    )
    if info.compress_type == zipfile.ZIP_STORED and info.file_size > MAPPED_BYTES:
        start += _data_offset(path, info)
        mapped = np.memmap(path, dtype, mode="c", offset=start, shape=shape, order="F" if fortran else "C")
        if mapped.flags.aligned:  # torch may not touch numbers that straddle their own size; bytes never do
            return mapped
    with archive.open(info) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, column order and type of an array whose numbers follow."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file)


def _data_offset(path: Path, info: zipfile.ZipInfo) -> int:
    """Where a member's bytes begin in the archive: its own header may be longer than the directory says."""
    with path.open("rb") as file:
        file.seek(info.header_offset)
        header = file.read(LOCAL_HEADER)
    name_length, extra_length = struct.unpack("<HH", header[26:30])
    return info.header_offset + LOCAL_HEADER + int(name_length) + int(extra_length)


def _text(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Bytes of letters as letters."""
    return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array


def _names_beside(path: Path, labels: str) -> list[str] | None:
    """Names of the classes from `classes.json` in the same folder: a list, or a table with one."""
    beside = path.with_name("classes.json")
    if not beside.is_file():
        return None
    try:
        content = json.loads(beside.read_text("utf-8"))
    except (OSError, ValueError) as fault:
        raise DataError(f"{beside} is not JSON ({fault}); mend or remove it") from fault
    if isinstance(content, list) and labels == "fine":
        return [str(name) for name in content]
    keys = NAME_KEYS.get(labels, (labels,))
    for key in keys:
        if isinstance(content, dict) and isinstance(content.get(key), list):
            return [str(name) for name in content[key]]
    if labels in NAME_KEYS:
        raise DataError(f"{beside} names no classes; make it a list of names, or a table with one under {keys[0]!r}")
    return None
