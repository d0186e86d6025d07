"""Kin in words: order, agreement of trials, one sentence."""

import math
import re

import pytest
import torch

from nearkin.core.errors import OptionError
from nearkin.distance.matrix import DistanceMatrix
from nearkin.report.labels import labels, shorten, text_width
from nearkin.report.nearest_kin import answer, nearest_kin, plain_answer


def of(*trials: list[list[float]], names: str = "abcdefghij") -> DistanceMatrix:
    values = torch.tensor(trials, dtype=torch.float64)
    return DistanceMatrix(tuple(names[: values.shape[1]]), "frechet", values)


def test_order_and_margin_follow_the_column_not_the_row() -> None:
    kin = nearest_kin(of([[0, 0.1, 0.9], [0.5, 0, 0.2], [0.3, 0.4, 0]]))
    assert [one.order for one in kin] == [(2, 1), (0, 2), (1, 0)]
    assert [one.distance for one in kin] == [0.3, 0.1, 0.2]
    assert kin[0].margin == pytest.approx(0.2)


def test_wins_count_the_trials_that_agree_with_the_mean() -> None:
    kin = nearest_kin(
        of(
            [[0, 1, 1], [0.1, 0, 1], [0.5, 1, 0]],
            [[0, 1, 1], [0.1, 0, 1], [0.5, 1, 0]],
            [[0, 1, 1], [0.4, 0, 1], [0.3, 1, 0]],
        )
    )
    assert (kin[0].source, kin[0].wins, kin[0].trials) == (1, 2, 3)


def test_a_self_distance_is_never_the_nearest() -> None:
    assert all(one.source != one.target for one in nearest_kin(of([[0, 0.9], [0.9, 0]])))


def test_what_cannot_be_compared_is_no_kin() -> None:
    nan = math.nan
    kin = nearest_kin(of([[0, nan, 0.5], [nan, 0, 0.4], [nan, nan, 0]]))
    assert [one.source for one in kin] == [None, None, 1]
    assert math.isnan(kin[0].distance)
    assert kin[0].trials == 0


def test_sentences() -> None:
    four = of([[0, 0.1, 0.6, 0.7], [0.2, 0, 0.5, 0.4], [0.9, 0.9, 0, 0.8], [0.9, 0.9, 0.7, 0]])
    assert plain_answer(four) == (
        "a and b are each other’s nearest kin (0.100, back 0.200); "
        "the nearest kin of c is b (0.500); the nearest kin of d is b (0.400)."
    )
    assert plain_answer(four, "c") == "The nearest kin of c is b (0.500), then a (0.600) and d (0.700)."
    ring = of([[0, 0.1, 0.9], [0.9, 0, 0.2], [0.3, 0.9, 0]])
    assert plain_answer(ring) == (
        "The nearest kin of a is c (0.300); the nearest kin of b is a (0.100); the nearest kin of c is b (0.200)."
    )
    split = of([[0, 1, 1], [0.1, 0, 1], [0.5, 1, 0]], [[0, 1, 1], [0.3, 0, 1], [0.2, 1, 0]])
    assert plain_answer(split, "a").endswith("; it is nearest in 1 of 2 trials.")


def test_a_sentence_on_many_tasks_stays_short() -> None:
    values = 0.5 + torch.arange(400, dtype=torch.float64).reshape(1, 20, 20) / 1000
    matrix = DistanceMatrix(tuple(f"task-{k}" for k in range(20)), "frechet", values)
    said = plain_answer(matrix)
    assert (
        said
        == "task-0 and task-1 are each other’s nearest kin (0.501, back 0.520); task-0 is the nearest kin of 19 tasks."
    )


def test_a_sentence_on_nothing_comparable() -> None:
    for size in (2, 9):
        values = torch.full((1, size, size), math.nan, dtype=torch.float64)
        matrix = DistanceMatrix(tuple("abcdefghi"[:size]), "frechet", values)
        assert plain_answer(matrix) == f"{size} tasks could not be compared with any other task."
        assert plain_answer(matrix, "a") == "No task could be compared with a."


def test_names_are_marked_as_names() -> None:
    said = answer(of([[0, 0.1], [0.2, 0]]))
    assert re.findall("<b>(.*?)</b>", said) == ["a", "b"]
    assert re.findall("<b(.*?)>", answer(of([[0, 0.1], [0.2, 0]]), "a")) == [' class="target"', ""]


def test_an_unknown_target_is_named() -> None:
    with pytest.raises(OptionError, match="no task named 'z'; it has a, b"):
        answer(of([[0, 0.1], [0.2, 0]]), "z")


def test_shortened_names_fit_keep_both_ends_and_stay_apart() -> None:
    names = [f"mnist?classes=0,1,2,3&rest=other&limit={limit}&seed=1" for limit in (100, 200, 300)]
    short = labels([*names, "zero"], 11, 90)
    assert len(set(short)) == 4
    assert short[3] == "zero"
    assert all(text_width(name, 11) <= 90 for name in short)
    assert all(name.startswith("mnist") for name in short[:3])
    assert shorten("漢" * 30, 10, 50).count("漢") == 4
