"""Orders of tasks against all permutations and loops that are known."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.core.errors import MismatchError
from nearkin.multitask.task_order import loop_length, order_by_distance


@given(st.integers(1, 6), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_no_other_order_is_shorter(count: int, seed: int) -> None:
    distances = torch.rand(count, count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    order = order_by_distance(distances)
    shortest = min(loop_length(distances, loop) for loop in itertools.permutations(range(count)))
    assert sorted(order) == list(range(count))
    assert loop_length(distances, order) == pytest.approx(shortest, abs=1e-12)


def test_tasks_on_a_circle_come_in_the_order_of_the_circle() -> None:
    for count in (5, 12):
        angles = 2 * torch.pi * torch.arange(count, dtype=torch.float64) / count
        places = torch.stack([angles.cos(), angles.sin()], 1)
        order = order_by_distance(torch.cdist(places, places))
        steps = {(b - a) % count for a, b in itertools.pairwise([*order, order[0]])}
        assert steps in ({1}, {count - 1})


def test_pairs_without_a_distance_are_avoided() -> None:
    distances = torch.tensor([[0.0, torch.nan, 0.5], [0.5, 0.0, torch.nan], [1.0, 1.0, 0.0]])
    assert order_by_distance(distances) == [0, 2, 1]


def test_a_matrix_that_is_not_square_is_refused() -> None:
    with pytest.raises(MismatchError, match="shape \\(2, 3\\), expected a square matrix"):
        order_by_distance(torch.zeros(2, 3))
