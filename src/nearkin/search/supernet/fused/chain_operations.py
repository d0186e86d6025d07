"""Operations that are blocks of ReLU, convolutions and batch norm, E copies of each stacked to run as one.

Notation: N samples, C channels, E edges.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearkin.search.networks.operations import FactorizedReduction
from nearkin.search.supernet.fused.filters import Filter, alone, shared
from nearkin.search.supernet.fused.fused_convolution import convolution
from nearkin.search.supernet.fused.norm import EPS, MOMENTUM, batch_norm

Rows = list[tuple[str, ...]]
"""Names in a plain supernet of what a tensor is stacked from; those in one row hold the same values."""


class ConvolutionBlock(NamedTuple):
    """ReLU where `active`, convolutions, and then a batch norm."""

    active: bool
    filters: tuple[Filter, ...]


def leaves(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of a sequence, however it is nested."""
    if type(module) is nn.Sequential:
        for child in module:
            yield from leaves(child)
    else:
        yield module


def convolution_blocks(module: nn.Module) -> tuple[ConvolutionBlock, ...]:
    """The blocks of an operation; none where it is anything else than blocks.

    >>> from nearkin.search.networks.operations import operation
    >>> [len(block.filters) for block in convolution_blocks(operation("sep_conv_3x3", 4, affine=False))]
    [2, 2]
    >>> convolution_blocks(nn.Tanh())
    ()
    """
    found: list[ConvolutionBlock] = []
    filters: list[Filter] = []
    active = False
    for layer in leaves(module):
        if type(layer) is nn.ReLU and not filters and not active:
            active = True
        elif type(layer) is nn.Conv2d and layer.bias is None and layer.padding_mode == "zeros":
            filters.append(Filter.of(layer))
        elif is_plain_norm(layer) and filters:
            found.append(ConvolutionBlock(active, tuple(filters)))
            active, filters = False, []
        else:
            return ()
    return () if active or filters else tuple(found)


def is_plain_norm(layer: nn.Module) -> bool:
    """Whether a layer is a batch norm as supernets have it."""
    return (
        type(layer) is nn.BatchNorm2d
        and not layer.affine
        and layer.track_running_stats
        and (layer.eps, layer.momentum) == (EPS, MOMENTUM)
    )


def parts(module: nn.Module, kind: type[nn.Module]) -> list[tuple[str, nn.Module]]:
    """The layers of a kind below a module, with `.name` of each."""
    return [(f".{name}" if name else "", layer) for name, layer in module.named_modules() if type(layer) is kind]


class StackedConvolutions(nn.Module):
    """E copies of an operation that is blocks; the weights of the copies are stacked along their first axis."""

    def __init__(self, copies: Sequence[nn.Module]) -> None:
        super().__init__()
        self.blocks, self.num_edges = convolution_blocks(copies[0]), len(copies)
        self.names = [name for name, _ in parts(copies[0], nn.Conv2d)]
        self.norms = [name for name, _ in parts(copies[0], nn.BatchNorm2d)]
        layers = zip(*([layer.weight for _, layer in parts(copy, nn.Conv2d)] for copy in copies), strict=True)
        self.weights = nn.ParameterList(nn.Parameter(torch.cat([w.detach() for w in stack])) for stack in layers)

    def forward(self, number: int, x: Tensor) -> Tensor:
        """The convolutions of a block: of the first on `[N, C, H, W]`, of others on `[N, E·C, H, W]`."""
        run = alone if number else shared
        return run(x, self.part(number), self.blocks[number].filters, self.num_edges)

    def part(self, number: int) -> list[Tensor]:
        """The weights of a block."""
        start = sum(len(block.filters) for block in self.blocks[:number])
        return [self.weights[start + i] for i in range(len(self.blocks[number].filters))]

    def single(self, number: int, x: Tensor, edge: int) -> Tensor:
        """The convolutions of a block for one edge."""
        return alone(x, [w.chunk(self.num_edges)[edge] for w in self.part(number)], self.blocks[number].filters, 1)

    def width(self, number: int) -> int:
        """Channels after a block, of all edges."""
        return self.num_edges * self.blocks[number].filters[-1].outputs

    def sources(self, copies: Sequence[str]) -> dict[str, Rows]:
        """What the weights are stacked from, given the names of the copies."""
        return {f"weights.{i}": [(f"{copy}{name}.weight",) for copy in copies] for i, name in enumerate(self.names)}


