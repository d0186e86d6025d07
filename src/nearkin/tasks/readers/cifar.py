"""CIFAR-10 and CIFAR-100 as their authors publish them, python batches and binary ones.

The python batches are pickles. They are read without unpickling (`pickled_table`), so that nothing of the file is run:
what it asks for beyond containers and arrays of bytes is refused by name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nearkin.core.errors import DataError, OptionError, require
from nearkin.core.opening import local_path, open_regular, read_file, require_bytes
from nearkin.tasks.readers.pickled import pickled_table
from nearkin.tasks.task import Task

OPTIONS: tuple[str, ...] = ("labels",)

IMAGE = (3, 32, 32)
PIXELS = 3 * 32 * 32
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class Layout:
    """One of the four published folders: its files, and the names of its labels in the order of the binary rows."""

    name: str
    folder: str
    train: tuple[str, ...]
    test: str
    meta: tuple[str, ...]
    labels: tuple[str, ...]

    @property
    def binary(self) -> bool:
        """Whether rows are bytes: the labels, then red, green and blue."""
        return self.test.endswith(".bin")


TEN, HUNDRED = ("fine",), ("coarse", "fine")
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
LAYOUTS = (
    Layout("cifar10", "cifar-10-batches-py", BATCHES, "test_batch", ("batches.meta",), TEN),
    Layout(
        "cifar10",
        "cifar-10-batches-bin",
        tuple(f"{batch}.bin" for batch in BATCHES),
        "test_batch.bin",
        ("batches.meta.txt",),
        TEN,
    ),
    Layout("cifar100", "cifar-100-python", ("train",), "test", ("meta",), HUNDRED),
    Layout(
        "cifar100",
        "cifar-100-binary",
        ("train.bin",),
        "test.bin",
        ("coarse_label_names.txt", "fine_label_names.txt"),
        HUNDRED,
    ),
)


class Part(NamedTuple):
    """Images `[N, 3, 32, 32]` of bytes and their labels `[N]`."""

    images: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]


def read(location: str, options: Mapping[str, str]) -> Task:
    """A task from the unpacked official files.

    Args:
        location: the folder of the batches, or the folder that holds it.
        options: `labels=fine` (the default) or `labels=coarse`, the 20 superclasses of CIFAR-100.
    """
    root = local_path(location)
    layout, folder = _layout(root)
    labels = options.get("labels") or "fine"
    if labels not in layout.labels:
        raise OptionError(f"{layout.name} has labels={' and labels='.join(layout.labels)}, got {labels!r}")
    train, test = (_part(layout, folder, files, labels) for files in (layout.train, (layout.test,)))
    classes = _classes(layout, folder, labels)
    return Task.from_arrays(layout.name, train.images, train.labels, test.images, test.labels, classes=classes)


def _layout(root: Path) -> tuple[Layout, Path]:
    """Which of the published folders this is, or holds; python batches before binary ones."""
    found = [
        (layout, folder)
        for layout in LAYOUTS
        for folder in (root, root / layout.folder)
        if any((folder / file).is_file() for file in (*layout.train, layout.test))
    ]
    require(
        bool(found),
        f"{root} holds no CIFAR batches; unpack there cifar-10-python.tar.gz (data_batch_1 to data_batch_5, "
        f"test_batch), cifar-100-python.tar.gz (train, test) or the binary version of either",
        DataError,
    )
    require(
        len({layout.name for layout, _ in found}) == 1,
        f"{root} holds both CIFAR-10 and CIFAR-100; name one of {found[0][1]} and {found[-1][1]}",
        DataError,
    )
    return found[0]


def _part(layout: Layout, folder: Path, files: Sequence[str], labels: str) -> Part:
    """The images and labels of some batches, one after another."""
    for file in files:
        require((folder / file).exists(), f"{folder} lacks {file}; unpack the official archive again", DataError)
    require_bytes(2 * sum((folder / file).stat().st_size for file in files), f"{folder}: {files[0]} and its like")
    parts = [(_binary if layout.binary else _pickled)(folder / file, layout, labels) for file in files]
    if len(parts) == 1:
        return parts[0]
    return Part(np.concatenate([part.images for part in parts]), np.concatenate([part.labels for part in parts]))


def _binary(path: Path, layout: Layout, labels: str) -> Part:
    """A mapped batch: each row is one or two labels and 3,072 pixels."""
    width = len(layout.labels) + PIXELS
    size = path.stat().st_size
    require(
        size > 0 and size % width == 0,
        f"{path} has {size:,} bytes, which is no number of rows of {width:,}; fetch the official file",
        DataError,
    )
    with open_regular(path) as file:
        rows = np.memmap(file, np.uint8, mode="c", shape=(size // width, width))
    return Part(rows[:, -PIXELS:].reshape(-1, *IMAGE), rows[:, layout.labels.index(labels)])


def _pickled(path: Path, layout: Layout, labels: str) -> Part:
    """A python batch: a table of `data` `[N, 3072]` and lists of labels."""
    batch = pickled_table(path)
    key = "labels" if layout.labels == TEN else f"{labels}_labels"
    data, numbers = batch.get("data"), batch.get(key)
    if not (isinstance(data, np.ndarray) and data.ndim == 2 and data.shape[1] == PIXELS):
        raise DataError(f"{path} has no uint8 array 'data' of {PIXELS:,} columns; fetch the official file")
    if not (isinstance(numbers, list) and all(type(number) is int and 0 <= number < 256 for number in numbers)):
        raise DataError(f"{path} has no list of whole numbers {key!r} from 0 to 255; fetch the official file")
    require(
        len(data) == len(numbers),
        f"{path} holds {len(data)} images and {len(numbers)} labels; fetch the official file",
        DataError,
    )
    return Part(data.reshape(-1, *IMAGE), np.array(numbers, np.int64))


def _classes(layout: Layout, folder: Path, labels: str) -> Sequence[str] | None:
    """Names of the classes from the meta files, else the well-known ten, else none (they go by number)."""
    path = folder / layout.meta[layout.labels.index(labels) if len(layout.meta) > 1 else 0]
    if not path.is_file():
        return CIFAR10 if layout.labels == TEN else None
    if layout.binary:
        return read_file(path).decode("utf-8", errors="replace").split()
    key = "label_names" if layout.labels == TEN else f"{labels}_label_names"
    names = pickled_table(path).get(key)
    if not (isinstance(names, list) and all(isinstance(name, str | bytes) for name in names)):
        raise DataError(f"{path} has no list {key!r} of text; fetch the official file, or remove it to go by number")
    return [name.decode("utf-8", "replace") if isinstance(name, bytes) else name for name in names]
