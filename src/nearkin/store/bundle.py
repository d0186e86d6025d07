"""A zoo, or some of its tasks, as one file that another zoo takes in.

The file is a zip without compression: `manifest.json`, then `blobs/<digest>`. Equal zoos give equal bytes. What comes
from outside is checked before anything is written, and no name in it is ever used as a path.
"""

import hashlib
import json
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from nearkin.core.errors import NearkinError, ZooError, require
from nearkin.core.events import Progress, Work, operation
from nearkin.core.files import durable_file
from nearkin.core.opening import max_bytes
from nearkin.core.plain import json_object, typed
from nearkin.store.blobs import CHUNK, is_digest
from nearkin.store.catalogue import Catalogue
from nearkin.store.records import ArtifactRecord, NewTask, Placed, TaskRecord

FORMAT = "nearkin-zoo"
VERSION = 1
MANIFEST = "manifest.json"
_MOMENT = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip can tell: the clock leaves no trace


@dataclass(frozen=True)
class Content:
    """What a bundle tells of itself: tasks with their artifacts."""

    entries: tuple[tuple[NewTask, tuple[Placed, ...]], ...]

    def __post_init__(self) -> None:
        require(len(set(self.names)) == len(self.names), "two of its tasks have one name", ZooError)

    @property
    def names(self) -> list[str]:
        """Names of the tasks."""
        return [task.name for task, _ in self.entries]

    @property
    def digests(self) -> list[str]:
        """Digests of the blobs, each once, in order."""
        return sorted({item.digest for _, placed in self.entries for item in placed})


@operation
def export_bundle(
    catalogue: Catalogue, file: Path, names: Sequence[str] | None = None, *, overwrite: bool = False
) -> Work[list[str]]:
    """Write tasks, all when none is named, into one file; every blob is verified on the way. Returns their names."""
    require(
        overwrite or not file.exists(), f"{file} is there already; choose another file, or add --overwrite", ZooError
    )
    with catalogue.database.reading() as connection:
        chosen = None if names is None else {TaskRecord.named(connection, name).id for name in names}
        records = [record for record in TaskRecord.all(connection) if chosen is None or record.id in chosen]
        held = {record.name for record in records}
        kept = [item for item in ArtifactRecord.all(connection) if item.task in held]
    sizes = dict(sorted((item.digest, item.size) for item in kept))
    with durable_file(file) as target, zipfile.ZipFile(target, "w") as bundle:
        bundle.writestr(_member(MANIFEST), _manifest(records, kept))
        for done, (digest, size) in enumerate(sizes.items()):
            yield Progress("export", done, len(sizes))
            with bundle.open(_member(f"blobs/{digest}", size), "w") as member:
                for chunk in catalogue.blobs.chunks(digest):
                    member.write(chunk)
        yield Progress("export", len(sizes), len(sizes))
    return [record.name for record in records]


@operation
def import_bundle(catalogue: Catalogue, file: Path) -> Work[list[str]]:
    """Take in every task of a bundle, or none if anything is wrong with one of them. Returns their names."""
    with _opened(file) as bundle:
        content = _content(bundle, file)
        _require_free(catalogue, content.names)
        digests, total = content.digests, 2 * len(content.digests)
        for done, digest in enumerate(digests):
            yield Progress("import", done, total)
            require(_digest(bundle, digest) == digest, _broken(file, f"blob {digest[:12]}… was altered"), ZooError)
        with catalogue.provisional() as written:
            for done, digest in enumerate(digests, start=len(digests)):
                yield Progress("import", done, total)
                written.append(catalogue.blobs.put(bundle.read(f"blobs/{digest}")))
            require(written == digests, _broken(file, "it changed while it was read"), ZooError)
            catalogue.admit(content.entries, lambda digest: bundle.read(f"blobs/{digest}"))
    yield Progress("import", total, total)
    return content.names


def _manifest(records: Sequence[TaskRecord], kept: Sequence[ArtifactRecord]) -> str:
    by_task: dict[str, list[dict[str, Any]]] = {record.name: [] for record in records}
    for item in kept:
        by_task[item.task].append(item.to_dict())
    told = [{**record.to_dict(), "artifacts": by_task[record.name]} for record in records]
    return json.dumps({"format": FORMAT, "version": VERSION, "tasks": told}, sort_keys=True, indent=1)


