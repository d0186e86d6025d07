"""Hugging Face datasets: saved on disk, in parquet, csv or json files, or by name from the hub.

The files are Arrow tables that the library maps; what is large is decoded as it is taken.
"""

import logging
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nearkin.core.errors import DataError, OptionError, optional, require
from nearkin.core.opening import CHUNK, local_path, open_regular, require_bytes, unpacked
from nearkin.tasks.arrays import input_rows
from nearkin.tasks.readers import folder, table, text
from nearkin.tasks.rows import Rows, gathered
from nearkin.tasks.task import Task

OPTIONS: tuple[str, ...] = ("config", "input", "target", "train", "test", "likelihood", *folder.OPTIONS, *text.OPTIONS)

SAVED = ("dataset_dict.json", "state.json")  # what save_to_disk leaves in a folder
BUILDERS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".arrow": "arrow"}
TEST_SPLITS = ("test", "validation", "valid", "val")
COLUMN_KINDS = {"Image": "image", "ClassLabel": "class", "Array2D": "array", "Array3D": "array"}
INPUT_KINDS = ("image", "array", "number", "text")
TARGET_NAMES = ("label", "labels", "target", "targets", "class", "y")


def read(location: str, options: Mapping[str, str]) -> Task:
    """A task from a dataset of images, arrays, columns of numbers, or text.

    Without options, the inputs are the image column, else the array column, else all columns of numbers; the target is
    the column of class labels, else the one named label or target. A dataset of text alone is a language model's.

    Args:
        location: a folder or file, or the name of a dataset on the hub.
        options: `config`, `input` and `target` columns, `train` and `test` splits, `likelihood`; `size` for images;
            `length`, `level` and `vocabulary` for text.
    """
    likelihood = options.get("likelihood")
    if likelihood is not None and likelihood not in table.LIKELIHOODS:
        raise OptionError(f"likelihood must be one of {', '.join(table.LIKELIHOODS)}, got {likelihood!r}")
    name, parts = Path(location).name.split(".")[0], _parts(location, options)
    choice = _choice(location, {column: _kind(feature) for column, feature in parts[0].features.items()}, options)
    for part in parts:
        lacking = [column for column in (*choice.inputs, *choice.targets) if column not in part.features]
        require(not lacking, f"the test split of {location} lacks {', '.join(lacking)}; choose ?test=SPLIT", DataError)
        require(len(part) > 0, f"a split of {location} has no rows; choose others with ?train= and ?test=", DataError)
    if choice.kind == "text":
        texts = [_prose(part, choice.inputs[0]) for part in parts]
        return text.language_task(name, texts[0], (*texts[1:], None)[0], options)
    return _task(name, parts, _inputs(name, parts, choice, options), choice.targets, likelihood)


class Choice(NamedTuple):
    """The columns of a task, and of which kind its inputs are: image, array, number or text."""

    kind: str
    inputs: tuple[str, ...]
    targets: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Cells:
    """Columns of numbers or one of arrays, read from the mapped table as they are taken."""

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


class ImageCells:
    """A column of encoded images, as files by number."""

    def __init__(self, data: Any, column: str) -> None:
        image = optional("datasets", "hf", "reading Hugging Face datasets").Image(decode=False)
        self.data = data.with_format(None).select_columns([column]).cast_column(column, image)
        self.column = column

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, number: int) -> folder.ImageSource:
        cell, name = self.data[number][self.column], f"row {number} of column {self.column}"
        require(cell is not None, f"{name} has no image; remove that row", DataError)
        return str(cell["path"]) if cell["bytes"] is None else folder.MemoryFile(cell["bytes"], name)


def _parts(location: str, options: Mapping[str, str]) -> list[Any]:
    """The split to learn from and, where there is one, the split to judge by."""
    found = _loaded(location, options.get("config"))
    splits = dict(found) if isinstance(found, dict) else {"train": found}
    shown = ", ".join(splits)
    for option in ("train", "test"):
        name = options.get(option)
        require(not name or name in splits, f"{location} has no split {name!r} for {option}; its splits are {shown}")
    train = options.get("train") or ("train" if "train" in splits else next(iter(splits)))
    usual = [name for name in TEST_SPLITS if name in splits and name != train]
    return [splits[name] for name in (train, *([options["test"]] if options.get("test") else usual[:1]))]


