"""Tables of the database, and migrations between their versions."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import sqlalchemy as sql

BATCH = 500  # values in one statement; every version of SQLite allows 999 parameters
VERSION_PREFIX = "nearkin-"
ByteOrdered = sql.String().with_variant(sql.String(collation="C"), "postgresql")
"""Text that every database sorts by its bytes; the order of PostgreSQL depends on the language of the server."""

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
    sql.Column("num_classes", sql.BigInteger, nullable=False),
    sql.Column("input_shape", sql.Text, nullable=False),
    sql.Column("metric", sql.Double, nullable=False),
    sql.Column("epsilon", sql.Double, nullable=False),
    sql.Column("trials", sql.BigInteger, nullable=False),
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
    sql.Column("kind", ByteOrdered, nullable=False),
    sql.Column("trial", sql.Integer, nullable=False),
    sql.Column("digest", sql.ForeignKey("blobs.digest"), nullable=False),
    sql.Column("facts", sql.Text, nullable=False),
    sql.UniqueConstraint("task_id", "kind", "trial"),
    sql.Index("artifacts_by_digest", "digest"),
)

pairs = sql.Table(
    "pairs",
    metadata,
    sql.Column("source_id", sql.ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True),
    sql.Column("target_id", sql.ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True),
    sql.Column("trial", sql.Integer, primary_key=True),
    sql.Column("measure", sql.String, primary_key=True),
    sql.Column("facts", sql.Text, nullable=False),
    sql.Index("pairs_by_target", "target_id"),
)


def rows_with(
    connection: sql.Connection, table: sql.Table, column: sql.Column[str], values: Iterable[str]
) -> Iterator[sql.Row[Any]]:
    """Rows whose column holds one of the values; the query is split into batches."""
    remaining = iter(values)
    while batch := list(islice(remaining, BATCH)):
        yield from connection.execute(sql.select(table).where(column.in_(batch)))


def insert_rows(connection: sql.Connection, table: sql.Table, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows; an empty list is allowed."""
    if rows:
        connection.execute(sql.insert(table), rows)


@dataclass(frozen=True)
class Migration:
    """Step from the previous version to `version`; `apply` runs in a transaction that holds the write lock."""

    version: int
    apply: Callable[[sql.Connection], None]


@dataclass(frozen=True)
class TableSet:
    """Tables that have a version of their own.

    Attributes:
        key: of the version in the table `meta`; starts with `nearkin-`.
        migrations: in the order of their versions.
    """

    key: str
    migrations: Sequence[Migration]

    @property
    def newest(self) -> int:
        """Version after the last migration."""
        return self.migrations[-1].version


def _first_tables(connection: sql.Connection) -> None:
    """Version 1. To change one of these tables, write its old form here and add a migration below."""
    metadata.create_all(connection, tables=[meta, tasks, blobs, artifacts], checkfirst=False)


def _pairs(connection: sql.Connection) -> None:
    """Version 2: measurements between two tasks."""
    metadata.create_all(connection, tables=[pairs], checkfirst=False)


MIGRATIONS: tuple[Migration, ...] = (Migration(1, _first_tables), Migration(2, _pairs))
ZOO = TableSet("nearkin-zoo", MIGRATIONS)
