"""Images or text files in one folder per class, `DIR/class/*.png` or `DIR/train/class` and `DIR/test/class`.

Small data sets are decoded once and stored as bytes; large ones are decoded when they are read.
"""

import io
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from nearkin.core.errors import DataError, optional, require
from nearkin.core.opening import local_path, open_regular, require_bytes
from nearkin.tasks.datastring import flag, height_width
from nearkin.tasks.examples import Examples
from nearkin.tasks.readers.documents import document_paths, read_documents
from nearkin.tasks.rows import Pixels, Rows, Values, chosen
from nearkin.tasks.task import Task

if TYPE_CHECKING:
    from PIL.Image import Image

OPTIONS: tuple[str, ...] = ("size", "raw")

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
MOST_SKIPPED = 0.1  # share of image files that may be unreadable
LARGEST_SIDE = 64  # pixels of images of different sizes, unless a size is given
SHOWN = 10  # unreadable files in the notes of a task

ImageSource: TypeAlias = "str | BinaryIO | Image"  # a path, an open file with a `name`, or a Pillow image


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
    """Image files, decoded when they are read; images of another size or mode are converted (bilinear)."""

    files: ImageList
    format: ImageFormat

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
            image[...] = _decoded(self.files[number], self.format)
        return torch.from_numpy(images)

    def readable(self, index: Tensor) -> tuple[Tensor, Tensor, dict[int, str]]:
        """Bytes of the images at `index` that can be read, their positions, and why the others cannot, by position."""
        images, kept, reasons = [torch.empty((0, *self.shape), dtype=torch.uint8)], [], {}
        for number in index.tolist():
            try:
                images.append(self.pixels(torch.tensor([number])))
                kept.append(number)
            except DataError as error:
                reasons[number] = str(error)
        return torch.cat(images), torch.tensor(kept, dtype=torch.int64), reasons


def read(location: str, options: Mapping[str, str]) -> Task:
    """A task from images or text files in class folders; without a test folder a fifth of each class is the test set.

    Args:
        location: the folder; its `train` and `test` (or `val`) are the splits if they contain class folders.
        options: `size=64` or `size=64x48` (height×width) to resize; see `read_images`. `raw` keeps texts as they are,
            for networks that bring a tokenizer.
    """
    root = local_path(location)
    if not root.is_dir():
        raise DataError(f"there is no folder {root}; name one that contains a folder of images per class")
    raw = "raw" in options and flag(options["raw"], "raw")
    train_root, test_root = _split_folders(root)
    class_folders = _folders(train_root)
    if class_folders and not any(map(image_paths, class_folders)) and any(map(document_paths, class_folders)):
        return read_documents(root, class_folders, _folders(test_root) if test_root is not None else (), raw)
    require(not raw, f"{root} has no text files by class, raw is for texts; leave raw out")
    train = _by_class(train_root)
    test = _by_class(test_root) if test_root is not None else {}
    unknown = sorted(set(test) - set(train))
    if unknown:
        raise DataError(
            f"{test_root} has class {', '.join(unknown[:5])}, {train_root} does not; add training images or remove it"
        )
    splits = [split for split in (train, test) if split]
    images = read_images([[path for paths in split.values() for path in paths] for split in splits], options)
    numbers = {name: number for number, name in enumerate(train)}
    labels = [torch.tensor([numbers[name] for name, paths in split.items() for _ in paths]) for split in splits]
    examples = [Examples(x, Values(y[kept])) for x, y, kept in zip(images.rows, labels, images.kept, strict=True)]
    return Task.of(
        root.resolve().name, examples[0], examples[1] if test else None, likelihood="categorical", classes=tuple(train),
        notes=images.notes,
    )  # fmt: skip


class ImageSet(NamedTuple):
    """Images of each split in one common format, positions of the readable files, and what was done to them."""

    rows: list[Rows]
    kept: list[Tensor]
    notes: tuple[str, ...]


def read_images(splits: Sequence[ImageList], options: Mapping[str, str], skip: float = MOST_SKIPPED) -> ImageSet:
    """Read the images of each split, decoded at once if all of them are small.

    Images of different sizes are resized to a square of the median side, at most 64 pixels, unless `size` is given.
    They are grey if all of them are. Files that cannot be read are left out, up to the share `skip`; large data sets
    are decoded when they are read, and only the headers of their images are checked.
    """
    size, counts = height_width(options["size"]) if "size" in options else None, [len(files) for files in splits]
    headers, broken = _headers(splits)
    require_mostly_readable([reason for split in broken for reason in split.values()], sum(counts), skip)
    common, notes = _common_format(headers, size)
    require_bytes(4 * int(np.prod(common.shape)), f"one image of {common.size[0]} x {common.size[1]}")
    small = sum(counts) * int(np.prod(common.shape)) <= KEPT_BYTES
    rows: list[Rows] = []
    kept = []
    for files, unreadable in zip(splits, broken, strict=True):
        index = torch.tensor([number for number in range(len(files)) if number not in unreadable], dtype=torch.int64)
        lazy = ImageFiles(files, common)
        if small:
            pixels, index, more = lazy.readable(index)
            unreadable |= more
        rows.append(Pixels(pixels) if small else lazy if len(index) == len(files) else chosen(lazy, index))
        kept.append(index)
    reasons = [reason for split in broken for reason in split.values()]
    require_mostly_readable(reasons, sum(counts), skip)
    notes += [f"left out: {reason}" for reason in reasons[:SHOWN]]
    notes += [f"{len(reasons) - SHOWN} more unreadable image files are left out"] if len(reasons) > SHOWN else []
    return ImageSet(rows, kept, tuple(notes))


