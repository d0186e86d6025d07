r"""Supernet of chains: every layer is the sum of all its blocks, weighted by the architecture.

$$x_{l+1} = \sum_o \frac{e^{\alpha_{lo}}}{\sum_{o'} e^{\alpha_{lo'}}}\, o(x_l)$$

A skipped block is the identity; where width or stride change it is the 1x1 convolution of `ChainNetwork`. With partial
channels, the blocks of layers that keep width and stride use the first 1/K of the channels, the others are copied, and
all are shuffled.

Notation: N samples, C channels of a layer, L layers, O blocks of a layer, K the inverse of the fraction of channels in
the blocks, s stride.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from nearkin.core.errors import MismatchError, require
from nearkin.search.genotypes.genotype import Chain, Genotype
from nearkin.search.networks.chains import (
    MIX,
    Bottleneck,
    bottleneck,
    chain_stem,
    stage_strides,
    stage_widths,
    step_module,
)
from nearkin.search.networks.operations import convolution
from nearkin.search.supernet.chain_layout import CHAIN, ChainLayout
from nearkin.search.supernet.choice_layout import Architecture
from nearkin.search.supernet.reference import AnySupernet, Frame, MapShape, PooledLinear, shuffle_channels


class MixedBlocks(nn.Module):
    """All blocks of one layer.

    Args:
        blocks: the blocks, None for a skipped one.
        columns: column of α of each block.
        width: channels of the input.
        out: channels of the output.
        stride: s.
        frame: fraction of the channels in the blocks, and whether channels are shuffled.
    """

    def __init__(
        self, blocks: Sequence[Bottleneck | None], columns: Sequence[int], width: int, out: int, stride: int,
        frame: Frame,
    ) -> None:  # fmt: skip
        super().__init__()
        keeps = (width, stride) == (out, 1)
        self.split, self.shuffle, self.stride, self.columns = (
            frame.split if keeps else 1,
            frame.shuffle,
            stride,
            columns,
        )
        self.width = width // self.split
        modules = [
            nn.Identity() if block is None and keeps else step_module(block, self.width, out // self.split, stride)
            for block in blocks
        ]
        self.blocks = cast(Sequence[nn.Module], nn.ModuleList(modules))

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        """`[N, C, H, W]` and `[O]` to `[N, C', ⌈H/s⌉, ⌈W/s⌉]`."""
        through = x[:, : self.width]
        mixed: Tensor = sum(weights[c] * block(through) for c, block in zip(self.columns, self.blocks, strict=True))
        return self._merged(x, mixed)

    def single(self, x: Tensor, number: int) -> Tensor:
        """Output of one block with weight 1."""
        return self._merged(x, self.blocks[number](x[:, : self.width]))

    def _merged(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Join the output of the blocks with the other channels."""
        if self.split == 1:
            return mixed
        whole = torch.cat([mixed, x[:, self.width :]], 1)
        return shuffle_channels(whole, self.split) if self.shuffle else whole


class ChainSupernet(AnySupernet):
    """Stem, layers, a 1x1 convolution and a head; `forward` takes architecture weights, or the chain of one path.

    With all channels, the path of a chain computes the same as a `ChainNetwork` with the same weights. The number of
    cells of the frame has no meaning here: the stages of the space are the depth.

    >>> from nearkin.search.spaces.mobile import MobileSpace
    >>> layout = ChainLayout.of(MobileSpace((1, 2)))
    >>> net = ChainSupernet(layout, (1, 8, 8), 10, Frame(channels=4))
    >>> architecture, x = layout.initial(torch.Generator()), torch.ones(2, 1, 8, 8)
    >>> net(x, architecture).shape, net(x, layout.path(architecture, torch.Generator())).shape
    (torch.Size([2, 10]), torch.Size([2, 10]))
    """

    layout: ChainLayout

    def __init__(self, layout: ChainLayout, input_shape: Sequence[int], num_outputs: int, frame: Frame) -> None:
        super().__init__(layout, frame)
        require(len(input_shape) == 3, f"a supernet reads images (C, H, W), got inputs of shape {tuple(input_shape)}")
        channels, *sides = input_shape
        height, width = (-(-side // frame.stem_stride) for side in sides)
        widths = stage_widths(frame.channels, len(layout.stages))
        strides = stage_strides((height, width), len(layout.stages))
        uneven = [count for count in widths if count % frame.split]
        require(
            not uneven,
            f"channel_fraction must be 1/K with K a divisor of the channels of all stages, {widths}, got "
            f"{frame.channel_fraction}; use 1, 1/2 or 1/4, or other channels",
        )
        self.stem = chain_stem(channels, widths[0], frame.stem_stride)
        self.layers = cast(Sequence[MixedBlocks], nn.ModuleList(_mixed_layers(layout, widths, strides, frame)))
        self.final = nn.Sequential(*convolution(widths[-1], MIX * widths[-1], 1), nn.ReLU6())
        self.head = PooledLinear(MIX * widths[-1], num_outputs)
        self._shapes = _map_shapes(widths, strides)

    @property
    def map_shapes(self) -> tuple[MapShape, ...]:
        """Shapes of the feature maps that `maps` returns."""
        return self._shapes

    def maps(self, x: Tensor, architecture: Architecture | Genotype) -> list[Tensor]:
        """The last feature map of every resolution, finest first."""
        state, outputs = self.stem(x), []
        if isinstance(architecture, Genotype):
            require(
                isinstance(architecture, Chain),
                f"the supernet has chains, got a genotype of type {type(architecture).__name__}; use one of its space",
                MismatchError,
            )
            chosen = self.layout.chosen(cast(Chain, architecture))
        else:
            shares, _ = self.layout.weights(architecture)[CHAIN]
        for number, layer in enumerate(self.layers):
            if number > 0 and layer.stride > 1:
                outputs.append(state)
            if isinstance(architecture, Genotype):
                state = layer.single(state, chosen[number])
            else:
                state = layer(state, shares[number])
        return [*outputs, self.final(state)]


def _mixed_layers(
    layout: ChainLayout, widths: Sequence[int], strides: Sequence[int], frame: Frame
) -> list[MixedBlocks]:
    positions = [(stage, place) for stage, count in enumerate(layout.stages) for place in range(count)]
    layers, width = [], widths[0]
    for choices, (stage, place) in zip(layout.choices, positions, strict=True):
        columns = [layout.blocks.index(block) for block in choices]
        stride = strides[stage] if place == 0 else 1
        layers.append(MixedBlocks([*map(bottleneck, choices)], columns, width, widths[stage], stride, frame))
        width = widths[stage]
    return layers


def _map_shapes(widths: Sequence[int], strides: Sequence[int]) -> tuple[MapShape, ...]:
    shapes: dict[int, int] = {}
    reduction = 1
    for width, stride in zip(widths, strides, strict=True):
        reduction *= stride
        shapes[reduction] = width
    shapes[reduction] *= MIX
    return tuple(MapShape(channels, reduction) for reduction, channels in shapes.items())
