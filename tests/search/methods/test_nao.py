"""Facts about NAO: the laws of searchers with shared weights and with an objective, the pool, dropout, refusals."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import nearkin as nk
from laws.searcher import SearcherLaws, searched
from nearkin.core.budget import Budget
from nearkin.core.errors import OptionError
from nearkin.core.events import Work, finish
from nearkin.core.state import State
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.enas.enas_search import Enas
from nearkin.search.methods.nao.model_training import ModelOptions
from nearkin.search.methods.nao.nao_options import NaoOptions
from nearkin.search.methods.nao.nao_queries import PREDICTED, NaoQueries
from nearkin.search.methods.nao.nao_search import Nao
from nearkin.search.methods.nao.nao_state import NaoState
from nearkin.search.methods.sampling import DRAWN, ORIGIN
from nearkin.search.objective import Objective, ObjectiveValue
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.darts import ENAS_OPERATIONS, DartsSpace
from nearkin.search.spaces.general import GeneralSpace
from nearkin.search.spaces.recurrent_space import RecurrentSpace
from nearkin.search.supernet.reference import Frame
from nearkin.search.tabular import ListedSpace
from nearkin.tasks.readers.language import language_task

CELLS = DartsSpace(ENAS_OPERATIONS, num_nodes=2)
RECURRENT = RecurrentSpace(3, loose_ends=True)
SONG = "la la li lo la li li lo la\nlo la li li lo la la lo\n" * 30
TINY = NaoOptions(
    epochs=3, batches_per_architecture=2, batch_size=16, selection_batch=32, pool=5, replaced=2, round_epochs=1
)
FEW = ModelOptions(model_size=8, model_steps=3, model_batch=4, ascent_starts=2, ascent_steps=2)


@pytest.fixture(scope="module")
def digits() -> nk.Task:
    return nk.task("digits?limit=100")


@pytest.fixture(scope="module")
def song() -> nk.Task:
    return language_task("song", SONG, SONG[:200], {"length": "5"})


def tiny(task: nk.Task, **changes: Any) -> Nao:
    """A search of three rounds; each trains some genotypes of a pool of five."""
    space = RECURRENT if task.likelihood == "language" else CELLS
    frame = Frame(channels=4, num_cells=2)
    options = replace(TINY, **{name: changes.pop(name) for name in list(changes) if hasattr(TINY, name)})
    return replace(Nao(space, task, frame, options, FEW), **changes)


class TestCells(SearcherLaws):
    STEPS = 7
    FIRST = 3

    @pytest.fixture
    def make(self, digits: nk.Task) -> Callable[[], Nao]:
        return lambda: tiny(digits, path_dropout=0.5, output_dropout=0.75)

    @pytest.fixture
    def space(self) -> Space:
        return CELLS


class TestRecurrentCells(SearcherLaws):
    STEPS = 7
    FIRST = 3

    @pytest.fixture
    def make(self, song: nk.Task) -> Callable[[], Nao]:
        return lambda: tiny(song, batches_per_architecture=math.ceil(tiny(song).batches_per_epoch / 3))

    @pytest.fixture
    def space(self) -> Space:
        return RECURRENT


class Convolutions(Objective):
    """Number of 3x3 convolutions; cells with a zero fail."""

    def measure(self, genotype: Genotype) -> Work[ObjectiveValue]:
        yield from ()
        names = genotype.operations()["normal"]
        return ObjectiveValue(math.nan if names[0] == "zero" else float(names.count("conv3")))

    def settings(self) -> dict[str, Any]:
        return {"counts": "conv3"}


COMPLETE = GeneralSpace((4,), ("zero", "identity", "conv3"))


class TestQueries(SearcherLaws):
    STEPS = 9

    @pytest.fixture
    def make(self) -> Callable[[], NaoQueries]:
        first = (COMPLETE.at(400), COMPLETE.at(401))
        return lambda: NaoQueries(COMPLETE, Convolutions(), FEW, initial=4, proposals=3, first=first)

    @pytest.fixture
    def space(self) -> Space:
        return COMPLETE


def through_rounds(searcher: Nao) -> list[NaoState]:
    """States at the ends of all rounds, each restored from its copy."""
    state, kept = searcher.init(0), []
    while not searcher.ended(state):
        state = finish(searcher.step(state))
        if state.done % searcher.steps_per_round == 0:
            kept.append(searcher.restore(searcher.capture(state)))
    return kept


def test_in_every_round_new_genotypes_replace_the_worst_of_the_pool(digits: nk.Task) -> None:
    searcher = tiny(digits)
    rounds = through_rounds(searcher)
    pools = [searcher.init(0).pool, *(state.pool for state in rounds)]
    assert len(rounds) == 3
    for before, after, state in zip(pools[:2], pools[1:3], rounds[:2], strict=True):
        ranked = [scored.genotype for scored in state.ranked]
        assert sorted(map(str, ranked)) == sorted(map(str, before)), "the whole pool is ranked"
        assert [scored.score for scored in state.ranked] == sorted((s.score for s in state.ranked), reverse=True)
        assert after[:3] == ranked[:3]
        assert not {searcher.space.unique_key(genotype) for genotype in after[3:]} & {
            searcher.space.unique_key(genotype) for genotype in before
        }
        assert len(after) == 5
        assert all(map(CELLS.contains, after))
    assert pools[3] == pools[2], "nothing is replaced after the last round"
    assert rounds[-1].evaluations == 3 * 5


def test_all_genotypes_of_a_round_are_measured_with_the_same_weights_on_the_same_batch(digits: nk.Task) -> None:
    searcher = tiny(digits)
    state = through_rounds(searcher)[-1]
    again = [searcher._measure(state, scored.genotype, searcher.fixed_batch).score for scored in state.ranked]
    assert again == [scored.score for scored in state.ranked]


def test_the_genotypes_of_a_pool_are_trained_equally_often(digits: nk.Task) -> None:
    searcher = tiny(digits, batches_per_architecture=1, pool=2, replaced=1)
    state = searcher.init(0)
    trained = []
    for done in range(searcher.steps_per_round):
        state.done = done
        trained.append(state.pool.index(searcher._member(state)))
    assert abs(trained.count(0) - trained.count(1)) <= 1
    assert all(set(trained[start : start + 2]) == {0, 1} for start in range(0, len(trained) - 1, 2))


def test_ranking_and_replacing_leave_the_shared_weights_as_they_are(digits: nk.Task) -> None:
    searcher = tiny(digits)
    state = searcher.init(0)
    before = {name: value.clone() for name, value in state.net.state_dict().items()}
    model = {name: value.clone() for name, value in state.model.state_dict().items()}
    searcher._rank(state)
    searcher._replace(state)
    assert all(torch.equal(value, before[name]) for name, value in state.net.state_dict().items())
    assert any(not torch.equal(value, model[name]) for name, value in state.model.state_dict().items())


def test_the_shared_weights_are_those_of_enas(digits: nk.Task) -> None:
    """Same network, same initial weights, same batches, same step for the same genotype."""
    nao = tiny(digits, path_dropout=0.3, output_dropout=0.25)
    names = ("epochs", "batches_per_architecture", "batch_size", "selection_batch", "path_dropout", "output_dropout")
    enas = Enas(CELLS, digits, nao.frame)
    enas = replace(enas, options=replace(enas.options, **{name: getattr(nao.options, name) for name in names}))
    ours, theirs = nao.init(0), enas.init(0)
    genotype = CELLS.at(11)
    finish(nao._train_path(ours, genotype, 1, 0))
    finish(enas._train_path(theirs, genotype, 1, 0))
    assert all(torch.equal(value, theirs.net.state_dict()[name]) for name, value in ours.net.state_dict().items())


@pytest.mark.soak
@pytest.mark.slow
def test_the_search_learns_on_digits_and_the_best_is_far_above_chance() -> None:
    options = NaoOptions(epochs=8, batch_size=32, selection_batch=200, pool=12, replaced=4)
    model = ModelOptions(model_size=16, model_steps=50)
    result, _ = searched(
        Nao(CELLS, nk.task("digits?limit=400"), Frame(channels=8, num_cells=2), options, model), Budget()
    )
    assert result.reason == "all epochs are done"
    assert result.best.score > 0.3
    assert result.evaluations == 4 * 12
    assert list(result.found) == sorted(result.found, key=lambda scored: -scored.score)


@pytest.mark.soak
@pytest.mark.slow
def test_with_an_objective_it_is_better_than_as_many_draws() -> None:
    """40 queries in a space of 729 cells, over five seeds."""
    scores, drawn = [], []
    for seed in range(5):
        options = ModelOptions(model_size=16, model_steps=60, model_rate=0.01)
        searcher = NaoQueries(COMPLETE, Convolutions(), options, initial=15, proposals=5)
        state = searcher.init(seed)
        for _ in range(40):
            state = finish(searcher.step(state))
        records = state.trials.records
        assert [record.facts[ORIGIN] for record in records] == [DRAWN] * 15 + [PREDICTED] * 25
        finite = [record.score if math.isfinite(record.score) else 0.0 for record in records]
        scores.append(sum(finite[15:]) / 25)
        drawn.append(sum(finite[:15]) / 15)
    assert sum(scores) / 5 > sum(drawn) / 5 + 1


def test_a_list_of_genotypes_is_searched_to_its_end_and_never_left() -> None:
    listed = ListedSpace(COMPLETE, [COMPLETE.at(index) for index in range(400, 412)], single=True)
    searcher = NaoQueries(listed, Convolutions(), FEW, initial=3, proposals=4)
    result, _ = searched(searcher, Budget(steps=40))
    assert result.evaluations == 12
    assert "measured before" in result.reason


def test_bad_input_is_refused_in_one_line(digits: nk.Task) -> None:
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: tiny(digits, space=GeneralSpace()), "needs cells with the same number of nodes"),
        (lambda: replace(TINY, replaced=5), "replaced must lie between 1 and pool - 1 = 4, got 5"),
        (lambda: replace(TINY, pool=1), "pool must be 2 or more, got 1"),
        (lambda: replace(TINY, round_epochs=0), "round_epochs must be 1 or more, got 0"),
        (lambda: replace(TINY, output_dropout=1.0), r"output_dropout must lie in \[0, 1\), got 1.0"),
        (lambda: NaoQueries(COMPLETE, Convolutions(), initial=0), "initial must be 1 or more, got 0"),
    ]
    for make, message in cases:
        with pytest.raises(OptionError, match=message) as refused:
            make()
        assert "\n" not in str(refused.value)


def test_a_checkpoint_holds_weights_model_optimisers_and_pool(digits: nk.Task) -> None:
    searcher = tiny(digits)
    state = through_rounds(searcher)[0]
    saved = State.from_bytes(searcher.capture(state).to_bytes())
    assert saved.section("net").keys() == state.net.state_dict().keys()
    assert saved.section("model").keys() == state.model.state_dict().keys()
    assert saved.section("model_optimiser")
    assert saved.section("weight_optimiser")
    assert [Genotype.parse(line) for line in saved.facts["pool"]] == state.pool
