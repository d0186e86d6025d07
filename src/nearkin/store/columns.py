"""Columns of many rows in one query each, for zoos of so many tasks that whole rows take too long."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import sqlalchemy as sql

from nearkin.store import schema
from nearkin.store.catalogue import Catalogue
from nearkin.store.database import retry_lost
from nearkin.store.records import TaskRecord, json_text
from nearkin.store.schema import BATCH


@dataclass(frozen=True)
class TaskGroup:
    """The tasks with one network, input shape and seed.

    Attributes:
        network: the network string.
        input_shape_text: shape of one input, as JSON.
        seed: of the initial weights.
        count: number of tasks.
        trials: the smallest number of trials of one of them.
    """

    network: str
    input_shape_text: str = field(repr=False)
    seed: int
    count: int
    trials: int

    @cached_property
    def probe(self) -> tuple[str, tuple[int, ...], int]:
        """Network, input shape and seed."""
        return self.network, tuple(json.loads(self.input_shape_text)), self.seed


def task_groups(catalogue: Catalogue) -> list[TaskGroup]:
    """All groups of a zoo, in the order of their oldest tasks; models without a task are in none."""
    table = schema.tasks.c
    same = (table.network, table.input_shape, table.seed)
    query = sql.select(*same, sql.func.count(), sql.func.min(table.trials)).where(table.trials > 0).group_by(*same)
    return [TaskGroup(*row) for row in _rows(catalogue, query.order_by(sql.func.min(table.id)))]


def artifact_digests(
    catalogue: Catalogue, group: TaskGroup, kind: str, trial: int, facts: Mapping[str, Any], trials: int
) -> Sequence[tuple[int, str | None]]:
    """Ids of the tasks of a group with `trials` or more, and the digest of their artifact; None if there is none.

    Args:
        catalogue: the zoo.
        group: the tasks.
        kind: of the artifact.
        trial: of the artifact.
        facts: of the artifact; one with other facts does not count.
        trials: the smallest number of trials of a task.
    """
    tasks, table = schema.tasks.c, schema.artifacts.c
    belongs = (table.task_id == tasks.id) & (table.kind == kind) & (table.trial == trial)
    joined = schema.tasks.outerjoin(schema.artifacts, belongs & (table.facts == json_text(kind, facts)))
    inside = (tasks.network == group.network) & (tasks.input_shape == group.input_shape_text)
    query = sql.select(tasks.id, table.digest).select_from(joined)
    query = query.where(inside & (tasks.seed == group.seed) & (tasks.trials >= trials))
    return _rows(catalogue, query)


def tasks_by_facts(catalogue: Catalogue, having: str, lacking: str) -> list[TaskRecord]:
    """Tasks whose facts have one key, or lack another; models without a task are left out, oldest first.

    The text of the facts is searched, so tasks that have a key deeper inside may be among them, or be missing.
    """
    table = schema.tasks.c
    chosen = table.facts.like(f'%"{having}": %') | ~table.facts.like(f'%"{lacking}": %')
    query = sql.select(schema.tasks).where((table.trials > 0) & chosen)
    return [TaskRecord.of_row(row) for row in _rows(catalogue, query.order_by(table.id))]


def tasks_with_ids(catalogue: Catalogue, ids: Sequence[int]) -> list[TaskRecord]:
    """Tasks by their ids, in that order; those that were removed meanwhile are left out."""
    table = schema.tasks
    records: dict[int, TaskRecord] = {}
    for start in range(0, len(ids), BATCH):
        for row in _rows(catalogue, sql.select(table).where(table.c.id.in_(ids[start : start + BATCH]))):
            records[row.id] = TaskRecord.of_row(row)
    return [records[number] for number in ids if number in records]


def some_ids(catalogue: Catalogue, group: TaskGroup, count: int, leave_out: Sequence[int] = ()) -> list[int]:
    """Ids of the oldest tasks of a group; models without a task are in none."""
    table = schema.tasks.c
    inside = (table.network == group.network) & (table.input_shape == group.input_shape_text) & (table.trials > 0)
    query = sql.select(table.id).where(inside & (table.seed == group.seed)).order_by(table.id)
    left_out = frozenset(leave_out)
    rows = _rows(catalogue, query.limit(count + len(left_out)))
    return [row[0] for row in rows if row[0] not in left_out][:count]


def _rows(catalogue: Catalogue, query: sql.Select[Any]) -> Sequence[Any]:
    def read(again: bool) -> Sequence[Any]:
        with catalogue.database.reading() as connection:
            return connection.execute(query).all()

    return retry_lost(read)
