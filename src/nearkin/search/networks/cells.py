"""Networks of stacked cells.

The classes use only torch, so `nearkin.zoo.python_source` can write them to a separate file.

Notation: N samples, C channels, K outputs.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nearkin.core.errors import require
from nearkin.search.genotypes.canonical import Edge, Graph, prune
from nearkin.search.genotypes.cell import ZEROS, Cell
from nearkin.search.genotypes.genotype import Cells
from nearkin.search.networks.operations import (
    FactorizedReduction,
    ResidualReduction,
    convolution,
    drop_samples,
    operation,
)
from nearkin.search.networks.skeleton import Skeleton


class Wiring(NamedTuple):
    """A cell without zeros, without nodes that no input reaches, and without nodes that the output does not use."""

    num_inputs: int
    edges: tuple[Edge, ...]
    output: tuple[int, ...]
    merge: str

    def width(self, channels: int) -> int:
        """Channels of the output of a cell whose operations have these channels."""
        return channels * len(self.output) if self.output and self.merge == "concat" else channels

    def read(self) -> tuple[int, ...]:
        """Inputs that edges or output use; if there is none, the last one, which gives the size of the output."""
        used = {edge.source for edge in self.edges} | set(self.output)
        return tuple(number for number in range(self.num_inputs) if number in used) or (self.num_inputs - 1,)


class StackedLayer(NamedTuple):
    """A layer of the stack: a cell, or a reduction between two cells, which has no wiring.

    `widths` and `halved` describe the states that it reads, oldest first: their channels, and whether their height and
    width are still twice those of the last state.
    """

    wiring: Wiring | None
    widths: tuple[int, ...]
    halved: tuple[bool, ...]
    channels: int
    stride: int

    def read(self) -> tuple[int, ...]:
        """Numbers of the states that it uses."""
        return (0,) if self.wiring is None else self.wiring.read()


def stacked_layers(
    normal: Wiring, reduction: Wiring | None, *, channels: int, num_cells: int, reductions: Sequence[int],
    growth: int, between: str, stem_factor: int,
) -> Iterator[StackedLayer]:  # fmt: skip
    """Layers from first to last."""
    level, states = 0, [(channels * stem_factor, 0)] * 2  # channels and number of halvings
    for number in range(num_cells):
        cell, stride = normal, 1
        if number in reductions:
            channels *= growth
            if reduction is not None:
                cell, stride = reduction, 2
            else:
                width = states[-1][0]
                out = channels if between == "residual" else width
                yield StackedLayer(None, (width,), (False,), out, 2)
                level += 1
                states.append((out, level))
        widths, levels = zip(*states[-cell.num_inputs :], strict=True)
        yield StackedLayer(cell, widths, tuple(depth < level for depth in levels), channels, stride)
        level += stride - 1
        states.append((cell.width(channels), level))


def needed_layers(layers: Sequence[StackedLayer]) -> list[bool]:
    """For each layer, whether the last one depends on it."""
    used = [False] * (len(layers) - 1) + [True]
    for number in reversed(range(len(layers))):
        for state in layers[number].read() if used[number] else ():
            source = number - len(layers[number].widths) + state
            if source >= 0:
                used[source] = True
    return used


def stage_reduction(channels: int, out: int, between: str) -> nn.Module:
    """Reduction between stages: a residual block, or a pool, which keeps the channels."""
    return nn.MaxPool2d(3, 2, padding=1) if between == "pool" else ResidualReduction(channels, out)


def adapter(width: int, channels: int, halved: bool, alone: bool) -> nn.Module:
    """Module that brings an input to the channels, height and width of a cell; a single input may need none."""
    if halved:
        return FactorizedReduction(width, channels)
    if alone and width == channels:
        return nn.Identity()
    return nn.Sequential(nn.ReLU(), *convolution(width, channels, 1))


def stem(channels: int, out: int, stride: int) -> nn.Sequential:
    """3x3 convolutions with batch norm: one for every factor 2 of the stride, at least one."""
    layers = convolution(channels, out, 3, min(stride, 2))
    while stride > 2:
        stride //= 2
        layers += [nn.ReLU(), *convolution(out, out, 3, 2)]
    return nn.Sequential(*layers)


def last_of_each_size(outputs: Iterator[Tensor]) -> list[Tensor]:
    """The last one of successive maps `[N, C, H, W]` of the same height and width."""
    maps: list[Tensor] = []
    for x in outputs:
        maps = [*maps[:-1], x] if maps and maps[-1].shape[2:] == x.shape[2:] else [*maps, x]
    return maps


class CellModule(nn.Module):
    """One cell: each node is the sum of operations on earlier nodes."""

    def __init__(self, layer: StackedLayer, wiring: Wiring) -> None:
        super().__init__()
        self.wiring, self.channels, self.stride = wiring, layer.channels, layer.stride
        self.drop_path = 0.0
        inputs = wiring.read() if wiring.output else ()
        alone = wiring.num_inputs == 1
        self.adapters = nn.ModuleDict(
            {str(i): adapter(layer.widths[i], layer.channels, layer.halved[i], alone) for i in inputs}
        )
        strides = [layer.stride if edge.source < wiring.num_inputs else 1 for edge in wiring.edges]
        self.edges = nn.ModuleList(
            operation(edge.operation, layer.channels, stride)
            for edge, stride in zip(wiring.edges, strides, strict=True)
        )

    def forward(self, *inputs: Tensor) -> Tensor:
        """States `[N, C, H, W]` to `[N, C', ⌈H/s⌉, ⌈W/s⌉]`."""
        nodes = {int(number): adapt(inputs[int(number)]) for number, adapt in self.adapters.items()}
        for (source, target, _), edge in zip(self.wiring.edges, self.edges, strict=True):
            term = edge(nodes[source])
            if self.training and self.drop_path > 0 and not isinstance(edge, nn.Identity):
                term = drop_samples(term, self.drop_path)
            nodes[target] = nodes[target] + term if target in nodes else term
        outputs = [nodes[node] for node in self.wiring.output]
        if not outputs:
            size = inputs[-1][:, :1, :: self.stride, :: self.stride]
            return torch.zeros_like(size).repeat(1, self.channels, 1, 1)
        return torch.cat(outputs, 1) if self.wiring.merge == "concat" else torch.stack(outputs).sum(0)


def layer_module(layer: StackedLayer, between: str) -> nn.Module:
    """Module of a layer of the stack."""
    if layer.wiring is None:
        return stage_reduction(layer.widths[0], layer.channels, between)
    return CellModule(layer, layer.wiring)


class CellNetwork(nn.Module):
    """Stem, stacked cells, mean over the map, linear head: images `[N, C, H, W]` to `[N, K]`.

    Cells with two inputs read the two states before them, as in DARTS. Cells with one input read the last state, and a
    batch norm and ReLU follow the last cell, as in NAS-Bench-201. The options are those of `Skeleton`.
    """

    def __init__(
        self, normal: Wiring, reduction: Wiring | None, in_channels: int, num_outputs: int, *,
        channels: int, num_cells: int, reductions: Sequence[int], growth: int, between: str, stem_factor: int,
        stem_stride: int, dropout: float = 0.0, drop_path: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        layers = list(stacked_layers(normal, reduction, channels=channels, num_cells=num_cells, reductions=reductions,
                              growth=growth, between=between, stem_factor=stem_factor))  # fmt: skip
        self.stem = stem(in_channels, channels * stem_factor, stem_stride)
        live = needed_layers(layers)
        self.counts = [len(layer.widths) if used else 0 for layer, used in zip(layers, live, strict=True)]
        self.layers = nn.ModuleList(
            layer_module(layer, between) if used else nn.Identity() for layer, used in zip(layers, live, strict=True)
        )
        last = layers[-1]
        assert last.wiring is not None
        width = last.wiring.width(last.channels)
        self.final = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU()) if normal.num_inputs == 1 else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.head = self.make_head(width, num_outputs)
        self.set_drop_path(drop_path)
        cells = [number for number, layer in enumerate(layers) if layer.wiring is not None]
        self.middle = next(number for number in range(cells[2 * num_cells // 3], len(layers)) if live[number])
        middle = layers[self.middle]
        self.middle_width = middle.channels if middle.wiring is None else middle.wiring.width(middle.channels)

    def make_head(self, width: int, num_outputs: int) -> nn.Module:
        """Last layer, whose shape depends on the number of outputs; it is made last."""
        return nn.Linear(width, num_outputs)

    def set_drop_path(self, rate: float) -> None:
        """Set the fraction of edges that are dropped in training; identities are never dropped."""
        for layer in self.layers:
            if isinstance(layer, CellModule):
                layer.drop_path = rate

    def feature_maps(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Feature maps `[N, C', H', W']` at two thirds of the depth and after the last cell."""
        middle = last = x
        for number, last in enumerate(self.layer_outputs(x), -1):
            if number == self.middle:
                middle = last
        return middle, self.final(last)

    def layer_outputs(self, x: Tensor) -> Iterator[Tensor]:
        """Output of the stem, then that of every layer."""
        x = self.stem(x)
        states = [x, x]
        yield x
        for count, layer in zip(self.counts, self.layers, strict=True):
            states = [states[-1], layer(*states[-count:]) if count else states[-1]]
            yield states[-1]

    def maps(self, x: Tensor) -> list[Tensor]:
        """The last feature map of every resolution, finest first; the stem's output is one if no cell has its size."""
        maps = last_of_each_size(self.layer_outputs(x))
        return [*maps[:-1], self.final(maps[-1])]

    def outputs_of(self, last: Tensor) -> Tensor:
        """Outputs `[N, K]` from the last map."""
        outputs: Tensor = self.head(self.dropout(last.mean((2, 3))))
        return outputs

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W]` to `[N, K]`."""
        return self.outputs_of(self.feature_maps(x)[1])


class DenseCellNetwork(CellNetwork):
    """Stem, stacked cells, and a 1x1 convolution at every pixel: images `[N, C, H, W]` to images `[N, K, H, W]`.

    If the stem or reductions make the maps smaller, they are interpolated bilinearly to `sides` = (H, W).
    """

    def __init__(self, *args: Any, sides: tuple[int, int], **options: Any) -> None:
        super().__init__(*args, **options)
        self.sides = sides

    def make_head(self, width: int, num_outputs: int) -> nn.Module:
        """A 1x1 convolution with one channel for each output."""
        return nn.Conv2d(width, num_outputs, 1)

    def feature_maps(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Feature maps at two thirds of the depth, and after the last cell in the size of the image."""
        middle, last = super().feature_maps(x)
        if last.shape[2:] != self.sides:
            last = nn.functional.interpolate(last, self.sides, mode="bilinear", align_corners=False)
        return middle, last

    def outputs_of(self, last: Tensor) -> Tensor:
        """Outputs `[N, K, H, W]` from the last map."""
        outputs: Tensor = self.head(self.dropout(last))
        return outputs


def live_wiring(cell: Cell, strided: bool = False) -> Wiring:
    """Wiring of a cell; in a strided cell, an input that is also an output gets an identity that halves it.

    >>> from nearkin.search.genotypes.genotype import Genotype
    >>> cells = Genotype.parse("normal(0): 1 = conv3(0); 2 = zero(0) + max3(1); 3 = conv5(1); out = 2")
    >>> live_wiring(cells.normal).edges
    (Edge(source=0, target=1, operation='conv3'), Edge(source=1, target=2, operation='max3'))
    """
    graph = prune(Graph(cell.num_inputs, cell.num_nodes, cell.edges, cell.output), ZEROS)
    edges, output = list(graph.edges), list(graph.output)
    bare = [node for node in output if node < cell.num_inputs] if strided else []
    for node, source in enumerate(bare, graph.num_nodes):
        edges.append(Edge(source, node, "identity"))
        output[output.index(source)] = node
    edges.sort(key=lambda edge: (edge.target, edge.source, edge.operation))
    return Wiring(cell.num_inputs, tuple(edges), tuple(output), cell.merge)


def cell_options(genotype: Cells, skeleton: Skeleton, in_channels: int, num_outputs: int) -> dict[str, Any]:
    """Options of `CellNetwork`."""
    for kind, cell in genotype.parts().items():
        require(
            cell.num_inputs <= 2,
            f"the {kind} cell has {cell.num_inputs} inputs, networks have cells with 1 or 2; use another one",
        )
    names = ("channels", "num_cells", "reductions", "growth", "between", "stem_factor", "stem_stride", "dropout",
             "drop_path")  # fmt: skip
    return {
        "normal": live_wiring(genotype.normal),
        "reduction": None if genotype.reduction is None else live_wiring(genotype.reduction, strided=True),
        "in_channels": in_channels,
        "num_outputs": num_outputs,
        **{name: getattr(skeleton, name) for name in names},
    }
