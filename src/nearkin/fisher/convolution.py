"""Convolutions: squares of per-sample weight gradients, and the gradients themselves.

A weight gradient is a convolution of the layer's input with the gradient at its output. Three ways to have one a
sample: call for it sample by sample; let samples be groups of one grouped convolution; or unfold the input to the
patches that each filter saw and contract them with the gradients. Which is fastest depends on channels and
map.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearkin.fisher.contraction import SMALL_FLOATS, contracted_squares

Convolution: TypeAlias = nn.Conv1d | nn.Conv2d | nn.Conv3d
Way: TypeAlias = Callable[[Convolution, Tensor, Tensor, Sequence[int], Tensor], None]
"""(layer, x, g, padding, into) adds the squares to `into`, whose shape is that of the weight that was meant."""

GROUPED_FLOATS = 1 << 17  # of per-sample gradients held at once; torch holds four times as much beside them
UNFOLDED_FLOATS = 1 << 19
BACKWARD = torch.ops.aten.convolution_backward.default
WEIGHT_ONLY = [False, True, False]
FEW_POSITIONS = 16  # up to which patches are cheap to unfold, and grouped convolutions collapse


def convolution_squares(layer: Convolution, x: Tensor, gradients: Sequence[Tensor], into: Tensor) -> None:
    """Add the squared weight gradients of every sample to `into`, in the shape of the weight.

    Several gradients at one input go through one call, as if the layer had so many times its filters: the input is
    read and unfolded once.

    Args:
        layer: the convolution.
        x: what it read, `[B, I, …]`.
        gradients: K of them at what it gave, each `[B, O, …]`.
        into: `[O, I / groups, …]`.
    """
    x, padding = padded(layer, x)
    if len(gradients) == 1 or layer.groups > 1:
        for g in gradients:
            _add_squares(layer, x, g, padding, into)
        return
    wide = into.new_zeros(len(gradients), *into.shape)
    _add_squares(layer, x, torch.stack(list(gradients), 1).flatten(1, 2), padding, wide.flatten(0, 1))
    into += wide.sum(0)


def _add_squares(layer: Convolution, x: Tensor, g: Tensor, padding: Sequence[int], into: Tensor) -> None:
    """The same of one gradient by the way that suits the shapes, which are those of `into`."""
    if layer.groups == 1 and math.prod(layer.kernel_size) == 1 and set(layer.stride) == {1} and not any(padding):
        contracted_squares(g.flatten(2), x.flatten(2).transpose(1, 2), into.flatten(1))
        return
    _suited(layer, g[0, 0].numel(), into.numel())(layer, x, g, padding, into)


def _suited(layer: Convolution, positions: int, weights: int) -> Way:
    """The way that measured fastest for such a map and weight; the same everywhere, for the same bits."""
    if layer.groups == 1 and isinstance(layer, nn.Conv2d) and positions <= FEW_POSITIONS:
        return _by_patch
    return _by_group if weights <= SMALL_FLOATS and positions > FEW_POSITIONS else _by_sample


def convolution_gradients(layer: Convolution | nn.ConvTranspose2d, x: Tensor, g: Tensor) -> Tensor:
    """Weight gradient of every sample, `[B, *weight.shape]`."""
    if isinstance(layer, nn.ConvTranspose2d):
        padding = tuple(int(side) for side in layer.padding)
    else:
        x, padding = padded(layer, x)
    if not isinstance(layer, nn.ConvTranspose2d) and g[0, 0].numel() > FEW_POSITIONS:
        return _grouped(layer, x, g, padding, layer.weight.detach())
    return torch.stack(list(_weight_gradients(layer, x, g, padding, layer.weight.detach())))


def padded(layer: Convolution, x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """The input with any padding but plain zeros carried out, and the zeros that are left to pad."""
    if layer.padding_mode == "zeros" and not isinstance(layer.padding, str):
        return x, tuple(layer.padding)
    around = list(layer._reversed_padding_repeated_twice)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return F.pad(x, around, mode=mode), (0,) * (x.dim() - 2)


def _weight_gradients(
    layer: Convolution | nn.ConvTranspose2d, x: Tensor, g: Tensor, padding: Sequence[int], weight: Tensor
) -> Iterator[Tensor]:
    """Weight gradients as torch computes them, one sample after another; of the weight the shape alone matters."""
    transposed = isinstance(layer, nn.ConvTranspose2d)
    extra = list(layer.output_padding) if transposed else [0] * (x.dim() - 2)
    stride, around, dilation, groups = list(layer.stride), list(padding), list(layer.dilation), layer.groups
    for one, gradient in zip(x.split(1), g.split(1), strict=True):  # called often: nothing is prepared inside
        found = BACKWARD(gradient, one, weight, None, stride, around, dilation, transposed, extra, groups, WEIGHT_ONLY)
        yield found[1]


def _grouped(layer: Convolution, x: Tensor, g: Tensor, padding: Sequence[int], weight: Tensor) -> Tensor:
    """Weight gradients `[B, *weight.shape]` of samples that are groups of one convolution."""
    size = len(x)
    wide = weight.expand(size, *weight.shape).flatten(0, 1)
    one_x, one_g = x.reshape(1, -1, *x.shape[2:]), g.reshape(1, -1, *g.shape[2:])
    stride, around, dilation, extra = list(layer.stride), list(padding), list(layer.dilation), [0] * (x.dim() - 2)
    groups = size * layer.groups
    found = BACKWARD(one_g, one_x, wide, None, stride, around, dilation, False, extra, groups, WEIGHT_ONLY)
    gradient: Tensor = found[1]
    return gradient.view(size, *weight.shape)


def _by_sample(layer: Convolution, x: Tensor, g: Tensor, padding: Sequence[int], into: Tensor) -> None:
    for gradient in _weight_gradients(layer, x, g, padding, into):
        into.addcmul_(gradient, gradient)


def _by_group(layer: Convolution, x: Tensor, g: Tensor, padding: Sequence[int], into: Tensor) -> None:
    size = max(1, GROUPED_FLOATS // into.numel())
    for start in range(0, len(x), size):
        into += _grouped(layer, x[start : start + size], g[start : start + size], padding, into).square_().sum(0)


def _by_patch(layer: Convolution, x: Tensor, g: Tensor, padding: Sequence[int], into: Tensor) -> None:
    positions = g[0, 0].numel()
    size = max(1, UNFOLDED_FLOATS // (positions * into[0].numel()))
    for start in range(0, len(x), size):
        patches = F.unfold(x[start : start + size], layer.kernel_size, layer.dilation, tuple(padding), layer.stride)
        contracted_squares(g[start : start + size].flatten(2), patches.transpose(1, 2), into.flatten(1))
