"""Queue of jobs in a table of the database.

It has a file or a lock of its own: jobs can be done again, so they need not survive a power failure, and workers that
report do not wait for processes that store tasks.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import sqlalchemy as sql

from nearkin.core.addresses import is_shared
from nearkin.core.events import Progress
from nearkin.core.job_records import (
    ATTEMPTS,
    CANCELLED,
    FAILED,
    KEPT_LINES,
    PENDING,
    RUNNING,
    STATES,
    JobQueue,
    JobRecord,
    JobReport,
)
from nearkin.store.database import Database, require_tables, retried
from nearkin.store.postgres import PostgresDatabase
from nearkin.store.schema import BATCH, Migration, TableSet, meta
from nearkin.store.sqlite import open_folder

DATABASE = "jobs.db"
CANDIDATES = 20  # oldest pending jobs among which one is chosen by memory

metadata = sql.MetaData()

jobs = sql.Table(
    "jobs",
    metadata,
    sql.Column("key", sql.String, primary_key=True),
    sql.Column("number", sql.BigInteger, nullable=False),
    sql.Column("change", sql.BigInteger, nullable=False),
    sql.Column("spec", sql.Text, nullable=False),
    sql.Column("title", sql.String, nullable=False),
    sql.Column("mebibytes", sql.Double, nullable=False),
    sql.Column("group", sql.String, nullable=False),
    sql.Column("state", sql.String, nullable=False),
    sql.Column("worker", sql.String, nullable=False),
    sql.Column("host", sql.String, nullable=False),
    sql.Column("beat", sql.BigInteger, nullable=False),
    sql.Column("attempts", sql.Integer, nullable=False),
    sql.Column("error", sql.Text, nullable=False),
    sql.Column("progress", sql.Text, nullable=False),
    sql.Column("log", sql.Text, nullable=False),
    sql.Column("logged", sql.BigInteger, nullable=False),
    sql.Column("updated", sql.String, nullable=False),
    sql.Index("jobs_by_change", "change"),
    sql.Index("jobs_by_state", "state", "number"),
)

changes = sql.Table("job_changes", metadata, sql.Column("last", sql.BigInteger, nullable=False))
"""One row: the number of the last change."""


def _first_table(connection: sql.Connection) -> None:
    """Version 1; the table of versions may be there already, as that of the tasks."""
    meta.create(connection, checkfirst=True)
    metadata.create_all(connection, checkfirst=False)
    connection.execute(sql.insert(changes).values(last=0))


JOBS = TableSet("nearkin-jobs", (Migration(1, _first_table),))

# Statements of every job are made once: SQLAlchemy takes longer to make one than SQLite to run it.
_PENDING = sql.select(jobs).where(jobs.c.state == PENDING).order_by(jobs.c.number).limit(CANDIDATES)
_PENDING_OF_GROUP = _PENDING.where(jobs.c.group == sql.bindparam("of_group"))
_ANY_PENDING, _ANY_OF_GROUP = (sql.select(found.limit(1).exists()) for found in (_PENDING, _PENDING_OF_GROUP))
_RUNNING_ON_HOST = sql.select(sql.exists().where(jobs.c.state == RUNNING, jobs.c.host == sql.bindparam("on_host")))
_OWN = sql.select(jobs).where(
    jobs.c.key == sql.bindparam("own_key"), jobs.c.worker == sql.bindparam("own_worker"), jobs.c.state == RUNNING
)
_CHANGED = sql.select(jobs).where(jobs.c.change > sql.bindparam("since")).order_by(jobs.c.change, jobs.c.number)
_STATES = sql.select(jobs.c.key, jobs.c.state).where(jobs.c.key.in_(sql.bindparam("keys", expanding=True)))
_INSERT = sql.insert(jobs)
_UPDATE = sql.update(jobs).where(jobs.c.key.in_(sql.bindparam("keys", expanding=True)))
_ADVANCE = sql.update(changes).values(last=changes.c.last + sql.bindparam("count")).returning(changes.c.last)


class JobTable:
    """Queue of jobs in a database.

    Changes are numbered under the write lock, so that a process which knows all changes up to a number reads only the
    later ones.

    Args:
        database: a database with the table.
    """

    def __init__(self, database: Database) -> None:
        self.database = database

    def put(self, jobs_to_add: Iterable[JobRecord]) -> None:
        """Add pending jobs. Known ones join the new group; those that have ended begin again."""
        self._put({job.key: job for job in jobs_to_add})

    @retried
    def _put(self, jobs_by_key: Mapping[str, JobRecord]) -> None:
        with self.database.writing() as connection:
            remaining = iter(jobs_by_key.values())
            while batch := list(islice(remaining, BATCH)):
                change, keys = _next_change(connection, len(batch)), [job.key for job in batch]
                states = {row.key: row.state for row in connection.execute(_STATES, {"keys": keys})}
                for number, job in enumerate(batch, change):
                    if job.key not in states:
                        connection.execute(_INSERT, {**_row(job), "number": number, "change": number})
                    elif states[job.key] in (PENDING, RUNNING):
                        _update(connection, [job.key], number, group=job.group)
                    else:
                        _update(connection, [job.key], number, group=job.group, **_FRESH)

    @retried
    def claim(self, worker: str, host: str, free_mebibytes: float, group: str | None = None) -> JobRecord | None:
        """Take the oldest pending job for which there is memory."""
        if not self._pending(group):  # without the write lock, which idle workers must not hold
            return None
        with self.database.writing() as connection:
            query = _PENDING if group is None else _PENDING_OF_GROUP
            busy: bool | None = None
            for row in connection.execute(query, {"of_group": group}):
                if row.mebibytes > free_mebibytes:
                    if busy is None:
                        busy = bool(connection.scalar(_RUNNING_ON_HOST, {"on_host": host}))
                    if busy:
                        continue
                taken = {"state": RUNNING, "worker": worker, "host": host, "beat": row.beat + 1,
                         "attempts": row.attempts + 1, "progress": "null"}  # fmt: skip
                _update(connection, [row.key], _next_change(connection), **taken)
                return replace(_record(row), **{**taken, "progress": None})
        return None

    def report(self, worker: str, key: str, report: JobReport) -> bool:
        """Give a sign of life; False if the job is not this worker's any more."""
        with self.database.writing() as connection:
            row = _own(connection, worker, key)
            if row is None:
                return False
            _update(connection, [key], _next_change(connection), beat=row.beat + 1, **_reported(row, report))
            return True

    @retried
    def end(self, worker: str, key: str, state: str, error: str, report: JobReport) -> bool:
        """Store how a job ended; False if it is not this worker's any more."""
        with self.database.writing() as connection:
            row = _own(connection, worker, key)
            if row is None:
                return False
            values = {**_reported(row, report), "beat": row.beat + 1, "state": state, "error": error}
            _update(connection, [key], _next_change(connection), **values)
            return True

    @retried
    def put_back(self, job: JobRecord, reason: str) -> bool:
        """Put back a running job that has lost its worker; after `ATTEMPTS` workers it fails with the reason."""
        with self.database.writing() as connection:
            row = _own(connection, job.worker, job.key)
            if row is None or row.beat != job.beat:
                return False
            _put_back(connection, row, reason)
            return True

    @retried
    def leave(self, worker: str, reason: str = "") -> list[str]:
        """Put back the running jobs of a worker that has ended, and return their keys."""
        with self.database.writing() as connection:
            own = (jobs.c.worker == worker) & (jobs.c.state == RUNNING)
            rows = list(connection.execute(sql.select(jobs).where(own)))
            for row in rows:
                _put_back(connection, row, reason)
            return [row.key for row in rows]

    def cancel(self, keys: Sequence[str]) -> list[str]:
        """Cancel jobs that have not ended, and return their keys."""
        return self._change_states(keys, (PENDING, RUNNING), {"state": CANCELLED})

    def retry(self, keys: Sequence[str]) -> list[str]:
        """Put failed and cancelled jobs back into the queue with all their attempts, and return their keys."""
        return self._change_states(keys, (FAILED, CANCELLED), _FRESH)

    @retried
    def forget(self, keys: Sequence[str]) -> None:
        """Remove jobs."""
        with self.database.writing() as connection:
            for batch in _batches(keys):
                connection.execute(sql.delete(jobs).where(jobs.c.key.in_(batch)))

    @retried
    def jobs(self, states: Sequence[str] = STATES) -> list[JobRecord]:
        """Jobs in these states, oldest first."""
        query = sql.select(jobs).where(jobs.c.state.in_(list(states))).order_by(jobs.c.number)
        with self.database.reading() as connection:
            return [_record(row) for row in connection.execute(query)]

    def changes(self, since: int) -> tuple[int, list[JobRecord]]:
        """Number of the last change, and the jobs that were changed after number `since`."""
        with self.database.reading() as connection:
            rows = list(connection.execute(_CHANGED, {"since": since}))
        return max((row.change for row in rows), default=since), [_record(row) for row in rows]

    def close(self) -> None:
        """Release connections."""
        self.database.close()

    def _pending(self, group: str | None) -> bool:
        query = _ANY_PENDING if group is None else _ANY_OF_GROUP
        with self.database.reading() as connection:
            return bool(connection.scalar(query, {"of_group": group}))

    @retried
    def _change_states(self, keys: Sequence[str], before: Sequence[str], values: dict[str, Any]) -> list[str]:
        changed: list[str] = []
        with self.database.writing() as connection:
            for batch in _batches(keys):
                query = sql.select(jobs.c.key).where(jobs.c.key.in_(batch), jobs.c.state.in_(list(before)))
                found = list(connection.scalars(query.order_by(jobs.c.number)))
                _update(connection, found, _next_change(connection), **values)
                changed += found
        return changed


