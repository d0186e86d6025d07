"""Near kin: the distance of a target to every task of a zoo, and of all tasks to each other.

Two tasks are compared through one probe: a network, an input shape and a seed, those of the source. The target's images
are brought to that shape. A measure that needs the target's own network of that kind takes it from the zoo if it is
there; else it is trained as the source was, from the weights that the source's trial started from.
"""

import time
from collections.abc import Sequence

import torch

from nearkin.core.errors import NearkinError, ZooError, require
from nearkin.core.events import Caution, Checkpoint, Progress, Work
from nearkin.core.state import State
from nearkin.distance.matrix import DistanceMatrix
from nearkin.distance.measure import Measure, Need
from nearkin.distance.pair import Source
from nearkin.distance.ranking import Ranking
from nearkin.distance.registry import measure_named, require_target
from nearkin.nets.trusted_code import refusal
from nearkin.run.checkpoints import Checkpoints
from nearkin.store.records import TaskRecord
from nearkin.tasks.task import Task
from nearkin.zoo.comparison import Comparison, Shelf, StoredTarget, shares_start
from nearkin.zoo.shortlist import every_trial, shortlisted


def rank_sources(shelf: Shelf, given: Task | str, work: Checkpoints, how: Comparison) -> Work[Ranking]:
    """The ranking of a zoo's tasks by their distance to a target, a name of the zoo or a new task."""
    begun, target, measure = time.monotonic(), StoredTarget(shelf, given, work, how.device), how.chosen
    records = [record for record in shelf.records() if target.record is None or record.name != target.name]
    require(
        bool(records),
        f"the zoo has no other task to compare {target.name} with; add some: nearkin add NAME DATA",
        ZooError,
    )
    require_target(measure, target.task.likelihood)
    trials = how.trials or min(record.trials for record in (*records, *([target.record] if target.record else [])))
    weak = {record.name: record.metric for record in records if record.epsilon > how.epsilon}
    if weak:
        named = ", ".join(f"{name} ({metric:.2f})" for name, metric in list(weak.items())[:5])
        yield Caution(f"networks below 1 − ε = {1 - how.epsilon:.2f} know their own task badly: {named}")
    if how.screen is not None and how.screen < len(records):
        records = yield from shortlisted(records, target, trials, how)
    yield from _warned(measure, records)
    values: dict[str, list[float]] = {}
    beside: dict[str, dict[str, float]] = {}
    refused: dict[str, str] = {}
    forms: dict[str, str] = {}
    for number, record in enumerate(records, 1):
        source = target.source(record)
        try:
            values[source.name] = yield from every_trial(source, target, trials, how)
            beside[source.name] = yield from _beside(source, target, how)
            forms[source.name] = measure.form(source, target.task)
        except NearkinError as error:
            refused[source.name] = str(error)
            values.pop(source.name, None)
        yield Progress(f"{how.measure} distances", number, len(records))
        yield Checkpoint(_nothing)  # what was measured is in the zoo
    if not values:
        name, reason = next(iter(refused.items()))
        raise ZooError(f"no task of the zoo can be compared with {target.name}; {name}: {reason}")
    used = sorted(set(forms.values()))
    if len(used) > 1:
        yield Caution(f"distances of unlike forms ({', '.join(used)}) stand in one ranking; compare within a form only")
    return Ranking.of(
        target.name, how.measure, values, beside, forms=forms, refused=refused, weak=weak,
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
    yield from _warned(how.chosen, records)
    for b, name in enumerate(names):
        target = StoredTarget(shelf, name, work, how.device)
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


def _warned(measure: Measure, sources: Sequence[TaskRecord]) -> Work[None]:
    """Name the sources whose networks did not start from the weights that the target's own start from."""
    others = [record.name for record in sources if not shares_start(record)]
    if others and Need.TARGET_NETWORK in measure.needs:
        advice = "; the label-free form is used where none was asked for" if measure.has_forms else ""
        yield Caution(
            f"networks of {', '.join(others[:5])} did not start from the weights that the target's network starts "
            f"from, so weights do not correspond{advice}"
        )


def _nothing() -> State:
    return State({})


def _beside(source: Source, target: StoredTarget, how: Comparison) -> Work[dict[str, float]]:
    """Cheap measures of the first trial, where they apply."""
    pair, found = how.pair(source, target), {}
    for measure in map(measure_named, how.chosen.beside):
        if measure.knows(source.likelihood, target.task.likelihood):
            found[measure.name] = yield from measure.work(pair)
    return found
