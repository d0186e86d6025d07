"""Costs of a network: parameters, multiply-adds and measured latency; limits on them for every searcher.

Multiply-adds are those of convolutions and linear layers for one input, including products with padding; biases, batch
norms, pools and activations are not counted. The costs of a genotype are the sum over its modules; each module is built
and counted once, and the whole network is not built.
"""

import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from torch import nn

from nearkin.core.errors import require
from nearkin.core.rng import seeded
from nearkin.nets.functional import blank, evaluation_mode, multiply_adds, num_parameters
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.networks.build import blueprint, build_network
from nearkin.search.networks.cells import (
    CellNetwork,
    StackedLayer,
    Wiring,
    adapter,
    needed_layers,
    stacked_layers,
    stage_reduction,
    stem,
)
from nearkin.search.networks.chains import MIX, ChainNetwork, chain_stem, step_module, steps
from nearkin.search.networks.operations import builder, convolution
from nearkin.search.networks.recurrent_cells import required_nodes
from nearkin.search.networks.skeleton import Skeleton
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.limited import limit_space

__all__ = ["Costs", "Figures", "latency", "multiply_adds", "num_parameters"]

PASSES = 9


class Figures(NamedTuple):
    """Numbers of parameters and multiply-adds."""

    parameters: int
    multiply_adds: int


ModuleSpec: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]
"""Function that makes a module, its arguments, and the shape of the module's input."""


def latency(model: nn.Module, input_shape: Sequence[int], batch: int = 1, passes: int = PASSES) -> float:
    """Processor time in seconds for one pass over a batch in evaluation mode: the median of several passes.

    >>> 0 < latency(nn.Linear(4, 4), (4,)) < 1
    True
    """
    require(batch >= 1 and passes >= 1, f"batch and passes must be 1 or more, got {batch} and {passes}")
    x, seconds = blank(model, input_shape, batch), []
    with evaluation_mode(model):
        model(x)
        for _ in range(passes):
            start = time.process_time()
            model(x)
            seconds.append(time.process_time() - start)
    return statistics.median(seconds)


@dataclass(frozen=True)
class Costs:
    """Costs of genotypes in one skeleton, as functions for `limit_space`.

    Attributes:
        skeleton: what they are set into; its auxiliary head, a help of training, is not counted.
        input_shape: of one input.
        num_outputs: of the network.
        batch: inputs in the pass whose latency is measured.

    >>> costs = Costs(Skeleton(channels=4, num_cells=1), (1, 8, 8), 10)
    >>> costs.parameters(Genotype.parse("normal(0): 1 = conv3(0); out = 1"))
    254
    """

    skeleton: Skeleton
    input_shape: tuple[int, ...]
    num_outputs: int
    batch: int = 1

    def figures(self, genotype: Genotype) -> Figures:
        """Parameters and multiply-adds for one input, exactly those of the network of `build_network`."""
        factory, options = blueprint(genotype, self.skeleton, self.input_shape, self.num_outputs)
        if issubclass(factory, CellNetwork):
            return _total(_cell_modules(options, self.input_shape))
        if factory is ChainNetwork:
            return _total(_chain_modules(options, self.input_shape))
        step = _total(_recurrent_modules(options))
        return Figures(step.parameters, math.prod(self.input_shape) * step.multiply_adds)

    def parameters(self, genotype: Genotype) -> float:
        """Number of parameters; a shared parameter counts once."""
        return self.figures(genotype).parameters

    def multiply_adds(self, genotype: Genotype) -> float:
        """Multiply-adds for one input."""
        return self.figures(genotype).multiply_adds

    def latency(self, genotype: Genotype) -> float:
        """Measured processor time in seconds for one pass; it differs from run to run, unlike the other costs."""
        network = build_network(genotype, self.skeleton, self.input_shape, self.num_outputs)
        return latency(network, self.input_shape, self.batch)

    def limits(
        self,
        space: Space,
        *,
        parameters: float | None = None,
        multiply_adds: float | None = None,
        latency: float | None = None,
    ) -> Space:
        """The space without genotypes above the given limits. Latency is in seconds.

        >>> from nearkin.search.spaces.general import GeneralSpace
        >>> costs = Costs(Skeleton(channels=4, num_cells=1), (1, 8, 8), 10)
        >>> costs.limits(GeneralSpace((2,), ("conv3", "conv5")), parameters=300).size()
        1
        """
        limits = (
            ("parameters", self.parameters, parameters),
            ("multiply-adds", self.multiply_adds, multiply_adds),
            ("latency", self.latency, latency),
        )
        for name, cost, at_most in limits:
            if at_most is not None:
                space = limit_space(space, cost, at_most, name=name)
        return space


