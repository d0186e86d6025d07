"""From a genotype to a network: cells stacked on a skeleton, chains of blocks, recurrent cells.

`blueprint` says which class makes the network and with which plain options; `build_network` makes it.
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
    """How the network of a genotype is made, or an error that says why there is none.

    >>> cells = Genotype.parse("normal(0): 1 = conv3(0); out = 1")
    >>> blueprint(cells, Skeleton(), (13,), 2)
    Traceback (most recent call last):
    nearkin.core.errors.OptionError: cells read images (C, H, W), got inputs of shape (13,); solve it with a network \
such as mlp
    """
    require(num_outputs >= 1, f"a network has one output or more, got {num_outputs}")
    shape = tuple(input_shape)
    if isinstance(genotype, Recurrent):
        require(len(shape) == 1, f"a recurrent cell reads tokens (T,), got inputs of shape {shape}; give it text")
        return Blueprint(
            RecurrentNetwork, recurrent_options(genotype, num_outputs, skeleton.channels, skeleton.dropout)
        )
    kind = "chains" if isinstance(genotype, Chain) else "cells"
    require(
        len(shape) == 3 and min(shape) >= 1,
        f"{kind} read images (C, H, W), got inputs of shape {shape}; solve it with a network such as mlp",
    )
    if isinstance(genotype, Chain):
        require(not skeleton.dense, "chains end in one vector, and images are wanted as outputs; give cells")
        options = chain_options(genotype, shape, num_outputs, channels=skeleton.channels, stages=skeleton.stages,
                                stem_stride=skeleton.stem_stride, dropout=skeleton.dropout)  # fmt: skip
        return Blueprint(ChainNetwork, options)
    require(isinstance(genotype, Cells), f"there is no network for {type(genotype).__name__}; give cells or a chain")
    assert isinstance(genotype, Cells)
    options = cell_options(genotype, skeleton, shape[0], num_outputs)
    return (
        Blueprint(DenseCellNetwork, {**options, "sides": shape[1:]})
        if skeleton.dense
        else Blueprint(CellNetwork, options)
    )


def build_network(
    genotype: Genotype, skeleton: Skeleton, input_shape: Sequence[int], num_outputs: int, seed: int = 0
) -> nn.Module:
    """A new network with weights drawn under the seed: the same seed gives the same bits.

    The head is drawn last, so that all other weights of cells and chains are the same for any number of outputs.

    >>> import torch
    >>> cells = Genotype.parse("normal(0): 1 = conv3(0); 2 = max3(0) + conv5(1); out = 2")
    >>> network = build_network(cells, Skeleton(channels=4, num_cells=2), (3, 9, 7), num_outputs=5)
    >>> network(torch.zeros(2, 3, 9, 7)).shape
    torch.Size([2, 5])
    """
    factory, options = blueprint(genotype, skeleton, input_shape, num_outputs)
    with seeded(derived_seed(seed, "network")):
        return factory(**options)
