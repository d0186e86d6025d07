"""Rows of the catalogue as values: tasks and artifacts on their way in, and as they are found."""

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

Supply: TypeAlias = Callable[[str], bytes]
"""The bytes of a blob by its digest."""


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
