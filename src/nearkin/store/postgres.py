"""PostgreSQL: the database of a shared zoo.

The tables are in a schema of their own, `nearkin` unless the address ends with `?schema=NAME`. A writer holds an
advisory lock of the server until its transaction ends, so that the writers of all machines wait for each other.
"""

import importlib
import os
import re
import weakref
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any

import sqlalchemy as sql
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from nearkin.core.addresses import without_secrets
from nearkin.core.errors import NearkinError, ZooError, optional, require
from nearkin.core.files import FileWriteError
from nearkin.store import database as databases
from nearkin.store.database import (
    OWNER,
    WORKER,
    ConnectionLost,
    Database,
    NoZooError,
    one_line,
    require_tables,
    table_names,
)
from nearkin.store.schema import ZOO, TableSet, metadata

SCHEMA = "nearkin"
CONNECT_SECONDS = 10
IDLE_SECONDS = 600  # a writer that stops for longer, because its machine is gone, loses the write lock
LOCKS = 0x6E6B  # first half of the number of an advisory lock
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_STARTING = re.compile(r"starting up|shutting down|recovery mode|not yet accepting|too many|connection slots")
_LOST = ("08", "57P01", "57P02", "57P03", "25P03")  # states in which the server ended the connection
_engines: "weakref.WeakSet[sql.Engine]" = weakref.WeakSet()


def _forget_connections() -> None:
    """Leave the connections of the parent alone after a fork."""
    for engine in _engines:
        engine.dispose(close=False)


os.register_at_fork(after_in_child=_forget_connections)


class PostgresDatabase(Database):
    """Transactions on the tables of a schema.

    Args:
        address: `postgresql://USER:PASSWORD@HOST:PORT/DATABASE?schema=NAME`; every part but the scheme may be left
            out. Further parameters, such as `sslmode`, are those of libpq.
        tables: the tables and their migrations.
        durable: wait at each commit until it is on the disk; else a failure of the server may undo the last commits.
    """

    def __init__(self, address: str, tables: TableSet = ZOO, durable: bool = True) -> None:
        self.name, self.tables, self.durable = without_secrets(address), tables, durable
        url, self.schema = _parsed(address)
        self._reader, self._writer = _engine(url, self.schema), _engine(url, self.schema)
        sql.event.listen(self._reader, "connect", _only_reads)
        for engine in (self._reader, self._writer):
            weakref.finalize(self, engine.dispose)  # also if it is dropped without closing

    def reading(self) -> AbstractContextManager[sql.Connection]:
        """Begin a transaction that reads one committed state of the database."""
        return self._transaction(self._reader)

    @contextmanager
    def writing(self) -> Iterator[sql.Connection]:
        """Begin a transaction that holds the write lock of the tables from its start; an exception rolls it back."""
        limits = {"lock_timeout": databases.BUSY_SECONDS, "idle_in_transaction_session_timeout": IDLE_SECONDS}
        values = {name: f"{1000 * seconds:.0f}" for name, seconds in limits.items()}
        if not self.durable:
            values["synchronous_commit"] = "off"
        settings = [sql.func.set_config(name, value, True) for name, value in values.items()]
        lock = zlib.crc32(f"{self.schema}/{self.tables.key}".encode()) - 2**31
        with self._transaction(self._writer) as connection:
            connection.execute(sql.select(*settings, sql.func.pg_advisory_xact_lock(LOCKS, lock)))
            yield connection

    def problems(self) -> list[str]:
        """Missing tables and columns, and rows that name a missing row; empty if there are none."""
        lines = []
        try:
            with self.reading() as connection:
                names = table_names(connection)
                lines += [f"the table {name} is missing" for name in sorted(set(metadata.tables) - names)]
                for table in metadata.sorted_tables:
                    if table.name in names and not lines:
                        lines += _dangling(connection, table)
        except NearkinError as broken:
            return [*lines, str(broken)]
        return lines

    @cached_property
    def writable(self) -> bool:
        """Whether the role may insert and delete rows, and the server is not a read-only copy."""
        fixed = sql.func.pg_is_in_recovery() | (sql.func.current_setting("default_transaction_read_only") == "on")
        with self.reading() as connection:
            rights = [
                sql.func.has_table_privilege(f"{self.schema}.{name}", right)
                for name in table_names(connection) & set(metadata.tables) - {"meta"}
                for right in ("INSERT", "DELETE")
            ]
            return bool(connection.scalar(sql.select(sql.and_(~fixed, *rights))))

    def create_schema(self, connection: sql.Connection) -> None:
        """Create the schema if it does not exist; the database must store text as UTF-8."""
        encoding = connection.scalar(sql.select(sql.func.current_setting("server_encoding")))
        require(
            encoding == "UTF8",
            f"the database of {self.name} has the encoding {encoding}, expected UTF8; create one with createdb "
            f"--encoding UTF8 --template template0",
            ZooError,
        )
        if self.schema not in sql.inspect(connection).get_schema_names():
            connection.execute(sql.schema.CreateSchema(self.schema))

    def foreign(self) -> ZooError:
        """The error if the tables are not those of nearkin."""
        return ZooError(
            f"the schema {self.schema} of {self.name} holds tables that are not nearkin's; choose another with "
            f"?schema=NAME at the end of the address"
        )

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._reader.dispose()
        self._writer.dispose()

    @contextmanager
    def _transaction(self, engine: sql.Engine) -> Iterator[sql.Connection]:
        try:
            with engine.begin() as connection:
                yield connection
        except SQLAlchemyError as refused:
            raise self._error(refused, changes=engine is self._writer) from refused

    def _error(self, error: SQLAlchemyError, changes: bool) -> NearkinError:
        """An error of the driver or the server, explained in one line."""
        driver: Any = getattr(error, "orig", None)
        state = getattr(driver, "sqlstate", None) or ""
        line = (state and driver.diag.message_primary) or one_line(error)
        if isinstance(error, DBAPIError) and not state and ("connect" in line or "resolve" in line):
            return _refused_connection(self.name, line)
        if state.startswith(_LOST) or (isinstance(error, DBAPIError) and error.connection_invalidated):
            return ConnectionLost(f"the connection to {self.name} was lost ({line}); run it again")
        busy = f"another process has been writing to {self.name} for {databases.BUSY_SECONDS:g} s"
        rights = (
            FileWriteError(f"cannot write {self.name}: {line}; {OWNER}")
            if changes
            else ZooError(f"cannot read {self.name}: {line}; ask its owner for permission to read")
        )
        cases: dict[str, NearkinError] = {
            "42501": rights,
            "25006": FileWriteError(f"cannot write {self.name}: it is read-only; {OWNER}"),
            "53100": FileWriteError(f"cannot write {self.name}: the disk of the server is full; nothing was changed"),
            "55P03": ZooError(f"{busy}; wait for it, then run it again"),
        }
        return cases.get(state, ZooError(f"cannot use the database {self.name}: {line}; run nearkin doctor"))


