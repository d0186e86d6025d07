"""Values of a source and a target of a zoo: those that workers measured before, or measured now."""

from nearkin.core.events import Work
from nearkin.distance.pair import Source
from nearkin.distance.registry import measure_named
from nearkin.zoo.comparison import Comparison, StoredTarget


def every_trial(
    source: Source, target: StoredTarget, trials: int, how: Comparison, share: float = 1.0
) -> Work[list[float]]:
    """The distance of one source in every trial, measured on a share of the target's samples."""
    known = target.measured.get((how.measure, source.name, share))
    if known is not None:
        return known
    values = []
    for trial in range(trials):
        values.append((yield from how.chosen.work(how.pair(source, target, trial, trials, share))))
    return values


def values_beside(source: Source, target: StoredTarget, how: Comparison) -> Work[dict[str, float]]:
    """Values of cheap measures in the first trial, if they support the pair."""
    pair, values = how.pair(source, target), {}
    for measure in map(measure_named, how.chosen.beside):
        if measure.knows(source.likelihood, target.task.likelihood):
            known = target.measured.get((measure.name, source.name, 1.0))
            values[measure.name] = known[0] if known else (yield from measure.work(pair))
    return values
