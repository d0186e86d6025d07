"""A zoo that is only looked at: no lock is taken, no table is brought up, no file is made by asking.

`Catalogue` opens a database to write: it brings old tables up and lays SQLite's log beside the file while it is open.
Here a database at rest is read as it lies (`immutable`), and read again if it changed meanwhile; one that somebody has
open is read through their log, as SQLite means it.
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
from nearkin.store.database import DATABASE, version
from nearkin.store.records import LONGEST_NAME, ArtifactRecord, TaskRecord

T = TypeVar("T")

PATIENCE_SECONDS = 2.0  # with a database that is locked; a reader of the page waits too
ATTEMPTS = 5


@dataclass(frozen=True)
class Kept:
    """Distances that were measured and kept: of `pairs` ordered pairs, by a measure's key."""

    key: str
    pairs: int


@dataclass(frozen=True)
class Distance:
    """One kept measurement: what every aggregate says of a source and a target in one trial."""

    source: str
    target: str
    trial: int
    values: dict[str, Any]


class ReadOnlyStore:
    """Questions to the zoo in a folder; every one opens it anew and closes it, so that it may come, change and go."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self.blobs = Blobs(self.path / "blobs")

    def tasks(self) -> list[TaskRecord]:
        """Every task, in the order they came."""
        return self._asked(TaskRecord.all)

    def task(self, name: str) -> TaskRecord | None:
        """The task of that name, whatever the name; None where there is none."""

        def found(connection: sql.Connection) -> TaskRecord | None:
            rows = schema.rows_with(connection, schema.tasks, schema.tasks.c.name, [name])
            return next((TaskRecord.of_row(row) for row in rows), None)

        return self._asked(found)

    def like(self, name: str) -> list[str]:
        """A few names of tasks that look like this one."""
        if len(name) > LONGEST_NAME:
            return []
        return difflib.get_close_matches(name, [task.name for task in self.tasks()], n=3)

    def artifacts(self, task: TaskRecord) -> list[ArtifactRecord]:
        """What is kept of a task, by kind and trial."""
        return self._asked(lambda connection: ArtifactRecord.all(connection, task))

    def having(self, kind: str) -> set[str]:
        """Names of the tasks that have an artifact of a kind."""
        return {item.task for item in self._asked(lambda connection: ArtifactRecord.all(connection, None, kind))}

    def measures(self) -> list[Kept]:
        """By which measures distances between different tasks are kept, those of most pairs first."""
        table = schema.pairs.c
        pairs = sql.select(table.measure, table.source_id, table.target_id).distinct().subquery()
        apart = pairs.c.source_id != pairs.c.target_id
        query = sql.select(pairs.c.measure, sql.func.count()).where(apart).group_by(pairs.c.measure)
        rows = self._asked(lambda connection: list(connection.execute(query)))
        return sorted((Kept(key, count) for key, count in rows), key=lambda kept: (-kept.pairs, kept.key))

    def distances(self, key: str, task: TaskRecord | None = None) -> list[Distance]:
        """What is kept by one measure; of one task, from it and to it."""
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
        rows = self._asked(lambda connection: list(connection.execute(query)))
        return [Distance(a, b, trial, json.loads(facts)) for a, b, trial, facts in rows]

    def blob(self, item: ArtifactRecord) -> bytes:
        """The bytes of an artifact, verified."""
        return self.blobs.get(item.digest)

    def losses(self, item: ArtifactRecord) -> Sequence[float]:
        """The loss of every step of a training, without its weights, which may be large."""
        try:
            with safetensors.safe_open(self.blobs.path(item.digest), "pt") as file:
                names = set(file.keys())
                found: list[float] = file.get_tensor("history/losses").tolist() if "history/losses" in names else []
                return found
        except (OSError, safetensors.SafetensorError) as broken:
            raise ZooError(f"blob {item.digest[:12]}… cannot be read ({broken}); run nearkin doctor") from broken

    def _asked(self, question: Callable[[sql.Connection], T]) -> T:
        """The answer as of one moment."""
        file = self.path / DATABASE
        if not file.is_file():
            raise ZooError(f"there is no zoo at {self.path}; nearkin add makes one")
        for _ in range(ATTEMPTS):
            resting = _resting(file)
            try:
                found = self._once(file, question, immutable=resting is not None)
            except (SQLAlchemyError, sqlite3.Error, NearkinError) as refused:
                if resting is not None and _resting(file) != resting:
                    continue
                raise refused if isinstance(refused, NearkinError) else _explained(file, refused) from refused
            if resting is None or _resting(file) == resting:
                return found
        raise ZooError(f"{file} changes all the time; look again in a moment")

    def _once(self, file: Path, question: Callable[[sql.Connection], T], immutable: bool) -> T:
        address = f"{file.as_uri()}?mode=ro{'&immutable=1' if immutable else ''}"
        engine = sql.create_engine(
            "sqlite://",
            creator=lambda: sqlite3.connect(address, uri=True, timeout=PATIENCE_SECONDS),
            poolclass=sql.NullPool,
        )
        try:
            with engine.connect() as connection:
                newest = schema.MIGRATIONS[-1].version
                found = version(connection, newest, file)
                if found == 0:
                    raise ZooError(f"the zoo at {self.path} is empty; nearkin add NAME DATA adds a task")
                if found < newest:
                    raise ZooError(
                        f"this zoo is of version {found}, these pages read {newest}; nearkin list brings it up"
                    )
                return question(connection)
        finally:
            engine.dispose()


def _resting(file: Path) -> tuple[int, int, int] | None:
    """What tells one state of a database at rest from another; None while somebody has it open, or was killed so."""
    if file.with_name(f"{file.name}-wal").exists():
        return None
    try:
        now = file.stat()
    except OSError:
        return (0, 0, 0)
    return (now.st_ino, now.st_size, now.st_mtime_ns)


def _explained(file: Path, refused: Exception) -> ZooError:
    """One line for whatever SQLite says."""
    origin = getattr(refused, "orig", refused)
    code = getattr(origin, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    words = {
        sqlite3.SQLITE_BUSY: f"another process holds {file}; look again in a moment",
        sqlite3.SQLITE_LOCKED: f"another process holds {file}; look again in a moment",
        sqlite3.SQLITE_CANTOPEN: f"cannot open {file}; check that it is there and that you may read it",
        sqlite3.SQLITE_NOTADB: f"{file} is no database of nearkin; name another folder with --zoo",
        sqlite3.SQLITE_CORRUPT: f"{file} is damaged; run nearkin doctor, then put back a copy of the zoo",
    }
    return ZooError(words.get(code, f"{file} cannot be read: {' '.join(str(origin).split())}; run nearkin doctor"))
