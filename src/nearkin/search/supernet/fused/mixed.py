r"""All operations on all edges that leave one state, run together: the fast form of a mixed operation.

For a state $x$ with E edges the result is $\sum_o w_{eo}\, o_e(x)$ for every edge $e$. What has no weights (ReLU, pools
and the batch norms after them) is the same for all edges and is run once. Operations that are chains of ReLU,
convolutions and batch norms are run side by side, edge next to edge, in one convolution (`supernet_filters`). The last
batch norms of all operations are one, whose weights are the $w_{eo}$. Any other module runs as it is.

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
        edges: for every edge its operations, as modules of their own; all edges have the same ones, at one stride.
        channels: C, of input and output.
        stride: of all of them.

    >>> from nearkin.search.networks.operations import operation
    >>> fan = MixedEdges([[operation("identity", 2), nn.Tanh()] for _ in range(3)], 2, 1)
    >>> fan(torch.zeros(1, 2, 4, 4), torch.ones(3, 2)).shape
    torch.Size([1, 6, 4, 4])
    """

    def __init__(self, edges: Sequence[Sequence[nn.Module]], channels: int, stride: int) -> None:
        super().__init__()
        self.num_edges, self.channels, self.stride = len(edges), channels, stride
        self.places: dict[str, list[int]] = {"same": [], "pools": [], "chains": [], "others": []}
        taken: dict[str, list[nn.Module]] = {kind: [] for kind in self.places}
        for place, copies in enumerate(zip(*edges, strict=True)):
            kind, module = self._taken(list(copies))
            if kind:
                self.places[kind].append(place)
                taken[kind].append(module)
        self.chains = cast(Sequence[StackedConvolutions], nn.ModuleList(taken["chains"]))
        self.pools = nn.ModuleList(taken["pools"])
        self.others = cast(Sequence[nn.ModuleList], nn.ModuleList(taken["others"]))
        self.depth = max((len(chain.blocks) for chain in self.chains), default=0)
        widths = [sum(chain.width(number) for chain, number in self._level(level)) for level in range(self.depth)]
        self.norms = cast(Sequence[RunningNorm], nn.ModuleList(map(RunningNorm, widths)))
        self.pooled = RunningNorm(len(self.pools) * channels) if self.pools else None

    def _taken(self, copies: list[nn.Module]) -> tuple[str, nn.Module]:
        """The form in which the copies of an operation run, and the module; none for what carries nothing."""
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
        """The chains that take part in a level, each with the number of its block; they all end at the last."""
        numbered = [(chain, level - self.depth + len(chain.blocks)) for chain in self.chains]
        return [(chain, number) for chain, number in numbered if number >= 0]

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        """A state `[N, C, H, W]` and weights `[E, O]` to `[N, E·C, …]`, edge after edge."""
        terms = []
        if self.chains:
            terms.append(self._chained(x, weights[:, self.places["chains"]]))
        if self.pools or self.places["same"]:
            terms.append(self._alike(x, weights[:, self.places["same"] + self.places["pools"]]))
        for place, copies in zip(self.places["others"], self.others, strict=True):
            scaled = [w * copy(x.contiguous()) for w, copy in zip(weights[:, place], copies, strict=True)]
            terms.append(torch.cat(scaled, 1))
        if not terms:
            return x.new_zeros(()).expand_as(x[:, :, :: self.stride, :: self.stride]).repeat(1, self.num_edges, 1, 1)
        return sum(terms[1:], terms[0])

    def _chained(self, x: Tensor, weights: Tensor) -> Tensor:
        active = torch.relu(x)
        inner: dict[StackedConvolutions, Tensor] = {}
        for level, norm in enumerate(self.norms):
            found = []
            for chain, number in self._level(level):
                given = inner[chain] if number else active if chain.blocks[0].active else x
                found.append(chain(number, given))
            whole = torch.cat(found, 1) if len(found) > 1 else found[0]
            if level == self.depth - 1:
                scale = weights.t().repeat_interleave(self.channels, 1).flatten()
                mixed: Tensor = norm(whole, scale)
                return mixed.unflatten(1, (len(self.chains), -1)).sum(1) if len(self.chains) > 1 else mixed
            split = norm(whole).split([y.shape[1] for y in found], 1)
            for (chain, number), y in zip(self._level(level), split, strict=True):
                inner[chain] = torch.relu(y) if chain.blocks[number + 1].active else y
        raise AssertionError("a chain has blocks")

    def _alike(self, x: Tensor, weights: Tensor) -> Tensor:
        """The operations that are the same for all edges: one 1x1 convolution weighs them."""
        feature_maps = [x] * len(self.places["same"])
        if self.pooled is not None:
            feature_maps.append(self.pooled(torch.cat([pool(x) for pool in self.pools], 1)))
        unit = torch.eye(self.channels, dtype=x.dtype, device=x.device)
        kernel = torch.einsum("es,cd->ecsd", weights, unit).flatten(2).flatten(0, 1)
        return F.conv2d(torch.cat(feature_maps, 1), kernel[:, :, None, None])

    def single(self, x: Tensor, edge: int, place: int) -> Tensor:
        """One operation on one edge, `[N, C, H, W]` to `[N, C, …]`; nothing else is run."""
        if place in self.places["same"]:
            return x
        if place in self.places["pools"] and self.pooled is not None:
            which = self.places["pools"].index(place)
            return self.pooled.single(self.pools[which](x), which * self.channels)
        if place in self.places["others"]:
            found: Tensor = self.others[self.places["others"].index(place)][edge](x.contiguous())
            return found
        if place not in self.places["chains"]:
            return torch.zeros_like(x[:, :, :: self.stride, :: self.stride])
        mine = self.chains[self.places["chains"].index(place)]
        for level, norm in enumerate(self.norms):
            start = 0
            for chain, number in self._level(level):
                if chain is mine:
                    y = chain.single(number, torch.relu(x) if chain.blocks[number].active else x, edge)
                    x = norm.single(y, start + edge * y.shape[1])
                start += chain.width(number)
        return x

    def sources(self, edges: Sequence[str]) -> dict[str, Rows]:
        """What every tensor is stacked from, given the names of the plain edges."""
        found: dict[str, Rows] = {}
        for i, (chain, place) in enumerate(zip(self.chains, self.places["chains"], strict=True)):
            copies = [f"{edge}.operations.{place}" for edge in edges]
            found |= {f"chains.{i}.{name}": rows for name, rows in chain.sources(copies).items()}
        for level in range(self.depth):
            rows = [f"{edge}.operations.{self.places['chains'][list(self.chains).index(chain)]}{chain.norms[number]}"
                    for chain, number in self._level(level) for edge in edges]  # fmt: skip
            found |= _running(f"norms.{level}", [(row,) for row in rows])
        pools = [tuple(f"{edge}.operations.{place}.1" for edge in edges) for place in self.places["pools"]]
        found |= _running("pooled", pools)
        for i, (modules, place) in enumerate(zip(self.others, self.places["others"], strict=True)):
            for e, other in enumerate(modules):
                for name in other.state_dict():
                    found[f"others.{i}.{e}.{name}"] = [(f"{edges[e]}.operations.{place}.{name}",)]
        return found


def _running(name: str, rows: Rows) -> dict[str, Rows]:
    """Both running statistics of stacked batch norms."""
    if not rows:
        return {}
    return {f"{name}.{mine}": [tuple(f"{source}.running_{mine}" for source in row) for row in rows]
            for mine in ("mean", "var")}  # fmt: skip
