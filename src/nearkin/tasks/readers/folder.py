"""Images in one folder per class, `DIR/class/*.png` or `DIR/train/class` and `DIR/test/class`.

Small data sets are decoded once and stored as bytes; large ones are decoded when they are read.
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

from nearkin.core.errors import DataError, optional
from nearkin.core.opening import local_path, open_regular, require_bytes
from nearkin.tasks.datastring import height_width
from nearkin.tasks.examples import Examples
from nearkin.tasks.rows import Pixels, Rows, Values
from nearkin.tasks.task import Task

OPTIONS: tuple[str, ...] = ("size",)

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
FORMATS = (
    "PNG",
    "JPEG",
    "BMP",
    "GIF",
    "WEBP",
    "TIFF",
    "PPM",
)  # Pillow has more formats, and some of them start programs
TRAIN, TEST = "train", ("test", "val", "valid", "validation")
GREY_MODES = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L")
KEPT_BYTES = 256 * 2**20  # decoded images up to this size stay in memory
MOST_HEADERS = 20_000  # image headers that are read, evenly spaced

ImageSource: TypeAlias = str | BinaryIO  # a path, or an open file with a `name`


class MemoryFile(io.BytesIO):
    """An encoded image in memory, with a name for error messages."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self.name = name


class ImageList(Protocol):
    """Image files by number; a list of paths is one."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> ImageSource: ...


class ImageFormat(NamedTuple):
    """Common format of all images of a data set: height and width, and `L` (grey) or `RGB`."""

    size: tuple[int, int]
    mode: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of one image, channels first."""
        return (1 if self.mode == "L" else 3, *self.size)


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Image files, decoded when they are read; images of another size are resized if `resize`, else refused."""

    files: ImageList
    format: ImageFormat
    resize: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image."""
        return self.format.shape

    def __len__(self) -> int:
        return len(self.files)

    def take(self, index: Tensor) -> Tensor:
        """Images at `index` as float32 in [0, 1]."""
        return self.pixels(index).to(torch.float32).div_(255.0)

    def pixels(self, index: Tensor) -> Tensor:
        """Images at `index` as bytes `[B, C, H, W]`."""
        images = np.empty((len(index), *self.shape), np.uint8)
        for image, number in zip(images, index.tolist(), strict=True):
            image[...] = _decoded(self.files[number], self.format, self.resize)
        return torch.from_numpy(images)


def read(location: str, options: Mapping[str, str]) -> Task:
    """A task from images in class folders; without a test folder a fifth of each class is the test set.

    Args:
        location: the folder; its `train` and `test` (or `val`) are the splits if they contain class folders.
        options: `size=64` or `size=64x48` (height×width) to resize.
    """
    root = local_path(location)
    if not root.is_dir():
        raise DataError(f"there is no folder {root}; name one that contains a folder of images per class")
    train_root, test_root = _split_folders(root)
    train = _by_class(train_root)
    test = _by_class(test_root) if test_root is not None else {}
    unknown = sorted(set(test) - set(train))
    if unknown:
        raise DataError(
            f"{test_root} has class {', '.join(unknown[:5])}, {train_root} does not; add training images or remove it"
        )
    splits = [split for split in (train, test) if split]
    rows = image_rows([[path for paths in split.values() for path in paths] for split in splits], options)
    numbers = {name: number for number, name in enumerate(train)}
    labels = [[numbers[name] for name, paths in split.items() for _ in paths] for split in splits]
    examples = [Examples(x, Values(torch.tensor(y))) for x, y in zip(rows, labels, strict=True)]
    held_out = examples[1] if test else None
    return Task.of(root.resolve().name, examples[0], held_out, likelihood="categorical", classes=tuple(train))


def image_rows(splits: Sequence[ImageList], options: Mapping[str, str]) -> list[Rows]:
    """Rows of the images of each split in one common format, decoded at once if all of them are small."""
    size = height_width(options["size"]) if "size" in options else None
    common = _common_format(splits, size)
    require_bytes(4 * int(np.prod(common.shape)), f"one image of {common.size[0]} x {common.size[1]}")
    lazy = [ImageFiles(files, common, size is not None) for files in splits]
    if sum(len(files) for files in splits) * int(np.prod(common.shape)) > KEPT_BYTES:
        return list(lazy)
    return [Pixels(rows.pixels(torch.arange(len(rows)))) for rows in lazy]


