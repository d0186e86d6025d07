"""Files of a pushed model: their names and checksums; how a folder is written, and how it is verified and read.

`nearkin.json` is written last and removed first, so that a folder without it holds no complete model. It lists the
other files with their sizes and SHA-256. Only files of these fixed names are written, removed or read. Files of a
folder are replaced only if nearkin wrote them: it has a `nearkin.json`, or the mark of an interrupted push.
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from nearkin.core.errors import DataError, ZooError, require
from nearkin.core.files import FileWriteError, write_durably
from nearkin.core.opening import local_path, max_bytes, read_file
from nearkin.core.plain import CHECKSUM, json_object, sealed, typed, unsealed
from nearkin.nets.hub_folder import CARD, CONFIG, IMAGE_CONFIG, TOKENIZER_FILE
from nearkin.nets.solved import FitFacts
from nearkin.nets.weight_files import WHOLE_FILE
from nearkin.tasks.network_inputs import NETWORK_INPUTS

MANIFEST = "nearkin.json"
UNFINISHED = "nearkin.unfinished"
"""Empty file that a folder has while a model is written into it."""
EXTRA = "nearkin_extra.safetensors"
TOKENIZER_CONFIG = "tokenizer_config.json"
FILES = (WHOLE_FILE, EXTRA, TOKENIZER_FILE, TOKENIZER_CONFIG, IMAGE_CONFIG, CARD, CONFIG)
"""All files of a pushed model but the manifest, in the order in which they are written."""

TASK_KEYS = (
    "likelihood", "classes", "input_shape", "scaling", "target_scaling", "preprocessing", NETWORK_INPUTS,
)  # fmt: skip
"""Facts of a task that a network needs, and those of its own inputs."""

FORMAT, VERSION = "nearkin-pushed-model", 1
LARGEST_MANIFEST = 2**26  # bytes


class FileFacts(TypedDict):
    """Size and checksum of a file."""

    bytes: int
    sha256: str


class ModelFigures(TypedDict):
    """Figures of a model: its number of weights, and trace and number of samples of its Fisher information."""

    parameters: float
    fisher_trace: NotRequired[float]
    fisher_samples: NotRequired[float]


class KinFacts(TypedDict):
    """A task that is near to that of the model, by one measure."""

    name: str
    measure: str
    distance: float


class PushedFacts(TypedDict):
    """The content of `nearkin.json`.

    `task` has the facts that a network needs (`nets.solved.TaskFacts`) and the inputs of the network, `fit` the test
    scores, `data` the data string of the training data without folders, and `kin` stored distances.
    """

    name: str
    network: str
    label: str
    licence: str
    source: str
    channel_order: str
    data: str
    task: dict[str, Any]
    seed: int
    trial: int
    fit: FitFacts
    figures: ModelFigures
    kin: list[KinFacts]
    versions: dict[str, str]


class _Files(TypedDict):
    """Outer fields of `nearkin.json`; the others are read after the version was checked."""

    format: str
    version: int
    files: dict[str, FileFacts]


def require_place(folder: Path, overwrite: bool) -> None:
    """Refuse a place to which no model can be written: a file, or a folder with files.

    Args:
        folder: the place.
        overwrite: the files of a model that `push` wrote may be replaced, files of others may not.
    """
    require(
        not folder.exists() or folder.is_dir(),
        f"{folder} is a file, expected a folder for the model; choose another one",
        ZooError,
    )
    if not folder.exists() or not any(folder.iterdir()):
        return
    require(
        overwrite,
        f"the folder {folder} is not empty; choose another one, or add --overwrite (overwrite=True) to replace the "
        f"files of a model in it",
        ZooError,
    )
    require(
        _has_model(folder),
        f"the folder {folder} has files, but no {MANIFEST} of nearkin push; --overwrite replaces only models that it "
        f"wrote: choose another folder",
        ZooError,
    )


def _has_model(folder: Path) -> bool:
    """Whether `push` wrote a model into a folder, or began to."""
    manifest = folder / MANIFEST
    with suppress(DataError):
        return json_object(_read(manifest, LARGEST_MANIFEST), str(manifest)).get("format") == FORMAT
    return (folder / UNFINISHED).exists()


def write_folder(folder: Path, facts: PushedFacts, files: Mapping[str, bytes]) -> None:
    """Write the files of a model; other files of the folder stay.

    Until the last file is written, the folder has no `nearkin.json`, and then none of an earlier model.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / UNFINISHED).touch()
        for name in (MANIFEST, CONFIG, *FILES):
            (folder / name).unlink(missing_ok=True)
    except OSError as refused:
        raise FileWriteError(
            f"cannot replace the files of {folder}: {refused.strerror or refused}; choose another folder"
        ) from refused
    for name in FILES:
        if name in files:
            write_durably(folder / name, files[name])
    listed = {name: FileFacts(bytes=len(data), sha256=_digest(data)) for name, data in files.items()}
    manifest = sealed({"format": FORMAT, "version": VERSION, **facts, "files": listed})
    write_durably(folder / MANIFEST, json.dumps(json.loads(manifest), indent=1, ensure_ascii=False).encode())
    with suppress(OSError):  # the model is complete
        (folder / UNFINISHED).unlink()


def read_folder(location: str | Path) -> tuple[PushedFacts, dict[str, bytes]]:
    """Facts and files of a pushed model; every file must have the size and checksum that `nearkin.json` gives."""
    folder = local_path(str(location))
    require(folder.exists(), f"there is no folder {folder}; name one that nearkin push wrote", DataError)
    require(folder.is_dir(), f"{folder} is a file, expected a folder that nearkin push wrote", DataError)
    manifest = folder / MANIFEST
    require(
        manifest.exists(),
        f"the folder {folder} has no {MANIFEST}: nearkin push did not write it, or was interrupted; push the model "
        f"again, or store a model of others with nearkin adopt NAME {folder}",
        DataError,
    )
    content = _read(manifest, LARGEST_MANIFEST)
    require(CHECKSUM in json_object(content, str(manifest)), f"{manifest} has no checksum; push it again", DataError)
    values = unsealed(content, str(manifest))
    outer = typed(_Files, values, str(manifest))
    require(outer["format"] == FORMAT, f"{manifest} is of another format, expected {FORMAT}; push it again", DataError)
    require(
        outer["version"] <= VERSION,
        f"{manifest} is of version {outer['version']}, this nearkin reads up to {VERSION}; install a newer nearkin",
        DataError,
    )
    odd = sorted(set(outer["files"]) - set(FILES))
    require(not odd, f"{manifest} names the file {odd[:1]}, expected only {', '.join(FILES)}; push it again", DataError)
    require(WHOLE_FILE in outer["files"], f"{manifest} names no {WHOLE_FILE}; push it again", DataError)
    facts = typed(PushedFacts, values, str(manifest))
    return facts, {name: _verified(folder / name, known) for name, known in outer["files"].items() if name != CARD}


def _verified(path: Path, known: FileFacts) -> bytes:
    require(path.exists(), f"the file {path} is missing; fetch the folder again", DataError)
    content = _read(path, max_bytes())
    same = len(content) == known["bytes"] and _digest(content) == known["sha256"]
    require(same, f"{path} is not the file that was pushed: its checksum differs; fetch the folder again", DataError)
    return content


def _read(path: Path, most: int) -> bytes:
    size = path.stat().st_size if path.is_file() else 0
    require(size <= most, f"{path} has {size:,} bytes, expected at most {most:,}; fetch the folder again", DataError)
    return bytes(read_file(path))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
