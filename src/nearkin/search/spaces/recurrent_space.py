"""Space of recurrent cells as in ENAS and DARTS: a tree of nodes, each with an activation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from nearkin.core.errors import require
from nearkin.search.genotypes.genotype import Genotype, Recurrent, RecurrentNode
from nearkin.search.spaces.base import Space, digits, require_distinct, unknown_operation

ACTIVATIONS = ("tanh", "relu", "sigmoid", "identity")


@dataclass(frozen=True)
class RecurrentSpace(Space):
    r"""Cells of $n$ nodes with $m$ activations; the size is $n!\,m^n$.

    Neighbours differ in one predecessor or activation.

    Attributes:
        num_nodes: number of nodes after the first, which mixes input and hidden state; 8 in DARTS, 12 in ENAS.
        activations: names of activations.
        loose_ends: whether the output is the mean of nodes without successors (ENAS) or of all nodes (DARTS).
        name: name of the space.

    >>> RecurrentSpace().size() == math.factorial(8) * 4**8
    True
    """

    num_nodes: int = 8
    activations: tuple[str, ...] = ACTIVATIONS
    loose_ends: bool = False
    name: str = "recurrent"

    def __post_init__(self) -> None:
        require(self.num_nodes >= 1, f"a recurrent cell has at least one node, got {self.num_nodes}")
        require_distinct(self.activations, "activations")

    def size(self) -> int:
        """Product of $n!$ and $m^n$."""
        return math.prod(self._radices())

    def at(self, index: int) -> Recurrent:
        """Cell with a number; digits are the predecessor and the activation of each node."""
        values = iter(digits(index, self._radices()))
        return self.cell([(next(values), self.activations[next(values)]) for _ in range(self.num_nodes)])

    def objection(self, genotype: Genotype) -> str:
        """Why a genotype is not a recurrent cell of this space."""
        if not isinstance(genotype, Recurrent):
            return "the space has recurrent cells"
        if len(genotype.nodes) != self.num_nodes:
            return f"it has {len(genotype.nodes)} nodes, the space has {self.num_nodes}"
        if genotype != self.cell(genotype.nodes):
            return f"its output is not the mean of {'nodes without successors' if self.loose_ends else 'all nodes'}"
        return unknown_operation([node.activation for node in genotype.nodes], self.activations)

    def neighbours(self, genotype: Genotype) -> tuple[Genotype, ...]:
        """Cells with one other predecessor or activation."""
        self.require_member(genotype)
        nodes = cast(Recurrent, genotype).nodes
        neighbours = []
        for index, node in enumerate(nodes):
            renamed = [node._replace(activation=name) for name in self.activations if name != node.activation]
            moved = [node._replace(predecessor=p) for p in range(index + 1) if p != node.predecessor]
            neighbours += [self.cell((*nodes[:index], other, *nodes[index + 1 :])) for other in renamed + moved]
        return tuple(neighbours)

    def _radices(self) -> list[int]:
        return [radix for node in range(1, self.num_nodes + 1) for radix in (node, len(self.activations))]

    def cell(self, nodes: Sequence[tuple[int, str]]) -> Recurrent:
        """Cell with these predecessors and activations, and the output of this space."""
        followed = {predecessor for predecessor, _ in nodes} if self.loose_ends else set()
        output = tuple(number for number in range(1, len(nodes) + 1) if number not in followed)
        return Recurrent(tuple(RecurrentNode(*node) for node in nodes), output)
