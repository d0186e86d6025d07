"""The learned threshold: an oracle by trying every value, its bounds, and what it tells."""

import dataclasses
import itertools
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.core.errors import DataError, OptionError
from nearkin.distance.fisher_based.forms import DEFAULT, FALLBACK
from nearkin.solver.nearness import FEWEST, MARGIN, PRIOR, TIE, Threshold, Trial, shipped, threshold, trials_from

STEP = 1 / 16
assert STEP > TIE  # totals of the trials below are equal or differ by more than what counts as equal

places = st.tuples(st.integers(0, 32), st.integers(-4, 4), st.integers(0, 4))
many = st.lists(places, min_size=FEWEST, max_size=24)


def made(rows: list[tuple[int, int, int]]) -> list[Trial]:
    """Trials whose distances and gains are sums of powers of two, so that their totals are exact."""
    return [Trial("kin", f"target {number}", place / 32, gain * STEP) for place, gain, number in rows]


def total(trials: list[Trial], value: float) -> float:
    return math.fsum(trial.gain for trial in trials if trial.distance <= value)


def planted(below: float, above: float) -> list[Trial]:
    """Six targets with a kin at 0.1 to 0.15 and one at 0.3 to 0.35."""
    near = [Trial("near", f"target {i}", 0.1 + i / 100, below) for i in range(6)]
    return near + [Trial("far", f"target {i}", 0.3 + i / 100, above) for i in range(6)]


@settings(max_examples=40)
@given(many)
def test_no_other_value_would_have_gained_more_and_none_as_good_is_larger(rows: list[tuple[int, int, int]]) -> None:
    trials = made(rows)
    found = threshold(trials)
    best = max(total(trials, value) for value in (0.0, *(trial.distance for trial in trials)))
    assert total(trials, found.value) == best
    assert all(total(trials, t.distance) < best for t in trials if t.distance > found.value)


@settings(max_examples=40)
@given(many, st.lists(places, max_size=4))
def test_more_good_trials_never_lower_it(rows: list[tuple[int, int, int]], more: list[tuple[int, int, int]]) -> None:
    trials, good = made(rows), made([(place, abs(gain), number) for place, gain, number in more])
    assert threshold(trials + good).value >= threshold(trials).value


@settings(max_examples=40)
@given(many)
def test_bounds(rows: list[tuple[int, int, int]]) -> None:
    trials = made(rows)
    found = threshold(trials)
    assert 0 <= found.value <= min(1.0, max(trial.distance for trial in trials) + MARGIN)
    assert 0 <= found.interval[0] <= found.interval[1] <= 1
    assert found.num_below + found.num_above == len(trials)
    assert threshold(trials[::-1]).value == found.value


def test_planted_border_is_found_midway() -> None:
    found = threshold(planted(0.1, -0.15))
    assert found.value == pytest.approx((0.15 + 0.3) / 2)
    assert found.interval[0] == pytest.approx(0.2, abs=0.06)
    assert (found.gain_below, found.gain_above) == (pytest.approx(0.1), pytest.approx(-0.15))
    assert (found.num_below, found.num_above, found.num_targets) == (6, 6, 6)
    assert found.trend < 0
    assert found.near(found.value)
    assert not found.near(0.3)
    assert not found.near(math.nan)


@pytest.mark.parametrize(
    ("trend", "words"), [(-0.9, "were better"), (-0.05, "were no better"), (0.9, "were no better")]
)
def test_a_correlation_within_chance_is_not_called_better(trend: float, words: str) -> None:
    found = dataclasses.replace(threshold(planted(0.1, -0.15)), trend=trend)
    assert f"nearer tasks {words} than farther ones" in found.words()


def test_where_kin_never_lose_it_is_the_largest_distance_and_a_margin() -> None:
    found = threshold(planted(0.05, 0.1))
    assert found.value == pytest.approx(0.35 + MARGIN)
    assert "Leaving out farther tasks would have gained nothing" in found.words()
    assert "no better than farther ones" in found.words()
    assert threshold([dataclasses.replace(t, distance=1.0) for t in planted(0.01, 0.01)]).value == 1.0


