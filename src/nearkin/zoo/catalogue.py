"""The catalogue of a zoo: which tasks it holds, what is known of them, and where their files lie.

A zoo is a folder: `zoo.db`, `blobs/` and `work/`. A file is there before a row names it and goes after no row does,
both decided under the zoo's one write lock: no row names a missing file, whoever is killed at whatever moment.
"""

import difflib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import sqlalchemy as sql

from nearkin.core.errors import NearkinError, ZooError, require
from nearkin.core.files import FileWriteError
from nearkin.zoo import schema
from nearkin.zoo.blobs import Blobs
from nearkin.zoo.schema import BATCH, json_text, require_name, require_plain

Supply: TypeAlias = Callable[[str], bytes]
"""The bytes of a blob by its digest."""


@dataclass(frozen=True, kw_only=True)
class NewTask:
    """A solved task on its way into the zoo, checked at birth.

    Attributes:
        name: what people call it, see `require_name`.
        network: name of the network it was measured with.
        likelihood: `categorical`, `gaussian`, `heteroscedastic`, `dense` or `language`.
        data: the data string that reads it again; empty for arrays.
        num_classes: classes, words, target columns or output channels.
        input_shape: shape of one input.
        metric: of the network on the test part.
        epsilon: what the network falls short of a perfect metric.
        trials: how often it was trained.
        parameters: weights of the network.
        seconds: what it cost.
        seed: of the run.
        fingerprint: hash of the data.
        facts: whatever else is known, plain JSON values.
        created: when, in ISO form and UTC.
    """

    name: str
    network: str
    likelihood: str
    data: str
    num_classes: int
    input_shape: tuple[int, ...]
    metric: float
    epsilon: float
    trials: int
    parameters: int
    seconds: float
    seed: int
    fingerprint: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def __post_init__(self) -> None:
        require_name(self.name)
        for key in ("network", "likelihood", "data", "fingerprint", "created"):
            require_plain(f"{key} of {self.name}", getattr(self, key))
        for key in ("metric", "epsilon", "seconds"):
            value = getattr(self, key)
            require(math.isfinite(value), f"{key} of {self.name} is {value}, expected a finite number; train it anew")
        for key in ("num_classes", "trials", "parameters", "seed"):
            value = getattr(self, key)
            require(0 <= value < 2**63, f"{key} of {self.name} is {value}, expected a whole number from 0 to 2**63 - 1")
        json_text(self.name, self.facts)

    def row(self) -> dict[str, Any]:
        """The columns of the table `tasks`, without `id`."""
        shape = json.dumps([int(side) for side in self.input_shape])
        return {**vars(self), "input_shape": shape, "facts": json_text(self.name, self.facts)}


@dataclass(frozen=True)
class NewArtifact:
    """A file of a task on its way into the zoo: what it is, of which trial, and its bytes."""

    kind: str
    trial: int
    data: bytes = field(repr=False)
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Placed:
    """An artifact whose bytes lie in the zoo already, under their digest; no row names them yet."""

    kind: str
    trial: int
    digest: str
    size: int
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_plain("kind of an artifact", self.kind)
        require(0 <= self.trial < 2**31, f"{self.kind}: trials count from 0, got {self.trial}")
        json_text(self.kind, self.facts)

    def row(self, number: int) -> dict[str, Any]:
        """The columns of the table `artifacts`, without `id`, for the task of that number."""
        facts = json_text(self.kind, self.facts)
        return {"task_id": number, "kind": self.kind, "trial": self.trial, "digest": self.digest, "facts": facts}


