"""Facts about ENAS: the laws of searchers for cells and recurrent cells, paths that train alone, dropout, refusals."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import nearkin as nk
from laws.searcher import SearcherLaws, searched
from nearkin.core.budget import Budget
from nearkin.core.errors import DataError, MismatchError, OptionError
from nearkin.core.events import finish
from nearkin.core.rng import seeded
from nearkin.core.state import State
from nearkin.search.genotypes.genotype import Cells, Genotype, Recurrent
from nearkin.search.methods.enas.enas_options import EnasOptions
from nearkin.search.methods.enas.enas_search import Enas
from nearkin.search.methods.enas.reinforce import ControllerOptions
from nearkin.search.methods.enas.shared_weights import drop_paths, shared_network
from nearkin.search.networks.build import build_network
from nearkin.search.networks.shared_recurrent import RecurrentPath, SharedRecurrentNetwork
from nearkin.search.networks.skeleton import Skeleton
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.darts import ENAS_OPERATIONS, DartsSpace
from nearkin.search.spaces.general import GeneralSpace
from nearkin.search.spaces.recurrent_space import RecurrentSpace
from nearkin.search.supernet.reference import Frame, PlainSupernet
from nearkin.search.supernet.supernet_layout import SupernetLayout
from nearkin.tasks.readers.language import language_task

CELLS = DartsSpace(ENAS_OPERATIONS, num_nodes=2)
RECURRENT = RecurrentSpace(3, loose_ends=True)
SONG = "la la li lo la li li lo la\nlo la li li lo la la lo\n" * 30
TINY = EnasOptions(epochs=2, batches_per_architecture=2, batch_size=16, selection_samples=3, selection_batch=32)
FEW = ControllerOptions(controller_size=8, controller_steps=2, controller_samples=2)


@pytest.fixture(scope="module")
def digits() -> nk.Task:
    return nk.task("digits?limit=100")


@pytest.fixture(scope="module")
def song() -> nk.Task:
    return language_task("song", SONG, SONG[:200], {"length": "5"})


def tiny(task: nk.Task, **changes: Any) -> Enas:
    """A search of two epochs; each has three genotypes and two steps of the controller."""
    space = RECURRENT if task.likelihood == "language" else CELLS
    frame = Frame(channels=4, num_cells=2)
    options = replace(TINY, **{name: changes.pop(name) for name in list(changes) if hasattr(TINY, name)})
    return replace(Enas(space, task, frame, options, FEW), **changes)


class TestCells(SearcherLaws):
    STEPS = 6
    FIRST = 4

    @pytest.fixture
    def make(self, digits: nk.Task) -> Callable[[], Enas]:
        return lambda: tiny(digits, path_dropout=0.5, output_dropout=0.2)

    @pytest.fixture
    def space(self) -> Space:
        return CELLS


class TestRecurrentCells(SearcherLaws):
    STEPS = 6
    FIRST = 4

    @pytest.fixture
    def make(self, song: nk.Task) -> Callable[[], Enas]:
        return lambda: tiny(song, path_dropout=0.5, output_dropout=0.2)

    @pytest.fixture
    def space(self) -> Space:
        return RECURRENT


def weights_of(path: str, net: torch.nn.Module, genotype: Genotype) -> set[str]:
    """Names of the weights that the path of a genotype may use, from the structure of the network."""
    names = {name for name, _ in net.named_parameters()}
    if isinstance(genotype, Recurrent):
        maps = {f"nodes.{node.predecessor}-{number}.weight" for number, node in enumerate(genotype.nodes, 1)}
        return {name for name in names if not name.startswith("nodes.") or name in maps}
    assert isinstance(genotype, Cells)
    used = set()
    for name in names:
        words = name.split(".")
        if words[0] != "cells":
            used.add(name)
            continue
        cell = net.cells[int(words[1])]
        chosen = [pair for terms in cell.layout.chosen(genotype, cell.kind) for pair in terms]
        if words[2] == "edges" and (int(words[3]), int(words[5])) in chosen:
            used.add(name)
        if words[2] == "inputs" and int(words[3]) in {cell.layout.pairs[edge][0] for edge, _ in chosen}:
            used.add(name)
    return used


@pytest.mark.parametrize("kind", ["digits", "song"])
def test_a_weight_step_changes_the_sampled_path_and_nothing_else(kind: str, request: pytest.FixtureRequest) -> None:
    """Bit for bit, although momentum and weight decay of earlier steps would move other weights."""
    task = request.getfixturevalue(kind)
    searcher = tiny(task, batches_per_architecture=1, weight_decay=0.1)
    state = searcher.init(0)
    space, form = searcher.space, task.form
    x, y = searcher.fixed_batch
    unused = 0
    for number in range(6):
        genotype = space.sample(torch.Generator().manual_seed(number))
        before = {name: value.detach().clone() for name, value in state.net.named_parameters()}
        for group in state.weight_optimiser.param_groups:
            group["lr"] = 0.1
        state.weight_optimiser.zero_grad()
        form.loss(state.net(x, genotype), y).backward()
        state.weight_optimiser.step()
        changed = {name for name, value in state.net.named_parameters() if not torch.equal(value, before[name])}
        used = weights_of(kind, state.net, genotype)
        assert changed <= used
        assert len(changed) > 0.8 * len(used), "most weights of the path did change"
        unused += len(before) - len(used)
    assert unused > 0


def test_a_step_of_the_search_changes_only_the_genotype_that_was_sampled(digits: nk.Task) -> None:
    searcher = tiny(digits, batches_per_architecture=1)
    state = searcher.init(0)
    for number in range(2):
        before = {name: value.detach().clone() for name, value in state.net.named_parameters()}
        controller = {name: value.clone() for name, value in state.controller.state_dict().items()}
        state = finish(searcher.step(state))
        same = [name for name, value in state.net.named_parameters() if torch.equal(value, before[name])]
        edges = [name for name in before if ".edges." in name]
        assert len(set(same) & set(edges)) >= 0.5 * len(edges), number
        assert len(same) < len(before)
        assert all(torch.equal(value, controller[name]) for name, value in state.controller.state_dict().items())


def test_a_controller_step_leaves_the_shared_weights_as_they_are(digits: nk.Task) -> None:
    searcher = tiny(digits)
    state = searcher.init(0)
    while state.done < searcher.architectures_per_epoch:
        state = finish(searcher.step(state))
    before = {name: value.clone() for name, value in state.net.state_dict().items()}
    controller = {name: value.clone() for name, value in state.controller.state_dict().items()}
    state = finish(searcher.step(state))
    assert all(torch.equal(value, before[name]) for name, value in state.net.state_dict().items())
    assert any(not torch.equal(value, controller[name]) for name, value in state.controller.state_dict().items())


def test_the_shared_recurrent_network_computes_what_the_cell_alone_computes() -> None:
    with seeded(0):
        shared = SharedRecurrentNetwork(3, vocabulary=7, hidden=6)
    tokens = torch.randint(7, (2, 5), generator=torch.Generator().manual_seed(0))
    for number in range(10):
        cell = RECURRENT.sample(torch.Generator().manual_seed(number))
        assert isinstance(cell, Recurrent)
        alone = build_network(cell, Skeleton(channels=6), (5,), 7)
        weights = dict(shared.state_dict())
        for node, (before, _) in enumerate(cell.nodes, 1):
            weights[f"nodes.{node}.weight"] = weights[f"nodes.{before}-{node}.weight"]
        alone.load_state_dict({name: weights[name] for name in alone.state_dict()})
        assert torch.allclose(shared(tokens, cell), alone(tokens), rtol=0, atol=1e-6)


def test_a_dropped_node_passes_its_predecessor_on() -> None:
    with seeded(0):
        shared = SharedRecurrentNetwork(2, vocabulary=5, hidden=4).double()
    tokens = torch.randint(5, (2, 6), generator=torch.Generator().manual_seed(0))
    cell = Recurrent(((0, "tanh"), (1, "relu")), (2,))
    whole, thinned = shared(tokens, cell), shared(tokens, RecurrentPath.of(cell, {2}))
    assert torch.equal(thinned, shared(tokens, Recurrent(((0, "tanh"),), (1,))))
    assert not torch.allclose(whole, thinned)


def test_path_dropout_drops_all_edges_of_a_node_with_its_rate_and_keeps_one() -> None:
    rng, cells = torch.Generator().manual_seed(0), CELLS.at(17)
    counts = torch.zeros(3)
    for _ in range(2000):
        thinned = drop_paths(cells, 0.25, rng)
        assert isinstance(thinned, Cells)
        for kind, cell in thinned.parts().items():
            assert set(cell.edges) <= set(cells.parts()[kind].edges)
            for node in (2, 3):
                counts[len(cell.entering(node))] += 1
    shares = counts / counts.sum()
    assert shares[0] == 0
    assert abs(float(shares[2]) - 0.25) < 0.02, "each of two edges stays with probability 1 - sqrt(0.25)"


def test_evaluation_uses_the_statistics_of_the_batch_and_no_dropout(digits: nk.Task) -> None:
    with seeded(0):
        net = shared_network(CELLS, digits, Frame(channels=4, num_cells=2), output_dropout=0.5)
    assert not dict(net.named_buffers())
    x, cells = digits.train.first(20).x, CELLS.at(3)
    net.eval()
    assert torch.equal(net(x, cells), net(x, cells))
    assert not torch.allclose(net(x[:10], cells), net(x, cells)[:10])
    net.train()
    with seeded(0):
        assert not torch.allclose(net(x, cells), net(x, cells))


def test_a_wide_network_computes_what_the_reference_supernet_computes(digits: nk.Task) -> None:
    layout, frame = SupernetLayout.of(CELLS), Frame(channels=16, num_cells=2)
    with seeded(0):
        net = shared_network(CELLS, digits, frame)
    with seeded(0):
        plain = PlainSupernet(layout, digits.input_shape, digits.num_outputs, frame)
    (x, y), cells = digits.train.first(20), CELLS.at(1234)
    for model in (net, plain):
        digits.form.loss(model(x, cells), y).backward()
    others = dict(plain.named_parameters())
    for name, value in net.named_parameters():
        assert (value.grad is None) == (others[name].grad is None)
        if value.grad is not None:
            assert torch.allclose(value.grad, others[name].grad, rtol=1e-3, atol=1e-5), name


@pytest.mark.soak
@pytest.mark.slow
def test_the_search_learns_on_digits_and_the_best_is_far_above_chance() -> None:
    task = nk.task("digits?limit=400")
    options = EnasOptions(epochs=8, batch_size=32, selection_samples=5, selection_batch=200)
    controller = ControllerOptions(controller_size=16, controller_steps=3, controller_samples=3)
    result, _ = searched(Enas(CELLS, task, Frame(channels=8, num_cells=2), options, controller), Budget())
    assert result.reason == "all epochs are done"
    assert result.best.score > 0.3
    assert result.evaluations == 8 * (3 * 3 + 5)
    assert list(result.found) == sorted(result.found, key=lambda scored: -scored.score)


@pytest.mark.soak
@pytest.mark.slow
def test_the_search_learns_a_song_and_its_score_is_the_scaled_inverse_perplexity(song: nk.Task) -> None:
    result, _ = searched(tiny(song, epochs=30, reward_scale=4.0), Budget())
    perplexity = float(result.best.facts["perplexity"])
    assert perplexity < 0.9 * song.num_outputs
    assert result.best.score == pytest.approx(4 / perplexity)
    assert math.log(perplexity) == pytest.approx(float(result.best.facts["shared loss"]))


def test_too_little_data_is_refused_in_one_line(digits: nk.Task, song: nk.Task) -> None:
    cases: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (
            lambda: tiny(digits, batch_size=64).init(0),
            DataError,
            "has 30 validation samples, a validation batch needs 64",
        ),
        (lambda: language_task("none", "", "", {}), DataError, "the training text has 0 tokens, a window needs 36"),
        (lambda: language_task("short", "la li\n", "la\n", {}), DataError, "has 3 tokens, a window needs 36; add text"),
        (
            lambda: tiny(language_task("one", "\n" * 400, "\n" * 40, {"length": "5"})).init(0),
            MismatchError,
            "the text of 'one' has a vocabulary of 1 tokens, a language model needs 2 or more; add text",
        ),
        (lambda: tiny(digits, space=GeneralSpace()), OptionError, "needs cells with the same number of nodes"),
        (lambda: replace(TINY, path_dropout=1.0), OptionError, r"path_dropout must lie in \[0, 1\), got 1.0"),
        (lambda: replace(TINY, learning_rate=0.0), OptionError, "learning_rate must be above 0"),
        (lambda: replace(FEW, tanh_constant=-1.0), OptionError, "tanh_constant must be above 0 or none"),
    ]
    for make, kind, message in cases:
        with pytest.raises(kind, match=message) as refused:
            make()
        assert "\n" not in str(refused.value)


def test_rewards_that_are_not_numbers_are_the_lowest(song: nk.Task, digits: nk.Task) -> None:
    for task, lowest in ((song, 0.0), (digits, 0.0)):
        searcher = tiny(task)
        state = searcher.init(0)
        with torch.no_grad():
            for weight in state.net.parameters():
                weight.fill_(math.nan)
        measured = searcher._measure(state, searcher.space.at(0), searcher.fixed_batch)
        assert lowest <= measured.score < 0.3
        json.dumps(measured.score)


def test_a_checkpoint_holds_everything_and_only_moments_of_used_weights(digits: nk.Task) -> None:
    searcher = tiny(digits, batches_per_architecture=1)
    state = finish(searcher.step(searcher.init(0)))
    saved = State.from_bytes(searcher.capture(state).to_bytes())
    moments = saved.section("weight_optimiser")
    assert 0 < len(moments) < len(list(state.net.parameters()))
    assert saved.section("controller").keys() == state.controller.state_dict().keys()
    assert saved.facts["done"] == 1
