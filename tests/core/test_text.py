"""Texts and numbers for people: nothing that XML refuses, no share or duration rounder than it is."""

import math

import pytest

from nearkin.core.text import brief, counted, decimals, duration, fact_text, number, percent, plain, verbatim


def test_numbers_keep_three_figures_of_the_largest() -> None:
    assert decimals([0.02, 0.034]) == 4
    assert decimals([]) == decimals([math.nan]) == 3
    assert number(math.inf) == "–"


def test_plain_text_holds_nothing_that_xml_refuses() -> None:
    assert plain("a\x00\ud800\ufffe\u202eb\tc\n") == "a\ufffd\ufffd\ufffd\ufffdb c"
    assert verbatim("a\tb\x00\n  c\u202e") == "a b\ufffd\n  c\ufffd"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0, "0 s"), (59.6, "1 min"), (3599.9, "1 h"), (7260, "2 h 1 min"), (math.nan, "–"), (200_000, "2 d 7 h")],
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_shares_and_large_numbers_never_look_rounder_than_they_are() -> None:
    assert [percent(value) for value in (0, 1, 0.5, 0.0123, 0.9996, 0.99996, 0.00001)] == [
        "0 %", "100 %", "50 %", "1.2 %", "99.96 %", "> 99.99 %", "< 0.01 %",
    ]  # fmt: skip
    assert [brief(value) for value in (0, 999, 1000, 18_314, 1e9)] == ["0", "999", "1 k", "18.3 k", "1 G"]


def test_counts_agree_with_their_nouns() -> None:
    assert [counted(value, "trial") for value in (0, 1, 2, 1200)] == ["0 trials", "1 trial", "2 trials", "1,200 trials"]


def test_facts_of_any_size_keep_their_figures() -> None:
    assert [fact_text(value) for value in (1e-9, -2.5e7, 0.00012, 3, math.inf)] == [
        "1 × 10⁻⁹", "−2.5 × 10⁷", "0.00012", "3", "inf",
    ]  # fmt: skip
    assert fact_text({"a": [1]}) == '{"a": [1]}'
