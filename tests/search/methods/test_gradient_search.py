"""DARTS and PC-DARTS: the laws of searchers, what a step touches and what not, and that they find what is planted."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from laws.searcher import SearcherLaws, contents, searched
from nearkin.core.budget import Budget
from nearkin.core.errors import MismatchError, OptionError, TrainingError
from nearkin.core.events import Note, finish
from nearkin.core.state import State
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.darts.gradient_options import PARTIAL, GradientOptions
from nearkin.search.methods.darts.gradient_search import Darts, GradientSearch, PCDarts
from nearkin.search.methods.darts.gradient_state import GradientSearchState
from nearkin.search.methods.darts.guards import Guards
from nearkin.search.methods.darts.supernet_learner import drift, stateless_loss
from nearkin.search.networks.operations import OPERATIONS, register
from nearkin.search.plasticity.forgetting_options import ForgettingOptions
from nearkin.search.searcher import run_search
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.darts import DartsSpace
from nearkin.search.spaces.general import GeneralSpace
from nearkin.search.spaces.limited import limit_space
from nearkin.search.spaces.mobile import MobileSpace
from nearkin.search.spaces.recurrent_space import RecurrentSpace
from nearkin.search.spaces.restricted import restrict_space
from nearkin.search.supernet.choice import num_skips
from nearkin.search.supernet.reference import Frame
from nearkin.tasks.task import Task

TWO = DartsSpace(("none", "skip_connect", "avg_pool_3x3", "sep_conv_3x3"), num_nodes=1)
COMPLETE = GeneralSpace((3,), ("zero", "identity", "conv3"))
CHAINS = MobileSpace((1, 2), (3, 5), (2,), skip_first=True)
SMALL = GradientOptions(frame=Frame(channels=4, num_cells=2), epochs=3, batch_size=8)
PARTLY = replace(SMALL, frame=Frame(channels=4, num_cells=2, channel_fraction=0.5), edges=True, warmup=1)


def stripes(count: int = 32) -> Task:
    """Level stripes and upright ones, one pixel wide: told apart by any 3x3 convolution, and by nothing smaller."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 2
    level = torch.tensor([1.0, -1.0]).repeat(3)[:, None].expand(6, 6)
    images = torch.where(labels[:, None, None] == 0, level, level.T) * torch.sign(
        torch.randn(count, 1, 1, generator=rng)
    )
    x = (images + 0.3 * torch.randn(count, 6, 6, generator=rng))[:, None]
    return Task.from_arrays("stripes", x, labels, x, labels)


TASK = stripes()


def stepped(searcher: GradientSearch, steps: int, seed: int = 0) -> GradientSearchState:
    state = searcher.init(seed)
    for _ in range(steps):
        state = finish(searcher.step(state))
    return state


class TestDarts(SearcherLaws):
    STEPS = 3

    @pytest.fixture
    def make(self) -> Callable[[], Darts]:
        return lambda: Darts(TASK, COMPLETE, SMALL)

    @pytest.fixture
    def space(self) -> Space:
        return COMPLETE


class TestDartsOfSecondOrder(SearcherLaws):
    STEPS = 3

    @pytest.fixture
    def make(self) -> Callable[[], Darts]:
        return lambda: Darts(TASK, COMPLETE, replace(SMALL, order=2))

    @pytest.fixture
    def space(self) -> Space:
        return COMPLETE


class TestPCDarts(SearcherLaws):
    STEPS = 4

    @pytest.fixture
    def make(self) -> Callable[[], PCDarts]:
        return lambda: PCDarts(TASK, TWO, PARTLY)

    @pytest.fixture
    def space(self) -> Space:
        return TWO


class TestDartsOfChains(SearcherLaws):
    STEPS = 3

    @pytest.fixture
    def make(self) -> Callable[[], Darts]:
        return lambda: Darts(TASK, CHAINS, SMALL)

    @pytest.fixture
    def space(self) -> Space:
        return CHAINS