def open_postgres(
    address: str, create: bool = True, tables: TableSet = ZOO, blobs: str = "", others: Sequence[TableSet] = ()
) -> PostgresDatabase:
    """Open the schema of a shared zoo; `create` makes one in a database that has none, with the URL of its blobs.

    The tables of `others` are created with it, because those who write later may not create tables.
    """
    database = PostgresDatabase(address, tables)
    try:
        if not require_tables(database, create=create and bool(blobs), facts={"blobs": blobs}, others=others):
            advice = (
                "give the place of its files with --blobs URL to make one"
                if create
                else "nearkin --blobs URL add makes one, or name another with --zoo"
            )
            raise NoZooError(f"there is no zoo at {database.name}; {advice}")
    except BaseException:
        database.close()
        raise
    return database


def _parsed(address: str) -> tuple[sql.URL, str]:
    """The URL for SQLAlchemy, and the schema."""
    optional("psycopg", "postgres", "a zoo at postgresql://…")
    shown = without_secrets(address)
    try:
        url = sql.make_url(address)
    except (ArgumentError, ValueError):
        raise ZooError(
            f"got the address {shown}, expected postgresql://USER:PASSWORD@HOST:PORT/DATABASE; write / ? # @ in a "
            f"password as %2F %3F %23 %40"
        ) from None
    schema = url.query.get("schema", SCHEMA)
    require(
        isinstance(schema, str) and _NAME.fullmatch(schema) is not None and not schema.startswith("pg_"),
        f"got the schema {schema!r} in {shown}, expected small letters, digits and _",
        ZooError,
    )
    return url.difference_update_query(["schema"]).set(drivername="postgresql+psycopg"), str(schema)


def _engine(url: sql.URL, schema: str) -> sql.Engine:
    """Connections to a server; a worker closes each after its transaction."""
    engine = sql.create_engine(
        url,
        connect_args={"prepare_threshold": None, "client_encoding": "utf8", **_timeouts(url)},
        execution_options={"schema_translate_map": {None: schema}},
        hide_parameters=True,
        **({"poolclass": sql.NullPool} if WORKER in os.environ else {"pool_pre_ping": True, "pool_size": 1}),
    )
    _engines.add(engine)
    return engine


def _only_reads(connection: Any, record: object) -> None:
    """Let the transactions of a connection of psycopg read one state."""
    connection.isolation_level = importlib.import_module("psycopg").IsolationLevel.REPEATABLE_READ
    connection.read_only = True


def _timeouts(url: sql.URL) -> dict[str, int]:
    """Parameters of libpq that notice a dead server; those in the address are kept."""
    defaults = {"connect_timeout": CONNECT_SECONDS, "keepalives_idle": 30, "keepalives_interval": 10}
    return {key: value for key, value in defaults.items() if key not in url.query}


def _refused_connection(name: str, line: str) -> NearkinError:
    """The error of a connection that could not be made; libpq gives no code, only a text."""
    if _STARTING.search(line) or not ("FATAL" in line or "password" in line):
        return ConnectionLost(f"cannot reach the server of {name}: {line}; check that it runs, and host and port")
    reason = line.rpartition("FATAL:")[2].strip()
    return ZooError(f"the server of {name} refused the connection: {reason}; check user, password and database")


def _dangling(connection: sql.Connection, table: sql.Table) -> list[str]:
    """Lines for the foreign keys of a table that name missing rows; the server checks them while its rules exist."""
    lines = []
    for column in table.columns:
        for key in column.foreign_keys:
            other = key.column.table.alias("other")
            known = sql.exists().where(other.c[key.column.name] == column)
            if rows := connection.scalar(sql.select(sql.func.count()).select_from(table).where(~known)):
                lines.append(f"{rows} rows of {table.name} name a missing row of {key.column.table.name}")
    return lines
