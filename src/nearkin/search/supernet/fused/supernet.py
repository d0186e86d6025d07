r"""The supernet that searchers train; it computes the same numbers as `PlainSupernet` in fewer and larger operations.

The operations on all edges that leave a state run together (`MixedEdges`). With partial channels a node is
$\mathrm{shuffle}(\sum_i [\beta_{ij}\bar o_{ij}(x_i),\; \beta_{ij}\tilde x_i])$: the weighted sum comes before
concatenation and shuffle. Tensors are stored channels last.

Notation: N samples, C channels of a state, K the inverse of the fraction of channels in the operations.
"""

from collections.abc import Mapping, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearkin.core.rng import seeded
from nearkin.search.genotypes.genotype import Cells, Genotype
from nearkin.search.supernet.fused.chain_operations import Rows, fast_input, input_sources
from nearkin.search.supernet.fused.mixed import MixedEdges
from nearkin.search.supernet.fused.norm import with_accurate_norms
from nearkin.search.supernet.fused.weighted_sum import weighted_sum
from nearkin.search.supernet.reference import Frame, PlainCell, PlainSupernet, StackedCells, shuffle_channels
from nearkin.search.supernet.supernet_layout import Architecture, SupernetLayout


class FusedCell(nn.Module):
    """A cell, made from a reference cell."""

    def __init__(self, plain: PlainCell, frame: Frame) -> None:
        super().__init__()
        self.layout, self.kind = plain.layout, plain.kind
        self.inputs = nn.ModuleList(with_accurate_norms(fast_input(module)) for module in plain.inputs)
        self.split, self.shuffle = frame.split, frame.shuffle
        fans = []
        for node in range(self.layout.num_nodes - 1):
            edges = [plain.edges[e] for e in self.layout.leaving(node)]
            fans.append(MixedEdges([list(edge.operations) for edge in edges], edges[0].width, edges[0].stride))
        self.fans = cast(Sequence[MixedEdges], nn.ModuleList(fans))

    def forward(self, inputs: Sequence[Tensor], alpha: Tensor, beta: Tensor) -> Tensor:
        """The outputs of earlier cells, weights `[E, O]` and `[E]` to the concatenated output."""
        layout, weights = self.layout, alpha * beta[:, None]
        states: list[Tensor] = []
        around: list[Tensor] = []
        sums: Tensor | None = None
        for node in range(layout.num_nodes):
            if node < layout.num_inputs:
                state = self.inputs[node](inputs[node])
            else:
                assert sums is not None
                mixed, sums = _split_channels(sums, sums.shape[1] // (layout.num_nodes - node))
                passed = [] if self.split == 1 else [weighted_sum(beta[layout.entering(node)], around)]
                state = self._joined(mixed, passed)
            states.append(state)
            if node == layout.num_nodes - 1:
                break
            fan = self.fans[node]
            through, past = _split_channels(state, fan.channels)
            if past is not None:
                around.append(F.max_pool2d(past, 2, 2, ceil_mode=True) if fan.stride == 2 else past)
            terms = fan(through.contiguous(memory_format=torch.channels_last), weights[layout.leaving(node)])
            sums = terms if sums is None else sums + terms
        return torch.cat([states[node] for node in layout.output], 1)

    def single(self, inputs: Sequence[Tensor], genotype: Cells) -> Tensor:
        """Output of the path of one genotype with weights 1; other edges are not run."""
        layout = self.layout
        states = [adapt(x) for adapt, x in zip(self.inputs, inputs, strict=True)]
        for terms in layout.chosen(genotype, self.kind):
            mixed, passed = [], []
            for edge, column in terms:
                source, state = layout.pairs[edge][0], states[layout.pairs[edge][0]]
                fan = self.fans[source]
                through = state[:, : fan.channels].contiguous(memory_format=torch.channels_last)
                mixed.append(fan.single(through, layout.leaving(source).index(edge), column))
                if self.split > 1:
                    past = state[:, fan.channels :]
                    passed.append(F.max_pool2d(past, 2, 2, ceil_mode=True) if fan.stride == 2 else past)
            states.append(self._joined(sum(mixed[1:], mixed[0]), [sum(passed[1:], passed[0])] if passed else []))
        return torch.cat([states[node] for node in layout.output], 1)

    def _joined(self, mixed: Tensor, passed: list[Tensor]) -> Tensor:
        if not passed:
            return mixed
        whole = torch.cat([mixed, *passed], 1)
        return shuffle_channels(whole, self.split) if self.shuffle else whole

    def sources(self, name: str) -> dict[str, Rows]:
        """Reference tensors of every tensor, from the name of the reference cell."""
        sources: dict[str, Rows] = {}
        for number, module in enumerate(self.inputs):
            mine = input_sources(module, f"{name}.inputs.{number}")
            sources |= {f"inputs.{number}.{key}": rows for key, rows in mine.items()}
        for node, fan in enumerate(self.fans):
            edges = [f"{name}.edges.{e}" for e in self.layout.leaving(node)]
            sources |= {f"fans.{node}.{key}": rows for key, rows in fan.sources(edges).items()}
        return sources


class Supernet(StackedCells):
    """Stem, cells, global mean and a linear head; `forward` takes architecture weights, or the genotype of one path.

    With the same seed it has the weights of the reference supernet.

    >>> from nearkin.search.spaces.general import GeneralSpace
    >>> layout = SupernetLayout.of(GeneralSpace((3,), ("zero", "identity", "conv3")))
    >>> net = Supernet(layout, (1, 8, 8), 10, Frame(channels=4, num_cells=2))
    >>> architecture, x = layout.initial(torch.Generator()), torch.ones(2, 1, 8, 8)
    >>> net(x, architecture).shape, net(x, layout.path(architecture, torch.Generator())).shape
    (torch.Size([2, 10]), torch.Size([2, 10]))
    """

    def __init__(self, layout: SupernetLayout, input_shape: Sequence[int], num_outputs: int, frame: Frame) -> None:
        super().__init__(layout, frame)
        self.input_shape, self.num_outputs = tuple(input_shape), num_outputs
        plain = PlainSupernet(layout, input_shape, num_outputs, frame)
        self.stem, self.final, self.head = with_accurate_norms(plain.stem), with_accurate_norms(plain.final), plain.head
        self.cells = cast(Sequence[FusedCell], nn.ModuleList(FusedCell(cell, frame) for cell in plain.cells))

    def maps(self, x: Tensor, architecture: Architecture | Genotype) -> list[Tensor]:
        """The last feature map of every resolution, finest first."""
        return super().maps(x.contiguous(memory_format=torch.channels_last), architecture)

    def sources(self) -> dict[str, Rows]:
        """For every tensor, the names of the reference tensors from which it is stacked."""
        sources: dict[str, Rows] = {}
        for module in ("stem", "final", "head"):
            sources |= {f"{module}.{key}": [(f"{module}.{key}",)] for key in getattr(self, module).state_dict()}
        for number, cell in enumerate(self.cells):
            mine = cell.sources(f"cells.{number}")
            sources |= {f"cells.{number}.{key}": rows for key, rows in mine.items()}
        return sources

    def stacked(self, plain: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of a reference supernet (weights, buffers, gradients) by the names of this one."""
        return {name: torch.cat([plain[row[0]] for row in rows]) if plain[rows[0][0]].dim() else plain[rows[0][0]]
                for name, rows in self.sources().items() if rows[0][0] in plain}  # fmt: skip

    def plain(self) -> PlainSupernet:
        """Reference supernet with the same weights and buffers."""
        with seeded(0):
            other = PlainSupernet(self.layout, self.input_shape, self.num_outputs, self.frame).to(
                next(self.parameters())
            )
        mine, theirs = self.state_dict(), other.state_dict()
        for name, rows in self.sources().items():
            sizes = [theirs[row[0]].shape[0] if theirs[row[0]].dim() else 1 for row in rows]
            pieces = mine[name].split(sizes) if mine[name].dim() else [mine[name]]
            for row, piece in zip(rows, pieces, strict=True):
                for source in row:
                    theirs[source].copy_(piece)
        return other.train(self.training)


def _split_channels(x: Tensor, channels: int) -> tuple[Tensor, Tensor | None]:
    """The first channels and the others, if any; the backward pass of one split is cheaper than that of two slices."""
    if x.shape[1] == channels:
        return x, None
    first, others = x.split([channels, x.shape[1] - channels], 1)
    return first, others