_FRESH: dict[str, Any] = {"state": PENDING, "attempts": 0, "error": "", "progress": "null"}


def _put_back(connection: sql.Connection, row: sql.Row[Any], reason: str) -> None:
    change = _next_change(connection)
    if not reason:
        _update(connection, [row.key], change, state=PENDING, attempts=row.attempts - 1)
    elif row.attempts < ATTEMPTS:
        _update(connection, [row.key], change, state=PENDING)
    else:
        error = f"{row.attempts} worker processes ended in {row.title or row.key}: {reason}"
        _update(connection, [row.key], change, state=FAILED, error=error)


def _own(connection: sql.Connection, worker: str, key: str) -> sql.Row[Any] | None:
    """The row of a running job, if it is this worker's."""
    return connection.execute(_OWN, {"own_key": key, "own_worker": worker}).one_or_none()


def _update(connection: sql.Connection, keys: Sequence[str], change: int, **values: Any) -> None:
    if keys:
        new = {**values, "change": change, "updated": _now()}
        connection.execute(_UPDATE, {"keys": list(keys), **new})


def _reported(row: sql.Row[Any], report: JobReport) -> dict[str, Any]:
    """Columns that a report changes."""
    values: dict[str, Any] = {}
    if report.progress is not None:
        values["progress"] = json.dumps([report.progress.stage, report.progress.done, report.progress.total])
    if report.lines:
        lines = [*json.loads(row.log), *map(list, report.lines)][-KEPT_LINES:]
        values |= {"log": json.dumps(lines), "logged": row.logged + len(report.lines)}
    return values


