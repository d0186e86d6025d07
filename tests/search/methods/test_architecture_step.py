"""Gradients in the architecture weights against finite differences of the whole objective, in double precision."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from nearkin.core.errors import OptionError
from nearkin.core.rng import seeded
from nearkin.search.methods.darts.architecture_step import (
    Tensors,
    finite_difference,
    first_order,
    loss_and_gradient,
    second_order,
)
from nearkin.search.spaces.darts import DartsSpace
from nearkin.search.supernet.fused.supernet import Supernet
from nearkin.search.supernet.reference import Frame
from nearkin.search.supernet.supernet_layout import SupernetLayout

RATE = 0.3


def drawn(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def toy(seed: int) -> tuple[Tensor, Tensor]:
    return drawn(12, 3, seed=seed), drawn(12, seed=seed + 1)


def smooth(data: tuple[Tensor, Tensor]):  # type: ignore[no-untyped-def]
    """A network of two mixed layers: softmax(α) weighs tanh, sine and the identity of a linear map."""
    x, y = data

    def mixed(x: Tensor, alpha: Tensor) -> Tensor:
        p = alpha.softmax(0)
        return p[0] * x.tanh() + p[1] * x.sin() + p[2] * x

    def loss(weights: Tensors, architecture: Tensors) -> Tensor:
        hidden = mixed(x @ weights["first"], architecture["one"])
        return (mixed(hidden @ weights["second"], architecture["two"]) - y).square().mean()

    return loss


@pytest.fixture
def weights() -> Tensors:
    return {"first": drawn(3, 4, seed=5), "second": drawn(4, seed=6), "unused": drawn(2, seed=8)}


@pytest.fixture
def architecture() -> Tensors:
    return {"one": drawn(3, seed=9), "two": drawn(3, seed=10), "idle": drawn(2, seed=11)}


def numerical(objective, architecture: Tensors, step: float = 1e-5) -> Tensors:  # type: ignore[no-untyped-def]
    """Central differences, coordinate by coordinate."""
    found = {}
    for name, value in architecture.items():
        slope = torch.zeros_like(value)
        for i in range(value.numel()):
            sides = []
            for sign in (1, -1):
                moved = value.clone()
                moved[i] += sign * step
                sides.append(float(objective({**architecture, name: moved})))
            slope[i] = (sides[0] - sides[1]) / (2 * step)
        found[name] = slope
    return found


def worst(one: Tensors, other: Tensors) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in other)


def ahead(weights: Tensors, architecture: Tensors, drift: Tensors | None = None) -> Tensors:
    free = {name: value.detach().requires_grad_() for name, value in weights.items()}
    loss = smooth(toy(1))(free, architecture)
    slopes = torch.autograd.grad(loss, list(free.values()), allow_unused=True, materialize_grads=True)
    extra = {name: torch.zeros_like(value) for name, value in weights.items()} if drift is None else drift
    return {name: weights[name] - RATE * (slope + extra[name]) for name, slope in zip(weights, slopes, strict=True)}


def test_first_order_is_the_slope_at_the_weights_as_they_are(weights: Tensors, architecture: Tensors) -> None:
    truth = numerical(lambda moved: smooth(toy(3))(weights, moved), architecture)
    loss, slopes = loss_and_gradient(smooth(toy(3)), weights, architecture)
    assert worst(slopes, truth) <= 1e-8
    assert worst(first_order(smooth(toy(3)), weights, architecture), slopes) == 0
    assert loss == pytest.approx(float(smooth(toy(3))(weights, architecture)))


@pytest.mark.parametrize("drifting", [False, True])
def test_second_order_is_the_slope_of_the_loss_one_training_step_ahead(
    weights: Tensors, architecture: Tensors, drifting: bool
) -> None:
    drift = {name: 0.1 * value + 0.2 for name, value in weights.items()} if drifting else None

    def objective(moved: Tensors) -> Tensor:
        return smooth(toy(3))(ahead(weights, moved, drift), moved)

    loss, slopes = second_order(smooth(toy(1)), smooth(toy(3)), weights, architecture, RATE, drift=drift)
    assert worst(slopes, numerical(objective, architecture)) <= 1e-8
    assert loss == pytest.approx(float(objective(architecture)))
    plain = first_order(smooth(toy(3)), ahead(weights, architecture, drift), architecture)
    assert worst(slopes, plain) > 1e-3  # the correction is there


def test_the_finite_difference_tends_to_the_exact_product_with_the_square_of_its_radius(
    weights: Tensors, architecture: Tensors
) -> None:
    exact = second_order(smooth(toy(1)), smooth(toy(3)), weights, architecture, RATE)[1]
    errors = [
        worst(
            second_order(smooth(toy(1)), smooth(toy(3)), weights, architecture, RATE, exact=False, radius=r)[1], exact
        )
        for r in (0.1, 0.01)
    ]
    assert errors[1] == pytest.approx(errors[0] / 100, rel=0.1)


def test_at_rate_zero_both_orders_are_one(weights: Tensors, architecture: Tensors) -> None:
    for exact in (True, False):
        ahead_of_nothing = second_order(smooth(toy(1)), smooth(toy(3)), weights, architecture, 0.0, exact=exact)
        assert worst(ahead_of_nothing[1], loss_and_gradient(smooth(toy(3)), weights, architecture)[1]) <= 1e-15


def test_a_validation_loss_that_is_flat_in_the_weights_needs_no_correction(
    weights: Tensors, architecture: Tensors
) -> None:
    def flat(_: Tensors, given: Tensors) -> Tensor:
        return given["one"].square().sum()

    for exact in (True, False):
        found = second_order(smooth(toy(1)), flat, weights, architecture, RATE, exact=exact)[1]
        assert worst(found, {"one": 2 * architecture["one"], "two": torch.zeros(3, dtype=torch.float64)}) <= 1e-15


def test_what_is_given_stays_as_it_is(weights: Tensors, architecture: Tensors) -> None:
    kept = {name: value.clone() for name, value in {**weights, **architecture}.items()}
    second_order(smooth(toy(1)), smooth(toy(3)), weights, architecture, RATE)
    finite_difference(smooth(toy(1)), weights, architecture, weights)
    assert all(torch.equal(value, kept[name]) for name, value in {**weights, **architecture}.items())
    assert not any(value.requires_grad for value in {**weights, **architecture}.values())


def test_a_negative_rate_is_refused(weights: Tensors, architecture: Tensors) -> None:
    with pytest.raises(OptionError, match="rate of the step ahead must be 0 or more, got -1"):
        second_order(smooth(toy(1)), smooth(toy(3)), weights, architecture, -1)


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_on_a_supernet_the_exact_product_is_that_of_the_plain_form_and_of_small_differences(fraction: float) -> None:
    """The fast convolution and batch norm have second derivatives of their own; the plain form has torch's."""
    operations = ("none", "skip_connect", "avg_pool_3x3", "sep_conv_3x3", "dil_conv_3x3")
    layout = SupernetLayout.of(DartsSpace(operations, num_nodes=2))
    with seeded(0):
        fast = Supernet(layout, (1, 6, 6), 3, Frame(channels=4, num_cells=2, channel_fraction=fraction)).double()
    plain = fast.plain()
    architecture = layout.initial(torch.Generator().manual_seed(1), edges=True, scale=0.5)
    given = {name: value.double() for name, value in architecture.items()}

    def loss(net: torch.nn.Module, seed: int):  # type: ignore[no-untyped-def]
        x, y = drawn(6, 1, 6, 6, seed=seed), torch.arange(6) % 3
        buffers = dict(net.named_buffers())

        def value(weights: Tensors, architecture: Tensors) -> Tensor:
            copies = {name: buffer.clone() for name, buffer in buffers.items()}
            return F.cross_entropy(functional_call(net, {**weights, **copies}, (x, architecture)), y)

        return value

    found = {}
    for name, net in (("fast", fast), ("plain", plain)):
        weights = {name: value.detach() for name, value in net.named_parameters()}
        before = {name: value.clone() for name, value in net.named_buffers()}
        found[name] = second_order(loss(net, 1), loss(net, 2), weights, given, 0.05)[1]
        assert all(torch.equal(value, before[key]) for key, value in net.named_buffers())
    assert worst(found["fast"], found["plain"]) <= 1e-10
    weights = {name: value.detach() for name, value in fast.named_parameters()}
    small = second_order(loss(fast, 1), loss(fast, 2), weights, given, 0.05, exact=False, radius=1e-7)[1]
    assert worst(found["fast"], small) <= 1e-5 * max(float(value.abs().max()) for value in small.values())