@dataclass(frozen=True)
class TaskRecord:
    """A row of `tasks`; its JSON is parsed when asked for, so that ten thousand are listed at once."""

    id: int
    name: str
    network: str
    likelihood: str
    data: str
    num_classes: int
    input_shape_text: str = field(repr=False)
    metric: float
    epsilon: float
    trials: int
    parameters: int
    seconds: float
    seed: int
    fingerprint: str
    created: str
    facts_text: str = field(repr=False)

    @classmethod
    def all(cls, connection: sql.Connection) -> "list[TaskRecord]":
        """Every task, in the order they came."""
        return [cls.of_row(row) for row in connection.execute(sql.select(schema.tasks).order_by(schema.tasks.c.id))]

    @classmethod
    def named(cls, connection: sql.Connection, name: str) -> "TaskRecord":
        """The task of that name; an unknown one raises an error that names the nearest."""
        require_name(name)
        row = connection.execute(sql.select(schema.tasks).where(schema.tasks.c.name == name)).one_or_none()
        if row is None:
            near = difflib.get_close_matches(name, connection.scalars(sql.select(schema.tasks.c.name)).all(), n=3)
            guess = f"did you mean {' or '.join(near)}? " if near else ""
            raise ZooError(f"the zoo has no task named {name}; {guess}nearkin list shows all")
        return cls.of_row(row)

    @classmethod
    def of_row(cls, row: sql.Row[Any]) -> "TaskRecord":
        """The record of a row, in a third of the time that the constructor of a frozen class takes."""
        record = object.__new__(cls)
        record.__dict__.update(zip(cls.__dataclass_fields__, row, strict=True))
        return record

    @cached_property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(json.loads(self.input_shape_text))

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Whatever else is known."""
        facts: dict[str, Any] = json.loads(self.facts_text)
        return facts

    def to_dict(self) -> dict[str, Any]:
        """The fields of the `NewTask` it was, as plain JSON values."""
        left_out = ("id", "input_shape_text", "facts_text")
        plain = {key: getattr(self, key) for key in self.__dataclass_fields__ if key not in left_out}
        return {**plain, "input_shape": list(self.input_shape), "facts": self.facts}


@dataclass(frozen=True)
class ArtifactRecord:
    """A row of `artifacts` with the name of its task and the size of its blob."""

    id: int
    task: str
    kind: str
    trial: int
    digest: str
    size: int
    facts_text: str = field(repr=False)

    @classmethod
    def all(
        cls, connection: sql.Connection, task: TaskRecord | None = None, kind: str | None = None
    ) -> "list[ArtifactRecord]":
        """Artifacts of one task or of all, of one kind or of all; by task, kind and trial."""
        table, tasks, blobs = schema.artifacts.c, schema.tasks.c, schema.blobs.c
        columns = (table.id, tasks.name, table.kind, table.trial, table.digest, blobs.size, table.facts)
        query = sql.select(*columns).select_from(schema.artifacts.join(schema.tasks).join(schema.blobs))
        if task is not None:
            query = query.where(table.task_id == task.id)
        if kind is not None:
            query = query.where(table.kind == kind)
        return [cls(*row) for row in connection.execute(query.order_by(table.task_id, table.kind, table.trial))]

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What is known of it beside its bytes."""
        facts: dict[str, Any] = json.loads(self.facts_text)
        return facts

    def to_dict(self) -> dict[str, Any]:
        """The fields of the `Placed` it was, as plain JSON values."""
        return {"kind": self.kind, "trial": self.trial, "digest": self.digest, "size": self.size, "facts": self.facts}


