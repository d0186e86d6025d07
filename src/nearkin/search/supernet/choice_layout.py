"""Interface of supernet layouts: tables of architecture weights, and the genotypes that they describe.

Notation: R rows of a table (edges of a cell, layers of a chain), O operations of a row.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from torch import Generator, Tensor

from nearkin.core.errors import require
from nearkin.search.genotypes.genotype import Genotype

Architecture: TypeAlias = Mapping[str, Tensor]
"""`alpha/KIND` `[R, O]` and, with weights of edges, `beta/KIND` `[R]`, both before the softmax."""

ChoiceWeights: TypeAlias = Mapping[str, Tensor]
"""By kind (normal, reduction, chain), the weights of all operations of all rows `[R, O]`: softmax(α) times β."""


class Row(NamedTuple):
    """A row of a table of architecture weights."""

    kind: str
    number: int


class ChoiceLayout(ABC):
    """Tables of architecture weights, one for each kind of cell or one for a chain."""

    @property
    @abstractmethod
    def columns(self) -> Mapping[str, tuple[str, ...]]:
        """Operations by kind, in the order of the columns of α."""

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """Number of rows R of every table."""

    @abstractmethod
    def initial(self, rng: Generator, *, edges: bool = False, scale: float = 1e-3) -> dict[str, Tensor]:
        """Architecture weights near zero, so that all operations have almost equal weights; `edges` adds β."""

    @abstractmethod
    def weights(self, architecture: Architecture) -> dict[str, tuple[Tensor, Tensor]]:
        """For each kind the weights of the operations `[R, O]`, with sums of 1, and those of the rows `[R]`."""

    @abstractmethod
    def path(self, architecture: Architecture, rng: Generator) -> Genotype:
        """Draw a path of the supernet: one operation of every row, with the probabilities softmax(α)."""

    @abstractmethod
    def strongest(self, weights: ChoiceWeights) -> Genotype:
        """The genotype of the largest weights."""

    @abstractmethod
    def rows(self, genotype: Genotype) -> dict[str, list[Row]] | None:
        """Row of every operation, by the keys of `Genotype.operations`; None if the genotype has another form."""

    @abstractmethod
    def skip_groups(self, genotype: Genotype) -> list[list[tuple[Row, str]]]:
        """Skip connections with their operations, in the groups within which their number may be limited."""

    def check(self, architecture: Architecture) -> None:
        """Raise if architecture weights do not fit the layout."""
        for kind, names in self.columns.items():
            expected, alpha = (self.num_rows, len(names)), architecture.get(f"alpha/{kind}")
            require(
                alpha is not None and alpha.shape == expected,
                f"architecture weights alpha/{kind} have shape {None if alpha is None else tuple(alpha.shape)}, "
                f"expected {expected}; make them with {type(self).__name__}.initial",
            )

    def num_choices(self, kind: str) -> list[int]:
        """Number of operations that each row may have."""
        return [len(self.columns[kind])] * self.num_rows
