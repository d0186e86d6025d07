"""From architecture weights to a genotype: on every edge the strongest operation, of every node the best edges.

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
from nearkin.search.spaces.limited import LimitedSpace
from nearkin.search.spaces.restricted import ANY, RestrictedSpace
from nearkin.search.supernet.supernet_layout import Architecture, SupernetLayout

TRIES = 200
"""Genotypes that are looked at, strongest first, to find one within the limits of a space."""

_DRAWS = 100

Strengths = Mapping[str, Tensor]
"""By part the weight of every operation on every edge, `[E, O]`: softmax(α), times that of the edge."""


def edge_weights(layout: SupernetLayout, architecture: Architecture) -> dict[str, Tensor]:
    """The weights by which edges and operations are chosen."""
    found = layout.weights({name: value.detach().double().cpu() for name, value in architecture.items()})
    return {part: alpha * beta[:, None] for part, (alpha, beta) in found.items()}


def chosen(space: Space, layout: SupernetLayout, found: Strengths, max_skips: int | None = None) -> Cells:
    """The strongest genotype that lies in a space, with at most so many skip connections in its normal cell.

    Where a limit forbids the strongest, others are looked at from neighbour to neighbour, strongest first.
    """
    kept = limit_skips(layout, found, max_skips)
    start = _start(space, layout, kept)
    if space.contains(start):
        return start
    queue, seen = [(-log_weight(layout, kept, start), str(start), start)], {start}
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
                and (value := log_weight(layout, kept, other)) > -math.inf
            ):
                seen.add(other)
                heapq.heappush(queue, (-value, str(other), other))
    drawn = [space.sample(Streams(0).at("draw", number)) for number in range(_DRAWS)]
    return max((one for one in drawn if isinstance(one, Cells)), key=lambda one: log_weight(layout, kept, one))


def log_weight(layout: SupernetLayout, found: Strengths, genotype: Cells) -> float:
    """The sum of the logarithms of a genotype's weights; minus infinity for one that is no path of the layout."""
    total = 0.0
    for part, cell in genotype.parts().items():
        if part not in found or (cell.num_inputs, cell.num_nodes) != (layout.num_inputs, layout.num_nodes):
            return -math.inf
        for edge in cell.edges:
            if edge.operation not in layout.operations[part]:
                return -math.inf
            place = layout.operations[part].index(edge.operation)
            total += math.log(max(1e-300, float(found[part][layout.pairs.index(edge[:2]), place])))
    return total


def mean_share(layout: SupernetLayout, found: Strengths, genotype: Cells) -> float:
    """The mean share that the chosen operation has of its edge's weight, zeros left out; from 0 to 1."""
    shares = []
    for part, cell in genotype.parts().items():
        names = layout.operations[part]
        live = [place for place, name in enumerate(names) if name not in ZEROS]
        for edge in cell.edges:
            row = found[part][layout.pairs.index(edge[:2])]
            whole = row if edge.operation in ZEROS else row[live]
            shares.append(float(row[names.index(edge.operation)] / whole.sum()))
    return sum(shares) / len(shares)


def strongest_genotype(layout: SupernetLayout, found: Strengths) -> Cells:
    """The genotype of the largest weights.

    Where nodes choose among edges (DARTS), zeros do not count and each keeps the edges of the largest weights; else
    every edge has its strongest operation.

    >>> from nearkin.search.spaces.general import GeneralSpace
    >>> layout = SupernetLayout.of(GeneralSpace((2,), ("zero", "conv3")))
    >>> print(strongest_genotype(layout, {"normal": torch.tensor([[0.4, 0.6]])}))
    normal(0): 1 = conv3(0); out = 1
    """
    return Cells(**{part: _cell(layout, part, found[part]) for part in layout.operations})


def _cell(layout: SupernetLayout, part: str, table: Tensor) -> Cell:
    names = layout.operations[part]
    if layout.num_predecessors is not None:
        dead = [place for place, name in enumerate(names) if name in ZEROS]
        table = table.index_fill(1, torch.tensor(dead, dtype=torch.int64), -1.0)
    best = table.max(1)
    edges = []
    for node in range(layout.num_inputs, layout.num_nodes):
        ranked = sorted(layout.entering(node), key=lambda e: -float(best.values[e]))
        for e in ranked[: layout.num_predecessors]:
            edges.append(Edge(*layout.pairs[e], names[int(best.indices[e])]))
    return Cell(layout.num_inputs, layout.num_nodes, tuple(edges), layout.output)


def num_skips(genotype: Cells) -> int:
    """Skip connections of the normal cell."""
    return sum(edge.operation in IDENTITIES for edge in genotype.normal.edges)


def limit_skips(layout: SupernetLayout, found: Strengths, max_skips: int | None) -> dict[str, Tensor]:
    """The weights with those of the weakest chosen skip connections set to zero until at most so many are chosen.

    As in P-DARTS: an edge that loses its skip connection is chosen anew with what comes next on it.
    """
    kept = {part: table.clone() for part, table in found.items()}
    names = layout.operations["normal"]
    while max_skips is not None:
        skips = [edge for edge in strongest_genotype(layout, kept).normal.edges if edge.operation in IDENTITIES]
        if len(skips) <= max_skips:
            break
        places = [(layout.pairs.index(edge[:2]), names.index(edge.operation)) for edge in skips]
        weakest = min(places, key=lambda place: float(kept["normal"][place]))
        if kept["normal"][weakest] == 0:  # nothing else can be chosen
            break
        kept["normal"][weakest] = 0.0
    return kept


def _start(space: Space, layout: SupernetLayout, found: Strengths) -> Cells:
    if isinstance(space, LimitedSpace):
        return _start(space.space, layout, found)
    if not isinstance(space, RestrictedSpace):
        return strongest_genotype(layout, found)
    allowed, filled = dict(space.operations), []
    for form in space.structures:
        if not isinstance(form, Cells) or form.normal.num_nodes != layout.num_nodes:
            continue
        named = {part: [_named(layout, part, edge, found[part], allowed[part]) for edge in cell.edges]
                 for part, cell in form.parts().items()}  # fmt: skip
        filled.append(form.with_operations(named))
    return max(filled, key=lambda one: log_weight(layout, found, one))


def _named(layout: SupernetLayout, part: str, edge: Edge, table: Tensor, allowed: tuple[str, ...]) -> str:
    """The operation of an edge of a structure: as it is, or the strongest of those allowed."""
    if edge.operation != ANY:
        return edge.operation
    row, names = table[layout.pairs.index(edge[:2])], layout.operations[part]
    return max(allowed, key=lambda name: float(row[names.index(name)]))
