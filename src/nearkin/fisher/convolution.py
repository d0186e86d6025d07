"""Convolutions: squares of per-sample weight gradients, and the gradients themselves.

A weight gradient is a convolution of the layer's input with the gradient at its output. Three ways to have one a
sample: call for it sample by sample; let samples be groups of one grouped convolution; or unfold the input to the
patches that each filter saw and contract them with the gradients. Which is fastest depends on channels and map; it is
timed, once a shape.
"""

import math
from collections.abc import Sequence
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearkin.fisher.contraction import contracted_squares, fastest

Convolution: TypeAlias = nn.Conv1d | nn.Conv2d | nn.Conv3d
GROUPED_FLOATS = 1 << 21  # of per-sample gradients held at once
UNFOLDED_FLOATS = 1 << 21
LEAST_GROUPED_MAP = 49  # positions below which grouped convolutions collapse


def convolution_squares(layer: Convolution, x: Tensor, g: Tensor, into: Tensor) -> None:
    """Add the squared weight gradients of every sample to `into`, in the shape of the weight.

    Args:
        layer: the convolution.
        x: what it read, `[B, I, …]`.
        g: gradient at what it gave, `[B, O, …]`.
        into: `[O, I / groups, …]`.
    """
    x, padding = padded(layer, x)
    positions = g[0, 0].numel()
    if layer.groups == 1 and math.prod(layer.kernel_size) == 1 and set(layer.stride) == {1} and not any(padding):
        contracted_squares(g.flatten(2), x.flatten(2).transpose(1, 2), into.flatten(1))
        return
    ways = [_by_sample]
    if positions >= LEAST_GROUPED_MAP:
        ways.append(_by_group)
    if layer.groups == 1 and x.dim() == 4:
        ways.append(_by_patch)
    shape = (tuple(layer.weight.shape), layer.stride, padding, layer.dilation, layer.groups)
    key = ("convolution", *shape, tuple(x.shape[2:]), x.dtype)
    way = fastest(
        key, ways, lambda way, count, scratch: way(layer, x[:count], g[:count], padding, scratch), into, len(x)
    )
    way(layer, x, g, padding, into)


def convolution_gradients(layer: Convolution | nn.ConvTranspose2d, x: Tensor, g: Tensor) -> Tensor:
    """Weight gradient of every sample, `[B, *weight.shape]`."""
    if isinstance(layer, nn.ConvTranspose2d):
        padding = tuple(int(side) for side in layer.padding)
    else:
        x, padding = padded(layer, x)
    if not isinstance(layer, nn.ConvTranspose2d) and g[0, 0].numel() >= LEAST_GROUPED_MAP:
        return _grouped(layer, x, g, padding)
    return torch.stack([_weight_gradient(layer, x[b : b + 1], g[b : b + 1], padding) for b in range(len(x))])


def padded(layer: Convolution, x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """The input with any padding but plain zeros carried out, and the zeros that are left to pad."""
    if layer.padding_mode == "zeros" and not isinstance(layer.padding, str):
        return x, tuple(layer.padding)
    around = list(layer._reversed_padding_repeated_twice)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return F.pad(x, around, mode=mode), (0,) * (x.dim() - 2)


def _weight_gradient(
    layer: Convolution | nn.ConvTranspose2d, x: Tensor, g: Tensor, padding: Sequence[int], groups: int | None = None
) -> Tensor:
    """Weight gradient of a batch as torch computes it; `groups` widens the weight to that many groups."""
    weight, transposed = layer.weight.detach(), isinstance(layer, nn.ConvTranspose2d)
    if groups is not None:
        weight = weight.expand(groups // layer.groups, *weight.shape).flatten(0, 1)
    extra = list(layer.output_padding) if transposed else [0] * (x.dim() - 2)
    _, gradient, _ = torch.ops.aten.convolution_backward(
        g, x, weight, None, layer.stride, list(padding), layer.dilation, transposed, extra, groups or layer.groups,
        [False, True, False],
    )  # fmt: skip
    result: Tensor = gradient
    return result


def _grouped(layer: Convolution, x: Tensor, g: Tensor, padding: Sequence[int]) -> Tensor:
    """Weight gradients `[B, *weight.shape]` of samples that are groups of one convolution."""
    size = len(x)
    one_x, one_g = x.reshape(1, -1, *x.shape[2:]), g.reshape(1, -1, *g.shape[2:])
    gradient = _weight_gradient(layer, one_x, one_g, padding, groups=size * layer.groups)
    return gradient.view(size, *layer.weight.shape)


def _by_sample(layer: Convolution, x: Tensor, g: Tensor, padding: Sequence[int], into: Tensor) -> None:
    for b in range(len(x)):
        gradient = _weight_gradient(layer, x[b : b + 1], g[b : b + 1], padding)
        into.addcmul_(gradient, gradient)


def _by_group(layer: Convolution, x: Tensor, g: Tensor, padding: Sequence[int], into: Tensor) -> None:
    size = max(1, GROUPED_FLOATS // layer.weight.numel())
    for start in range(0, len(x), size):
        into += _grouped(layer, x[start : start + size], g[start : start + size], padding).square_().sum(0)


def _by_patch(layer: Convolution, x: Tensor, g: Tensor, padding: Sequence[int], into: Tensor) -> None:
    positions = g[0, 0].numel()
    size = max(1, UNFOLDED_FLOATS // (positions * into[0].numel()))
    for start in range(0, len(x), size):
        patches = F.unfold(x[start : start + size], layer.kernel_size, layer.dilation, tuple(padding), layer.stride)
        contracted_squares(g[start : start + size].flatten(2), patches.transpose(1, 2), into.flatten(1))
