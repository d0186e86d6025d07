"""Space restricted to the structures and operations of some genotypes, such as those of a kin."""

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
"""Placeholder for any operation in a structure."""

_ABSENT = ZEROS | {SKIP}


def structure(genotype: Genotype) -> Genotype:
    """The genotype with every operation besides zeros and skips replaced by `any`: only its connections.

    >>> print(structure(Genotype.parse("normal(0): 1 = conv3(0); 2 = zero(0) + max3(1); out = 2")))
    normal(0): 1 = any(0); 2 = zero(0) + any(1); out = 2
    """
    named = genotype.operations().items()
    return genotype.with_operations({key: [name if name in _ABSENT else ANY for name in names] for key, names in named})


def restrict_space(space: Space, genotypes: Iterable[Genotype]) -> "RestrictedSpace":
    """Restrict a space to the structures and operations of some genotypes.

    Each structure is combined with every operation that any of the genotypes has in the same part (normal or reduction
    cell).

    >>> from nearkin.search.spaces.general import GeneralSpace
    >>> kin = Genotype.parse("normal(0): 1 = conv3(0); 2 = zero(0) + max3(1); out = 2")
    >>> [str(cell) for cell in restrict_space(GeneralSpace(), [kin]).enumerate()][1]
    'normal(0): 1 = conv3(0); 2 = zero(0) + max3(1); out = 2'
    """
    genotypes = list(genotypes)
    require(len(genotypes) > 0, f"the space {space.name} is restricted to genotypes, got none; give at least one")
    require(not isinstance(space, LimitedSpace), f"{space.name} already has limits; restrict first, then limit")
    used: dict[str, set[str]] = {}
    for genotype in genotypes:
        space.require_member(genotype)
        for kind, names in genotype.operations().items():
            used.setdefault(kind, set()).update(set(names) - _ABSENT)
    structures = sorted(set(map(structure, genotypes)), key=str)
    return RestrictedSpace(
        space, tuple(structures), tuple((kind, tuple(sorted(names))) for kind, names in used.items())
    )


@dataclass(frozen=True)
class RestrictedSpace(Space):
    """Structures of a space, each with every choice of some operations; made by `restrict_space`.

    Attributes:
        space: the whole space.
        structures: genotypes with `any` for each operation to choose.
        operations: operations to choose from, by the keys of `Genotype.operations`.
    """

    space: Space
    structures: tuple[Genotype, ...]
    operations: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def name(self) -> str:
        """Name of the whole space with the number of structures."""
        return f"{self.space.name} (restricted to {len(self.structures)} structures)"

    def size(self) -> int:
        """Sum over structures of the product of the numbers of choices."""
        return sum(map(math.prod, self._radices()))

    def at(self, index: int) -> Genotype:
        """Genotype with a number, in the order of structures; the last operation changes fastest."""
        radices = self._radices()
        summand, rest = locate_summand(index, list(map(math.prod, radices)))
        values = iter(digits(rest, radices[summand]))
        chosen = self.structures[summand]
        named = {
            kind: [choices[next(values)] if name == ANY else name for name in names]
            for kind, names, choices in self._slots(chosen)
        }
        return chosen.with_operations(named)

    def objection(self, genotype: Genotype) -> str:
        """Why a genotype is not in the restricted or the whole space."""
        if reason := self.space.objection(genotype):
            return reason
        for _, names, choices in self._slots(genotype):
            if reason := unknown_operation([name for name in names if name not in _ABSENT], choices):
                return reason
        if (form := structure(genotype)) not in self._forms:
            return f"the space does not have its structure: {form}"
        return ""

    @cached_property
    def _forms(self) -> frozenset[Genotype]:
        return frozenset(self.structures)

    def neighbours(self, genotype: Genotype) -> tuple[Genotype, ...]:
        """Neighbours in the whole space that are in the restricted one."""
        self.require_member(genotype)
        return tuple(filter(self.contains, self.space.neighbours(genotype)))

    def unique_key(self, genotype: Genotype) -> str:
        """Key in the whole space."""
        return self.space.unique_key(genotype)

    def _radices(self) -> list[list[int]]:
        """Number of choices for each `any` of each structure."""
        return [
            [len(choices) for _, names, choices in self._slots(form) for name in names if name == ANY]
            for form in self.structures
        ]

    def _slots(self, genotype: Genotype) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
        """For each key of `Genotype.operations`: the key, operations, and operations to choose from."""
        choices = dict(self.operations)
        return [(kind, names, choices[kind]) for kind, names in genotype.operations().items()]
