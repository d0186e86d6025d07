"""idx files, the format of MNIST and its kin.

A file is two zero bytes, a type code, the number D of axes, D sizes of four bytes, then the numbers, all big-endian.
Plain files of bytes are mapped, so that only what is taken is read; compressed ones are unpacked to the size that their
header states.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from nearkin.core.errors import DataError, require
from nearkin.core.opening import CHUNK, local_path, require_bytes, unpacked
from nearkin.tasks.task import Task

OPTIONS: tuple[str, ...] = ()

TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
MAX_AXES = 4
TRAIN, TEST = ("train",), ("t10k", "test")
IMAGES, LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"


def read(location: str, options: Mapping[str, str]) -> Task:
    """A task from a folder of idx pairs, plain or compressed; without a test pair a fifth is set aside.

    Args:
        location: the folder with `train-images-idx3-ubyte`, `train-labels-idx1-ubyte` and the same for `t10k`.
        options: none.
    """
    folder = local_path(location)
    require(
        folder.is_dir(),
        f"{folder} is not a folder; idx wants one with train-{IMAGES}, train-{LABELS} and the same for t10k, "
        f"plain or .gz",
        DataError,
    )
    x, y = _pair(folder, TRAIN)
    x_test, y_test = _pair(folder, TEST) if _present(folder, TEST) else (None, None)
    return Task.from_arrays(folder.resolve().name, x, y, x_test, y_test)


def read_idx(path: str | Path) -> np.ndarray[Any, Any]:
    """The array of one idx file, plain or `.gz`, in the machine's own byte order.

    A plain file of bytes is mapped copy-on-write: what is written to the array stays in memory, never in the file.
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
    require(
        len(data) == size,
        f"{path}: its header promises {size:,} bytes for an array {list(shape)}, the file holds "
        f"{'more' if len(data) > size else f'{len(data):,}'}; fetch it again",
        DataError,
    )
    values = data.view(kind).reshape(shape)
    return values if kind.itemsize == 1 else values.astype(kind.newbyteorder("="))


def _header(path: Path, file: BinaryIO) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Type and shape of the array, from the first bytes of the file."""
    magic = file.read(4)
    require(
        len(magic) == 4 and magic[:2] == b"\0\0" and magic[2] in TYPES and magic[3] > 0,
        f"{path} is not an idx file: it begins with the bytes {magic.hex(' ') or '(none)'}, expected 00 00, a type "
        f"from 08 to 0e and the number of axes; fetch the official file",
        DataError,
    )
    require(magic[3] <= MAX_AXES, f"{path} has {magic[3]} axes, expected 1 to {MAX_AXES}; fetch it again", DataError)
    sizes = file.read(4 * magic[3])
    require(
        len(sizes) == 4 * magic[3],
        f"{path}: its header promises {magic[3]} axes, but the file ends before; fetch it again",
        DataError,
    )
    shape = tuple(np.frombuffer(sizes, ">u4").tolist())
    require(min(shape) > 0, f"{path} holds no values: its array is {list(shape)}; fetch it again", DataError)
    return np.dtype(TYPES[magic[2]]), shape


def _content(file: BinaryIO, most: int) -> bytearray:
    """The rest of a file, at most so many bytes."""
    content = bytearray()
    while len(content) < most and (chunk := file.read(min(CHUNK, most - len(content)))):
        content += chunk
    return content


def _pair(folder: Path, parts: tuple[str, ...]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Images and labels of one part, as many of the one as of the other."""
    images, labels = _found(folder, parts, IMAGES), _found(folder, parts, LABELS)
    x, y = read_idx(images), read_idx(labels)
    require(
        len(x) == len(y),
        f"{images} holds {len(x)} images, {labels} {len(y)} labels; fetch the two files that belong together",
        DataError,
    )
    return x, y


def _candidates(folder: Path, parts: tuple[str, ...], kind: str) -> list[Path]:
    """Every accepted spelling, plain files first."""
    spellings = [f"{part}-{name}" for part in parts for name in (kind, kind.replace("-idx", ".idx"))]
    return [folder / f"{spelling}{ending}" for ending in ("", ".gz") for spelling in spellings]


def _present(folder: Path, parts: tuple[str, ...]) -> bool:
    """Whether any file of the part is there."""
    return any(path.is_file() for kind in (IMAGES, LABELS) for path in _candidates(folder, parts, kind))


def _found(folder: Path, parts: tuple[str, ...], kind: str) -> Path:
    """The file of that part and kind."""
    for path in _candidates(folder, parts, kind):
        if path.is_file():
            return path
    raise DataError(f"{folder} lacks {parts[0]}-{kind} (or {parts[0]}-{kind}.gz); put it there")
