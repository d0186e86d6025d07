"""Images in one folder a class, `DIR/class/*.png` or `DIR/train/class` and `DIR/test/class`.

Small sets are decoded once and kept as bytes; large ones are decoded as they are taken.
"""

import io
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from nearkin.core.errors import DataError, optional, require
from nearkin.core.opening import local_path, open_regular, require_bytes
from nearkin.tasks.datastring import height_width
from nearkin.tasks.examples import Examples
from nearkin.tasks.rows import Pixels, Rows, Values
from nearkin.tasks.task import Task

OPTIONS: tuple[str, ...] = ("size",)

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")  # Pillow knows more, and some of them start programs
TRAIN, TEST = "train", ("test", "val", "valid", "validation")
GREY_MODES = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L")
KEPT_BYTES = 256 * 2**20  # images that decode to less than this are kept in memory
SURVEYED = 20_000  # image headers looked at, evenly spaced

ImageSource: TypeAlias = str | BinaryIO  # a path, or an open file with a `name`


class MemoryFile(io.BytesIO):
    """An encoded image in memory, with a name for errors."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self.name = name


class ImageList(Protocol):
    """Image files by number; a list of paths is one."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> ImageSource: ...


class Look(NamedTuple):
    """What all images of a set are brought to: height and width, and `L` (grey) or `RGB`."""

    size: tuple[int, int]
    mode: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of one image, channels first."""
        return (1 if self.mode == "L" else 3, *self.size)


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Image files of one look, decoded as they are taken; another size is resized if `resize`, else refused."""

    files: ImageList
    look: Look
    resize: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image."""
        return self.look.shape

    def __len__(self) -> int:
        return len(self.files)

    def take(self, index: Tensor) -> Tensor:
        """Images at `index` as float32 in [0, 1]."""
        return self.pixels(index).to(torch.float32).div_(255.0)

    def pixels(self, index: Tensor) -> Tensor:
        """Images at `index` as bytes `[B, C, H, W]`."""
        out = np.empty((len(index), *self.look.shape), np.uint8)
        for place, number in enumerate(index.tolist()):
            out[place] = _decoded(self.files[number], self.look, self.resize)
        return torch.from_numpy(out)


def read(location: str, options: Mapping[str, str]) -> Task:
    """A task from images in class folders; without a test folder a fifth of each class is set aside.

    Args:
        location: the folder; its `train` and `test` (or `val`) are the parts if they hold class folders.
        options: `size=64` or `size=64x48` (height×width) to resize.
    """
    root = local_path(location)
    require(
        root.is_dir(), f"there is no folder {root}; folder wants one that holds a folder of images a class", DataError
    )
    train_root, test_root = _parts(root)
    train = _by_class(train_root)
    test = _by_class(test_root) if test_root is not None else {}
    unknown = sorted(set(test) - set(train))
    require(
        not unknown,
        f"{test_root} has class {', '.join(unknown[:5])}, which {train_root} lacks; add training images or remove it",
        DataError,
    )
    parts = [[path for paths in part.values() for path in paths] for part in (train, test) if part]
    rows = image_rows(parts, options)
    numbers = {name: number for number, name in enumerate(train)}
    labels = [[numbers[name] for name, paths in part.items() for _ in paths] for part in (train, test) if part]
    examples = [Examples(x, Values(torch.tensor(y))) for x, y in zip(rows, labels, strict=True)]
    held_out = examples[1] if test else None
    return Task.of(root.resolve().name, examples[0], held_out, likelihood="categorical", classes=tuple(train))


def image_rows(parts: Sequence[ImageList], options: Mapping[str, str]) -> list[Rows]:
    """Rows of each part's images under one look, decoded at once where they are small together."""
    wanted = height_width(options["size"]) if "size" in options else None
    look = _look(parts, wanted)
    require_bytes(4 * int(np.prod(look.shape)), f"one image of {look.size[0]} x {look.size[1]}")
    lazy = [ImageFiles(files, look, wanted is not None) for files in parts]
    if sum(len(files) for files in parts) * int(np.prod(look.shape)) > KEPT_BYTES:
        return list(lazy)
    return [Pixels(rows.pixels(torch.arange(len(rows)))) for rows in lazy]


def _parts(root: Path) -> tuple[Path, Path | None]:
    """The training and test folders, or the folder itself."""
    if not (root / TRAIN).is_dir() or not _folders(root / TRAIN):
        return root, None
    return root / TRAIN, next((root / name for name in TEST if (root / name).is_dir() and _folders(root / name)), None)


