"""CIFAR-10 and CIFAR-100 in the files of their authors, Python or binary batches.

The Python batches are pickles. They are read without unpickling (`pickled_table`), so that no code of the file runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nearkin.core.errors import DataError
from nearkin.core.opening import local_path, open_regular, read_file, require_bytes
from nearkin.tasks.datastring import one_of
from nearkin.tasks.readers.pickled import pickled_table
from nearkin.tasks.task import Task

OPTIONS: tuple[str, ...] = ("labels",)

IMAGE = (3, 32, 32)
PIXELS = 3 * 32 * 32
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class CifarLayout:
    """Files of one of the four published folders; `labels` are in the order of the binary rows."""

    name: str
    folder: str
    train: tuple[str, ...]
    test: str
    meta: tuple[str, ...]
    labels: tuple[str, ...]

    @property
    def binary(self) -> bool:
        """Whether a row is bytes: the labels, then red, green and blue."""
        return self.test.endswith(".bin")


TEN, HUNDRED = ("fine",), ("coarse", "fine")
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
BINARY_BATCHES = tuple(f"{batch}.bin" for batch in BATCHES)
NAME_FILES = ("coarse_label_names.txt", "fine_label_names.txt")
LAYOUTS = (
    CifarLayout("cifar10", "cifar-10-batches-py", BATCHES, "test_batch", ("batches.meta",), TEN),
    CifarLayout("cifar10", "cifar-10-batches-bin", BINARY_BATCHES, "test_batch.bin", ("batches.meta.txt",), TEN),
    CifarLayout("cifar100", "cifar-100-python", ("train",), "test", ("meta",), HUNDRED),
    CifarLayout("cifar100", "cifar-100-binary", ("train.bin",), "test.bin", NAME_FILES, HUNDRED),
)


class CifarSplit(NamedTuple):
    """Byte images `[N, 3, 32, 32]` and their labels `[N]`."""

    images: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]


def read(location: str, options: Mapping[str, str]) -> Task:
    """A task from the unpacked official files.

    Args:
        location: the folder of the batches, or its parent folder.
        options: `labels=fine` or `labels=coarse`, the 20 superclasses of CIFAR-100 (default: fine).
    """
    root = local_path(location)
    layout, folder = _layout(root)
    labels = one_of(options.get("labels") or "fine", f"labels of {layout.name}", layout.labels)
    train, test = (_split(layout, folder, files, labels) for files in (layout.train, (layout.test,)))
    classes = _classes(layout, folder, labels)
    return Task.from_arrays(layout.name, train.images, train.labels, test.images, test.labels, classes=classes)


def _layout(root: Path) -> tuple[CifarLayout, Path]:
    """The published folder at `root` or directly below it; Python batches go before binary ones."""
    present = [
        (layout, folder)
        for layout in LAYOUTS
        for folder in (root, root / layout.folder)
        if any((folder / file).is_file() for file in (*layout.train, layout.test))
    ]
    if not present:
        raise DataError(
            f"{root} has no CIFAR batches; unpack there cifar-10-python.tar.gz (data_batch_1 to data_batch_5, "
            f"test_batch), cifar-100-python.tar.gz (train, test) or the binary version of either"
        )
    if len({layout.name for layout, _ in present}) > 1:
        raise DataError(f"{root} has both CIFAR-10 and CIFAR-100; name one of {present[0][1]} and {present[-1][1]}")
    return present[0]


def _split(layout: CifarLayout, folder: Path, files: Sequence[str], labels: str) -> CifarSplit:
    for file in files:
        if not (folder / file).exists():
            raise DataError(f"{folder} has no file {file}; unpack the official archive again")
    require_bytes(2 * sum((folder / file).stat().st_size for file in files), f"{folder}: all files like {files[0]}")
    batches = [(_binary if layout.binary else _pickled)(folder / file, layout, labels) for file in files]
    return batches[0] if len(batches) == 1 else CifarSplit(*map(np.concatenate, zip(*batches, strict=True)))


def _binary(path: Path, layout: CifarLayout, labels: str) -> CifarSplit:
    """A mapped batch: each row is one or two labels and 3,072 pixels."""
    width = len(layout.labels) + PIXELS
    size = path.stat().st_size
    if size == 0 or size % width:
        raise DataError(f"{path} has {size:,} bytes, expected a multiple of {width:,}; fetch the official file")
    with open_regular(path) as file:
        rows = np.memmap(file, np.uint8, mode="c", shape=(size // width, width))
    return CifarSplit(rows[:, -PIXELS:].reshape(-1, *IMAGE), rows[:, layout.labels.index(labels)])


def _pickled(path: Path, layout: CifarLayout, labels: str) -> CifarSplit:
    """A Python batch: a table with `data` `[N, 3072]` and lists of labels."""
    batch = pickled_table(path)
    key = "labels" if layout.labels == TEN else f"{labels}_labels"
    data, numbers = batch.get("data"), batch.get(key)
    if not (isinstance(data, np.ndarray) and data.ndim == 2 and data.shape[1] == PIXELS):
        raise DataError(f"{path} has no uint8 array 'data' of {PIXELS:,} columns; fetch the official file")
    if not (isinstance(numbers, list) and all(type(number) is int and 0 <= number < 256 for number in numbers)):
        raise DataError(f"{path} has no list of whole numbers {key!r} from 0 to 255; fetch the official file")
    if len(data) != len(numbers):
        raise DataError(f"{path} has {len(data)} images and {len(numbers)} labels; fetch the official file")
    return CifarSplit(data.reshape(-1, *IMAGE), np.array(numbers, np.int64))


def _classes(layout: CifarLayout, folder: Path, labels: str) -> Sequence[str] | None:
    """Names of the classes from the meta files; without them the names of CIFAR-10, or None."""
    path = folder / layout.meta[layout.labels.index(labels) if len(layout.meta) > 1 else 0]
    if not path.is_file():
        return CIFAR10 if layout.labels == TEN else None
    if layout.binary:
        return read_file(path).decode("utf-8", errors="replace").split()
    key = "label_names" if layout.labels == TEN else f"{labels}_label_names"
    names = pickled_table(path).get(key)
    if not (isinstance(names, list) and all(isinstance(name, str | bytes) for name in names)):
        raise DataError(
            f"{path} has no list {key!r} of text; fetch the official file, or remove it to use numbers as names"
        )
    return [name.decode("utf-8", "replace") if isinstance(name, bytes) else name for name in names]
