"""The interleaved search: what it reduces to, what it transfers, how it resumes, what it refuses."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Generator

from laws.searcher import Make, SearcherLaws
from nearkin.core.budget import Budget
from nearkin.core.errors import DataError, MismatchError, NearkinError, OptionError
from nearkin.core.events import Caution, Event, finish
from nearkin.multitask.encoder_transfer import KINDS, EncoderTransfer
from nearkin.multitask.interleave import Interleave, InterleaveOptions
from nearkin.multitask.matching import MatchingOptions
from nearkin.multitask.multitask_state import MultitaskState
from nearkin.search.methods.darts.gradient_options import PARTIAL, GradientOptions
from nearkin.search.methods.darts.gradient_search import PCDarts
from nearkin.search.methods.darts.guards import Guards
from nearkin.search.plasticity.forgetting_options import ForgettingOptions
from nearkin.search.searcher import run_search
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.general import GeneralSpace
from nearkin.search.supernet.reference import Frame
from nearkin.tasks.task import Task

SPACE = GeneralSpace((3,), ("zero", "identity", "conv3"))
FRAME = Frame(channels=8, num_cells=2, channel_fraction=0.25)
GRADIENT = replace(PARTIAL, frame=FRAME, epochs=3, warmup=1, batch_size=8, guards=Guards(entropy=0.0))
FEW = EncoderTransfer(num_sets=8, num_augmentations=3, every=1)
SMALL = InterleaveOptions(gradient=GRADIENT, transfer=FEW)


def made(name: str, seed: int, *, count: int = 32, shape: tuple[int, int, int] = (1, 6, 6), classes: int = 2) -> Task:
    """Images whose class is where they are bright."""
    rng = Generator().manual_seed(seed)
    y = torch.arange(count) % classes
    x = 0.5 * torch.rand(count, *shape, generator=rng)
    for number, label in enumerate(y.tolist()):
        x[number, :, label] += 0.5
    return Task.from_arrays(name, x, y, x, y)


ONE, TWO, THREE = made("one", 1), made("two", 2, classes=3), made("three", 3, count=24, shape=(1, 8, 8))


def passes(searcher: Interleave, count: int, seed: int = 0) -> MultitaskState:
    state = searcher.init(seed)
    for _ in range(count):
        state = finish(searcher.step(state))
    return state


def bits(values: dict[str, torch.Tensor]) -> dict[str, bytes]:
    return {name: value.detach().numpy().tobytes() for name, value in values.items()}


class TestLaws(SearcherLaws):
    STEPS = 4

    @pytest.fixture
    def make(self) -> Make:
        return lambda: Interleave([ONE, TWO], SPACE, SMALL)

    @pytest.fixture
    def space(self) -> Space:
        return SPACE


PLASTIC = ForgettingOptions(watched=2, plasticity=True, plasticity_warmup=0)


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "options",
    [
        replace(SMALL, literal=True),
        replace(SMALL, gradient=replace(GRADIENT, forgetting=PLASTIC)),
        replace(SMALL, gradient=replace(GRADIENT, order=2, warmup=0)),
    ],
    ids=["as printed", "plasticity", "exact gradient"],
)
def test_killed_and_resumed_other_forms_end_the_same_bit_for_bit(options: InterleaveOptions) -> None:
    laws = SearcherLaws()
    laws.STEPS = 3
    laws.check_resumed(lambda: Interleave([ONE, TWO], SPACE, options))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("guards", [Guards(entropy=0.0), Guards(growth=1.01, window=1)])
def test_for_one_task_and_one_round_it_is_pc_darts_bit_for_bit(order: int, guards: Guards) -> None:
    gradient = replace(GRADIENT, order=order, guards=guards)
    alone = PCDarts(ONE, SPACE, gradient)
    other = alone.init(4)
    searcher = Interleave([ONE], SPACE, replace(SMALL, gradient=gradient, num_rounds=1))
    state = searcher.init(4)
    while not alone.ended(other):
        other, state = finish(alone.step(other)), finish(searcher.step(state))
    assert searcher.ended(state) == alone.ended(other)
    assert bits(state.architecture) == bits(other.architecture)
    assert bits(state.slots[0].supernet.state_dict()) == bits(other.supernet.state_dict())
    assert searcher.best(state) == alone.best(other)
    assert searcher.forgetting(state) == list(alone.forgetting(other))


def test_the_exact_gradient_is_that_of_the_validation_loss_after_the_turns() -> None:
    gradient = replace(GRADIENT, order=2, warmup=0, momentum=0.0, weight_decay=0.0, clip=0.0)
    options = replace(SMALL, gradient=gradient, transfer=replace(FEW, strength=0.5))
    searcher = Interleave([ONE, TWO], SPACE, options)
    state = passes(searcher, 1)
    rate = 0.05
    loss, slopes = searcher._architecture_gradient(state, rate)
    again, plain = searcher.restore(searcher.capture(state)), replace(options, gradient=replace(gradient, order=1))
    finish(searcher._train(again, rate))
    after, at_once = Interleave([ONE, TWO], SPACE, plain)._architecture_gradient(again, rate)
    assert loss == pytest.approx(after, rel=1e-5)  # the turns of the chain are those that are taken
    assert not torch.allclose(slopes["alpha/normal"], at_once["alpha/normal"], rtol=1e-3)
    checkpointed = Interleave([ONE, TWO], SPACE, replace(options, checkpoint=True))
    _, other = checkpointed._architecture_gradient(state, rate)
    for name, value in slopes.items():
        torch.testing.assert_close(other[name], value, rtol=1e-3, atol=1e-6)


def test_every_task_learns_in_every_round_and_the_architecture_once_in_a_pass() -> None:
    searcher = Interleave([ONE, TWO, THREE], SPACE, SMALL)
    state = searcher.init(0)
    learned: list[int] = []
    for number, slot in enumerate(state.slots):
        slot.weight_optimiser.register_step_post_hook(lambda *_, number=number: learned.append(number))
    steps: list[int] = []
    state.architecture_optimiser.register_step_post_hook(lambda *_: steps.append(len(learned)))
    for _ in range(4):
        state = finish(searcher.step(state))
    assert learned == 4 * 2 * [0, 1, 2]
    assert steps == [12, 18]  # after the warm-up of one epoch, which has two passes of six turns


def test_encoders_start_apart_so_that_there_is_something_to_transfer() -> None:
    state = Interleave([ONE, THREE], SPACE, SMALL).init(0)
    one, two = (slot.weights for slot in state.slots)
    assert not any(torch.equal(value, two[name]) for name, value in one.items() if value.dim() > 1)
    assert passes(Interleave([ONE, THREE], SPACE, SMALL), 1).active[0] > 0.1


def test_the_turns_of_a_pass_and_their_teachers() -> None:
    turns = Interleave([ONE, TWO], SPACE, SMALL)._turns()
    assert [(turn.round, turn.task, turn.slot) for turn in turns] == [(0, 0, 0), (0, 1, 1), (1, 0, 0), (1, 1, 1)]
    assert [turn.before and turn.before.task for turn in turns] == [None, 0, 1, 0]
    printed = Interleave([ONE, TWO], SPACE, replace(SMALL, literal=True))._turns()
    assert [turn.slot for turn in printed] == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_transfer_changes_the_student_and_not_the_teacher(kind: Any) -> None:
    transfer = replace(FEW, transfer=kind, strength=10.0)
    state, alone = (
        passes(Interleave([ONE, TWO], SPACE, replace(SMALL, num_rounds=1, transfer=how)), 1)
        for how in (transfer, EncoderTransfer(transfer="none"))
    )
    assert bits(state.slots[0].weights) == bits(alone.slots[0].weights)
    assert (bits(state.slots[1].weights) == bits(alone.slots[1].weights)) == (kind == "none")
    assert len(state.active) == (kind == "mmd")  # the others have no pairs
    assert bits(state.slots[0].buffers) == bits(alone.slots[0].buffers)
    assert bits(state.slots[1].buffers) == bits(alone.slots[1].buffers)  # sets of images change no statistics


def test_no_augmentation_no_strength_and_no_transfer_are_the_same() -> None:
    ways = [replace(FEW, transfer="none"), replace(FEW, num_augmentations=0), replace(FEW, strength=0.0)]
    found = [bits(passes(Interleave([ONE, TWO], SPACE, replace(SMALL, transfer=how)), 3).architecture) for how in ways]
    assert found[0] == found[1] == found[2]


def test_transfer_may_come_in_some_passes_only() -> None:
    state = passes(Interleave([ONE, TWO], SPACE, replace(SMALL, transfer=replace(FEW, every=3))), 4)
    assert len(state.active) == 2


def test_a_rare_transfer_counts_as_often_as_it_is_left_out() -> None:
    rare, strong, plain = (
        bits(passes(Interleave([ONE, TWO], SPACE, replace(SMALL, transfer=replace(FEW, **change))), 1).slots[1].weights)
        for change in ({"every": 2}, {"strength": 2.0}, {})
    )
    assert rare == strong != plain


def test_as_printed_later_encoders_learn_by_transfer_alone() -> None:
    options = replace(SMALL, literal=True, transfer=EncoderTransfer(transfer="none"))
    gradient = replace(GRADIENT, weight_decay=0.0)
    searcher = Interleave([ONE, TWO], SPACE, replace(options, gradient=gradient))
    start, end = searcher.init(0), passes(searcher, 2)
    for number, (before, after) in enumerate(zip(start.slots, end.slots, strict=True)):
        for name, value in after.weights.items():
            moved = not torch.equal(value, before.weights[name])
            assert moved == (number == 0 or name.startswith("head.")), (number, name)


def test_the_printed_threshold_transfers_nothing_and_says_so() -> None:
    printed = replace(FEW, matching=MatchingOptions(threshold=5.0))
    searcher = Interleave([ONE, TWO], SPACE, replace(SMALL, transfer=printed))
    events: list[Event] = []
    state = finish(searcher.step(searcher.init(0)), events.append)
    assert state.active == [0.0]
    assert ["nothing is transferred" in event.text for event in events if isinstance(event, Caution)] == [True]


def test_validation_losses_count_equally_whatever_their_units() -> None:
    x = torch.rand(32, 1, 6, 6, generator=Generator().manual_seed(0))
    values = Task.from_arrays("values", x, 1000 * x[:, 0, 0], x, 1000 * x[:, 0, 0], standardise=False)
    searcher = Interleave([ONE, values], SPACE, SMALL)
    state = passes(searcher, 3)
    assert state.scales[1] > 1000 * state.scales[0]
    factors = searcher._factors(state, state.scales)
    assert factors[0] * state.scales[0] == pytest.approx(factors[1] * state.scales[1])
    plain = Interleave([ONE, values], SPACE, replace(SMALL, normalise=False))
    assert plain._factors(state, state.scales) == [1.0, 1.0]


def test_tasks_may_differ_in_size_colour_classes_and_kind() -> None:
    colour = made("colour", 5, shape=(3, 7, 5), classes=3)
    x = torch.rand(24, 1, 6, 6, generator=Generator().manual_seed(0))
    values = Task.from_arrays("values", x, x.mean((2, 3)), x, x.mean((2, 3)))
    result = run_search(Interleave([ONE, colour, values], SPACE, SMALL), Budget())
    assert SPACE.contains(result.best.genotype)
    assert result.reason == "all epochs are done"
    assert len(result.forgetting) == 3


def test_records_of_the_rounds_are_those_of_the_last_pass_of_every_epoch() -> None:
    searcher = Interleave([ONE, TWO], SPACE, SMALL)
    state = passes(searcher, 2 * searcher.passes_per_epoch(searcher.init(0).streams))
    assert [(record.epoch, record.round, record.task) for record in state.rounds] == [
        (epoch, number, task) for epoch in (1, 2) for number in (1, 2) for task in ("one", "two")
    ]
    assert state.rounds[0].active is None  # no teacher
    assert all(0 <= record.metric <= 1 and record.loss > 0 for record in state.rounds)
    assert all(record.active is not None for record in state.rounds if (record.round, record.task) != (1, "one"))


TABLE = Task.from_arrays("table", torch.rand(20, 4), torch.arange(20) % 2)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: InterleaveOptions(num_rounds=0), OptionError, "the number of rounds must be 1 or more, got 0"),
        (lambda: EncoderTransfer(strength=-1.0), OptionError, "strength of the transfer must be 0 or more, got -1"),
        (lambda: EncoderTransfer(num_sets=3), OptionError, "num_sets must be an even number of 4 or more.*got 3"),
        (lambda: EncoderTransfer(num_augmentations=1), OptionError, "num_augmentations must be 0.*or 2 or more, got 1"),
        (lambda: EncoderTransfer(transfer="kl"), OptionError, "transfer must be one of mmd.*got 'kl'"),  # type: ignore[arg-type]
        (lambda: Interleave([], SPACE, SMALL), OptionError, "got no task"),
        (lambda: Interleave([ONE, ONE], SPACE, SMALL), OptionError, "every task may be given once, got one, one"),
        (lambda: Interleave([ONE, TABLE], SPACE, SMALL), MismatchError, "'table' has inputs of shape"),
        (lambda: Interleave([ONE, made("two", 1, shape=(2, 6, 6))], SPACE, SMALL), MismatchError, "same number of ch"),
        (lambda: Interleave([ONE, made("few", 1, count=6)], SPACE, SMALL), DataError, "'few' has 6 training samples"),
        (
            lambda: Interleave([ONE, TWO], SPACE, replace(SMALL, gradient=replace(GRADIENT, validation=0.001))),
            OptionError, "'one' has 32 training samples, of which a share of 0.001 leaves",
        ),
        (
            lambda: replace(SMALL, literal=True, gradient=replace(GRADIENT, order=2)),
            OptionError, "the printed form has no exact gradient",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_in_one_line(make: Any, error: type[NearkinError], message: str) -> None:
    with pytest.raises(error, match=message) as refused:
        make()
    assert "\n" not in str(refused.value)


def test_options_of_the_gradient_search_apply() -> None:
    with pytest.raises(OptionError, match="epochs must be 1 or more"):
        InterleaveOptions(gradient=GradientOptions(epochs=0))