def _folders(root: Path) -> list[Path]:
    """Folders in a folder, in order of name; hidden ones do not count."""
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _by_class(root: Path) -> dict[str, list[str]]:
    """Paths of the images of every class, both in order of name."""
    classes = {folder.name: _images(folder) for folder in _folders(root)}
    require(
        bool(classes) and not set(classes) <= {TRAIN, *TEST},
        f"{root} holds no class folders; put the images of each class in a folder named after it",
        DataError,
    )
    for name, paths in classes.items():
        require(
            bool(paths),
            f"class folder {root / name} holds no images ({', '.join(ENDINGS)}); add some or remove it",
            DataError,
        )
    return classes


def _images(folder: Path) -> list[str]:
    """Images below a folder, in order of path; hidden files and folders do not count."""
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [
            os.path.join(place, name) for name in files if name.lower().endswith(ENDINGS) and not name.startswith(".")
        ]
    return sorted(found)


def _look(parts: Sequence[ImageList], wanted: tuple[int, int] | None) -> Look:
    """The common look, from the headers of the images; sizes must agree unless one is asked for."""
    headers = _headers(parts)
    first, first_size, mode = next(headers)
    grey = mode in GREY_MODES
    for name, size, mode in headers:
        grey = grey and mode in GREY_MODES
        if wanted is None and size != first_size:
            raise DataError(_sizes_differ(first, first_size, name, size))
    return Look(wanted or first_size, "L" if grey else "RGB")


def _headers(parts: Sequence[ImageList]) -> Iterator[tuple[str, tuple[int, int], str]]:
    """Name, (height, width) and colour mode of the images, evenly spaced where they are many."""
    stride = max(1, -(-sum(len(files) for files in parts) // SURVEYED))
    for files in parts:
        for number in range(0, len(files), stride):
            source = files[number]
            with _opened(source) as image:
                header = _name(source), (image.height, image.width), image.mode
            yield header


def _sizes_differ(one: str, one_size: tuple[int, int], other: str, other_size: tuple[int, int]) -> str:
    shown = [f"{height}x{width}" for height, width in (one_size, other_size)]
    return f"{one} is {shown[0]} (height x width), {other} {shown[1]}; bring all to one size with ?size=64"


def _decoded(source: ImageSource, look: Look, resize: bool) -> np.ndarray[Any, Any]:
    """Bytes `[C, H, W]` of one image."""
    with _opened(source) as image:
        size = (image.height, image.width)
        require(
            resize or size == look.size, _sizes_differ("the first image", look.size, _name(source), size), DataError
        )
        require(image.mode != "F", f"{_name(source)} holds floats; save it with 8 or 16 bits a channel", DataError)
        image = _eight_bit(image).convert(look.mode)
        if size != look.size:
            image = image.resize(look.size[::-1], optional("PIL.Image", "vision", "resizing").Resampling.BILINEAR)
        pixels = np.asarray(image)
    return pixels[None] if look.mode == "L" else pixels.transpose(2, 0, 1)


def _eight_bit(image: Any) -> Any:
    """The image with 8 bits a channel; deep grey is scaled, where Pillow would clip it."""
    if image.mode in ("I", "I;16", "I;16B", "I;16L"):
        deep = np.asarray(image).astype(np.int64).clip(0, 65535)
        return optional("PIL.Image", "vision", "reading images").fromarray((deep // 257).astype(np.uint8))
    return image.convert("RGBA") if "transparency" in image.info else image


@contextmanager
def _opened(source: ImageSource) -> Iterator[Any]:
    """A Pillow image of which only the header has been read; its size is checked before its pixels are decoded.

    A mangled image can make Pillow's decoders raise any error and warn of anything: all of it becomes one line.
    """
    pillow = optional("PIL.Image", "vision", "reading images")
    with open_regular(Path(source)) if isinstance(source, str) else source as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with pillow.open(file, formats=FORMATS) as image:
                require_bytes(
                    4 * image.width * image.height, f"{_name(source)}, {image.height} x {image.width} pixels,"
                )
                yield image
        except DataError:
            raise
        except Exception as fault:
            raise _unreadable(source, fault) from fault


def _name(source: ImageSource) -> str:
    return source if isinstance(source, str) else source.name


def _unreadable(source: ImageSource, fault: Exception) -> DataError:
    reason = str(fault).splitlines()[0] if str(fault) else type(fault).__name__
    return DataError(f"{_name(source)} is not a readable image ({reason}); replace or remove it")
