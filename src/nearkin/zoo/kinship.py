"""Near kin: the distance of a target to every task of a zoo, and of all tasks to each other.

Two tasks are compared through one probe: a network, an input shape and a seed, those of the source. The target's images
are brought to that shape; its own network of that kind, which the Fréchet distance needs, comes from the zoo if it is
there, else it is trained as the source was, from the weights that the source's trial started from.
"""

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from nearkin.core.errors import NearkinError, ZooError, require
from nearkin.core.events import Caution, Checkpoint, Progress, Work
from nearkin.core.state import State
from nearkin.distance.alignment import aligning
from nearkin.distance.frechet import distances
from nearkin.distance.matrix import DistanceMatrix
from nearkin.distance.measures import MEASURES
from nearkin.distance.ranking import Ranking
from nearkin.distance.readings import information
from nearkin.distance.sight import Sight
from nearkin.nets.functional import load
from nearkin.tasks.likelihood import likelihood
from nearkin.tasks.task import Task
from nearkin.zoo.comparison import Comparison, Shelf, Target
from nearkin.zoo.records import TaskRecord
from nearkin.zoo.shortlist import shortlisted

ALIGN_SAMPLES = 256
BESIDE = ("logme",)  # shown beside the Fréchet distance, which is for search spaces and predicts little


def nearing(shelf: Shelf, given: Task | str, work: Path, how: Comparison) -> Work[Ranking]:
    """The ranking of a zoo's tasks by their distance to a target, a name of the zoo or a new task."""
    begun, target = time.monotonic(), Target(shelf, given, work)
    sources = [record for record in shelf.records() if target.record is None or record.name != target.name]
    require(
        bool(sources),
        f"the zoo has no other task to compare {target.name} with; add some: nearkin add NAME DATA",
        ZooError,
    )
    form = target.task.likelihood
    if how.measure != "frechet":
        MEASURES[how.measure].require_known(form)
    trials = how.trials or min(record.trials for record in (*sources, *([target.record] if target.record else [])))
    weak = {record.name: record.metric for record in sources if record.epsilon > how.epsilon}
    if weak:
        told = ", ".join(f"{name} ({metric:.2f})" for name, metric in list(weak.items())[:5])
        yield Caution(f"networks below 1 − ε = {1 - how.epsilon:.2f} know their own task badly: {told}")
    if how.measure == "frechet" and how.screen is not None and how.screen < len(sources):
        sources = yield from shortlisted(
            shelf,
            sources,
            target,
            trials,
            how,
            lambda source, share: _frechet(shelf, source, target, trials, how, share),
        )
    found: dict[str, list[float]] = {}
    beside: dict[str, dict[str, float]] = {}
    refused: dict[str, str] = {}
    for number, source in enumerate(sources, 1):
        try:
            found[source.name] = yield from _trials(shelf, source, target, trials, how)
            beside[source.name] = _beside(shelf, source, target, how)
        except NearkinError as error:
            refused[source.name] = str(error)
            found.pop(source.name, None)
        yield Progress(f"{how.measure} distances", number, len(sources))
        yield Checkpoint(_nothing)  # what was measured is in the zoo
    if not found:
        name, reason = next(iter(refused.items()))
        raise ZooError(f"no task of the zoo can be compared with {target.name}; {name}: {reason}")
    return Ranking.of(
        target.name, how.measure, found, beside, refused=refused, weak=weak, seconds=time.monotonic() - begun,
        passes=target.passes,
    )  # fmt: skip


