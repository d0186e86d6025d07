"""Searches for connections between tasks: branches and fusions."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from laws.searcher import Make, SearcherLaws
from multitask_examples import GRADIENT, ONE, SPACE, THREE, TWO, all_bits, passes
from nearkin.core.errors import OptionError
from nearkin.core.events import finish
from nearkin.multitask.joint.branched import Branched, BranchedOptions, expected_branches
from nearkin.multitask.joint.connection_search import CONNECTIONS
from nearkin.multitask.joint.fused_columns import FusedColumns, FusedColumnsOptions, edge_name
from nearkin.multitask.joint.joint_search import Joint, JointOptions
from nearkin.search.plasticity.forgetting_options import ForgettingOptions
from nearkin.search.spaces.base import Space

TASKS = [ONE, TWO]


def branched(**options: Any) -> Branched:
    return Branched(TASKS, SPACE, BranchedOptions(**{"gradient": GRADIENT, **options}))


def fused(**options: Any) -> FusedColumns:
    return FusedColumns(TASKS, SPACE, FusedColumnsOptions(**{"gradient": GRADIENT, **options}))


class TestLawsOfBranches(SearcherLaws):
    STEPS = 3

    @pytest.fixture
    def make(self) -> Make:
        return branched

    @pytest.fixture
    def space(self) -> Space:
        return SPACE


class TestLawsOfFusions(TestLawsOfBranches):
    @pytest.fixture
    def make(self) -> Make:
        return lambda: fused(weighting="gradient-norm")


def test_the_expected_number_of_branches_is_that_of_all_choices() -> None:
    probabilities = torch.rand(1, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).softmax(-1)
    expected = sum(
        float(torch.stack([probabilities[0, task, branch] for task, branch in enumerate(choice)]).prod())
        * len(set(choice))
        for choice in itertools.product(range(4), repeat=3)
    )
    assert float(expected_branches(probabilities)) == pytest.approx(expected)


def test_the_penalty_makes_tasks_share_cells() -> None:
    searcher = branched(gradient=replace(GRADIENT, warmup=0), connection_penalty=1000.0, connection_rate=0.5)
    state = searcher.init(0)
    with torch.no_grad():
        state.architecture[CONNECTIONS].copy_(torch.tensor([[[0.3, 0.0], [0.0, 0.2]]] * 2))
    assert searcher.connection_facts(state) == {
        "branching": "cell 1: one; two | cell 2: one; two", "cells of the tree": 4.0,
    }  # fmt: skip
    while not searcher.ended(state):
        state = finish(searcher.step(state))
    scored = searcher.best(state)
    assert scored is not None
    assert scored.facts["branching"] == "cell 1: one+two | cell 2: one+two"
    assert scored.facts["cells of the tree"] == 2.0


def test_tasks_with_the_same_branches_compute_as_one_encoder_of_hard_sharing() -> None:
    """With one branch of weight 1 everywhere the supernet is the plain one."""
    searcher, hard = branched(), Joint(TASKS, SPACE, JointOptions(gradient=GRADIENT, sharing="hard"))
    state, other = searcher.init(0), hard.init(0)
    first = torch.tensor([[1.0, 0.0]] * 2)
    x = torch.rand(4, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    for slot, plain in zip(state.slots, other.slots, strict=True):
        alone = {name: value.detach() for name, value in other.architecture.items()}
        torch.testing.assert_close(slot.supernet(x, alone | {CONNECTIONS: first}), plain.supernet(x, alone))
        path = searcher.layout.path(alone, torch.Generator().manual_seed(1))
        torch.testing.assert_close(slot.supernet(x, path), plain.supernet(x, path))
    assert [tuple(one.shape) for one in state.slots[0].supernet.maps(x, path)] == [
        tuple(one.shape) for one in other.slots[0].supernet.maps(x, path)
    ]


def test_branches_of_one_task_learn_when_another_task_uses_them() -> None:
    searcher = branched(last_temperature=0.01, first_temperature=0.01)
    state = searcher.init(0)
    with torch.no_grad():
        state.architecture[CONNECTIONS].copy_(torch.tensor([[[100.0, 0.0], [0.0, 100.0]]] * 2))
    before = {name: value.detach().clone() for name, value in state.slots[0].supernet.cells[0].named_parameters()}
    state = finish(searcher.step(state))
    for name, value in state.slots[0].supernet.cells[0].named_parameters():
        assert not torch.equal(value, before[name]), name  # task two has trained branch 2
        assert value is dict(state.slots[1].supernet.cells[0].named_parameters())[name]


def test_temperatures_fall_and_mixtures_become_choices() -> None:
    searcher = branched()
    state = searcher.init(0)
    logits, early = state.architecture[CONNECTIONS].detach(), []
    for done in (0, 6):
        values = []
        for number in range(200):
            state.done, state.streams = done, type(state.streams)(number)
            values.append(searcher._values(state, 0, logits))
        assert torch.stack(values).sum(-1).allclose(torch.ones(()))
        early.append(float(torch.stack(values).max(-1).values.mean()))
    assert early[0] < 0.65
    assert early[1] > 0.95


def test_columns_start_as_separate_encoders() -> None:
    """The fusions start at 0, so the first losses are those of tasks that share nothing but the architecture."""
    apart = Joint(TASKS, SPACE, JointOptions(gradient=replace(GRADIENT, clip=0.0), sharing="architecture"))
    one, other = passes(fused(gradient=replace(GRADIENT, clip=0.0)), 1), passes(apart, 1)
    assert one.figures["training loss"] == pytest.approx(other.figures["training loss"], rel=1e-5)


def test_a_fusion_adds_features_of_another_column_by_its_gate() -> None:
    searcher = FusedColumns([ONE, TWO, THREE], SPACE, FusedColumnsOptions(gradient=GRADIENT))
    slot, x = searcher.init(0).slots[0], torch.rand(4, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    alpha = {name: value.detach() for name, value in searcher.init(0).architecture.items()}
    with torch.no_grad():
        slot.supernet.fusions[edge_name(1, 0, 2)].weight.normal_(generator=torch.Generator().manual_seed(0))
    gates = torch.zeros(2, 3, 3)
    closed = slot.supernet(x, alpha | {CONNECTIONS: gates})
    gates[1, 0, 1] = gates[1, 1, 2] = 1.0  # other edges, whose convolutions are 0
    torch.testing.assert_close(slot.supernet(x, alpha | {CONNECTIONS: gates}), closed)
    gates[1, 0, 2] = 1.0
    assert not torch.allclose(slot.supernet(x, alpha | {CONNECTIONS: gates}), closed)


def test_the_penalty_drives_gates_to_a_decision() -> None:
    searcher = fused(gradient=replace(GRADIENT, warmup=0), connection_penalty=1000.0, connection_rate=0.5)
    state = searcher.init(0)
    with torch.no_grad():
        state.architecture[CONNECTIONS].copy_(torch.tensor([[[0.0, 0.5], [-0.5, 0.0]]] * 2))
    state = finish(searcher.step(state))  # the penalty grows from 0
    with torch.no_grad():
        state.architecture[CONNECTIONS].copy_(torch.tensor([[[0.0, 0.5], [-0.5, 0.0]]] * 2))
    while not searcher.ended(state):
        state = finish(searcher.step(state))
    logits = state.architecture[CONNECTIONS]
    assert (logits[:, 0, 1] > 0.5).all()
    assert (logits[:, 1, 0] < -0.5).all()
    assert searcher.connection_facts(state) == {
        "fusions": "cell 1: two to one | cell 2: two to one", "number of fusions": 2.0,
    }  # fmt: skip


@pytest.mark.parametrize("make", [branched, fused])
def test_one_task_alone_and_tasks_of_different_sizes_are_possible(make: Any) -> None:
    kind, options = type(make()), make().options
    assert passes(kind([ONE], SPACE, options), 3).done == 3
    assert passes(kind([ONE, TWO, THREE], SPACE, options), 3).done == 3


def test_several_steps_in_a_pass_change_the_course() -> None:
    assert all_bits(passes(branched(steps_per_pass=2), 1)) != all_bits(passes(branched(), 1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BranchedOptions(num_branches=5), "num_branches must be 2 to 4, got 5"),
        (lambda: BranchedOptions(last_temperature=0.0), "temperatures must be above 0 and fall, got 5.0 and 0.0"),
        (lambda: FusedColumnsOptions(connection_penalty=-1.0), "connection_penalty must be 0 or more, got -1"),
        (lambda: FusedColumnsOptions(connection_rate=0.0), "connection_rate must be > 0"),
        (
            lambda: fused(gradient=replace(GRADIENT, forgetting=ForgettingOptions(plasticity=True))),
            "plasticity is on, and tasks share weights",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(make: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message) as refused:
        make()
    assert "\n" not in str(refused.value)
