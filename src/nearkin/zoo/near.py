"""Near kin: the distance of a target to every task of a zoo, and of all tasks to each other.

Two tasks are compared through one probe: a network, an input shape and a seed, those of the source. The target's images
are brought to that shape; its own network of that kind, which the Fréchet distance needs, comes from the zoo if it is
there, else it is trained as the source was, from the weights that the source's trial started from.
"""

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import torch

from nearkin.core.errors import NearkinError, ZooError, require
from nearkin.core.events import Caution, Checkpoint, Progress, Work
from nearkin.core.state import State
from nearkin.core.types import Params
from nearkin.distance.fisher_based.alignment import aligned
from nearkin.distance.fisher_based.frechet import distances
from nearkin.distance.fisher_based.readings import information
from nearkin.distance.matrix import DistanceMatrix
from nearkin.distance.measures import MEASURES
from nearkin.distance.ranking import Ranking
from nearkin.distance.source_on_target import Sight
from nearkin.nets.functional import load
from nearkin.nets.solved import Solved
from nearkin.nets.trusted_code import refusal
from nearkin.run.checkpoints import Checkpoints, MemoryCheckpoints
from nearkin.store.records import TaskRecord
from nearkin.tasks.likelihood import likelihood
from nearkin.tasks.task import Task
from nearkin.zoo.comparison import Comparison, Shelf, Target, shares_start
from nearkin.zoo.shortlist import shortlisted

ALIGN_SAMPLES = 256
EMBEDDING = "task2vec"  # word under which the zoo keeps the embedding of a task, with trial and samples
BESIDE = ("logme",)  # shown beside the Fréchet distance, which is for search spaces and predicts little


def rank_sources(shelf: Shelf, given: Task | str, work: Checkpoints, how: Comparison) -> Work[Ranking]:
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
    if how.measure == "frechet":
        yield from _warned(sources)
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
    forms = {source.name: str(how.form(source, target.task)) for source in sources if how.measure == "frechet"}
    used = sorted({forms[name] for name in found if name in forms})
    if len(used) > 1:
        yield Caution(f"distances of unlike forms ({', '.join(used)}) stand in one ranking; compare within a form only")
    return Ranking.of(
        target.name, how.measure, found, beside, forms=forms, refused=refused, weak=weak,
        seconds=time.monotonic() - begun, passes=target.passes,
    )  # fmt: skip


def compare_all(shelf: Shelf, names: Sequence[str], work: Checkpoints, how: Comparison) -> Work[DistanceMatrix]:
    """Distances of all pairs of the zoo's tasks; what was measured before is not measured again.

    Tasks whose networks need code that is not trusted are left out, with the reason.
    """
    require(len(names) >= 2, f"a matrix compares two tasks or more, got {len(names)}; add some to the zoo", ZooError)
    doubled = sorted({name for name in names if list(names).count(name) > 1})
    require(not doubled, f"{', '.join(doubled)} is named twice; name each task once")
    asked = [shelf.record(name) for name in names]
    reasons = {(record.name, record.name): reason for record in asked if (reason := refusal(record.network))}
    records = [record for record in asked if (record.name, record.name) not in reasons]
    names = [record.name for record in records]
    first = "".join(f"; {name}: {reason}" for (name, _), reason in list(reasons.items())[:1])
    require(len(names) >= 2, f"a matrix compares two tasks or more, {len(names)} can be compared{first}", ZooError)
    trials = how.trials or min(record.trials for record in records)
    values = torch.full((trials, len(names), len(names)), torch.nan, dtype=torch.float64)
    forms: dict[tuple[str, str], str] = {}
    if how.measure == "frechet":
        yield from _warned(records)
    for b, name in enumerate(names):
        target = Target(shelf, name, work)
        for a, source in enumerate(records):
            try:
                values[:, a, b] = torch.tensor((yield from _trials(shelf, source, target, trials, how))).double()
                if how.measure == "frechet":
                    forms[source.name, name] = str(how.form(source, target.task))
            except NearkinError as error:
                reasons[source.name, name] = str(error)
            yield Progress(f"{how.measure} distances", b * len(names) + a + 1, len(names) ** 2)
            yield Checkpoint(_nothing)
    return DistanceMatrix(tuple(names), how.measure, values, reasons, forms or None)


def _warned(sources: Sequence[TaskRecord]) -> Work[None]:
    """Name the sources whose networks did not start from the weights that the target's start from."""
    others = [record.name for record in sources if not shares_start(record)]
    if others:
        yield Caution(
            f"networks of {', '.join(others[:5])} did not start from the weights that the target's network starts "
            f"from, so weights do not correspond; the label-free form is used where none was asked for"
        )


