"""Choice of a genotype from architecture weights: the strongest operation of each edge, the best edges of each node.

Notation: E edges of a cell, O operations of an edge.
"""

import heapq
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from nearkin.core.rng import Streams
from nearkin.search.genotypes.canonical import Edge
from nearkin.search.genotypes.cell import IDENTITIES, ZEROS, Cell
from nearkin.search.genotypes.genotype import Cells
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.limited import LimitedSpace, without_limits
from nearkin.search.spaces.restricted import ANY, RestrictedSpace
from nearkin.search.supernet.supernet_layout import Architecture, SupernetLayout

TRIES = 200
"""Number of genotypes that are tried, strongest first, to find one within the limits of a space."""

_DRAWS = 100

EdgeWeights = Mapping[str, Tensor]
"""By kind of cell (normal, reduction), the weights of all operations on all edges `[E, O]`: softmax(α) times β."""


def edge_weights(layout: SupernetLayout, architecture: Architecture) -> dict[str, Tensor]:
    """Weights by which edges and operations are chosen."""
    values = layout.weights({name: value.detach().double().cpu() for name, value in architecture.items()})
    return {kind: alpha * beta[:, None] for kind, (alpha, beta) in values.items()}


def choose_genotype(space: Space, layout: SupernetLayout, weights: EdgeWeights, max_skips: int | None = None) -> Cells:
    """The strongest genotype of a space with a largest number of skip connections in its normal cell.

    If the strongest genotype is outside a limit of the space, neighbours are tried, strongest first.
    """
    weights = limit_skips(layout, weights, max_skips)
    start = _strongest_member(space, layout, weights)
    if space.contains(start):
        return start
    queue, seen = [(-log_weight(layout, weights, start), str(start), start)], {start}
    whole = space.space if isinstance(space, LimitedSpace) else space
    for _ in range(TRIES):
        if not queue:
            break
        _, _, best = heapq.heappop(queue)
        if space.contains(best):
            return best
        for other in whole.neighbours(best) if whole.contains(best) else ():
            if (
                isinstance(other, Cells)
                and other not in seen
                and (value := log_weight(layout, weights, other)) > -math.inf
            ):
                seen.add(other)
                heapq.heappush(queue, (-value, str(other), other))
    drawn = [space.sample(Streams(0).at("draw", number)) for number in range(_DRAWS)]
    return max(
        (cells for cells in drawn if isinstance(cells, Cells)), key=lambda cells: log_weight(layout, weights, cells)
    )


def log_weight(layout: SupernetLayout, weights: EdgeWeights, genotype: Cells) -> float:
    """Sum of the logarithms of the weights of a genotype; minus infinity if it is not a path of the supernet."""
    total = 0.0
    for kind, cell in genotype.parts().items():
        if kind not in weights or (cell.num_inputs, cell.num_nodes) != (layout.num_inputs, layout.num_nodes):
            return -math.inf
        for edge in cell.edges:
            if edge.operation not in layout.operations[kind]:
                return -math.inf
            column = layout.operations[kind].index(edge.operation)
            total += math.log(max(1e-300, float(weights[kind][layout.pairs.index(edge[:2]), column])))
    return total


def mean_share(layout: SupernetLayout, weights: EdgeWeights, genotype: Cells) -> float:
    """Mean fraction of an edge's weight that its chosen operation has, without zeros; from 0 to 1."""
    shares = []
    for kind, cell in genotype.parts().items():
        names = layout.operations[kind]
        live = [column for column, name in enumerate(names) if name not in ZEROS]
        for edge in cell.edges:
            row = weights[kind][layout.pairs.index(edge[:2])]
            whole = row if edge.operation in ZEROS else row[live]
            shares.append(float(row[names.index(edge.operation)] / whole.sum()))
    return sum(shares) / len(shares)


def strongest_genotype(layout: SupernetLayout, weights: EdgeWeights) -> Cells:
    """The genotype of the largest weights.

    If nodes choose among edges (DARTS), zeros are excluded and each node keeps the edges of the largest weights.
    Otherwise every edge has its strongest operation.

    >>> from nearkin.search.spaces.general import GeneralSpace
    >>> layout = SupernetLayout.of(GeneralSpace((2,), ("zero", "conv3")))
    >>> print(strongest_genotype(layout, {"normal": torch.tensor([[0.4, 0.6]])}))
    normal(0): 1 = conv3(0); out = 1
    """
    return Cells(**{kind: _cell(layout, kind, weights[kind]) for kind in layout.operations})


def _cell(layout: SupernetLayout, kind: str, table: Tensor) -> Cell:
    names = layout.operations[kind]
    if layout.num_predecessors is not None:
        dead = [column for column, name in enumerate(names) if name in ZEROS]
        table = table.index_fill(1, torch.tensor(dead, dtype=torch.int64), -1.0)
    best = table.max(1)
    edges = []
    for node in range(layout.num_inputs, layout.num_nodes):
        ranked = sorted(layout.entering(node), key=lambda e: -float(best.values[e]))
        for e in ranked[: layout.num_predecessors]:
            edges.append(Edge(*layout.pairs[e], names[int(best.indices[e])]))
    return Cell(layout.num_inputs, layout.num_nodes, tuple(edges), layout.output)


def num_skips(genotype: Cells) -> int:
    """Number of skip connections in the normal cell."""
    return sum(edge.operation in IDENTITIES for edge in genotype.normal.edges)


def limit_skips(layout: SupernetLayout, weights: EdgeWeights, max_skips: int | None) -> dict[str, Tensor]:
    """Set the weights of the weakest chosen skip connections to zero until the number of skip connections is allowed.

    As in P-DARTS, such an edge then uses its next operation.
    """
    kept = {kind: table.clone() for kind, table in weights.items()}
    names = layout.operations["normal"]
    while max_skips is not None:
        skips = [edge for edge in strongest_genotype(layout, kept).normal.edges if edge.operation in IDENTITIES]
        if len(skips) <= max_skips:
            break
        entries = [(layout.pairs.index(edge[:2]), names.index(edge.operation)) for edge in skips]
        weakest = min(entries, key=lambda entry: float(kept["normal"][entry]))
        if kept["normal"][weakest] == 0:  # there is no other operation
            break
        kept["normal"][weakest] = 0.0
    return kept


def _strongest_member(space: Space, layout: SupernetLayout, weights: EdgeWeights) -> Cells:
    """The strongest genotype of a space without its limits."""
    space = without_limits(space)
    if not isinstance(space, RestrictedSpace):
        return strongest_genotype(layout, weights)
    allowed, members = dict(space.operations), []
    for form in space.structures:
        if not isinstance(form, Cells) or form.normal.num_nodes != layout.num_nodes:
            continue
        names = {kind: [_operation(layout, kind, edge, weights[kind], allowed[kind]) for edge in cell.edges]
                 for kind, cell in form.parts().items()}  # fmt: skip
        members.append(form.with_operations(names))
    return max(members, key=lambda cells: log_weight(layout, weights, cells))


def _operation(layout: SupernetLayout, kind: str, edge: Edge, table: Tensor, allowed: tuple[str, ...]) -> str:
    """Operation of an edge of a structure: the fixed one, or the strongest of the allowed ones."""
    if edge.operation != ANY:
        return edge.operation
    row, names = table[layout.pairs.index(edge[:2])], layout.operations[kind]
    return max(allowed, key=lambda name: float(row[names.index(name)]))
