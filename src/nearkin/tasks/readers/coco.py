"""Images with boxes in the JSON format of COCO (https://cocodataset.org/#format-data).

`DIR/annotations/instances_train2017.json` and `instances_val2017.json`, or `DIR/train.json` and `DIR/val.json` (or
`test.json`). Images are searched in `DIR/train2017`, `DIR/images/train2017`, `DIR/images` and `DIR`, for other splits
accordingly. Annotations of crowds are left out.
"""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nearkin.core.errors import DataError
from nearkin.core.opening import local_path, read_file
from nearkin.tasks.boxes import padded_targets
from nearkin.tasks.datastring import names, one_of
from nearkin.tasks.examples import Examples
from nearkin.tasks.readers.folder import image_size, read_images
from nearkin.tasks.rows import Values
from nearkin.tasks.task import Task

OPTIONS: tuple[str, ...] = ("size", "classes", "faulty")

TRAIN, TEST = ("train",), ("val", "test", "valid", "validation")
PREFIX = "instances_"
JSON_COST = 10  # bytes of memory for each byte of JSON
CLIPPED = 1.0  # pixels by which a box may lie outside the image; it is clipped
SIZES_CHECKED = 500  # images whose real size is compared with the stated one


class AnnotatedImage(NamedTuple):
    """An image of a JSON file: path, height and width, boxes `[n, 4]` as corners in pixels, classes `[n]`."""

    path: str
    height: int
    width: int
    boxes: Tensor
    labels: Tensor


def read(location: str, options: Mapping[str, str]) -> Task:
    """A detection task from a folder; without a file of test images, a fifth of the images is the test set.

    Args:
        location: the folder.
        options: `size=64` or `size=64x48` (height×width) to resize images and boxes, `classes=cat,dog` to read only
            these classes, `faulty=drop` to leave out boxes without area or outside their image (default: refuse them).
    """
    root = local_path(location)
    if not root.is_dir():
        raise DataError(f"there is no folder {root}; name one that contains annotations and images")
    files = _annotation_files(root)
    drop = one_of(options.get("faulty", "refuse"), "faulty", ("refuse", "drop")) == "drop"
    tables = [_table(path) for path in files]
    categories = _categories(tables[0], files[0])
    if "classes" in options:
        wanted = names(options["classes"], "classes")
        unknown = sorted(set(wanted) - set(categories.values()))
        if unknown:
            raise DataError(f"{files[0]} has no class {', '.join(unknown[:5])}; its classes are "
                            f"{', '.join(list(categories.values())[:12])}")  # fmt: skip
        categories = {key: name for key, name in categories.items() if name in wanted}
    numbers = {key: number for number, key in enumerate(categories)}
    every = [_categories(table, path) for table, path in zip(tables, files, strict=True)]
    splits, dropped = [], 0
    for table, path, known in zip(tables, files, every, strict=True):
        images, count = _annotated_images(table, path, root, numbers, known, drop)
        splits.append(images)
        dropped += count
    read_set = read_images([[image.path for image in split] for split in splits], options)
    _check_sizes(splits)
    height, width = read_set.rows[0].shape[1:]
    kept = [[split[number] for number in index.tolist()] for split, index in zip(splits, read_set.kept, strict=True)]
    most = max(1, *(len(image.labels) for split in kept for image in split))
    train, *test = (
        Examples(rows, Values(_targets(split, height, width, most)))
        for rows, split in zip(read_set.rows, kept, strict=True)
    )
    notes = [f"{dropped} boxes without area or outside their image are left out"] if dropped else []
    return Task.of(root.name, train, test[0] if test else None, likelihood="detection",
                   classes=tuple(categories.values()), notes=(*read_set.notes, *notes))  # fmt: skip


def _annotation_files(root: Path) -> list[Path]:
    """The JSON files of training and test images, the second one if there is one."""
    files = []
    for words in (TRAIN, TEST):
        patterns = [f"annotations/{PREFIX}{word}*.json" for word in words] + [f"{word}.json" for word in words]
        files.append([path for pattern in patterns for path in sorted(root.glob(pattern))])
    if not files[0]:
        raise DataError(f"{root} has neither annotations/{PREFIX}train*.json nor train.json; put one of them there")
    for paths in files:
        if len(paths) > 1:
            raise DataError(f"{root} has {paths[0].name} and {paths[1].name} for the same split; keep one of them")
    return [paths[0] for paths in files if paths]


def _table(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_file(path, JSON_COST))
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:100]
        raise DataError(f"{path} is not JSON ({reason}); replace it") from error
    for key in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise DataError(f"{path} has no list {key!r}; write it in the format of COCO")
        if not all(isinstance(entry, dict) for entry in content[key]):
            raise DataError(f"{path}: {key} has an entry that is not a table of names and values; correct it")
    return dict(content)


def _value(entry: Mapping[str, Any], key: str, kind: type, where: str) -> Any:
    """An entry's value of a type; booleans are no numbers."""
    value = entry.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        expected = {int: "a whole number", str: "text", list: "a list"}[kind]
        raise DataError(f"{where}: {key} is {value!r:.60}, expected {expected}; correct it")
    return value


