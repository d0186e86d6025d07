"""The catalogue of a zoo: a `Store` with a database and blobs.

A zoo is a folder, which holds `zoo.db`, `blobs/`, `work/` and `stages/`, or a shared zoo: a schema of a PostgreSQL
database, and blobs elsewhere. A blob is written before a row names it, and deleted after the last row that names it;
both are decided under the write lock of the zoo. Therefore no row names a missing blob, even if a process is killed at
any moment. If the connection to the server is lost, a method is repeated for up to a minute.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

import sqlalchemy as sql

from nearkin.core.addresses import is_shared
from nearkin.core.errors import NearkinError, ZooError, require
from nearkin.core.files import FileWriteError
from nearkin.core.objects import Objects
from nearkin.core.url_objects import objects_at
from nearkin.store import schema
from nearkin.store.database import retried, retry_lost
from nearkin.store.places import blob_url, open_blobs, open_database
from nearkin.store.protocol import Store
from nearkin.store.records import (
    ArtifactRecord,
    NewArtifact,
    NewTask,
    PendingArtifact,
    ReadBlob,
    TaskRecord,
    is_name,
    json_text,
    require_name,
)
from nearkin.store.schema import BATCH, ZOO, TableSet
from nearkin.store.sqlite import network_file_system


class Catalogue:
    """An open zoo.

    Args:
        path: the folder, or the address `postgresql://…` of a shared zoo.
        create: create the zoo if there is none (default: true).
        migrations: migrations of the tables (default: those of `schema`).
        blobs: folder or URL of the blobs of a shared zoo; it is stored when the zoo is created, and may be left out
            later.

    Attributes:
        address: the folder, or the address without secrets.

    >>> import tempfile
    >>> task = NewTask(name="even", network="mlp", likelihood="categorical", data="digits?parity", num_classes=2,
    ...                input_shape=(1, 8, 8), metric=0.97, epsilon=0.03, trials=1, parameters=4522, seconds=1.5,
    ...                seed=0, fingerprint="f00d")
    >>> with tempfile.TemporaryDirectory() as folder, Catalogue(folder) as zoo:
    ...     added = zoo.add(task, [NewArtifact("weights", 0, b"...")])
    ...     [task.name for task in zoo.tasks()], zoo.blob(zoo.artifacts("even")[0])
    (['even'], b'...')
    """

    def __init__(
        self,
        path: str | Path,
        create: bool = True,
        migrations: Sequence[schema.Migration] = schema.MIGRATIONS,
        blobs: str = "",
    ) -> None:
        tables = TableSet(ZOO.key, migrations)
        self.database = open_database(path, create, tables, blobs)
        self.shared = is_shared(str(path))
        self.address = self.database.name if self.shared else str(Path(path).absolute())
        try:
            self.files = objects_at(blob_url(self.database, blobs) if self.shared else self.path)
            self.blobs = open_blobs(self.files)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Catalogue":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the database and release its files."""
        self.database.close()

    @property
    def path(self) -> Path:
        """The folder of the zoo; an error for a shared zoo, which has none."""
        require(not self.shared, f"the shared zoo {self.address} has no folder; name a zoo in a folder", ZooError)
        return Path(self.address)

    @property
    def work(self) -> Objects:
        """Files of unfinished work."""
        return self.files.within("work")

    @property
    def stages(self) -> Objects:
        """Files of finished stages of solutions."""
        return self.files.within("stages")

    @property
    def writable(self) -> bool:
        """Whether this process may change the zoo."""
        return retry_lost(lambda again: self.database.writable)

    def cautions(self) -> list[str]:
        """What a user of this zoo should know."""
        kind = "" if self.shared else network_file_system(self.path)
        return [
            f"the zoo {self.address} is on a network file system ({kind}), whose locks SQLite cannot rely on; use it "
            f"from one machine at a time, or use a shared zoo (postgresql://…)"
        ] * bool(kind)

    @retried
    def tasks(self, limit: int | None = None, after: int | None = None) -> list[TaskRecord]:
        """Tasks in the order in which they were added: at most `limit`, of those with an id above `after`."""
        with self.database.reading() as connection:
            return TaskRecord.all(connection, limit, after)

    @retried
    def names(self) -> list[str]:
        """Names of all tasks, in the order in which they were added."""
        with self.database.reading() as connection:
            return list(connection.scalars(sql.select(schema.tasks.c.name).order_by(schema.tasks.c.id)))

    @retried
    def count(self) -> int:
        """Number of tasks."""
        with self.database.reading() as connection:
            return connection.scalar(sql.select(sql.func.count()).select_from(schema.tasks)) or 0

    @retried
    def has(self, name: str) -> bool:
        """Whether there is a task of that name; false for names that are not valid."""
        if not is_name(name):
            return False
        with self.database.reading() as connection:
            return any(schema.rows_with(connection, schema.tasks, schema.tasks.c.name, [name]))

    @retried
    def task(self, name: str) -> TaskRecord:
        """The task of that name; for an unknown name the error suggests similar ones."""
        with self.database.reading() as connection:
            return TaskRecord.named(connection, name)

    @retried
    def artifacts(self, name: str | None = None, kind: str | None = None) -> list[ArtifactRecord]:
        """Artifacts of one task or of all, of one kind or of all, sorted by task, kind and trial."""
        with self.database.reading() as connection:
            task = None if name is None else TaskRecord.named(connection, name)
            return ArtifactRecord.all(connection, task, kind)

    def blob(self, artifact: ArtifactRecord) -> bytes:
        """The bytes of an artifact, verified by their digest."""
        return self.blobs.get(artifact.digest)

    @retried
    def claimable(self, name: str) -> str:
        """Return the name if it is valid and free; called before long work, and again when its result is stored."""
        require_name(name)
        with self.database.reading() as connection:
            _require_free(connection, [name])
        return name

    def add(self, task: NewTask, artifacts: Sequence[NewArtifact] = ()) -> TaskRecord:
        """Store a task with its artifacts."""
        self.claimable(task.name)
        with self.provisional() as written:
            pending, read_blob = self._write_blobs(artifacts, written)
            return self.admit([(task, pending)], read_blob)[0]

    def attach(self, name: str, artifacts: Sequence[NewArtifact]) -> list[ArtifactRecord]:
        """Add artifacts to a task, or replace those of the same kind and trial; returns all artifacts of the task."""
        self.task(name)
        with self.provisional() as written:
            pending, read_blob = self._write_blobs(artifacts, written)
            replaced = self._replace(name, pending, read_blob)
        self._try_discard(replaced)
        return self.artifacts(name)

    @retried
    def _replace(self, name: str, pending: Sequence[PendingArtifact], read_blob: ReadBlob) -> list[str]:
        """Insert artifacts in place of those of the same kind and trial; returns the digests of those."""
        with self.database.writing() as connection:
            task_id = TaskRecord.named(connection, name).id
            replaced = _delete_replaced(connection, task_id, pending)
            self._insert(connection, [(task_id, artifact) for artifact in pending], read_blob)
            _delete_unused(connection, replaced)
        return replaced

    @retried
    def pairs(self, measure: str, target: str) -> dict[tuple[str, int], dict[str, Any]]:
        """Stored facts of one measure between all sources and a target, by source and trial."""
        table, tasks = schema.pairs.c, schema.tasks.c
        with self.database.reading() as connection:
            target_id = TaskRecord.named(connection, target).id
            query = sql.select(tasks.name, table.trial, table.facts).join_from(
                schema.pairs, schema.tasks, table.source_id == tasks.id
            )
            rows = connection.execute(query.where((table.target_id == target_id) & (table.measure == measure)))
            return {(name, trial): json.loads(facts) for name, trial, facts in rows}

    @retried
    def pairs_to(self, target: str) -> list[tuple[str, str, int, dict[str, Any]]]:
        """Stored facts of all measures between all sources and a target: measure, source, trial, facts."""
        table, tasks = schema.pairs.c, schema.tasks.c
        with self.database.reading() as connection:
            target_id = TaskRecord.named(connection, target).id
            query = sql.select(table.measure, tasks.name, table.trial, table.facts).join_from(
                schema.pairs, schema.tasks, table.source_id == tasks.id
            )
            rows = connection.execute(query.where(table.target_id == target_id))
            return [(measure, name, trial, json.loads(facts)) for measure, name, trial, facts in rows]

    @retried
    def keep_pair(self, measure: str, source: str, target: str, trial: int, facts: Mapping[str, Any]) -> None:
        """Store facts of a measure between two tasks, in place of earlier ones, until one of the tasks is removed."""
        table = schema.pairs
        with self.database.writing() as connection:
            source_id, target_id = (TaskRecord.named(connection, name).id for name in (source, target))
            row = {"source_id": source_id, "target_id": target_id, "trial": trial, "measure": measure}
            same = sql.and_(*(table.c[key] == value for key, value in row.items()))
            connection.execute(sql.delete(table).where(same))
            schema.insert_rows(connection, table, [{**row, "facts": json_text(f"{source!r} and {target!r}", facts)}])

    def admit(
        self, entries: Sequence[tuple[NewTask, Sequence[PendingArtifact]]], read_blob: ReadBlob
    ) -> list[TaskRecord]:
        """Insert tasks whose blobs are written; `read_blob` supplies those that were deleted meanwhile."""
        return retry_lost(lambda again: self._admit(entries, read_blob, again))

    def _admit(
        self, entries: Sequence[tuple[NewTask, Sequence[PendingArtifact]]], read_blob: ReadBlob, again: bool
    ) -> list[TaskRecord]:
        """Insert tasks; `again` after a lost connection, whose commit may have succeeded."""
        names = [task.name for task, _ in entries]
        with self.database.writing() as connection:
            if again and (stored := _stored(connection, entries)):
                return stored
            _require_free(connection, names)
            schema.insert_rows(connection, schema.tasks, [task.row() for task, _ in entries])
            records = {
                row.name: TaskRecord.of_row(row)
                for row in schema.rows_with(connection, schema.tasks, schema.tasks.c.name, names)
            }
            pending = [(records[task.name].id, artifact) for task, artifacts in entries for artifact in artifacts]
            self._insert(connection, pending, read_blob)
        return [records[name] for name in names]

    def remove(self, name: str) -> None:
        """Remove a task, and the blobs and stages that no other task uses."""
        digests: list[str] = []
        unused = retry_lost(lambda again: self._remove(name, digests, again))
        self._try_discard(digests)
        if unused:
            with suppress(NearkinError):  # they are harmless
                self.stages.within(unused).clear()

    def _remove(self, name: str, digests: list[str], again: bool) -> str:
        """Delete a task, and put the digests of its blobs into the list; returns its fingerprint if it was the last."""
        table, tasks = schema.artifacts.c, schema.tasks.c
        with self.database.writing() as connection:
            if again and not any(schema.rows_with(connection, schema.tasks, tasks.name, [name])):
                return ""  # removed by the attempt before
            task = TaskRecord.named(connection, name)
            digests[:] = connection.scalars(sql.select(table.digest).where(table.task_id == task.id))
            connection.execute(sql.delete(schema.tasks).where(tasks.id == task.id))
            _delete_unused(connection, digests)
            same = connection.scalar(sql.select(tasks.id).where(tasks.fingerprint == task.fingerprint).limit(1))
        return "" if same is not None else task.fingerprint

    @retried
    def discard(self, digests: Iterable[str]) -> list[str]:
        """Delete those of the blobs that no task uses, and return them; blobs that cannot be deleted are left."""
        return self._discard(digests)

    def _discard(self, digests: Iterable[str]) -> list[str]:
        deleted, remaining = [], iter(sorted(set(digests)))
        while batch := list(islice(remaining, BATCH)):
            with self.database.writing() as connection:
                used = {row.digest for row in schema.rows_with(connection, schema.blobs, schema.blobs.c.digest, batch)}
                for digest in sorted(set(batch) - used):
                    with suppress(FileWriteError):
                        self.blobs.remove(digest)
                        deleted.append(digest)
        return deleted

    @contextmanager
    def provisional(self) -> Iterator[list[str]]:
        """Collect digests of blobs that are written before their rows; if the block fails, they are discarded."""
        retry_lost(lambda again: self.database.require_writable())
        written: list[str] = []
        try:
            yield written
        except BaseException:
            self._try_discard(written)
            raise

    def _try_discard(self, digests: Iterable[str]) -> None:
        """Discard blobs if possible; unused blobs are harmless, and `nearkin doctor` lists them."""
        with suppress(NearkinError):
            self._discard(digests)

    def _write_blobs(
        self, artifacts: Sequence[NewArtifact], written: list[str]
    ) -> tuple[list[PendingArtifact], ReadBlob]:
        """Write every blob, append its digest to `written`, and return the artifacts and a reader of their bytes."""
        contents: dict[str, bytes] = {}
        pending = []
        for artifact in artifacts:
            digest = self.blobs.put(artifact.data)
            written.append(digest)
            contents[digest] = artifact.data
            pending.append(PendingArtifact(artifact.kind, artifact.trial, digest, len(artifact.data), artifact.facts))
        return pending, contents.__getitem__

    def _insert(
        self, connection: sql.Connection, pending: Sequence[tuple[int, PendingArtifact]], read_blob: ReadBlob
    ) -> None:
        """Insert artifacts, each with the id of its task; a blob that was deleted before the lock is written again."""
        sizes = {artifact.digest: artifact.size for _, artifact in pending}
        for digest, size in sizes.items():
            if not self.blobs.has(digest, size):
                self.blobs.put(read_blob(digest))
        known = {row.digest for row in schema.rows_with(connection, schema.blobs, schema.blobs.c.digest, sizes)}
        new = [{"digest": digest, "size": size} for digest, size in sizes.items() if digest not in known]
        schema.insert_rows(connection, schema.blobs, new)
        schema.insert_rows(connection, schema.artifacts, [artifact.row(task_id) for task_id, artifact in pending])


