"""Distances that were measured before and are kept: as a matrix for the map, as a ranking for a task."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import torch

from nearkin.distance.fisher_based.forms import DEFAULT, FALLBACK
from nearkin.distance.fisher_based.frechet import AGGREGATES
from nearkin.distance.matrix import DistanceMatrix
from nearkin.store.read_only import Distance

UNMEASURED = "not measured yet"


def aggregates(found: Iterable[Distance], key: str = "") -> list[str]:
    """Which aggregates the measurements tell, first the one that `nearkin near` uses with the reading of this key.

    >>> aggregates([Distance("a", "b", 0, {"layer": 0.1, "sorted": 0.2})], f"frechet {FALLBACK.reading} train 1000")
    ['sorted', 'layer']
    """
    usual = (FALLBACK if f" {FALLBACK.reading} " in key else DEFAULT).aggregate
    known = {name for one in found for name in one.values}
    return sorted(
        known, key=lambda name: (name != usual, list(AGGREGATES).index(name) if name in AGGREGATES else 9, name)
    )


def matrix_of(found: Sequence[Distance], measure: str, aggregate: str, order: Sequence[str]) -> DistanceMatrix:
    """The matrix of all tasks that were ever compared, in the given order; NaN where a pair was not measured.

    >>> matrix = matrix_of([Distance("b", "a", 0, {"sorted": 0.25})], "frechet", "sorted", ["a", "b", "c"])
    >>> matrix.tasks, matrix.mean.tolist()[1][0]
    (('a', 'b'), 0.25)
    """
    told = [
        (one.source, one.target, one.trial, value) for one in found if (value := _value(one, aggregate)) is not None
    ]
    present = {name for source, target, _, _ in told if source != target for name in (source, target)}
    names = [name for name in order if name in present]
    places = {name: place for place, name in enumerate(names)}
    trials = max((trial + 1 for _, _, trial, _ in told), default=1)
    values = torch.full((trials, len(names), len(names)), torch.nan, dtype=torch.float64)
    for source, target, trial, value in told:
        if source in places and target in places:
            values[trial, places[source], places[target]] = value
    for place in range(len(names)):
        values[:, place, place] = 0.0
    unknown = values.isnan().all(0).nonzero().tolist()
    return DistanceMatrix(tuple(names), measure, values, {(names[a], names[b]): UNMEASURED for a, b in unknown})


@dataclass(frozen=True)
class Source:
    """A kin of a target: mean and standard deviation of the distance over trials, and the mean of the way back."""

    name: str
    distance: float
    std: float
    back: float
    trials: int


def ranking(found: Sequence[Distance], target: str, aggregate: str) -> list[Source]:
    """The sources of a target, nearest first.

    >>> found = [Distance("b", "a", trial, {"sorted": value}) for trial, value in enumerate([0.2, 0.4])]
    >>> [(one.name, round(one.distance, 3), one.trials) for one in ranking(found, "a", "sorted")]
    [('b', 0.3, 2)]
    """
    there: dict[str, list[float]] = {}
    back: dict[str, list[float]] = {}
    for one in found:
        value = _value(one, aggregate)
        if value is not None and one.source != one.target:
            if one.target == target:
                there.setdefault(one.source, []).append(value)
            elif one.source == target:
                back.setdefault(one.target, []).append(value)
    rows = [
        Source(
            name,
            fmean(values),
            stdev(values) if len(values) > 1 else 0.0,
            fmean(back[name]) if name in back else math.nan,
            len(values),
        )
        for name, values in there.items()
    ]
    return sorted(rows, key=lambda one: (one.distance, one.name))


def _value(one: Distance, aggregate: str) -> float | None:
    value = one.values.get(aggregate)
    known = isinstance(value, int | float) and math.isfinite(value) and 0 <= one.trial < 10_000
    return float(value) if known and value is not None else None