def _member(name: str, size: int = 0) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _MOMENT)
    info.create_system = 3
    info.external_attr = 0o644 << 16
    info.file_size = size
    return info


@contextmanager
def _opened(file: Path) -> Iterator[zipfile.ZipFile]:
    """The zip; whatever the zip reader says of a broken one becomes one line."""
    try:
        ordinary = file.is_file() or file.is_dir() or not file.exists()  # a pipe would be waited for
        require(ordinary, f"{file} is not a regular file; name an exported zoo", ZooError)
        with zipfile.ZipFile(file) as bundle:
            yield bundle
    except NearkinError:
        raise
    except OSError as refused:
        raise ZooError(f"cannot read {file}: {refused.strerror or refused}; check the path") from refused
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError) as broken:
        raise ZooError(_broken(file, str(broken) or "it ends too early")) from broken


def _content(bundle: zipfile.ZipFile, file: Path) -> Content:
    """The manifest, checked, and the members against it."""
    members = {info.filename: info for info in bundle.infolist()}
    plain = all(info.compress_type == zipfile.ZIP_STORED for info in members.values())
    plain = plain and len(members) == len(bundle.infolist())
    require(MANIFEST in members, _broken(file, f"it holds no {MANIFEST}"), ZooError)
    require(plain, _broken(file, "its members are not as written"), ZooError)
    largest = max((info.file_size for info in members.values()), default=0)
    require(
        largest <= max_bytes(),
        f"{file} holds a member of {largest:,} bytes, at most {max_bytes():,} are read; set $NEARKIN_MAX_BYTES to more "
        f"if you trust it",
        ZooError,
    )
    with _manifest_read(file):
        manifest = typed(_Manifest, json_object(bundle.read(MANIFEST), MANIFEST), MANIFEST)
    require(manifest["format"] == FORMAT, _broken(file, f"its format is not {FORMAT}"), ZooError)
    version = manifest["version"]
    message = f"{file} is of version {version}, this nearkin reads up to {VERSION}; install a newer nearkin"
    require(version <= VERSION, message, ZooError)
    with _manifest_read(file):
        content = Content(tuple(_entry(task) for task in manifest["tasks"]))
    found = {(name, info.file_size) for name, info in members.items() if name != MANIFEST}
    expected = {(f"blobs/{item.digest}", item.size) for _, placed in content.entries for item in placed}
    require(found == expected, _broken(file, "its blobs are not those of its manifest"), ZooError)
    return content


@contextmanager
def _manifest_read(file: Path) -> Iterator[None]:
    """Whatever a manifest can have wrong becomes one line."""
    try:
        yield
    except (NearkinError, KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as odd:
        text = " ".join(f"{type(odd).__name__}: {odd}".split())
        raise ZooError(_broken(file, f"its manifest is malformed ({text[:200]})")) from odd


class _Manifest(TypedDict):
    """The frame of a manifest; its tasks are read once its version is known."""

    format: str
    version: int
    tasks: list[dict[str, Any]]


def _entry(fields: dict[str, Any]) -> tuple[NewTask, tuple[Placed, ...]]:
    """A task of the manifest; a field that is missing, unknown or of another type raises."""
    require("created" in fields, "a task without the time when it was created", ZooError)
    placed = typed(tuple[Placed, ...], fields.pop("artifacts"), MANIFEST)
    for item in placed:
        require(is_digest(item.digest), "a digest that is none", ZooError)
    require(len({(item.kind, item.trial) for item in placed}) == len(placed), "two artifacts of one kind and trial")
    return typed(NewTask, fields, MANIFEST), placed


def _require_free(catalogue: Catalogue, names: Sequence[str]) -> None:
    taken = sorted(set(names) & {record.name for record in catalogue.tasks()})
    listed = ", ".join(taken[:5]) + (f" and {len(taken) - 5} more" if len(taken) > 5 else "")
    message = f"the zoo already has {listed}; nearkin remove them first, or import into another zoo with --zoo"
    require(not taken, message, ZooError)


def _digest(bundle: zipfile.ZipFile, digest: str) -> str:
    found = hashlib.sha256()
    with bundle.open(f"blobs/{digest}") as member:
        while chunk := member.read(CHUNK):
            found.update(chunk)
    return found.hexdigest()


def _broken(file: Path, what: str) -> str:
    return f"{file} is not a whole export of a zoo: {what}; fetch or export it again"