class Catalogue:
    """A zoo folder, opened; made first where there is none and `create` allows it.

    Args:
        path: the folder.
        create: make a zoo where there is none.
        migrations: the steps of the tables from version to version.

    >>> import tempfile
    >>> task = NewTask(name="even", network="mlp", likelihood="categorical", data="digits?parity", num_classes=2,
    ...                input_shape=(1, 8, 8), metric=0.97, epsilon=0.03, trials=1, parameters=4522, seconds=1.5,
    ...                seed=0, fingerprint="f00d")
    >>> with tempfile.TemporaryDirectory() as folder, Catalogue(folder) as zoo:
    ...     added = zoo.add(task, [NewArtifact("weights", 0, b"...")])
    ...     [task.name for task in zoo.tasks()], zoo.blob(zoo.artifacts("even")[0])
    (['even'], b'...')
    """

    def __init__(
        self, path: str | Path, create: bool = True, migrations: Sequence[schema.Migration] = schema.MIGRATIONS
    ) -> None:
        self.database = schema.opened(Path(path), create, migrations)
        self.path = Path(path).absolute()
        self.work = self.path / "work"
        self.blobs = Blobs(self.path / "blobs")

    def __enter__(self) -> "Catalogue":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the database."""
        self.database.close()

    def tasks(self) -> list[TaskRecord]:
        """Every task, in the order they came."""
        with self.database.reading() as connection:
            return TaskRecord.all(connection)

    def task(self, name: str) -> TaskRecord:
        """The task of that name; an unknown one raises an error that names the nearest."""
        with self.database.reading() as connection:
            return TaskRecord.named(connection, name)

    def artifacts(self, name: str | None = None, kind: str | None = None) -> list[ArtifactRecord]:
        """Artifacts of one task or of all, of one kind or of all; by task, kind and trial."""
        with self.database.reading() as connection:
            task = None if name is None else TaskRecord.named(connection, name)
            return ArtifactRecord.all(connection, task, kind)

    def blob(self, artifact: ArtifactRecord) -> bytes:
        """The bytes of an artifact, verified."""
        return self.blobs.get(artifact.digest)

    def claimable(self, name: str) -> str:
        """The name, if a new task may take it; asked before long work, and once more when the work is kept."""
        require_name(name)
        with self.database.reading() as connection:
            _require_free(connection, [name])
        return name

    def add(self, task: NewTask, artifacts: Sequence[NewArtifact] = ()) -> TaskRecord:
        """Keep a task with its files, whole or not at all."""
        self.claimable(task.name)
        with self.provisional() as written:
            placed, supply = self._placed(artifacts, written)
            return self.admit([(task, placed)], supply)[0]

    def attach(self, name: str, artifacts: Sequence[NewArtifact]) -> list[ArtifactRecord]:
        """Add files to a task; one of the same kind and trial is replaced. Returns all the task's artifacts."""
        self.task(name)
        with self.provisional() as written:
            placed, supply = self._placed(artifacts, written)
            with self.database.writing() as connection:
                number = TaskRecord.named(connection, name).id
                stale = _detached(connection, number, placed)
                self._insert(connection, [(number, item) for item in placed], supply)
                _forget_unnamed(connection, stale)
        self._tidy(stale)
        return self.artifacts(name)

    def admit(self, entries: Sequence[tuple[NewTask, Sequence[Placed]]], supply: Supply) -> list[TaskRecord]:
        """Insert tasks whose files lie here already, all or none; `supply` gives a blob that went meanwhile again."""
        names = [task.name for task, _ in entries]
        with self.database.writing() as connection:
            _require_free(connection, names)
            schema.insert_rows(connection, schema.tasks, [task.row() for task, _ in entries])
            records = {
                row.name: TaskRecord.of_row(row)
                for row in schema.rows_with(connection, schema.tasks, schema.tasks.c.name, names)
            }
            placed = [(records[task.name].id, item) for task, items in entries for item in items]
            self._insert(connection, placed, supply)
        return [records[name] for name in names]

    def remove(self, name: str) -> None:
        """Take a task out, and the files that no other task names."""
        with self.database.writing() as connection:
            number = TaskRecord.named(connection, name).id
            named = schema.artifacts.c
            stale = list(connection.scalars(sql.select(named.digest).where(named.task_id == number)))
            connection.execute(sql.delete(schema.tasks).where(schema.tasks.c.id == number))
            _forget_unnamed(connection, stale)
        self._tidy(stale)

    def discard(self, digests: Iterable[str]) -> list[str]:
        """Remove those blobs that no task names, and return them; one that will not go stays, and harms nobody."""
        gone, left = [], iter(sorted(set(digests)))
        while batch := list(islice(left, BATCH)):
            with self.database.writing() as connection:
                kept = {row.digest for row in schema.rows_with(connection, schema.blobs, schema.blobs.c.digest, batch)}
                for digest in sorted(set(batch) - kept):
                    with suppress(FileWriteError):
                        self.blobs.remove(digest)
                        gone.append(digest)
        return gone

    @contextmanager
    def provisional(self) -> Iterator[list[str]]:
        """A list for digests of blobs written ahead of their rows; if the block fails, they go again."""
        written: list[str] = []
        try:
            yield written
        except BaseException:
            self._tidy(written)
            raise

    def _tidy(self, digests: Iterable[str]) -> None:
        """Discard what can be; orphans are harmless, and `nearkin doctor` names them."""
        with suppress(NearkinError):
            self.discard(digests)

    def _placed(self, artifacts: Sequence[NewArtifact], written: list[str]) -> tuple[list[Placed], Supply]:
        """Write every blob and say so in `written`; returns what to insert, and the bytes should they go meanwhile."""
        contents: dict[str, bytes] = {}
        placed = []
        for artifact in artifacts:
            digest = self.blobs.put(artifact.data)
            written.append(digest)
            contents[digest] = artifact.data
            placed.append(Placed(artifact.kind, artifact.trial, digest, len(artifact.data), artifact.facts))
        return placed, contents.__getitem__

    def _insert(self, connection: sql.Connection, placed: Sequence[tuple[int, Placed]], supply: Supply) -> None:
        """Insert artifacts by their task's id; nobody removes a blob now, and one that went before is written again."""
        sizes = {item.digest: item.size for _, item in placed}
        for digest, size in sizes.items():
            if not self.blobs.has(digest, size):
                self.blobs.put(supply(digest))
        known = {row.digest for row in schema.rows_with(connection, schema.blobs, schema.blobs.c.digest, sizes)}
        new = [{"digest": digest, "size": size} for digest, size in sizes.items() if digest not in known]
        schema.insert_rows(connection, schema.blobs, new)
        schema.insert_rows(connection, schema.artifacts, [item.row(number) for number, item in placed])


def _require_free(connection: sql.Connection, names: Sequence[str]) -> None:
    for row in schema.rows_with(connection, schema.tasks, schema.tasks.c.name, names):
        raise ZooError(
            f"the zoo already has a task named {row.name}; choose another name, or nearkin remove {row.name} first"
        )


def _detached(connection: sql.Connection, number: int, placed: Sequence[Placed]) -> list[str]:
    """Delete the artifacts that these replace, and return the digests they named."""
    table = schema.artifacts
    stale: list[str] = []
    for item in placed:
        same = (table.c.task_id == number) & (table.c.kind == item.kind) & (table.c.trial == item.trial)
        stale += connection.scalars(sql.select(table.c.digest).where(same))
        connection.execute(sql.delete(table).where(same))
    return stale


def _forget_unnamed(connection: sql.Connection, digests: Sequence[str]) -> None:
    """Delete the rows of blobs that no artifact names any more."""
    table = schema.blobs
    named = sql.exists().where(schema.artifacts.c.digest == table.c.digest)
    for digest in digests:
        connection.execute(sql.delete(table).where(table.c.digest == digest, ~named))
