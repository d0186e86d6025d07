"""Per-sample weight gradients of convolutions, and the sums of their squares.

A weight gradient is a convolution of the layer's input with the gradient at its output. Three methods compute one per
sample: sample by sample; with samples as groups of one grouped convolution; or by unfolding the input to the patches
that each filter reads and contracting them with the gradients. Which is fastest depends on channels and map size.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearkin.fisher.contraction import SMALL_FLOATS, contracted_squares

Convolution: TypeAlias = nn.Conv1d | nn.Conv2d | nn.Conv3d
SquaresMethod: TypeAlias = Callable[[Convolution, Tensor, Tensor, Sequence[int], Tensor], None]
"""(layer, x, g, padding, into) adds the squares to `into`, which has the shape of the weight."""

GROUPED_FLOATS = 1 << 17  # values of per-sample gradients in memory at once; torch needs four times as much in addition
UNFOLDED_FLOATS = 1 << 19
BACKWARD = torch.ops.aten.convolution_backward.default
WEIGHT_ONLY = [False, True, False]
FEW_POSITIONS = 16  # number of positions up to which patches are cheap to unfold and grouped convolutions are slow


def convolution_squares(layer: Convolution, x: Tensor, gradients: Sequence[Tensor], into: Tensor) -> None:
    """Add the squared weight gradients of every sample to `into`, in the shape of the weight.

    K gradients at one input are computed in one call, as if the layer had K times as many filters: the input is read
    and unfolded once.

    Args:
        layer: the convolution.
        x: its input, `[B, I, …]`.
        gradients: K gradients at its output, each `[B, O, …]`.
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
    """The same for one gradient, by the fastest method for the shapes."""
    if layer.groups == 1 and math.prod(layer.kernel_size) == 1 and set(layer.stride) == {1} and not any(padding):
        contracted_squares(g.flatten(2), x.flatten(2).transpose(1, 2), into.flatten(1))
        return
    _fastest_method(layer, g[0, 0].numel(), into.numel())(layer, x, g, padding, into)


def _fastest_method(layer: Convolution, positions: int, weights: int) -> SquaresMethod:
    """The method that was measured to be the fastest; the choice is the same on every machine, so that results are."""
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
    """The input with padding applied, unless it is plain zeros, and the number of zeros that are left to pad."""
    if layer.padding_mode == "zeros" and not isinstance(layer.padding, str):
        return x, tuple(layer.padding)
    around = list(layer._reversed_padding_repeated_twice)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return F.pad(x, around, mode=mode), (0,) * (x.dim() - 2)


def _weight_gradients(
    layer: Convolution | nn.ConvTranspose2d, x: Tensor, g: Tensor, padding: Sequence[int], weight: Tensor
) -> Iterator[Tensor]:
    """Weight gradients as torch computes them, sample by sample; only the shape of the weight is used."""
    transposed = isinstance(layer, nn.ConvTranspose2d)
    extra = list(layer.output_padding) if transposed else [0] * (x.dim() - 2)
    stride, around, dilation, groups = list(layer.stride), list(padding), list(layer.dilation), layer.groups
    rest = (stride, around, dilation, transposed, extra, groups, WEIGHT_ONLY)
    for sample, gradient in zip(x.split(1), g.split(1), strict=True):  # called often: nothing is prepared inside
        yield BACKWARD(gradient, sample, weight, None, *rest)[1]


def _grouped(layer: Convolution, x: Tensor, g: Tensor, padding: Sequence[int], weight: Tensor) -> Tensor:
    """Weight gradients `[B, *weight.shape]`, with the samples as groups of one convolution."""
    size = len(x)
    wide = weight.expand(size, *weight.shape).flatten(0, 1)
    joint_x, joint_g = x.reshape(1, -1, *x.shape[2:]), g.reshape(1, -1, *g.shape[2:])
    stride, around, dilation, extra = list(layer.stride), list(padding), list(layer.dilation), [0] * (x.dim() - 2)
    rest = (stride, around, dilation, False, extra, size * layer.groups, WEIGHT_ONLY)
    gradient: Tensor = BACKWARD(joint_g, joint_x, wide, None, *rest)[1]
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
