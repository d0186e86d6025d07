"""Networks of chains of inverted bottlenecks.

Notation: N samples, C channels, K outputs.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from torch import Tensor, nn

from nearkin.core.errors import MismatchError, OptionError, require
from nearkin.search.genotypes.block import Block
from nearkin.search.genotypes.genotype import SKIP, Chain
from nearkin.search.networks.cells import last_of_each_size
from nearkin.search.networks.depthwise import DepthwiseConvolution
from nearkin.search.networks.operations import convolution

BLOCK = "mbconv"
WIDTHS = (24, 40, 80, 96, 192, 320)  # channels and first strides of the stages of MobileNet-like networks
STRIDES = (2, 2, 2, 1, 2, 1)
MIX = 4  # ratio of the channels in front of the head to those of the last stage
MULTIPLE = 4  # all widths are multiples of it
SMALLEST_SIDE = 4  # smallest side of a feature map after a stride of 2


class Bottleneck(NamedTuple):
    """An inverted bottleneck: kernel size of its depthwise convolution, and ratio of inner to outer width."""

    kernel: int
    expansion: int


class ChainStep(NamedTuple):
    """A block with its widths and stride; without a bottleneck, only a change of width or stride."""

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
    """Blocks from first to last without skips; each stage has a width, and its first block has a stride."""
    positions = [(stage, position) for stage, count in enumerate(stages) for position in range(count)]
    for block, (stage, position) in zip(blocks, positions, strict=True):
        step = ChainStep(block, width, widths[stage], strides[stage] if position == 0 else 1)
        if block is not None or (step.width, step.stride) != (step.out, 1):
            yield step
        width = step.out


class BottleneckModule(nn.Module):
    """1x1, depthwise and 1x1 convolutions with a wider inside; the input is added if the shapes agree."""

    def __init__(self, block: Bottleneck, width: int, out: int, stride: int) -> None:
        super().__init__()
        inner = block.expansion * width
        layers: list[nn.Module] = []
        if inner != width:
            layers += [*convolution(width, inner, 1), nn.ReLU6()]
        layers += [DepthwiseConvolution(inner, block.kernel, stride), nn.BatchNorm2d(inner), nn.ReLU6()]
        self.body = nn.Sequential(*layers, *convolution(inner, out, 1))
        self.residual = stride == 1 and width == out

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W]` to `[N, C', ⌈H/s⌉, ⌈W/s⌉]`."""
        outputs: Tensor = self.body(x)
        return x + outputs if self.residual else outputs


def step_module(block: Bottleneck | None, width: int, out: int, stride: int) -> nn.Module:
    """Module of a step; a skipped first block of a stage is replaced by a 1x1 convolution."""
    if block is None:
        return nn.Sequential(*convolution(width, out, 1, stride))
    return BottleneckModule(block, width, out, stride)


def chain_stem(channels: int, out: int, stride: int) -> nn.Sequential:
    """3x3 convolutions: one for every factor 2 of the stride, at least one."""
    layers = [*convolution(channels, out, 3, min(stride, 2)), nn.ReLU6()]
    while stride > 2:
        stride //= 2
        layers += [*convolution(out, out, 3, 2), nn.ReLU6()]
    return nn.Sequential(*layers)


class ChainNetwork(nn.Module):
    """Stem, blocks in stages, a 1x1 convolution, mean over the map, linear head: `[N, C, H, W]` to `[N, K]`.

    Args:
        blocks: all blocks in order, None for a skipped one.
        stages: number of blocks in each stage.
        widths: channels of each stage.
        strides: stride of the first block of each stage.
        in_channels: C.
        num_outputs: K.
        stem_stride: factor by which the stem reduces height and width.
        dropout: dropout rate in front of the head.
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

    def maps(self, x: Tensor) -> list[Tensor]:
        """The last feature map of every resolution, finest first; that of the 1x1 convolution is the last one."""
        maps = last_of_each_size(accumulate(self.blocks, lambda state, block: block(state), initial=self.stem(x)))
        return [*maps[:-1], self.mix(maps[-1])]

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W]` to `[N, K]`."""
        x = self.mix(self.blocks(self.stem(x))).mean((2, 3))
        outputs: Tensor = self.head(self.dropout(x))
        return outputs


def stage_widths(channels: int, count: int) -> tuple[int, ...]:
    """Channels of each stage in the proportions of MobileNet, as multiples of 4; further stages are like the last.

    >>> stage_widths(24, 6), stage_widths(16, 3)
    ((24, 40, 80, 96, 192, 320), (16, 28, 52))
    """
    ratios = [WIDTHS[min(stage, len(WIDTHS) - 1)] / WIDTHS[0] for stage in range(count)]
    return (channels, *(MULTIPLE * round(channels * ratio / MULTIPLE) for ratio in ratios[1:]))


def stage_strides(sides: tuple[int, int], count: int) -> tuple[int, ...]:
    """Strides of MobileNet, or 1 if a feature map would have fewer than 4 pixels a side.

    >>> stage_strides((112, 112), 6), stage_strides((28, 28), 6)
    ((2, 2, 2, 1, 2, 1), (2, 2, 2, 1, 1, 1))
    """
    strides, side = [], min(sides)
    for stage in range(count):
        usual = STRIDES[stage] if stage < len(STRIDES) else 1
        stride = usual if (side + usual - 1) // usual >= SMALLEST_SIDE else 1
        side = (side + stride - 1) // stride
        strides.append(stride)
    return tuple(strides)


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
    """A block as plain numbers; None for a skipped one.

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
        f"{block}: the kernel must be an odd and the expansion a whole number, both 1 or more; correct the block",
    )
    return Bottleneck(int(kernel), int(expansion))
