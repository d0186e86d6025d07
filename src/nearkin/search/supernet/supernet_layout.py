"""Edges and operations of a supernet, and its architecture weights.

Notation: N samples, E edges of a cell, O operations of an edge.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import torch
from torch import Generator, Tensor

from nearkin.core.errors import MismatchError, OptionError, require
from nearkin.search.genotypes.canonical import Edge
from nearkin.search.genotypes.cell import IDENTITIES, ZEROS, Cell
from nearkin.search.genotypes.genotype import Cells, Genotype
from nearkin.search.spaces.base import Space, unknown_operation
from nearkin.search.spaces.darts import DartsSpace
from nearkin.search.spaces.general import GeneralSpace
from nearkin.search.spaces.limited import LimitedSpace
from nearkin.search.spaces.restricted import ANY, RestrictedSpace
from nearkin.search.supernet.choice_layout import Architecture as Architecture
from nearkin.search.supernet.choice_layout import ChoiceLayout, ChoiceWeights, Row


@dataclass(frozen=True)
class SupernetLayout(ChoiceLayout):
    """Cells of a supernet: edges from every node to every later node that is not an input, with all operations.

    Attributes:
        num_inputs: number of input nodes, the outputs of earlier cells.
        num_nodes: number of all nodes.
        output: nodes that are concatenated to the output of a cell.
        operations: operations of each part (`normal`, `reduction`), in the order of the columns of α.
        num_predecessors: number of edges that a node keeps in the end; None for all.

    >>> SupernetLayout.of(DartsSpace()).num_edges, SupernetLayout.of(GeneralSpace()).num_edges
    (14, 6)
    """

    num_inputs: int
    num_nodes: int
    output: tuple[int, ...]
    operations: Mapping[str, tuple[str, ...]]
    num_predecessors: int | None = None

    @classmethod
    def of(cls, space: Space) -> "SupernetLayout":
        """Layout of a space of cells; if they differ in their number of nodes, that of the largest."""
        if isinstance(space, LimitedSpace):
            return cls.of(space.space)
        if isinstance(space, RestrictedSpace):
            return _restricted_layout(cls.of(space.space), space)
        if isinstance(space, DartsSpace):
            parts = ("normal", "reduction") if space.reduction else ("normal",)
            last = space.num_inputs + space.num_nodes
            named = dict.fromkeys(parts, space.operations)
            return cls(space.num_inputs, last, tuple(range(space.num_inputs, last)), named, space.num_predecessors)
        if isinstance(space, GeneralSpace):
            last = max(space.num_nodes)
            return cls(1, last, (last - 1,), {"normal": space.operations})
        raise OptionError(
            f"the space {space.name} has no cells, and a supernet consists of cells; use a method without a supernet"
        )

    @cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Source and target of every edge, by target, then source: the rows of α."""
        return tuple((s, t) for t in range(self.num_inputs, self.num_nodes) for s in range(t))

    @property
    def num_edges(self) -> int:
        """Number of edges E."""
        return len(self.pairs)

    @property
    def columns(self) -> Mapping[str, tuple[str, ...]]:
        """Operations by kind of cell."""
        return self.operations

    @property
    def num_rows(self) -> int:
        """Number of edges."""
        return self.num_edges

    def entering(self, node: int) -> list[int]:
        """Numbers of the edges that enter a node."""
        return [number for number, (_, target) in enumerate(self.pairs) if target == node]

    def leaving(self, node: int) -> list[int]:
        """Numbers of the edges that leave a node."""
        return [number for number, (source, _) in enumerate(self.pairs) if source == node]

    def initial(self, rng: Generator, *, edges: bool = False, scale: float = 1e-3) -> dict[str, Tensor]:
        """Architecture weights near zero, so that all operations have almost equal weights; `edges` adds β."""
        architecture = {}
        for kind, names in self.operations.items():
            architecture[f"alpha/{kind}"] = scale * torch.randn(self.num_edges, len(names), generator=rng)
            if edges:
                architecture[f"beta/{kind}"] = scale * torch.randn(self.num_edges, generator=rng)
        return architecture

    def weights(self, architecture: Architecture) -> dict[str, tuple[Tensor, Tensor]]:
        r"""For each cell kind $\mathrm{softmax}(\alpha_e)$ `[E, O]`, and the softmax of β `[E]` over a node's edges.

        Without β every edge has weight 1.
        """
        self.check(architecture)
        return {kind: (architecture[f"alpha/{kind}"].softmax(-1), self._edges(architecture, kind))
                for kind in self.operations}  # fmt: skip

    def _edges(self, architecture: Architecture, kind: str) -> Tensor:
        beta = architecture.get(f"beta/{kind}")
        if beta is None:
            return architecture[f"alpha/{kind}"].new_ones(self.num_edges)
        return torch.cat([beta[self.entering(node)].softmax(0) for node in range(self.num_inputs, self.num_nodes)])

    def chosen(self, genotype: Cells, kind: str) -> list[list[tuple[int, int]]]:
        """For each node that is not an input, the edges of a genotype and the number of the operation on each."""
        cell, names = genotype.parts().get(kind), self.operations[kind]
        require(
            cell is not None,
            f"the genotype has no {kind} cell, and the supernet has one; use a genotype of its space",
            MismatchError,
        )
        assert cell is not None
        require(
            (cell.num_inputs, cell.num_nodes) == (self.num_inputs, self.num_nodes),
            f"the {kind} cell has {cell.num_inputs} inputs among {cell.num_nodes} nodes, the supernet "
            f"{self.num_inputs} among {self.num_nodes}; use a genotype of its space",
            MismatchError,
        )
        numbers = {pair: number for number, pair in enumerate(self.pairs)}
        chosen = []
        for node in range(self.num_inputs, self.num_nodes):
            edges = cell.entering(node)
            reason = unknown_operation([edge.operation for edge in edges], names) if edges else f"no edge enters {node}"
            require(not reason, f"the {kind} cell is not a path of the supernet: {reason}", MismatchError)
            chosen.append([(numbers[edge.source, edge.target], names.index(edge.operation)) for edge in edges])
        return chosen

    def path(self, architecture: Architecture, rng: Generator) -> Cells:
        """Draw a path of the supernet: one operation on every edge, with the probabilities softmax(α)."""
        cells = {}
        for kind, (alpha, _) in self.weights(architecture).items():
            drawn = torch.multinomial(alpha.detach(), 1, generator=rng).flatten().tolist()
            edges = [Edge(*pair, self.operations[kind][column]) for pair, column in zip(self.pairs, drawn, strict=True)]
            cells[kind] = Cell(self.num_inputs, self.num_nodes, tuple(edges), self.output)
        return Cells(**cells)

    def strongest(self, weights: ChoiceWeights) -> Cells:
        """The genotype of the largest weights.

        If nodes choose among edges (DARTS), zeros are excluded and each node keeps the edges of the largest weights.
        Otherwise every edge has its strongest operation.
        """
        return Cells(**{kind: self._strongest_cell(kind, weights[kind]) for kind in self.operations})

    def _strongest_cell(self, kind: str, table: Tensor) -> Cell:
        names = self.operations[kind]
        if self.num_predecessors is not None:
            dead = [column for column, name in enumerate(names) if name in ZEROS]
            table = table.index_fill(1, torch.tensor(dead, dtype=torch.int64), -1.0)
        best = table.max(1)
        edges = []
        for node in range(self.num_inputs, self.num_nodes):
            ranked = sorted(self.entering(node), key=lambda e: -float(best.values[e]))
            for e in ranked[: self.num_predecessors]:
                edges.append(Edge(*self.pairs[e], names[int(best.indices[e])]))
        return Cell(self.num_inputs, self.num_nodes, tuple(edges), self.output)

    def rows(self, genotype: Genotype) -> dict[str, list[Row]] | None:
        """Edge of every operation, by kind of cell; None for cells with other numbers of nodes, and for no cells."""
        if not isinstance(genotype, Cells):
            return None
        rows: dict[str, list[Row]] = {}
        for kind, cell in genotype.parts().items():
            if kind not in self.operations or (cell.num_inputs, cell.num_nodes) != (self.num_inputs, self.num_nodes):
                return None
            rows[kind] = [Row(kind, self.pairs.index(edge[:2])) for edge in cell.edges]
        return rows

    def skip_groups(self, genotype: Genotype) -> list[list[tuple[Row, str]]]:
        """Skip connections of the normal cell."""
        edges = cast(Cells, genotype).normal.edges
        skips = [edge for edge in edges if edge.operation in IDENTITIES]
        return [[(Row("normal", self.pairs.index(edge[:2])), edge.operation) for edge in skips]]


def _restricted_layout(layout: SupernetLayout, space: RestrictedSpace) -> SupernetLayout:
    """The layout without operations that no structure of a restricted space has."""
    allowed = {kind: set(names) for kind, names in space.operations}
    for form in space.structures:
        for kind, names in form.operations().items():
            allowed[kind].update(set(names) - {ANY})
    operations = {
        kind: tuple(name for name in names if name in allowed[kind]) for kind, names in layout.operations.items()
    }
    if layout.num_inputs > 1:
        return replace(layout, operations=operations)
    last = max(form.normal.num_nodes for form in space.structures if isinstance(form, Cells))
    output = tuple(node for node in layout.output if node < last) or (last - 1,)
    return replace(layout, num_nodes=last, output=output, operations=operations)
