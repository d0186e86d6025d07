"""Cell: operations on the edges of a small graph."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nearkin.core.errors import require
from nearkin.search.genotypes.canonical import Edge, Graph, canonical
from nearkin.search.genotypes.notation import MAX_NODES, NOTHING, Scanner, read_nodes, require_count, require_name

ZEROS = frozenset({"zero", "none"})
"""Operations whose output is zero."""

IDENTITIES = frozenset({"identity", "skip_connect"})
"""Operations that copy their input."""

_MERGES = ("concat", "sum")


@dataclass(frozen=True)
class Cell:
    """A directed acyclic graph in which each node is the sum of operations on earlier nodes.

    Attributes:
        num_inputs: number of inputs; they are the nodes `0 … num_inputs - 1`.
        num_nodes: number of all nodes, including inputs.
        edges: `(source, target, operation)` with source < target, in the order of target, source and operation.
        output: output nodes; without any, the output is zero.
        merge: how output nodes are merged: `concat` or `sum`.

    >>> print(Cell(1, 3, ((1, 2, "conv5"), (0, 1, "conv3"), (0, 2, "max3")), (1, 2)))
    (0): 1 = conv3(0); 2 = max3(0) + conv5(1); out = concat(1, 2)
    """

    num_inputs: int
    num_nodes: int
    edges: tuple[Edge, ...]
    output: tuple[int, ...]
    merge: str = "concat"

    def __post_init__(self) -> None:
        first, last = self.num_inputs, self.num_nodes - 1
        require(
            1 <= first <= last + 1, f"a cell has at least one input, got {first} among {last + 1} nodes; add an input"
        )
        require(last < MAX_NODES, f"a cell has at most {MAX_NODES} nodes, got {last + 1}")
        ordered = sorted((target, source, operation) for source, target, operation in self.edges)
        edges = tuple(Edge(source, target, operation) for target, source, operation in ordered)
        bad = next((e for e in edges if not (0 <= e.source < e.target <= last and e.target >= first)), None)
        require(bad is None, f"edges go from a node to a later one from {first} to {last}, got {bad}")
        for operation in {edge.operation for edge in edges}:
            require_name(operation, "an operation")
        output = tuple(sorted(set(self.output)))
        require(
            len(output) == len(self.output) and set(output) <= set(range(self.num_nodes)),
            f"the output names nodes from 0 to {last}, each once; got {self.output}",
        )
        require(self.merge in _MERGES, f"outputs are merged by {' or '.join(_MERGES)}, got {self.merge!r}")
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "output", output)
        if len(output) < 2:
            object.__setattr__(self, "merge", _MERGES[0])  # both are the same for one node

    def entering(self, node: int) -> tuple[Edge, ...]:
        """Edges that enter a node."""
        return tuple(edge for edge in self.edges if edge.target == node)

    def canonical(self, *, fold_identities: bool = False, strided: bool = False) -> "Cell":
        """Canonical form of the cell; in a strided cell, identities of inputs are not folded."""
        first = self.num_inputs if strided else 0
        folded = (lambda edge: edge.operation in IDENTITIES and edge.source >= first) if fold_identities else None
        graph = canonical(Graph(self.num_inputs, self.num_nodes, self.edges, self.output), ZEROS, folded)
        return Cell(graph.num_inputs, graph.num_nodes, graph.edges, graph.output, self.merge)

    def with_operations(self, operations: Sequence[str]) -> "Cell":
        """The same edges with other operations."""
        require_count(operations, len(self.edges), "edges")
        pairs = zip(self.edges, operations, strict=True)
        return replace(self, edges=tuple(edge._replace(operation=operation) for edge, operation in pairs))

    def __str__(self) -> str:
        terms: list[list[str]] = [[] for _ in range(self.num_nodes)]
        for edge in self.edges:
            terms[edge.target].append(f"{edge.operation}({edge.source})")
        inputs = ", ".join(map(str, range(self.num_inputs)))
        nodes = range(self.num_inputs, self.num_nodes)
        sums = [f"{node} = {' + '.join(terms[node]) or NOTHING}" for node in nodes]
        return f"({inputs}): " + "; ".join([*sums, f"out = {self._merged()}"])

    def _merged(self) -> str:
        names = ", ".join(map(str, self.output))
        return f"{self.merge}({names})" if len(self.output) > 1 else names or NOTHING


def read_cell(scan: Scanner) -> Cell:
    """Read `(0, …): node = operation(source) + …; …; out = …`."""
    scan.expect("(")
    num_inputs = 0
    while num_inputs == 0 or scan.accept(","):
        scan.number(f"input {num_inputs}", (num_inputs,))
        num_inputs += 1
    scan.expect(")")
    scan.expect(":")
    edges: list[Edge] = []
    node = num_inputs
    while not scan.accept_name("out"):
        scan.number(f"node {node} or out", (node,))
        scan.expect("=")
        edges.extend(_read_terms(scan, node))
        scan.expect(";")
        node += 1
    scan.expect("=")
    return Cell(num_inputs, node, tuple(edges), *_read_output(scan, node))


def _read_terms(scan: Scanner, node: int) -> list[Edge]:
    """Read the right side of `node = operation(source) + …`."""
    if scan.accept_name(NOTHING):
        return []
    edges: list[Edge] = []
    while not edges or scan.accept("+"):
        operation = scan.name(f"an operation or {NOTHING}" if not edges else "an operation")
        scan.expect("(")
        edges.append(Edge(scan.number(f"a node before {node}", range(node)), node, operation))
        scan.expect(")")
    return edges


def _read_output(scan: Scanner, num_nodes: int) -> tuple[tuple[int, ...], str]:
    if scan.accept_name(NOTHING):
        return (), _MERGES[0]
    merge = next((merge for merge in _MERGES if scan.accept_name(merge)), None)
    if merge is not None:
        return read_nodes(scan, range(num_nodes)), merge
    return (scan.number(f"concat(…), sum(…), {NOTHING} or a node before {num_nodes}", range(num_nodes)),), _MERGES[0]