def comparing(shelf: Shelf, names: Sequence[str], work: Path, how: Comparison) -> Work[DistanceMatrix]:
    """Distances of all pairs of the zoo's tasks; what was measured before is not measured again."""
    require(len(names) >= 2, f"a matrix compares two tasks or more, got {len(names)}; add some to the zoo", ZooError)
    doubled = sorted({name for name in names if list(names).count(name) > 1})
    require(not doubled, f"{', '.join(doubled)} is named twice; name each task once")
    records = [shelf.record(name) for name in names]
    trials = how.trials or min(record.trials for record in records)
    values = torch.full((trials, len(names), len(names)), torch.nan, dtype=torch.float64)
    reasons: dict[tuple[str, str], str] = {}
    for b, name in enumerate(names):
        target = Target(shelf, name, work)
        for a, source in enumerate(records):
            try:
                values[:, a, b] = torch.tensor((yield from _trials(shelf, source, target, trials, how))).double()
            except NearkinError as error:
                reasons[source.name, name] = str(error)
            yield Progress(f"{how.measure} distances", b * len(names) + a + 1, len(names) ** 2)
            yield Checkpoint(_nothing)
    return DistanceMatrix(tuple(names), how.measure, values, reasons)


def _nothing() -> State:
    return State({})


def _trials(shelf: Shelf, source: TaskRecord, target: Target, trials: int, how: Comparison) -> Work[list[float]]:
    """The distance from one source in every trial."""
    if how.measure == "frechet":
        return (yield from _frechet(shelf, source, target, trials, how))
    measure = MEASURES[how.measure]
    found = []
    for sight in _sights(shelf, source, target, min(trials, source.trials), how):
        found.append(measure(sight))
    require(
        len(found) == trials,
        f"{source.name} has {len(found)} trials, {trials} were asked for; ask for fewer, or add it anew with more",
        ZooError,
    )
    return found


def _frechet(
    shelf: Shelf, source: TaskRecord, target: Target, trials: int, how: Comparison, share: float = 1.0
) -> Work[list[float]]:
    """The distance in every trial, both sides on the same share of the samples; what is measured on all is kept."""
    looked_at = math.ceil(share * how.samples)
    keeping = target.record is not None and share == 1
    kept = shelf.pairs(how.key, target.name) if target.record is not None else {}
    found = [kept.get((source.name, trial)) for trial in range(trials)]
    if None in found:
        solved = Target(shelf, source.name, target.work) if source.trials < trials else None
        sources = shelf.solved(source.name) if solved is None else (yield from solved.own(source, trials, how))
        own = yield from target.own(source, trials, how)
        task = target.seen_as(source.input_shape)
        width = max(sources.num_outputs, own.num_outputs)
        for trial in (t for t in range(trials) if found[t] is None):
            mine = Sight(own.model(trial), task, task.form, num_train=looked_at)
            key = (own, trial, width, looked_at)
            f_bb = yield from target.information(key, mine, how, width)
            if target.record is not None and source.name == target.name:
                f_ab = f_bb
            else:
                form = likelihood(sources.facts["likelihood"])
                model = sources.model(trial)
                if how.align:
                    matched = yield from aligning(model, mine.model, mine.train.x[:ALIGN_SAMPLES])
                    load(model, matched.params, matched.buffers)
                sight = Sight(model, task, form, num_train=looked_at)
                f_ab = yield from information(sight, how.reading, width)
                target.passes += share
            found[trial] = distances(f_ab, f_bb)
            if keeping:
                shelf.keep_pair(how.key, source.name, target.name, trial, found[trial] or {})
    return [float(values[how.aggregate]) for values in found if values is not None]


def _sights(shelf: Shelf, source: TaskRecord, target: Target, trials: int, how: Comparison) -> Iterator[Sight]:
    """The target through the source's network of every trial."""
    solved, task = shelf.solved(source.name), target.seen_as(source.input_shape)
    form = likelihood(source.likelihood)
    for trial in range(trials):
        fisher = shelf.fisher(source.name, trial) if how.measure == "task2vec" else None
        metric = solved.trials[trial].scores.metric
        yield Sight(solved.model(trial), task, form, fisher, how.samples, source.name, metric)


def _beside(shelf: Shelf, source: TaskRecord, target: Target, how: Comparison) -> dict[str, float]:
    """Other measures of the first trial that cost little, where they apply."""
    if how.measure != "frechet":
        return {}
    found = {}
    for sight in _sights(shelf, source, target, 1, how):
        for name in BESIDE:
            known = MEASURES[name]
            if target.task.likelihood in known.forms and source.likelihood in known.source:
                found[name] = known(sight)
    return found
