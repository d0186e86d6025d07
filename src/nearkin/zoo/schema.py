"""The tables of a zoo, what may stand in them, their versions, and the one place that knows SQLite.

Everything else of the zoo speaks SQLAlchemy's own language; a server database needs another `Database`, no more.
"""

import json
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from nearkin.core.errors import NearkinError, ZooError, require
from nearkin.core.files import FileWriteError, write_durably

BUSY_SECONDS = 60.0
LONGEST_NAME = 100
BATCH = 500  # values in one statement; SQLite takes 999 parameters at the least
_UNPLAIN = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
VERSION_KEY = "nearkin-zoo"
DATABASE = "zoo.db"

metadata = sql.MetaData()

meta = sql.Table(
    "meta",
    metadata,
    sql.Column("key", sql.String, primary_key=True),
    sql.Column("value", sql.String, nullable=False),
)

tasks = sql.Table(
    "tasks",
    metadata,
    sql.Column("id", sql.Integer, primary_key=True),
    sql.Column("name", sql.String, nullable=False, unique=True),
    sql.Column("network", sql.String, nullable=False),
    sql.Column("likelihood", sql.String, nullable=False),
    sql.Column("data", sql.String, nullable=False),
    sql.Column("num_classes", sql.Integer, nullable=False),
    sql.Column("input_shape", sql.Text, nullable=False),
    sql.Column("metric", sql.Double, nullable=False),
    sql.Column("epsilon", sql.Double, nullable=False),
    sql.Column("trials", sql.Integer, nullable=False),
    sql.Column("parameters", sql.BigInteger, nullable=False),
    sql.Column("seconds", sql.Double, nullable=False),
    sql.Column("seed", sql.BigInteger, nullable=False),
    sql.Column("fingerprint", sql.String, nullable=False),
    sql.Column("created", sql.String, nullable=False),
    sql.Column("facts", sql.Text, nullable=False),
)

blobs = sql.Table(
    "blobs",
    metadata,
    sql.Column("digest", sql.String(64), primary_key=True),
    sql.Column("size", sql.BigInteger, nullable=False),
)

artifacts = sql.Table(
    "artifacts",
    metadata,
    sql.Column("id", sql.Integer, primary_key=True),
    sql.Column("task_id", sql.ForeignKey("tasks.id", ondelete="CASCADE"), nullable=False),
    sql.Column("kind", sql.String, nullable=False),
    sql.Column("trial", sql.Integer, nullable=False),
    sql.Column("digest", sql.ForeignKey("blobs.digest"), nullable=False),
    sql.Column("facts", sql.Text, nullable=False),
    sql.UniqueConstraint("task_id", "kind", "trial"),
    sql.Index("artifacts_by_digest", "digest"),
)


def require_name(name: str) -> str:
    """The name, if a task may bear it.

    >>> require_name("even digits")
    'even digits'
    >>> require_name("a/b")
    Traceback (most recent call last):
    nearkin.core.errors.ZooError: 'a/b' cannot name a task: ...
    """
    plain = name.isprintable() and name == name.strip() and not set(name) & set("/\\")
    require(
        plain and 0 < len(name) <= LONGEST_NAME and name[0] != "-" and name not in (".", ".."),
        f"{name[: LONGEST_NAME + 1]!r} cannot name a task: use 1 to {LONGEST_NAME} characters, no slashes, control "
        f"characters or blanks at the ends, and no '-' in front",
        ZooError,
    )
    return name


def json_text(owner: str, facts: Mapping[str, Any]) -> str:
    """Facts as JSON, the same text for equal facts.

    >>> json_text("even", {"b": 1, "a": [0.5]})
    '{"a": [0.5], "b": 1}'
    """
    try:
        return json.dumps(dict(facts), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as odd:
        raise ZooError(f"the facts of {owner} are not plain JSON values ({odd}); give numbers, strings, lists") from odd


def require_plain(what: str, text: str) -> None:
    """Control characters would play with terminals, lone surrogates cannot be stored."""
    require(not _UNPLAIN.search(text), f"the {what} is {text!r}: it holds control characters; rename it", ZooError)


def rows_with(
    connection: sql.Connection, table: sql.Table, column: sql.Column[str], values: Iterable[str]
) -> Iterator[sql.Row[Any]]:
    """Rows of a table whose column holds one of the values."""
    left = iter(values)
    while batch := list(islice(left, BATCH)):
        yield from connection.execute(sql.select(table).where(column.in_(batch)))


def insert_rows(connection: sql.Connection, table: sql.Table, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows; none is fine."""
    if rows:
        connection.execute(sql.insert(table), rows)


@dataclass(frozen=True)
class Migration:
    """One step from the version before to `version`; `apply` runs inside a transaction that holds the write lock."""

    version: int
    apply: Callable[[sql.Connection], None]


def _first_tables(connection: sql.Connection) -> None:
    """Version 1. When the tables above change, these are written out as they are now, and a step is added below."""
    metadata.create_all(connection, checkfirst=False)


MIGRATIONS: tuple[Migration, ...] = (Migration(1, _first_tables),)


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
        while self._writable():
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
        log = self.path.with_name(f"{self.path.name}-wal")
        mode = "rw" if self._writable() else "ro" if log.exists() else "ro&immutable=1"
        return f"{self.path.as_uri()}?mode={mode}"

    def _writable(self) -> bool:
        return os.access(self.path.parent, os.W_OK)


def opened(folder: Path, create: bool = True, migrations: Sequence[Migration] = MIGRATIONS) -> Database:
    """The database of a zoo folder, of the newest version; an empty or absent folder becomes a zoo if `create`.

    A process killed on the way leaves an empty folder or an empty database; the next one goes on from either.
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
    if not database.path.exists() or upgraded(database, migrations, create) == 0:
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
    if text is None or not text.isdecimal():
        raise ZooError(f"{path} is no database of nearkin; name another folder with --zoo")
    require(
        int(text) <= newest,
        f"this zoo is of version {text}, this nearkin knows up to {newest}; install a newer nearkin",
        ZooError,
    )
    return int(text)


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
