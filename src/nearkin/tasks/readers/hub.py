"""Hugging Face datasets: saved on disk, in parquet, csv or json files, or by name from the hub.

The library maps the files as Arrow tables; large columns are decoded when they are read.
"""

import logging
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nearkin.core.errors import DataError, OptionError, optional, require
from nearkin.core.opening import CHUNK, local_path, open_regular, require_bytes, unpacked
from nearkin.tasks.arrays import input_rows
from nearkin.tasks.datastring import one_of
from nearkin.tasks.packed_texts import COLUMN
from nearkin.tasks.readers import folder, language, table
from nearkin.tasks.rows import Rows, gathered
from nearkin.tasks.task import Task

OWN_OPTIONS = ("config", "raw", "input", "target", "train", "test", "likelihood")
OPTIONS: tuple[str, ...] = (*OWN_OPTIONS, "size", *language.OPTIONS)

SAVED = ("dataset_dict.json", "state.json")  # files that save_to_disk writes
BUILDERS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".arrow": "arrow"}
TEST_SPLITS = ("test", "validation", "valid", "val")
COLUMN_KINDS = {"Image": "image", "ClassLabel": "class", "Array2D": "array", "Array3D": "array"}
INPUT_KINDS = ("image", "array", "number", "text")
TARGET_NAMES = ("label", "labels", "target", "targets", "class", "y")


def read(location: str, options: Mapping[str, str]) -> Task:
    """A task from a dataset of images, arrays, columns of numbers, or text.

    By default the inputs are the image column, else the array column, else all columns of numbers; the target is the
    column of class labels, else the one named label or target. A dataset of text only becomes a language-model task.

    Args:
        location: a folder or file, or the name of a dataset on the hub.
        options: `config`, `input` and `target` columns, `train` and `test` splits, `likelihood`; `size` for images;
            `length`, `level` and `vocabulary` for text; `raw=COLUMN` for texts as they are, with a target.
    """
    likelihood = options.get("likelihood")
    if likelihood is not None:
        one_of(likelihood, "likelihood", table.LIKELIHOODS)
    name, splits = Path(location).name.split(".")[0], _splits(location, options)
    if "raw" in options:
        return _raw_texts(name, location, splits, options, likelihood)
    columns = _columns(location, {column: _kind(feature) for column, feature in splits[0].features.items()}, options)
    for split in splits:
        missing = [column for column in (*columns.inputs, *columns.targets) if column not in split.features]
        if missing:
            raise DataError(f"the test split of {location} has no {', '.join(missing)}; choose ?test=SPLIT")
        if len(split) == 0:
            raise DataError(f"a split of {location} has no rows; choose others with ?train= and ?test=")
    if columns.kind == "text":
        texts = [_text(split, columns.inputs[0]) for split in splits]
        return language.language_task(name, texts[0], (*texts[1:], None)[0], options)
    rows, notes = _inputs(name, splits, columns, options)
    return replace(_task(name, splits, rows, columns.targets, likelihood), notes=notes)


def _raw_texts(name: str, location: str, splits: Sequence[Any], options: Mapping[str, str], form: str | None) -> Task:
    """A task of the texts of one column, and one target."""
    kinds = {column: _kind(feature) for column, feature in splits[0].features.items()}
    raw, shown = options["raw"], ", ".join(f"{column} ({kind})" for column, kind in kinds.items())
    require(kinds.get(raw) == "text", f"raw must be a column of texts of {location}, got {raw!r}; it has {shown}")
    usual = [*(key for key in kinds if kinds[key] == "class"), *(key for key in TARGET_NAMES if key in kinds)]
    target = options.get("target") or next(iter(usual), "")
    require(target in kinds and target != raw, f"which column of {location} is the target? its columns are {shown}")
    both: list[Any] = []
    for split in splits:
        missing = [column for column in (raw, target) if column not in split.features]
        require(not missing, f"the test split of {location} has no {', '.join(missing)}; choose ?test=SPLIT", DataError)
        require_bytes(split.select_columns([raw, target]).data.nbytes, f"the texts of {name}")
        cells = split.with_format(None)[:]
        require(None not in cells[target], f"{name}: column {target} has empty cells; fill them in", DataError)
        hidden = kinds[target] == "class" and min(cells[target], default=0) < 0
        require(
            not hidden, f"{name}: a split has hidden labels (-1); choose another, as in ?test=validation", DataError
        )
        both += [["" if text is None else text for text in cells[raw]], np.array(cells[target])]
    classes = list(splits[0].features[target].names) if kinds[target] == "class" and form != "gaussian" else None
    task = Task.from_texts(name, *both, likelihood=form, classes=classes)
    return replace(task, preprocessing={**task.preprocessing, COLUMN: raw})


