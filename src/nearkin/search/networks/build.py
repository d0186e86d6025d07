"""Build the network of a genotype: stacked cells, a chain of blocks or a recurrent cell.

`blueprint` returns the class of the network and its plain options; `build_network` makes the network.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import nn

from nearkin.core.errors import require
from nearkin.core.rng import derived_seed, seeded
from nearkin.search.genotypes.genotype import Cells, Chain, Genotype, Recurrent
from nearkin.search.networks.cells import CellNetwork, DenseCellNetwork, cell_options, stem
from nearkin.search.networks.chains import ChainNetwork, chain_options
from nearkin.search.networks.recurrent_cells import RecurrentNetwork, recurrent_options
from nearkin.search.networks.skeleton import Skeleton

__all__ = ["Blueprint", "CellNetwork", "Skeleton", "blueprint", "build_network", "stem"]


class Blueprint(NamedTuple):
    """`factory(**options)` is the network; the options are plain values."""

    factory: type[nn.Module]
    options: dict[str, Any]


def blueprint(genotype: Genotype, skeleton: Skeleton, input_shape: Sequence[int], num_outputs: int) -> Blueprint:
    """Class and options of the network of a genotype; raises if there is no such network.

    >>> cells = Genotype.parse("normal(0): 1 = conv3(0); out = 1")
    >>> blueprint(cells, Skeleton(), (13,), 2)
    Traceback (most recent call last):
    nearkin.core.errors.OptionError: cells read images (C, H, W), got inputs of shape (13,); use a network such as mlp
    """
    require(num_outputs >= 1, f"num_outputs must be 1 or more, got {num_outputs}")
    shape = tuple(input_shape)
    if isinstance(genotype, Recurrent):
        require(len(shape) == 1, f"a recurrent cell reads tokens (T,), got inputs of shape {shape}; use it for text")
        rates = skeleton.dropout, skeleton.weight_drop
        return Blueprint(RecurrentNetwork, recurrent_options(genotype, num_outputs, skeleton.channels, *rates))
    kind = "chains" if isinstance(genotype, Chain) else "cells"
    require(
        not skeleton.weight_drop,
        f"{kind} have no recurrent weights, got weight_drop={skeleton.weight_drop}; set it to 0",
    )
    require(
        len(shape) == 3 and min(shape) >= 1,
        f"{kind} read images (C, H, W), got inputs of shape {shape}; use a network such as mlp",
    )
    if isinstance(genotype, Chain):
        require(not skeleton.dense, "a chain has no images as outputs, and the skeleton has dense=True; use cells")
        options = chain_options(genotype, shape, num_outputs, channels=skeleton.channels, stages=skeleton.stages,
                                stem_stride=skeleton.stem_stride, dropout=skeleton.dropout)  # fmt: skip
        return Blueprint(ChainNetwork, options)
    require(
        isinstance(genotype, Cells),
        f"there is no network for {type(genotype).__name__}; use cells, a chain or a recurrent cell",
    )
    assert isinstance(genotype, Cells)
    options = cell_options(genotype, skeleton, shape[0], num_outputs)
    if skeleton.dense:
        return Blueprint(DenseCellNetwork, {**options, "sides": shape[1:]})
    return Blueprint(CellNetwork, options)


def build_network(
    genotype: Genotype, skeleton: Skeleton, input_shape: Sequence[int], num_outputs: int, seed: int = 0
) -> nn.Module:
    """New network with random weights; the same seed gives the same weights, bit for bit.

    The head is drawn last, so the other weights of cells and chains do not depend on the number of outputs.

    >>> import torch
    >>> cells = Genotype.parse("normal(0): 1 = conv3(0); 2 = max3(0) + conv5(1); out = 2")
    >>> network = build_network(cells, Skeleton(channels=4, num_cells=2), (3, 9, 7), num_outputs=5)
    >>> network(torch.zeros(2, 3, 9, 7)).shape
    torch.Size([2, 5])
    """
    factory, options = blueprint(genotype, skeleton, input_shape, num_outputs)
    with seeded(derived_seed(seed, "network")):
        return factory(**options)
