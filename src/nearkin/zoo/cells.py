"""Cells of a task: the best genotypes that a search found for it, with their figures and what they were measured in."""

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
class KeptCells:
    """What a search in a space came to for one task.

    Attributes:
        space: the space string that was searched.
        skeleton: what the genotypes were set into, as plain values.
        method: how it was searched.
        found: the best few, best first.

    >>> best = ScoredGenotype(Genotype.parse("normal(0): 1 = conv3(0); out = 1"), 0.9, {"parameters": 300})
    >>> kept = KeptCells("general", {"channels": 8}, "evolution", (best,))
    >>> KeptCells.from_state(kept.to_state(), "the task") == kept
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
        """Best first."""
        return tuple(one.genotype for one in self.found)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "version": VERSION,
            "space": self.space,
            "skeleton": dict(self.skeleton),
            "method": self.method,
            "found": [one.to_dict() for one in self.found],
        }

    def to_state(self) -> State:
        """The form that the zoo keeps."""
        return State({}, self.to_dict())

    @classmethod
    def from_state(cls, state: State, name: str) -> "KeptCells":
        """The inverse of `to_state`; `name` is the task's, for errors."""
        facts = state.facts
        if facts.get("version") != VERSION:
            raise DataError(
                f"the cells of {name} are of version {facts.get('version')}, this is {VERSION}; search them anew"
            )
        known = typed(cls, {key: value for key, value in facts.items() if key != "version"}, f"the cells of {name}")
        require(bool(known.found), f"the cells of {name} are an empty list; search them anew", DataError)
        return known