class TestPCDartsOfChains(SearcherLaws):
    STEPS = 3

    @pytest.fixture
    def make(self, space: Space) -> Callable[[], PCDarts]:
        return lambda: PCDarts(TASK, space, replace(PARTLY, order=2))

    @pytest.fixture
    def space(self) -> Space:
        kin = [CHAINS.at(index) for index in (1, 9)]
        return limit_space(restrict_space(CHAINS, kin), num_skips, 1, name="skips")


class TestWithinALimit(SearcherLaws):
    STEPS = 2

    @pytest.fixture
    def make(self, space: Space) -> Callable[[], Darts]:
        return lambda: Darts(TASK, space, SMALL)

    @pytest.fixture
    def space(self) -> Space:
        return limit_space(COMPLETE, lambda genotype: str(genotype).count("conv3"), 1, name="convolutions")


# Whole runs


@pytest.mark.parametrize("searcher", [Darts(TASK, TWO, SMALL), PCDarts(TASK, TWO, PARTLY)], ids=lambda s: s.name)
def test_killed_after_any_step_the_guarded_run_ends_in_the_same_genotype_bit_for_bit(searcher: GradientSearch) -> None:
    guards = Guards(growth=1.01, window=1, products=2)
    watched = type(searcher)(TASK, TWO, replace(searcher.options, guards=guards))
    whole, saved = searched(watched, Budget())
    for data in (saved[0], saved[len(saved) // 2], saved[-2]):
        again, rest = searched(watched, Budget(), resume=State.from_bytes(data))
        assert (again.best.genotype, again.best.score) == (whole.best.genotype, whole.best.score)
        assert contents(rest[-1]) == contents(saved[-1])
    facts = State.from_bytes(saved[-1]).facts["state"]
    assert len(facts["eigenvalues"]) == len(facts["entropies"]) > 0


def test_a_checkpoint_holds_weights_statistics_architecture_and_both_optimisers() -> None:
    searcher = PCDarts(TASK, TWO, PARTLY)
    saved = searcher.capture(stepped(searcher, 3))
    fresh = searcher.init(0)
    assert set(saved.section("supernet")) == set(fresh.supernet.state_dict())
    assert set(saved.section("architecture")) == {"alpha/normal", "alpha/reduction", "beta/normal", "beta/reduction"}
    assert len(saved.section("weight_optimiser")) == len(list(fresh.supernet.parameters()))
    assert {name.split("/")[1] for name in saved.section("architecture_optimiser")} == {"step", "exp_avg", "exp_avg_sq"}
    moved = searcher.restore(saved)
    assert all(torch.equal(moved.architecture[name], value) for name, value in saved.section("architecture").items())


def planted(channels: int, stride: int, affine: bool) -> nn.Module:
    """Destroys what it is given: no signal passes."""
    return nn.Sequential(nn.AvgPool2d(5, stride, padding=2), Constant())


class Constant(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ones_like(x)


@pytest.mark.parametrize("kind", [Darts, PCDarts])
@pytest.mark.parametrize("order", [1, 2])
def test_an_operation_that_carries_the_signal_is_found_among_those_that_do_not(
    kind: type[GradientSearch], order: int
) -> None:
    register("deaf", planted)
    try:
        space = GeneralSpace((2,), ("deaf", "conv3", "zero"))
        frame = Frame(channels=4, num_cells=1, channel_fraction=1.0 if kind is Darts else 0.5)
        options = GradientOptions(frame=frame, epochs=8, batch_size=16, order=order, learning_rate=0.1,
                                  architecture_rate=0.1, edges=kind is PCDarts)  # fmt: skip
        outcome = run_search(kind(stripes(64), space, options), Budget(), seed=1)  # type: ignore[call-arg]
        assert outcome.best.genotype == Genotype.parse("normal(0): 1 = conv3(0); out = 1")
        assert outcome.best.score > 0.5
    finally:
        del OPERATIONS["deaf"]


def test_the_weights_learn() -> None:
    options = replace(SMALL, epochs=12, learning_rate=0.1)
    searcher = Darts(stripes(64), COMPLETE, options)
    first = finish(searcher.step(searcher.init(0))).figures["training loss"]
    last = stepped(searcher, 40).figures["training loss"]
    assert last < 0.3 * first


def test_a_block_that_sees_enough_is_found_in_a_chain_and_plasticity_and_guards_work() -> None:
    space = MobileSpace((1, 1), (1, 3), (2,))  # a 1x1 block does not distinguish the stripes
    forgetting = ForgettingOptions(plasticity=True, watched=1, plasticity_samples=4)
    guards = Guards(growth=1e9, window=1, products=2)
    options = GradientOptions(frame=Frame(channels=4), epochs=8, batch_size=16, learning_rate=0.1,
                              architecture_rate=0.1, forgetting=forgetting, guards=guards)  # fmt: skip
    state = stepped(searcher := Darts(stripes(64), space, options), 16)
    assert "mbconv(expansion=2, kernel=3)" in str(searcher.best(state).genotype)  # type: ignore[union-attr]
    assert len(searcher.forgetting(state)) == len(state.eigenvalues) == 8
    assert state.figures["training loss"] < 0.1


# What a step touches


def test_in_the_warm_up_the_architecture_rests_and_then_it_moves() -> None:
    searcher = PCDarts(TASK, TWO, PARTLY)
    start = {name: value.detach().clone() for name, value in searcher.init(0).architecture.items()}
    per_epoch = 2
    warm = stepped(searcher, per_epoch)
    assert all(torch.equal(value, start[name]) for name, value in warm.architecture.items())
    assert "validation loss" not in warm.figures
    later = stepped(searcher, per_epoch + 1)
    assert not any(torch.equal(value, start[name]) for name, value in later.architecture.items())


@pytest.mark.parametrize(("order", "exact"), [(1, True), (2, True), (2, False)])
def test_the_architecture_step_moves_neither_weights_nor_running_statistics(order: int, exact: bool) -> None:
    searcher = Darts(TASK, TWO, replace(SMALL, order=order, exact=exact))
    state = stepped(searcher, 2)
    before = {name: value.clone() for name, value in state.supernet.state_dict().items()}
    alpha = {name: value.detach().clone() for name, value in state.architecture.items()}
    batch = searcher.learner.training_batch(state.streams, 0)
    other = searcher.learner.validation_batch(state.streams, 0)
    searcher._architecture_step(state, batch, other, 0.025)
    assert all(torch.equal(value, before[name]) for name, value in state.supernet.state_dict().items())
    assert not any(torch.equal(value, alpha[name]) for name, value in state.architecture.items())


def test_weights_and_architecture_learn_from_different_samples_of_every_class() -> None:
    searcher = Darts(TASK, COMPLETE, replace(SMALL, validation=0.25))
    learn, judge = searcher.learner.split(searcher.init(5).streams)
    assert (len(learn), len(judge)) == (24, 8)
    assert learn.labels().bincount().tolist() == [12, 12]
    one, two = learn.all().x.flatten(1), judge.all().x.flatten(1)
    assert float(torch.cdist(one, two).min()) > 0


def test_the_second_order_looks_ahead_by_momentum_and_decay_too() -> None:
    searcher = Darts(TASK, COMPLETE, replace(SMALL, clip=0.0, weight_decay=0.1, order=2))
    state = stepped(searcher, 2)
    batch = searcher.learner.training_batch(state.streams, 2)
    extra, rate = drift(state), 0.05
    weights = {name: value.detach().clone() for name, value in state.weights.items()}
    held = {name: value.detach() for name, value in state.architecture.items()}
    free = {name: value.requires_grad_() for name, value in weights.items()}
    slopes = torch.autograd.grad(stateless_loss(state, TASK.form, batch)(free, held), list(free.values()))
    ahead = {
        name: value - rate * (slope + extra[name]) for (name, value), slope in zip(free.items(), slopes, strict=True)
    }
    searcher.learner.weight_step(state, state.architecture, batch, rate)
    for name, value in state.weights.items():
        torch.testing.assert_close(value, ahead[name])


# Guards


def test_a_search_that_has_decided_ends_early_and_says_so() -> None:
    guards = Guards(entropy=0.999, change=0.5, window=2)
    searcher = Darts(TASK, COMPLETE, replace(SMALL, epochs=20, architecture_rate=0.1, guards=guards))
    notes: list[Any] = []
    outcome = finish(run_search.work(searcher, Budget()), notes.append)
    assert outcome.reason.startswith("the entropy is low and stable at 0.")
    assert outcome.steps < 40
    assert outcome.best.facts["stopped"] == outcome.reason
    assert [note.text for note in notes if isinstance(note, Note)] == [f"stopped: {outcome.reason}"]


def test_a_search_that_sharpens_ends_with_the_architecture_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    values = iter([1.0, 1.0, 5.0, 5.0, 5.0])
    monkeypatch.setattr("nearkin.search.methods.darts.gradient_search.dominant_eigenvalue", lambda *_: next(values))
    guards = Guards(growth=1.3, window=1, entropy=0.0)
    searcher = Darts(TASK, COMPLETE, replace(SMALL, epochs=9, guards=guards))
    state, courses = searcher.init(0), []
    while not searcher.ended(state):
        state = finish(searcher.step(state))
        courses.append({name: value.detach().clone() for name, value in state.architecture.items()})
    assert searcher.ended(state) == (
        "the largest eigenvalue has grown to 5.0 times that of 1 epochs ago; "
        "the architecture weights of that epoch are used"
    )
    assert len(courses) == 6  # three epochs of two steps
    assert all(torch.equal(value, courses[3][name]) for name, value in state.architecture.items())


def test_figures_tell_entropy_losses_and_memory() -> None:
    searcher = Darts(TASK, COMPLETE, SMALL)
    found = searcher.figures(stepped(searcher, 1))
    assert set(found) == {"entropy", "training loss", "validation loss"}
    assert 0 < found["entropy"] <= 1


# What cannot be


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: GradientOptions(warmup=50),
            OptionError,
            "warmup must be 0 or more and less than the 50 epochs, got 50",
        ),
        (lambda: GradientOptions(order=3), OptionError, "order must be 1 or 2, got 3"),
        (lambda: GradientOptions(validation=1.0), OptionError, "fraction between 0 and 1"),
        (lambda: GradientOptions(learning_rate=0.0), OptionError, "learning_rate must be above 0"),
        (lambda: Darts(TASK, RecurrentSpace(), SMALL), OptionError, "a supernet consists of cells"),
        (
            lambda: Darts(Task.from_arrays("t", torch.randn(9, 2), torch.arange(9) % 2), COMPLETE),
            MismatchError,
            "images",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(make: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as refused:
        make()
    assert "\n" not in str(refused.value)


def test_a_search_that_diverges_says_what_to_do() -> None:
    searcher = Darts(TASK, COMPLETE, replace(SMALL, learning_rate=1e30, clip=0.0))
    with pytest.raises(TrainingError, match=r"loss is (nan|inf) at step \d+; lower the learning rate"):
        stepped(searcher, 6)


def test_a_checkpoint_of_other_options_or_data_is_refused() -> None:
    _, saved = searched(Darts(TASK, COMPLETE, SMALL), Budget(steps=1))
    state = State.from_bytes(saved[0])
    others = (Darts(TASK, COMPLETE, replace(SMALL, epochs=4)), Darts(stripes(40), COMPLETE, SMALL))
    for other in others:
        with pytest.raises(TrainingError, match="made with another settings"):
            searched(other, Budget(steps=2), resume=state)


def test_defaults_are_those_of_the_papers() -> None:
    assert PARTIAL.frame.split == 4
    assert PARTIAL.edges
    assert PARTIAL.warmup == 15
    assert GradientOptions().frame.split == 1
    assert not GradientOptions().edges
    assert PCDarts(TASK, TWO).options == PARTIAL
