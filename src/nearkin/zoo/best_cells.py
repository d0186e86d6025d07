"""Best cells of a task: the best genotypes of a search, with their scores and the skeleton they were measured in."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nearkin.core.errors import DataError, require
from nearkin.core.plain import typed
from nearkin.core.state import State
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.searcher import ScoredGenotype, current_method

VERSION = 1


@dataclass(frozen=True)
class BestCells:
    """Result of a cell search for one task.

    Attributes:
        space: the space string that was searched.
        skeleton: macro-architecture in which genotypes were compared, as plain values.
        method: the search method.
        found: the best genotypes, best first.

    >>> best = ScoredGenotype(Genotype.parse("normal(0): 1 = conv3(0); out = 1"), 0.9, {"parameters": 300})
    >>> cells = BestCells("general", {"channels": 8}, "evolution", (best,))
    >>> BestCells.from_state(cells.to_state(), "the task") == cells
    True
    """

    space: str
    skeleton: Mapping[str, Any]
    method: str
    found: tuple[ScoredGenotype, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", current_method(self.method))

    @property
    def genotypes(self) -> tuple[Genotype, ...]:
        """The genotypes, best first."""
        return tuple(best.genotype for best in self.found)

    def to_dict(self) -> dict[str, Any]:
        """The cells as plain JSON values."""
        return {
            "version": VERSION,
            "space": self.space,
            "skeleton": dict(self.skeleton),
            "method": self.method,
            "found": [best.to_dict() for best in self.found],
        }

    def to_state(self) -> State:
        """The cells as a state that can be stored."""
        return State({}, self.to_dict())

    @classmethod
    def from_state(cls, state: State, name: str) -> "BestCells":
        """The inverse of `to_state`; `name` is the task's, for errors."""
        facts = state.facts
        if facts.get("version") != VERSION:
            raise DataError(
                f"the cells of '{name}' have version {facts.get('version')}, expected {VERSION}; search them again"
            )
        values = {key: value for key, value in facts.items() if key != "version"}
        cells = typed(cls, values, f"the cells of '{name}'")
        require(bool(cells.found), f"the cells of '{name}' are an empty list; search them again", DataError)
        return cells
