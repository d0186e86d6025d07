"""What every search space can do: count, number, draw, enumerate, and step to neighbours.

A space numbers its genotypes from 0 to `size() - 1`. Drawing one is drawing a number, so that every genotype is equally
likely however the space is put together, and numbers have as many digits as they need.
"""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import final

import torch
from torch import Generator

from nearkin.core.errors import MismatchError, OptionError, require
from nearkin.search.genotypes.genotype import Genotype

ENUMERABLE = 5_000_000
"""Genotypes that a space may have to be enumerated."""

_WORD = 32


class Space(ABC):
    """A finite set of genotypes with a notion of which of them are one decision apart.

    Laws (tests/laws/space.py): `at` is a bijection from `range(size())`; what is drawn lies within, uniformly, and
    depends on nothing but the generator; neighbours lie within, are others, and are symmetric.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """What the space is called in messages."""

    @abstractmethod
    def size(self) -> int:
        """How many genotypes there are, exactly."""

    @abstractmethod
    def at(self, index: int) -> Genotype:
        """The genotype of a number from 0 to `size() - 1`."""

    @abstractmethod
    def objection(self, genotype: Genotype) -> str:
        """Why a genotype does not lie in the space, as half a sentence; empty if it does."""

    @abstractmethod
    def neighbours(self, genotype: Genotype) -> tuple[Genotype, ...]:
        """All genotypes of the space that differ in exactly one decision."""

    def contains(self, genotype: Genotype) -> bool:
        """Whether a genotype lies in the space."""
        return not self.objection(genotype)

    def unique_key(self, genotype: Genotype) -> str:
        """A text that is equal for genotypes which count as one architecture."""
        return str(genotype.canonical(fold_identities=True))

    def sample(self, rng: Generator) -> Genotype:
        """A genotype, every one with the same probability."""
        return self.at(uniform_index(self.size(), rng))

    def mutate(self, genotype: Genotype, rng: Generator) -> Genotype:
        """A neighbour, every one with the same probability; the genotype itself where it has none."""
        others = self.neighbours(genotype)
        return others[uniform_index(len(others), rng)] if others else genotype

    def enumerate(self) -> Iterator[Genotype]:
        """Every genotype once, in the order of their numbers."""
        size = self.size()
        require(
            size <= ENUMERABLE,
            f"the space {self.name} has {size:.3g} genotypes, too many to enumerate (at most {ENUMERABLE:,}); "
            f"sample it, or restrict it",
        )
        return map(self.at, range(size))

    @final
    def require_member(self, genotype: Genotype) -> None:
        """Raise where a genotype is of another space."""
        reason = self.objection(genotype)
        require(not reason, f"the genotype is not of the space {self.name}: {reason}", MismatchError)


def uniform_index(size: int, rng: Generator) -> int:
    """A whole number from 0 to `size - 1`, exactly uniform for any size: random bits, drawn again where too large.

    >>> rng = Generator().manual_seed(0)
    >>> uniform_index(1, rng), 0 <= uniform_index(10**30, rng) < 10**30
    (0, True)
    """
    require(size >= 1, "there is nothing to draw from: the space is empty")
    bits = (size - 1).bit_length()
    words = math.ceil(bits / _WORD)
    while True:
        drawn = torch.randint(2**_WORD, (words,), generator=rng).tolist() if words else []
        index = sum(word << (_WORD * place) for place, word in enumerate(drawn)) >> (words * _WORD - bits)
        if index < size:
            return int(index)


def digits(index: int, radices: Sequence[int]) -> list[int]:
    """The digits of a number, the last fastest, each below its own radix.

    >>> [digits(index, (2, 3)) for index in (0, 1, 2, 3, 5)]
    [[0, 0], [0, 1], [0, 2], [1, 0], [1, 2]]
    >>> digits(6, (2, 3))
    Traceback (most recent call last):
    nearkin.core.errors.OptionError: there is no genotype 6; they are numbered from 0 to 5
    """
    size = math.prod(radices)
    if not 0 <= index < size:
        raise OptionError(f"there is no genotype {index}; they are numbered from 0 to {size - 1}")
    found = []
    for radix in reversed(radices):
        index, digit = divmod(index, radix)
        found.append(digit)
    return found[::-1]


def locate_summand(index: int, sizes: Sequence[int]) -> tuple[int, int]:
    """In which of several sets laid end to end a number falls, and its number there.

    >>> locate_summand(4, (3, 5)), locate_summand(2, (3, 5))
    ((1, 1), (0, 2))
    """
    ends = list(itertools.accumulate(sizes, initial=0))
    if not 0 <= index < ends[-1]:
        raise OptionError(f"there is no genotype {index}; they are numbered from 0 to {ends[-1] - 1}")
    place = next(place for place, end in enumerate(ends[1:]) if index < end)
    return place, index - ends[place]


def require_distinct(names: Sequence[object], what: str) -> None:
    """Refuse an empty list of choices, or one that names a choice twice."""
    require(
        0 < len(names) == len(set(names)),
        f"a space wants {what}, each once; got {', '.join(map(str, names)) or 'none'}",
    )


def unknown_operation(given: Sequence[str], known: Sequence[str]) -> str:
    """An objection to the first operation that is not known; empty where all are.

    >>> unknown_operation(("conv3", "conv9"), ("conv3", "zero"))
    "it has the operation 'conv9', the space has conv3, zero"
    """
    strange = next((name for name in given if name not in known), None)
    return "" if strange is None else f"it has the operation {strange!r}, the space has {', '.join(known)}"
