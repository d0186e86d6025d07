"""Questions to a zoo that is not changed, in a folder or shared: tasks, distances, artifacts and jobs."""

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import safetensors
import safetensors.torch
import sqlalchemy as sql

from nearkin.core.errors import ZooError
from nearkin.core.events import Progress
from nearkin.core.job_records import CANCELLED, DONE, FAILED, PENDING, RUNNING, JobRecord
from nearkin.core.objects import FolderObjects
from nearkin.store import schema
from nearkin.store.database import NoZooError
from nearkin.store.job_table import JOBS, jobs
from nearkin.store.readers import open_reader
from nearkin.store.records import LONGEST_NAME, ArtifactRecord, TaskRecord

LOSSES = "history/losses"
SHOWN_JOBS = 200
ORDER = (RUNNING, FAILED, PENDING, CANCELLED, DONE)  # of the states in a list of jobs


@dataclass(frozen=True)
class MeasureCount:
    """Number of ordered pairs of tasks whose distance is stored, for the key of one measure."""

    key: str
    pairs: int


@dataclass(frozen=True)
class Distance:
    """Stored measurement between a source and a target in one trial: one value for each aggregate."""

    source: str
    target: str
    trial: int
    values: dict[str, Any]


@dataclass(frozen=True)
class JobList:
    """Jobs in the queue of a zoo: how many there are in each state, and the first ones, running ones before others."""

    counts: Mapping[str, int] = field(default_factory=dict)
    jobs: Sequence[JobRecord] = ()


class ReadOnlyStore:
    """Queries to a zoo; see `readers.ZooReader` for the errors.

    Args:
        address: the folder, or the address `postgresql://…` of a shared zoo.
        blobs: place of the blobs of a shared zoo (default: the stored one).

    Attributes:
        address: the folder, or the address without secrets.
        folder: the folder; None for a shared zoo.
    """

    def __init__(self, address: str | Path, blobs: str = "") -> None:
        self.reader = open_reader(address, blobs)
        self.address, self.folder = self.reader.name, self.reader.folder

    def __enter__(self) -> "ReadOnlyStore":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Release connections."""
        self.reader.close()

    def tasks(self) -> list[TaskRecord]:
        """All tasks, in the order in which they were added."""
        return self.reader.query(TaskRecord.all)

    def task(self, name: str) -> TaskRecord | None:
        """The task of that name; None if there is none, also for names that are not valid."""

        def find(connection: sql.Connection) -> TaskRecord | None:
            rows = schema.rows_with(connection, schema.tasks, schema.tasks.c.name, [name])
            return next((TaskRecord.of_row(row) for row in rows), None)

        return self.reader.query(find)

    def similar_names(self, name: str) -> list[str]:
        """Up to three names of tasks that are similar to a name."""
        if len(name) > LONGEST_NAME:
            return []
        return difflib.get_close_matches(name, [task.name for task in self.tasks()], n=3)

    def artifacts(self, task: TaskRecord) -> list[ArtifactRecord]:
        """Artifacts of a task, sorted by kind and trial."""
        return self.reader.query(lambda connection: ArtifactRecord.all(connection, task))

    def tasks_with(self, kind: str) -> set[str]:
        """Names of the tasks that have an artifact of that kind."""
        return {
            record.task for record in self.reader.query(lambda connection: ArtifactRecord.all(connection, None, kind))
        }

    def measures(self) -> list[MeasureCount]:
        """Measures with stored distances between different tasks, those with most pairs first."""
        table = schema.pairs.c
        pairs = sql.select(table.measure, table.source_id, table.target_id).distinct().subquery()
        apart = pairs.c.source_id != pairs.c.target_id
        query = sql.select(pairs.c.measure, sql.func.count()).where(apart).group_by(pairs.c.measure)
        rows = self.reader.query(lambda connection: list(connection.execute(query)))
        return sorted((MeasureCount(*row) for row in rows), key=lambda measure: (-measure.pairs, measure.key))

    def distances(self, key: str, task: TaskRecord | None = None) -> list[Distance]:
        """Stored distances of one measure; of one task, if it is given, as source or target."""
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
        rows = self.reader.query(lambda connection: list(connection.execute(query)))
        return [Distance(a, b, trial, json.loads(facts)) for a, b, trial, facts in rows]

    def jobs(self, limit: int = SHOWN_JOBS) -> JobList:
        """Jobs in the queue, without what they do and their logs; none if the zoo has no queue."""
        names = ("key", "title", "state", "worker", "host", "attempts", "error", "progress", "updated")
        rank = sql.case({state: place for place, state in enumerate(ORDER)}, value=jobs.c.state, else_=len(ORDER))
        first = sql.select(*(jobs.c[name] for name in names)).order_by(rank, jobs.c.number).limit(limit)
        totals = sql.select(jobs.c.state, sql.func.count()).group_by(jobs.c.state)

        def find(connection: sql.Connection) -> JobList:
            counts = {row[0]: row[1] for row in connection.execute(totals)}
            return JobList(counts, [_job(row) for row in connection.execute(first)])

        try:
            return self.reader.query(find, JOBS)
        except NoZooError:
            return JobList()

    def blob(self, artifact: ArtifactRecord) -> bytes:
        """The bytes of an artifact, verified by their digest."""
        return self.reader.blobs.get(artifact.digest)

    def losses(self, artifact: ArtifactRecord) -> Sequence[float]:
        """The training loss of every step; in a folder, only these are read, and the digest is not verified."""
        blobs = self.reader.blobs
        try:
            if not isinstance(blobs.objects, FolderObjects):
                tensors = safetensors.torch.load(blobs.get(artifact.digest))
                return tensors[LOSSES].tolist() if LOSSES in tensors else []
            with safetensors.safe_open(blobs.path(artifact.digest), "pt") as file:
                losses: list[float] = file.get_tensor(LOSSES).tolist() if LOSSES in set(file.keys()) else []
                return losses
        except (OSError, safetensors.SafetensorError) as broken:
            raise ZooError(f"blob {artifact.digest[:12]}… cannot be read ({broken}); run nearkin doctor") from broken


def _job(row: sql.Row[Any]) -> JobRecord:
    """A job from some of its columns; a progress that is not understood is left out.

    SQLite stores values of any type in any column.
    """
    fields: dict[str, Any] = {name: value if name == "attempts" else str(value) for name, value in row._mapping.items()}
    if not isinstance(fields["attempts"], int):
        fields["attempts"] = 0
    try:
        stage = json.loads(fields.pop("progress"))
    except (ValueError, RecursionError):
        stage = None
    match stage:
        case [str(name), int(done), int() | None as total]:
            return JobRecord(**fields, spec="", progress=Progress(name, done, total))
    return JobRecord(**fields, spec="")
