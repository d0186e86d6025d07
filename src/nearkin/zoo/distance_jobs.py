"""Distances by jobs: the sources of one target in chunks, and all targets of a matrix.

A job returns the values that it measured, and stores those of a target of the zoo with the tasks, like the operation.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypedDict

import torch

from nearkin.core.errors import NearkinError
from nearkin.core.events import Checkpoint, Work
from nearkin.core.state import State
from nearkin.distance.measure import Need
from nearkin.run.jobs import JobPlace, JobSpec, job
from nearkin.run.runner import Runner
from nearkin.store.records import TaskRecord
from nearkin.zoo.comparison import Comparison, StoredTarget
from nearkin.zoo.pair_values import every_trial, values_beside
from nearkin.zoo.solved_tasks import SolvedTasks
from nearkin.zoo.zoo_jobs import (
    NamedTask,
    do_jobs,
    num_workers,
    open_zoo,
    read_named,
    spec_for,
    stored_task,
)

LEAST_SOURCES = 2  # of a job
CHUNKS = 2  # for each worker, as some sources take longer than others


class _Measured(TypedDict):
    """Values of a job by measure and source, and the number of Fisher passes."""

    values: dict[str, dict[str, list[float]]]
    passes: float


def spread_sources(
    target: StoredTarget, sources: Sequence[TaskRecord], trials: int, how: Comparison, share: float = 1.0
) -> Work[None]:
    """Measure sources of one target by jobs of its runner; the target takes their values in.

    Networks of the target that the measure needs are trained first, so that no two workers train the same one.

    Args:
        target: the target.
        sources: tasks of its zoo.
        trials: number of trials.
        how: options of the comparison.
        share: of the samples; below 1 to screen many sources.
    """
    runner, named = target.runner, target.named()
    if runner is None or named is None:
        return
    missing = [record for record in sources if not _is_stored(target, record, trials, how, share)]
    chunks = _chunks(missing, CHUNKS * num_workers(runner))
    if len(chunks) < 2:
        return
    if Need.TARGET_NETWORK in how.chosen.needs:
        for record in missing:
            with suppress(NearkinError):  # the reason is given when it is measured
                yield from target.networks(target.source(record), trials)
    specs = [
        _spec(target, named, chunk, trials, how, share, f"{len(chunk)} sources of '{target.name}', part {number}")
        for number, chunk in enumerate(chunks, 1)
    ]
    for state in (yield from do_jobs(runner, specs, f"{how.measure} distances to '{target.name}'")):
        take_in(target, state, share)


def spread_targets(
    zoo: SolvedTasks, runner: Runner, names: Sequence[str], trials: int, how: Comparison
) -> Work[dict[str, State | None]]:
    """Measure all pairs of tasks of a zoo by jobs, one for each target; returns what `take_in` gives to a target.

    There are no jobs for targets whose distances are stored.
    """
    records = [zoo.record(name) for name in names]
    targets = {name: StoredTarget(zoo, name, how.device) for name in names}
    for target in targets.values():
        target.compare_with(records)
    missing = [
        name
        for name, target in targets.items()
        if not all(_is_stored(target, record, trials, how, 1.0) for record in records)
    ]
    specs = [
        _spec(targets[name], stored_task(zoo, name), records, trials, how, 1.0, f"target '{name}'", beside=False)
        for name in missing
    ]
    return dict(zip(missing, (yield from do_jobs(runner, specs, f"targets by {how.measure}")), strict=True))


def take_in(target: StoredTarget, state: State | None, share: float = 1.0) -> None:
    """Let a target know what a job measured; nothing if it failed."""
    if state is None:
        return
    facts = state.read(_Measured)
    target.passes += facts["passes"]
    for measure, values in facts["values"].items():
        target.measured |= {(measure, source, share): found for source, found in values.items()}


@job
def measure_sources(place: JobPlace, inputs: Mapping[str, Any], seed: int) -> Work[State]:
    """Measure the distances of some sources to one target; what cannot be measured is left out."""
    with open_zoo(place) as zoo:
        how = Comparison(
            measure=inputs["measure"], options=inputs["options"], samples=inputs["samples"],
            device=torch.device(inputs["device"]),
        )  # fmt: skip
        named = inputs["task"]
        target = StoredTarget(zoo, read_named(zoo, named) if named["data"] else named["name"], how.device)
        target.unknown = frozenset((network, tuple(shape)) for network, shape in inputs["unknown"])
        values: dict[str, dict[str, list[float]]] = {}
        for name in inputs["sources"]:
            source = target.source(zoo.record(name))
            with suppress(NearkinError):  # the operation meets it too, and gives the reason
                found = yield from every_trial(source, target, inputs["trials"], how, inputs["share"])
                values.setdefault(how.measure, {})[name] = found
                if inputs["beside"]:
                    for other, value in (yield from values_beside(source, target, how)).items():
                        values.setdefault(other, {})[name] = [value]
            yield Checkpoint(lambda: State({}))  # a job can be stopped between two sources
    return State({}, {"values": values, "passes": target.passes})


def _spec(
    target: StoredTarget, named: NamedTask, sources: Sequence[TaskRecord], trials: int, how: Comparison, share: float,
    title: str, beside: bool = True,
) -> JobSpec:  # fmt: skip
    """The job that measures these sources; its key names the rows, as another network can have the same name."""
    alike = {(record.network, record.input_shape) for record in sources} & target.unknown
    inputs = {
        "task": named, "own": [] if target.record is None else _row(target.record), "measure": how.measure,
        "options": dict(how.options), "samples": how.samples, "trials": trials,
        "device": str(how.device), "share": share, "beside": beside and share == 1,
        "sources": {record.name: _row(record) for record in sources},
        "unknown": sorted([network, list(shape)] for network, shape in alike),
    }  # fmt: skip
    return spec_for(measure_sources, inputs, title=title)


def _row(record: TaskRecord) -> list[str | int | float]:
    """What distinguishes a row from an earlier one of the same name."""
    return [record.id, record.fingerprint, record.created, record.seconds]


def _is_stored(target: StoredTarget, record: TaskRecord, trials: int, how: Comparison, share: float) -> bool:
    """Whether all values of a source are known; also for a source that the measure refuses, with the reason."""
    source = target.source(record)
    try:
        pairs = [how.pair(source, target, trial, trials, share) for trial in range(trials)]
        return all(map(how.chosen.is_stored, pairs))
    except NearkinError:
        return True


def _chunks(sources: Sequence[TaskRecord], count: int) -> list[list[TaskRecord]]:
    """About `count` chunks; tasks with the same network follow each other, as they share measurements of the target."""
    order = sorted(sources, key=lambda record: (record.network, record.input_shape, record.seed))
    size = max(LEAST_SOURCES, math.ceil(len(order) / count))
    return [order[start : start + size] for start in range(0, len(order), size)]
