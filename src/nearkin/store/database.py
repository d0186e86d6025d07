"""What every database of a zoo offers, and the versions and migrations of its tables.

`sqlite` and `postgres` implement `Database`; all other modules use only SQLAlchemy.
"""

import functools
import os
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

import sqlalchemy as sql

from nearkin.core.errors import ZooError, require
from nearkin.core.files import FileWriteError
from nearkin.core.numbers import whole_number
from nearkin.store.schema import VERSION_PREFIX, TableSet, insert_rows, meta

T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., Any])

BUSY_SECONDS = 60.0  # longest wait for the write lock
RECONNECT_SECONDS = 60.0  # longest time in which a lost connection is made again
OPENING_SECONDS = 3.0  # longest time in which a first connection is tried again, as a server may be restarting
WORKER = "NEARKIN_WORKER"
"""Environment variable of worker processes: they wait for a server, and keep no connection between transactions."""
OWNER = "nothing was changed: ask its owner for permission to write, or name another zoo with --zoo"


class NoZooError(ZooError):
    """A place that holds no zoo."""


class ConnectionLost(ZooError):
    """A database server that cannot be reached, or that ended the connection."""


class Database(ABC):
    """Transactions on the tables of a zoo; may be shared by threads and used after a fork.

    Attributes:
        name: path of the file, or address without secrets; for messages.
        tables: the tables and their migrations.
    """

    name: str
    tables: TableSet

    @abstractmethod
    def reading(self) -> AbstractContextManager[sql.Connection]:
        """Begin a transaction that reads one committed state; it does not wait for writers."""

    @abstractmethod
    def writing(self) -> AbstractContextManager[sql.Connection]:
        """Begin a transaction that holds the write lock of the tables from its start; an exception rolls it back."""

    @abstractmethod
    def problems(self) -> list[str]:
        """Errors in the tables and in the references between rows; empty if there are none."""

    @property
    @abstractmethod
    def writable(self) -> bool:
        """Whether this process may change the tables."""

    @abstractmethod
    def close(self) -> None:
        """Release the connections."""

    @abstractmethod
    def foreign(self) -> ZooError:
        """The error if the tables are not those of nearkin."""

    def require_writable(self) -> None:
        """Raise `FileWriteError` unless this process may change the tables."""
        if not self.writable:
            raise FileWriteError(f"cannot write {self.name}: it is read-only; {OWNER}")

    def prepare(self) -> None:
        """Set the mode of the database before it is used; called for every database that has or gets tables."""
        return

    def create_schema(self, connection: sql.Connection) -> None:
        """Create what the tables are in; called before the first migration, in its transaction."""
        return

    def keep_copy(self, version: int) -> None:
        """Keep the tables as they were before a migration, if the kind of database allows it; holds the write lock."""
        return


def require_tables(
    database: Database, create: bool, facts: Mapping[str, str] | None = None, others: Sequence[TableSet] = ()
) -> bool:
    """Whether there are tables of the newest version; those of an empty database are created if `create`.

    They are created in one transaction that holds the write lock: if several processes do it at once, one creates them
    and the others wait. Tables of an older or newer version are refused. With new tables, `facts` are stored in `meta`,
    and the tables of `others` are created.
    """
    seconds = RECONNECT_SECONDS if WORKER in os.environ else OPENING_SECONDS
    return retry_lost(lambda again: _require_tables(database, create, facts or {}, others), seconds)


def _require_tables(database: Database, create: bool, facts: Mapping[str, str], others: Sequence[TableSet]) -> bool:
    with database.reading() as connection:
        current = table_version(connection, database)
    if current == 0 and not create:
        return False
    database.prepare()
    if current == 0:
        with database.writing() as connection:
            current = table_version(connection, database)
            if current == 0:
                database.create_schema(connection)
                current = _migrate(connection, current, database.tables)
                insert_rows(connection, meta, [{"key": key, "value": value} for key, value in facts.items()])
                for tables in others:
                    _migrate(connection, 0, tables)
    newest = database.tables.newest
    require(
        current == newest, f"this zoo has version {current}, expected {newest}; run nearkin zoo upgrade once", ZooError
    )
    return True


def upgrade(database: Database) -> tuple[int, int]:
    """Migrate the tables to the newest version in one transaction; returns the version before and after.

    If two processes do this at once, the second waits and has nothing left to do. Empty databases stay empty.
    """
    newest = database.tables.newest
    with database.reading() as connection:
        current = table_version(connection, database)
    if current in (0, newest):
        return current, current
    database.prepare()
    with database.writing() as connection:
        current = table_version(connection, database)
        if current < newest:
            database.keep_copy(current)
        try:
            return current, _migrate(connection, current, database.tables)
        except Exception as failed:
            raise ZooError(
                f"could not migrate {database.name} from version {current} to {newest}: {one_line(failed)}; nothing "
                f"was changed: free space if the disk is full, else use the nearkin that created it"
            ) from failed


def table_version(connection: sql.Connection, database: Database) -> int:
    """Version of the tables, at most the newest one; 0 if there are none."""
    names = table_names(connection)
    if not names:
        return 0
    rows = connection.execute(sql.select(meta.c.key, meta.c.value)).all() if "meta" in names else []
    versions = {key: value for key, value in rows if key.startswith(VERSION_PREFIX)}
    if not versions:
        raise database.foreign()
    version, newest = whole_number(versions.get(database.tables.key, "0")), database.tables.newest
    if version is None:
        raise database.foreign()
    require(
        version <= newest,
        f"this zoo has version {version}, expected at most {newest}; install a newer nearkin",
        ZooError,
    )
    return version


def table_names(connection: sql.Connection) -> set[str]:
    """Names of the tables in the schema of the zoo."""
    schemas = connection.get_execution_options().get("schema_translate_map") or {}
    return set(sql.inspect(connection).get_table_names(schema=schemas.get(None)))


def _migrate(connection: sql.Connection, current: int, tables: TableSet) -> int:
    for step in tables.migrations:
        if step.version > current:
            step.apply(connection)
            connection.execute(sql.delete(meta).where(meta.c.key == tables.key))
            connection.execute(sql.insert(meta).values(key=tables.key, value=str(step.version)))
    return tables.newest


def retry_lost(action: Callable[[bool], T], seconds: float | None = None) -> T:
    """Run an action, and again if the connection was lost, for some seconds (default: `RECONNECT_SECONDS`).

    Its argument is false at first and true later: the change of an earlier attempt may have been committed.
    """
    deadline, pause, again = time.monotonic() + (seconds or RECONNECT_SECONDS), 0.1, False
    while True:
        try:
            return action(again)
        except ConnectionLost:
            if time.monotonic() + pause > deadline:
                raise
        time.sleep(pause * (0.5 + random.random()))
        pause, again = min(2 * pause, 5.0), True


def retried(method: Method) -> Method:
    """Decorate a method that may be repeated: it is, if the connection was lost."""

    @functools.wraps(method)
    def repeat(*args: Any, **options: Any) -> Any:
        return retry_lost(lambda again: method(*args, **options))

    return cast(Method, repeat)


def one_line(error: Exception) -> str:
    """Message of an error of the database driver in one line."""
    return " ".join(str(getattr(error, "orig", None) or error).split())
