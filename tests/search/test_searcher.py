"""The laws, held to by searchers that ask an objective and by random search with weight sharing."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import nearkin as nk
from laws.searcher import SearcherLaws, searched
from nearkin.core.budget import Budget
from nearkin.core.errors import OptionError, TrainingError
from nearkin.core.events import Checkpoint, Work, finish
from nearkin.core.state import State
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.enas.shared_options import SharedOptions
from nearkin.search.methods.evolution import evolution
from nearkin.search.methods.local_search import local_search
from nearkin.search.methods.random_search import random_search
from nearkin.search.methods.sampling import Sampling
from nearkin.search.methods.shared_random import PathObjective, SharedRandom
from nearkin.search.methods.warm_start import warm_start_search
from nearkin.search.objective import Objective, ObjectiveValue
from nearkin.search.searcher import SearchResult, run_search
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.darts import DartsSpace
from nearkin.search.spaces.general import GeneralSpace
from nearkin.search.spaces.limited import limit_space
from nearkin.search.spaces.mobile import MobileSpace
from nearkin.search.spaces.recurrent_space import RecurrentSpace
from nearkin.search.supernet.reference import Frame


class Letters(Objective):
    """An objective that is different for almost all genotypes, and a little rugged."""

    def measure(self, genotype: Genotype) -> Work[ObjectiveValue]:
        yield from ()
        text = str(genotype)
        return ObjectiveValue(
            text.count("3") + sum(map(ord, text)) % 17 / 20, {"length": float(len(text)), "kind": "toy"}
        )

    def settings(self) -> dict[str, float]:
        return {"toy": 1.0}


SPACES: dict[str, Space] = {
    "general": GeneralSpace(),
    "tiny": GeneralSpace((3,), ("zero", "conv3")),
    "small": GeneralSpace((3,), ("zero", "conv3", "max3", "avg3")),
    "darts": DartsSpace(num_nodes=2),
    "mobile": MobileSpace((2, 2)),
    "recurrent": RecurrentSpace(4),
    "limited": limit_space(GeneralSpace((3,)), lambda cell: str(cell).count("conv7"), 1, name="conv7"),
}
KIN = {name: [space.at(7), space.at(0)] for name, space in SPACES.items()}
WAYS: dict[str, Callable[[str], Sampling]] = {
    "random": lambda name: random_search(SPACES[name], Letters()),
    "evolution": lambda name: evolution(SPACES[name], Letters(), population=3, tournament=2),
    "local": lambda name: local_search(SPACES[name], Letters()),
    "evolution from kin": lambda name: evolution(SPACES[name], Letters(), population=3, tournament=2, first=KIN[name]),
    "local from kin": lambda name: local_search(SPACES[name], Letters(), first=KIN[name]),
    "warm-start": lambda name: warm_start_search(SPACES[name], Letters(), KIN[name]),
}
CASES = [
    ("tiny", "random"),
    *(("small", way) for way in WAYS),
    *(
        (name, way)
        for name in ("general", "darts", "mobile", "recurrent", "limited")
        for way in ("warm-start", "local")
    ),
]


class TestSampling(SearcherLaws):
    STEPS = 9

    @pytest.fixture(params=CASES, ids=" ".join)
    def case(self, request: pytest.FixtureRequest) -> tuple[str, str]:
        case: tuple[str, str] = request.param
        return case

    @pytest.fixture
    def make(self, case: tuple[str, str]) -> Callable[[], Sampling]:
        return lambda: WAYS[case[1]](case[0])

    @pytest.fixture
    def space(self, case: tuple[str, str]) -> Space:
        return SPACES[case[0]]


SMALL = GeneralSpace((2, 3), ("zero", "identity", "conv3", "max3"))


@pytest.fixture(scope="module")
def digits() -> nk.Task:
    return nk.task("digits?limit=200")


def shared(task: nk.Task, **changes: Any) -> SharedRandom:
    options = SharedOptions(epochs=1, batches_per_architecture=2, batch_size=32)
    return replace(SharedRandom(SMALL, task, Frame(channels=4, num_cells=1), options), **changes)


class TestSharedRandom(SearcherLaws):
    STEPS = 6
    FIRST = 4

    @pytest.fixture
    def make(self, digits: nk.Task) -> Callable[[], SharedRandom]:
        return lambda: shared(digits)

    @pytest.fixture
    def space(self) -> Space:
        return SMALL


def test_measuring_paths_leaves_the_supernet_as_it_is_and_gives_each_the_same_again(digits: nk.Task) -> None:
    searcher = shared(digits)
    state = finish(searcher.step(searcher.init(0)))
    before = {name: value.clone() for name, value in state.net.state_dict().items()}
    objective = PathObjective(searcher, state)
    cells = [SMALL.at(index) for index in (0, 3, 40, 67)]
    scores = [[objective.evaluate(cell).facts["shared loss"] for cell in order] for order in (cells, cells[::-1])]
    assert scores[0] == scores[1][::-1]
    assert all(torch.equal(value, before[name]) for name, value in state.net.state_dict().items())


def test_a_smaller_cell_measures_what_its_larger_twin_does(digits: nk.Task) -> None:
    searcher = shared(digits)
    state = finish(searcher.step(searcher.init(0)))
    objective = PathObjective(searcher, state)
    small = Genotype.parse("normal(0): 1 = conv3(0); out = 1")
    large = Genotype.parse("normal(0): 1 = conv3(0); 2 = zero(0) + identity(1); out = 2")
    assert objective.evaluate(small) == objective.evaluate(large)


def test_the_supernet_learns_and_paths_with_weights_come_out_ahead(digits: nk.Task) -> None:
    options = SharedOptions(epochs=30, batch_size=32, learning_rate=0.1)
    space = GeneralSpace((3,), ("zero", "conv3"))
    searcher = shared(digits, space=space, options=options)
    found, _ = searched(searcher, Budget(steps=30 * searcher.architectures_per_epoch + 5))
    assert found.evaluations == 4 == len(found.found)
    assert found.best.score > 2 * digits.majority_baseline()
    assert space.unique_key(found.found[-1].genotype) == "normal(0): out = nothing"


def test_spaces_that_no_supernet_holds_are_refused(digits: nk.Task) -> None:
    with pytest.raises(OptionError, match="a supernet consists of cells"):
        shared(digits, space=MobileSpace((2, 2)))
    with pytest.raises(OptionError, match="no identity to extend the smaller ones"):
        shared(digits, space=GeneralSpace((2, 3), ("zero", "conv3")))


def test_settings_of_another_objective_space_or_way_are_refused() -> None:
    _, saved = searched(evolution(SPACES["general"], Letters(), population=3, tournament=2), Budget(steps=2))
    checkpoint = State.from_bytes(saved[-1])
    others = [
        evolution(SPACES["general"], Letters(), population=4, tournament=2),
        evolution(SPACES["limited"], Letters(), population=3, tournament=2),
        evolution(SPACES["general"], Letters(), population=3, tournament=2, first=KIN["general"]),
    ]
    for other in others:
        with pytest.raises(TrainingError, match="made with another settings"):
            searched(other, Budget(steps=3), resume=checkpoint)
    with pytest.raises(TrainingError, match="made with another method"):
        searched(random_search(SPACES["general"], Letters()), Budget(steps=3), resume=checkpoint)


def test_a_warm_start_is_resumed_bit_for_bit_after_its_opening() -> None:
    """The proposers' credits are in the records: 30 steps include all proposers."""
    searcher = WAYS["warm-start"]("general")
    whole, saved = searched(searcher, Budget(steps=30))
    for steps in (4, 5, 6, 17, 29):
        resumed, _ = searched(searcher, Budget(steps=30), resume=State.from_bytes(saved[steps - 1]))
        assert (resumed.best, resumed.history) == (whole.best, whole.history)


