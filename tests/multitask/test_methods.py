"""The registry of methods for several tasks, and independent searches."""

from dataclasses import replace
from typing import Any

import pytest

from laws.searcher import contents, course
from multitask_examples import GRADIENT, ONE, SPACE, TWO, bits
from nearkin.core.budget import Budget
from nearkin.core.errors import OptionError, TrainingError
from nearkin.core.events import Checkpoint, Event, finish
from nearkin.core.state import State
from nearkin.multitask.interleave import Interleave
from nearkin.multitask.joint.independent import run_searches
from nearkin.multitask.joint.joint_search import Joint
from nearkin.multitask.methods import MULTITASK_METHODS, multitask_method
from nearkin.search.methods.darts.gradient_search import PCDarts

SHORT = replace(GRADIENT, epochs=2)
FEW = {"num_sets": "8", "num_augmentations": "3"}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", MULTITASK_METHODS)
def test_every_method_searches(name: str) -> None:
    method = multitask_method(name)
    searchers = method.build([ONE, TWO], SPACE, SHORT, 2, FEW if name in ("interleave", "hypernet") else {})
    assert len(searchers) == (1 if method.shared else 2)
    results = run_searches(searchers, Budget(steps=2))
    assert all(SPACE.contains(result.best.genotype) for result in results)
    assert all(option.summary for option in method.options)


def test_methods_are_distinct_searches() -> None:
    settings = [
        (searcher.name, str(searcher.settings()))
        for method in MULTITASK_METHODS.values()
        for searcher in method.build([ONE, TWO], SPACE, SHORT, 1)
        if method.shared
    ]
    assert len(set(settings)) == len(settings) == 9


def test_options_are_parsed_and_reach_the_searcher() -> None:
    (searcher,) = multitask_method("interleave").build(
        [ONE, TWO], SPACE, SHORT, 3, {**FEW, "transfer": "l2-weights", "kernel": "linear", "normalise": "false"}
    )
    assert isinstance(searcher, Interleave)
    options = searcher.options
    assert (options.num_rounds, options.transfer.transfer, options.transfer.num_sets) == (3, "l2-weights", 8)
    assert (options.transfer.matching.kernel, options.normalise, options.gradient) == ("linear", False, SHORT)
    (searcher,) = multitask_method("hard").build([ONE, TWO], SPACE, SHORT, 3, {"aggregator": "MGDA"})
    assert isinstance(searcher, Joint)
    assert (searcher.options.sharing, searcher.options.steps_per_pass, searcher.options.aggregator) == (
        "hard",
        3,
        "MGDA",
    )


def test_an_independent_search_is_pc_darts_bit_for_bit() -> None:
    searchers = multitask_method("independent").build([ONE, TWO], SPACE, GRADIENT, 1)
    for task, searcher in zip([ONE, TWO], searchers, strict=True):
        alone = PCDarts(task, SPACE, GRADIENT)
        other, state = alone.init(4), searcher.init(4)
        while not alone.ended(other):
            other, state = finish(alone.step(other)), finish(searcher.step(state))
        assert bits(state.architecture) == bits(other.architecture)
        assert bits(state.slots[0].supernet.state_dict()) == bits(other.supernet.state_dict())


def searched(resume: State | None = None) -> tuple[Any, list[bytes]]:
    saved: list[bytes] = []

    def listen(event: Event) -> None:
        if isinstance(event, Checkpoint):
            saved.append(event.capture().to_bytes())

    searchers = multitask_method("independent").build([ONE, TWO], SPACE, SHORT, 1)
    return finish(run_searches.work(searchers, Budget(), resume=resume), listen), saved


def test_independent_searches_killed_after_any_step_end_the_same_bit_for_bit() -> None:
    whole, saved = searched()
    assert len(whole) == 2
    assert len(saved) == 8
    for step, data in enumerate(saved, 1):
        again, rest = searched(State.from_bytes(data))
        assert list(map(course, again)) == list(map(course, whole))
        for one, other in zip(rest, saved[step:], strict=True):
            assert contents(one)[0] == contents(other)[0]


def test_a_checkpoint_of_other_searches_is_refused() -> None:
    _, saved = searched()
    one = multitask_method("soft").build([ONE, TWO], SPACE, SHORT, 1)
    with pytest.raises(TrainingError, match="made with 2 searches, expected 1"):
        run_searches(one, Budget(), resume=State.from_bytes(saved[0]))
    with pytest.raises(TrainingError, match="not one of several searches"):
        run_searches(one, Budget(), resume=State({}, {"step": 3}))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("soft", {"gama": 1}, "soft has no option gama; its options are"),
        ("soft", {"gamma": "x"}, "option gamma of soft is 'x', expected a number"),
        ("interleave", {"transfer": "kl"}, "transfer must be one of mmd"),
        ("soft", {"aggregator": "MGDA"}, "use sharing=hard"),
    ],
)
def test_bad_options_are_refused_in_one_line(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message) as refused:
        multitask_method(name).build([ONE, TWO], SPACE, SHORT, 1, options)
    assert "\n" not in str(refused.value)
