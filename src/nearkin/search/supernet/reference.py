r"""Reference implementation of the supernet: each edge is a module that runs all its operations and sums them.

$$\bar o_{ij}(x) = \sum_o \frac{e^{\alpha_o}}{\sum_{o'} e^{\alpha_{o'}}}\, o(x), \qquad
  x_j = \sum_{i<j} \beta_{ij}\, \bar o_{ij}(x_i)$$

With partial channels the operations use the first 1/K of the channels, the others are copied, and all are shuffled.
Tests compare `Supernet`, which computes the same numbers faster, with this implementation.

Notation: N samples, C channels of a state, K the inverse of the fraction of channels in the operations, s stride.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn

from nearkin.core.errors import require
from nearkin.search.genotypes.genotype import Cells, Genotype
from nearkin.search.networks.build import stem
from nearkin.search.networks.operations import FactorizedReduction, ResidualReduction, convolution, operation
from nearkin.search.supernet.choice_layout import Architecture, ChoiceLayout
from nearkin.search.supernet.supernet_layout import SupernetLayout

POOLS = (nn.MaxPool2d, nn.AvgPool2d)
STEM_FACTOR = 3  # ratio of the channels of the stem to those of the first cell in DARTS


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Macro-architecture of a supernet.

    Attributes:
        channels: C of the first cells; doubled when height and width are halved, at one and two thirds of the cells.
        num_cells: number of cells.
        channel_fraction: fraction of the channels that operations use, 1/K for an integer K.
        shuffle: whether channels are shuffled after the operations.
        stem_stride: factor by which the stem reduces height and width: 1, 2, 4, ….

    >>> Frame(channel_fraction=0.25).split
    4
    """

    channels: int = 16
    num_cells: int = 8
    channel_fraction: float = 1.0
    shuffle: bool = True
    stem_stride: int = 1

    def __post_init__(self) -> None:
        require(self.num_cells >= 1, f"a supernet has at least one cell, got {self.num_cells}")
        stride = self.stem_stride
        require(stride >= 1 and stride & (stride - 1) == 0, f"stem_stride must be 1, 2, 4, …, got {stride}")
        require(0 < self.channel_fraction <= 1, f"channel_fraction must be in (0, 1], got {self.channel_fraction}")
        require(
            abs(1 / self.channel_fraction - self.split) < 1e-6 and self.channels % self.split == 0,
            f"channel_fraction must be 1/K with K a divisor of {self.channels} channels, got {self.channel_fraction}",
        )

    @property
    def split(self) -> int:
        """K, the inverse of the channel fraction."""
        return round(1 / self.channel_fraction)

    def reduces(self, number: int) -> bool:
        """Whether a cell halves height and width."""
        return number > 0 and number in (self.num_cells // 3, 2 * self.num_cells // 3)


def supernet_operation(name: str, channels: int, stride: int) -> nn.Module:
    """Operation of a supernet: batch norms without weights, and a batch norm after a pool."""
    module = operation(name, channels, stride, affine=False)
    return nn.Sequential(module, nn.BatchNorm2d(channels, affine=False)) if isinstance(module, POOLS) else module


def shuffle_channels(x: Tensor, groups: int) -> Tensor:
    """Channel `g·(C/K) + i` moves to `i·K + g`.

    >>> shuffle_channels(torch.arange(6.0).view(1, 6, 1, 1), 3).flatten().tolist()
    [0.0, 2.0, 4.0, 1.0, 3.0, 5.0]
    """
    moved: Tensor = x.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)
    return moved


