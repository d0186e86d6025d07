"""Tasks and artifacts as values: before they are stored (`NewTask`, …) and as rows (`TaskRecord`, …)."""

import difflib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, TypeAlias

import sqlalchemy as sql

from nearkin.core.errors import ZooError, require
from nearkin.store import schema

LONGEST_NAME = 100
_UNPLAIN = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

ReadBlob: TypeAlias = Callable[[str], bytes]
"""Returns the bytes of a blob for its digest."""


def is_name(name: str) -> bool:
    """Whether a name is valid for a task."""
    plain = name.isprintable() and name == name.strip() and not set(name) & set("/\\")
    return plain and 0 < len(name) <= LONGEST_NAME and name[0] != "-" and name not in (".", "..")


def require_name(name: str) -> str:
    """Return the name if it is valid for a task; else raise `ZooError`.

    >>> require_name("even digits")
    'even digits'
    >>> require_name("a/b")
    Traceback (most recent call last):
    nearkin.core.errors.ZooError: 'a/b' cannot name a task: ...
    """
    require(isinstance(name, str), f"the name is {name!r}, expected text", ZooError)
    require(
        is_name(name),
        f"{name[: LONGEST_NAME + 1]!r} cannot name a task: use 1 to {LONGEST_NAME} characters, without slashes, "
        f"control characters, spaces at either end, or '-' at the start",
        ZooError,
    )
    return name


def json_text(owner: str, facts: Mapping[str, Any]) -> str:
    """Write facts as JSON; equal facts give equal text. `owner` names them in the error.

    >>> json_text("even", {"b": 1, "a": [0.5]})
    '{"a": [0.5], "b": 1}'
    """
    try:
        return json.dumps(dict(facts), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as odd:
        raise ZooError(f"the facts of {owner} are not plain JSON values ({odd}); use numbers, strings, lists") from odd


def require_plain(owner: str, text: str) -> None:
    """Refuse control characters, which can change a terminal, and lone surrogates, which cannot be stored."""
    require(isinstance(text, str), f"the {owner} is {text!r}, expected text", ZooError)
    require(not _UNPLAIN.search(text), f"the {owner} is {text!r}: it holds control characters; rename it", ZooError)


@dataclass(frozen=True, kw_only=True)
class NewTask:
    """A solved task that is to be stored; its fields are checked on construction.

    Attributes:
        name: unique in the zoo, see `require_name`.
        network: string of the network that was trained.
        likelihood: `categorical`, `gaussian`, `heteroscedastic`, `dense` or `language`.
        data: data string of the task; empty for arrays.
        num_classes: number of classes, words, target columns or output channels.
        input_shape: shape of one input.
        metric: metric of the network on the test set.
        epsilon: difference between a perfect metric and `metric`.
        trials: number of trained networks.
        parameters: number of weights of the network.
        seconds: time of training.
        seed: seed of the run.
        fingerprint: hash of the data.
        facts: further facts, plain JSON values.
        created: time of creation, in ISO form and UTC.
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
            require_plain(f"{key} of {self.name!r}", getattr(self, key))
        for key in ("metric", "epsilon", "seconds"):
            value = getattr(self, key)
            require(
                math.isfinite(value), f"{key} of {self.name!r} is {value}, expected a finite number; train it again"
            )
        for key in ("num_classes", "trials", "parameters", "seed"):
            value = getattr(self, key)
            require(
                0 <= value < 2**63, f"{key} of {self.name!r} is {value}, expected a whole number from 0 to 2**63 - 1"
            )
        json_text(repr(self.name), self.facts)

    def row(self) -> dict[str, Any]:
        """Columns of the table `tasks`, without `id`."""
        shape = json.dumps([int(side) for side in self.input_shape])
        return {**vars(self), "input_shape": shape, "facts": json_text(repr(self.name), self.facts)}


@dataclass(frozen=True)
class NewArtifact:
    """A file of a task that is to be stored: its kind, its trial, its bytes and further facts."""

    kind: str
    trial: int
    data: bytes = field(repr=False)
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PendingArtifact:
    """An artifact whose blob is written and whose row is not inserted yet."""

    kind: str
    trial: int
    digest: str
    size: int
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_plain("kind of an artifact", self.kind)
        require(
            0 <= self.trial < 2**31,
            f"the trial of an artifact {self.kind!r} is {self.trial}, expected a whole number from 0",
        )
        json_text(self.kind, self.facts)

    def row(self, task_id: int) -> dict[str, Any]:
        """Columns of the table `artifacts`, without `id`."""
        facts = json_text(self.kind, self.facts)
        return {"task_id": task_id, "kind": self.kind, "trial": self.trial, "digest": self.digest, "facts": facts}


@dataclass(frozen=True)
class TaskRecord:
    """A row of `tasks`. Its JSON columns are parsed when they are first used, because long lists rarely need them."""

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
    def all(cls, connection: sql.Connection, limit: int | None = None, after: int | None = None) -> "list[TaskRecord]":
        """Tasks in the order in which they were added: at most `limit`, of those with an id above `after`."""
        query = sql.select(schema.tasks).order_by(schema.tasks.c.id).limit(limit)
        if after is not None:
            query = query.where(schema.tasks.c.id > after)
        return [cls.of_row(row) for row in connection.execute(query)]

    @classmethod
    def named(cls, connection: sql.Connection, name: str) -> "TaskRecord":
        """The task of that name; for an unknown name the error suggests similar ones."""
        require_name(name)
        row = connection.execute(sql.select(schema.tasks).where(schema.tasks.c.name == name)).one_or_none()
        if row is None:
            near = difflib.get_close_matches(name, connection.scalars(sql.select(schema.tasks.c.name)).all(), n=3)
            hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
            raise ZooError(f"the zoo has no task named {name!r}; {hint}nearkin list shows all")
        return cls.of_row(row)

    @classmethod
    def of_row(cls, row: sql.Row[Any]) -> "TaskRecord":
        """Make a record from a row, in a third of the time of the constructor of a frozen dataclass."""
        record = object.__new__(cls)
        record.__dict__.update(zip(cls.__dataclass_fields__, row, strict=True))
        return record

    @cached_property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(json.loads(self.input_shape_text))

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Facts of the artifact as plain JSON values."""
        facts: dict[str, Any] = json.loads(self.facts_text)
        return facts

    def to_dict(self) -> dict[str, Any]:
        """The fields of the `NewTask`, as plain JSON values."""
        omitted = ("id", "input_shape_text", "facts_text")
        fields = {key: getattr(self, key) for key in self.__dataclass_fields__ if key not in omitted}
        return {**fields, "input_shape": list(self.input_shape), "facts": self.facts}


@dataclass(frozen=True)
class ArtifactRecord:
    """A row of `artifacts`, with the name of its task and the size of its blob."""

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
        """Artifacts of one task or of all, of one kind or of all, sorted by task, kind and trial."""
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
        """Facts that were stored with it."""
        facts: dict[str, Any] = json.loads(self.facts_text)
        return facts

    def to_dict(self) -> dict[str, Any]:
        """The fields of the `PendingArtifact`, as plain JSON values."""
        return {"kind": self.kind, "trial": self.trial, "digest": self.digest, "size": self.size, "facts": self.facts}
