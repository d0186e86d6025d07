import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nearkin.core.errors import OptionError
from nearkin.core.rng import seeded
from nearkin.nets.functional import num_parameters
from nearkin.search.genotypes.cell import IDENTITIES, ZEROS
from nearkin.search.networks.operations import (
    OPERATIONS,
    FactorizedReduction,
    ResidualReduction,
    drop_samples,
    operation,
    register,
)
from nearkin.search.spaces.darts import DARTS_OPERATIONS
from nearkin.search.spaces.general import GENERAL_OPERATIONS
from nearkin.search.spaces.nasbench201 import NASBENCH201_OPERATIONS

NAMES = sorted(OPERATIONS)


def norm(channels: int) -> int:
    return 2 * channels


COUNTS = {  # parameters of stride 1 as functions of the channels
    "zero": lambda c: 0,
    "identity": lambda c: 0,
    "max3": lambda c: 0,
    "avg3": lambda c: 0,
    "conv3": lambda c: 9 * c * c + norm(c),
    "conv5": lambda c: 25 * c * c + norm(c),
    "conv7": lambda c: 49 * c * c + norm(c),
    "dil3": lambda c: 9 * c * c + norm(c),
    "dil5": lambda c: 25 * c * c + norm(c),
    "conv7x1-1x7": lambda c: 14 * c * c + norm(c),
    "sep_conv_3x3": lambda c: 2 * (9 * c + c * c + norm(c)),
    "sep_conv_5x5": lambda c: 2 * (25 * c + c * c + norm(c)),
    "dil_conv_3x3": lambda c: 9 * c + c * c + norm(c),
    "dil_conv_5x5": lambda c: 25 * c + c * c + norm(c),
    "nor_conv_1x1": lambda c: c * c + norm(c),
    "nor_conv_3x3": lambda c: 9 * c * c + norm(c),
}


@pytest.mark.parametrize("names", [GENERAL_OPERATIONS, DARTS_OPERATIONS, NASBENCH201_OPERATIONS])
def test_every_operation_of_the_spaces_is_there(names: tuple[str, ...]) -> None:
    assert set(names) <= set(OPERATIONS)


@settings(max_examples=100)
@given(
    st.sampled_from(NAMES), st.integers(1, 2), st.integers(2, 5), st.integers(1, 13), st.integers(1, 13), st.booleans()
)
def test_sides_are_divided_by_the_stride_and_rounded_up(
    name: str, stride: int, channels: int, height: int, width: int, affine: bool
) -> None:
    module = operation(name, channels, stride, affine).eval()
    outputs = module(torch.randn(2, channels, height, width))
    assert outputs.shape == (2, channels, math.ceil(height / stride), math.ceil(width / stride))


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("channels", [2, 7])
def test_parameters_are_those_of_the_formula(name: str, channels: int) -> None:
    affine, bare = operation(name, channels), operation(name, channels, affine=False)
    norms = sum(isinstance(module, nn.BatchNorm2d) for module in affine.modules())
    assert num_parameters(affine) == COUNTS[name](channels)
    assert num_parameters(bare) == COUNTS[name](channels) - norms * norm(channels)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stride", [1, 2])
def test_gradients_reach_every_weight(name: str, stride: int) -> None:
    with seeded(0):
        module, x = operation(name, 4, stride), torch.randn(8, 4, 7, 6)
        outputs = module(x)
        if not list(module.parameters()):
            return
        (outputs * torch.randn_like(outputs)).sum().backward()
    for weight in module.parameters():
        assert weight.grad is not None
        assert weight.grad.abs().max() > 0


@pytest.mark.parametrize("name", sorted(ZEROS))
def test_zeros_give_nothing(name: str) -> None:
    assert operation(name, 3, 2)(torch.randn(2, 3, 5, 5)).abs().sum() == 0


@pytest.mark.parametrize("name", sorted(IDENTITIES))
def test_identities_hand_on(name: str) -> None:
    x = torch.randn(2, 3, 5, 5)
    assert torch.equal(operation(name, 3)(x), x)


@pytest.mark.parametrize("name", ["max3", "avg3", "max_pool_3x3", "avg_pool_3x3"])
@pytest.mark.parametrize("stride", [1, 2])
def test_pools_keep_a_constant_to_the_border(name: str, stride: int) -> None:
    assert torch.equal(operation(name, 2, stride)(torch.full((1, 2, 5, 4), -3.0)).unique(), torch.tensor([-3.0]))


@pytest.mark.parametrize(
    ("name", "reach"),
    [("conv3", (-1, 0, 1)), ("dil3", (-2, 0, 2)), ("conv7", tuple(range(-3, 4))), ("dil5", (-4, -2, 0, 2, 4))],
)
def test_an_impulse_spreads_as_far_as_the_kernel(name: str, reach: tuple[int, ...]) -> None:
    x = torch.zeros(1, 1, 17, 17)
    x[..., 8, 8] = 1.0
    outputs = operation(name, 1).eval()(x)[0, 0]
    rows, columns = outputs.nonzero(as_tuple=True)
    assert {int(row) - 8 for row in rows} == {int(column) - 8 for column in columns} == set(reach)


@pytest.mark.parametrize("sides", [(6, 6), (7, 5), (1, 1), (2, 3)])
def test_factorized_reduction_reads_what_lies_at_even_and_at_odd_places(sides: tuple[int, int]) -> None:
    x = torch.rand(1, 3, *sides).add(0.1).requires_grad_()
    reduction = FactorizedReduction(3, 4).eval()
    nn.init.ones_(reduction.first.weight)
    nn.init.ones_(reduction.second.weight)
    reduction(x).sum().backward()
    assert x.grad is not None
    even = torch.zeros(sides)
    even[::2, ::2] = 1
    even[1::2, 1::2] = 1
    assert torch.equal((x.grad[0, 0] > 0).float(), even)


@settings(max_examples=30)
@given(st.integers(1, 9), st.integers(1, 9))
def test_residual_reduction_halves_any_side(height: int, width: int) -> None:
    outputs = ResidualReduction(3, 5).eval()(torch.randn(2, 3, height, width))
    assert outputs.shape == (2, 5, math.ceil(height / 2), math.ceil(width / 2))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropped_samples_are_whole_and_keep_the_mean(rate: float) -> None:
    count = 20_000
    with seeded(0):
        outputs = drop_samples(torch.ones(count, 2, 3, 1), rate)
    assert torch.equal(outputs.amax((1, 2, 3)), outputs.amin((1, 2, 3)))
    assert outputs.max().item() == pytest.approx(1 / (1 - rate))
    spread = math.sqrt(rate / (1 - rate) / count)
    assert outputs[:, 0, 0, 0].mean().item() == pytest.approx(1, abs=4 * spread)


@pytest.fixture
def blur() -> Iterator[str]:
    register("blur5", lambda channels, stride, affine: nn.AvgPool2d(5, stride, padding=2))
    yield "blur5"
    del OPERATIONS["blur5"]


def test_own_operations_have_names_of_their_own(blur: str) -> None:
    assert operation(blur, 2, 2)(torch.zeros(1, 2, 5, 5)).shape == (1, 2, 3, 3)
    with pytest.raises(OptionError, match="already"):
        register(blur, OPERATIONS["conv3"])


def test_unknown_names_get_a_hint() -> None:
    with pytest.raises(OptionError, match="did you mean sep_conv_3x3"):
        operation("sepconv_3x3", 4)
