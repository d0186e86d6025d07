"""Paths of a network with shared weights: the path of a genotype, and its metric on data."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.core.errors import OptionError
from nearkin.search.genotypes.canonical import Edge
from nearkin.search.genotypes.cell import IDENTITIES, Cell
from nearkin.search.genotypes.genotype import Cells, Genotype
from nearkin.search.objective import ObjectiveValue
from nearkin.search.supernet.supernet_layout import SupernetLayout
from nearkin.tasks.examples import Batch
from nearkin.tasks.likelihood import Likelihood

SHARED_LOSS = "shared loss"
"""Fact of a genotype that was measured with shared weights: its mean loss."""


@torch.no_grad()
def evaluate_path(net: nn.Module, path: Any, batches: Iterable[Batch], form: Likelihood) -> ObjectiveValue:
    """Metric and mean loss of a path on batches; weights and buffers of the network with shared weights stay unchanged.

    Args:
        net: network with shared weights, called with inputs and a path.
        path: the path.
        batches: inputs and targets.
        form: likelihood of the task.
    """
    total, count, tally = 0.0, 0, torch.zeros(())
    for x, y in batches:
        buffers = {name: value.clone() for name, value in net.named_buffers()}
        outputs: Tensor = torch.func.functional_call(net, buffers, (x, path))
        total += float(form.loss(outputs, y)) * len(y)
        count += len(y)
        tally = tally + form.tally(outputs, y)
    return ObjectiveValue(form.score(tally), {SHARED_LOSS: total / count})


def path_of(genotype: Genotype, layout: SupernetLayout) -> Cells:
    """The genotype as a path of a supernet: identities copy the output of a smaller cell to the last node.

    >>> from nearkin.search.spaces.general import GeneralSpace
    >>> small = Genotype.parse("normal(0): 1 = conv3(0); out = 1")
    >>> print(path_of(small, SupernetLayout.of(GeneralSpace((2, 3), ("identity", "conv3")))))
    normal(0): 1 = conv3(0); 2 = identity(1); out = 2
    """
    assert isinstance(genotype, Cells)
    cell = genotype.normal
    if cell.num_nodes >= layout.num_nodes:
        return genotype
    names = [name for name in layout.operations["normal"] if name in IDENTITIES]
    if not names:
        raise OptionError(
            "the space has cells of different sizes but no identity to extend the smaller ones; add identity to its "
            "operations, or use one size"
        )
    while cell.num_nodes < layout.num_nodes:
        edge = Edge(cell.num_nodes - 1, cell.num_nodes, names[0])
        cell = Cell(cell.num_inputs, cell.num_nodes + 1, (*cell.edges, edge), (cell.num_nodes,))
    return Cells(cell)
