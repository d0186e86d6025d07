"""The general space: complete cells, with an operation on every pair of nodes."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Generator

from nearkin.core.errors import require
from nearkin.search.genotypes.canonical import Edge
from nearkin.search.genotypes.cell import IDENTITIES, ZEROS, Cell
from nearkin.search.genotypes.genotype import Cells, Genotype
from nearkin.search.spaces.base import Space, digits, locate_summand, require_distinct, uniform_index, unknown_operation

GENERAL_OPERATIONS = (
    "zero", "identity", "max3", "avg3", "conv3", "conv5", "conv7", "dil3", "dil5", "conv7x1-1x7",
)  # fmt: skip
"""Operations of the paper on the Fréchet task distance, appendix A."""


def complete_cell(operations: tuple[str, ...], num_nodes: int) -> Cells:
    """Cell with an edge between any two nodes; node 0 is the input, the last node is the output.

    Operations are in the order of the edges (0, 1), (0, 2), (1, 2), (0, 3), …

    >>> print(complete_cell(("conv3", "zero", "max3"), 3))
    normal(0): 1 = conv3(0); 2 = zero(0) + max3(1); out = 2
    """
    pairs = [(source, target) for target in range(1, num_nodes) for source in range(target)]
    edges = tuple(Edge(*pair, operation) for pair, operation in zip(pairs, operations, strict=True))
    return Cells(Cell(1, num_nodes, edges, (num_nodes - 1,)))


def folded_key(genotype: Genotype) -> str:
    """Canonical form without zeros and without redundant identities."""
    return str(genotype.canonical(fold_identities=True))


@dataclass(frozen=True)
class GeneralSpace(Space):
    r"""Complete cells of $n$ nodes with $m$ operations; the size is $\sum_n m^{n(n-1)/2}$ over `num_nodes`.

    Neighbours differ in the operation of one edge. If the space has cells of $n$ and of $n + 1$ nodes, a cell is also a
    neighbour of the larger cell that copies its output to one more node by an identity and computes the same.

    Attributes:
        num_nodes: allowed numbers of nodes, including input and output.
        operations: names of operations.
        name: name of the space.
        key: function that gives `unique_key`: genotypes with one key count as one architecture.

    >>> GeneralSpace().size() == 10**3 + 10**6
    True
    """

    num_nodes: tuple[int, ...] = (3, 4)
    operations: tuple[str, ...] = GENERAL_OPERATIONS
    name: str = "general"
    key: Callable[[Genotype], str] = folded_key

    def __post_init__(self) -> None:
        require_distinct(self.num_nodes, "numbers of nodes")
        require_distinct(self.operations, "operations")
        require(min(self.num_nodes) >= 2, f"a cell has at least 2 nodes, input and output; got {min(self.num_nodes)}")

    def size(self) -> int:
        """Sum of m^(n(n−1)/2) over the numbers of nodes."""
        return sum(self._sizes())

    def at(self, index: int) -> Cells:
        """Cell with a number, in the order of `num_nodes`; the operation of the last edge changes fastest."""
        summand, rest = locate_summand(index, self._sizes())
        num_nodes = self.num_nodes[summand]
        chosen = digits(rest, [len(self.operations)] * math.comb(num_nodes, 2))
        return complete_cell(tuple(self.operations[digit] for digit in chosen), num_nodes)

    def objection(self, genotype: Genotype) -> str:
        """Why a genotype is not a complete cell of this space."""
        if not isinstance(genotype, Cells) or genotype.reduction is not None:
            return "the space has one cell"
        cell = genotype.normal
        if cell.num_nodes not in self.num_nodes:
            return f"it has {cell.num_nodes} nodes, the space has {' or '.join(map(str, self.num_nodes))}"
        names = genotype.operations()["normal"]
        if len(names) != math.comb(cell.num_nodes, 2) or complete_cell(names, cell.num_nodes) != genotype:
            return "the space has one input, one edge between any two nodes, and the last node as output"
        return unknown_operation(names, self.operations)

    def neighbours(self, genotype: Genotype) -> tuple[Genotype, ...]:
        """Cells with one other operation, then cells with one node more or less that compute the same."""
        names = self._names(genotype)
        changes = len(names) * (len(self.operations) - 1)
        return (*(self._changed(names, change) for change in range(changes)), *self._resized(names))

    def mutate(self, genotype: Genotype, rng: Generator) -> Genotype:
        """Draw a neighbour without building the others."""
        names = self._names(genotype)
        resized = self._resized(names)
        changes = len(names) * (len(self.operations) - 1)
        if not changes + len(resized):
            return genotype
        chosen = uniform_index(changes + len(resized), rng)
        return self._changed(names, chosen) if chosen < changes else resized[chosen - changes]

    def unique_key(self, genotype: Genotype) -> str:
        """Value of `key` (default: canonical form with identities folded)."""
        return self.key(genotype)

    def _sizes(self) -> list[int]:
        return [int(len(self.operations) ** math.comb(nodes, 2)) for nodes in self.num_nodes]

    def _names(self, genotype: Genotype) -> tuple[str, ...]:
        self.require_member(genotype)
        return genotype.operations()["normal"]

    def _changed(self, names: tuple[str, ...], change: int) -> Cells:
        """Cell with one other operation; changes are numbered edge by edge."""
        edge, choice = divmod(change, len(self.operations) - 1)
        others = [name for name in self.operations if name != names[edge]]
        return complete_cell((*names[:edge], others[choice], *names[edge + 1 :]), _num_nodes(names))

    def _resized(self, names: tuple[str, ...]) -> list[Cells]:
        """Cells of the space with one node more or less that compute the same."""
        zeros = [name for name in self.operations if name in ZEROS]
        identities = [name for name in self.operations if name in IDENTITIES]
        resized: list[Cells] = []
        if len(self.num_nodes) == 1 or not len(zeros) == len(identities) == 1:
            return resized
        nodes = _num_nodes(names)
        tail = (*zeros * (nodes - 1), *identities)
        if nodes + 1 in self.num_nodes:
            resized.append(complete_cell((*names, *tail), nodes + 1))
        if nodes - 1 in self.num_nodes and names[1 - nodes :] == tail[1:]:
            resized.append(complete_cell(names[: 1 - nodes], nodes - 1))
        return resized


def _num_nodes(names: tuple[str, ...]) -> int:
    """Number of nodes of a complete cell with these operations."""
    return (1 + math.isqrt(1 + 8 * len(names))) // 2
