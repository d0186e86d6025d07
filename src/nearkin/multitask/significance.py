r"""t-tests over runs: is one method better than others, or do seeds explain the difference?

Runs with the same seeds are paired: with differences $d_i$ of n runs, $t = \bar d \sqrt n / s_d$ has n - 1 degrees of
freedom. Without pairs, Welch's test is used: $t = (\bar a - \bar b) / \sqrt{s_a^2/n_a + s_b^2/n_b}$ with the degrees of
freedom of Welch and Satterthwaite. The p-values of several methods against one are corrected by Holm's procedure.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from nearkin.core.errors import DataError, require

LEVEL = 0.95
"""Coverage of all intervals."""


@dataclass(frozen=True)
class RunSummary:
    """Mean of a figure over runs.

    Attributes:
        count: number of runs.
        mean: mean over runs.
        std: standard deviation over runs (with n - 1).
        low: lower end of the 95 % interval of the mean.
        high: upper end of it.
    """

    count: int
    mean: float
    std: float
    low: float
    high: float


@dataclass(frozen=True)
class MethodDifference:
    """A method compared with the reference.

    Attributes:
        method: name of the method.
        difference: mean of the method minus mean of the reference.
        low: lower end of the 95 % interval of the difference.
        high: upper end of it.
        t: the statistic; infinite if a difference has no spread.
        degrees: degrees of freedom.
        p: two-sided p-value.
        corrected: p-value after Holm's correction for all methods that are compared.
    """

    method: str
    difference: float
    low: float
    high: float
    t: float
    degrees: float
    p: float
    corrected: float


@dataclass(frozen=True)
class RunComparison:
    """Methods over runs, and their differences from one of them.

    Attributes:
        reference: name of the method with which the others are compared.
        paired: whether runs are paired by seed.
        summaries: figures of every method.
        differences: every other method compared with the reference.
    """

    reference: str
    paired: bool
    summaries: Mapping[str, RunSummary]
    differences: tuple[MethodDifference, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; an infinite t is None."""
        rows = [{**asdict(row), "t": row.t if math.isfinite(row.t) else None} for row in self.differences]
        summaries = {name: asdict(summary) for name, summary in self.summaries.items()}
        return {"reference": self.reference, "paired": self.paired, "methods": summaries, "differences": rows}


def compare_methods(figures: Mapping[str, Sequence[float]], reference: str, *, paired: bool = True) -> RunComparison:
    """Compare methods over runs with one of them.

    Args:
        figures: for each method one figure per run; with pairs, run i of all methods has the same seed.
        reference: the method with which the others are compared.
        paired: whether runs are paired by seed; otherwise Welch's test is used.

    >>> found = compare_methods({"ours": [0.9, 0.8, 0.85], "other": [0.8, 0.75, 0.8]}, "other")
    >>> row = found.differences[0]
    >>> row.method, round(row.difference, 3), round(row.p, 3)
    ('ours', 0.067, 0.057)
    """
    require(reference in figures, f"the reference {reference!r} has no runs; choose one of {', '.join(figures)}")
    require(len(figures) > 1, f"got the runs of one method ({reference}), expected two or more; add another method")
    summaries = {name: summarise_runs(values, name) for name, values in figures.items()}
    others, base = [name for name in figures if name != reference], figures[reference]
    for name in others if paired else ():
        require(
            len(figures[name]) == len(base),
            f"{name} has {len(figures[name])} runs and {reference} has {len(base)}, and paired runs have the same "
            f"seeds; add the missing runs, or compare without pairs",
            DataError,
        )
    tests = [_paired(figures[name], base) if paired else _welch(figures[name], base) for name in others]
    corrected = holm_correction([test[-1] for test in tests])
    rows = [MethodDifference(name, *test, value) for name, test, value in zip(others, tests, corrected, strict=True)]
    return RunComparison(reference, paired, summaries, tuple(rows))


def summarise_runs(values: Sequence[float], name: str = "the method") -> RunSummary:
    """Mean, standard deviation and the 95 % interval of the mean; raises for fewer than two runs.

    >>> summarise_runs([1.0, 3.0]).mean, round(summarise_runs([1.0, 3.0]).high, 2)
    (2.0, 14.71)
    """
    count = len(values)
    require(count >= 2, f"{name} has {count} runs, and an interval needs two or more; add runs", DataError)
    require(
        all(map(math.isfinite, values)),
        f"{name} has a run without a finite figure ({', '.join(map(str, values))}); repeat or remove that run",
        DataError,
    )
    mean, std = float(np.mean(values)), float(np.std(values, ddof=1))
    width = _quantile(count - 1) * std / math.sqrt(count)
    return RunSummary(count, mean, std, mean - width, mean + width)


def holm_correction(values: Sequence[float]) -> list[float]:
    r"""Corrected p-values of several tests: $\max_{j \le i} \min(1, (m - j + 1)\, p_{(j)})$ in the order of size.

    >>> holm_correction([0.04, 0.01, 0.03])
    [0.06, 0.03, 0.06]
    """
    corrected, largest = [0.0] * len(values), 0.0
    for position, index in enumerate(sorted(range(len(values)), key=lambda i: values[i])):
        largest = max(largest, min(1.0, (len(values) - position) * values[index]))
        corrected[index] = largest
    return corrected


_Test = tuple[float, float, float, float, float, float]  # difference, low, high, t, degrees of freedom, p


def _paired(first: Sequence[float], second: Sequence[float]) -> _Test:
    differences = np.subtract(first, second)
    error = float(differences.std(ddof=1)) / math.sqrt(len(first))
    return _test(float(differences.mean()), error, len(first) - 1)


def _welch(first: Sequence[float], second: Sequence[float]) -> _Test:
    parts = [float(np.var(values, ddof=1)) / len(values) for values in (first, second)]
    squares = sum(part**2 / (len(values) - 1) for part, values in zip(parts, (first, second), strict=True))
    degrees = sum(parts) ** 2 / squares if squares > 0 else len(first) + len(second) - 2
    return _test(float(np.mean(first)) - float(np.mean(second)), math.sqrt(sum(parts)), degrees)


def _test(difference: float, error: float, degrees: float) -> _Test:
    """Test of a difference with its standard error; without spread, any difference is certain."""
    if error == 0:
        t, p = (math.copysign(math.inf, difference), 0.0) if difference else (0.0, 1.0)
        return difference, difference, difference, t, degrees, p
    t, width = difference / error, _quantile(degrees) * error
    return difference, difference - width, difference + width, t, degrees, float(2 * stats.t.sf(abs(t), degrees))


def _quantile(degrees: float) -> float:
    return float(stats.t.ppf((1 + LEVEL) / 2, degrees))
