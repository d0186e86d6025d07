"""The interleaved search with a hypernetwork: gradients, what is stored, how it resumes, what it refuses."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from laws.searcher import Make, SearcherLaws
from multitask_examples import GRADIENT, ONE, SPACE, THREE, TWO, bits, passes
from nearkin.core.errors import OptionError
from nearkin.core.events import finish
from nearkin.multitask.encoder_transfer import EncoderTransfer, transfer_loss
from nearkin.multitask.hypernet import encoder_weights
from nearkin.multitask.hypernet_search import HypernetInterleave, HypernetOptions
from nearkin.multitask.multitask_state import encoder_of
from nearkin.search.methods.darts.guards import Guards
from nearkin.search.plasticity.forgetting_options import ForgettingOptions
from nearkin.search.spaces.base import Space

FEW = EncoderTransfer(num_sets=8, num_augmentations=3, every=1)
SMALL = HypernetOptions(gradient=GRADIENT, transfer=FEW)


def made(options: HypernetOptions = SMALL) -> HypernetInterleave:
    return HypernetInterleave([ONE, TWO, THREE], SPACE, options)


class TestLaws(SearcherLaws):
    STEPS = 4

    @pytest.fixture
    def make(self) -> Make:
        return lambda: HypernetInterleave([ONE, TWO], SPACE, SMALL)

    @pytest.fixture
    def space(self) -> Space:
        return SPACE


def test_killed_and_resumed_the_printed_form_ends_the_same_bit_for_bit() -> None:
    options, laws = replace(SMALL, printed=True, through_hypernet=True), SearcherLaws()
    laws.STEPS = 3
    laws.check_resumed(lambda: HypernetInterleave([ONE, TWO], SPACE, options))


@pytest.mark.parametrize("transfer", [FEW, replace(FEW, transfer="l2-weights"), EncoderTransfer(transfer="none")])
def test_the_gradient_is_that_of_one_graph_from_the_parameters_to_the_loss(transfer: EncoderTransfer) -> None:
    """Against the plain form: the weights stay in the graph from the hypernetwork to training and transfer loss."""
    searcher = made(replace(SMALL, transfer=transfer, gradient=replace(GRADIENT, clip=0.0)))
    state, turn = passes(searcher, 1), searcher._turns()[1]
    assert turn.before is not None
    batch, fixed = searcher._batch(state, turn), {k: v.detach() for k, v in state.architecture.items()}
    slot, hypernet = state.slots[1], state.hypernet
    student, teacher = hypernet(1, 0, fixed), {k: v.detach() for k, v in hypernet(0, 0, fixed).items()}
    copies = {name: value.clone() for name, value in slot.buffers.items()}
    outputs = functional_call(slot.supernet, {**student, **copies}, (batch.x, fixed))
    loss = searcher.tasks[1].form.loss(outputs, batch.y)
    whole = loss
    if transfer.active:
        encoders = (encoder_of(state.slots[0], fixed, teacher), encoder_of(slot, fixed, student))
        whole = loss + transfer_loss(*encoders, searcher._draw(state, turn), transfer).loss
    expected = torch.autograd.grad(whole, list(hypernet.parameters()), materialize_grads=True)
    found: list[Tensor] = []
    state.hypernet_optimiser.register_step_pre_hook(
        lambda *_: found.extend(
            torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in hypernet.parameters()
        )
    )
    value, _ = searcher._take_turn(state, turn, 0.1)
    assert value == pytest.approx(float(loss.detach()), rel=1e-5)
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5)


def test_encoder_weights_exist_in_a_turn_only() -> None:
    searcher = made()
    state = passes(searcher, 3)
    for slot in state.slots:
        for name, value in slot.weights.items():
            assert (value.numel() > 0) == name.startswith("head."), name
            assert name.startswith("head.") or value.grad is None
    hypernet = state.hypernet
    heads = sum(value.numel() for slot in state.slots for value in slot.supernet.head.parameters())
    assert searcher.num_weights(state) == hypernet.num_parameters + heads
    names = searcher.capture(state).tensors
    assert not any(value.numel() for name, value in names.items() if ".stem." in name and name.endswith("weight"))
    assert searcher.details(state)["hypernet"] == {
        "parameters": hypernet.num_parameters, "weights": 3 * 2 * hypernet.num_weights,
    }  # fmt: skip


def test_every_turn_has_the_weights_of_its_task_and_round(monkeypatch: pytest.MonkeyPatch) -> None:
    searcher, asked = made(), []
    state, plain = searcher.init(0), HypernetInterleave._computed

    def computed(self: HypernetInterleave, state: Any, task: int, number: int, architecture: Any) -> Any:
        asked.append((task, number, torch.is_grad_enabled()))
        return plain(self, state, task, number, architecture)

    monkeypatch.setattr(HypernetInterleave, "_computed", computed)
    finish(searcher._train(state, 0.1))
    learned = [(task, number) for task, number, graph in asked if graph]
    assert learned == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]
    assert asked[:3] == [(0, 0, False), (0, 0, True), (0, 0, False)]  # no teacher; step; record
    start = asked.index((0, 1, False))
    assert asked[start : start + 3] == [(0, 1, False), (2, 0, False), (0, 1, True)]  # student, teacher, step


def test_tasks_have_heads_and_statistics_of_their_own_and_learn() -> None:
    alone = EncoderTransfer(transfer="none")
    searcher = made(replace(SMALL, transfer=alone, gradient=replace(GRADIENT, epochs=7, warmup=6)))
    state = passes(searcher, 12)
    first, last = state.rounds[:6], state.rounds[-6:]
    assert sum(record.loss for record in last) < sum(record.loss for record in first)
    statistics = [bits(slot.buffers) for slot in state.slots]
    assert statistics[0] != statistics[1] != statistics[2]
    heads = [slot.supernet.head.weight.shape[0] for slot in state.slots]
    assert heads == [2, 3, 2]


def test_the_gradient_of_the_architecture_may_include_the_computed_weights() -> None:
    """The difference is the chain rule through the weights: gradient in W times the derivative of W in A."""
    searcher, through = made(), made(replace(SMALL, through_hypernet=True))
    state = passes(searcher, 3)
    at_once, whole = (one._architecture_gradient(state, 0.0)[1] for one in (searcher, through))
    factors = searcher._factors(state, [1.0] * 3)
    free = {name: value.detach().requires_grad_() for name, value in state.architecture.items()}
    total = torch.zeros(())
    for task, factor in enumerate(factors):
        fixed = {k: v.detach() for k, v in free.items()}
        weights = {k: v.detach().requires_grad_() for k, v in state.hypernet(task, 1, fixed).items()}
        loss = super(HypernetInterleave, searcher)._loss(
            state, task, searcher.learners[task].validation_batch(state.streams, state.done)
        )({**state.slots[task].weights, **weights}, fixed)
        slopes = torch.autograd.grad(loss, list(weights.values()), materialize_grads=True)
        moving = state.hypernet(task, 1, free)
        total = total + factor * sum((moving[k] * s).sum() for k, s in zip(weights, slopes, strict=True))
    chain = torch.autograd.grad(total, list(free.values()))
    for name, added in zip(free, chain, strict=True):
        torch.testing.assert_close(whole[name], at_once[name] + added, rtol=1e-3, atol=1e-6)
    assert not torch.allclose(whole["alpha/normal"], at_once["alpha/normal"], rtol=1e-2)


def test_guards_watch_the_computed_weights() -> None:
    guards = Guards(entropy=0.0, growth=100.0, window=1, products=2)
    state = passes(made(replace(SMALL, gradient=replace(GRADIENT, guards=guards))), 6)
    assert len(state.eigenvalues) == 2
    assert all(value == value for value in state.eigenvalues)


def test_the_hypernetwork_is_the_same_for_the_same_seed() -> None:
    searcher = made()
    first, second, other = (searcher.init(seed).hypernet.state_dict() for seed in (1, 1, 2))
    assert bits(first) == bits(second) != bits(other)
    assert not any(value.numel() for value in encoder_weights(searcher.init(1).slots[2].supernet).values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hypernet_rate": 0.0}, "hypernet_rate must be above 0, got 0.0"),
        ({"literal": True}, "use literal=false"),
        ({"gradient": replace(GRADIENT, order=2)}, "no gradient of order 2; use order=1"),
        ({"gradient": replace(GRADIENT, forgetting=ForgettingOptions(plasticity=True))}, "use plasticity=false"),
        ({"num_rounds": 0}, "the number of rounds must be 1 or more, got 0"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message) as refused:
        replace(SMALL, **changes)
    assert "\n" not in str(refused.value)
