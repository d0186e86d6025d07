"""Distances of a target to all tasks of a zoo, and of all tasks to each other.

Two tasks are compared with the network, the input shape and the seed of the source. The target's images are converted
to that shape. If a measure needs a network of that kind for the target, it is loaded from the zoo; if the zoo has none,
it is trained like the source's, from the same initial weights.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from nearkin.core.clock import now
from nearkin.core.errors import NearkinError, OptionError, ZooError, require
from nearkin.core.events import Caution, Checkpoint, Progress, Work
from nearkin.core.lazy import Lazy
from nearkin.core.state import State
from nearkin.distance.matrix import DistanceMatrix
from nearkin.distance.measure import Measure, Need
from nearkin.distance.questions import Question, combined
from nearkin.distance.ranking import Ranking
from nearkin.distance.registry import require_target
from nearkin.distance.screening import Embedding
from nearkin.nets.trusted_code import refusal
from nearkin.store.columns import task_groups, tasks_with_ids
from nearkin.store.records import TaskRecord
from nearkin.tasks.task import Task
from nearkin.zoo.comparison import Comparison, StoredTarget, shares_start
from nearkin.zoo.pair_values import every_trial, values_beside
from nearkin.zoo.shortlist import shortlisted
from nearkin.zoo.solved_tasks import SolvedTasks

if TYPE_CHECKING:
    from nearkin.run.runner import Runner
    from nearkin.zoo import distance_jobs
else:
    distance_jobs = Lazy("nearkin.zoo.distance_jobs")

MOST_PAIRED = 300  # tasks of which all pairs are measured without being named
LANDMARKS = 60  # tasks on the map of a larger zoo


def rank_sources(
    zoo: SolvedTasks,
    task: Task | str,
    how: Comparison,
    sources: Sequence[TaskRecord] | None = None,
    runner: "Runner | None" = None,
) -> Work[Ranking]:
    """Rank tasks of a zoo by their distance to a target.

    Args:
        zoo: the zoo.
        task: the target: a new task, or the name of one in the zoo.
        how: options.
        sources: tasks that are compared (default: all of the zoo).
        runner: measures several sources at the same time (default: one after the other, in this process).
    """
    start, target, measure = now(), StoredTarget(zoo, task, how.device, runner), how.chosen
    require_target(measure, target.task.likelihood)
    records, trials = yield from _compared(target, how, sources)
    weak = {record.name: 1 - record.epsilon for record in records if record.epsilon > how.epsilon}
    if weak:
        names = ", ".join(f"'{name}' ({metric:.2f})" for name, metric in list(weak.items())[:5])
        yield Caution(f"networks with a metric below 1 − ε = {1 - how.epsilon:.2f} on their own task: {names}")
    yield from _start_cautions(measure, records, target)
    if runner is not None:
        yield from distance_jobs.spread_sources(target, records, trials, how)
    values: dict[str, list[float]] = {}
    beside: dict[str, dict[str, float]] = {}
    refused: dict[str, str] = {}
    forms: dict[str, str] = {}
    for number, record in enumerate(records, 1):
        source = target.source(record)
        try:
            values[source.name] = yield from every_trial(source, target, trials, how)
            beside[source.name] = yield from values_beside(source, target, how)
            forms[source.name] = measure.form(source, target.task)
        except NearkinError as error:
            refused[source.name] = str(error)
            values.pop(source.name, None)
        yield Progress(f"{how.measure} distances", number, len(records))
        yield Checkpoint(_nothing)  # measured values are stored in the zoo already
    if not values:
        name, reason = next(iter(refused.items()))
        raise ZooError(f"no task of the zoo can be compared with '{target.name}'; '{name}': {reason}")
    used = sorted(set(forms.values()))
    if len(used) > 1:
        yield Caution(f"the ranking has distances of different forms ({', '.join(used)}), which cannot be compared")
    return Ranking.of(
        target.name, how.measure, values, beside, forms=forms, refused=refused, weak=weak,
        seconds=now() - start, passes=target.passes,
    )  # fmt: skip


def rank_by_question(
    zoo: SolvedTasks,
    task: Task | str,
    question: Question,
    how: Comparison,
    sources: Sequence[TaskRecord] | None = None,
    runner: "Runner | None" = None,
) -> Work[Ranking]:
    """Rank tasks of a zoo by the measures that answer a question; values of several measures are combined by ranks.

    A source that one of the measures refuses is left out, with the reason. The values of each measure are in
    `Kin.beside`. For a question with one measure, this is the ranking by that measure.

    Args:
        zoo: the zoo.
        task: the target: a new task, or the name of one in the zoo.
        question: the question.
        how: options; the question's measures replace the measure.
        sources: tasks that are compared (default: all of the zoo).
        runner: measures several sources at the same time (default: one after the other, in this process).
    """
    require(
        not how.options and how.screen is None,
        f"got options of one measure for the question '{question.name}', which has its own measures; name a measure",
        OptionError,
    )
    start = now()
    weights = question.supported(zoo.record(task).likelihood if isinstance(task, str) else task.likelihood)
    rankings: dict[str, Ranking] = {}
    for number, name in enumerate(weights):  # networks below 1 − ε are named once
        options = replace(how, measure=name, epsilon=1.0 if number else how.epsilon)
        rankings[name] = yield from rank_sources(zoo, task, options, sources, runner)
    first, *others = rankings.values()
    if not others:
        return first
    known = {name: {kin.name: kin for kin in ranking} for name, ranking in rankings.items()}
    refused = {source: reason for ranking in rankings.values() for source, reason in ranking.refused.items()}
    common = [kin.name for kin in first if kin.name not in refused]
    if not common:
        name, reason = next(iter(refused.items()))
        raise ZooError(f"no task of the zoo can be compared with '{first.target}'; '{name}': {reason}")
    by_trial = [
        combined({name: [by_source[source].trials[trial] for source in common] for name, by_source in known.items()},
                 weights)
        for trial in range(len(first.nearest.trials))
    ]  # fmt: skip
    beside = {source: {name: known[name][source].distance for name in weights} for source in common}
    return Ranking.of(
        first.target, question.name, dict(zip(common, zip(*by_trial, strict=True), strict=True)), beside,
        refused=refused, weak=first.weak, seconds=now() - start, passes=sum(one.passes for one in rankings.values()),
    )  # fmt: skip


def _compared(
    target: StoredTarget, how: Comparison, sources: Sequence[TaskRecord] | None
) -> Work[tuple[Sequence[TaskRecord], int]]:
    """The sources that are measured on all samples, and the number of trials.

    If tasks of a zoo are screened, only the rows of those that are left are read.
    """
    zoo, own = target.zoo, target.record
    if sources is None and how.screen is not None:
        groups = task_groups(zoo.catalogue)
        if how.screen < sum(group.count for group in groups) - (own is not None):
            trials = how.trials or min(group.trials for group in groups)
            return (yield from shortlisted(target, trials, how)), trials
    records = zoo.records() if sources is None else sources
    records = [record for record in records if own is None or record.name != own.name]
    target.compare_with(records)
    require(
        bool(records),
        f"the zoo has no other task to compare '{target.name}' with; add some: nearkin add NAME DATA",
        ZooError,
    )
    trials = how.trials or min(record.trials for record in (*records, *([own] if own else [])))
    if how.screen is not None and how.screen < len(records):
        records = yield from shortlisted(target, trials, how, records)
    return records, trials


def map_names(zoo: SolvedTasks) -> Work[list[str]]:
    """Names of the tasks that a map shows: all of up to `MOST_PAIRED`, else landmarks far from each other.

    Each group of tasks with the same network, input shape and seed gives landmarks in proportion to its size.
    """
    groups = task_groups(zoo.catalogue)
    total = sum(group.count for group in groups)
    if total <= MOST_PAIRED:
        return [record.name for record in zoo.records()]
    ids: list[int] = []
    for group in sorted(groups, key=lambda group: -group.count)[:LANDMARKS]:
        embedding = Embedding(network=repr(group.probe))
        packed = yield from zoo.points(group, group.trials, embedding)
        ids += packed.landmarks(max(1, round(LANDMARKS * group.count / total)))
    names = [record.name for record in tasks_with_ids(zoo.catalogue, ids[:LANDMARKS])]
    yield Caution(
        f"the zoo has {total} tasks; the map shows {len(names)} that are far from each other: name tasks for others"
    )
    return names


def compare_all(
    zoo: SolvedTasks, names: Sequence[str], how: Comparison, runner: "Runner | None" = None
) -> Work[DistanceMatrix]:
    """Distances of all pairs of tasks of a zoo; stored values are not measured again.

    Tasks whose networks need code that is not trusted are left out, with the reason.

    Args:
        zoo: the zoo.
        names: names of the tasks.
        how: options.
        runner: measures several targets at the same time (default: one after the other, in this process).
    """
    require(
        len(names) >= 2, f"got {len(names)} tasks, expected two or more for a matrix; add some to the zoo", ZooError
    )
    repeated = sorted({f"'{name}'" for name in names if list(names).count(name) > 1})
    require(not repeated, f"{', '.join(repeated)} is named twice; name each task once")
    records = [zoo.record(name) for name in names]
    reasons = {(record.name, record.name): reason for record in records if (reason := refusal(record.network))}
    records = [record for record in records if (record.name, record.name) not in reasons]
    names = [record.name for record in records]
    first = "".join(f"; '{name}': {reason}" for (name, _), reason in list(reasons.items())[:1])
    require(len(names) >= 2, f"{len(names)} tasks can be compared, expected two or more for a matrix{first}", ZooError)
    trials = how.trials or min(record.trials for record in records)
    values = torch.full((trials, len(names), len(names)), torch.nan, dtype=torch.float64)
    forms: dict[tuple[str, str], str] = {}
    found: dict[str, State | None] = {}
    if runner is not None:
        found = yield from distance_jobs.spread_targets(zoo, runner, names, trials, how)
    for b, name in enumerate(names):
        target = StoredTarget(zoo, name, how.device)
        target.compare_with(records)
        if b == 0:
            yield from _start_cautions(how.chosen, records, target)
        if name in found:
            distance_jobs.take_in(target, found[name])
        for a, record in enumerate(records):
            source = target.source(record)
            try:
                values[:, a, b] = torch.tensor((yield from every_trial(source, target, trials, how))).double()
                if form := how.chosen.form(source, target.task):
                    forms[source.name, name] = form
            except NearkinError as error:
                reasons[source.name, name] = str(error)
            yield Progress(f"{how.measure} distances", b * len(names) + a + 1, len(names) ** 2)
            yield Checkpoint(_nothing)
    return DistanceMatrix(tuple(names), how.measure, values, reasons, forms or None)


def _start_cautions(measure: Measure, sources: Sequence[TaskRecord], target: StoredTarget) -> Work[None]:
    """Name the tasks whose networks did not start from the weights of their seed, and what follows from it."""
    records = {record.name: record for record in (*sources, *([target.record] if target.record else []))}
    others = [f"'{record.name}'" for record in records.values() if not shares_start(record)]
    alike = any((record.network, record.input_shape) in target.unknown for record in sources)
    if Need.TARGET_NETWORK not in measure.needs or not alike:
        return
    named = ", ".join(others[:5]) or "other tasks"
    form = ", by default in the label-free form" if measure.has_forms else ""
    yield Caution(
        f"the initial weights of the networks of {named} are not known; tasks with their architecture are compared "
        f"with one network of the target{form}"
    )


def _nothing() -> State:
    return State({})
