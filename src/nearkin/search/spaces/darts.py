"""The space of DARTS: a normal and a reduction cell, in which every node chooses two earlier ones."""

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
    "none",
    "max_pool_3x3",
    "avg_pool_3x3",
    "skip_connect",
    "sep_conv_3x3",
    "sep_conv_5x5",
    "dil_conv_3x3",
    "dil_conv_5x5",
)
"""The eight of a mixed operation; `none` takes part in the search and is never chosen."""


@dataclass(frozen=True)
class DartsSpace(Space):
    r"""Cells whose nodes each add up edges from `num_predecessors` different earlier nodes; the output is all of them.

    With $m$ operations besides zeros, $i$ inputs, $n$ nodes and $p$ predecessors a cell has
    $\prod_{k=i}^{i+n-1} \binom{k}{p} m^p$ forms; with a reduction cell the space has the square of it.
    Neighbours differ in one edge, by its operation or by its source.

    Attributes:
        operations: any names; zeros among them (`none`) are never chosen.
        num_inputs: 2, the outputs of the two cells before.
        num_nodes: nodes besides the inputs.
        num_predecessors: edges that enter each node.
        reduction: whether there is a reduction cell.
        name: what the space is called.

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
            f"the first node has {self.num_inputs} earlier ones, got {self.num_predecessors} predecessors to choose",
        )

    def choices(self) -> tuple[str, ...]:
        """The operations that an edge may have."""
        return tuple(name for name in self.operations if name not in ZEROS)

    def size(self) -> int:
        """The number of normal cells, squared where there is a reduction cell."""
        return math.prod(self._radices())

    def at(self, index: int) -> Cells:
        """Node by node: which predecessors, then the operation of each."""
        values = iter(digits(index, self._radices()))
        cells = [self._cell([next(values) for _ in self._cell_radices()]) for _ in self._parts()]
        return Cells(*cells)

    def objection(self, genotype: Genotype) -> str:
        """Why a genotype is of another space."""
        if not isinstance(genotype, Cells) or set(genotype.parts()) != set(self._parts()):
            return f"the space has {' and '.join(self._parts())} cells"
        for part, cell in genotype.parts().items():
            if (cell.num_inputs, cell.num_nodes) != (self.num_inputs, self._last()):
                return f"the {part} cell is not one of {self.num_inputs} inputs and {self.num_nodes} further nodes"
            if cell.merge != "concat" or cell.output != tuple(self._nodes()):
                return f"the {part} cell does not concatenate all its nodes"
            for node in self._nodes():
                sources = [edge.source for edge in cell.entering(node)]
                if not len(set(sources)) == len(sources) == self.num_predecessors:
                    return f"node {node} of the {part} cell has not {self.num_predecessors} different predecessors"
        return unknown_operation([name for names in genotype.operations().values() for name in names], self.choices())

    def neighbours(self, genotype: Genotype) -> tuple[Genotype, ...]:
        """Those with one other operation or one edge from elsewhere."""
        self.require_member(genotype)
        cells = cast(Cells, genotype).parts()
        return tuple(Cells(**{**cells, part: other}) for part, cell in cells.items() for other in self._changed(cell))

    def _changed(self, cell: Cell) -> list[Cell]:
        found = []
        for place, edge in enumerate(cell.edges):
            taken = {other.source for other in cell.entering(edge.target)}
            named = [edge._replace(operation=name) for name in self.choices() if name != edge.operation]
            moved = [edge._replace(source=source) for source in range(edge.target) if source not in taken]
            for other in named + moved:
                found.append(replace(cell, edges=(*cell.edges[:place], other, *cell.edges[place + 1 :])))
        return found

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
        edges = []
        for node, (which, *names) in zip(self._nodes(), _rows(values, 1 + self.num_predecessors), strict=True):
            sources = next(itertools.islice(itertools.combinations(range(node), self.num_predecessors), which, None))
            edges += [Edge(s, node, self.choices()[name]) for s, name in zip(sources, names, strict=True)]
        return Cell(self.num_inputs, self._last(), tuple(edges), tuple(self._nodes()))


def _rows(values: list[int], width: int) -> list[list[int]]:
    return [values[start : start + width] for start in range(0, len(values), width)]
