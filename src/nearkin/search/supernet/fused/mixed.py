r"""Mixed operations of all edges that leave one state, run together.

For a state $x$ with E edges the result is $\sum_o w_{eo}\, o_e(x)$ for every edge $e$. Operations without weights
(ReLU, pools and the batch norms after them) are the same for all edges and run once. Operations that are chains of
ReLU, convolutions and batch norms run for all edges in one convolution (`filters`). The last batch norms of all
operations are one batch norm with weights $w_{eo}$. Any other module runs separately.

Notation: N samples, C channels, E edges, O operations.
"""

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearkin.search.networks.operations import FactorizedReduction, Zero
from nearkin.search.supernet.fused.chain_operations import (
    Rows,
    RunningNorm,
    StackedConvolutions,
    StackedReduction,
    convolution_blocks,
    is_plain_norm,
)

POOLS = (nn.MaxPool2d, nn.AvgPool2d)


class MixedEdges(nn.Module):
    """All operations on the E edges that leave a state.

    Args:
        edges: operations of every edge as modules; all edges have the same operations and the same stride.
        channels: C of input and output.
        stride: stride of all operations.

    >>> from nearkin.search.networks.operations import operation
    >>> edges = MixedEdges([[operation("identity", 2), nn.Tanh()] for _ in range(3)], 2, 1)
    >>> edges(torch.zeros(1, 2, 4, 4), torch.ones(3, 2)).shape
    torch.Size([1, 6, 4, 4])
    """

    def __init__(self, edges: Sequence[Sequence[nn.Module]], channels: int, stride: int) -> None:
        super().__init__()
        self.num_edges, self.channels, self.stride = len(edges), channels, stride
        self.columns: dict[str, list[int]] = {"same": [], "pools": [], "chains": [], "others": []}
        modules: dict[str, list[nn.Module]] = {kind: [] for kind in self.columns}
        for column, copies in enumerate(zip(*edges, strict=True)):
            kind, module = self._fast_form(list(copies))
            if kind:
                self.columns[kind].append(column)
                modules[kind].append(module)
        self.chains = cast(Sequence[StackedConvolutions], nn.ModuleList(modules["chains"]))
        self.pools = nn.ModuleList(modules["pools"])
        self.others = cast(Sequence[nn.ModuleList], nn.ModuleList(modules["others"]))
        self.depth = max((len(chain.blocks) for chain in self.chains), default=0)
        widths = [sum(chain.width(number) for chain, number in self._level(level)) for level in range(self.depth)]
        self.norms = cast(Sequence[RunningNorm], nn.ModuleList(map(RunningNorm, widths)))
        self.pooled = RunningNorm(len(self.pools) * channels) if self.pools else None

    def _fast_form(self, copies: list[nn.Module]) -> tuple[str, nn.Module]:
        """Kind and module in which the copies of an operation run; an empty kind for zero operations."""
        first = copies[0]
        if type(first) is Zero:
            return "", first
        if type(first) is nn.Identity:
            return "same", first
        if type(first) is nn.Sequential and len(first) == 2 and type(first[0]) in POOLS and is_plain_norm(first[1]):
            return "pools", first[0]
        if type(first) is FactorizedReduction and is_plain_norm(first.norm):
            return "chains", StackedReduction(cast(list[FactorizedReduction], copies))
        return (
            ("chains", StackedConvolutions(copies)) if convolution_blocks(first) else ("others", nn.ModuleList(copies))
        )

    def _level(self, level: int) -> list[tuple[StackedConvolutions, int]]:
        """Chains of a level, each with the number of its block; all chains end at the last level."""
        numbered = [(chain, level - self.depth + len(chain.blocks)) for chain in self.chains]
        return [(chain, number) for chain, number in numbered if number >= 0]

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        """A state `[N, C, H, W]` and weights `[E, O]` to `[N, E·C, …]`, edge after edge."""
        terms = []
        if self.chains:
            terms.append(self._chained(x, weights[:, self.columns["chains"]]))
        if self.pools or self.columns["same"]:
            terms.append(self._shared(x, weights[:, self.columns["same"] + self.columns["pools"]]))
        for column, copies in zip(self.columns["others"], self.others, strict=True):
            scaled = [w * copy(x.contiguous()) for w, copy in zip(weights[:, column], copies, strict=True)]
            terms.append(torch.cat(scaled, 1))
        if not terms:
            return x.new_zeros(()).expand_as(x[:, :, :: self.stride, :: self.stride]).repeat(1, self.num_edges, 1, 1)
        return sum(terms[1:], terms[0])

    def _chained(self, x: Tensor, weights: Tensor) -> Tensor:
        active = torch.relu(x)
        inner: dict[StackedConvolutions, Tensor] = {}
        for level, norm in enumerate(self.norms):
            outputs = []
            for chain, number in self._level(level):
                inputs = inner[chain] if number else active if chain.blocks[0].active else x
                outputs.append(chain(number, inputs))
            whole = torch.cat(outputs, 1) if len(outputs) > 1 else outputs[0]
            if level == self.depth - 1:
                scale = weights.t().repeat_interleave(self.channels, 1).flatten()
                mixed: Tensor = norm(whole, scale)
                return mixed.unflatten(1, (len(self.chains), -1)).sum(1) if len(self.chains) > 1 else mixed
            split = norm(whole).split([y.shape[1] for y in outputs], 1)
            for (chain, number), y in zip(self._level(level), split, strict=True):
                inner[chain] = torch.relu(y) if chain.blocks[number + 1].active else y
        raise AssertionError("a chain has blocks")

    def _shared(self, x: Tensor, weights: Tensor) -> Tensor:
        """Operations that are the same for all edges, weighted by one 1x1 convolution."""
        feature_maps = [x] * len(self.columns["same"])
        if self.pooled is not None:
            feature_maps.append(self.pooled(torch.cat([pool(x) for pool in self.pools], 1)))
        unit = torch.eye(self.channels, dtype=x.dtype, device=x.device)
        kernel = torch.einsum("es,cd->ecsd", weights, unit).flatten(2).flatten(0, 1)
        return F.conv2d(torch.cat(feature_maps, 1), kernel[:, :, None, None])

    def single(self, x: Tensor, edge: int, column: int) -> Tensor:
        """Output of one operation on one edge, `[N, C, H, W]` to `[N, C, …]`; nothing else is run."""
        if column in self.columns["same"]:
            return x
        if column in self.columns["pools"] and self.pooled is not None:
            pool = self.columns["pools"].index(column)
            return self.pooled.single(self.pools[pool](x), pool * self.channels)
        if column in self.columns["others"]:
            outputs: Tensor = self.others[self.columns["others"].index(column)][edge](x.contiguous())
            return outputs
        if column not in self.columns["chains"]:
            return torch.zeros_like(x[:, :, :: self.stride, :: self.stride])
        wanted = self.chains[self.columns["chains"].index(column)]
        for level, norm in enumerate(self.norms):
            start = 0
            for chain, number in self._level(level):
                if chain is wanted:
                    y = chain.single(number, torch.relu(x) if chain.blocks[number].active else x, edge)
                    x = norm.single(y, start + edge * y.shape[1])
                start += chain.width(number)
        return x

    def sources(self, edges: Sequence[str]) -> dict[str, Rows]:
        """Reference tensors of every tensor, from the names of the reference edges."""
        sources: dict[str, Rows] = {}
        for i, (chain, column) in enumerate(zip(self.chains, self.columns["chains"], strict=True)):
            copies = [f"{edge}.operations.{column}" for edge in edges]
            sources |= {f"chains.{i}.{name}": rows for name, rows in chain.sources(copies).items()}
        for level in range(self.depth):
            rows = [f"{edge}.operations.{self.columns['chains'][list(self.chains).index(chain)]}{chain.norms[number]}"
                    for chain, number in self._level(level) for edge in edges]  # fmt: skip
            sources |= _running(f"norms.{level}", [(row,) for row in rows])
        pools = [tuple(f"{edge}.operations.{column}.1" for edge in edges) for column in self.columns["pools"]]
        sources |= _running("pooled", pools)
        for i, (modules, column) in enumerate(zip(self.others, self.columns["others"], strict=True)):
            for e, other in enumerate(modules):
                for name in other.state_dict():
                    sources[f"others.{i}.{e}.{name}"] = [(f"{edges[e]}.operations.{column}.{name}",)]
        return sources


def _running(name: str, rows: Rows) -> dict[str, Rows]:
    """Reference tensors of the running statistics of stacked batch norms."""
    if not rows:
        return {}
    return {f"{name}.{key}": [tuple(f"{source}.running_{key}" for source in row) for row in rows]
            for key in ("mean", "var")}  # fmt: skip
