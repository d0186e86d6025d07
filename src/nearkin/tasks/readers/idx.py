"""idx files, the format of MNIST and similar data sets.

A file is two zero bytes, a type code, the number D of axes, D sizes of four bytes, then the numbers, all big-endian.
Plain files of bytes are mapped, so that only the requested samples are read; compressed files are unpacked to the size
in their header.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from nearkin.core.errors import DataError
from nearkin.core.opening import CHUNK, local_path, require_bytes, unpacked
from nearkin.tasks.task import Task

OPTIONS: tuple[str, ...] = ()

TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
MAX_AXES = 4
TRAIN, TEST = ("train",), ("t10k", "test")
IMAGES, LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"


def read(location: str, options: Mapping[str, str]) -> Task:
    """A task from a folder of idx pairs, plain or `.gz`; without a test pair a fifth becomes the test set.

    Args:
        location: the folder with `train-images-idx3-ubyte`, `train-labels-idx1-ubyte` and the same for `t10k`.
        options: none.
    """
    folder = local_path(location)
    if not folder.is_dir():
        files = f"train-{IMAGES}, train-{LABELS} and the same for t10k, plain or .gz"
        raise DataError(f"{folder} is not a folder; name one with {files}")
    x, y = _pair(folder, TRAIN)
    has_test = _find(folder, TEST, IMAGES) is not None or _find(folder, TEST, LABELS) is not None
    x_test, y_test = _pair(folder, TEST) if has_test else (None, None)
    return Task.from_arrays(folder.resolve().name, x, y, x_test, y_test)


def read_idx(path: str | Path) -> np.ndarray[Any, Any]:
    """The array of one idx file, plain or `.gz`, in native byte order.

    A plain file of bytes is mapped copy-on-write: writing to the array does not change the file.
    """
    path = Path(path)
    with unpacked(path) as file:
        kind, shape = _header(path, file)
        size = math.prod(shape) * kind.itemsize
        if path.suffix != ".gz" and kind.itemsize == 1:
            data = np.memmap(file, np.uint8, mode="c")[4 + 4 * len(shape) :]
        else:
            require_bytes(size * (1 if kind.itemsize == 1 else 2), str(path))
            data = np.frombuffer(_content(file, size + 1), np.uint8)
    if len(data) != size:
        raise DataError(
            f"{path}: its header states {size:,} bytes for an array {list(shape)}, the file has "
            f"{'more' if len(data) > size else f'{len(data):,}'}; fetch it again"
        )
    values = data.view(kind).reshape(shape)
    return values if kind.itemsize == 1 else values.astype(kind.newbyteorder("="))


def _header(path: Path, file: BinaryIO) -> tuple[np.dtype[Any], tuple[int, ...]]:
    magic = file.read(4)
    if len(magic) != 4 or magic[:2] != b"\0\0" or magic[2] not in TYPES or magic[3] == 0:
        raise DataError(
            f"{path} is not an idx file: it begins with the bytes {magic.hex(' ') or '(none)'}, expected 00 00, a type "
            f"from 08 to 0e and the number of axes; fetch the official file"
        )
    if magic[3] > MAX_AXES:
        raise DataError(f"{path} has {magic[3]} axes, expected 1 to {MAX_AXES}; fetch it again")
    sizes = file.read(4 * magic[3])
    if len(sizes) != 4 * magic[3]:
        raise DataError(f"{path}: its header states {magic[3]} axes, but the file ends before; fetch it again")
    shape = tuple(np.frombuffer(sizes, ">u4").tolist())
    if min(shape) == 0:
        raise DataError(f"{path} has no values: its array is {list(shape)}; fetch it again")
    return np.dtype(TYPES[magic[2]]), shape


def _content(file: BinaryIO, most: int) -> bytearray:
    content = bytearray()
    while len(content) < most and (chunk := file.read(min(CHUNK, most - len(content)))):
        content += chunk
    return content


def _pair(folder: Path, prefixes: tuple[str, ...]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    paths = {kind: _find(folder, prefixes, kind) for kind in (IMAGES, LABELS)}
    for kind, path in paths.items():
        if path is None:
            raise DataError(f"{folder} has no {prefixes[0]}-{kind} (or {prefixes[0]}-{kind}.gz); put it there")
    x, y = (read_idx(path) for path in paths.values() if path is not None)
    if len(x) != len(y):
        raise DataError(
            f"{paths[IMAGES]} has {len(x)} images, {paths[LABELS]} {len(y)} labels; fetch two files that match"
        )
    return x, y


def _find(folder: Path, prefixes: tuple[str, ...], kind: str) -> Path | None:
    """The file of one split and kind in any accepted spelling, plain files first."""
    spellings = [f"{prefix}-{name}" for prefix in prefixes for name in (kind, kind.replace("-idx", ".idx"))]
    paths = [folder / f"{spelling}{ending}" for ending in ("", ".gz") for spelling in spellings]
    return next((path for path in paths if path.is_file()), None)
