"""The space of DARTS: a normal and a reduction cell, whose nodes each have edges from two earlier nodes."""

import itertools
import math
from dataclasses import dataclass, replace
from typing import cast

from nearkin.core.errors import require
from nearkin.search.genotypes.canonical import Edge
from nearkin.search.genotypes.cell import ZEROS, Cell
from nearkin.search.genotypes.genotype import Cells, Genotype
from nearkin.search.spaces.base import Space, digits, require_distinct, unknown_operation

DARTS_OPERATIONS = (
    "none", "max_pool_3x3", "avg_pool_3x3", "skip_connect", "sep_conv_3x3", "sep_conv_5x5", "dil_conv_3x3",
    "dil_conv_5x5",
)  # fmt: skip
"""Operations of an edge; `none` takes part in the search but is never chosen."""

ENAS_OPERATIONS = ("sep_conv_3x3", "sep_conv_5x5", "avg_pool_3x3", "max_pool_3x3", "skip_connect")
"""Operations of the cells of ENAS."""


@dataclass(frozen=True)
class DartsSpace(Space):
    r"""Cells whose nodes each sum edges from `num_predecessors` different earlier nodes; the output is all of them.

    With $m$ operations besides zeros, $i$ inputs, $n$ nodes and $p$ predecessors there are
    $\prod_{k=i}^{i+n-1} \binom{k}{p} m^p$ cells; with a reduction cell the size of the space is the square of it.
    Neighbours differ in the operation or the source of one edge.

    Attributes:
        operations: names of operations; zeros among them (`none`) are never chosen.
        num_inputs: number of inputs; 2 for the outputs of the two cells before.
        num_nodes: number of nodes besides the inputs.
        num_predecessors: number of edges that enter each node.
        reduction: whether there is a reduction cell.
        name: name of the space.

    >>> DartsSpace().size() == (1 * 3 * 6 * 10 * 7**8) ** 2
    True
    """

    operations: tuple[str, ...] = DARTS_OPERATIONS
    num_inputs: int = 2
    num_nodes: int = 4
    num_predecessors: int = 2
    reduction: bool = True
    name: str = "darts"

    def __post_init__(self) -> None:
        require_distinct(self.operations, "operations")
        require_distinct(self.choices(), "operations besides zeros")
        require(self.num_nodes >= 1, f"a cell has at least one node besides its inputs, got {self.num_nodes}")
        require(
            1 <= self.num_predecessors <= self.num_inputs,
            f"a node has 1 to {self.num_inputs} predecessors, the number of inputs; got {self.num_predecessors}",
        )

    def choices(self) -> tuple[str, ...]:
        """Operations that an edge may have."""
        return tuple(name for name in self.operations if name not in ZEROS)

    def size(self) -> int:
        """Number of normal cells, squared if there is a reduction cell."""
        return math.prod(self._radices())

    def at(self, index: int) -> Cells:
        """Genotype with a number; digits are, for each node, the choice of predecessors and their operations."""
        values = iter(digits(index, self._radices()))
        cells = [self._cell([next(values) for _ in self._cell_radices()]) for _ in self._parts()]
        return Cells(*cells)

    def objection(self, genotype: Genotype) -> str:
        """Why a genotype is not in the space."""
        if not isinstance(genotype, Cells) or set(genotype.parts()) != set(self._parts()):
            return f"the space has {' and '.join(self._parts())} cells"
        for kind, cell in genotype.parts().items():
            if (cell.num_inputs, cell.num_nodes) != (self.num_inputs, self._last()):
                return f"the {kind} cell does not have {self.num_inputs} inputs and {self.num_nodes} further nodes"
            if cell.merge != "concat" or cell.output != tuple(self._nodes()):
                return f"the {kind} cell does not concatenate all its nodes"
            for node in self._nodes():
                sources = [edge.source for edge in cell.entering(node)]
                if not len(set(sources)) == len(sources) == self.num_predecessors:
                    return (
                        f"node {node} of the {kind} cell does not have {self.num_predecessors} different predecessors"
                    )
        return unknown_operation([name for names in genotype.operations().values() for name in names], self.choices())

    def neighbours(self, genotype: Genotype) -> tuple[Genotype, ...]:
        """Genotypes with one other operation or one other source of an edge."""
        self.require_member(genotype)
        cells = cast(Cells, genotype).parts()
        return tuple(Cells(**{**cells, kind: other}) for kind, cell in cells.items() for other in self._changed(cell))

    def _changed(self, cell: Cell) -> list[Cell]:
        changed = []
        for index, edge in enumerate(cell.edges):
            taken = {other.source for other in cell.entering(edge.target)}
            renamed = [edge._replace(operation=name) for name in self.choices() if name != edge.operation]
            moved = [edge._replace(source=source) for source in range(edge.target) if source not in taken]
            for other in renamed + moved:
                changed.append(replace(cell, edges=(*cell.edges[:index], other, *cell.edges[index + 1 :])))
        return changed

    def _parts(self) -> tuple[str, ...]:
        return ("normal", "reduction") if self.reduction else ("normal",)

    def _last(self) -> int:
        return self.num_inputs + self.num_nodes

    def _nodes(self) -> range:
        return range(self.num_inputs, self._last())

    def _cell_radices(self) -> list[int]:
        names = [len(self.choices())] * self.num_predecessors
        return [radix for node in self._nodes() for radix in (math.comb(node, self.num_predecessors), *names)]

    def _radices(self) -> list[int]:
        return self._cell_radices() * len(self._parts())

    def _cell(self, values: list[int]) -> Cell:
        edges, width = [], 1 + self.num_predecessors
        for row, node in enumerate(self._nodes()):
            choice, *names = values[row * width : (row + 1) * width]
            sources = next(itertools.islice(itertools.combinations(range(node), self.num_predecessors), choice, None))
            edges += [Edge(s, node, self.choices()[name]) for s, name in zip(sources, names, strict=True)]
        return Cell(self.num_inputs, self._last(), tuple(edges), tuple(self._nodes()))
