"""Genotypes: architectures as small values that are written as text and read back without loss.

There are three kinds: `Cells` (a normal and perhaps a reduction cell), `Chain` (a sequence of blocks) and `Recurrent`
(the nodes of a recurrent cell). Two genotypes are equal if their texts are equal; the order of edges does not matter.
Genotypes that differ only in the numbers of nodes and in useless edges are equal after `canonical()`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nearkin.core.errors import require
from nearkin.search.genotypes.block import Block, read_block
from nearkin.search.genotypes.canonical import Edge, Graph, canonical
from nearkin.search.genotypes.cell import Cell, read_cell
from nearkin.search.genotypes.notation import MAX_NODES, Scanner, read_nodes, require_count, require_name

SKIP = "skip"
"""Name of a skipped block of a chain."""


class Genotype(ABC):
    """A cell, chain or recurrent cell; frozen and hashable, `Genotype.parse(str(genotype)) == genotype`.

    >>> text = "normal(0): 1 = conv3(0); 2 = max3(0) + conv5(1); out = 2"
    >>> str(Genotype.parse(text)) == text
    True
    >>> Genotype.parse("normal(0): 1 = conv3(2); out = 1")
    Traceback (most recent call last):
    nearkin.core.errors.OptionError: genotype, position 21: expected a node before 1, got '2); out = 1'
    """

    @staticmethod
    def parse(text: str) -> "Genotype":
        """Read the text of a genotype; white space does not matter."""
        scan = Scanner(text)
        kind = scan.one_of(("normal", "chain", "recurrent"), "normal(…), chain or recurrent(0)")
        read: Callable[[Scanner], Genotype]
        read = {"chain": _read_chain, "recurrent": _read_recurrent, "normal": _read_cells}[kind]
        genotype = read(scan)
        scan.end()
        return genotype

    @abstractmethod
    def canonical(self, *, fold_identities: bool = False) -> "Genotype":
        """Canonical form of isomorphic genotypes; `fold_identities` also removes redundant identities."""

    @abstractmethod
    def operations(self) -> Mapping[str, tuple[str, ...]]:
        """Operations of each part in the order of the text."""

    @abstractmethod
    def with_operations(self, operations: Mapping[str, Sequence[str]]) -> "Genotype":
        """The same structure with other operations, in the order of `operations()`."""


@dataclass(frozen=True)
class Cells(Genotype):
    """A normal cell and, if there is one, a reduction cell.

    >>> mirrored = Genotype.parse("normal(0): 1 = b(0); 2 = a(0); 3 = c(1) + c(2); out = 3")
    >>> print(mirrored.canonical())
    normal(0): 1 = a(0); 2 = b(0); 3 = c(1) + c(2); out = 3
    """

    normal: Cell
    reduction: Cell | None = None

    def canonical(self, *, fold_identities: bool = False) -> "Cells":
        """Both cells in canonical form, without zeros and useless nodes.

        `fold_identities` contracts identities that only copy a node; in a reduction cell, those of the inputs stay,
        because they halve height and width.
        """
        reduction = self.reduction and self.reduction.canonical(fold_identities=fold_identities, strided=True)
        return Cells(self.normal.canonical(fold_identities=fold_identities), reduction)

    def operations(self) -> dict[str, tuple[str, ...]]:
        """Operations of `normal` and `reduction`."""
        return {kind: tuple(edge.operation for edge in cell.edges) for kind, cell in self.parts().items()}

    def with_operations(self, operations: Mapping[str, Sequence[str]]) -> "Cells":
        """The same cells with other operations."""
        return Cells(**{kind: cell.with_operations(operations[kind]) for kind, cell in self.parts().items()})

    def parts(self) -> dict[str, Cell]:
        """The cells by kind: `normal`, and `reduction` if there is one."""
        cells = {"normal": self.normal}
        return cells if self.reduction is None else {**cells, "reduction": self.reduction}

    def __str__(self) -> str:
        return " | ".join(f"{kind}{cell}" for kind, cell in self.parts().items())


@dataclass(frozen=True)
class Chain(Genotype):
    """A sequence of blocks.

    >>> chain = Genotype.parse("chain: mbconv(kernel=3, expansion=6); skip")
    >>> first, second = chain.blocks[:2]
    >>> first["kernel"], str(second)
    (3, 'skip')
    """

    blocks: tuple[Block, ...]

    def __post_init__(self) -> None:
        require(len(self.blocks) > 0, "a chain has at least one block, got none")

    def canonical(self, *, fold_identities: bool = False) -> "Chain":
        """The chain itself; its space knows which chains are equivalent (`Space.unique_key`)."""
        return self

    def operations(self) -> dict[str, tuple[str, ...]]:
        """The blocks as text."""
        return {"blocks": tuple(map(str, self.blocks))}

    def with_operations(self, operations: Mapping[str, Sequence[str]]) -> "Chain":
        """A chain of other blocks."""
        require_count(operations["blocks"], len(self.blocks), "blocks")
        return Chain(tuple(Block.parse(text) for text in operations["blocks"]))

    def __str__(self) -> str:
        return "chain: " + "; ".join(map(str, self.blocks))


class RecurrentNode(NamedTuple):
    """An earlier node, and the activation after a linear map of it."""

    predecessor: int
    activation: str


@dataclass(frozen=True)
class Recurrent(Genotype):
    """A recurrent cell: node 0 mixes input and hidden state, each further node follows one before it.

    Attributes:
        nodes: nodes from 1 on.
        output: nodes whose mean is the new hidden state (default: all).

    >>> print(Recurrent(((0, "tanh"), (1, "relu"))))
    recurrent(0): 1 = tanh(0); 2 = relu(1); out = mean(1, 2)
    """

    nodes: tuple[RecurrentNode, ...]
    output: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        nodes = tuple(RecurrentNode(*node) for node in self.nodes)
        numbers = range(1, len(nodes) + 1)
        require(len(nodes) > 0, "a recurrent cell has at least one node, got none")
        require(len(nodes) < MAX_NODES, f"a recurrent cell has at most {MAX_NODES - 1} nodes, got {len(nodes)}")
        bad = next((i for i, node in zip(numbers, nodes, strict=True) if not 0 <= node.predecessor < i), None)
        require(bad is None, f"node {bad} follows an earlier one, got {nodes[(bad or 1) - 1].predecessor}")
        for node in nodes:
            require_name(node.activation, "an activation")
        output = tuple(sorted(set(self.output))) or tuple(numbers)
        require(
            set(output) <= set(numbers) and len(output) == len(self.output or output),
            f"the output names nodes from 1 to {len(nodes)}, each once; got {self.output}",
        )
        object.__setattr__(self, "nodes", nodes)
        object.__setattr__(self, "output", output)

    def edges(self) -> tuple[Edge, ...]:
        """The nodes as edges of a graph whose input is node 0."""
        return tuple(Edge(node.predecessor, number, node.activation) for number, node in enumerate(self.nodes, 1))

    def canonical(self, *, fold_identities: bool = False) -> "Recurrent":
        """Canonical form without useless nodes; identities have weights and are never folded."""
        graph = canonical(Graph(1, len(self.nodes) + 1, self.edges(), self.output))
        return Recurrent(tuple(RecurrentNode(edge.source, edge.operation) for edge in graph.edges), graph.output)

    def operations(self) -> dict[str, tuple[str, ...]]:
        """Activations of the nodes."""
        return {"nodes": tuple(node.activation for node in self.nodes)}

    def with_operations(self, operations: Mapping[str, Sequence[str]]) -> "Recurrent":
        """The same predecessors with other activations."""
        require_count(operations["nodes"], len(self.nodes), "nodes")
        pairs = zip(self.nodes, operations["nodes"], strict=True)
        return Recurrent(tuple(node._replace(activation=name) for node, name in pairs), self.output)

    def __str__(self) -> str:
        nodes = [f"{number} = {node.activation}({node.predecessor})" for number, node in enumerate(self.nodes, 1)]
        return "recurrent(0): " + "; ".join([*nodes, f"out = mean({', '.join(map(str, self.output))})"])


def _read_cells(scan: Scanner) -> Cells:
    normal = read_cell(scan)
    if not scan.accept("|"):
        return Cells(normal)
    scan.one_of(("reduction",), "reduction(…)")
    return Cells(normal, read_cell(scan))


def _read_recurrent(scan: Scanner) -> Recurrent:
    for mark in ("(", "0", ")", ":"):
        scan.expect(mark)
    nodes: list[RecurrentNode] = []
    while not nodes or not scan.accept_name("out"):
        node = len(nodes) + 1
        scan.number(f"node {node} or out" if nodes else "node 1", (node,))
        scan.expect("=")
        activation = scan.name("an activation")
        scan.expect("(")
        nodes.append(RecurrentNode(scan.number(f"a node before {node}", range(node)), activation))
        scan.expect(")")
        scan.expect(";")
    scan.expect("=")
    scan.expect("mean")
    return Recurrent(tuple(nodes), read_nodes(scan, range(1, len(nodes) + 1)))


def _read_chain(scan: Scanner) -> Chain:
    scan.expect(":")
    blocks = [read_block(scan)]
    while scan.accept(";"):
        blocks.append(read_block(scan))
    return Chain(tuple(blocks))
