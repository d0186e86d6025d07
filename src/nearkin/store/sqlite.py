"""SQLite: the database of a zoo in a folder."""

import os
import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from nearkin.core.errors import NearkinError, ZooError, require
from nearkin.core.files import FileWriteError, write_durably
from nearkin.store import database as databases
from nearkin.store.database import OWNER, Database, NoZooError, one_line, require_tables
from nearkin.store.schema import ZOO, TableSet

DATABASE = "zoo.db"
POLL_SECONDS = 0.002  # mean pause between two attempts to take the write lock
MOUNTS = Path("/proc/self/mounts")
NETWORK = ("nfs", "cifs", "smb", "9p", "afs", "lustre", "gpfs", "beegfs", "ceph", "davfs", "fuse.sshfs", "fuse.s3fs",
    "fuse.glusterfs", "fuse.rclone", "fuse.gcsfuse", "fuse.juicefs")  # fmt: skip


class SqliteDatabase(Database):
    """Transactions on a file, in write-ahead mode: readers never wait and see complete commits only.

    A connection is closed at the end of its transaction. The object can therefore be shared by threads, used after a
    fork, and dropped without closing. Only if it need not be durable, connections are kept: to close the last one takes
    as long as ten transactions.

    Args:
        path: the file.
        tables: its tables.
        durable: wait at each commit until it is on the disk; else a power failure may undo the last commits.
    """

    def __init__(self, path: Path, tables: TableSet = ZOO, durable: bool = True) -> None:
        self.path = path.resolve()
        self.name, self.tables, self.durable = str(self.path), tables, durable
        pool = sql.NullPool if durable else sql.QueuePool
        engine = sql.create_engine("sqlite://", creator=self._connect, poolclass=pool)
        sql.event.listen(engine, "begin", _begun)
        self._reader = engine
        self._writer = engine.execution_options(nearkin_writes=True)

    def reading(self) -> AbstractContextManager[sql.Connection]:
        """Begin a transaction that reads one committed state of the database."""
        return self._transaction(self._reader)

    def writing(self) -> AbstractContextManager[sql.Connection]:
        """Begin a transaction that holds the write lock of the zoo from its start; an exception rolls it back."""
        return self._transaction(self._writer)

    def keep_copy(self, version: int) -> None:
        """Write a copy of the committed database, `zoo.db.vN`, also while this process holds the write lock."""
        with self.reading() as connection:
            driver: Any = connection.connection.driver_connection
            write_durably(self.path.with_name(f"{self.path.name}.v{version}"), driver.serialize())

    def prepare(self) -> None:
        """Switch to write-ahead mode; wait for other processes that do the same, which SQLite does not."""
        deadline = time.monotonic() + databases.BUSY_SECONDS
        while self.writable:
            try:
                with closing(self._connect()) as connection:
                    connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.Error as refused:
                if _code(refused) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise database_error(self.path, refused, databases.BUSY_SECONDS) from refused
            time.sleep(0.01)

    def problems(self) -> list[str]:
        """Errors that SQLite finds in the file and in the references between rows; empty if there are none."""
        try:
            with self.reading() as connection:
                damage = [str(row[0]) for row in connection.exec_driver_sql("PRAGMA integrity_check")]
                dangling = [
                    f"row {row[1]} of {row[0]} names a missing row of {row[2]}"
                    for row in connection.exec_driver_sql("PRAGMA foreign_key_check")
                ]
        except NearkinError as broken:
            return [str(broken)]
        return [line for line in damage if line != "ok"] + dangling

    def foreign(self) -> ZooError:
        """The error if the tables are not those of nearkin."""
        return ZooError(f"{self.path} is not a database of nearkin; name another folder with --zoo")

    def close(self) -> None:
        """Release the engine."""
        self._reader.dispose()

    @contextmanager
    def _transaction(self, engine: sql.Engine) -> Iterator[sql.Connection]:
        try:
            with engine.begin() as connection:
                yield connection
        except (SQLAlchemyError, sqlite3.Error) as refused:
            raise database_error(self.path, refused, databases.BUSY_SECONDS) from refused

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._address(), uri=True, timeout=databases.BUSY_SECONDS, isolation_level=None,
            check_same_thread=self.durable,
        )  # fmt: skip
        try:
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute(f"PRAGMA synchronous = {'FULL' if self.durable else 'OFF'}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _address(self) -> str:
        """In a read-only folder SQLite cannot make its shared files; without a log, they are not needed to read."""
        mode = "rw" if self.writable else "ro" if self._has_log() else "ro&immutable=1"
        return f"{self.path.as_uri()}?mode={mode}"

    def _has_log(self) -> bool:
        try:
            return self.path.with_name(f"{self.path.name}-wal").stat().st_size > 0
        except OSError:
            return False

    @property
    def writable(self) -> bool:
        """Whether this process may write to the database and create files in its folder."""
        return os.access(self.path.parent, os.W_OK) and os.access(self.path, os.W_OK)


def open_folder(
    folder: Path, create: bool = True, tables: TableSet = ZOO, file: str = DATABASE, durable: bool = True
) -> SqliteDatabase:
    """Open a database in the folder of a zoo; `create` makes a zoo of a missing or empty folder.

    A process that is killed while it creates the tables leaves an empty folder or a database without tables, which the
    next process that opens it completes, with or without `create`.
    """
    try:
        _require_zoo(folder)
        if create and not (folder / file).exists():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / file).touch()
    except OSError as refused:
        reason = refused.strerror or refused
        raise FileWriteError(f"cannot open a zoo at {folder}: {reason}; name another folder with --zoo") from refused
    database = SqliteDatabase(folder / file, tables, durable)
    if not database.path.exists() or not require_tables(database, create=database.writable):
        raise NoZooError(f"there is no zoo at {folder}; nearkin add makes one, or name another with --zoo")
    return database


