"""Forgetting in searches with shared weights: laws with plasticity, errors against direct evaluation, limits of α."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import nearkin as nk
from laws.searcher import SearcherLaws, searched
from nearkin.core.budget import Budget
from nearkin.core.errors import OptionError
from nearkin.core.events import Event, Progress, finish
from nearkin.core.rng import seeded
from nearkin.search.methods.darts.gradient_options import GradientOptions
from nearkin.search.methods.darts.gradient_search import Darts
from nearkin.search.methods.enas.enas_options import EnasOptions
from nearkin.search.methods.enas.enas_search import Enas
from nearkin.search.methods.enas.reinforce import ControllerOptions
from nearkin.search.methods.enas.shared_options import SharedOptions
from nearkin.search.methods.enas.shared_weights import shared_network
from nearkin.search.methods.nao.model_training import ModelOptions
from nearkin.search.methods.nao.nao_options import NaoOptions
from nearkin.search.methods.nao.nao_search import Nao
from nearkin.search.methods.path_evaluation import evaluate_path
from nearkin.search.methods.shared_random import SharedRandom
from nearkin.search.plasticity.forgetting_options import ForgettingOptions
from nearkin.search.plasticity.path_importance import PathModel, fixed_statistics, path_importance
from nearkin.search.plasticity.telemetry import Forgetting, measure_forgetting
from nearkin.search.searcher import Searcher, run_search
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.darts import ENAS_OPERATIONS, DartsSpace
from nearkin.search.spaces.recurrent_space import RecurrentSpace
from nearkin.search.supernet.fused.supernet import Supernet
from nearkin.search.supernet.reference import Frame
from nearkin.search.supernet.supernet_layout import SupernetLayout
from nearkin.tasks.readers.language import language_task

CELLS = DartsSpace(ENAS_OPERATIONS, num_nodes=2)
FRAME = Frame(channels=4, num_cells=2)
ON = ForgettingOptions(plasticity=True, plasticity_warmup=0, watched=100)
SONG = "la la li lo la li li lo la\nlo la li li lo la la lo\n" * 30


@pytest.fixture(scope="module")
def digits() -> nk.Task:
    return nk.task("digits?limit=100")


@pytest.fixture(scope="module")
def song() -> nk.Task:
    return language_task("song", SONG, SONG[:200], {"length": "5"})


def enas(task: nk.Task, forgetting: ForgettingOptions, space: Space = CELLS, **changes: Any) -> Enas:
    """A search of two epochs; each has three genotypes and one step of the controller."""
    options = EnasOptions(
        epochs=2, batches_per_architecture=2, batch_size=16, selection_samples=2, selection_batch=30,
        forgetting=forgetting,
    )  # fmt: skip
    controller = ControllerOptions(controller_size=8, controller_steps=1, controller_samples=2)
    return Enas(space, task, FRAME, replace(options, **changes), controller)


def darts(task: nk.Task, forgetting: ForgettingOptions) -> Darts:
    return Darts(task, CELLS, GradientOptions(frame=FRAME, epochs=2, batch_size=16, forgetting=forgetting))


class TestEnas(SearcherLaws):
    STEPS = 6
    FIRST = 4

    @pytest.fixture
    def make(self, digits: nk.Task) -> Callable[[], Searcher[Any]]:
        return lambda: enas(digits, ON, path_dropout=0.3)

    @pytest.fixture
    def space(self) -> Space:
        return CELLS


class TestNaoWithSampledLabels(SearcherLaws):
    STEPS = 6
    FIRST = 4

    @pytest.fixture
    def make(self, song: nk.Task) -> Callable[[], Searcher[Any]]:
        how = replace(ON, plasticity_importance="sampled", plasticity_samples=4, plasticity_schedule="linear")
        options = NaoOptions(
            epochs=2, round_epochs=1, pool=3, replaced=1, batches_per_architecture=6, batch_size=4, forgetting=how
        )
        space, model = RecurrentSpace(2, loose_ends=True), ModelOptions(model_steps=2, model_size=8)
        return lambda: Nao(space, song, FRAME, options, model)

    @pytest.fixture
    def space(self) -> Space:
        return RecurrentSpace(2, loose_ends=True)


class TestDarts(SearcherLaws):
    STEPS = 5

    @pytest.fixture
    def make(self, digits: nk.Task) -> Callable[[], Searcher[Any]]:
        return lambda: darts(digits, replace(ON, watched=2))

    @pytest.fixture
    def space(self) -> Space:
        return CELLS


def shared_random(task: nk.Task, forgetting: ForgettingOptions) -> SharedRandom:
    options = SharedOptions(epochs=2, batches_per_architecture=2, batch_size=16, forgetting=forgetting)
    return SharedRandom(CELLS, task, FRAME, options)


MAKERS: dict[str, Callable[[nk.Task, ForgettingOptions], Searcher[Any]]] = {
    "enas": enas, "random-shared": shared_random, "darts": darts,
}  # fmt: skip


def events_of(searcher: Searcher[Any], steps: int = 8) -> tuple[tuple[Forgetting, ...], list[Progress]]:
    """Forgetting in the result of a search, and the events that announced it."""
    events: list[Event] = []
    result = finish(run_search.work(searcher, Budget(steps=steps)), events.append)
    return result.forgetting, [e for e in events if isinstance(e, Progress) and e.stage == "forgetting"]


@pytest.mark.parametrize("method", MAKERS)
def test_every_search_with_shared_weights_reports_its_forgetting(method: str, digits: nk.Task) -> None:
    rows, events = events_of(MAKERS[method](digits, ForgettingOptions()), steps=14)
    assert len(rows) == len(events) == 2
    for number, (row, event) in enumerate(zip(rows, events, strict=True), 1):
        assert (event.done, event.total) == (number, 2)
        assert event.values == {"mean": row.mean, "best": row.best, "maximum": row.maximum}
        assert -1 <= row.mean <= row.maximum <= 1
        assert row.architectures >= 2


@pytest.mark.parametrize("method", MAKERS)
def test_nothing_is_watched_on_request(method: str, digits: nk.Task) -> None:
    assert events_of(MAKERS[method](digits, ForgettingOptions(watched=0)), steps=14) == ((), [])


def test_the_reported_differences_are_those_of_errors_measured_from_outside(digits: nk.Task) -> None:
    searcher = enas(digits, ForgettingOptions(watched=100))
    state, seen, first = searcher.init(0), dict[str, Any](), dict[str, float]()

    def error(genotype: Any) -> float:
        return 1 - evaluate_path(state.net, genotype, [searcher.fixed_batch], digits.form).score

    train = Enas._train_path

    def observed(self: Enas, state: Any, genotype: Any, epoch: int, number: int) -> Any:
        yield from train(self, state, genotype, epoch, number)
        seen[str(genotype)], first[str(genotype)] = genotype, error(genotype)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Enas, "_train_path", observed)
        for _ in range(searcher.architectures_per_epoch):
            state = finish(searcher.step(state))
    last = [error(genotype) for genotype in seen.values()]
    assert list(searcher.forgetting(state)) == [measure_forgetting(list(first.values()), last)]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("method", MAKERS)
def test_a_strength_of_zero_changes_nothing(method: str, digits: nk.Task) -> None:
    make = MAKERS[method]
    (plain, _), (zero, _) = (
        searched(make(digits, options), Budget(steps=14))
        for options in (replace(ON, plasticity=False), replace(ON, plasticity_alpha=0.0))
    )
    assert (plain.best.genotype, plain.forgetting, plain.history) == (zero.best.genotype, zero.forgetting, zero.history)


def test_a_huge_strength_holds_important_weights_at_their_anchor(digits: nk.Task) -> None:
    searcher = enas(digits, replace(ON, plasticity_alpha=1e30))
    state = finish(searcher.step(searcher.init(0)))
    plasticity = state.control.plasticity
    assert plasticity is not None
    before = {name: value.detach().clone() for name, value in plasticity.shared.items()}
    held = {name: value > 1e-9 for name, value in plasticity.importance.items()}
    assert sum(int(mask.sum()) for mask in held.values()) > 100
    state = finish(searcher.step(state))
    for name, value in plasticity.shared.items():
        assert torch.allclose(value[held[name]], before[name][held[name]], rtol=0, atol=1e-6), name


def test_with_plasticity_a_step_still_changes_the_sampled_path_only(digits: nk.Task) -> None:
    searcher = enas(digits, ON)
    state, unchanged = searcher.init(0), 0
    for _ in range(searcher.architectures_per_epoch):
        before = {name: value.detach().clone() for name, value in state.net.named_parameters()}
        state = finish(searcher.step(state))
        for name, value in state.net.named_parameters():
            if value.grad is None and "edges" in name:
                assert torch.equal(value, before[name]), name
                unchanged += 1
    assert unchanged > 10


def test_the_importance_of_the_training_is_the_mean_of_its_scaled_squared_gradients(digits: nk.Task) -> None:
    searcher = enas(digits, ON)
    state, gradients = searcher.init(0), list[dict[str, Any]]()
    step = torch.optim.SGD.step

    def observed(self: torch.optim.SGD, *args: Any) -> Any:
        gradients.append({n: p.grad.clone() for n, p in state.net.named_parameters() if p.grad is not None})
        return step(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.SGD, "step", observed)
        state = finish(searcher.step(state))
    assert len(gradients) == 2, "two batches of 14 samples"
    assert state.control.plasticity is not None
    importance = state.control.plasticity.importance
    for name, value in importance.items():
        squares = sum((14 * g[name].square() / 2 for g in gradients if name in g), torch.zeros_like(value))
        assert torch.allclose(value, squares, rtol=1e-5, atol=0), name


def networks(digits: nk.Task) -> dict[str, nn.Module]:
    with seeded(0):
        cells = shared_network(CELLS, digits, FRAME)
        fused = Supernet(SupernetLayout.of(CELLS), digits.input_shape, 10, FRAME)
    return {"cells": cells, "fused": fused}


@pytest.mark.parametrize("kind", ["cells", "fused"])
def test_importance_of_single_samples_is_that_of_autograd_with_fixed_statistics(kind: str, digits: nk.Task) -> None:
    net, (x, y), path = networks(digits)[kind].double(), digits.train.first(8), CELLS.at(1234)
    x = x.double()
    options = ON.for_search("categorical", 1, 0)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    measured = finish(path_importance(net, path, x, y, replace(options, importance="observed")))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    plain = net.plain() if isinstance(net, Supernet) else net
    squares = {name: torch.zeros_like(value) for name, value in plain.named_parameters()}
    with fixed_statistics(plain, path, x):
        model = PathModel(plain, path).eval()
        for number in range(8):
            plain.zero_grad()
            nn.functional.cross_entropy(model(x[number : number + 1]), y[number : number + 1]).backward()
            for name, value in plain.named_parameters():
                if value.grad is not None:
                    squares[name] += value.grad.square() / 8
    expected = net.stacked(squares) if isinstance(net, Supernet) else squares
    assert set(measured) == set(expected)
    for name, value in measured.items():
        assert torch.allclose(value, expected[name], rtol=1e-6, atol=1e-12), name


def test_options_that_make_no_sense_are_refused_in_one_line() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"watched": -1}, "watched must be 0 or more, got -1"),
        ({"plasticity_importance": "none"}, "plasticity_importance must be one of training, observed"),
        ({"plasticity_update": "max"}, "plasticity_update must be one of path, average, sum"),
        ({"plasticity_schedule": "step"}, "plasticity_schedule must be one of constant"),
        ({"plasticity_alpha": -1.0}, "alpha is -1.0, expected a finite number >= 0"),
        ({"plasticity_warmup": -1}, "warm_up is -1, expected a number of epochs >= 0"),
        ({"plasticity_samples": 1}, "samples is 1, expected 2 or more"),
    ]
    for changes, message in cases:
        with pytest.raises(OptionError, match=message) as refused:
            ForgettingOptions(**changes)
        assert "\n" not in str(refused.value)
