"""The catalogue of a zoo: which tasks it holds, what is known of them, and where their files lie.

A zoo is a folder: `zoo.db`, `blobs/` and `work/`. A file is there before a row names it and goes after no row does,
both decided under the zoo's one write lock: no row names a missing file, whoever is killed at whatever moment.
"""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

import sqlalchemy as sql

from nearkin.core.errors import NearkinError, ZooError
from nearkin.core.files import FileWriteError
from nearkin.store import schema
from nearkin.store.blobs import Blobs
from nearkin.store.database import opened
from nearkin.store.protocol import Store
from nearkin.store.records import (
    ArtifactRecord,
    NewArtifact,
    NewTask,
    Placed,
    Supply,
    TaskRecord,
    json_text,
    require_name,
)
from nearkin.store.schema import BATCH


class Catalogue:
    """A zoo folder, opened; made first where there is none and `create` allows it.

    Args:
        path: the folder.
        create: make a zoo where there is none.
        migrations: the steps of the tables from version to version.

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
        self, path: str | Path, create: bool = True, migrations: Sequence[schema.Migration] = schema.MIGRATIONS
    ) -> None:
        self.database = opened(Path(path), create, migrations)
        self.path = Path(path).absolute()
        self.work = self.path / "work"
        self.stages = self.path / "stages"
        self.blobs = Blobs(self.path / "blobs")

    def __enter__(self) -> "Catalogue":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the database."""
        self.database.close()

    @property
    def writable(self) -> bool:
        """Whether this process may change the zoo."""
        return self.database.writable

    def tasks(self) -> list[TaskRecord]:
        """Every task, in the order they came."""
        with self.database.reading() as connection:
            return TaskRecord.all(connection)

    def task(self, name: str) -> TaskRecord:
        """The task of that name; an unknown one raises an error that names the nearest."""
        with self.database.reading() as connection:
            return TaskRecord.named(connection, name)

    def artifacts(self, name: str | None = None, kind: str | None = None) -> list[ArtifactRecord]:
        """Artifacts of one task or of all, of one kind or of all; by task, kind and trial."""
        with self.database.reading() as connection:
            task = None if name is None else TaskRecord.named(connection, name)
            return ArtifactRecord.all(connection, task, kind)

    def blob(self, artifact: ArtifactRecord) -> bytes:
        """The bytes of an artifact, verified."""
        return self.blobs.get(artifact.digest)

    def claimable(self, name: str) -> str:
        """The name, if a new task may take it; asked before long work, and once more when the work is kept."""
        require_name(name)
        with self.database.reading() as connection:
            _require_free(connection, [name])
        return name

    def add(self, task: NewTask, artifacts: Sequence[NewArtifact] = ()) -> TaskRecord:
        """Keep a task with its files, whole or not at all."""
        self.claimable(task.name)
        with self.provisional() as written:
            placed, supply = self._placed(artifacts, written)
            return self.admit([(task, placed)], supply)[0]

    def attach(self, name: str, artifacts: Sequence[NewArtifact]) -> list[ArtifactRecord]:
        """Add files to a task; one of the same kind and trial is replaced. Returns all the task's artifacts."""
        self.task(name)
        with self.provisional() as written:
            placed, supply = self._placed(artifacts, written)
            with self.database.writing() as connection:
                number = TaskRecord.named(connection, name).id
                stale = _detached(connection, number, placed)
                self._insert(connection, [(number, item) for item in placed], supply)
                _forget_unnamed(connection, stale)
        self._tidy(stale)
        return self.artifacts(name)

    def pairs(self, measure: str, target: str) -> dict[tuple[str, int], dict[str, Any]]:
        """What was kept of one measure between every source and a target, by source and trial."""
        table, tasks = schema.pairs.c, schema.tasks.c
        with self.database.reading() as connection:
            number = TaskRecord.named(connection, target).id
            query = sql.select(tasks.name, table.trial, table.facts).join_from(
                schema.pairs, schema.tasks, table.source_id == tasks.id
            )
            found = connection.execute(query.where((table.target_id == number) & (table.measure == measure)))
            return {(name, trial): json.loads(facts) for name, trial, facts in found}

    def keep_pair(self, measure: str, source: str, target: str, trial: int, facts: Mapping[str, Any]) -> None:
        """Keep what was measured between two tasks until one of them goes; measured again, it is replaced."""
        table = schema.pairs
        with self.database.writing() as connection:
            a, b = (TaskRecord.named(connection, name).id for name in (source, target))
            row = {"source_id": a, "target_id": b, "trial": trial, "measure": measure}
            same = sql.and_(*(table.c[key] == value for key, value in row.items()))
            connection.execute(sql.delete(table).where(same))
            schema.insert_rows(connection, table, [{**row, "facts": json_text(f"{source} and {target}", facts)}])

    def admit(self, entries: Sequence[tuple[NewTask, Sequence[Placed]]], supply: Supply) -> list[TaskRecord]:
        """Insert tasks whose files lie here already, all or none; `supply` gives a blob that went meanwhile again."""
        names = [task.name for task, _ in entries]
        with self.database.writing() as connection:
            _require_free(connection, names)
            schema.insert_rows(connection, schema.tasks, [task.row() for task, _ in entries])
            records = {
                row.name: TaskRecord.of_row(row)
                for row in schema.rows_with(connection, schema.tasks, schema.tasks.c.name, names)
            }
            placed = [(records[task.name].id, item) for task, items in entries for item in items]
            self._insert(connection, placed, supply)
        return [records[name] for name in names]

    def remove(self, name: str) -> None:
        """Take a task out, and the files that no other task names."""
        with self.database.writing() as connection:
            gone = TaskRecord.named(connection, name)
            number, named = gone.id, schema.artifacts.c
            stale = list(connection.scalars(sql.select(named.digest).where(named.task_id == number)))
            connection.execute(sql.delete(schema.tasks).where(schema.tasks.c.id == number))
            _forget_unnamed(connection, stale)
            shared = any(other.fingerprint == gone.fingerprint for other in TaskRecord.all(connection))
        self._tidy(stale)
        if not shared:
            shutil.rmtree(self.stages / gone.fingerprint, ignore_errors=True)

    def discard(self, digests: Iterable[str]) -> list[str]:
        """Remove those blobs that no task names, and return them; one that will not go stays, and harms nobody."""
        gone, left = [], iter(sorted(set(digests)))
        while batch := list(islice(left, BATCH)):
            with self.database.writing() as connection:
                kept = {row.digest for row in schema.rows_with(connection, schema.blobs, schema.blobs.c.digest, batch)}
                for digest in sorted(set(batch) - kept):
                    with suppress(FileWriteError):
                        self.blobs.remove(digest)
                        gone.append(digest)
        return gone

    @contextmanager
    def provisional(self) -> Iterator[list[str]]:
        """A list for digests of blobs written ahead of their rows; if the block fails, they go again."""
        written: list[str] = []
        try:
            yield written
        except BaseException:
            self._tidy(written)
            raise

    def _tidy(self, digests: Iterable[str]) -> None:
        """Discard what can be; orphans are harmless, and `nearkin doctor` names them."""
        with suppress(NearkinError):
            self.discard(digests)

    def _placed(self, artifacts: Sequence[NewArtifact], written: list[str]) -> tuple[list[Placed], Supply]:
        """Write every blob and say so in `written`; returns what to insert, and the bytes should they go meanwhile."""
        contents: dict[str, bytes] = {}
        placed = []
        for artifact in artifacts:
            digest = self.blobs.put(artifact.data)
            written.append(digest)
            contents[digest] = artifact.data
            placed.append(Placed(artifact.kind, artifact.trial, digest, len(artifact.data), artifact.facts))
        return placed, contents.__getitem__

    def _insert(self, connection: sql.Connection, placed: Sequence[tuple[int, Placed]], supply: Supply) -> None:
        """Insert artifacts by their task's id; nobody removes a blob now, and one that went before is written again."""
        sizes = {item.digest: item.size for _, item in placed}
        for digest, size in sizes.items():
            if not self.blobs.has(digest, size):
                self.blobs.put(supply(digest))
        known = {row.digest for row in schema.rows_with(connection, schema.blobs, schema.blobs.c.digest, sizes)}
        new = [{"digest": digest, "size": size} for digest, size in sizes.items() if digest not in known]
        schema.insert_rows(connection, schema.blobs, new)
        schema.insert_rows(connection, schema.artifacts, [item.row(number) for number, item in placed])


def _require_free(connection: sql.Connection, names: Sequence[str]) -> None:
    for row in schema.rows_with(connection, schema.tasks, schema.tasks.c.name, names):
        raise ZooError(
            f"the zoo already has a task named {row.name}; choose another name, or nearkin remove {row.name} first"
        )


def _detached(connection: sql.Connection, number: int, placed: Sequence[Placed]) -> list[str]:
    """Delete the artifacts that these replace, and return the digests they named."""
    table = schema.artifacts
    stale: list[str] = []
    for item in placed:
        same = (table.c.task_id == number) & (table.c.kind == item.kind) & (table.c.trial == item.trial)
        stale += connection.scalars(sql.select(table.c.digest).where(same))
        connection.execute(sql.delete(table).where(same))
    return stale


def _forget_unnamed(connection: sql.Connection, digests: Sequence[str]) -> None:
    """Delete the rows of blobs that no artifact names any more."""
    table = schema.blobs
    named = sql.exists().where(schema.artifacts.c.digest == table.c.digest)
    for digest in digests:
        connection.execute(sql.delete(table).where(table.c.digest == digest, ~named))


_IMPLEMENTED: type[Store] = Catalogue  # for the type checker: the protocol is met
