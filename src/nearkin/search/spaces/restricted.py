"""A part of a space: what some genotypes used. This is how the space of a task's kin is made."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from nearkin.core.errors import require
from nearkin.search.genotypes.cell import ZEROS
from nearkin.search.genotypes.genotype import SKIP, Genotype
from nearkin.search.spaces.base import Space, digits, locate_summand, unknown_operation
from nearkin.search.spaces.limited import LimitedSpace

ANY = "any"
"""Stands in a structure for whatever operation."""

_ABSENT = ZEROS | {SKIP}


def structure(genotype: Genotype) -> Genotype:
    """The genotype with every operation that carries something as `any`: what is connected with what.

    >>> print(structure(Genotype.parse("normal(0): 1 = conv3(0); 2 = zero(0) + max3(1); out = 2")))
    normal(0): 1 = any(0); 2 = zero(0) + any(1); out = 2
    """
    named = genotype.operations().items()
    return genotype.with_operations({part: [n if n in _ABSENT else ANY for n in names] for part, names in named})


def restrict_space(space: Space, genotypes: Iterable[Genotype]) -> "RestrictedSpace":
    """The part of a space that has no other structures and operations than some genotypes.

    Structures are taken whole, as they are; each of them goes with every operation that any of the genotypes has in
    the same part (normal or reduction cell).

    >>> from nearkin.search.spaces.general import GeneralSpace
    >>> kin = Genotype.parse("normal(0): 1 = conv3(0); 2 = zero(0) + max3(1); out = 2")
    >>> [str(cell) for cell in restrict_space(GeneralSpace(), [kin]).enumerate()][1]
    'normal(0): 1 = conv3(0); 2 = zero(0) + max3(1); out = 2'
    """
    given = list(genotypes)
    require(len(given) > 0, f"the space {space.name} is restricted to what genotypes used, got none")
    require(not isinstance(space, LimitedSpace), f"restrict first, then limit: {space.name} has limits already")
    used: dict[str, set[str]] = {}
    for genotype in given:
        space.require_member(genotype)
        for part, names in genotype.operations().items():
            used.setdefault(part, set()).update(set(names) - _ABSENT)
    structures = sorted({structure(genotype) for genotype in given}, key=str)
    return RestrictedSpace(
        space, tuple(structures), tuple((part, tuple(sorted(names))) for part, names in used.items())
    )


@dataclass(frozen=True)
class RestrictedSpace(Space):
    """Structures of a space, each with every choice of some operations; made by `restrict_space`.

    Its neighbours are those of the whole space that lie in it.

    Attributes:
        space: the whole.
        structures: with `any` where an operation is to be chosen.
        operations: those to choose from, by part.
    """

    space: Space
    structures: tuple[Genotype, ...]
    operations: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def name(self) -> str:
        """That of the whole space, and how much of it is left."""
        return f"{self.space.name} (restricted to {len(self.structures)} structures)"

    def size(self) -> int:
        """The product of choices, summed over structures."""
        return sum(map(math.prod, self._radices()))

    def at(self, index: int) -> Genotype:
        """Structure after structure; within, the last operation changes fastest."""
        radices = self._radices()
        place, rest = locate_summand(index, list(map(math.prod, radices)))
        values = iter(digits(rest, radices[place]))
        chosen = self.structures[place]
        named = {
            part: [choices[next(values)] if name == ANY else name for name in names]
            for part, names, choices in self._slots(chosen)
        }
        return chosen.with_operations(named)

    def objection(self, genotype: Genotype) -> str:
        """Why a genotype lies outside, or outside of the whole space."""
        if reason := self.space.objection(genotype):
            return reason
        for _, names, choices in self._slots(genotype):
            if reason := unknown_operation([name for name in names if name not in _ABSENT], choices):
                return reason
        if (form := structure(genotype)) not in self._forms:
            return f"its structure was not used: {form}"
        return ""

    @cached_property
    def _forms(self) -> frozenset[Genotype]:
        return frozenset(self.structures)

    def neighbours(self, genotype: Genotype) -> tuple[Genotype, ...]:
        """The neighbours in the whole space that lie in this part."""
        self.require_member(genotype)
        return tuple(filter(self.contains, self.space.neighbours(genotype)))

    def unique_key(self, genotype: Genotype) -> str:
        """That of the whole space."""
        return self.space.unique_key(genotype)

    def _radices(self) -> list[list[int]]:
        """For each structure the number of choices at each of its free places."""
        return [
            [len(choices) for _, names, choices in self._slots(form) for name in names if name == ANY]
            for form in self.structures
        ]

    def _slots(self, genotype: Genotype) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
        """Part by part: its name, its operations, and those to choose from."""
        choices = dict(self.operations)
        return [(part, names, choices[part]) for part, names in genotype.operations().items()]
