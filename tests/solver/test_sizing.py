"""Sizes and steps that fit into a time, with a clock of our own."""

import pytest
import torch

from nearkin.core.errors import TrainingError
from nearkin.nets.recipe import Recipe
from nearkin.solver import sizing
from nearkin.tasks.task import Task

NETWORKS = [f"mlp?hidden={width}" for width in (4, 8, 16)]


@pytest.fixture
def toy() -> Task:
    x = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    return Task.from_arrays("toy", x, (x[:, 0] > 0).long())


def steps_of(found: sizing.SizedNetwork) -> int | None:
    return found.recipe.steps


def clock(monkeypatch: pytest.MonkeyPatch, by_width: dict[int, float]) -> None:
    def seconds(model: torch.nn.Module, task: Task, batch_size: int) -> float:
        first = next(layer for layer in model.modules() if isinstance(layer, torch.nn.Linear))
        return by_width[first.out_features]

    monkeypatch.setattr(sizing, "step_seconds", seconds)


def test_without_a_limit_it_is_the_usual_one(toy: Task) -> None:
    recipe = Recipe(steps=100)
    assert sizing.size_network(NETWORKS, toy, recipe, None, usual=1) == sizing.SizedNetwork(NETWORKS[1], recipe)


def test_the_largest_that_can_take_all_steps_is_taken(toy: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, {4: 0.01, 8: 0.02, 16: 0.04})
    assert sizing.size_network(NETWORKS, toy, Recipe(steps=100), 2.5).network == NETWORKS[1]
    assert sizing.size_network(NETWORKS, toy, Recipe(steps=100), 4.5).network == NETWORKS[2]


def test_steps_fill_the_time_up_to_twice_the_usual(toy: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, {4: 0.01, 8: 1.0, 16: 1.0})
    assert steps_of(sizing.size_network(NETWORKS, toy, Recipe(steps=100), 1.5)) == 150
    assert steps_of(sizing.size_network(NETWORKS, toy, Recipe(steps=100), 9.0)) == 200
    assert steps_of(sizing.size_network(NETWORKS, toy, Recipe(steps=100), 0.5)) == 50


def test_a_few_steps_may_take_longer_and_many_times_longer_is_refused(
    toy: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock(monkeypatch, {4: 0.01, 8: 1.0, 16: 1.0})
    assert steps_of(sizing.size_network(NETWORKS, toy, Recipe(steps=100), 0.15)) == sizing.FEWEST_STEPS
    with pytest.raises(TrainingError, match="increase the budget"):
        sizing.size_network(NETWORKS, toy, Recipe(steps=100), 0.05)


def test_a_step_is_timed_without_changing_the_model(toy: Task) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert sizing.step_seconds(model, toy, 32) > 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
