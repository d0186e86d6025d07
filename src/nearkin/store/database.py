"""Transactions, opening and migration: the one place of the zoo that knows SQLite.

Everything else speaks SQLAlchemy's own language; a server database needs another `Database`, no more.
"""

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from nearkin.core.errors import NearkinError, ZooError, require
from nearkin.core.files import FileWriteError, write_durably
from nearkin.core.numbers import whole_number
from nearkin.store.schema import MIGRATIONS, Migration, meta

BUSY_SECONDS = 60.0
VERSION_KEY = "nearkin-zoo"
DATABASE = "zoo.db"


class Database:
    """Transactions on the SQLite file of a zoo, in write-ahead mode: readers never wait and see whole commits only.

    No connection outlives its transaction, so that the object may be forked, shared by threads and dropped at will.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        engine = sql.create_engine("sqlite://", creator=self._connected, poolclass=sql.NullPool)
        sql.event.listen(engine, "begin", _begun)
        self._reader = engine
        self._writer = engine.execution_options(nearkin_begin="BEGIN IMMEDIATE")

    def reading(self) -> AbstractContextManager[sql.Connection]:
        """A transaction that sees one moment of the database."""
        return self._transaction(self._reader)

    def writing(self) -> AbstractContextManager[sql.Connection]:
        """A transaction that holds the zoo's one write lock from its first moment; an exception undoes it."""
        return self._transaction(self._writer)

    def keep_copy(self, target: Path) -> None:
        """Write the committed database as one file; also while this process holds the write lock."""
        with self.reading() as connection:
            driver: Any = connection.connection.driver_connection
            write_durably(target, driver.serialize())

    def write_ahead(self) -> None:
        """Switch to write-ahead mode, once in a zoo's life; SQLite does not itself wait for others that do the same."""
        deadline = time.monotonic() + BUSY_SECONDS
        while self.writable:
            try:
                with closing(self._connected()) as connection:
                    connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.Error as refused:
                if _code(refused) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise _explained(self.path, refused) from refused
            time.sleep(0.01)

    def problems(self) -> list[str]:
        """What SQLite's own checks of the file and of references between rows find; empty when all is well."""
        try:
            with self.reading() as connection:
                found = [str(row[0]) for row in connection.exec_driver_sql("PRAGMA integrity_check")]
                loose = [
                    f"row {row[1]} of {row[0]} names a missing row of {row[2]}"
                    for row in connection.exec_driver_sql("PRAGMA foreign_key_check")
                ]
        except NearkinError as broken:
            return [str(broken)]
        return [line for line in found if line != "ok"] + loose

    def close(self) -> None:
        """Let go of the engine."""
        self._reader.dispose()

    @contextmanager
    def _transaction(self, engine: sql.Engine) -> Iterator[sql.Connection]:
        try:
            with engine.begin() as connection:
                yield connection
        except SQLAlchemyError as refused:
            raise _explained(self.path, refused) from refused

    def _connected(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._address(), uri=True, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA synchronous = FULL")
        except BaseException:
            connection.close()
            raise
        return connection

    def _address(self) -> str:
        """A read-only folder has no place for SQLite's shared files; a database at rest is then read as it lies."""
        mode = "rw" if self.writable else "ro" if self._has_log() else "ro&immutable=1"
        return f"{self.path.as_uri()}?mode={mode}"

    def _has_log(self) -> bool:
        """Whether a log lies beside the database that holds more than it."""
        try:
            return self.path.with_name(f"{self.path.name}-wal").stat().st_size > 0
        except OSError:
            return False

    @property
    def writable(self) -> bool:
        """Whether this process may write to the database and make files beside it."""
        return os.access(self.path.parent, os.W_OK) and os.access(self.path, os.W_OK)


def opened(folder: Path, create: bool = True, migrations: Sequence[Migration] = MIGRATIONS) -> Database:
    """The database of a zoo folder, of the newest version; an empty or absent folder becomes a zoo if `create`.

    All tables are made in one transaction that holds the write lock. A process that is killed before its end leaves an
    empty folder or a database without tables; whoever opens it next, to create or not, completes it, and of several at
    once one makes the tables while the others wait.
    """
    try:
        _require_zoo(folder)
        if create and not (folder / DATABASE).exists():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / DATABASE).touch()
    except OSError as refused:
        reason = refused.strerror or refused
        raise FileWriteError(f"cannot open a zoo at {folder}: {reason}; choose another place with --zoo") from refused
    database = Database(folder / DATABASE)
    if not database.path.exists() or upgraded(database, migrations, create=database.writable) == 0:
        raise ZooError(f"there is no zoo at {folder}; nearkin add makes one, or name another with --zoo")
    return database


