"""Which edges and operations a supernet has, and the architecture weights that choose among them.

Notation: N samples, E edges of a cell, O operations of an edge.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Generator, Tensor

from nearkin.core.errors import MismatchError, OptionError, require
from nearkin.search.genotypes.canonical import Edge
from nearkin.search.genotypes.cell import Cell
from nearkin.search.genotypes.genotype import Cells
from nearkin.search.spaces.base import Space, unknown_operation
from nearkin.search.spaces.darts import DartsSpace
from nearkin.search.spaces.general import GeneralSpace
from nearkin.search.spaces.limited import LimitedSpace
from nearkin.search.spaces.restricted import ANY, RestrictedSpace

Architecture: TypeAlias = Mapping[str, Tensor]
"""`alpha/PART` `[E, O]` and, with edge normalisation, `beta/PART` `[E]`, both before the softmax."""


@dataclass(frozen=True)
class SupernetLayout:
    """The cells of a supernet: an edge from every node to every later one that is no input, all operations on each.

    Attributes:
        num_inputs: nodes that are outputs of earlier cells.
        num_nodes: all nodes.
        output: nodes that are concatenated to the output of a cell.
        operations: those of each part (`normal`, `reduction`), in the order of the columns of α.
        num_predecessors: edges that a node keeps in the end; None for all of them.

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
        """That of a space of cells; where cells differ in their number of nodes, of the largest."""
        if isinstance(space, LimitedSpace):
            return cls.of(space.space)
        if isinstance(space, RestrictedSpace):
            return _narrowed(cls.of(space.space), space)
        if isinstance(space, DartsSpace):
            parts = ("normal", "reduction") if space.reduction else ("normal",)
            last = space.num_inputs + space.num_nodes
            named = dict.fromkeys(parts, space.operations)
            return cls(space.num_inputs, last, tuple(range(space.num_inputs, last)), named, space.num_predecessors)
        if isinstance(space, GeneralSpace):
            last = max(space.num_nodes)
            return cls(1, last, (last - 1,), {"normal": space.operations})
        raise OptionError(f"a supernet is made of cells, and {space.name} has none; search it by drawing genotypes")

    @cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Source and target of every edge, by target, then source: the rows of α."""
        return tuple((s, t) for t in range(self.num_inputs, self.num_nodes) for s in range(t))

    @property
    def num_edges(self) -> int:
        """E."""
        return len(self.pairs)

    def entering(self, node: int) -> list[int]:
        """Numbers of the edges that enter a node."""
        return [number for number, (_, target) in enumerate(self.pairs) if target == node]

    def leaving(self, node: int) -> list[int]:
        """Numbers of the edges that leave a node."""
        return [number for number, (source, _) in enumerate(self.pairs) if source == node]

    def initial(self, rng: Generator, *, edges: bool = False, scale: float = 1e-3) -> dict[str, Tensor]:
        """Architecture weights near zero, so that all operations start almost alike; `edges` adds β."""
        found = {}
        for part, names in self.operations.items():
            found[f"alpha/{part}"] = scale * torch.randn(self.num_edges, len(names), generator=rng)
            if edges:
                found[f"beta/{part}"] = scale * torch.randn(self.num_edges, generator=rng)
        return found

    def weights(self, architecture: Architecture) -> dict[str, tuple[Tensor, Tensor]]:
        r"""By part $\mathrm{softmax}(\alpha_e)$ `[E, O]`, and β `[E]` as a softmax over the edges that enter a node.

        Without β every edge has weight 1.
        """
        self.check(architecture)
        return {part: (architecture[f"alpha/{part}"].softmax(-1), self._edges(architecture, part))
                for part in self.operations}  # fmt: skip

    def _edges(self, architecture: Architecture, part: str) -> Tensor:
        given = architecture.get(f"beta/{part}")
        if given is None:
            return architecture[f"alpha/{part}"].new_ones(self.num_edges)
        return torch.cat([given[self.entering(node)].softmax(0) for node in range(self.num_inputs, self.num_nodes)])

    def check(self, architecture: Architecture) -> None:
        """Refuse architecture weights of another layout."""
        for part, names in self.operations.items():
            wanted, got = (self.num_edges, len(names)), architecture.get(f"alpha/{part}")
            require(
                got is not None and got.shape == wanted,
                f"architecture weights alpha/{part} have shape {None if got is None else tuple(got.shape)}, expected "
                f"{wanted}; make them with Layout.initial",
            )

    def chosen(self, genotype: Cells, part: str) -> list[list[tuple[int, int]]]:
        """For each node that is no input, the edges that a genotype has and which operation is on each."""
        cell, names = genotype.parts().get(part), self.operations[part]
        require(cell is not None, f"the supernet has {part} cells, the genotype has none", MismatchError)
        assert cell is not None
        require(
            (cell.num_inputs, cell.num_nodes) == (self.num_inputs, self.num_nodes),
            f"the {part} cell has {cell.num_inputs} inputs among {cell.num_nodes} nodes, the supernet "
            f"{self.num_inputs} among {self.num_nodes}; take a genotype of its space",
            MismatchError,
        )
        numbers = {pair: number for number, pair in enumerate(self.pairs)}
        found = []
        for node in range(self.num_inputs, self.num_nodes):
            edges = cell.entering(node)
            strange = unknown_operation([edge.operation for edge in edges], names) or (
                "" if edges else f"nothing enters {node}"
            )
            require(not strange, f"the {part} cell is no path of the supernet: {strange}", MismatchError)
            found.append([(numbers[edge.source, edge.target], names.index(edge.operation)) for edge in edges])
        return found

    def path(self, architecture: Architecture, rng: Generator) -> Cells:
        """A path through the supernet: on every edge one operation, drawn with the probabilities of softmax(α)."""
        cells = {}
        for part, (alpha, _) in self.weights(architecture).items():
            drawn = torch.multinomial(alpha.detach(), 1, generator=rng).flatten().tolist()
            edges = [Edge(*pair, self.operations[part][which]) for pair, which in zip(self.pairs, drawn, strict=True)]
            cells[part] = Cell(self.num_inputs, self.num_nodes, tuple(edges), self.output)
        return Cells(**cells)


def _narrowed(layout: SupernetLayout, space: RestrictedSpace) -> SupernetLayout:
    """The layout without operations that no structure of a restricted space has."""
    chosen = dict(space.operations)
    fixed = {part: {name for form in space.structures for name in form.operations()[part] if name != ANY}
             for part in chosen}  # fmt: skip
    kept = {
        part: tuple(name for name in names if name in chosen[part] or name in fixed[part])
        for part, names in layout.operations.items()
    }
    if layout.num_inputs > 1:
        return SupernetLayout(layout.num_inputs, layout.num_nodes, layout.output, kept, layout.num_predecessors)
    last = max(form.normal.num_nodes for form in space.structures if isinstance(form, Cells))
    return SupernetLayout(
        1, last, tuple(node for node in layout.output if node < last) or (last - 1,), kept, layout.num_predecessors
    )
