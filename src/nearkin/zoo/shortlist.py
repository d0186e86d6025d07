"""Selection of the tasks whose distance to a target is measured on all samples: an index, then a race.

The Fisher information of every task is a point on a sphere (`distance.screening`), so the nearest tasks are found
without running any network except the target's own. The race then measures many of them on few samples and fewer on
more samples.
"""

import math
import statistics
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from nearkin.core.errors import NearkinError
from nearkin.core.events import Note, Progress, Work
from nearkin.core.lazy import Lazy
from nearkin.distance.screening import RUNGS, Embedding
from nearkin.fisher.diagonals import diagonal
from nearkin.fisher.values import FisherDiagonal
from nearkin.store.columns import TaskGroup, some_ids, task_groups, tasks_by_facts, tasks_with_ids
from nearkin.store.records import TaskRecord
from nearkin.tasks.network_inputs import NETWORK_INPUTS, NetworkInputs
from nearkin.zoo.comparison import Comparison, StoredSource, StoredTarget
from nearkin.zoo.packed_points import PackedPoints
from nearkin.zoo.pair_values import every_trial

if TYPE_CHECKING:
    from nearkin.zoo import distance_jobs
else:
    distance_jobs = Lazy("nearkin.zoo.distance_jobs")


def shortlisted(
    target: StoredTarget, trials: int, how: Comparison, sources: Sequence[TaskRecord] | None = None
) -> Work[list[TaskRecord]]:
    """The `how.screen` sources (default: of all tasks) that are left after the race, nearest first."""
    count = how.screen or 1
    contenders = max(RUNGS[0].contenders, count)
    left, total = yield from _by_index(target, trials, how, contenders, sources)
    sizes = [*(max(rung.contenders, count) for rung in RUNGS[1:-1]), count]
    for rung, size in zip(RUNGS[:-1], sizes, strict=True):
        if len(left) > size:
            left = (yield from _round(left, target, trials, how, rung.share))[:size]
    yield Note(f"{total} tasks screened; measuring the nearest {count} on all samples")
    return left


def _round(
    sources: Sequence[TaskRecord], target: StoredTarget, trials: int, how: Comparison, share: float
) -> Work[list[TaskRecord]]:
    """The sources ordered by their distance on a share of the samples; those that cannot be measured come last."""
    distances: list[tuple[float, TaskRecord]] = []
    if target.runner is not None:
        yield from distance_jobs.spread_sources(target, sources, trials, how, share)
    for number, source in enumerate(sources, 1):
        try:
            value = statistics.fmean((yield from every_trial(target.source(source), target, trials, how, share)))
        except NearkinError:  # the reason is given when it is measured on all samples
            value = math.inf
        distances.append((math.inf if math.isnan(value) else value, source))
        yield Progress("screening", number, len(sources))
    return [source for _, source in sorted(distances, key=lambda pair: pair[0])]


def _by_index(
    target: StoredTarget, trials: int, how: Comparison, count: int, sources: Sequence[TaskRecord] | None
) -> Work[tuple[list[TaskRecord], int]]:
    """The `count` sources whose own Fisher information is nearest to the target's own, and the number of all.

    Those that have no point or cannot be compared come last.
    """
    zoo = target.zoo
    own_id = None if target.record is None else target.record.id
    only = None if sources is None else {source.id for source in sources} - {own_id}
    wanted = None if sources is None else {(source.network, source.input_shape, source.seed) for source in sources}
    groups = [group for group in task_groups(zoo.catalogue) if wanted is None or group.probe in wanted]
    adopted: Sequence[TaskRecord] = sources or ()
    if sources is None:
        adopted = tasks_by_facts(zoo.catalogue, "adopted", "recipe")
        target.compare_with(adopted)
    nearest: list[tuple[float, int]] = []
    last: list[int] = []
    for group in groups:
        by_inputs = _by_inputs(target, group, adopted)
        others = {number for members in by_inputs.values() for number in members}
        embedding = Embedding(network=repr(group.probe))
        packed: PackedPoints | None = None
        for members in (some_ids(zoo.catalogue, group, count + 1, list(others)), *by_inputs.values()):
            first = tasks_with_ids(zoo.catalogue, members[:1])
            if not first:  # there are none, or they were removed meanwhile
                continue
            chosen, left_out = (_both(members, only), set[int]()) if members[0] in others else (only, others)
            try:
                point = embedding.point((yield from _fishers(target, target.source(first[0]), trials, how)))
            except NearkinError:  # the reason is given when it is measured on all samples
                last += members
                continue
            if packed is None:
                packed = yield from zoo.points(group, trials, embedding)
            found = packed.nearest(point, count + 1 + len(left_out), chosen)
            kept = [(distance, number) for number, distance in found if number not in left_out]
            nearest += kept[: count + 1]
            known = {number for _, number in kept}
            last += [number for number in members if number not in known] if len(kept) < count else []
    if sources is not None:
        last = [source.id for source in sources]
    ids = dict.fromkeys([*(number for _, number in sorted(nearest)), *last])
    if own_id is not None:
        ids.pop(own_id, None)
    total = sum(group.count for group in groups) - (own_id is not None) if only is None else len(only)
    return tasks_with_ids(zoo.catalogue, list(ids)[:count]), total


def _both(members: Sequence[int], only: Collection[int] | None) -> set[int]:
    return set(members) if only is None else set(members) & set(only)


def _by_inputs(
    target: StoredTarget, group: TaskGroup, adopted: Sequence[TaskRecord]
) -> dict[NetworkInputs | int, list[int]]:
    """Ids of those tasks of a group whose networks have preprocessing of their own, by this preprocessing.

    A task whose preprocessing cannot be read is alone.
    """
    ids: dict[NetworkInputs | int, list[int]] = {}
    for record in adopted:
        if NETWORK_INPUTS in record.facts and (record.network, record.input_shape, record.seed) == group.probe:
            inputs: NetworkInputs | int = record.id
            with suppress(NearkinError):
                inputs = target.zoo.network_inputs(record)
            ids.setdefault(inputs, []).append(record.id)
    return ids


def _fishers(target: StoredTarget, source: StoredSource, trials: int, how: Comparison) -> Work[list[FisherDiagonal]]:
    """Fisher information of the target's own networks that a source is compared with, in every trial."""
    own = yield from target.networks(source, trials)
    x, y = target.seen_as(source.inputs).train.fixed_subset(how.samples)
    fishers = []
    for trial in range(trials):
        form = target.task.likelihood
        fishers.append((yield from diagonal.work(own.model(trial), x, y, likelihood=form)))
        target.passes += 1
    return fishers