def _stored(
    connection: sql.Connection, entries: Sequence[tuple[NewTask, Sequence[PendingArtifact]]]
) -> list[TaskRecord]:
    """Records of tasks that are stored exactly like this, with these artifacts; empty unless all are."""
    names = [task.name for task, _ in entries]
    rows = {row.name: row for row in schema.rows_with(connection, schema.tasks, schema.tasks.c.name, names)}
    for task, artifacts in entries:
        row = rows.get(task.name)
        if row is None or any(row._mapping[key] != value for key, value in task.row().items()):
            return []
        record = TaskRecord.of_row(row)
        kept = {(item.kind, item.trial, item.digest) for item in ArtifactRecord.all(connection, record)}
        if kept != {(item.kind, item.trial, item.digest) for item in artifacts}:
            return []
    return [TaskRecord.of_row(rows[name]) for name in names]


def _require_free(connection: sql.Connection, names: Sequence[str]) -> None:
    for row in schema.rows_with(connection, schema.tasks, schema.tasks.c.name, names):
        raise ZooError(
            f"the zoo already has a task named {row.name!r}; choose another name, or nearkin remove {row.name!r} first"
        )


def _delete_replaced(connection: sql.Connection, task_id: int, pending: Sequence[PendingArtifact]) -> list[str]:
    """Delete the artifacts that these replace, and return their digests."""
    table = schema.artifacts
    digests: list[str] = []
    for artifact in pending:
        same = (table.c.task_id == task_id) & (table.c.kind == artifact.kind) & (table.c.trial == artifact.trial)
        digests += connection.scalars(sql.select(table.c.digest).where(same))
        connection.execute(sql.delete(table).where(same))
    return digests


def _delete_unused(connection: sql.Connection, digests: Sequence[str]) -> None:
    """Delete the rows of blobs that no artifact uses any more."""
    table = schema.blobs
    used = sql.exists().where(schema.artifacts.c.digest == table.c.digest)
    for digest in digests:
        connection.execute(sql.delete(table).where(table.c.digest == digest, ~used))


_IMPLEMENTED: type[Store] = Catalogue  # lets the type checker verify the protocol
