"""Canonical form of a graph: one graph for every class of isomorphic graphs.

A graph is directed and acyclic. Its nodes are numbers; the first `num_inputs` are inputs and keep their numbers. Every
edge goes from a smaller to a larger number and has the name of an operation. Two edges may join the same nodes.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple


class Edge(NamedTuple):
    """An operation from a node to a later one; a node is the sum of its entering edges."""

    source: int
    target: int
    operation: str


class Graph(NamedTuple):
    """Nodes `0 … num_nodes - 1`, edges, and output nodes."""

    num_inputs: int
    num_nodes: int
    edges: tuple[Edge, ...]
    output: tuple[int, ...]


Form = tuple[tuple[int, int, str], ...]


def canonical(graph: Graph, zeros: Collection[str] = (), identities: Callable[[Edge], bool] | None = None) -> Graph:
    """Canonical graph of all graphs that differ only in the numbers of their nodes and in useless edges.

    Edges with a zero operation are removed, and so are nodes that no input reaches or that do not reach the output.
    With `identities`, the edges that it accepts are contracted wherever that changes no sum.

    >>> straight = Graph(1, 4, (Edge(0, 1, "a"), Edge(0, 2, "b"), Edge(1, 3, "c"), Edge(2, 3, "c")), (3,))
    >>> crossed = Graph(1, 4, (Edge(0, 1, "b"), Edge(0, 2, "a"), Edge(1, 3, "c"), Edge(2, 3, "c")), (3,))
    >>> canonical(straight) == canonical(crossed)
    True
    """
    live = prune(graph, zeros)
    return label_canonically(live if identities is None else contract_identities(live, identities))


def prune(graph: Graph, zeros: Collection[str] = ()) -> Graph:
    """Remove zeros, nodes that no input reaches and nodes that reach no output; the order of nodes is kept.

    >>> graph = Graph(1, 4, (Edge(0, 1, "a"), Edge(0, 2, "a"), Edge(1, 3, "zero"), Edge(2, 3, "a")), (3,))
    >>> prune(graph, {"zero"}).edges
    (Edge(source=0, target=1, operation='a'), Edge(source=1, target=2, operation='a'))
    """
    edges = [edge for edge in graph.edges if edge.operation not in zeros]
    inputs = range(graph.num_inputs)
    reached, useful = set(inputs), set(graph.output)
    for edge in sorted(edges, key=lambda edge: edge.target):
        if edge.source in reached:
            reached.add(edge.target)
    for edge in sorted(edges, key=lambda edge: -edge.source):
        if edge.target in useful:
            useful.add(edge.source)
    live = sorted((reached & useful).union(inputs))
    kept = (edge for edge in edges if edge.source in reached and edge.target in useful)
    return _renumbered(graph.num_inputs, live, kept, reached.intersection(graph.output))


def contract_identities(graph: Graph, identities: Callable[[Edge], bool]) -> Graph:
    """Contract identity edges `u → v` that only copy a node.

    This is the case if nothing else enters `v`, unless both are outputs; and if nothing else leaves `u`, which is
    neither input nor output: then `v = u + …` gets the edges that enter `u`.

    >>> chain = Graph(1, 4, (Edge(0, 1, "a"), Edge(1, 2, "id"), Edge(2, 3, "b")), (3,))
    >>> contract_identities(chain, lambda edge: edge.operation == "id").edges
    (Edge(source=0, target=1, operation='a'), Edge(source=1, target=2, operation='b'))
    """
    while True:
        for edge in filter(identities, graph.edges):
            entering = [other for other in graph.edges if other.target == edge.target]
            leaving = [other for other in graph.edges if other.source == edge.source]
            if len(entering) == 1 and not {edge.source, edge.target} <= set(graph.output):
                graph = _without(graph, edge, removed=edge.target, kept=edge.source)
                break
            if len(leaving) == 1 and edge.source >= graph.num_inputs and edge.source not in graph.output:
                graph = _without(graph, edge, removed=edge.source, kept=edge.target)
                break
        else:
            return graph


def label_canonically(graph: Graph) -> Graph:
    """Number the nodes in an order that depends only on the structure; every node must be reachable.

    Nodes are coloured by their depth, then by the colours of their neighbours until the partition is stable. If nodes
    still have the same colour, each is individualised in turn and the smallest result is used. Of nodes that an
    automorphism exchanges, which have equal results, one is enough.
    """
    depth = [0] * graph.num_nodes
    for edge in sorted(graph.edges, key=lambda edge: edge.target):
        depth[edge.target] = max(depth[edge.target], depth[edge.source] + 1)
    first = [
        (0, node, False) if node < graph.num_inputs else (depth[node], 0, node in graph.output)
        for node in range(graph.num_nodes)
    ]
    _, colours = _least(graph, _refined(graph, _ranks(first)))
    order = sorted(range(graph.num_nodes), key=colours.__getitem__)
    return _renumbered(graph.num_inputs, order, graph.edges, graph.output)


def _least(graph: Graph, colours: list[int]) -> tuple[Form, list[int]]:
    """The smallest form, and the colours, all different, that give it."""
    tied = _tied(colours)
    if not tied:
        return _form(graph, colours), colours
    branches: dict[Form, list[int]] = {}
    for node in tied:
        branch = _singled(graph, colours, node)
        branches.setdefault(_any_form(graph, branch), branch)
    return min(_least(graph, branch) for branch in branches.values())


def _any_form(graph: Graph, colours: list[int]) -> Form:
    """Form of one branch of the search; equal forms prove that an automorphism exchanges the first nodes."""
    while tied := _tied(colours):
        colours = _singled(graph, colours, tied[0])
    return _form(graph, colours)


def _form(graph: Graph, colours: Sequence[int]) -> Form:
    """Edges with colours instead of numbers."""
    return tuple(sorted((colours[target], colours[source], name) for source, target, name in graph.edges))


def _tied(colours: Sequence[int]) -> list[int]:
    """Nodes of the first colour that several nodes have."""
    shared = next((colour for colour in sorted(colours) if colours.count(colour) > 1), None)
    return [node for node, colour in enumerate(colours) if colour == shared]


def _singled(graph: Graph, colours: Sequence[int], chosen: int) -> list[int]:
    return _refined(graph, _ranks([(colour, node != chosen) for node, colour in enumerate(colours)]))


def _refined(graph: Graph, colours: list[int]) -> list[int]:
    """Refine colours by the colours of neighbours until the partition is stable."""
    while True:
        entering: list[list[tuple[str, int]]] = [[] for _ in colours]
        leaving: list[list[tuple[str, int]]] = [[] for _ in colours]
        for source, target, name in graph.edges:
            entering[target].append((name, colours[source]))
            leaving[source].append((name, colours[target]))
        finer = _ranks([(colour, sorted(entering[node]), sorted(leaving[node])) for node, colour in enumerate(colours)])
        if max(finer, default=0) == max(colours, default=0):
            return finer
        colours = finer


def _ranks(keys: Sequence[tuple[Any, ...]]) -> list[int]:
    """Rank of each key among the distinct keys."""
    distinct = [key for key, _ in itertools.groupby(sorted(keys))]
    return [distinct.index(key) for key in keys]


def _without(graph: Graph, edge: Edge, *, removed: int, kept: int) -> Graph:
    """Remove an edge and a node; the kept node gets its other edges and its role as output."""
    rest = list(graph.edges)
    rest.remove(edge)
    moved = [
        Edge(kept if source == removed else source, kept if target == removed else target, name)
        for source, target, name in rest
    ]
    order = [node for node in range(graph.num_nodes) if node != removed]
    return _renumbered(graph.num_inputs, order, moved, {kept if node == removed else node for node in graph.output})


def _renumbered(num_inputs: int, order: Sequence[int], edges: Iterable[Edge], output: Iterable[int]) -> Graph:
    number = {node: new for new, node in enumerate(order)}
    moved = sorted((number[target], number[source], name) for source, target, name in edges)
    renumbered = tuple(Edge(source, target, name) for target, source, name in moved)
    return Graph(num_inputs, len(order), renumbered, tuple(sorted(number[node] for node in output)))
