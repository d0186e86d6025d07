r"""Convolutions of several edges in one call, on an input that the edges share or on their concatenated inputs.

A depthwise convolution $d$ followed by a 1x1 convolution $p$ is one convolution with the kernel
$k_{oc} = p_{oc}\, d_c$. It needs more multiplications but fewer calls, and stores no intermediate result for the
backward pass; it is faster for few channels (`FEW`). A convolution with dilation 2 and stride 2 reads only every second
pixel: it is a plain convolution of these pixels. With stride 1 it is a plain convolution of the four grids of every
second pixel. A 1x1 convolution with stride 2 also reads every second pixel and is run on these pixels, because with
channels last and fewer than eight channels the backward pass of torch 2.x writes outside its memory there.

Notation: N samples, C channels, E edges.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearkin.search.supernet.fused.fused_convolution import convolution

FEW = 16
"""Largest number of channels for which kernels are multiplied; measured: a step of PC-DARTS takes 0.78 of the time."""


class Filter(NamedTuple):
    """Geometry of one convolution."""

    channels: int
    outputs: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @classmethod
    def of(cls, layer: nn.Conv2d) -> "Filter":
        """Geometry of a layer with numeric padding."""
        assert not isinstance(layer.padding, str)
        return cls(layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, layer.padding,
                   layer.dilation, layer.groups)  # fmt: skip

    @property
    def depthwise(self) -> bool:
        """Whether every channel has its own filter."""
        return self.groups == self.channels == self.outputs > 1

    @property
    def pointwise(self) -> bool:
        """Whether it is a 1x1 convolution of all channels."""
        return self.kernel == self.stride == (1, 1) and self.padding == (0, 0) and self.groups == 1


def run_filter(x: Tensor, weight: Tensor, filter: Filter, groups: int) -> Tensor:
    """Run a filter with another number of groups; a dilation of 2 is run as plain convolutions."""
    stride, padding, dilation = filter.stride, filter.padding, filter.dilation
    if filter.kernel == (1, 1) and padding == (0, 0) and stride == (2, 2):
        return convolution(_every_second(x), weight, (1, 1), padding, dilation, groups)
    half = tuple(side // 2 for side in filter.kernel)
    if dilation != (2, 2) or padding != tuple(2 * side for side in half):
        return convolution(x, weight, stride, padding, dilation, groups)
    if stride == (2, 2):
        return convolution(_every_second(x), weight, (1, 1), half, (1, 1), groups)
    if stride == (1, 1) and groups == x.shape[1]:
        return _merge_grids(convolution(_grids(x), weight, (1, 1), half, (1, 1), groups), x.shape[2], x.shape[3])
    return convolution(x, weight, stride, padding, dilation, groups)


def _every_second(x: Tensor) -> Tensor:
    return x[:, :, ::2, ::2].contiguous(memory_format=torch.channels_last)


def _grids(x: Tensor) -> Tensor:
    """`[N, C, H, W]` to the four grids of every second pixel `[4·N, C, ⌈H/2⌉, ⌈W/2⌉]`."""
    height, width = x.shape[2:]
    if height % 2 or width % 2:
        x = F.pad(x, (0, width % 2, 0, height % 2))
    folded = x.permute(0, 2, 3, 1).unflatten(2, (-1, 2)).unflatten(1, (-1, 2))  # N, h, 2, w, 2, C
    grids: Tensor = folded.permute(2, 4, 0, 1, 3, 5).flatten(0, 2).permute(0, 3, 1, 2)
    return grids


def _merge_grids(x: Tensor, height: int, width: int) -> Tensor:
    """The inverse of `_grids`."""
    folded = x.permute(0, 2, 3, 1).unflatten(0, (2, 2, -1)).permute(2, 3, 0, 4, 1, 5)
    merged: Tensor = folded.flatten(3, 4).flatten(1, 2).permute(0, 3, 1, 2)[:, :, :height, :width]
    return merged


def shared_convolution(x: Tensor, weights: Sequence[Tensor], filters: Sequence[Filter], num_edges: int) -> Tensor:
    """Shared input `[N, C, H, W]` of all edges to `[N, E·outputs, …]`; the weights of the edges are stacked."""
    first, rest = filters[0], filters[1:]
    if first.groups == 1:
        outputs = run_filter(x, weights[0], first, 1)
    elif first.depthwise and rest and rest[0].pointwise and first.channels <= FEW:
        points = weights[1].view(num_edges, -1, first.channels, 1, 1)
        kernel = (points * weights[0].view(num_edges, 1, first.channels, *first.kernel)).flatten(0, 1)
        outputs, rest = run_filter(x, kernel, first, 1), rest[1:]
    else:
        wide = x.repeat(1, num_edges, 1, 1).contiguous(memory_format=torch.channels_last)
        outputs = run_filter(wide, weights[0], first, num_edges * first.groups)
    return separate_convolution(outputs, weights[len(filters) - len(rest) :], rest, num_edges)


def separate_convolution(x: Tensor, weights: Sequence[Tensor], filters: Sequence[Filter], num_edges: int) -> Tensor:
    """Concatenated inputs `[N, E·C, H, W]` of the edges to `[N, E·outputs, …]`."""
    for weight, filter in zip(weights, filters, strict=True):
        x = run_filter(x, weight, filter, num_edges * filter.groups)
    return x