def _loaded(location: str, config: str | None) -> Any:
    """What the library makes of a folder, a file or a name."""
    datasets = optional("datasets", "hf", "reading Hugging Face datasets")
    path = local_path(location)
    require(
        path.exists() or not location.startswith((".", "/", "~")),
        f"there is no folder or file {location}; hf wants one, or the name of a dataset on the hub",
        DataError,
    )
    datasets.config.HF_DATASETS_TRUST_REMOTE_CODE = False  # before its version 4 the library would run code of the hub
    suffix = next((ending for ending in path.suffixes if ending in BUILDERS), "")
    _require_small(path)
    try:
        with _quiet(datasets):
            if path.is_dir() and any((path / name).is_file() for name in SAVED):
                return datasets.load_from_disk(str(path))
            if path.is_file() and suffix:
                return datasets.load_dataset(BUILDERS[suffix], data_files=str(path))
            return datasets.load_dataset(str(path) if path.exists() else location, config)
    except Exception as fault:  # the library, its hub client and Arrow raise errors of many families
        raise _trouble(location, fault) from fault


def _require_small(path: Path) -> None:
    """Refuse packed local files that are too large, before the library unpacks them into a folder of its own."""
    files = [path] if path.is_file() else sorted(path.rglob("*")) if path.is_dir() else []
    total = 0
    for file in files:
        unknown = file.suffix in UNMEASURED
        require(not unknown, f"{file}: how much {file.suffix} files hold is not known; unpack it first", DataError)
        if file.suffix in UNPACKED_BYTES:
            total += UNPACKED_BYTES[file.suffix](file)
            require_bytes(total, f"{path}, unpacked,")


def _gzip_bytes(file: Path) -> int:
    """Bytes of a gzip file once it is unpacked, counted as a stream up to the limit."""
    total = 0
    with unpacked(file) as stream:
        while chunk := stream.read(CHUNK):
            total += len(chunk)
            require_bytes(total, f"{file}, unpacked,")
    return total


def _zip_bytes(file: Path) -> int:
    """Bytes of the members of a zip file, as its directory says; no reader unpacks more than that."""
    try:
        with open_regular(file) as opened, zipfile.ZipFile(opened) as archive:
            return sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError) as fault:
        raise _trouble(str(file), fault) from fault


def _parquet_bytes(file: Path) -> int:
    """Bytes of a parquet file once it is unpacked, as its footer says; with a false footer it cannot be read."""
    parquet = optional("pyarrow.parquet", "hf", "reading parquet files")
    with open_regular(file) as opened:
        try:
            facts = parquet.ParquetFile(opened).metadata
            return sum(facts.row_group(number).total_byte_size for number in range(facts.num_row_groups))
        except Exception as fault:  # Arrow raises errors of many families
            raise _trouble(str(file), fault) from fault


UNPACKED_BYTES = {".gz": _gzip_bytes, ".zip": _zip_bytes, ".parquet": _parquet_bytes}
UNMEASURED = (".xz", ".bz2", ".zst", ".lz4", ".7z", ".rar")


@contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """Without the library's progress bars, and without its client's tales of retries."""
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


def _trouble(location: str, fault: Exception) -> DataError:
    """One line for whatever went wrong, with the cure."""
    reason = " ".join(str(fault).split())[:300] or type(fault).__name__
    if isinstance(fault, ConnectionError) or "offline" in reason.lower():
        cure = "go online without HF_HUB_OFFLINE, or give a folder that save_to_disk made: hf:DIR"
        return DataError(f"cannot reach the hub for {location} ({reason}); {cure}")
    if "config name is missing" in reason.lower():
        return DataError(f"{location} has several configurations ({reason}); choose one with ?config=NAME")
    return DataError(f"cannot load {location} ({reason}); check the name, or mend the files")


def _kind(feature: Any) -> str:
    """What a column holds: image, array, class, number, text, or other."""
    made = type(feature).__name__
    if made in COLUMN_KINDS:
        return COLUMN_KINDS[made]
    inner = feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)
    if inner is not None:
        return "array" if _kind(inner) in ("number", "array") else "other"
    dtype = str(getattr(feature, "dtype", ""))
    if dtype.startswith(("int", "uint", "float", "bool")):
        return "number"
    return "text" if dtype in ("string", "large_string") else "other"


