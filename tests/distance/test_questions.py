"""Questions about fine-tuning: their measures, and values that are combined by ranks."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata

from nearkin.core.errors import MismatchError, OptionError
from nearkin.distance.measure import Need
from nearkin.distance.questions import DEFAULT_QUESTION, QUESTIONS, Question, combined, question_named
from nearkin.distance.registry import MEASURES

EQUAL = {"logme": 1.0, "knn": 1.0, "hscore": 1.0}
numbers = st.lists(st.integers(-4, 4).map(float), min_size=2, max_size=7)


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=str)
def test_questions_name_measures_and_those_of_features_need_no_more_than_features(question: Question) -> None:
    assert QUESTIONS[question.name] is question
    assert set(question.measures) | set(question.features) <= set(MEASURES)
    assert all(weight > 0 for weight in (*question.measures.values(), *question.features.values()))
    needs = {need for name in question.features for need in MEASURES[name].needs}
    assert needs <= {Need.FEATURES, Need.LABELS}


def test_every_question_supports_every_likelihood_of_a_target() -> None:
    for question in QUESTIONS.values():
        for likelihood in MEASURES["short-finetune"].targets:
            names = question.supported(likelihood)
            assert names
            assert all(likelihood in MEASURES[name].targets for name in names)
        for likelihood in ("categorical", "gaussian"):
            assert all(likelihood in MEASURES[name].targets for name in question.supported(likelihood, True))
    assert QUESTIONS["final"].supported("gaussian", features_only=True) == {"knn": 0.12, "cka-adjusted": 0.16}
    with pytest.raises(MismatchError, match="no measure of the question 'q' supports dense targets"):
        Question("q", "", {"logme": 1.0}, {}, "knn").supported("dense")


@given(numbers)
@settings(deadline=None)
def test_combined_values_are_mean_ranks(values: list[float]) -> None:
    """The oracle is `scipy.stats.rankdata`; the order of candidates does not matter."""
    other = [math.cos(3 * value) for value in values]
    found = combined({"logme": values, "knn": other}, {"logme": 3.0, "knn": 1.0})
    size = len(values) - 1
    expected = (3 * (rankdata(values) - 1) + rankdata(other) - 1) / (4 * size)
    assert found == pytest.approx(expected.tolist())
    assert min(found) >= 0
    assert max(found) <= 1
    turned = combined({"logme": values[::-1], "knn": other[::-1]}, {"logme": 3.0, "knn": 1.0})
    assert turned == pytest.approx(found[::-1])


@given(numbers)
@settings(deadline=None)
def test_units_do_not_matter_if_there_are_several_measures(values: list[float]) -> None:
    scores = {"logme": values, "knn": values[::-1], "hscore": sorted(values)}
    scaled = {**scores, "knn": [math.exp(value) for value in scores["knn"]]}
    assert combined(scores, EQUAL) == combined(scaled, EQUAL)


def test_one_measure_keeps_its_values_and_one_candidate_is_first() -> None:
    assert combined({"logme": [2.5, -1.0]}, {"logme": 7.0}) == [2.5, -1.0]
    assert combined({"logme": [2.5], "knn": [0.1]}, {"logme": 1.0, "knn": 1.0}) == [0.0]


def test_scores_that_cannot_be_combined_are_refused() -> None:
    with pytest.raises(MismatchError, match="got scores of logme, expected hscore, knn, logme"):
        combined({"logme": [1.0]}, EQUAL)
    with pytest.raises(MismatchError, match=r"measures have \[1, 2\] scores"):
        combined({"logme": [1.0], "knn": [1.0, 2.0]}, {"logme": 1, "knn": 1})
    with pytest.raises(MismatchError, match="a score of knn is not a number"):
        combined({"logme": [1.0, 2.0], "knn": [math.nan, 2.0]}, {"logme": 1, "knn": 1})
    with pytest.raises(OptionError, match="unknown question 'cost'; choose one of final, speed"):
        question_named("cost")
    assert question_named(DEFAULT_QUESTION).name == "final"
