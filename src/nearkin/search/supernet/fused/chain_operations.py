"""Operations that consist of ReLU, convolutions and batch norm; the copies of E edges are stacked and run as one.

Notation: N samples, C channels, E edges.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearkin.search.networks.operations import FactorizedReduction
from nearkin.search.supernet.fused.filters import Filter, separate_convolution, shared_convolution
from nearkin.search.supernet.fused.fused_convolution import convolution
from nearkin.search.supernet.fused.norm import EPS, MOMENTUM, batch_norm

Rows = list[tuple[str, ...]]
"""Names of the reference tensors from which a tensor is stacked; tensors in one row have the same values."""


class ConvolutionBlock(NamedTuple):
    """ReLU if `active`, then convolutions, then a batch norm."""

    active: bool
    filters: tuple[Filter, ...]


def leaves(module: nn.Module) -> Iterator[nn.Module]:
    """Layers of a nested sequence."""
    if type(module) is nn.Sequential:
        for child in module:
            yield from leaves(child)
    else:
        yield module


def convolution_blocks(module: nn.Module) -> tuple[ConvolutionBlock, ...]:
    """Blocks of an operation; empty if it does not consist of such blocks.

    >>> from nearkin.search.networks.operations import operation
    >>> [len(block.filters) for block in convolution_blocks(operation("sep_conv_3x3", 4, affine=False))]
    [2, 2]
    >>> convolution_blocks(nn.Tanh())
    ()
    """
    complete: list[ConvolutionBlock] = []
    filters: list[Filter] = []
    active = False
    for layer in leaves(module):
        if type(layer) is nn.ReLU and not filters and not active:
            active = True
        elif type(layer) is nn.Conv2d and layer.bias is None and layer.padding_mode == "zeros":
            filters.append(Filter.of(layer))
        elif is_plain_norm(layer) and filters:
            complete.append(ConvolutionBlock(active, tuple(filters)))
            active, filters = False, []
        else:
            return ()
    return () if active or filters else tuple(complete)


def is_plain_norm(layer: nn.Module) -> bool:
    """Whether a layer is a batch norm without weights and with default settings."""
    return (
        type(layer) is nn.BatchNorm2d
        and not layer.affine
        and layer.track_running_stats
        and (layer.eps, layer.momentum) == (EPS, MOMENTUM)
    )


def named_layers(module: nn.Module, kind: type[nn.Module]) -> list[tuple[str, nn.Module]]:
    """Layers of a type inside a module, each with `.name`."""
    return [(f".{name}" if name else "", layer) for name, layer in module.named_modules() if type(layer) is kind]


class StackedConvolutions(nn.Module):
    """E copies of an operation that consists of blocks; their weights are stacked along the first axis."""

    def __init__(self, copies: Sequence[nn.Module]) -> None:
        super().__init__()
        self.blocks, self.num_edges = convolution_blocks(copies[0]), len(copies)
        self.names = [name for name, _ in named_layers(copies[0], nn.Conv2d)]
        self.norms = [name for name, _ in named_layers(copies[0], nn.BatchNorm2d)]
        layers = zip(*([layer.weight for _, layer in named_layers(copy, nn.Conv2d)] for copy in copies), strict=True)
        self.weights = nn.ParameterList(nn.Parameter(torch.cat([w.detach() for w in stack])) for stack in layers)

    def forward(self, number: int, x: Tensor) -> Tensor:
        """Run the convolutions of a block: the first block on `[N, C, H, W]`, later ones on `[N, E·C, H, W]`."""
        run = separate_convolution if number else shared_convolution
        return run(x, self.block_weights(number), self.blocks[number].filters, self.num_edges)

    def block_weights(self, number: int) -> list[Tensor]:
        """Weights of a block."""
        start = sum(len(block.filters) for block in self.blocks[:number])
        return [self.weights[start + i] for i in range(len(self.blocks[number].filters))]

    def single(self, number: int, x: Tensor, edge: int) -> Tensor:
        """Run the convolutions of a block for one edge."""
        return separate_convolution(
            x, [w.chunk(self.num_edges)[edge] for w in self.block_weights(number)], self.blocks[number].filters, 1
        )

    def width(self, number: int) -> int:
        """Number of channels of all edges after a block."""
        return self.num_edges * self.blocks[number].filters[-1].outputs

    def sources(self, copies: Sequence[str]) -> dict[str, Rows]:
        """Reference tensors of the weights, from the names of the copies."""
        return {f"weights.{i}": [(f"{copy}{name}.weight",) for copy in copies] for i, name in enumerate(self.names)}


class StackedReduction(nn.Module):
    """E copies of a factorized reduction: its two 1x1 convolutions are the corners of one 2x2 convolution."""

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
        """Output for one edge."""
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
        """Number of channels of all edges."""
        return self.num_edges * self.channels

    def sources(self, copies: Sequence[str]) -> dict[str, Rows]:
        """Reference tensors of the weights, from the names of the copies."""
        return {name: [(f"{copy}.{name}.weight",) for copy in copies] for name in ("first", "second")}


class RunningNorm(nn.Module):
    """Batch norm without own weights: running mean and variance; weights can be passed as an argument."""

    mean: Tensor
    var: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("var", torch.ones(width))

    def forward(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """Normalise and multiply by the weights `[C]`."""
        return batch_norm(x, self.mean, self.var, weight, self.training)

    def single(self, x: Tensor, start: int) -> Tensor:
        """Normalise the channels from `start` on."""
        mean, var = (stack[start : start + x.shape[1]] for stack in (self.mean, self.var))
        return batch_norm(x, mean, var, None, self.training)


class ReducedInput(nn.Module):
    """A factorized reduction in front of a cell, run as one 2x2 convolution."""

    def __init__(self, plain: FactorizedReduction) -> None:
        super().__init__()
        self.halving = StackedReduction([plain])
        self.norm = RunningNorm(self.halving.channels)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W]` to `[N, out, ⌈H/2⌉, ⌈W/2⌉]`."""
        outputs: Tensor = self.norm(self.halving(0, torch.relu(x)))
        return outputs

    def sources(self, name: str) -> dict[str, Rows]:
        """Reference tensors by name."""
        weights = {f"halving.{key}": rows for key, rows in self.halving.sources([name]).items()}
        running = {f"norm.{key}": [(f"{name}.norm.running_{key}",)] for key in ("mean", "var")}
        return {**weights, **running}  # type: ignore[dict-item]


def fast_input(plain: nn.Module) -> nn.Module:
    """Input adapter with its factorized reductions replaced."""
    if type(plain) is FactorizedReduction:
        return ReducedInput(plain)
    return nn.Sequential(*map(fast_input, plain)) if type(plain) is nn.Sequential else plain


def input_sources(fast: nn.Module, name: str) -> dict[str, Rows]:
    """Reference tensors of an input adapter by name."""
    if isinstance(fast, ReducedInput):
        return fast.sources(name)
    if type(fast) is not nn.Sequential:
        return {key: [(f"{name}.{key}",)] for key in fast.state_dict()}
    sources = [input_sources(module, f"{name}.{i}") for i, module in enumerate(fast)]
    return {f"{i}.{key}": rows for i, source in enumerate(sources) for key, rows in source.items()}
