"""Recipes and histories."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nearkin.core.errors import OptionError
from nearkin.nets.history import History, Measurement
from nearkin.nets.recipe import SCHEDULES, Recipe
from nearkin.tasks.sources import task


@given(st.sampled_from(SCHEDULES), st.floats(0, 0.5), st.integers(2, 500))
def test_rates_rise_then_fall_and_stay_within_the_peak(schedule: str, warmup: float, total: int) -> None:
    recipe = Recipe(schedule=schedule, warmup=warmup, learning_rate=0.3)
    rates = [recipe.rate(step, total) for step in range(total)]
    rising = round(warmup * total)
    assert all(0 <= rate <= 0.3 + 1e-12 for rate in rates)
    assert all(a <= b for a, b in itertools.pairwise(rates[:rising]))
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(rates[rising:]))


def test_schedules_in_closed_form() -> None:
    cosine = Recipe(warmup=0.0, learning_rate=1.0)
    assert cosine.rate(25, 100) == pytest.approx((1 + math.cos(math.pi / 4)) / 2)
    step = Recipe(schedule="step", warmup=0.0, learning_rate=1.0, milestones=(0.5, 0.75), decay=0.1)
    assert [round(step.rate(s, 100), 6) for s in (0, 49, 50, 75, 99)] == [1, 1, 0.1, 0.01, 0.01]
    assert Recipe(warmup=0.1, learning_rate=1.0).rate(4, 100) == pytest.approx(0.5)


def test_recipes_go_through_json() -> None:
    recipe = Recipe(epochs=3, milestones=(0.2,), target=0.9)
    assert Recipe(**recipe.to_dict()) == recipe


def test_suited_recipes_follow_the_size_and_take_changes() -> None:
    few = task("digits?limit=100")
    recipe = Recipe.suited(few, learning_rate=0.01)
    assert recipe.learning_rate == 0.01
    assert recipe.total_steps(2) <= 120
    with pytest.raises(OptionError, match=r"unknown training option 'lr'.*learning_rate"):
        Recipe.suited(few, lr=0.1)


@pytest.mark.parametrize(
    "bad",
    [{"epochs": 0}, {"learning_rate": 0}, {"optimiser": "lion"}, {"schedule": "x"}, {"momentum": 1.0}, {"clip": -1},
     {"averaging": 2}, {"validation": 0}, {"precision": "int8"}, {"augment": "fly"}, {"batch_size": 0}, {"steps": 0}],
)  # fmt: skip
def test_bad_options_are_refused_at_birth(bad: dict[str, object]) -> None:
    with pytest.raises(OptionError, match=next(iter(bad)) if "augment" not in bad else "fly"):
        Recipe(**bad)  # type: ignore[arg-type]


def test_steps_to_a_loss_against_a_loop() -> None:
    losses = torch.rand(60, generator=torch.Generator().manual_seed(0)) + torch.linspace(3, 0, 60)
    history = History(losses, steps_per_epoch=7)
    for wanted in (2.5, 1.5, 1.0, 0.01):
        means = [(i + 1, losses[i - 6 : i + 1].mean().item()) for i in range(6, 60)]
        expected = next((step for step, mean in means if mean <= wanted), None)
        assert history.steps_to(wanted) == expected


def test_histories_go_through_tensors() -> None:
    history = History(torch.rand(5), (Measurement(2, 0.5, 1.5), Measurement(4, 0.75, 1.0)), 2)
    again = History.from_tensors(history.to_tensors())
    assert torch.equal(again.losses, history.losses)
    assert (again.measured, again.steps_per_epoch) == (history.measured, 2)
    assert History.from_tensors(History(torch.rand(1)).to_tensors()).measured == ()


def test_recipes_of_pretrained_networks_take_small_steps_and_keep_statistics() -> None:
    few = task("digits?limit=100")
    recipe = Recipe.for_pretrained(few)
    assert recipe.frozen_statistics
    assert recipe.learning_rate < Recipe.suited(few).learning_rate / 5
    assert recipe.epochs <= 20
    assert Recipe.for_pretrained(few, epochs=40, learning_rate=0.1).epochs == 40
    assert "frozen_statistics" not in Recipe().to_dict(), "recipes that were stored before have the same form"
    assert Recipe(**recipe.to_dict()) == recipe