def _categories(table: Mapping[str, Any], path: Path) -> dict[int, str]:
    """Names of the classes by their id, in the order of ids."""
    found: dict[int, str] = {}
    for entry in table["categories"]:
        key, name = _value(entry, "id", int, f"{path}, categories"), _value(entry, "name", str, f"{path}, categories")
        if key in found or name in found.values():
            raise DataError(f"{path}: the category {name!r:.60} (id {key}) is listed twice; list it once")
        found[key] = name
    if not found:
        raise DataError(f"{path} has no categories; list the classes of the boxes")
    return dict(sorted(found.items()))


def _annotated_images(
    table: Mapping[str, Any], path: Path, root: Path, numbers: Mapping[int, int], known: Mapping[int, str], drop: bool
) -> tuple[list[AnnotatedImage], int]:
    """The images of a file with their boxes, and the number of boxes that were dropped."""
    sides: dict[int, tuple[str, int, int]] = {}
    folders = _image_folders(path, root)
    for entry in table["images"]:
        key = _value(entry, "id", int, f"{path}, images")
        where = f"{path}, image {key}"
        if key in sides:
            raise DataError(f"{where} is listed twice; give each image an id of its own")
        height, width = (_value(entry, name, int, where) for name in ("height", "width"))
        if min(height, width) < 1:
            raise DataError(f"{where} is {height} x {width} pixels, expected 1 x 1 or more; correct it")
        sides[key] = (_image_path(folders, _value(entry, "file_name", str, where), where), height, width)
    if not sides:
        raise DataError(f"{path} lists no images; add some")
    boxes, labels, dropped = defaultdict(list), defaultdict(list), 0
    for entry in table["annotations"]:
        image, category = (_value(entry, name, int, f"{path}, annotations") for name in ("image_id", "category_id"))
        where = f"{path}, annotation {entry.get('id')!r:.30}"
        if image not in sides:
            raise DataError(f"{where} belongs to image {image}, which is not listed; add the image or remove it")
        if category not in known:
            raise DataError(f"{where} has category {category}, which is not listed; add it to the categories")
        if entry.get("iscrowd") not in (None, 0) or category not in numbers:
            continue
        corners, fault = _corners(_value(entry, "bbox", list, where), *sides[image][1:])
        if fault and not drop:
            raise DataError(
                f"{where}: its box {entry['bbox']!r:.80} {fault}, or leave such boxes out with ?faulty=drop"
            )
        if fault:
            dropped += 1
        else:
            boxes[image].append(corners)
            labels[image].append(numbers[category])
    images = [
        AnnotatedImage(*side, torch.tensor(boxes[key]).view(-1, 4), torch.tensor(labels[key], dtype=torch.int64))
        for key, side in sides.items()
    ]
    return images, dropped


def _corners(box: Sequence[Any], height: int, width: int) -> tuple[list[float], str]:
    """Corners of a box x, y, w, h, clipped to its image; and the fault of a wrong one, or an empty text."""
    if len(box) != 4 or not all(isinstance(value, int | float) and not isinstance(value, bool) for value in box):
        return [], "is not x, y, width, height; correct it"
    try:
        x, y, w, h = map(float, box)
    except OverflowError:
        return [], "is beyond floating point; correct it"
    if not all(map(math.isfinite, (x, y, w, h))):
        return [], "is not finite; correct it"
    if min(w, h) <= 0:
        return [], "has no area; correct or remove it"
    if min(x, y) < -CLIPPED or x + w > width + CLIPPED or y + h > height + CLIPPED:
        return [], f"lies outside its image of {height} x {width} (height x width); correct it"
    corners = [max(x, 0.0), max(y, 0.0), min(x + w, width), min(y + h, height)]
    visible = torch.tensor(corners)  # in the precision of the task
    if not bool((visible[2:] > visible[:2]).all()):
        return [], "has no area inside its image; correct or remove it"
    return corners, ""


def _image_folders(path: Path, root: Path) -> list[Path]:
    """Folders in which the images of a JSON file may be."""
    split = path.stem.removeprefix(PREFIX)
    return [folder for folder in (root / split, root / "images" / split, root / "images", root) if folder.is_dir()]


def _image_path(folders: Sequence[Path], name: str, where: str) -> str:
    pure = PurePosixPath(name)
    if not name or pure.is_absolute() or ".." in pure.parts or "\0" in name:
        raise DataError(f"{where}: file_name is {name!r:.60}, expected a path inside the folder of images; correct it")
    try:
        path = next((folder / name for folder in folders if (folder / name).is_file()), None)
    except (OSError, ValueError):
        path = None
    if path is None:
        searched = ", ".join(str(folder) for folder in folders)
        raise DataError(f"{where}: there is no file {name!r:.60} in {searched}; add it or remove the image")
    return str(path)


def _check_sizes(splits: Sequence[Sequence[AnnotatedImage]]) -> None:
    """Refuse images whose size is not the stated one, for then their boxes are wrong; evenly spaced ones are read."""
    for split in splits:
        for image in split[:: max(1, len(split) // SIZES_CHECKED)]:
            try:
                height, width = image_size(image.path)
            except DataError:
                continue  # left out by `read_images`
            if (height, width) != (image.height, image.width):
                raise DataError(
                    f"{image.path} has {height} x {width} pixels (height x width), its entry states {image.height} x "
                    f"{image.width}; correct the entry"
                )


def _targets(images: Sequence[AnnotatedImage], height: int, width: int, rows: int) -> Tensor:
    """Targets `[N, rows, 5]` in pixels of the resized images."""
    scaled = [image.boxes * torch.tensor([width / image.width, height / image.height] * 2) for image in images]
    return padded_targets(scaled, [image.labels for image in images], rows)
