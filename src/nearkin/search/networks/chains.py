"""Chains of inverted bottlenecks as networks for small images and large.

Notation: N samples, C channels, K outputs.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from nearkin.core.errors import MismatchError, OptionError, require
from nearkin.search.genotypes.block import Block
from nearkin.search.genotypes.genotype import SKIP, Chain
from nearkin.search.networks.operations import convolution

BLOCK = "mbconv"
WIDTHS = (24, 40, 80, 96, 192, 320)  # of the stages of MobileNet's kin, and how each begins
STRIDES = (2, 2, 2, 1, 2, 1)
MIX = 4  # channels that the head reads, in units of the last stage
MULTIPLE = 4  # of which widths are made
SMALLEST_SIDE = 4  # of a map; what is smaller is halved no further


class Bottleneck(NamedTuple):
    """An inverted bottleneck: side of its depthwise convolution, and ratio of its inner to its outer width."""

    kernel: int
    expansion: int


class ChainStep(NamedTuple):
    """One block in its place; without a bottleneck, a mere change of width or sides."""

    block: Bottleneck | None
    width: int
    out: int
    stride: int


def steps(
    blocks: Sequence[Bottleneck | None],
    stages: Sequence[int],
    widths: Sequence[int],
    strides: Sequence[int],
    width: int,
) -> Iterator[ChainStep]:
    """The blocks from first to last, in stages that begin with a stride and have a width each; skips are left out."""
    places = [(stage, place) for stage, count in enumerate(stages) for place in range(count)]
    for block, (stage, place) in zip(blocks, places, strict=True):
        step = ChainStep(block, width, widths[stage], strides[stage] if place == 0 else 1)
        if block is not None or (step.width, step.stride) != (step.out, 1):
            yield step
        width = step.out


class BottleneckModule(nn.Module):
    """1x1 convolution to the inner width, depthwise one, 1x1 convolution back; the input is added where it fits."""

    def __init__(self, block: Bottleneck, width: int, out: int, stride: int) -> None:
        super().__init__()
        inner = block.expansion * width
        layers: list[nn.Module] = []
        if inner != width:
            layers += [*convolution(width, inner, 1), nn.ReLU6()]
        layers += [*convolution(inner, inner, block.kernel, stride, groups=inner), nn.ReLU6()]
        self.body = nn.Sequential(*layers, *convolution(inner, out, 1))
        self.residual = stride == 1 and width == out

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W]` to `[N, C', ⌈H/s⌉, ⌈W/s⌉]`."""
        outputs: Tensor = self.body(x)
        return x + outputs if self.residual else outputs


def step_module(block: Bottleneck | None, width: int, out: int, stride: int) -> nn.Module:
    """The module of a step; a stage that opens without a block begins with a 1x1 convolution."""
    if block is None:
        return nn.Sequential(*convolution(width, out, 1, stride))
    return BottleneckModule(block, width, out, stride)


def chain_stem(channels: int, out: int, stride: int) -> nn.Sequential:
    """3x3 convolutions, one for every factor 2 of the stride and at least one."""
    layers = [*convolution(channels, out, 3, min(stride, 2)), nn.ReLU6()]
    while stride > 2:
        stride //= 2
        layers += [*convolution(out, out, 3, 2), nn.ReLU6()]
    return nn.Sequential(*layers)


class ChainNetwork(nn.Module):
    """Stem, blocks in stages, a 1x1 convolution, mean over the map, linear head: `[N, C, H, W]` to `[N, K]`.

    Args:
        blocks: all blocks in a row, None for one that is skipped.
        stages: the number of blocks in each stage.
        widths: channels of each stage.
        strides: of the first block of each stage.
        in_channels: C.
        num_outputs: K.
        stem_stride: how much smaller the stem makes the image.
        dropout: share of features left out in front of the head.
    """

    def __init__(
        self, blocks: Sequence[Bottleneck | None], stages: Sequence[int], widths: Sequence[int], strides: Sequence[int],
        in_channels: int, num_outputs: int, *, stem_stride: int = 1, dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.stem = chain_stem(in_channels, widths[0], stem_stride)
        self.blocks = nn.Sequential(*(step_module(*step) for step in steps(blocks, stages, widths, strides, widths[0])))
        self.mix = nn.Sequential(*convolution(widths[-1], MIX * widths[-1], 1), nn.ReLU6())
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(MIX * widths[-1], num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W]` to `[N, K]`."""
        x = self.mix(self.blocks(self.stem(x))).mean((2, 3))
        outputs: Tensor = self.head(self.dropout(x))
        return outputs


def stage_widths(channels: int, count: int) -> tuple[int, ...]:
    """Channels of each stage in the proportions of MobileNet's kin, multiples of 4; further stages as the last.

    >>> stage_widths(24, 6), stage_widths(16, 3)
    ((24, 40, 80, 96, 192, 320), (16, 28, 52))
    """
    ratios = [WIDTHS[min(stage, len(WIDTHS) - 1)] / WIDTHS[0] for stage in range(count)]
    return (channels, *(MULTIPLE * round(channels * ratio / MULTIPLE) for ratio in ratios[1:]))


def stage_strides(sides: tuple[int, int], count: int) -> tuple[int, ...]:
    """Strides of MobileNet's kin, as long as they leave maps of 4 pixels or more.

    >>> stage_strides((112, 112), 6), stage_strides((28, 28), 6)
    ((2, 2, 2, 1, 2, 1), (2, 2, 2, 1, 1, 1))
    """
    found, side = [], min(sides)
    for stage in range(count):
        wanted = STRIDES[stage] if stage < len(STRIDES) else 1
        stride = wanted if (side + wanted - 1) // wanted >= SMALLEST_SIDE else 1
        side = (side + stride - 1) // stride
        found.append(stride)
    return tuple(found)


def chain_options(
    genotype: Chain, input_shape: tuple[int, ...], num_outputs: int, *, channels: int, stages: tuple[int, ...],
    stem_stride: int, dropout: float,
) -> dict[str, Any]:  # fmt: skip
    """Options of `ChainNetwork`."""
    require(
        sum(stages) == len(genotype.blocks),
        f"the chain has {len(genotype.blocks)} blocks, the skeleton's stages {stages} have {sum(stages)}; "
        f"give the skeleton the stages of the chain's space",
        MismatchError,
    )
    _, height, width = input_shape
    sides = (-(-height // stem_stride), -(-width // stem_stride))
    return {
        "blocks": tuple(map(bottleneck, genotype.blocks)),
        "stages": stages,
        "widths": stage_widths(channels, len(stages)),
        "strides": stage_strides(sides, len(stages)),
        "in_channels": input_shape[0],
        "num_outputs": num_outputs,
        "stem_stride": stem_stride,
        "dropout": dropout,
    }


def bottleneck(block: Block) -> Bottleneck | None:
    """The block as plain numbers; None where it is skipped.

    >>> bottleneck(Block("mbconv", {"kernel": 5, "expansion": 3})), bottleneck(Block("skip"))
    (Bottleneck(kernel=5, expansion=3), None)
    """
    if block.name == SKIP:
        return None
    if block.name != BLOCK:
        raise OptionError(f"there is no block {block.name!r}; a chain has {BLOCK}(expansion=…, kernel=…) and {SKIP}")
    kernel, expansion = block["kernel"], block["expansion"]
    require(
        isinstance(kernel, int) and isinstance(expansion, int) and kernel % 2 == 1 and min(kernel, expansion) >= 1,
        f"{block}: a kernel is an odd number and an expansion a whole one, both from 1 on; correct the block",
    )
    return Bottleneck(int(kernel), int(expansion))
