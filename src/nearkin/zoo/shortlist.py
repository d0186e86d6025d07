"""Selection of the tasks whose distance to a target is measured on all samples: an index, then a race.

The Fisher information of every task is a point on a sphere (`distance.screening`), so the nearest tasks are found
without running any network except the target's own. The race then measures many of them on few samples and fewer on
more samples.
"""

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nearkin.core.errors import NearkinError
from nearkin.core.events import Note, Progress, Work
from nearkin.core.lazy import Lazy
from nearkin.distance.screening import RUNGS, Embedding
from nearkin.fisher.diagonals import diagonal
from nearkin.store.columns import some_ids, task_groups, tasks_with_ids
from nearkin.store.records import TaskRecord
from nearkin.zoo.comparison import Comparison, StoredTarget
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
    nearest: list[tuple[float, int]] = []
    last: list[int] = []
    for group in groups:
        oldest = tasks_with_ids(zoo.catalogue, some_ids(zoo.catalogue, group, 1))
        if not oldest:  # they were removed meanwhile
            continue
        source = target.source(oldest[0])
        try:
            own = yield from target.networks(source, trials)
        except NearkinError:  # the reason is given when it is measured on all samples
            last += some_ids(zoo.catalogue, group, count + 1)
            continue
        x, y = target.seen_as(source.inputs).train.fixed_subset(how.samples)
        fishers = []
        for trial in range(trials):
            form = target.task.likelihood
            fishers.append((yield from diagonal.work(own.model(trial), x, y, likelihood=form)))
            target.passes += 1
        embedding = Embedding(network=repr(group.probe))
        packed = yield from zoo.points(group, trials, embedding)
        found = packed.nearest(embedding.point(fishers), count + 1, only)
        nearest += [(distance, number) for number, distance in found]
        if len(found) < count:
            last += some_ids(zoo.catalogue, group, count, [number for number, _ in found])
    if sources is not None:
        last = [source.id for source in sources]
    ids = dict.fromkeys([*(number for _, number in sorted(nearest)), *last])
    if own_id is not None:
        ids.pop(own_id, None)
    total = sum(group.count for group in groups) - (own_id is not None) if only is None else len(only)
    return tasks_with_ids(zoo.catalogue, list(ids)[:count]), total
