"""New inputs for a trained model, in the form that its task was made from: arrays, tables, files or named inputs."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nearkin.core.errors import DataError, MismatchError, OptionError, require
from nearkin.core.opening import local_path, require_bytes
from nearkin.tasks.arrays import input_rows
from nearkin.tasks.datastring import DataString, flag
from nearkin.tasks.frames import frame_cells, is_frame, is_records, record_cells
from nearkin.tasks.named_inputs import fields_of, pack_inputs, stored_fields
from nearkin.tasks.packed_texts import COLUMN, KIND, pack_texts
from nearkin.tasks.packed_texts import TEXT as RAW
from nearkin.tasks.readers.documents import TEXT, document_cells, document_paths
from nearkin.tasks.readers.folder import (
    ImageFiles,
    ImageFormat,
    ImageSource,
    image_paths,
    require_mostly_readable,
)
from nearkin.tasks.readers.npy import opened_archive, read_array
from nearkin.tasks.readers.table import columns
from nearkin.tasks.rows import Pixels, Rows, Values, subset_index
from nearkin.tasks.table_cells import Columns
from nearkin.tasks.table_encoding import TableEncoding
from nearkin.tasks.table_examples import TABLE
from nearkin.tasks.unknown_cells import unknown_cells

TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
INPUT_NAMES = ("x", "x_test", "x_new", "x_train")  # arrays of an npz file that hold inputs, in order of preference
CHECKED_IMAGES = 64  # to recognise other units
SOURCES = ("csv", "folder", "npz")  # data strings whose location can be read without targets
COLUMN_OPTIONS = ("target", "drop", "keep", "weight", "likelihood", "size", "raw")
FARTHEST = 5.0  # standard deviations between image means in the same units; inverted images are at 3


@dataclass(frozen=True, eq=False)
class NewInputs:
    """Inputs that fit a task.

    Attributes:
        rows: the inputs.
        names: name of each row: its number from 0, or its file.
        skipped: one line for each image file that could not be read.
        notes: one line for each column with cells that the model does not know.
    """

    rows: Rows
    names: tuple[str, ...]
    skipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_inputs(x: Any, facts: Mapping[str, Any], name: str) -> NewInputs:
    """Read new inputs and check that they fit the task.

    Args:
        x: an array or tensor `[N, ...]`; for a task from a table a DataFrame, a list of dicts or a csv file; for images
            a folder, an image file, a Pillow image or a list of them, and for text likewise; an npy or npz file of
            inputs; for a task of texts a list of texts, or the path of a csv file, text file or folder; for a task of
            named inputs a dictionary of them.
        facts: stored facts of the task (`Task.facts`).
        name: name of the task, for errors.
    """
    if isinstance(x, NewInputs):
        return x
    if facts.get("preprocessing", {}).get(KIND) == RAW:
        return _texts(x, facts, name)
    if isinstance(x, Mapping) and (fields := stored_fields(facts.get("preprocessing", {}))):
        return _numbered(Values(pack_inputs(fields_of(x, name)[1], fields)))
    paths = _paths(x)
    encoding = _encoding(facts, name)
    if is_frame(x) and encoding is not None:
        inputs = _encoded(frame_cells(x, name), encoding, name)
    elif is_records(x):
        inputs = _encoded(record_cells(x), encoding, name)
    elif paths and paths[0].name.lower().endswith(TABLES):
        require(len(paths) == 1, f"got {len(paths)} csv files, expected one; join them", DataError)
        inputs = _encoded(columns(paths[0]), encoding, name)
    elif paths and paths[0].suffix in (".npy", ".npz"):
        require(len(paths) == 1, f"got {len(paths)} array files, expected one; join them", DataError)
        inputs = _numbered(input_rows(_array(paths[0]), str(paths[0])))
    elif paths and encoding is not None and encoding.names == (TEXT,):
        inputs = _documents(paths, encoding)
    elif paths:
        inputs = _images(paths, facts, name)
    elif pictures := _pillow_images(x):
        _require_image_task(facts, "Pillow images", name)
        inputs = _converted_images(pictures, [str(number) for number in range(len(pictures))], facts)
    else:
        inputs = _numbered(input_rows(x, name))
    _require_fit(inputs.rows, facts, name)
    return inputs


def _texts(x: Any, facts: Mapping[str, Any], name: str) -> NewInputs:
    """New texts: a list of texts; or the path, or a list of `Path`, of a csv file, text files or folders of them."""
    listed: Any = [Path(_location(x)) if isinstance(x, str) else x] if isinstance(x, str | os.PathLike) else x
    column = str(facts["preprocessing"].get(COLUMN, TEXT))
    if is_frame(listed) or is_records(listed):
        table: Columns = frame_cells(listed, name) if is_frame(listed) else record_cells(listed)
        return _numbered(Values(pack_texts(_cells(table, column, name), name)))
    if isinstance(listed, list | tuple) and listed and all(isinstance(item, os.PathLike) for item in listed):
        paths = [local_path(str(path)) for path in listed]
        if paths[0].name.lower().endswith(TABLES):
            require(len(paths) == 1, f"got {len(paths)} csv files, expected one; join them", DataError)
            return _numbered(Values(pack_texts(_cells(columns(paths[0]), column, name), name)))
        files = _text_files(paths)
        return NewInputs(Values(pack_texts(document_cells(files)[TEXT], name)), tuple(map(str, files)))
    texts = list(listed) if isinstance(listed, Sequence | np.ndarray) else listed
    require(
        isinstance(texts, list) and all(isinstance(text, str) for text in texts),
        f"'{name}' expects texts, got {type(x).__name__}; give a list of texts, or a csv file or text files",
        MismatchError,
    )
    return _numbered(Values(pack_texts(texts, name)))


def _cells(table: Columns, column: str, name: str) -> list[str]:
    """The texts of a column; of the only column if it has another name."""
    known = column if column in table or len(table) > 1 else next(iter(table), column)
    listed = ", ".join(table)
    require(known in table, f"the table has no column {column!r} of texts for '{name}'; it has {listed}", DataError)
    return [str(cell) for cell in table[known]]


def _text_files(paths: Sequence[Path]) -> list[Path]:
    files = [file for path in paths for file in (document_paths(path) if path.is_dir() else [path])]
    require(bool(files), f"there is no text file in {paths[0]}; name a folder of .txt files or the files", DataError)
    return files


def _paths(x: Any) -> list[Path]:
    """Files or folders, if x names some."""
    listed = [x] if isinstance(x, str | os.PathLike) else x
    if isinstance(listed, list | tuple) and listed and all(isinstance(item, str | os.PathLike) for item in listed):
        return [local_path(_location(os.fspath(item))) for item in listed]
    return []


def _location(text: str) -> str:
    """The file or folder of a data string such as `csv:new.csv`, whose target is not needed; other text is unchanged.

    >>> _location("csv:new.csv?target=price"), _location("photos/1.png")
    ('new.csv', 'photos/1.png')
    """
    if text.partition(":")[0] not in SOURCES or Path(text).exists():
        return text
    data = DataString.parse(text)
    changing = [name for name, _ in data.options if name not in COLUMN_OPTIONS]
    require(
        not changing,
        f"got {text} with the modifier {', '.join(changing)}, predict reads all rows; give the file without it",
        OptionError,
    )
    return data.location


def _numbered(rows: Rows) -> NewInputs:
    return NewInputs(rows, tuple(map(str, range(len(rows)))))


def _encoding(facts: Mapping[str, Any], name: str) -> TableEncoding | None:
    stored = facts.get("preprocessing", {}).get(TABLE)
    return None if stored is None else TableEncoding.from_dict(stored, f"the preprocessing of '{name}'")


def _encoded(table: Columns, encoding: TableEncoding | None, name: str) -> NewInputs:
    if encoding is None:
        raise MismatchError(
            f"got a table with named columns, '{name}' stores no encoding of columns; give arrays, or solve it again "
            f"from a csv file"
        )
    rows = Values(torch.from_numpy(encoding.encode(table)))
    return replace(_numbered(rows), notes=unknown_cells(encoding, table))


def _documents(paths: Sequence[Path], encoding: TableEncoding) -> NewInputs:
    files = _text_files(paths)
    cells = document_cells(files)
    encoded = Values(torch.from_numpy(encoding.encode(cells)))
    return NewInputs(encoded, tuple(map(str, files)), notes=unknown_cells(encoding, cells))


def _array(path: Path) -> np.ndarray[Any, Any]:
    if path.suffix == ".npy":
        return read_array(path)
    with opened_archive(path) as archive:
        members = list(archive.members)
        key = next((key for key in INPUT_NAMES if key in members), members[0] if len(members) == 1 else None)
        if key is None:
            listed = ", ".join(sorted(members)[:10]) or "none"
            raise DataError(f"{path} has the arrays {listed}, expected inputs under the name x; save it again")
        return archive.arrays([key])[key]


def _images(paths: Sequence[Path], facts: Mapping[str, Any], name: str) -> NewInputs:
    """Image files, resized to the images of the task; unreadable files are skipped up to a tenth of all."""
    _require_image_task(facts, str(paths[0]), name)
    files = [file for path in paths for file in (image_paths(path) if path.is_dir() else [str(path)])]
    require(bool(files), f"there is no image in {paths[0]}; name a folder of images or image files", DataError)
    return _converted_images(files, files, facts)


def _converted_images(images: Sequence[ImageSource], names: Sequence[str], facts: Mapping[str, Any]) -> NewInputs:
    """Images with the size and the channels of the task's images; those that cannot be read are skipped."""
    shape = tuple(facts["input_shape"])
    require_bytes(len(images) * int(np.prod(shape)), f"{len(images)} images")
    lazy = ImageFiles(images, ImageFormat((shape[1], shape[2]), "L" if shape[0] == 1 else "RGB"))
    pixels, kept, reasons = lazy.readable(torch.arange(len(images)))
    skipped = tuple(reasons.values())
    require_mostly_readable(skipped, len(images))
    rows = Pixels(255 - pixels if is_inverted(facts) else pixels)
    return NewInputs(rows, tuple(names[number] for number in kept.tolist()), skipped)


