"""t-tests over runs against scipy and closed forms."""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from nearkin.core.errors import DataError, OptionError
from nearkin.multitask.significance import compare_methods, holm_correction, summarise_runs

RUNS = {
    "ours": [0.91, 0.88, 0.93, 0.90, 0.87],
    "soft": [0.89, 0.88, 0.90, 0.89, 0.84],
    "hard": [0.86, 0.91, 0.85, 0.84, 0.88],
}


@pytest.mark.parametrize("paired", [True, False])
def test_differences_and_intervals_are_those_of_scipy(paired: bool) -> None:
    found = compare_methods(RUNS, "ours", paired=paired)
    for row in found.differences:
        mine, base = RUNS[row.method], RUNS["ours"]
        expected = stats.ttest_rel(mine, base) if paired else stats.ttest_ind(mine, base, equal_var=False)
        assert (row.t, row.p) == pytest.approx((expected.statistic, expected.pvalue), rel=1e-9)
        assert row.degrees == pytest.approx(expected.df)
        interval = expected.confidence_interval(0.95)
        assert (row.low, row.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
        assert row.difference == pytest.approx(np.mean(mine) - np.mean(base))
    assert [row.method for row in found.differences] == ["soft", "hard"]
    corrected = holm_correction([row.p for row in found.differences])
    assert [row.corrected for row in found.differences] == corrected


def test_two_runs_have_the_interval_of_the_cauchy_distribution() -> None:
    """With one degree of freedom, t is Cauchy: its quantile is tan(π·0.475), and p is 1 - 2·atan(t)/π."""
    found = summarise_runs([1.0, 4.0])
    assert (found.mean, found.std) == pytest.approx((2.5, 3 / math.sqrt(2)))
    assert found.high - found.mean == pytest.approx(math.tan(math.pi * 0.475) * 1.5)
    row = compare_methods({"a": [1.0, 4.0], "b": [0.0, 0.0]}, "b").differences[0]
    assert row.t == pytest.approx(2.5 / 1.5)
    assert row.p == pytest.approx(1 - 2 * math.atan(2.5 / 1.5) / math.pi)


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(1000):
        found = summarise_runs(rng.normal(1.0, 2.0, 4).tolist())
        covered += found.low <= 1.0 <= found.high
    assert abs(covered / 1000 - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 1000)


def test_holm_rejects_step_by_step() -> None:
    assert holm_correction([0.01, 0.02, 0.03]) == pytest.approx([0.03, 0.04, 0.04])
    assert holm_correction([0.5, 0.9]) == [1.0, 1.0]
    assert holm_correction([0.2]) == [0.2]
    assert holm_correction([]) == []


@pytest.mark.parametrize("paired", [True, False])
def test_figures_without_spread_are_equal_or_certainly_different(paired: bool) -> None:
    found = compare_methods({"a": [0.5, 0.5], "b": [0.5, 0.5], "c": [0.75, 0.75]}, "a", paired=paired)
    same, other = found.differences
    assert (same.t, same.p, other.t, other.p) == (0.0, 1.0, math.inf, 0.0)
    facts = found.to_dict()
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert facts["differences"][1]["t"] is None


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: summarise_runs([0.5], "ours"), DataError, "ours has 1 runs, and an interval needs two or more"),
        (lambda: compare_methods({"a": [1.0, 2.0], "b": []}, "a"), DataError, "b has 0 runs"),
        (lambda: compare_methods({"a": [1.0, 2.0], "b": [1.0, math.nan]}, "a"), DataError, "b has a run without"),
        (lambda: compare_methods({"a": [1.0, 2.0]}, "a"), OptionError, "expected two or more; add another method"),
        (lambda: compare_methods(RUNS, "theirs"), OptionError, "choose one of ours, soft, hard"),
        (lambda: compare_methods({"a": [1.0, 2.0, 3.0], "b": [1.0, 2.0]}, "a"), DataError, "b has 2 runs and a has 3"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(make: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as refused:
        make()
    assert "\n" not in str(refused.value)