def _require_zoo(folder: Path) -> None:
    """Accept a missing folder, an empty one and a zoo, which another process may create at this moment."""
    if folder.exists():
        require(
            folder.is_dir(), f"{folder} is a file, expected a folder; name the folder of a zoo with --zoo", ZooError
        )
        require(
            next(folder.iterdir(), None) is None or (folder / DATABASE).exists(),
            f"{folder} is not a zoo: it is not empty and has no {DATABASE}; name another folder with --zoo",
            ZooError,
        )


def network_file_system(path: Path, mounts: Path | None = None) -> str:
    """Type of the file system of a path if its files are on another machine, such as `nfs4`; else empty."""
    try:
        lines = [line.split() for line in (mounts or MOUNTS).read_text().splitlines()]
    except OSError:
        return ""
    types = {Path(line[1].replace("\\040", " ")): line[2] for line in lines if len(line) > 2}
    nearest = next((types[folder] for folder in (path, *path.parents) if folder in types), "")
    return nearest if nearest.startswith(NETWORK) else ""


def _begun(connection: sql.Connection) -> None:
    """Begin the transaction; a writer takes its lock before it reads."""
    if not connection.get_execution_options().get("nearkin_writes"):
        connection.exec_driver_sql("BEGIN")
        return
    driver: Any = connection.connection.driver_connection
    deadline = time.monotonic() + databases.BUSY_SECONDS
    driver.execute("PRAGMA busy_timeout = 0")  # SQLite waits up to 0.1 s between two attempts, although locks are short
    while True:
        try:
            driver.execute("BEGIN IMMEDIATE")
            break
        except sqlite3.OperationalError as refused:
            if _code(refused) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(POLL_SECONDS * (0.5 + random.random()))
    driver.execute(f"PRAGMA busy_timeout = {1000 * databases.BUSY_SECONDS:.0f}")


def database_error(path: Path, error: Exception, waited: float) -> NearkinError:
    """An error of SQLite, explained in one line; `waited` are the seconds after which a lock became an error."""
    again = "nothing was changed: free space or use another folder, then run it again"
    busy = ZooError(f"another process has been writing to {path} for {waited:g} s; wait for it, then run it again")
    cases: dict[int, NearkinError] = {
        sqlite3.SQLITE_FULL: FileWriteError(f"cannot write {path}: the disk is full; {again}"),
        sqlite3.SQLITE_IOERR: FileWriteError(f"cannot write or read {path}: {one_line(error)}; {again}"),
        sqlite3.SQLITE_READONLY: FileWriteError(f"cannot write {path}: it is read-only; {OWNER}"),
        sqlite3.SQLITE_CANTOPEN: ZooError(f"cannot open {path}; check that it exists and that you may read it"),
        sqlite3.SQLITE_BUSY: busy,
        sqlite3.SQLITE_LOCKED: busy,
        sqlite3.SQLITE_NOTADB: ZooError(f"{path} is not a database of nearkin; name another folder with --zoo"),
        sqlite3.SQLITE_CORRUPT: ZooError(f"{path} is damaged; run nearkin doctor, then restore a copy of the zoo"),
    }
    return cases.get(_code(error), ZooError(f"cannot use the database {path}: {one_line(error)}; run nearkin doctor"))


def _code(error: Exception) -> int:
    """The primary error code of SQLite, without the extended bits."""
    code: int = getattr(getattr(error, "orig", error), "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & 0xFF