class StackedReduction(nn.Module):
    """E copies of a factorized reduction: its two 1x1 convolutions are the corners of one of 2x2."""

    def __init__(self, copies: Sequence[FactorizedReduction]) -> None:
        super().__init__()
        self.blocks, self.norms, self.num_edges = (ConvolutionBlock(True, ()),), [".norm"], len(copies)
        self.channels = copies[0].norm.num_features
        self.first = nn.Parameter(torch.cat([copy.first.weight.detach() for copy in copies]))
        self.second = nn.Parameter(torch.cat([copy.second.weight.detach() for copy in copies]))

    def forward(self, number: int, x: Tensor) -> Tensor:
        """`[N, C, H, W]` to `[N, E·C, ⌈H/2⌉, ⌈W/2⌉]`."""
        return self._corners(x, self.first, self.second, self.num_edges)

    def single(self, number: int, x: Tensor, edge: int) -> Tensor:
        """The same for one edge."""
        first, second = (w.chunk(self.num_edges)[edge] for w in (self.first, self.second))
        return self._corners(x, first, second, 1)

    def _corners(self, x: Tensor, first: Tensor, second: Tensor, num_edges: int) -> Tensor:
        upper = F.pad(first.unflatten(0, (num_edges, -1)), (0, 1, 0, 1))
        lower = F.pad(second.unflatten(0, (num_edges, -1)), (1, 0, 1, 0))
        if x.shape[2] % 2 or x.shape[3] % 2:
            x = F.pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2))
        kernel = torch.cat([upper, lower], 1).flatten(0, 1)
        return convolution(x, kernel, (2, 2), (0, 0), (1, 1), 1)

    def width(self, number: int) -> int:
        """Channels of all edges."""
        return self.num_edges * self.channels

    def sources(self, copies: Sequence[str]) -> dict[str, Rows]:
        """What the weights are stacked from, given the names of the copies."""
        return {name: [(f"{copy}.{name}.weight",) for copy in copies] for name in ("first", "second")}


class RunningNorm(nn.Module):
    """Batch norm without weights of its own: running mean and variance of channels; weights may be handed in."""

    mean: Tensor
    var: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("var", torch.ones(width))

    def forward(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """Normalised, times the weights `[C]`."""
        return batch_norm(x, self.mean, self.var, weight, self.training)

    def single(self, x: Tensor, start: int) -> Tensor:
        """The same of the channels from `start` on alone."""
        mean, var = (stack[start : start + x.shape[1]] for stack in (self.mean, self.var))
        return batch_norm(x, mean, var, None, self.training)


class ReducedInput(nn.Module):
    """A factorized reduction in front of a cell, run as the 2x2 convolution that it is."""

    def __init__(self, plain: FactorizedReduction) -> None:
        super().__init__()
        self.halving = StackedReduction([plain])
        self.norm = RunningNorm(self.halving.channels)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W]` to `[N, out, ⌈H/2⌉, ⌈W/2⌉]`."""
        found: Tensor = self.norm(self.halving(0, torch.relu(x)))
        return found

    def sources(self, name: str) -> dict[str, Rows]:
        """What the tensors are in the plain form."""
        weights = {f"halving.{key}": rows for key, rows in self.halving.sources([name]).items()}
        running = {f"norm.{key}": [(f"{name}.norm.running_{key}",)] for key in ("mean", "var")}
        return {**weights, **running}  # type: ignore[dict-item]


def fast_input(plain: nn.Module) -> nn.Module:
    """What brings an input to a cell's channels, with its factorized reductions replaced."""
    if type(plain) is FactorizedReduction:
        return ReducedInput(plain)
    return nn.Sequential(*map(fast_input, plain)) if type(plain) is nn.Sequential else plain


def input_sources(fast: nn.Module, name: str) -> dict[str, Rows]:
    """What the tensors of such a module are in the plain form."""
    if isinstance(fast, ReducedInput):
        return fast.sources(name)
    if type(fast) is not nn.Sequential:
        return {key: [(f"{name}.{key}",)] for key in fast.state_dict()}
    parts = [(i, input_sources(part, f"{name}.{i}")) for i, part in enumerate(fast)]
    return {f"{i}.{key}": rows for i, found in parts for key, rows in found.items()}
