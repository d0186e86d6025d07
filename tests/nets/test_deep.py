import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nearkin.core.errors import MismatchError, OptionError
from nearkin.core.rng import seeded
from nearkin.nets.deep import VGG16, DenseNet121, ResNet18
from nearkin.nets.functional import evaluation_mode, num_parameters

DEEP = [VGG16, ResNet18, DenseNet121]


def vgg16_count(outputs: int) -> int:
    """Convolutions with bias, two numbers of batch norm a channel, one linear layer."""
    sizes = [3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
    return sum(9 * a * b + 3 * b for a, b in pairwise(sizes)) + 512 * outputs + outputs


def resnet18_count(outputs: int) -> int:
    total, before = 9 * 3 * 64 + 2 * 64, 64
    for size in (64, 128, 256, 512):
        total += 9 * before * size + 3 * 9 * size * size + 4 * 2 * size
        total += before * size + 2 * size if before != size else 0
        before = size
    return total + 512 * outputs + outputs


def densenet121_count(outputs: int) -> int:
    total, size = 9 * 3 * 64, 64
    for number, depth in enumerate((6, 12, 24, 16)):
        if number > 0:
            total += 2 * size + size * (size // 2)
            size //= 2
        for _ in range(depth):
            total += 2 * size + size * 128 + 2 * 128 + 9 * 128 * 32
            size += 32
    return total + 2 * size + size * outputs + outputs


@pytest.mark.parametrize(
    ("network", "formula", "known"),
    [
        (VGG16, vgg16_count, 14_728_266),
        (ResNet18, resnet18_count, 11_173_962),
        (DenseNet121, densenet121_count, 6_956_298),
    ],
)
def test_counts_are_the_known_ones(network: type, formula: object, known: int) -> None:
    with torch.device("meta"):
        model = network((3, 32, 32), 10)
    assert num_parameters(model) == known == formula(10)


@pytest.mark.parametrize("network", DEEP)
@pytest.mark.parametrize("shape", [(1, 4, 4), (1, 8, 8), (1, 28, 28), (3, 32, 32)])
@pytest.mark.parametrize("width", [1 / 64, 1 / 16, 1 / 8])
def test_forward_shapes(network: type, shape: tuple[int, ...], width: float) -> None:
    assert network(shape, 7, width=width)(torch.zeros(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize("network", DEEP)
@settings(max_examples=12, deadline=None)
@given(st.integers(1, 4), st.integers(4, 40), st.integers(4, 40), st.integers(1, 12))
def test_every_image_fits(network: type, channels: int, height: int, width: int, outputs: int) -> None:
    model = network((channels, height, width), outputs, width=1 / 32).eval()
    with torch.no_grad():
        assert model(torch.randn(1, channels, height, width)).shape == (1, outputs)


@pytest.mark.parametrize("network", DEEP)
def test_width_scales_every_layer(network: type) -> None:
    with torch.device("meta"):
        half, full = network((3, 32, 32), 10, width=0.5), network((3, 32, 32), 10)
    for (name, small), (other, large) in zip(half.named_parameters(), full.named_parameters(), strict=True):
        assert name == other
        first, last = name.startswith("features.0."), name.startswith("head.")
        fewer_out = 1 if last else 2
        fewer_in = 1 if first or small.dim() == 1 else 2
        assert large.numel() == small.numel() * fewer_out * fewer_in


@pytest.mark.parametrize("network", DEEP)
def test_gradients_reach_every_weight_but_biases_under_a_norm(network: type) -> None:
    with seeded(0):
        model = network((1, 8, 8), 3, width=1 / 8)
        (model(torch.randn(16, 1, 8, 8)) @ torch.randn(3)).square().sum().backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None
        if weight.dim() > 1:
            assert weight.grad.abs().max() > 0, name


@pytest.mark.parametrize("network", DEEP)
def test_in_evaluation_samples_do_not_see_each_other(network: type) -> None:
    with seeded(1):
        model, x = network((1, 8, 8), 3, width=1 / 16), torch.randn(4, 1, 8, 8)
    with evaluation_mode(model):
        alone = torch.cat([model(row[None]) for row in x])
        assert torch.allclose(model(x), alone, atol=1e-5)


@pytest.mark.parametrize(("network", "side"), [(VGG16, 1), (ResNet18, 4), (DenseNet121, 4)])
def test_map_before_the_global_pool(network: type, side: int) -> None:
    model = network((3, 32, 32), 10, width=1 / 32)
    assert model.features(torch.zeros(2, 3, 32, 32)).shape[2:] == (side, side)


@pytest.mark.parametrize("network", DEEP)
def test_convolutions_start_as_kaiming_says(network: type) -> None:
    with seeded(0):
        model = network((3, 32, 32), 10, width=0.5)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d) and layer.weight.numel() > 5_000:
            fan_out = layer.out_channels * math.prod(layer.kernel_size)
            assert layer.weight.std().item() == pytest.approx(math.sqrt(2 / fan_out), rel=0.1)


@pytest.mark.parametrize("network", DEEP)
def test_wrong_shapes_and_widths_are_refused(network: type) -> None:
    with pytest.raises(MismatchError, match="reads images"):
        network((30,), 2)
    with pytest.raises(MismatchError, match="4x4 pixels or more"):
        network((1, 3, 3), 2)
    with pytest.raises(OptionError, match="width"):
        network((1, 8, 8), 2, width=0.0)