class TaskColumns(NamedTuple):
    """Input and target columns of a task, and the kind of its inputs: image, array, number or text."""

    kind: str
    inputs: tuple[str, ...]
    targets: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class TableRows:
    """Columns of numbers, or one column of arrays, read from the mapped table when they are needed."""

    data: Any
    name: str
    shape: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.take(torch.zeros(1, dtype=torch.int64)).shape[1:]))

    def __len__(self) -> int:
        return len(self.data)

    def take(self, index: Tensor) -> Tensor:
        """Rows at `index`, as `input_rows` reads arrays."""
        return gathered(input_rows(_array(self.data, index.tolist()), self.name))


class ImageColumn:
    """A column of encoded images, as image files by number."""

    def __init__(self, data: Any, column: str) -> None:
        image = optional("datasets", "hf", "reading Hugging Face datasets").Image(decode=False)
        self.data = data.with_format(None).select_columns([column]).cast_column(column, image)
        self.column = column

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, number: int) -> folder.ImageSource:
        cell, name = self.data[number][self.column], f"row {number} of column {self.column}"
        if cell is None:
            raise DataError(f"{name} has no image; remove that row")
        return str(cell["path"]) if cell["bytes"] is None else folder.MemoryFile(cell["bytes"], name)


def _splits(location: str, options: Mapping[str, str]) -> list[Any]:
    dataset = _loaded(location, options.get("config"))
    splits = dict(dataset) if isinstance(dataset, dict) else {"train": dataset}
    shown = ", ".join(splits)
    for option in ("train", "test"):
        name = options.get(option)
        require(not name or name in splits, f"{location} has no split {name!r} for {option}; its splits are {shown}")
    train = options.get("train") or ("train" if "train" in splits else next(iter(splits)))
    usual = [name for name in TEST_SPLITS if name in splits and name != train]
    return [splits[name] for name in (train, *([options["test"]] if options.get("test") else usual[:1]))]


def _loaded(location: str, config: str | None) -> Any:
    datasets = optional("datasets", "hf", "reading Hugging Face datasets")
    path = local_path(location)
    if not path.exists() and location.startswith((".", "/", "~")):
        raise DataError(f"there is no folder or file {location}; name one, or a dataset on the hub")
    datasets.config.HF_DATASETS_TRUST_REMOTE_CODE = False  # before version 4 the library ran code of the hub
    suffix = next((ending for ending in path.suffixes if ending in BUILDERS), "")
    _require_small(path)
    try:
        with _quiet(datasets):
            if path.is_dir() and any((path / name).is_file() for name in SAVED):
                return datasets.load_from_disk(str(path))
            if path.is_file() and suffix:
                return datasets.load_dataset(BUILDERS[suffix], data_files=str(path))
            return datasets.load_dataset(str(path) if path.exists() else location, config)
    except Exception as error:  # the library, its hub client and Arrow raise many kinds of errors
        raise _load_error(location, error) from error


def _require_small(path: Path) -> None:
    """Refuse compressed local files that are too large, before the library unpacks them into its own folder."""
    files = [path] if path.is_file() else sorted(path.rglob("*")) if path.is_dir() else []
    total = 0
    for file in files:
        if file.suffix in UNMEASURED:
            raise DataError(f"{file}: the unpacked size of {file.suffix} files is not known; unpack it first")
        if file.suffix in UNPACKED_BYTES:
            total += UNPACKED_BYTES[file.suffix](file)
            require_bytes(total, f"{path}, unpacked,")


def _gzip_bytes(file: Path) -> int:
    """Unpacked bytes of a gzip file, counted as a stream up to the limit."""
    total = 0
    with unpacked(file) as stream:
        while chunk := stream.read(CHUNK):
            total += len(chunk)
            require_bytes(total, f"{file}, unpacked,")
    return total


def _zip_bytes(file: Path) -> int:
    """Unpacked bytes of a zip file according to its directory; no reader unpacks more."""
    try:
        with open_regular(file) as opened, zipfile.ZipFile(opened) as archive:
            return sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise _load_error(str(file), error) from error


def _parquet_bytes(file: Path) -> int:
    """Unpacked bytes of a parquet file according to its footer; with a false footer it cannot be read."""
    parquet = optional("pyarrow.parquet", "hf", "reading parquet files")
    with open_regular(file) as opened:
        try:
            metadata = parquet.ParquetFile(opened).metadata
            return sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
        except Exception as error:  # Arrow raises many kinds of errors
            raise _load_error(str(file), error) from error


UNPACKED_BYTES = {".gz": _gzip_bytes, ".zip": _zip_bytes, ".parquet": _parquet_bytes}
UNMEASURED = (".xz", ".bz2", ".zst", ".lz4", ".7z", ".rar")


@contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """Turn off the library's progress bars and its client's messages about retries."""
    client = logging.getLogger("huggingface_hub")
    level, shown = client.level, not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    client.setLevel(logging.ERROR)
    try:
        yield
    finally:
        client.setLevel(level)
        if shown:
            datasets.enable_progress_bars()


