"""Reading of a zoo without changing it: no lock, no migration, no new files.

`Catalogue` opens a database for writing, and SQLite creates a log beside the file. Here, a
database that no process has open is read in SQLite's mode `immutable`, and read again if the file changed meanwhile.
A database that another process has open is read through the log of that process, as usual.
"""

import difflib
import json
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import safetensors
import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from nearkin.core.errors import NearkinError, ZooError
from nearkin.store import schema
from nearkin.store.blobs import Blobs
from nearkin.store.database import table_version
from nearkin.store.records import LONGEST_NAME, ArtifactRecord, TaskRecord
from nearkin.store.sqlite import DATABASE, SqliteDatabase, database_error

T = TypeVar("T")

LOCK_SECONDS = 2.0  # longest wait for a locked database; a visitor of the page waits as well
ATTEMPTS = 5
LOSSES = "history/losses"


@dataclass(frozen=True)
class MeasureCount:
    """Number of ordered pairs of tasks whose distance is stored, for the key of one measure."""

    key: str
    pairs: int


@dataclass(frozen=True)
class Distance:
    """Stored measurement between a source and a target in one trial: one value for each aggregate."""

    source: str
    target: str
    trial: int
    values: dict[str, Any]


class ReadOnlyStore:
    """Queries to the zoo in a folder.

    Every query opens the database and closes it again, so that the zoo may be created, changed or deleted in between.
    A query returns one committed state. It raises `ZooError` if there is no zoo, if the zoo has an older or newer
    version, is damaged or locked, or if the file changes during each of several attempts.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self.blobs = Blobs(self.path / "blobs")

    def tasks(self) -> list[TaskRecord]:
        """All tasks, in the order in which they were added."""
        return self._query(TaskRecord.all)

    def task(self, name: str) -> TaskRecord | None:
        """The task of that name; None if there is none, also for names that are not valid."""

        def find(connection: sql.Connection) -> TaskRecord | None:
            rows = schema.rows_with(connection, schema.tasks, schema.tasks.c.name, [name])
            return next((TaskRecord.of_row(row) for row in rows), None)

        return self._query(find)

    def similar_names(self, name: str) -> list[str]:
        """Up to three names of tasks that are similar to a name."""
        if len(name) > LONGEST_NAME:
            return []
        return difflib.get_close_matches(name, [task.name for task in self.tasks()], n=3)

    def artifacts(self, task: TaskRecord) -> list[ArtifactRecord]:
        """Artifacts of a task, sorted by kind and trial."""
        return self._query(lambda connection: ArtifactRecord.all(connection, task))

    def tasks_with(self, kind: str) -> set[str]:
        """Names of the tasks that have an artifact of that kind."""
        return {record.task for record in self._query(lambda connection: ArtifactRecord.all(connection, None, kind))}

    def measures(self) -> list[MeasureCount]:
        """Measures with stored distances between different tasks, those with most pairs first."""
        table = schema.pairs.c
        pairs = sql.select(table.measure, table.source_id, table.target_id).distinct().subquery()
        apart = pairs.c.source_id != pairs.c.target_id
        query = sql.select(pairs.c.measure, sql.func.count()).where(apart).group_by(pairs.c.measure)
        rows = self._query(lambda connection: list(connection.execute(query)))
        return sorted((MeasureCount(*row) for row in rows), key=lambda measure: (-measure.pairs, measure.key))

    def distances(self, key: str, task: TaskRecord | None = None) -> list[Distance]:
        """Stored distances of one measure; of one task, if it is given, as source or target."""
        table, source, target = schema.pairs.c, schema.tasks.alias("a"), schema.tasks.alias("b")
        query = (
            sql.select(source.c.name, target.c.name, table.trial, table.facts)
            .select_from(schema.pairs)
            .join(source, table.source_id == source.c.id)
            .join(target, table.target_id == target.c.id)
            .where(table.measure == key)
        )
        if task is not None:
            query = query.where((table.source_id == task.id) | (table.target_id == task.id))
        rows = self._query(lambda connection: list(connection.execute(query)))
        return [Distance(a, b, trial, json.loads(facts)) for a, b, trial, facts in rows]

    def blob(self, artifact: ArtifactRecord) -> bytes:
        """The bytes of an artifact, verified by their digest."""
        return self.blobs.get(artifact.digest)

    def losses(self, artifact: ArtifactRecord) -> Sequence[float]:
        """The training loss of every step; the weights in the same blob are not read, nor is its digest verified."""
        try:
            with safetensors.safe_open(self.blobs.path(artifact.digest), "pt") as file:
                losses: list[float] = file.get_tensor(LOSSES).tolist() if LOSSES in set(file.keys()) else []
                return losses
        except (OSError, safetensors.SafetensorError) as broken:
            raise ZooError(f"blob {artifact.digest[:12]}… cannot be read ({broken}); run nearkin doctor") from broken

    def _query(self, query: Callable[[sql.Connection], T]) -> T:
        """Result of a query on one committed state."""
        file = self.path / DATABASE
        if not file.is_file():
            raise ZooError(f"there is no zoo at {self.path}; nearkin add makes one")
        for _ in range(ATTEMPTS):
            before = _file_state(file)
            try:
                result = self._query_once(file, query, immutable=before is not None)
            except (SQLAlchemyError, sqlite3.Error, NearkinError) as error:
                if before is not None and _file_state(file) != before:
                    continue
                if isinstance(error, NearkinError):
                    raise
                raise database_error(file, error, LOCK_SECONDS) from error
            if before is None or _file_state(file) == before:
                return result
        raise ZooError(f"{file} changes too often to be read; try again in a moment")

    def _query_once(self, file: Path, query: Callable[[sql.Connection], T], immutable: bool) -> T:
        address = f"{file.as_uri()}?mode=ro{'&immutable=1' if immutable else ''}"
        engine = sql.create_engine(
            "sqlite://",
            creator=lambda: sqlite3.connect(address, uri=True, timeout=LOCK_SECONDS),
            poolclass=sql.NullPool,
        )
        try:
            with engine.connect() as connection:
                newest = schema.MIGRATIONS[-1].version
                version = table_version(connection, SqliteDatabase(file))
                if version == 0:
                    raise ZooError(f"the zoo at {self.path} is empty; nearkin add NAME DATA adds a task")
                if version < newest:
                    raise ZooError(f"this zoo has version {version}, expected {newest}; run nearkin zoo upgrade once")
                return query(connection)
        finally:
            engine.dispose()


def _file_state(file: Path) -> tuple[int, int, int] | None:
    """Inode, size and time of a database; None if a process has it open, or was killed while it had."""
    if file.with_name(f"{file.name}-wal").exists():
        return None
    try:
        now = file.stat()
    except OSError:
        return (0, 0, 0)
    return (now.st_ino, now.st_size, now.st_mtime_ns)
