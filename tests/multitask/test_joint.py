"""Joint training and the other baselines: what they reduce to, what they share, how they resume, what they refuse."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from laws.searcher import Make, SearcherLaws
from multitask_examples import GRADIENT, ONE, SPACE, THREE, TWO, all_bits, bits, passes
from nearkin.core.errors import OptionError
from nearkin.core.events import finish
from nearkin.multitask.encoder_transfer import EncoderTransfer
from nearkin.multitask.interleave import Interleave, InterleaveOptions
from nearkin.multitask.joint.aggregators import AGGREGATORS
from nearkin.multitask.joint.joint_search import Joint, JointOptions, encoder_weights
from nearkin.multitask.joint.minibatch_interleaving import MinibatchInterleaving, MinibatchOptions
from nearkin.multitask.joint.separate_interleaving import SeparateInterleaving, SeparateOptions
from nearkin.search.plasticity.forgetting_options import ForgettingOptions
from nearkin.search.spaces.base import Space

TASKS = [ONE, TWO]
PLASTIC = replace(GRADIENT, forgetting=ForgettingOptions(plasticity=True, plasticity_warmup=0))
STEEP = replace(GRADIENT, momentum=0.0, weight_decay=0.0, clip=0.0)


def joint(sharing: str, **options: Any) -> Joint:
    return Joint(TASKS, SPACE, JointOptions(**{"gradient": GRADIENT, "sharing": sharing, **options}))


class JointLaws(SearcherLaws):
    STEPS = 3

    @pytest.fixture
    def space(self) -> Space:
        return SPACE


class TestLawsOfSoftSharing(JointLaws):
    @pytest.fixture
    def make(self) -> Make:
        return lambda: joint("soft", weighting="uncertainty", steps_per_pass=2)


class TestLawsOfHardSharing(JointLaws):
    @pytest.fixture
    def make(self) -> Make:
        return lambda: joint("hard", weighting="gradient-norm", aggregator="GradDrop")


class TestLawsOfMinibatchInterleaving(JointLaws):
    @pytest.fixture
    def make(self) -> Make:
        return lambda: MinibatchInterleaving(TASKS, SPACE, MinibatchOptions(gradient=GRADIENT))


class TestLawsOfSeparateInterleaving(JointLaws):
    STEPS = 4

    @pytest.fixture
    def make(self) -> Make:
        return lambda: SeparateInterleaving(TASKS, SPACE, SeparateOptions(gradient=GRADIENT))


@pytest.mark.parametrize("rounds", [1, 2])
def test_without_transfer_interleaving_is_joint_training_with_a_shared_architecture_bit_for_bit(rounds: int) -> None:
    alone = EncoderTransfer(transfer="none")
    tasks = [ONE, TWO, THREE]
    turns = Interleave(tasks, SPACE, InterleaveOptions(gradient=GRADIENT, num_rounds=rounds, transfer=alone))
    options = JointOptions(gradient=GRADIENT, sharing="architecture", steps_per_pass=rounds)
    one, other = passes(turns, 4, seed=3), passes(Joint(tasks, SPACE, options), 4, seed=3)
    assert all_bits(one) == all_bits(other)
    assert one.figures["validation loss"] == other.figures["validation loss"]
    assert sorted(map(str, one.rounds)) == sorted(map(str, other.rounds))


def test_plasticity_acts_on_encoders_that_are_not_shared() -> None:
    alone = InterleaveOptions(gradient=PLASTIC, num_rounds=1, transfer=EncoderTransfer(transfer="none"))
    one, other = passes(Interleave(TASKS, SPACE, alone), 3), passes(joint("architecture", gradient=PLASTIC), 3)
    assert all_bits(one) == all_bits(other)


def test_without_a_penalty_soft_sharing_shares_the_architecture_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Joint, "same_start", True)  # only soft sharing starts from the same weights
    expected = all_bits(passes(joint("architecture"), 3))
    assert all_bits(passes(joint("soft", gamma=0.0), 3)) == expected
    assert all_bits(passes(joint("soft"), 3)) != expected
    apart = MinibatchInterleaving(TASKS, SPACE, MinibatchOptions(gradient=GRADIENT, gamma=0.0))
    assert all_bits(passes(apart, 3)) == expected


def distance(state: Any) -> float:
    """Mean squared difference of the two encoders."""
    one, two = (
        torch.cat([value.detach().flatten() for value in encoder_weights(slot).values()]) for slot in state.slots
    )
    return float((one - two).square().mean())


def test_the_larger_the_penalty_the_nearer_the_encoders() -> None:
    apart, *soft = (distance(passes(joint("soft", gamma=gamma), 4)) for gamma in (0.0, 100.0, 1000.0))
    assert soft[1] < soft[0] < apart
    turns = (MinibatchOptions(gradient=GRADIENT, gamma=gamma) for gamma in (100.0, 1000.0))
    near, nearer = (distance(passes(MinibatchInterleaving(TASKS, SPACE, options), 4)) for options in turns)
    assert nearer < near < apart


def test_the_gradient_of_the_penalty_is_its_closed_form() -> None:
    """From different encoders, one step with and without γ differs by the rate times 2γ(W - W')/P."""
    ends = []
    for gamma in (0.0, 3.0):
        searcher = joint("soft", gamma=gamma, gradient=STEEP)
        state = searcher.init(0)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for value in encoder_weights(state.slots[1]).values():
                value.add_(0.1 * torch.randn(value.shape, generator=generator))
        start = [{k: v.detach().clone() for k, v in encoder_weights(slot).items()} for slot in state.slots]
        finish(searcher.step(state))
        ends.append({k: v.detach() for k, v in encoder_weights(state.slots[0]).items()})
    number = sum(value.numel() for value in start[0].values())
    for name, value in ends[0].items():
        expected = value - STEEP.learning_rate * 2 * 3.0 / number * (start[0][name] - start[1][name])
        torch.testing.assert_close(ends[1][name], expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("options", [{}, {"weighting": "uncertainty"}, {"aggregator": "PCGrad"}], ids=str)
def test_hard_sharing_has_one_encoder_with_statistics_and_a_head_for_each_task(options: dict[str, Any]) -> None:
    searcher = joint("hard", **options)
    state = passes(searcher, 3)
    one, two = (encoder_weights(slot) for slot in state.slots)
    assert list(one) == list(two)
    assert all(one[name] is two[name] for name in one)
    assert state.slots[0].weights["head.weight"] is not state.slots[1].weights["head.weight"]
    assert bits(state.slots[0].buffers) != bits(state.slots[1].buffers)
    resumed = searcher.restore(searcher.capture(state))
    assert all(
        value is encoder_weights(resumed.slots[0])[name] for name, value in encoder_weights(resumed.slots[1]).items()
    )
    known = [
        weight for slot in resumed.slots for group in slot.weight_optimiser.param_groups for weight in group["params"]
    ]
    assert len(known) == len(set(known))


def test_a_step_of_hard_sharing_is_the_sum_of_the_gradients() -> None:
    """Without momentum, decay and clipping the encoder moves by the sum of the moves of single tasks."""
    start = joint("hard", gradient=STEEP).init(0).slots[0].weights
    together = passes(joint("hard", gradient=STEEP), 1).slots[0].weights
    alone = [passes(Joint([task], SPACE, JointOptions(gradient=STEEP)), 1).slots[0].weights for task in TASKS]
    for name in encoder_weights(joint("hard").init(0).slots[0]):
        moves = [weights[name] - start[name] for weights in alone]
        torch.testing.assert_close(together[name] - start[name], sum(moves), rtol=1e-3, atol=1e-6)


def test_given_factors_scale_the_gradients() -> None:
    plain, scaled = (
        joint("architecture", gradient=STEEP),
        joint("architecture", gradient=STEEP, weighting="given", loss_weights="1,0.25"),
    )
    start, one, other = plain.init(0), passes(plain, 1), passes(scaled, 1)
    assert bits(one.slots[0].weights) == bits(other.slots[0].weights)
    for name, value in start.slots[1].weights.items():
        move, less = (state.slots[1].weights[name] - value for state in (one, other))
        torch.testing.assert_close(less, 0.25 * move, rtol=1e-3, atol=1e-6)
    assert scaled.factors(other) == {"one": 1.0, "two": 0.25}


@pytest.mark.parametrize("weighting", ["uncertainty", "gradient-norm"])
@pytest.mark.parametrize("sharing", ["soft", "hard"])
def test_learned_factors_move(weighting: str, sharing: str) -> None:
    searcher = joint(sharing, weighting=weighting)
    factors = searcher.factors(passes(searcher, 3))
    assert factors["one"] != factors["two"]
    assert all(factor > 0 for factor in factors.values())


@pytest.mark.parametrize("sharing", ["soft", "hard", "architecture"])
def test_gradient_norms_are_those_of_the_losses_alone(sharing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the limit of the norm, nor the penalty, nor the factors change what GradNorm sees."""
    monkeypatch.setattr(Joint, "same_start", True)  # so that every task starts as it does alone
    seen = []
    for clip in (0.0, 0.01):
        searcher = joint(sharing, weighting="gradient-norm", gamma=1000.0, gradient=replace(GRADIENT, clip=clip))
        state = searcher.init(0)
        monkeypatch.setattr(state.weighting, "update", lambda losses, norms: seen.append(norms))  # type: ignore[attr-defined]
        finish(searcher.step(state))
    assert seen[0] == seen[1]
    for task, norm in zip(TASKS, seen[0], strict=True):
        alone = passes(Joint([task], SPACE, JointOptions(gradient=STEEP)), 1).slots[0].weights
        start = Joint([task], SPACE, JointOptions(gradient=STEEP)).init(0).slots[0].weights
        moves = [(alone[name] - value).detach().norm() for name, value in start.items() if name.startswith("cells.1.")]
        assert norm == pytest.approx(float(torch.stack(moves).norm()) / STEEP.learning_rate, rel=1e-3)


def test_every_aggregator_trains_and_most_differ_from_the_mean() -> None:
    ends = {name: bits(passes(joint("hard", aggregator=name), 1).slots[0].weights) for name in AGGREGATORS}
    assert all(ends[name] != ends["Mean"] for name in AGGREGATORS if name != "Mean")


def test_the_sum_of_gradients_is_the_default_aggregator() -> None:
    one, other = passes(joint("hard"), 2).slots[0].weights, passes(joint("hard", aggregator="Sum"), 2).slots[0].weights
    for name, value in one.items():
        torch.testing.assert_close(other[name], value)


def weight_steps(searcher: Any) -> list[int]:
    """Number of steps of the weights of every task in a whole search."""
    state, counts = searcher.init(0), [0] * searcher.num_tasks
    for task, slot in enumerate(state.slots):

        def count(*_: Any, task: int = task) -> None:
            counts[task] += 1

        slot.weight_optimiser.register_step_post_hook(count)
    while not searcher.ended(state):
        state = finish(searcher.step(state))
    return counts


def test_all_baselines_take_the_same_number_of_steps() -> None:
    expected = weight_steps(Interleave(TASKS, SPACE, InterleaveOptions(
        gradient=GRADIENT, num_rounds=2, transfer=EncoderTransfer(transfer="none"))))  # fmt: skip
    assert expected == [12, 12]
    assert weight_steps(joint("soft", steps_per_pass=2)) == expected
    assert (
        weight_steps(MinibatchInterleaving(TASKS, SPACE, MinibatchOptions(gradient=GRADIENT, steps_per_pass=2)))
        == expected
    )
    options = SeparateOptions(gradient=GRADIENT, num_rounds=1, steps_per_pass=2)
    assert weight_steps(SeparateInterleaving(TASKS, SPACE, options)) == expected


def test_in_separate_interleaving_one_task_learns_and_the_next_starts_from_its_encoder() -> None:
    searcher = SeparateInterleaving(TASKS, SPACE, SeparateOptions(gradient=replace(GRADIENT, warmup=0), num_rounds=1))
    start, state = searcher.init(0), passes(searcher, 3)  # 6 passes, two blocks
    assert [searcher.block(state, done) for done in range(6)] == [0, 0, 0, 1, 1, 1]
    assert bits(state.slots[1].weights) == bits(start.slots[1].weights)
    taught = bits(encoder_weights(state.slots[0]))
    assert taught != bits(encoder_weights(start.slots[0]))
    before = {name: value.detach().clone() for name, value in state.slots[0].weights.items()}
    state.slots[1].weight_optimiser.param_groups[0]["weight_decay"] = 0.0
    searcher.learners[1].weight_step = lambda *_: 0.0  # type: ignore[method-assign]
    state = finish(searcher.step(state))
    assert bits(encoder_weights(state.slots[1])) == taught  # handed over, and no step after it
    assert bits(state.slots[1].weights)["head.weight"] == bits(start.slots[1].weights)["head.weight"]
    assert bits(state.slots[0].weights) == bits(before)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: JointOptions(sharing="firm"), "sharing must be one of soft, hard, architecture, got 'firm'"),
        (lambda: JointOptions(gamma=-1.0), "gamma must be 0 or more, got -1"),
        (lambda: MinibatchOptions(gamma=-1.0), "gamma must be 0 or more, got -1"),
        (lambda: JointOptions(steps_per_pass=0), "steps_per_pass must be 1 or more, got 0"),
        (lambda: SeparateOptions(num_rounds=0), "the number of rounds must be 1 or more, got 0"),
        (lambda: JointOptions(aggregator="MGDA"), "got aggregator MGDA with soft sharing"),
        (lambda: JointOptions(sharing="hard", aggregator="NashMTL"), "aggregator must be one of Mean.*got 'NashMTL'"),
        (lambda: JointOptions(sharing="hard", gradient=PLASTIC), "plasticity is on, and tasks share weights"),
        (lambda: JointOptions(gradient=replace(GRADIENT, order=2)), "got order=2; searches that train"),
        (lambda: joint("soft", weighting="given", loss_weights="1,2,3"), "'1,2,3', expected 2 numbers above 0"),
        (
            lambda: SeparateInterleaving(TASKS, SPACE, SeparateOptions(gradient=GRADIENT, num_rounds=4)).init(0),
            "4 rounds of 2 tasks need 8 passes or more, and the search has 6",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(make: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message) as refused:
        make()
    assert "\n" not in str(refused.value)