def _next_change(connection: sql.Connection, count: int = 1) -> int:
    """The next number of a change, of `count` ones; numbers are never used again, also if jobs are removed."""
    return int(connection.execute(_ADVANCE, {"count": count}).scalar_one()) - count + 1


def _batches(keys: Sequence[str]) -> Iterable[list[str]]:
    return (list(keys[start : start + BATCH]) for start in range(0, len(keys), BATCH))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _row(job: JobRecord) -> dict[str, Any]:
    values = {name: getattr(job, name) for name in ("key", "spec", "title", "mebibytes", "group", "state", "worker",
              "host", "beat", "attempts", "error", "logged")}  # fmt: skip
    return {**values, "progress": "null", "log": "[]", "updated": _now()}


def _record(row: sql.Row[Any]) -> JobRecord:
    fields = dict(row._mapping)
    for name in ("number", "change"):
        del fields[name]
    stage = json.loads(fields["progress"])
    fields |= {
        "progress": None if stage is None else Progress(*stage),
        "log": tuple((kind, text) for kind, text in json.loads(fields["log"])),
    }
    return JobRecord(**fields)


def open_job_table(address: str) -> JobTable:
    """The queue of jobs of a zoo, in a folder or at `postgresql://…`; it is created if there is none."""
    if is_shared(address):
        database: Database = PostgresDatabase(address, JOBS, durable=False)
        require_tables(database, create=True)
        return JobTable(database)
    return JobTable(open_folder(Path(address), True, JOBS, DATABASE, durable=False))


_IMPLEMENTED: type[JobQueue] = JobTable  # lets the type checker verify the protocol
