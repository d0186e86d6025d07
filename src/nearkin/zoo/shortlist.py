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
from nearkin.distance.screening import RUNGS, Embedding, Index
from nearkin.fisher.diagonals import diagonal
from nearkin.store.records import TaskRecord
from nearkin.zoo.comparison import Comparison, StoredTarget
from nearkin.zoo.pair_values import every_trial

if TYPE_CHECKING:
    from nearkin.zoo import distance_jobs
else:
    distance_jobs = Lazy("nearkin.zoo.distance_jobs")


def shortlisted(
    sources: Sequence[TaskRecord], target: StoredTarget, trials: int, how: Comparison
) -> Work[list[TaskRecord]]:
    """The `how.screen` sources that are left after the race, nearest first."""
    count = how.screen or len(sources)
    left = yield from _by_index(sources, target, trials, how)
    sizes = [*(max(rung.contenders, count) for rung in RUNGS[1:-1]), count]
    left = left[: max(RUNGS[0].contenders, count)]
    for rung, size in zip(RUNGS[:-1], sizes, strict=True):
        if len(left) > size:
            left = (yield from _round(left, target, trials, how, rung.share))[:size]
    yield Note(f"{len(sources)} tasks screened; measuring the nearest {count} on all samples")
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
    sources: Sequence[TaskRecord], target: StoredTarget, trials: int, how: Comparison
) -> Work[list[TaskRecord]]:
    """All sources, ordered by the distance of their own Fisher information to the target's own."""
    groups: dict[tuple[str, tuple[int, ...], int], list[TaskRecord]] = {}
    for source in sources:
        groups.setdefault((source.network, source.input_shape, source.seed), []).append(source)
    distances: list[tuple[float, TaskRecord]] = []
    for probe, members in groups.items():
        try:
            own = yield from target.networks(target.source(members[0]), trials)
        except NearkinError:  # the reason is given when it is measured on all samples
            distances += [(math.inf, source) for source in members]
            continue
        x, y = target.seen_as(members[0].input_shape).train.fixed_subset(how.samples)
        fishers = []
        for trial in range(trials):
            form = target.task.likelihood
            fishers.append((yield from diagonal.work(own.model(trial), x, y, likelihood=form)))
            target.passes += 1
        embedding = Embedding(network=repr(probe))
        points = {source.name: target.zoo.point(source.name, trials, embedding)
                  for source in members if source.trials >= trials}  # fmt: skip
        nearest = dict(Index(embedding).add(points).query(embedding.point(fishers), max(1, len(points))))
        distances += [(nearest.get(source.name, math.inf), source) for source in members]
    return [source for _, source in sorted(distances, key=lambda pair: pair[0])]