def _pillow_images(x: Any) -> list[Any]:
    """Pillow images, if x is one or a list of them; Pillow is not imported for this."""
    pillow, listed = sys.modules.get("PIL.Image"), list(x) if isinstance(x, list | tuple) else [x]
    return listed if pillow and listed and all(isinstance(item, pillow.Image) for item in listed) else []


def _require_image_task(facts: Mapping[str, Any], received: str, name: str) -> None:
    shape = tuple(facts["input_shape"])
    require(
        len(shape) == 3 and shape[0] in (1, 3),
        f"got {received}, '{name}' expects inputs of shape {shape}; give a csv file or arrays of that shape",
        MismatchError,
    )


def is_inverted(facts: Mapping[str, Any]) -> bool:
    """Whether the task's data string inverts its images."""
    try:
        options = dict(DataString.parse(facts["source"]).options) if facts["source"] else {}
        return "invert" in options and flag(options["invert"], "invert")
    except OptionError:
        return False


def _require_fit(rows: Rows, facts: Mapping[str, Any], name: str) -> None:
    """Refuse inputs of another shape, and images whose mean is far from the training data: other units."""
    shape, learned = tuple(facts["input_shape"]), facts["scaling"]
    require(
        rows.shape == shape,
        f"got inputs of shape {rows.shape}, '{name}' expects {shape}; reshape or resize them",
        MismatchError,
    )
    if len(shape) != 3 or not learned or len(rows) == 0:
        return
    image_mean = rows.take(subset_index(len(rows), CHECKED_IMAGES)).float().mean((0, 2, 3))
    mean, std = torch.tensor(learned["mean"]), torch.tensor(learned["std"])
    require(
        bool(((image_mean - mean).abs() <= FARTHEST * std).all()),
        f"got images with mean {float(image_mean.mean()):.3g}, '{name}' was trained on images with "
        f"{float(mean.mean()):.3g} ± {float(std.mean()):.2g}; use the same units",
        MismatchError,
    )
