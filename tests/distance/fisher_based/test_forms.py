"""Which form of the Fréchet distance two tasks are compared by."""

import pytest

from nearkin.core.errors import OptionError
from nearkin.distance.fisher_based.forms import AUTO, DEFAULT, FALLBACK, Form, OutputType, can_pad, form_for
from nearkin.distance.fisher_based.frechet import AGGREGATES
from nearkin.distance.fisher_based.readings import READINGS

TWO, TEN = OutputType("categorical", 2), OutputType("categorical", 10)
REAL, REALS, SPREAD = OutputType("gaussian", 1), OutputType("gaussian", 3), OutputType("heteroscedastic", 2)
EDGES, COLOURS, WORDS, MORE_WORDS = (
    OutputType("dense", 1), OutputType("dense", 3), OutputType("language", 20), OutputType("language", 30),
)  # fmt: skip


def test_the_default_is_a_padded_form_and_the_fall_back_needs_no_labels() -> None:
    assert DEFAULT.reading == "padded"
    assert FALLBACK.reading == "model"


@pytest.mark.parametrize(
    ("source", "target", "padded"),
    [
        (TWO, TEN, True), (TEN, TWO, True), (REAL, REALS, True), (EDGES, COLOURS, True), (COLOURS, EDGES, True),
        (SPREAD, SPREAD, True), (WORDS, WORDS, True), (TWO, REAL, False), (TWO, EDGES, False), (EDGES, TEN, False),
        (WORDS, MORE_WORDS, False), (SPREAD, OutputType("heteroscedastic", 4), False), (REAL, SPREAD, False),
    ],
)  # fmt: skip
def test_labels_are_padded_where_they_can_be(source: OutputType, target: OutputType, padded: bool) -> None:
    assert can_pad(source, target) is padded
    assert form_for(source, target) == (DEFAULT if padded else FALLBACK)
    assert form_for(source, target, shared_start=False) == FALLBACK


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("aggregate", list(AGGREGATES))
def test_what_is_asked_for_is_taken(reading: str, aggregate: str) -> None:
    assert form_for(TWO, REAL, reading, aggregate, shared_start=False) == Form(reading, aggregate)
    assert form_for(TWO, TEN, AUTO, aggregate) == Form(DEFAULT.reading, aggregate)
    assert form_for(TWO, REAL, AUTO, aggregate) == Form(FALLBACK.reading, aggregate)


def test_the_aggregate_goes_with_the_reading() -> None:
    assert form_for(TWO, TEN, "model") == FALLBACK
    assert form_for(TWO, TEN, "refit") == Form("refit", DEFAULT.aggregate)


def test_unknown_words_are_named() -> None:
    with pytest.raises(OptionError, match="reading is one of auto, padded, model, refit, got 'none'"):
        form_for(TWO, TEN, "none")
    with pytest.raises(OptionError, match=r"aggregate is one of auto, weight, .*mixed, got 'all'"):
        form_for(TWO, TEN, "padded", "all")
