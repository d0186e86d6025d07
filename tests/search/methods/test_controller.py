"""Facts about the controller of ENAS: valid samples, exact probabilities, gradients of the expected reward."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch

from nearkin.core.errors import OptionError
from nearkin.core.rng import Streams, seeded
from nearkin.search.genotypes.genotype import Genotype, Recurrent
from nearkin.search.methods.enas.controller import Controller, Rollout
from nearkin.search.methods.enas.decisions import decision_sequence
from nearkin.search.methods.enas.reinforce import (
    ControllerOptions,
    improve_controller,
    policy_loss,
    sample_genotypes,
)
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.darts import ENAS_OPERATIONS, DartsSpace
from nearkin.search.spaces.general import GeneralSpace
from nearkin.search.spaces.limited import limit_space
from nearkin.search.spaces.recurrent_space import RecurrentSpace
from nearkin.search.spaces.registry import space as space_named

SPACES: dict[str, Space] = {
    "enas": space_named("enas"),
    "darts": DartsSpace(num_nodes=3, num_predecessors=1, reduction=False),
    "general": GeneralSpace((4,), ("zero", "identity", "conv3")),
    "recurrent": RecurrentSpace(5),
    "loose": RecurrentSpace(6, loose_ends=True),
}


def controller_of(space: Space, seed: int = 0, **options: float | None) -> Controller:
    with seeded(seed):
        controller = Controller(decision_sequence(space), 12, **options)
    for weight in controller.parameters():  # far from uniform, so that errors show
        weight.data.mul_(8)
    return controller.double()


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", SPACES)
def test_samples_are_members_of_the_space_and_decisions_give_them_back(name: str) -> None:
    space, controller = SPACES[name], controller_of(SPACES[name])
    genotypes, decisions = sample_genotypes(controller, space, 100, rng())
    assert all(map(space.contains, genotypes))
    assert len(set(genotypes)) > 10
    for genotype, row in zip(genotypes, decisions, strict=True):
        assert controller.sequence.genotype(row.tolist()) == genotype
        assert controller.sequence.genotype(controller.sequence.decisions(genotype)) == genotype


@pytest.mark.parametrize("name", SPACES)
def test_the_log_probability_of_a_sample_is_the_one_of_its_decisions(name: str) -> None:
    controller = controller_of(SPACES[name])
    sampled = controller.sample(20, rng())
    again = controller.replay(sampled.decisions)
    assert torch.allclose(sampled.log_probability, again.log_probability, rtol=0, atol=1e-12)
    assert torch.allclose(sampled.entropy, again.entropy, rtol=0, atol=1e-12)
    alone = torch.cat([controller.replay(row[None]).log_probability for row in sampled.decisions])
    assert torch.allclose(sampled.log_probability, alone, rtol=0, atol=1e-12)


TINY: dict[str, Space] = {
    "cells": DartsSpace(("a", "b"), num_nodes=2, reduction=False),
    "recurrent": RecurrentSpace(2, ("tanh", "relu")),
}


def all_decisions(controller: Controller) -> torch.Tensor:
    """Every allowed sequence of decisions."""
    steps = [step for step in controller.sequence.steps if step.size]
    rows = []
    for row in itertools.product(*[range(step.size) for step in steps]):
        taken = [row[i] not in row[i - step.excluded : i] for i, step in enumerate(steps) if step.excluded]
        if all(taken):
            rows.append(row)
    return torch.tensor(rows)


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("tanh_constant", [None, 2.5])
def test_probabilities_of_all_sequences_add_up_to_one(name: str, tanh_constant: float | None) -> None:
    controller = controller_of(TINY[name], tanh_constant=tanh_constant)
    every = controller.replay(all_decisions(controller))
    p = every.log_probability.exp().detach()
    assert float(p.sum()) == pytest.approx(1, abs=1e-12)
    assert float((p * every.entropy.detach()).sum()) == pytest.approx(float(torch.special.entr(p).sum()), abs=1e-12)


def test_samples_have_the_frequencies_of_their_probabilities() -> None:
    controller = controller_of(TINY["recurrent"])
    every = all_decisions(controller)
    p = controller.replay(every).log_probability.exp().detach()
    count = 20_000
    drawn = controller.sample(count, rng()).decisions
    observed = torch.stack([(drawn == row).all(1).double().mean() for row in every])
    assert bool(((observed - p).abs() < 5 * (p * (1 - p) / count).sqrt()).all())


class Arms(GeneralSpace):
    """Two genotypes: one edge with one of two operations."""

    def __init__(self) -> None:
        super().__init__((2,), ("zero", "identity"))


def gradients(controller: Controller, loss: torch.Tensor) -> list[torch.Tensor]:
    weights = list(controller.parameters())
    return list(torch.autograd.grad(loss, weights, retain_graph=True, materialize_grads=True))


@pytest.mark.parametrize("baseline", [0.0, 0.7])
@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_the_mean_gradient_of_two_arms_is_the_closed_form(baseline: float, weight: float) -> None:
    r"""With $p = σ(z)$ of arm 1: $∂J/∂z = p (1 - p) (R_1 - R_0 - λ z)$."""
    controller, rewards = controller_of(Arms(), temperature=1.0, tanh_constant=None), (0.2, 0.9)
    arms = controller.replay(torch.tensor([[0], [1]]))
    logs = arms.log_probability
    p, z = logs.exp().detach(), (logs[1] - logs[0])
    ascent = p[0] * p[1] * (rewards[1] - rewards[0] - weight * z.detach())
    expected = gradients(controller, -ascent * z)
    mean = torch.zeros(())
    for arm in range(2):
        rollout = controller.replay(torch.tensor([[arm]]))
        mean = mean + p[arm] * policy_loss(rollout, torch.tensor([rewards[arm]], dtype=torch.float64), baseline, weight)
    for mine, theirs in zip(gradients(controller, mean), expected, strict=True):
        assert torch.allclose(mine, theirs, rtol=0, atol=1e-12)
    assert any(float(gradient.abs().max()) > 1e-3 for gradient in expected)


@pytest.mark.parametrize("name", TINY)
def test_the_mean_gradient_over_all_sequences_is_that_of_the_objective(name: str) -> None:
    """Expected reward plus entropy, differentiated as a sum over all sequences, for any baseline."""
    controller, weight = controller_of(TINY[name]), 0.3
    every = all_decisions(controller)
    rewards = torch.rand(len(every), generator=rng(), dtype=torch.float64)
    whole = controller.replay(every)
    logs = whole.log_probability
    objective = (logs.exp() * (rewards - weight * logs)).sum()
    p, mean = logs.detach().exp(), torch.zeros((), dtype=torch.float64)
    for row in range(len(every)):
        sample = Rollout(*(value[row : row + 1] for value in whole))
        mean = mean + p[row] * policy_loss(sample, rewards[row : row + 1], 0.4, weight)
    for mine, theirs in zip(gradients(controller, mean), gradients(controller, -objective), strict=True):
        assert torch.allclose(mine, theirs, rtol=0, atol=1e-11)


def convolutions(genotype: Genotype) -> float:
    """Share of separable 3x3 convolutions among all edges."""
    names = [name for part in genotype.operations().values() for name in part]
    return names.count("sep_conv_3x3") / len(names)


def chain(genotype: Genotype) -> float:
    """Share of nodes with ReLU that follow the node just before."""
    assert isinstance(genotype, Recurrent)
    hits = [node == (number, "relu") for number, node in enumerate(genotype.nodes)]
    return sum(hits) / len(hits)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize(
    ("space", "reward"), [(DartsSpace(ENAS_OPERATIONS, num_nodes=2), convolutions), (RecurrentSpace(4), chain)]
)
def test_the_controller_beats_uniform_sampling(space: Space, reward: Callable[[Genotype], float]) -> None:
    options = ControllerOptions(controller_size=32, controller_samples=10, controller_rate=0.01)
    for seed in range(3):
        streams, rewards, baseline = Streams(seed), [], None
        with seeded(seed):
            controller = options.controller(space)
        optimiser = torch.optim.Adam(controller.parameters(), options.controller_rate)
        for step in range(80):
            mean, baseline = improve_controller(
                controller, optimiser, space, lambda genotypes: list(map(reward, genotypes)), baseline, options,
                streams.at("controller", step),
            )  # fmt: skip
            rewards.append(mean)
        uniform = [reward(space.sample(streams.at("uniform", number))) for number in range(800)]
        expected = sum(uniform) / 800
        assert abs(sum(rewards[:5]) / 5 - expected) < 0.15, "it starts near uniform sampling"
        assert sum(rewards[-10:]) / 10 > max(uniform) + 0.1, "its mean exceeds the best of as many uniform samples"


def test_a_limited_space_is_respected_even_where_the_controller_never_goes() -> None:
    space = DartsSpace(ENAS_OPERATIONS, num_nodes=2, reduction=False)
    few = limit_space(space, lambda genotype: -convolutions(genotype), -1.0, name="others")
    genotypes, decisions = sample_genotypes(controller_of(space), few, 3, rng())
    assert all(map(few.contains, genotypes))
    assert torch.isfinite(controller_of(space).replay(decisions).log_probability).all()


def test_temperature_and_tanh_constant_bound_the_probabilities() -> None:
    for constant in (0.5, 2.5):
        controller = controller_of(TINY["recurrent"], temperature=0.01, tanh_constant=constant)
        first = [controller.replay(torch.tensor([[0, choice, 0, 0]])).log_probability for choice in range(2)]
        assert all(value > 3 * math.log(1 / (1 + math.exp(2 * constant))) - 1e-9 for value in first)
    cold, hot = (controller_of(TINY["recurrent"], temperature=t, tanh_constant=None) for t in (0.5, 50.0))
    assert bool(hot.sample(1, rng()).entropy > cold.sample(1, rng()).entropy)


def test_spaces_without_nodes_of_one_number_are_refused() -> None:
    for name in ("mobile", "general"):
        with pytest.raises(OptionError, match=r"cells with the same number of nodes.*; use --space full"):
            decision_sequence(space_named(name))
