"""The few tasks of a zoo on which a target's distance is worth measuring: an index first, then a race.

Every task's own Fisher information is a point on a sphere (`distance.screening`), so the target's nearest are found
without running a network but its own. They say where to look; the race then gives many a short look at few samples and
a few a longer one, and names those that are measured on all samples.
"""

import math
import statistics
from collections.abc import Sequence

from nearkin.core.errors import NearkinError
from nearkin.core.events import Note, Progress, Work
from nearkin.distance.pair import Source
from nearkin.distance.screening import RUNGS, Embedding, Index
from nearkin.fisher.diagonals import diagonal
from nearkin.store.records import TaskRecord
from nearkin.zoo.comparison import Comparison, StoredTarget


def every_trial(
    source: Source, target: StoredTarget, trials: int, how: Comparison, share: float = 1.0
) -> Work[list[float]]:
    """The distance from one source in every trial, measured on a share of the target's samples."""
    values = []
    for trial in range(trials):
        values.append((yield from how.chosen.work(how.pair(source, target, trial, trials, share))))
    return values


def shortlisted(
    sources: Sequence[TaskRecord], target: StoredTarget, trials: int, how: Comparison
) -> Work[list[TaskRecord]]:
    """The `how.screen` sources that are left at the end of the race, nearest first."""
    count = how.screen or len(sources)
    left = yield from _by_index(sources, target, trials, how)
    goes_on = [*(max(rung.contenders, count) for rung in RUNGS[1:-1]), count]
    left = left[: max(RUNGS[0].contenders, count)]
    for rung, few in zip(RUNGS[:-1], goes_on, strict=True):
        if len(left) > few:  # else a short look would decide nothing
            left = (yield from _round(left, target, trials, how, rung.share))[:few]
    yield Note(f"{len(sources)} tasks screened; measuring the nearest {count} on all samples")
    return left


def _round(
    sources: Sequence[TaskRecord], target: StoredTarget, trials: int, how: Comparison, share: float
) -> Work[list[TaskRecord]]:
    """The sources in the order of what a share of the samples says; those that cannot be measured come last."""
    found: list[tuple[float, TaskRecord]] = []
    for number, source in enumerate(sources, 1):
        try:
            value = statistics.fmean((yield from every_trial(target.source(source), target, trials, how, share)))
        except NearkinError:  # it will be refused with its reason
            value = math.inf
        found.append((math.inf if math.isnan(value) else value, source))
        yield Progress("screening", number, len(sources))
    return [source for _, source in sorted(found, key=lambda pair: pair[0])]


def _by_index(
    sources: Sequence[TaskRecord], target: StoredTarget, trials: int, how: Comparison
) -> Work[list[TaskRecord]]:
    """All sources, those whose own informations lie nearest to the target's own first."""
    groups: dict[tuple[str, tuple[int, ...], int], list[TaskRecord]] = {}
    for source in sources:
        groups.setdefault((source.network, source.input_shape, source.seed), []).append(source)
    found: list[tuple[float, TaskRecord]] = []
    for probe, members in groups.items():
        try:
            own = yield from target.networks(target.source(members[0]), trials)
        except NearkinError:  # it will be refused with its reason
            found += [(math.inf, source) for source in members]
            continue
        x, y = target.seen_as(members[0].input_shape).train.fixed_subset(how.samples)
        informations = []
        for trial in range(trials):
            form = target.task.likelihood
            informations.append((yield from diagonal.work(own.model(trial), x, y, likelihood=form)))
            target.passes += 1
        embedding = Embedding(network=repr(probe))
        points = {source.name: target.shelf.point(source.name, trials, embedding)
                  for source in members if source.trials >= trials}  # fmt: skip
        away = dict(Index(embedding).add(points).query(embedding.point(informations), max(1, len(points))))
        found += [(away.get(source.name, math.inf), source) for source in members]
    return [source for _, source in sorted(found, key=lambda pair: pair[0])]