def _split_folders(root: Path) -> tuple[Path, Path | None]:
    if not (root / TRAIN).is_dir() or not _folders(root / TRAIN):
        return root, None
    return root / TRAIN, next((root / name for name in TEST if (root / name).is_dir() and _folders(root / name)), None)


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _by_class(root: Path) -> dict[str, list[str]]:
    """Paths of the images of every class, both in order of name."""
    classes = {folder.name: _images(folder) for folder in _folders(root)}
    if set(classes) <= {TRAIN, *TEST}:
        raise DataError(f"{root} has no class folders; put the images of each class in a folder named after it")
    for name, paths in classes.items():
        if not paths:
            raise DataError(f"class folder {root / name} has no images ({', '.join(ENDINGS)}); add some or remove it")
    return classes


def _images(folder: Path) -> list[str]:
    """Images below a folder in order of path, without hidden files and folders."""
    paths = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        names = [name for name in files if name.lower().endswith(ENDINGS) and not name.startswith(".")]
        paths += [os.path.join(parent, name) for name in names]
    return sorted(paths)


def _common_format(splits: Sequence[ImageList], wanted: tuple[int, int] | None) -> ImageFormat:
    """The common format from the headers of the images; sizes must be equal unless one is requested."""
    headers = _headers(splits)
    first, first_size, mode = next(headers)
    grey = mode in GREY_MODES
    for name, size, mode in headers:
        grey = grey and mode in GREY_MODES
        if wanted is None and size != first_size:
            raise DataError(_sizes_differ(first, first_size, name, size))
    return ImageFormat(wanted or first_size, "L" if grey else "RGB")


def _headers(splits: Sequence[ImageList]) -> Iterator[tuple[str, tuple[int, int], str]]:
    """Name, (height, width) and colour mode of the images, or of evenly spaced ones if there are many."""
    stride = max(1, -(-sum(len(files) for files in splits) // MOST_HEADERS))
    for files in splits:
        for number in range(0, len(files), stride):
            source = files[number]
            with _opened(source) as image:
                header = _name(source), (image.height, image.width), image.mode
            yield header


def _sizes_differ(first: str, first_size: tuple[int, int], other: str, other_size: tuple[int, int]) -> str:
    shown = [f"{height}x{width}" for height, width in (first_size, other_size)]
    return f"{first} is {shown[0]} (height x width), {other} {shown[1]}; resize all with ?size=64"


def _decoded(source: ImageSource, common: ImageFormat, resize: bool) -> np.ndarray[Any, Any]:
    with _opened(source) as image:
        size = (image.height, image.width)
        if size != common.size and not resize:
            raise DataError(_sizes_differ("the first image", common.size, _name(source), size))
        if image.mode == "F":
            raise DataError(f"{_name(source)} contains floats; save it with 8 or 16 bits per channel")
        image = _eight_bit(image).convert(common.mode)
        if size != common.size:
            image = image.resize(common.size[::-1], optional("PIL.Image", "vision", "resizing").Resampling.BILINEAR)
        pixels = np.asarray(image)
    return pixels[None] if common.mode == "L" else pixels.transpose(2, 0, 1)


def _eight_bit(image: Any) -> Any:
    """The image with 8 bits per channel; 16-bit grey is scaled, as Pillow would clip it."""
    if image.mode in ("I", "I;16", "I;16B", "I;16L"):
        deep = np.asarray(image).astype(np.int64).clip(0, 65535)
        return optional("PIL.Image", "vision", "reading images").fromarray((deep // 257).astype(np.uint8))
    return image.convert("RGBA") if "transparency" in image.info else image


@contextmanager
def _opened(source: ImageSource) -> Iterator[Any]:
    """A Pillow image whose size is checked before its pixels are decoded.

    A damaged image can make Pillow raise or warn in many ways; every error becomes a `DataError` of one line.
    """
    pillow = optional("PIL.Image", "vision", "reading images")
    with open_regular(Path(source)) if isinstance(source, str) else source as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with pillow.open(file, formats=FORMATS) as image:
                name, size = _name(source), f"{image.height} x {image.width} pixels"
                require_bytes(4 * image.width * image.height, f"{name}, {size},")
                yield image
        except DataError:
            raise
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise DataError(f"{_name(source)} is not a readable image ({reason}); replace or remove it") from error


def _name(source: ImageSource) -> str:
    return source if isinstance(source, str) else source.name
