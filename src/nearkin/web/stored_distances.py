"""Stored distances: as a matrix for the map, as a ranking for a task."""

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


def aggregates(distances: Iterable[Distance], key: str = "") -> list[str]:
    """Names of the stored aggregates, first the one that `nearkin near` uses with the reading of this key.

    >>> aggregates([Distance("a", "b", 0, {"layer": 0.1, "sorted": 0.2})], f"frechet {FALLBACK.reading} train 1000")
    ['sorted', 'layer']
    """
    usual = (FALLBACK if f" {FALLBACK.reading} " in key else DEFAULT).aggregate
    known = {name for distance in distances for name in distance.values}
    return sorted(
        known, key=lambda name: (name != usual, list(AGGREGATES).index(name) if name in AGGREGATES else 9, name)
    )


def matrix_of(distances: Sequence[Distance], measure: str, aggregate: str, order: Sequence[str]) -> DistanceMatrix:
    """The matrix of all compared tasks, in the given order; NaN if a pair was not measured.

    >>> matrix = matrix_of([Distance("b", "a", 0, {"sorted": 0.25})], "frechet", "sorted", ["a", "b", "c"])
    >>> matrix.tasks, matrix.mean.tolist()[1][0]
    (('a', 'b'), 0.25)
    """
    rows = [(d.source, d.target, d.trial, value) for d in distances if (value := _value(d, aggregate)) is not None]
    present = {name for source, target, _, _ in rows if source != target for name in (source, target)}
    names = [name for name in order if name in present]
    index = {name: row for row, name in enumerate(names)}
    trials = max((trial + 1 for _, _, trial, _ in rows), default=1)
    values = torch.full((trials, len(names), len(names)), torch.nan, dtype=torch.float64)
    for source, target, trial, value in rows:
        if source in index and target in index:
            values[trial, index[source], index[target]] = value
    values.diagonal(dim1=1, dim2=2).zero_()
    unknown = values.isnan().all(0).nonzero().tolist()
    return DistanceMatrix(tuple(names), measure, values, {(names[a], names[b]): UNMEASURED for a, b in unknown})


@dataclass(frozen=True)
class RankedSource:
    """A source of a target: mean and standard deviation of the distance over trials, and the mean distance back."""

    name: str
    distance: float
    std: float
    back: float
    trials: int


def ranking(distances: Sequence[Distance], target: str, aggregate: str) -> list[RankedSource]:
    """The sources of a target, nearest first.

    >>> distances = [Distance("b", "a", trial, {"sorted": value}) for trial, value in enumerate([0.2, 0.4])]
    >>> [(source.name, round(source.distance, 3), source.trials) for source in ranking(distances, "a", "sorted")]
    [('b', 0.3, 2)]
    """
    forward: dict[str, list[float]] = {}
    back: dict[str, list[float]] = {}
    for distance in distances:
        value = _value(distance, aggregate)
        if value is not None and distance.source != distance.target:
            if distance.target == target:
                forward.setdefault(distance.source, []).append(value)
            elif distance.source == target:
                back.setdefault(distance.target, []).append(value)
    rows = [
        RankedSource(
            name,
            fmean(values),
            stdev(values) if len(values) > 1 else 0.0,
            fmean(back[name]) if name in back else math.nan,
            len(values),
        )
        for name, values in forward.items()
    ]
    return sorted(rows, key=lambda row: (row.distance, row.name))


def _value(distance: Distance, aggregate: str) -> float | None:
    value = distance.values.get(aggregate)
    known = isinstance(value, int | float) and math.isfinite(value) and 0 <= distance.trial < 10_000
    return float(value) if known and value is not None else None
