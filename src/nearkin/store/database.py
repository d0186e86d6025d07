"""Opening, transactions and migration of the SQLite database of a zoo.

All other modules use only SQLAlchemy. A database server needs another `Database` and no other change.
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
    """Transactions on the SQLite file of a zoo, in write-ahead mode: readers never wait and see complete commits only.

    A connection is closed at the end of its transaction. The object can therefore be shared by threads, used after a
    fork, and dropped without closing.
    """

    def __init__(self, path: Path, durable: bool = True) -> None:
        self.path, self.durable = path.resolve(), durable
        pool = sql.NullPool if durable else sql.QueuePool
        engine = sql.create_engine("sqlite://", creator=self._connect, poolclass=pool)
        sql.event.listen(engine, "begin", _begun)
        self._reader = engine
        self._writer = engine.execution_options(nearkin_begin="BEGIN IMMEDIATE")

    def reading(self) -> AbstractContextManager[sql.Connection]:
        """Begin a transaction that reads one committed state of the database."""
        return self._transaction(self._reader)

    def writing(self) -> AbstractContextManager[sql.Connection]:
        """Begin a transaction that holds the write lock of the zoo from its start; an exception rolls it back."""
        return self._transaction(self._writer)

    def keep_copy(self, target: Path) -> None:
        """Write a copy of the committed database, also while this process holds the write lock."""
        with self.reading() as connection:
            driver: Any = connection.connection.driver_connection
            write_durably(target, driver.serialize())

    def write_ahead(self) -> None:
        """Switch to write-ahead mode; wait for other processes that do the same, which SQLite does not."""
        deadline = time.monotonic() + BUSY_SECONDS
        while self.writable:
            try:
                with closing(self._connect()) as connection:
                    connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.Error as refused:
                if _code(refused) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise database_error(self.path, refused, BUSY_SECONDS) from refused
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

    def close(self) -> None:
        """Release the engine."""
        self._reader.dispose()

    @contextmanager
    def _transaction(self, engine: sql.Engine) -> Iterator[sql.Connection]:
        try:
            with engine.begin() as connection:
                yield connection
        except SQLAlchemyError as refused:
            raise database_error(self.path, refused, BUSY_SECONDS) from refused

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._address(), uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=self.durable
        )
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


def open_database(folder: Path, create: bool = True, migrations: Sequence[Migration] = MIGRATIONS) -> Database:
    """Open the database of a zoo in its newest version; `create` makes a zoo of a missing or empty folder.

    All tables are created in one transaction that holds the write lock. A process that is killed meanwhile leaves an
    empty folder or a database without tables, which the next process that opens it completes, with or without
    `create`. If several processes open it at once, one creates the tables and the others wait.
    """
    try:
        _require_zoo(folder)
        if create and not (folder / DATABASE).exists():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / DATABASE).touch()
    except OSError as refused:
        reason = refused.strerror or refused
        raise FileWriteError(f"cannot open a zoo at {folder}: {reason}; name another folder with --zoo") from refused
    database = Database(folder / DATABASE)
    if not database.path.exists() or upgrade(database, migrations, create=database.writable) == 0:
        raise ZooError(f"there is no zoo at {folder}; nearkin add makes one, or name another with --zoo")
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


def upgrade(database: Database, migrations: Sequence[Migration] = MIGRATIONS, create: bool = True) -> int:
    """Migrate the tables to the newest version in one transaction, and return the version that they have then.

    A copy of the old database is kept as `zoo.db.vN`. If two processes do this at once, the second has nothing left to
    do. An empty database, of version 0, is left as it is unless `create`.
    """
    newest = migrations[-1].version
    with database.reading() as connection:
        current = table_version(connection, newest, database.path)
    if current == 0 and not create:
        return current
    database.write_ahead()
    if current == newest:
        return current
    with database.writing() as connection:
        current = table_version(connection, newest, database.path)
        if 0 < current < newest:
            database.keep_copy(database.path.with_name(f"{database.path.name}.v{current}"))
        _migrate(connection, current, migrations, database.path.parent)
    return newest


def table_version(connection: sql.Connection, newest: int, path: Path) -> int:
    """Version of the tables, at most `newest`; 0 if there are none, because the process that made them was killed."""
    names = sql.inspect(connection).get_table_names()
    if not names:
        return 0
    ours = {"meta", "tasks"} <= set(names)
    text = connection.scalar(sql.select(meta.c.value).where(meta.c.key == VERSION_KEY)) if ours else None
    version = whole_number(text or "")
    if version is None:
        raise ZooError(f"{path} is not a database of nearkin; name another folder with --zoo")
    require(
        version <= newest,
        f"this zoo has version {text}, expected at most {newest}; install a newer nearkin",
        ZooError,
    )
    return version


def _migrate(connection: sql.Connection, current: int, migrations: Sequence[Migration], zoo: Path) -> None:
    try:
        for step in migrations:
            if step.version > current:
                step.apply(connection)
                connection.execute(sql.delete(meta).where(meta.c.key == VERSION_KEY))
                connection.execute(sql.insert(meta).values(key=VERSION_KEY, value=str(step.version)))
    except Exception as failed:
        if current == 0:
            raise
        raise ZooError(
            f"could not migrate {zoo} from version {current} to {migrations[-1].version}: {_line(failed)}; "
            f"nothing was changed: free space if the disk is full, else use the nearkin that created it"
        ) from failed


def _begun(connection: sql.Connection) -> None:
    """Begin the transaction; a writer takes its lock before it reads."""
    connection.exec_driver_sql(connection.get_execution_options().get("nearkin_begin", "BEGIN"))


def database_error(path: Path, error: Exception, waited: float) -> NearkinError:
    """An error of SQLite, explained in one line; `waited` are the seconds after which a lock became an error."""
    again = "nothing was changed: free space or use another folder, then run it again"
    owner = "nothing was changed: ask its owner for permission to write, or name another zoo with --zoo"
    busy = ZooError(f"another process has been writing to {path} for {waited:g} s; wait for it, then run it again")
    cases: dict[int, NearkinError] = {
        sqlite3.SQLITE_FULL: FileWriteError(f"cannot write {path}: the disk is full; {again}"),
        sqlite3.SQLITE_IOERR: FileWriteError(f"cannot write or read {path}: {_line(error)}; {again}"),
        sqlite3.SQLITE_READONLY: FileWriteError(f"cannot write {path}: it is read-only; {owner}"),
        sqlite3.SQLITE_CANTOPEN: ZooError(f"cannot open {path}; check that it exists and that you may read it"),
        sqlite3.SQLITE_BUSY: busy,
        sqlite3.SQLITE_LOCKED: busy,
        sqlite3.SQLITE_NOTADB: ZooError(f"{path} is not a database of nearkin; name another folder with --zoo"),
        sqlite3.SQLITE_CORRUPT: ZooError(f"{path} is damaged; run nearkin doctor, then restore a copy of the zoo"),
    }
    return cases.get(_code(error), ZooError(f"cannot use the database {path}: {_line(error)}; run nearkin doctor"))


def _code(error: Exception) -> int:
    """The primary error code of SQLite, without the extended bits."""
    code: int = getattr(getattr(error, "orig", error), "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & 0xFF


def _line(error: Exception) -> str:
    return " ".join(str(getattr(error, "orig", error)).split())