class PlainEdge(nn.Module):
    """All operations of one edge."""

    def __init__(self, names: Sequence[str], channels: int, stride: int, frame: Frame) -> None:
        super().__init__()
        self.split, self.shuffle, self.stride = frame.split, frame.shuffle, stride
        self.width = channels // frame.split
        self.operations = nn.ModuleList(supernet_operation(name, self.width, stride) for name in names)
        self.pool = nn.MaxPool2d(2, 2, ceil_mode=True) if stride == 2 else nn.Identity()

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        """`[N, C, H, W]` and `[O]` to `[N, C, ⌈H/s⌉, ⌈W/s⌉]`."""
        through = x[:, : self.width]
        mixed: Tensor = sum(w * op(through) for w, op in zip(weights, self.operations, strict=True))
        return self.merged(x, mixed)

    def single(self, x: Tensor, column: int) -> Tensor:
        """Output of one operation with weight 1."""
        return self.merged(x, self.operations[column](x[:, : self.width]))

    def merged(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Join the output of the operations with the other channels."""
        if self.split == 1:
            return mixed
        whole = torch.cat([mixed, self.pool(x[:, self.width :])], 1)
        return shuffle_channels(whole, self.split) if self.shuffle else whole


class PlainCell(nn.Module):
    """The edges of one cell, with adapters that bring its inputs to its channels."""

    def __init__(self, layout: SupernetLayout, position: "CellPosition", frame: Frame) -> None:
        super().__init__()
        self.layout, self.kind = layout, position.kind
        self.inputs = nn.ModuleList(
            input_adapter(width, halvings, position.channels, layout) for width, halvings in position.inputs
        )
        edges = [
            PlainEdge(layout.operations[position.kind], position.channels, position.stride(source, layout), frame)
            for source, _ in layout.pairs
        ]
        self.edges = cast(Sequence[PlainEdge], nn.ModuleList(edges))

    def forward(self, inputs: Sequence[Tensor], alpha: Tensor, beta: Tensor) -> Tensor:
        """The outputs of earlier cells, weights `[E, O]` and `[E]` to the concatenated output."""
        states = [adapt(x) for adapt, x in zip(self.inputs, inputs, strict=True)]
        for node in range(self.layout.num_inputs, self.layout.num_nodes):
            entering = self.layout.entering(node)
            states.append(sum(beta[e] * self.edges[e](states[self.layout.pairs[e][0]], alpha[e]) for e in entering))
        return torch.cat([states[node] for node in self.layout.output], 1)

    def single(self, inputs: Sequence[Tensor], genotype: Cells) -> Tensor:
        """Output of the path of one genotype; other edges, and adapters of inputs that are not read, are not run."""
        chosen = self.layout.chosen(genotype, self.kind)
        read = {self.layout.pairs[e][0] for terms in chosen for e, _ in terms} | set(self.layout.output)
        states = [self.inputs[node](x) if node in read else x for node, x in enumerate(inputs)]
        for terms in chosen:
            states.append(sum(self.edges[e].single(states[self.layout.pairs[e][0]], column) for e, column in terms))
        return torch.cat([states[node] for node in self.layout.output], 1)


@dataclass(frozen=True)
class CellPosition:
    """Position of a cell: its kind, its channels, and for each input the channels and the number of halvings."""

    kind: str
    channels: int
    inputs: tuple[tuple[int, int], ...]

    def stride(self, source: int, layout: SupernetLayout) -> int:
        """Stride of the edges that leave a node; reduction cells halve their inputs."""
        return 2 if self.kind == "reduction" and source < layout.num_inputs else 1


def cell_positions(layout: SupernetLayout, frame: Frame) -> tuple[list[CellPosition], int, int]:
    """Positions of all cells, and the channels of the stem and of the last cell.

    If the space has no reduction cell, the inputs of a normal cell are halved instead.
    """
    width = frame.channels if single_input(layout) else STEM_FACTOR * frame.channels
    past, channels, depth, positions = [(width, 0)] * layout.num_inputs, frame.channels, 0, []
    for number in range(frame.num_cells):
        halves = frame.reduces(number)
        channels *= 2 if halves else 1
        kind = "reduction" if halves and "reduction" in layout.operations else "normal"
        inside = depth + (halves and kind == "normal")
        positions.append(CellPosition(kind, channels, tuple((width, inside - level) for width, level in past)))
        depth += halves
        past = [*past[1:], (channels * len(layout.output), depth)]
    return positions, width, past[-1][0]


def single_input(layout: SupernetLayout) -> bool:
    """Whether cells have one input and an output of the same width, so they are stacked without adapters."""
    return layout.num_inputs == len(layout.output) == 1


def input_adapter(width: int, halvings: int, channels: int, layout: SupernetLayout) -> nn.Module:
    """Module that brings an earlier output to the channels, height and width of a cell."""
    if halvings and single_input(layout):
        return ResidualReduction(width, channels)
    if halvings:
        steps = [FactorizedReduction(width if i == 0 else channels, channels, affine=False) for i in range(halvings)]
        return steps[0] if halvings == 1 else nn.Sequential(*steps)
    if width == channels and single_input(layout):
        return nn.Identity()
    return nn.Sequential(nn.ReLU(), *convolution(width, channels, 1, affine=False))


class MapShape(NamedTuple):
    """Channels of a feature map, and the factor by which it is smaller than the stem's output in height and width."""

    channels: int
    reduction: int


HeadMaker: TypeAlias = Callable[[Sequence[MapShape]], nn.Module]
"""(shapes of the feature maps, finest first) → a module that turns the list of maps into outputs."""


def map_shapes(layout: SupernetLayout, frame: Frame) -> tuple[MapShape, ...]:
    """Shape of the last feature map of every resolution, finest first.

    >>> from nearkin.search.spaces.general import GeneralSpace
    >>> map_shapes(SupernetLayout.of(GeneralSpace()), Frame(channels=4, num_cells=3))
    (MapShape(channels=4, reduction=1), MapShape(channels=8, reduction=2), MapShape(channels=16, reduction=4))
    """
    shapes: dict[int, int] = {}
    reduction = 1
    for number, position in enumerate(cell_positions(layout, frame)[0]):
        reduction *= 2 if frame.reduces(number) else 1
        shapes[reduction] = position.channels * len(layout.output)
    return tuple(MapShape(channels, reduction) for reduction, channels in shapes.items())


class PooledLinear(nn.Linear):
    """A linear layer on the mean of the last feature map."""

    def forward(self, maps: Sequence[Tensor]) -> Tensor:  # type: ignore[override]
        """Feature maps, the last one `[N, C, H, W]`, to outputs `[N, K]`."""
        return super().forward(maps[-1].mean((2, 3)))


class AnySupernet(nn.Module, ABC):
    """Interface of supernets: feature maps, and a head on them, for architecture weights or for one path.

    The head is a linear layer on the mean of the last map (`PooledLinear`); another one may replace it.
    """

    layout: ChoiceLayout
    stem: nn.Module
    final: nn.Module
    head: nn.Module

    def __init__(self, layout: ChoiceLayout, frame: Frame) -> None:
        super().__init__()
        self.layout, self.frame = layout, frame

    @property
    @abstractmethod
    def map_shapes(self) -> tuple[MapShape, ...]:
        """Shapes of the feature maps that `maps` returns."""

    @abstractmethod
    def maps(self, x: Tensor, architecture: Architecture | Genotype) -> list[Tensor]:
        """The last feature map of every resolution, finest first."""

    def embed(self, x: Tensor, architecture: Architecture | Genotype) -> Tensor:
        """Images `[N, c, H, W]` to the mean of the last feature map `[N, D]`."""
        return self.maps(x, architecture)[-1].mean((2, 3))

    def forward(self, x: Tensor, architecture: Architecture | Genotype) -> Tensor:
        """Images `[N, c, H, W]` to outputs, those of the linear head `[N, num_outputs]`."""
        outputs: Tensor = self.head(self.maps(x, architecture))
        return outputs


class StackedCells(AnySupernet):
    """Stem, cells and a head: the part that both implementations of a supernet of cells share."""

    layout: SupernetLayout
    cells: Sequence[Any]

    @property
    def map_shapes(self) -> tuple[MapShape, ...]:
        """Shapes of the feature maps that `maps` returns."""
        return map_shapes(self.layout, self.frame)

    def maps(self, x: Tensor, architecture: Architecture | Genotype) -> list[Tensor]:
        """The last feature map of every resolution, finest first."""
        states = [self.stem(x)] * self.layout.num_inputs
        weights = {} if isinstance(architecture, Genotype) else self.layout.weights(architecture)
        outputs: list[Tensor] = []
        for number, cell in enumerate(self.cells):
            if isinstance(architecture, Genotype):
                output = cell.single(states, architecture)
            else:
                output = cell(states, *weights[cell.kind])
            outputs = [*outputs, output] if number == 0 or self.frame.reduces(number) else [*outputs[:-1], output]
            states = [*states[1:], output]
        return [*outputs[:-1], self.final(outputs[-1])]


class PlainSupernet(StackedCells):
    """Stem, cells, global mean and a linear head; `forward` takes architecture weights, or the genotype of one path.

    >>> from nearkin.search.spaces.general import GeneralSpace
    >>> layout = SupernetLayout.of(GeneralSpace((3,), ("zero", "conv3")))
    >>> net = PlainSupernet(layout, (1, 8, 8), 10, Frame(channels=4, num_cells=2))
    >>> net(torch.ones(2, 1, 8, 8), layout.initial(torch.Generator())).shape
    torch.Size([2, 10])
    """

    def __init__(self, layout: SupernetLayout, input_shape: Sequence[int], num_outputs: int, frame: Frame) -> None:
        super().__init__(layout, frame)
        require(len(input_shape) == 3, f"a supernet reads images (C, H, W), got inputs of shape {tuple(input_shape)}")
        positions, width, last = cell_positions(layout, frame)
        self.stem = stem(input_shape[0], width, frame.stem_stride)
        self.cells = cast(
            Sequence[PlainCell], nn.ModuleList(PlainCell(layout, position, frame) for position in positions)
        )
        self.final = nn.Sequential(nn.BatchNorm2d(last), nn.ReLU()) if single_input(layout) else nn.Identity()
        self.head = PooledLinear(last, num_outputs)