def _nothing() -> State:
    return State({})


def _trials(shelf: Shelf, source: TaskRecord, target: Target, trials: int, how: Comparison) -> Work[list[float]]:
    """The distance from one source in every trial."""
    if how.measure == "frechet":
        return (yield from _frechet(shelf, source, target, trials, how))
    measure = MEASURES[how.measure]
    solved, task = shelf.solved(source.name), target.seen_as(source.input_shape)
    source_task = shelf.task(source.name) if measure.needs == "source_task" else None
    found = []
    for trial in range(min(trials, source.trials)):
        sight = _sight(solved, task, trial, how)
        if measure.needs == "embeddings":
            own = yield from _embedding(shelf, source, trial, how)
            sight = replace(sight, embeddings=(own, (yield from target.embedding(source, trial, how.samples))))
        found.append(measure(replace(sight, source_task=source_task)))
    require(
        len(found) == trials,
        f"{source.name} has {len(found)} trials, {trials} were asked for; ask for fewer, or add it anew with more",
        ZooError,
    )
    return found


def _embedding(shelf: Shelf, source: TaskRecord, trial: int, how: Comparison) -> Work[Params]:
    """The Task2Vec embedding of a source in a trial's probe; it is kept, so that it is measured once."""
    kind = f"{EMBEDDING} {trial} {how.samples}"
    state = shelf.kept(source.name, kind)
    if state is None:
        values = yield from Target(shelf, source.name, MemoryCheckpoints()).embedding(source, trial, how.samples)
        state = State(values)
        with suppress(NearkinError):  # a zoo that cannot be written to measures again the next time
            shelf.keep(source.name, kind, state)
    return dict(state.tensors)


def _frechet(
    shelf: Shelf, source: TaskRecord, target: Target, trials: int, how: Comparison, share: float = 1.0
) -> Work[list[float]]:
    """The distance in every trial, both sides on the same share of the samples; what is measured on all is kept."""
    looked_at = math.ceil(share * how.samples)
    keeping = target.record is not None and share == 1
    form = how.form(source, target.task)
    key = how.key(form.reading)
    kept = shelf.pairs(key, target.name) if target.record is not None else {}
    found = [kept.get((source.name, trial), {}) for trial in range(trials)]
    missing = [trial for trial in range(trials) if form.aggregate not in found[trial]]
    if missing:
        solved = Target(shelf, source.name, target.work) if source.trials < trials else None
        sources = shelf.solved(source.name) if solved is None else (yield from solved.own(source, trials, how))
        own = yield from target.own(source, trials, how)
        task = target.seen_as(source.input_shape)
        width = max(sources.num_outputs, own.num_outputs)
        for trial in missing:
            mine = Sight(own.model(trial), task, task.form, num_train=looked_at)
            f_bb = yield from target.information(
                (own, trial, form.reading, width, looked_at), mine, form.reading, width, how.samples
            )
            if target.record is not None and source.name == target.name:
                f_ab = f_bb
            else:
                model = sources.model(trial)
                if how.align:
                    matched = yield from aligned.work(model, mine.model, mine.train.x[:ALIGN_SAMPLES])
                    load(model, matched.params, matched.buffers)
                sight = Sight(model, task, likelihood(sources.facts["likelihood"]), num_train=looked_at)
                f_ab = yield from information(sight, form.reading, width)
                target.passes += share
            found[trial] = distances(f_ab, f_bb)
            if keeping:
                shelf.keep_pair(key, source.name, target.name, trial, found[trial])
    return [float(values[form.aggregate]) for values in found]


def _sight(solved: Solved, task: Task, trial: int, how: Comparison) -> Sight:
    """The target through the source's network of one trial."""
    form, metric = likelihood(solved.facts["likelihood"]), solved.trials[trial].scores.metric
    return Sight(solved.model(trial), task, form, how.samples, solved.name, metric)


def _beside(shelf: Shelf, source: TaskRecord, target: Target, how: Comparison) -> dict[str, float]:
    """Other measures of the first trial that cost little, where they apply."""
    if how.measure != "frechet":
        return {}
    known = [MEASURES[name] for name in BESIDE]
    apply = [one for one in known if target.task.likelihood in one.forms and source.likelihood in one.source]
    if not apply:
        return {}
    sight = _sight(shelf.solved(source.name), target.seen_as(source.input_shape), 0, how)
    return {measure.name: measure(sight) for measure in apply}