def _total(modules: Iterator[ModuleSpec]) -> Figures:
    figures = [_count(*module) for module in modules]
    return Figures(sum(figure.parameters for figure in figures), sum(figure.multiply_adds for figure in figures))


@functools.lru_cache(maxsize=8192)
def _count(make: Callable[..., Any], arguments: tuple[Any, ...], shape: tuple[int, ...]) -> Figures:
    """Figures of one module; torch's generator is left unchanged."""
    with seeded(0):
        layers = make(*arguments)
    model = nn.Sequential(*layers) if isinstance(layers, list) else layers
    return Figures(num_parameters(model), multiply_adds(model, shape))


def _halved(sides: tuple[int, ...], times: int = 1) -> tuple[int, ...]:
    """Height and width, halved and rounded up a number of times."""
    return tuple(-(-side // 2**times) for side in sides)


def _cell_modules(options: dict[str, Any], input_shape: tuple[int, ...]) -> Iterator[ModuleSpec]:
    names = ("normal", "reduction", "channels", "num_cells", "reductions", "growth", "between", "stem_factor")
    layers = list(stacked_layers(**{name: options[name] for name in names}))
    width, stride = options["channels"] * options["stem_factor"], options["stem_stride"]
    yield stem, (input_shape[0], width, stride), input_shape
    first = tuple(-(-side // stride) for side in input_shape[1:])
    level = 0
    for layer, used in zip(layers, needed_layers(layers), strict=True):
        if used and layer.wiring is None:
            yield (
                stage_reduction,
                (layer.widths[0], layer.channels, options["between"]),
                (layer.widths[0], *_halved(first, level)),
            )
        elif used and layer.wiring is not None:
            yield from _edge_modules(layer, layer.wiring, [_halved(first, max(0, level + more)) for more in (-1, 0, 1)])
        level += layer.stride - 1
    last = layers[-1]
    assert last.wiring is not None
    out = last.wiring.width(last.channels)
    if options["normal"].num_inputs == 1:
        yield nn.BatchNorm2d, (out,), (out, 1, 1)
    if "sides" in options:
        yield nn.Conv2d, (out, options["num_outputs"], 1), (out, *options["sides"])
    else:
        yield nn.Linear, (out, options["num_outputs"]), (out,)


def _edge_modules(layer: StackedLayer, wiring: Wiring, sides: list[tuple[int, ...]]) -> Iterator[ModuleSpec]:
    """Adapters and operations of a cell; `sides` are height and width of the maps before, at and after its level."""
    before, here, behind = sides
    for number in wiring.read() if wiring.output else ():
        width, halved = layer.widths[number], layer.halved[number]
        yield adapter, (width, layer.channels, halved, wiring.num_inputs == 1), (width, *(before if halved else here))
    for edge in wiring.edges:
        first = edge.source < wiring.num_inputs
        shape = here if first or layer.stride == 1 else behind
        stride = layer.stride if first else 1
        yield builder(edge.operation), (layer.channels, stride, True), (layer.channels, *shape)


def _chain_modules(options: dict[str, Any], input_shape: tuple[int, ...]) -> Iterator[ModuleSpec]:
    widths, stride = options["widths"], options["stem_stride"]
    yield chain_stem, (input_shape[0], widths[0], stride), input_shape
    sides = tuple(-(-side // stride) for side in input_shape[1:])
    for step in steps(options["blocks"], options["stages"], widths, options["strides"], widths[0]):
        yield step_module, tuple(step), (step.width, *sides)
        sides = tuple(-(-side // step.stride) for side in sides)
    yield convolution, (widths[-1], MIX * widths[-1], 1), (widths[-1], *sides)
    yield nn.Linear, (MIX * widths[-1], options["num_outputs"]), (MIX * widths[-1],)


def _recurrent_modules(options: dict[str, Any]) -> Iterator[ModuleSpec]:
    """Modules of one position; the embedding is the matrix of the head."""
    hidden = options["hidden"]
    for _ in range(2 + len(required_nodes(options["nodes"], options["output"]))):
        yield nn.Linear, (hidden, 2 * hidden, False), (hidden,)
    yield nn.Linear, (hidden, options["vocabulary"]), (hidden,)