def _load_error(location: str, error: Exception) -> DataError:
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    if isinstance(error, ConnectionError) or "offline" in reason.lower():
        advice = "go online without HF_HUB_OFFLINE, or name a folder written by save_to_disk: hf:DIR"
        return DataError(f"cannot reach the hub for {location} ({reason}); {advice}")
    if "config name is missing" in reason.lower():
        return DataError(f"{location} has several configurations ({reason}); choose one with ?config=NAME")
    return DataError(f"cannot load {location} ({reason}); check the name, or fix the files")


def _kind(feature: Any) -> str:
    """Content of a column: image, array, class, number, text, or other."""
    name = type(feature).__name__
    if name in COLUMN_KINDS:
        return COLUMN_KINDS[name]
    inner = feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)
    if inner is not None:
        return "array" if _kind(inner) in ("number", "array") else "other"
    dtype = str(getattr(feature, "dtype", ""))
    if dtype.startswith(("int", "uint", "float", "bool")):
        return "number"
    return "text" if dtype in ("string", "large_string") else "other"


def _columns(location: str, kinds: Mapping[str, str], options: Mapping[str, str]) -> TaskColumns:
    """Input and target columns: those of the options, else by kind."""
    shown = ", ".join(f"{column} ({kind})" for column, kind in kinds.items())
    requested = {option: tuple(filter(None, options.get(option, "").split(","))) for option in ("input", "target")}
    for option, names in requested.items():
        for name in names:
            require(name in kinds, f"{location} has no column {name!r} for {option}; its columns are {shown}")
    usual = [*(name for name in kinds if kinds[name] == "class"), *(name for name in TARGET_NAMES if name in kinds)]
    targets = requested["target"] or tuple(usual[:1])
    of_kind = [tuple(name for name in kinds if kinds[name] == kind and name not in targets) for kind in INPUT_KINDS]
    inputs = requested["input"] or next(filter(None, of_kind), ())
    input_kinds = {kinds[name] for name in inputs}
    kind = min(input_kinds, default="")
    if kind not in INPUT_KINDS or len(input_kinds) > 1 or (kind != "number" and len(inputs) > 1):
        raise OptionError(f"which columns of {location} are inputs? choose with ?input=COLUMN: {shown}")
    if kind == "text":
        require(not requested["target"], f"{location}: text cannot be classified; leave target out to model it")
        return TaskColumns(kind, inputs, ())
    if not targets or any(kinds[name] not in ("class", "number", "text") for name in targets):
        raise OptionError(f"which column of {location} is the target? choose with ?target=COLUMN: {shown}")
    return TaskColumns(kind, inputs, targets)


def _text(data: Any, column: str) -> str:
    require_bytes(data.select_columns([column]).data.nbytes, f"the text of column {column}")
    return "\n".join((line or "").rstrip("\n") for line in data.with_format(None)[:][column])


def _inputs(
    name: str, splits: Sequence[Any], columns: TaskColumns, options: Mapping[str, str]
) -> tuple[list[Rows], tuple[str, ...]]:
    """Rows of the inputs of every split, in memory if they are small, and what was done to them."""
    inputs = list(columns.inputs)
    if columns.kind == "image":
        images = folder.read_images([ImageColumn(split, inputs[0]) for split in splits], options, skip=0)
        return images.rows, images.notes
    is_bytes = columns.kind == "array" and "uint8" in repr(splits[0].features[inputs[0]])
    dtype = {"dtype": np.uint8} if is_bytes else {}
    lazy = [TableRows(split.select_columns(inputs).with_format("numpy", **dtype), name) for split in splits]
    if sum(4 * len(rows) * int(np.prod(rows.shape)) for rows in lazy) > folder.KEPT_BYTES:
        return list(lazy), ()
    return [input_rows(_array(rows.data, slice(None)), name) for rows in lazy], ()


def _task(name: str, splits: Sequence[Any], rows: Sequence[Rows], targets: tuple[str, ...], form: str | None) -> Task:
    feature = splits[0].features[targets[0]]
    classes = list(feature.names) if _kind(feature) == "class" and len(targets) == 1 else None
    both: list[Any] = []
    for split, inputs in zip(splits, rows, strict=True):
        columns = split.select_columns(list(targets)).with_format("numpy")
        require_bytes(columns.data.nbytes, f"the targets of {name}")
        y = _array(columns, slice(None))
        if classes is not None and y.min() < 0:
            raise DataError(f"{name}: a split has hidden labels (-1); choose another, as in ?test=validation")
        both += [inputs, y]
    likelihood = form or (None if len(targets) == 1 else "gaussian")
    names = classes if likelihood in (None, "categorical") else targets
    return Task.from_arrays(name, *both, likelihood=likelihood, classes=names)


def _array(data: Any, index: list[int] | slice) -> np.ndarray[Any, Any]:
    """The cells at `index`: a column of arrays, or columns of numbers or text side by side `[B, K]`."""
    cells: dict[str, np.ndarray[Any, Any]] = data[index]
    for column, values in cells.items():
        if values.dtype == object:
            raise DataError(f"column {column} has empty cells or arrays of different shapes; give all the same shape")
    first, *others = cells.values()
    return first if first.ndim > 1 else np.stack([first, *others], axis=1)