def _choice(location: str, kinds: Mapping[str, str], options: Mapping[str, str]) -> Choice:
    """Input and target columns, as asked for or by kind."""
    shown = ", ".join(f"{column} ({kind})" for column, kind in kinds.items())
    asked = {option: tuple(filter(None, options.get(option, "").split(","))) for option in ("input", "target")}
    for option, names in asked.items():
        for name in names:
            require(name in kinds, f"{location} has no column {name!r} for {option}; its columns are {shown}")
    targets = asked["target"] or _usual_target(kinds)
    inputs = asked["input"] or _usual_inputs(kinds, targets)
    found = {kinds[name] for name in inputs}
    kind = min(found, default="")
    if kind not in INPUT_KINDS or len(found) > 1 or (kind != "number" and len(inputs) > 1):
        raise OptionError(f"which columns of {location} are inputs? choose with ?input=COLUMN: {shown}")
    if kind == "text":
        require(not asked["target"], f"{location}: text is not classified here; leave target out to model the language")
        return Choice(kind, inputs, ())
    if not targets or any(kinds[name] not in ("class", "number", "text") for name in targets):
        raise OptionError(f"which column of {location} is the target? choose with ?target=COLUMN: {shown}")
    return Choice(kind, inputs, targets)


def _usual_target(kinds: Mapping[str, str]) -> tuple[str, ...]:
    """The first column of class labels, else the first with a customary name."""
    labels = [column for column, kind in kinds.items() if kind == "class"]
    return tuple([*labels, *(name for name in TARGET_NAMES if name in kinds)][:1])


def _usual_inputs(kinds: Mapping[str, str], targets: tuple[str, ...]) -> tuple[str, ...]:
    """All columns, but the targets, of the first kind that there is."""
    found = [tuple(name for name in kinds if kinds[name] == kind and name not in targets) for kind in INPUT_KINDS]
    return next(filter(None, found), ())


def _prose(data: Any, column: str) -> str:
    """A column of text, one line a row."""
    require_bytes(data.select_columns([column]).data.nbytes, f"the text of column {column}")
    return "\n".join((line or "").rstrip("\n") for line in data.with_format(None)[:][column])


def _inputs(name: str, parts: Sequence[Any], choice: Choice, options: Mapping[str, str]) -> list[Rows]:
    """Rows of the inputs of every part; what is small is gathered at once."""
    if choice.kind == "image":
        return folder.image_rows([ImageCells(part, choice.inputs[0]) for part in parts], options)
    own = {"dtype": np.uint8} if "uint8" in repr(parts[0].features[choice.inputs[0]]) and choice.kind == "array" else {}
    cells = [Cells(part.select_columns(list(choice.inputs)).with_format("numpy", **own), name) for part in parts]
    if sum(4 * len(rows) * int(np.prod(rows.shape)) for rows in cells) > folder.KEPT_BYTES:
        return list(cells)
    return [input_rows(_array(rows.data, slice(None)), name) for rows in cells]


def _task(name: str, parts: Sequence[Any], rows: Sequence[Rows], targets: tuple[str, ...], asked: str | None) -> Task:
    """A task of these inputs, the targets read as arrays are."""
    feature = parts[0].features[targets[0]]
    classes = list(feature.names) if _kind(feature) == "class" and len(targets) == 1 else None
    both: list[Any] = []
    for part, inputs in zip(parts, rows, strict=True):
        columns = part.select_columns(list(targets)).with_format("numpy")
        require_bytes(columns.data.nbytes, f"the targets of {name}")
        y = _array(columns, slice(None))
        if classes is not None and y.min() < 0:
            raise DataError(f"{name}: a split has hidden labels (-1); choose another, as in ?test=validation")
        both += [inputs, y]
    likelihood = asked or (None if len(targets) == 1 else "gaussian")
    names = classes if likelihood in (None, "categorical") else targets
    return Task.from_arrays(name, *both, likelihood=likelihood, classes=names)


def _array(data: Any, index: list[int] | slice) -> np.ndarray[Any, Any]:
    """The cells at `index`: arrays as they are, numbers and text beside each other `[B, K]`."""
    cells: dict[str, np.ndarray[Any, Any]] = data[index]
    for column, values in cells.items():
        if values.dtype == object:
            raise DataError(f"column {column} has empty cells or arrays of several shapes; bring all to one shape")
    first, *others = cells.values()
    return first if first.ndim > 1 else np.stack([first, *others], axis=1)