def test_where_kin_always_lose_none_is_near() -> None:
    found = threshold(planted(-0.1, -0.1))
    assert (found.value, found.num_below, found.gain_below) == (0.0, 0, 0.0)
    assert "no task counts as near" in found.words()


def test_equal_totals_go_to_the_larger_value() -> None:
    assert threshold(planted(0.1, 0.0)).value == pytest.approx(0.35 + MARGIN)
    slight = planted(0.1, 0.0)
    slight[-1] = dataclasses.replace(slight[-1], gain=-TIE / 2)
    assert threshold(slight).value == pytest.approx(0.35 + MARGIN)
    slight[-1] = dataclasses.replace(slight[-1], gain=-TIE * 2)
    assert threshold(slight).value == pytest.approx((0.34 + 0.35) / 2)


def test_few_trials_leave_the_prior() -> None:
    found = threshold(planted(0.1, -0.15)[: FEWEST - 1])
    assert (found.value, found.learned) == (PRIOR, False)
    assert f"{FEWEST - 1} trials" in found.words()
    assert "is a default" in found.words()
    assert threshold(planted(0.1, -0.15)[:FEWEST]).learned


@pytest.mark.parametrize("below", [0.1, -0.1])
@pytest.mark.parametrize("above", [0.1, -0.1])
def test_words_tell_the_counts(below: float, above: float) -> None:
    trials = planted(below, above)
    words = threshold(trials).words()
    assert "12 trials on 6 targets" in words
    assert f"{threshold(trials).value:.2f}" in words
    sides = {"at or below the threshold": threshold(trials).num_below, "above it": threshold(trials).num_above}
    for where, count in sides.items():
        assert (f"in the {count} {where}" in words) == (count > 0)


def test_plain_values_come_back() -> None:
    for trials in (planted(0.1, -0.15), []):
        found = threshold(trials)
        assert Threshold.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False))) == found
    assert trials_from([trial.to_dict() for trial in planted(0.1, -0.15)]) == tuple(planted(0.1, -0.15))


@pytest.mark.parametrize(
    "changes", [{"distance": -0.1}, {"distance": 1.5}, {"distance": math.nan}, {"gain": math.inf}, {"origin": "web"}]
)
def test_a_trial_is_checked_at_birth(changes: dict[str, float | str]) -> None:
    with pytest.raises(OptionError, match="the trial of b from a"):
        Trial(**{"source": "a", "target": "b", "distance": 0.1, "gain": 0.0, **changes})  # type: ignore[arg-type]


def test_a_broken_row_is_refused() -> None:
    with pytest.raises(DataError, match="remove it"):
        trials_from([{"source": "a", "far": 0.1}])


def test_shipped_trials() -> None:
    trials = shipped()
    pairs = [(trial.source, trial.target) for trial in trials]
    names = {name for pair in pairs for name in pair}
    assert len(trials) >= FEWEST
    assert sorted(pairs) == sorted(itertools.permutations(names, 2))  # every ordered pair once
    assert all(trial.origin == "shipped" and abs(trial.gain) < 1 for trial in trials)
    assert {trial.form for trial in trials} == {str(DEFAULT)}  # the form that `solve` measures
    found = threshold(trials, str(DEFAULT))
    assert found.learned
    assert not threshold(trials, str(FALLBACK)).learned
    assert 0 < found.value < 1
    assert f"{len(trials)} trials on {len(names)} targets" in found.words()


def test_a_threshold_belongs_to_one_form_of_the_distance() -> None:
    """Trials of another form neither move it nor are judged by it; without trials of a form it is the prior."""
    trials = [dataclasses.replace(trial, form="padded/mixed") for trial in planted(0.1, -0.15)]
    others = [dataclasses.replace(trial, form="model/sorted", gain=-trial.gain) for trial in trials]
    found = threshold([*trials, *others], "padded/mixed")
    assert found == threshold(trials, "padded/mixed")
    assert found.form == "padded/mixed"
    assert "form padded/mixed" in found.words()
    unknown = threshold([*trials, *others], "padded/layer")
    assert (unknown.value, unknown.learned, unknown.num_targets) == (PRIOR, False, 0)
