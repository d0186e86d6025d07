"""Networks with shared weights, of which only a sampled path runs, and dropout of parts of a path.

The supernet of cells is `PlainSupernet`: every edge has its own modules, so weights outside a path get no gradient, and
an optimiser leaves them as they are. Batch norms use the statistics of the batch and keep none, because running ones
would mix all paths; in evaluation mode only dropout is off.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Generator, Tensor, nn

from nearkin.core.errors import MismatchError, require
from nearkin.search.genotypes.cell import Cell
from nearkin.search.genotypes.genotype import Cells, Genotype, Recurrent
from nearkin.search.networks.shared_recurrent import RecurrentPath, SharedRecurrentNetwork
from nearkin.search.spaces.base import Space, uniform_index
from nearkin.search.spaces.limited import without_limits
from nearkin.search.spaces.recurrent_space import RecurrentSpace
from nearkin.search.supernet.reference import Frame, PlainSupernet
from nearkin.search.supernet.supernet_layout import Architecture, SupernetLayout
from nearkin.tasks.task import Task

LEAST_VOCABULARY = 2

WIDE = 16
"""Channels from which channels last is used: faster, but torch's backward pass is not safe for a few channels."""


def shared_network(space: Space, task: Task, frame: Frame, output_dropout: float = 0.0) -> nn.Module:
    """Network for all genotypes of a space, called with inputs and a path; weights from torch's global generator.

    Args:
        space: space of cells, or of recurrent cells for text.
        task: the task to learn.
        frame: macro-architecture; its channels are the size of a recurrent state.
        output_dropout: dropout rate of the features in front of the head.
    """
    whole = without_limits(space)
    if isinstance(whole, RecurrentSpace):
        require(
            task.num_outputs >= LEAST_VOCABULARY,
            f"the text of {task.name!r} has a vocabulary of {task.num_outputs} tokens, a language model needs "
            f"{LEAST_VOCABULARY} or more; add text",
            MismatchError,
        )
        return SharedRecurrentNetwork(whole.num_nodes, task.num_outputs, frame.channels, output_dropout)
    return SharedCells(SupernetLayout.of(space), task.input_shape, task.num_outputs, frame, output_dropout)


class SharedCells(PlainSupernet):
    """A plain supernet for training along paths, stored channels last if operations have `WIDE` channels or more."""

    def __init__(
        self, layout: SupernetLayout, input_shape: Sequence[int], num_outputs: int, frame: Frame, output_dropout: float
    ) -> None:
        super().__init__(layout, input_shape, num_outputs, frame)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.track_running_stats = False
                module.running_mean = module.running_var = module.num_batches_tracked = None
        self.final = nn.Sequential(self.final, nn.Dropout2d(output_dropout))  # whole maps: features of the mean
        wide = frame.channels // frame.split >= WIDE
        self.format = torch.channels_last if wide else torch.contiguous_format
        self.to(memory_format=self.format)  # type: ignore[call-overload]

    def forward(self, x: Tensor, architecture: Architecture | Genotype) -> Tensor:
        """Images `[N, c, H, W]` to outputs `[N, num_outputs]`."""
        return super().forward(x.contiguous(memory_format=self.format), architecture)


def drop_paths(genotype: Genotype, rate: float, rng: Generator) -> Cells | RecurrentPath:
    r"""Path without some random edges, as in Bender et al. (2018).

    Each of the k edges that enter a node of a cell is dropped with probability $r^{1/k}$, so that all of them are
    dropped with probability r; then one of them is kept, drawn at random. A node of a recurrent cell is dropped with
    probability r: it passes on the state of its predecessor.

    Args:
        genotype: cells or a recurrent cell.
        rate: r, from 0 to 1.
        rng: generator of the draws.

    >>> cells = cast(Cells, Genotype.parse("normal(0, 1): 2 = conv3(0) + max3(1); out = 2"))
    >>> drop_paths(cells, 0.0, Generator()) == cells
    True
    >>> len(drop_paths(cells, 1.0, Generator()).normal.edges)
    1
    """
    if isinstance(genotype, Recurrent):
        drawn = torch.rand(len(genotype.nodes), generator=rng) < rate
        return RecurrentPath.of(genotype, {number for number, drop in enumerate(drawn.tolist(), 1) if drop})
    return Cells(**{kind: _thinned(cell, rate, rng) for kind, cell in cast(Cells, genotype).parts().items()})


def _thinned(cell: Cell, rate: float, rng: Generator) -> Cell:
    edges = []
    for node in range(cell.num_inputs, cell.num_nodes):
        entering = cell.entering(node)
        dropped = torch.rand(len(entering), generator=rng) < rate ** (1 / len(entering))
        kept = [edge for edge, drop in zip(entering, dropped.tolist(), strict=True) if not drop]
        edges += kept or [entering[uniform_index(len(entering), rng)]]
    return Cell(cell.num_inputs, cell.num_nodes, tuple(edges), cell.output, cell.merge)