def test_a_checkpoint_of_the_former_warm_start_is_refused_and_its_result_is_read() -> None:
    former = evolution(SPACES["small"], Letters(), first=KIN["small"])
    whole, saved = searched(former, Budget(steps=3))
    state = State.from_bytes(saved[-1])
    old = State(state.tensors, {**state.facts, "search": {**state.facts["search"], "method": "kin"}})
    with pytest.raises(TrainingError, match=r"made with another settings.*start again"):
        searched(WAYS["warm-start"]("small"), Budget(steps=4), resume=old)
    assert SearchResult.from_dict({**whole.to_dict(), "method": "kin"}).best == whole.best


def test_searches_that_were_stored_under_the_former_name_of_a_method_are_read() -> None:
    searcher = WAYS["warm-start"]("small")
    saved: list[State] = []

    def interrupt(event: object) -> None:
        if isinstance(event, Checkpoint):
            saved.append(event.capture())

    whole = finish(run_search.work(searcher, Budget(steps=4)), interrupt)
    old = {**saved[1].facts, "search": {**saved[1].facts["search"], "method": "kin"}}
    resumed = run_search(searcher, Budget(steps=4), resume=State(saved[1].tensors, old))
    assert (resumed.best, resumed.history, resumed.method) == (whole.best, whole.history, "warm-start")
    assert SearchResult.from_dict({**whole.to_dict(), "method": "kin"}).method == "warm-start"