def _require_zoo(folder: Path) -> None:
    """Nothing at all is fine, and so is an empty folder; what another process makes meanwhile is no stranger."""
    if folder.exists():
        require(folder.is_dir(), f"{folder} is a file, no zoo; name a folder with --zoo", ZooError)
        require(
            next(folder.iterdir(), None) is None or (folder / DATABASE).exists(),
            f"{folder} is no zoo: it is not empty and holds no {DATABASE}; name another folder with --zoo",
            ZooError,
        )


def upgraded(database: Database, migrations: Sequence[Migration] = MIGRATIONS, create: bool = True) -> int:
    """Bring the tables to the newest version, in one transaction, and return the version there is then.

    The database as it was is kept beside it as `zoo.db.vN`. Of two processes, the second finds the work done. An empty
    database, of version 0, stays so unless `create`.
    """
    newest = migrations[-1].version
    with database.reading() as connection:
        found = version(connection, newest, database.path)
    if found == 0 and not create:
        return found
    database.write_ahead()
    if found == newest:
        return found
    with database.writing() as connection:
        found = version(connection, newest, database.path)
        if 0 < found < newest:
            database.keep_copy(database.path.with_name(f"{database.path.name}.v{found}"))
        _migrate(connection, found, migrations, database.path.parent)
    return newest


def version(connection: sql.Connection, newest: int, path: Path) -> int:
    """Version of the tables, at most `newest`; 0 for a database without any, as a killed creation leaves it."""
    names = sql.inspect(connection).get_table_names()
    if not names:
        return 0
    ours = {"meta", "tasks"} <= set(names)
    text = connection.scalar(sql.select(meta.c.value).where(meta.c.key == VERSION_KEY)) if ours else None
    version = whole_number(text or "")
    if version is None:
        raise ZooError(f"{path} is no database of nearkin; name another folder with --zoo")
    require(
        version <= newest,
        f"this zoo is of version {text}, this nearkin knows up to {newest}; install a newer nearkin",
        ZooError,
    )
    return version


def _migrate(connection: sql.Connection, found: int, migrations: Sequence[Migration], zoo: Path) -> None:
    try:
        for step in migrations:
            if step.version > found:
                step.apply(connection)
                connection.execute(sql.delete(meta).where(meta.c.key == VERSION_KEY))
                connection.execute(sql.insert(meta).values(key=VERSION_KEY, value=str(step.version)))
    except Exception as failed:
        if found == 0:
            raise
        raise ZooError(
            f"could not bring {zoo} from version {found} to {migrations[-1].version}: {_line(failed)}; "
            f"it is as it was: free space if the disk is full, else go on with the nearkin that made it"
        ) from failed


def _begun(connection: sql.Connection) -> None:
    """SQLAlchemy leaves BEGIN to the driver, the driver to us: a writer takes its lock before it reads."""
    connection.exec_driver_sql(connection.get_execution_options().get("nearkin_begin", "BEGIN"))


def _explained(path: Path, refused: Exception) -> NearkinError:
    """One line for whatever the database says."""
    again = "nothing was changed: free space or choose another place, then run it again"
    owner = "nothing was changed: ask its owner for the right to write, or name another zoo with --zoo"
    cases: dict[int, NearkinError] = {
        sqlite3.SQLITE_FULL: FileWriteError(f"cannot write {path}: the disk is full; {again}"),
        sqlite3.SQLITE_IOERR: FileWriteError(f"cannot write {path}: {_line(refused)}; {again}"),
        sqlite3.SQLITE_READONLY: FileWriteError(f"cannot write {path}: it is read-only; {owner}"),
        sqlite3.SQLITE_CANTOPEN: ZooError(f"cannot open {path}; check that it is there and that you may read it"),
        sqlite3.SQLITE_BUSY: ZooError(
            f"another process has been writing to {path} for {BUSY_SECONDS:.0f} s; wait for it, then run it again"
        ),
        sqlite3.SQLITE_NOTADB: ZooError(f"{path} is no database of nearkin; name another folder with --zoo"),
        sqlite3.SQLITE_CORRUPT: ZooError(f"{path} is damaged; run nearkin doctor, then put back a copy of the zoo"),
    }
    return cases.get(_code(refused), ZooError(f"the database {path} refused: {_line(refused)}; run nearkin doctor"))


def _code(error: Exception) -> int:
    """SQLite's error code, without its details."""
    code: int = getattr(getattr(error, "orig", error), "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & 0xFF


def _line(error: Exception) -> str:
    return " ".join(str(getattr(error, "orig", error)).split())
