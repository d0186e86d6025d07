"""Queries on the tables of a zoo that change nothing: no lock, no migration, no new files.

`Catalogue` opens a database for writing, and SQLite creates a log beside the file. Here, a database file that no
process has open is read in SQLite's mode `immutable`, and read again if the file changed meanwhile. A file that another
process has open is read through the log of that process, as usual. A shared zoo is read in read-only transactions.
"""

import sqlite3
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypeVar

import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from nearkin.core.addresses import is_shared, without_secrets
from nearkin.core.errors import NearkinError, ZooError, require
from nearkin.core.url_objects import objects_at
from nearkin.store import job_table, sqlite
from nearkin.store.blobs import Blobs
from nearkin.store.database import Database, NoZooError, table_version
from nearkin.store.places import blob_url, open_blobs
from nearkin.store.postgres import PostgresDatabase
from nearkin.store.schema import ZOO, TableSet

T = TypeVar("T")
Query = Callable[[sql.Connection], T]

LOCK_SECONDS = 2.0  # longest wait for a locked database; a visitor of the page waits as well
ATTEMPTS = 5
FILES = {ZOO.key: sqlite.DATABASE, job_table.JOBS.key: job_table.DATABASE}


class ZooReader(Protocol):
    """Queries to one zoo, which may be created, changed or deleted in between.

    Attributes:
        name: the folder, or the address without secrets.
    """

    name: str

    @property
    def folder(self) -> Path | None:
        """The folder; None for a shared zoo."""
        ...

    def query(self, query: Query[T], tables: TableSet = ZOO) -> T:
        """Result of a query on one committed state.

        Raises `NoZooError` if there are no tables, and `ZooError` if they have an older or newer version, are damaged,
        locked or cannot be reached.
        """
        ...

    @property
    def blobs(self) -> Blobs:
        """The blobs of the zoo."""
        ...

    def close(self) -> None:
        """Release connections."""
        ...


def open_reader(address: str | Path, blobs: str = "") -> ZooReader:
    """A reader of the zoo in a folder or at `postgresql://…`; nothing is read yet."""
    if is_shared(str(address)):
        return SharedReader(str(address), blobs)
    shown = without_secrets(str(address))
    require("://" not in shown, f"got the address {shown}, expected a folder or postgresql://…", ZooError)
    return FolderReader(Path(address))


class SharedReader:
    """Queries to a shared zoo, in read-only transactions.

    Args:
        address: `postgresql://…`, see `PostgresDatabase`.
        blobs: place of the blobs (default: the stored one).
    """

    folder = None

    def __init__(self, address: str, blobs: str = "") -> None:
        sets = (ZOO, job_table.JOBS)
        self._databases = {tables.key: PostgresDatabase(address, tables) for tables in sets}
        self.name, self._given = without_secrets(address), blobs

    def query(self, query: Query[T], tables: TableSet = ZOO) -> T:
        """Result of a query on one committed state."""
        database = self._databases[tables.key]
        with database.reading() as connection:
            _require_version(connection, database, self.name)
            return query(connection)

    @cached_property
    def blobs(self) -> Blobs:
        """The blobs, at the place that the zoo names."""
        return open_blobs(objects_at(blob_url(self._databases[ZOO.key], self._given)))

    def close(self) -> None:
        """Close the connections."""
        for database in self._databases.values():
            database.close()


class FolderReader:
    """Queries to the zoo in a folder; every one opens the file and closes it again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.name, self.blobs = str(self.folder), Blobs(self.folder / "blobs")

    def query(self, query: Query[T], tables: TableSet = ZOO) -> T:
        """Result of a query on one committed state; `ZooError` also if the file changes during each attempt."""
        file = self.folder / FILES[tables.key]
        if not file.is_file():
            raise NoZooError(f"there is no zoo at {self.folder}; nearkin add makes one")
        for _ in range(ATTEMPTS):
            before = _file_state(file)
            try:
                result = self._query_once(file, query, tables, immutable=before is not None)
            except (SQLAlchemyError, sqlite3.Error, NearkinError) as error:
                if before is not None and _file_state(file) != before:
                    continue
                if isinstance(error, NearkinError):
                    raise
                raise sqlite.database_error(file, error, LOCK_SECONDS) from error
            if before is None or _file_state(file) == before:
                return result
        raise ZooError(f"{file} changes too often to be read; try again in a moment")

    def close(self) -> None:
        """Nothing is open between two queries."""
        return

    def _query_once(self, file: Path, query: Query[T], tables: TableSet, immutable: bool) -> T:
        address = f"{file.as_uri()}?mode=ro{'&immutable=1' if immutable else ''}"
        engine = sql.create_engine(
            "sqlite://",
            creator=lambda: sqlite3.connect(address, uri=True, timeout=LOCK_SECONDS),
            poolclass=sql.NullPool,
        )
        try:
            with engine.connect() as connection:
                _require_version(connection, sqlite.SqliteDatabase(file, tables), self.name)
                return query(connection)
        finally:
            engine.dispose()


def _require_version(connection: sql.Connection, database: Database, name: str) -> None:
    """Refuse missing tables and those of another version."""
    version, newest = table_version(connection, database), database.tables.newest
    if version == 0:
        raise NoZooError(f"the zoo at {name} is empty; nearkin add NAME DATA adds a task")
    require(
        version == newest, f"this zoo has version {version}, expected {newest}; run nearkin zoo upgrade once", ZooError
    )


def _file_state(file: Path) -> tuple[int, int, int] | None:
    """Inode, size and time of a database; None if a process has it open, or was killed while it had."""
    if file.with_name(f"{file.name}-wal").exists():
        return None
    try:
        now = file.stat()
    except OSError:
        return (0, 0, 0)
    return (now.st_ino, now.st_size, now.st_mtime_ns)
