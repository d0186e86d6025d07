"""Export of tasks to one file, and import of such a file into another zoo.

The file is a zip without compression: `manifest.json`, then `blobs/<digest>`. Equal zoos give equal bytes. An imported
file is checked completely before anything is written, and no name in it is used as a path.
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
from nearkin.store.blobs import is_digest
from nearkin.store.catalogue import Catalogue
from nearkin.store.records import ArtifactRecord, NewTask, PendingArtifact, TaskRecord

FORMAT = "nearkin-zoo"
VERSION = 1
MANIFEST = "manifest.json"
_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest date of a zip; the bytes must not depend on the clock


@dataclass(frozen=True)
class Content:
    """The tasks of a bundle with their artifacts."""

    entries: tuple[tuple[NewTask, tuple[PendingArtifact, ...]], ...]

    def __post_init__(self) -> None:
        require(len(set(self.names)) == len(self.names), "two of its tasks have the same name", ZooError)

    @property
    def names(self) -> list[str]:
        """Names of all tasks."""
        return [task.name for task, _ in self.entries]

    @property
    def digests(self) -> list[str]:
        """Digests of all blobs, sorted, without repetition."""
        return sorted({artifact.digest for _, artifacts in self.entries for artifact in artifacts})


@operation
def export_bundle(
    catalogue: Catalogue, file: Path, names: Sequence[str] | None = None, *, overwrite: bool = False
) -> Work[list[str]]:
    """Write the named tasks (default: all) to one file, verify every blob, and return the names of the tasks."""
    require(overwrite or not file.exists(), f"{file} exists already; choose another file, or add --overwrite", ZooError)
    with catalogue.database.reading() as connection:
        ids = None if names is None else {TaskRecord.named(connection, name).id for name in names}
        records = [record for record in TaskRecord.all(connection) if ids is None or record.id in ids]
        exported = {record.name for record in records}
        artifacts = [artifact for artifact in ArtifactRecord.all(connection) if artifact.task in exported]
    sizes = dict(sorted((artifact.digest, artifact.size) for artifact in artifacts))
    with durable_file(file) as target, zipfile.ZipFile(target, "w") as bundle:
        bundle.writestr(_member(MANIFEST), _manifest(records, artifacts))
        for done, (digest, size) in enumerate(sizes.items()):
            yield Progress("export", done, len(sizes))
            with bundle.open(_member(f"blobs/{digest}", size), "w") as member:
                for chunk in catalogue.blobs.chunks(digest):
                    member.write(chunk)
        yield Progress("export", len(sizes), len(sizes))
    return [record.name for record in records]


@operation
def import_bundle(catalogue: Catalogue, file: Path) -> Work[list[str]]:
    """Add all tasks of a bundle, or none if one of them is damaged, and return their names."""
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


def _manifest(records: Sequence[TaskRecord], artifacts: Sequence[ArtifactRecord]) -> str:
    tasks = {record.name: {**record.to_dict(), "artifacts": []} for record in records}
    for artifact in artifacts:
        tasks[artifact.task]["artifacts"].append(artifact.to_dict())
    manifest = {"format": FORMAT, "version": VERSION, "tasks": list(tasks.values())}
    return json.dumps(manifest, sort_keys=True, indent=1)


def _member(name: str, size: int = 0) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _DATE)
    info.create_system = 3
    info.external_attr = 0o644 << 16
    info.file_size = size
    return info


@contextmanager
def _opened(file: Path) -> Iterator[zipfile.ZipFile]:
    """Open the zip; errors of the zip reader become one `ZooError`."""
    try:
        regular = file.is_file() or file.is_dir() or not file.exists()  # reading a pipe would wait for its writer
        require(regular, f"{file} is not a regular file; name an exported zoo", ZooError)
        with zipfile.ZipFile(file) as bundle:
            yield bundle
    except NearkinError:
        raise
    except OSError as refused:
        raise ZooError(f"cannot read {file}: {refused.strerror or refused}; check the path") from refused
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError) as broken:
        raise ZooError(_broken(file, str(broken) or "it ends too early")) from broken


def _content(bundle: zipfile.ZipFile, file: Path) -> Content:
    """Read and check the manifest, and compare the members of the zip with it."""
    members = {info.filename: info for info in bundle.infolist()}
    uncompressed = all(info.compress_type == zipfile.ZIP_STORED for info in members.values())
    unique = len(members) == len(bundle.infolist())
    require(MANIFEST in members, _broken(file, f"it holds no {MANIFEST}"), ZooError)
    require(uncompressed and unique, _broken(file, "it has compressed or repeated members"), ZooError)
    largest = max((info.file_size for info in members.values()), default=0)
    require(
        largest <= max_bytes(),
        f"{file} holds a member of {largest:,} bytes, expected at most {max_bytes():,}; if you trust the file, raise "
        f"$NEARKIN_MAX_BYTES",
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
    sizes = {(name, info.file_size) for name, info in members.items() if name != MANIFEST}
    expected = {(f"blobs/{artifact.digest}", artifact.size) for _, own in content.entries for artifact in own}
    require(sizes == expected, _broken(file, "its blobs are not those of its manifest"), ZooError)
    return content


@contextmanager
def _manifest_read(file: Path) -> Iterator[None]:
    """Turn every error of a malformed manifest into one `ZooError`."""
    try:
        yield
    except (NearkinError, KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as odd:
        text = " ".join(f"{type(odd).__name__}: {odd}".split())
        raise ZooError(_broken(file, f"its manifest is malformed ({text[:200]})")) from odd


class _Manifest(TypedDict):
    """Outer fields of a manifest; the tasks are read after the version was checked."""

    format: str
    version: int
    tasks: list[dict[str, Any]]


def _entry(fields: dict[str, Any]) -> tuple[NewTask, tuple[PendingArtifact, ...]]:
    """A task of the manifest; a field that is missing, unknown or of another type raises an error."""
    require("created" in fields, "a task without the time of its creation", ZooError)
    artifacts = typed(tuple[PendingArtifact, ...], fields.pop("artifacts"), MANIFEST)
    for artifact in artifacts:
        require(is_digest(artifact.digest), "a digest that is not 64 hexadecimal digits", ZooError)
    unique = {(artifact.kind, artifact.trial) for artifact in artifacts}
    require(len(unique) == len(artifacts), "two artifacts of the same kind and trial")
    return typed(NewTask, fields, MANIFEST), artifacts


def _require_free(catalogue: Catalogue, names: Sequence[str]) -> None:
    taken = sorted(set(names) & set(catalogue.names()))
    shown = ", ".join(map(repr, taken[:5])) + (f" and {len(taken) - 5} more" if len(taken) > 5 else "")
    message = f"the zoo already has {shown}; nearkin remove them first, or import into another zoo with --zoo"
    require(not taken, message, ZooError)


def _digest(bundle: zipfile.ZipFile, digest: str) -> str:
    with bundle.open(f"blobs/{digest}") as member:
        return hashlib.file_digest(member, "sha256").hexdigest()  # type: ignore[arg-type]


def _broken(file: Path, reason: str) -> str:
    return f"{file} is not an intact export of a zoo: {reason}; fetch or export it again"
