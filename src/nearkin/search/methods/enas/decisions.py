"""Genotypes as sequences of decisions: which earlier node each edge reads, and which operation it has.

A sequence also has steps without a decision, in which the controller begins a cell or remembers a node. All genotypes
of a space have the same steps, so a controller samples many of them at once.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from nearkin.core.errors import OptionError
from nearkin.search.genotypes.canonical import Edge
from nearkin.search.genotypes.cell import Cell
from nearkin.search.genotypes.genotype import Cells, Genotype, Recurrent
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.darts import DartsSpace
from nearkin.search.spaces.general import GeneralSpace
from nearkin.search.spaces.limited import without_limits
from nearkin.search.spaces.recurrent_space import RecurrentSpace
from nearkin.search.supernet.supernet_layout import SupernetLayout
from nearkin.search.tabular import ListedSpace

CELL, NODE, SOURCE, OPERATION = "cell", "node", "source", "operation"
"""Kinds of steps: begin a cell, remember a node; decide the source of an edge, decide its operation."""


class DecisionStep(NamedTuple):
    """A step of the controller.

    Attributes:
        kind: `CELL` or `NODE` without a decision, `SOURCE` or `OPERATION` with one.
        part: part of the genotype, which has its own operations: `normal`, `reduction` or `nodes`.
        size: number of options of the decision.
        excluded: number of decisions just before this one whose sources may not be chosen again.
    """

    kind: str
    part: str
    size: int = 0
    excluded: int = 0


class DecisionSequence(ABC):
    """The genotypes of a space as sequences of D decisions."""

    @property
    @abstractmethod
    def operations(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the operations of each part."""

    @abstractmethod
    def _steps(self) -> Iterator[DecisionStep]:
        """Steps in order."""

    @abstractmethod
    def genotype(self, decisions: Sequence[int]) -> Genotype:
        """Genotype of D decisions."""

    @abstractmethod
    def decisions(self, genotype: Genotype) -> list[int]:
        """Decisions that give a genotype; the sources of a node are in increasing order."""

    @cached_property
    def steps(self) -> tuple[DecisionStep, ...]:
        """Steps in order."""
        return tuple(self._steps())


def decision_sequence(space: Space) -> DecisionSequence:
    """Sequence for a space of cells or of recurrent cells, or a list of such; limits of the space are not part of it.

    >>> cells = decision_sequence(DartsSpace(("conv3", "max3"), num_nodes=2, reduction=False))
    >>> [step.size for step in cells.steps if step.size]
    [2, 2, 2, 2, 3, 3, 2, 2]
    >>> print(cells.genotype([0, 1, 0, 0, 2, 0, 1, 0]))
    normal(0, 1): 2 = conv3(0) + conv3(1); 3 = conv3(0) + max3(2); out = concat(2, 3)
    """
    whole = without_limits(space)
    if isinstance(whole, ListedSpace):
        return decision_sequence(whole.space)
    if isinstance(whole, RecurrentSpace):
        return RecurrentDecisions(whole)
    if isinstance(whole, DartsSpace):
        return CellDecisions(SupernetLayout.of(whole), whole.choices())
    if isinstance(whole, GeneralSpace) and len(whole.num_nodes) == 1:
        return CellDecisions(SupernetLayout.of(whole), whole.operations)
    raise OptionError(
        f"a controller needs cells with the same number of nodes, and the space {space.name} has others; use --space "
        f"full, or one number of nodes, such as general?nodes=4"
    )


@dataclass(frozen=True)
class CellDecisions(DecisionSequence):
    """Decisions of cells, node by node: its sources, if nodes choose them, then the operations of its edges.

    Attributes:
        layout: inputs, nodes and output of the cells; if sources are fixed, every node reads all earlier ones.
        names: operations of an edge.
    """

    layout: SupernetLayout
    names: tuple[str, ...]

    @property
    def operations(self) -> dict[str, tuple[str, ...]]:
        """The same operations for every cell."""
        return dict.fromkeys(self.layout.operations, self.names)

    def _steps(self) -> Iterator[DecisionStep]:
        chosen = self.layout.num_predecessors
        for part in self.operations:
            yield DecisionStep(CELL, part)
            for _ in range(self.layout.num_inputs):
                yield DecisionStep(NODE, part)
            for node in range(self.layout.num_inputs, self.layout.num_nodes):
                for number in range(chosen or 0):
                    yield DecisionStep(SOURCE, part, node, number)
                for _ in range(chosen or node):
                    yield DecisionStep(OPERATION, part, len(self.names))
                yield DecisionStep(NODE, part)

    def genotype(self, decisions: Sequence[int]) -> Cells:
        """Cells of the decisions."""
        rest, layout, cells = iter(decisions), self.layout, {}
        for part in self.operations:
            edges = []
            for node in range(layout.num_inputs, layout.num_nodes):
                count = layout.num_predecessors
                sources = range(node) if count is None else [next(rest) for _ in range(count)]
                edges += [Edge(source, node, self.names[next(rest)]) for source in sources]
            cells[part] = Cell(layout.num_inputs, layout.num_nodes, tuple(edges), layout.output)
        return Cells(**cells)

    def decisions(self, genotype: Genotype) -> list[int]:
        """Sources in increasing order, then operations, node by node."""
        assert isinstance(genotype, Cells)
        decisions: list[int] = []
        for cell in genotype.parts().values():
            for node in range(self.layout.num_inputs, self.layout.num_nodes):
                edges = cell.entering(node)
                if self.layout.num_predecessors is not None:
                    decisions += [edge.source for edge in edges]
                decisions += [self.names.index(edge.operation) for edge in edges]
        return decisions


@dataclass(frozen=True)
class RecurrentDecisions(DecisionSequence):
    """Decisions of a recurrent cell: the predecessor and the activation of each node."""

    space: RecurrentSpace

    @property
    def operations(self) -> dict[str, tuple[str, ...]]:
        """The activations."""
        return {"nodes": self.space.activations}

    def _steps(self) -> Iterator[DecisionStep]:
        yield DecisionStep(CELL, "nodes")
        yield DecisionStep(NODE, "nodes")
        for node in range(1, self.space.num_nodes + 1):
            yield DecisionStep(SOURCE, "nodes", node)
            yield DecisionStep(OPERATION, "nodes", len(self.space.activations))
            yield DecisionStep(NODE, "nodes")

    def genotype(self, decisions: Sequence[int]) -> Recurrent:
        """Recurrent cell of the decisions."""
        pairs = zip(decisions[::2], decisions[1::2], strict=True)
        return self.space.cell([(source, self.space.activations[number]) for source, number in pairs])

    def decisions(self, genotype: Genotype) -> list[int]:
        """Predecessor and activation of each node."""
        assert isinstance(genotype, Recurrent)
        return [choice for node in genotype.nodes
                for choice in (node.predecessor, self.space.activations.index(node.activation))]  # fmt: skip