def require_mostly_readable(reasons: Sequence[str], count: int, most: float = MOST_SKIPPED) -> None:
    """Refuse images of which more than a share cannot be read, or all; `reasons` has one line for each of these."""
    if most == 0 and reasons:
        raise DataError(reasons[0])
    require(
        len(reasons) < count and len(reasons) <= most * count,
        f"{len(reasons)} of {count} image files cannot be read, at most a tenth may be; the first: "
        f"{next(iter(reasons), '')}",
        DataError,
    )


def _split_folders(root: Path) -> tuple[Path, Path | None]:
    if not (root / TRAIN).is_dir() or not _folders(root / TRAIN):
        return root, None
    return root / TRAIN, next((root / name for name in TEST if (root / name).is_dir() and _folders(root / name)), None)


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _by_class(root: Path) -> dict[str, list[str]]:
    """Paths of the images of every class, both in order of name."""
    classes = {folder.name: image_paths(folder) for folder in _folders(root)}
    if set(classes) <= {TRAIN, *TEST}:
        raise DataError(f"{root} has no class folders; put the images of each class in a folder named after it")
    for name, paths in classes.items():
        if not paths:
            raise DataError(f"class folder {root / name} has no images ({', '.join(ENDINGS)}); add some or remove it")
    return classes


def image_paths(folder: Path) -> list[str]:
    """Images below a folder in order of path, without hidden files and folders."""
    paths = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        names = [name for name in files if name.lower().endswith(ENDINGS) and not name.startswith(".")]
        paths += [os.path.join(parent, name) for name in names]
    return sorted(paths)


def _common_format(headers: Sequence["_Header"], wanted: tuple[int, int] | None) -> tuple[ImageFormat, list[str]]:
    """The common format of images, and how it differs from theirs, one line each."""
    sizes, grey = sorted({header.size for header in headers}), [header.mode in GREY_MODES for header in headers]
    mode, notes = "L" if all(grey) else "RGB", []
    if any(grey) and not all(grey):
        notes.append(f"{sum(grey)} of {len(grey)} images are grey, the others are not: all are read as colour")
    if wanted is not None or len(sizes) == 1:
        return ImageFormat(wanted or sizes[0], mode), notes
    middle = median_low(side for header in headers for side in header.size)
    side = min(LARGEST_SIDE, middle)
    low, high = (f"{height}x{width}" for height, width in (sizes[0], sizes[-1]))
    limited = f" ({middle}) limited to {LARGEST_SIDE}" if side < middle else ""
    notes.append(
        f"images have {len(sizes)} sizes, such as {low} and {high} (height x width): resized to {side}x{side}, the "
        f"median side{limited}; choose another with ?size="
    )
    return ImageFormat((side, side), mode), notes


class _Header(NamedTuple):
    """Height and width, and colour mode of an image."""

    size: tuple[int, int]
    mode: str


def _headers(splits: Sequence[ImageList]) -> tuple[list[_Header], list[dict[int, str]]]:
    """Headers of the images, or of evenly spaced ones if there are many; and why others are unreadable, by number."""
    stride = max(1, -(-sum(len(files) for files in splits) // MOST_HEADERS))
    headers, broken = [], []
    for files in splits:
        reasons = {}
        for number in range(0, len(files), stride):
            try:
                with _opened(files[number]) as image:
                    headers.append(_Header((image.height, image.width), image.mode))
            except DataError as error:
                reasons[number] = str(error)
        broken.append(reasons)
    return headers, broken


def _decoded(source: ImageSource, common: ImageFormat) -> np.ndarray[Any, Any]:
    with _opened(source) as image:
        size = (image.height, image.width)
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


def image_size(source: ImageSource) -> tuple[int, int]:
    """Height and width of an image, from its header."""
    with _opened(source) as image:
        return image.height, image.width


@contextmanager
def _opened(source: ImageSource) -> Iterator[Any]:
    """A Pillow image whose size is checked before its pixels are decoded.

    A damaged image can make Pillow raise or warn in many ways; every error becomes a `DataError` of one line.
    """
    pillow = optional("PIL.Image", "vision", "reading images")
    in_memory = isinstance(source, pillow.Image)
    opened: Any = (
        nullcontext(source) if in_memory else open_regular(Path(source)) if isinstance(source, str) else source
    )
    with opened as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            decoder: Any = nullcontext(file) if in_memory else pillow.open(file, formats=FORMATS)
            with decoder as image:
                name, size = _name(source), f"{image.height} x {image.width} pixels"
                require_bytes(4 * image.width * image.height, f"{name}, {size},")
                yield image
        except DataError:
            raise
        except Exception as error:
            unknown = isinstance(error, pillow.UnidentifiedImageError)
            reason = "no known format" if unknown else str(error).partition("\n")[0] or type(error).__name__
            raise DataError(f"{_name(source)} is not a readable image ({reason}); replace or remove it") from error


def _name(source: ImageSource) -> str:
    return source if isinstance(source, str) else getattr(source, "name", None) or "an image in memory"
