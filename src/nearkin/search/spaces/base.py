"""Interface of search spaces: count, number, draw and enumerate genotypes, and list neighbours.

A space numbers its genotypes from 0 to `size() - 1`. A genotype is drawn by drawing a number, so every genotype is
equally likely. Numbers are Python integers of any size.
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
"""Largest size of a space that can be enumerated."""

_WORD = 32


class Space(ABC):
    """A finite set of genotypes; neighbours differ in one decision.

    Laws (tests/laws/space.py): `at` is a bijection from `range(size())`; draws are members, uniform, and depend only on
    the generator; neighbours are other members, and the relation is symmetric.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the space in messages."""

    @abstractmethod
    def size(self) -> int:
        """Exact number of genotypes."""

    @abstractmethod
    def at(self, index: int) -> Genotype:
        """Genotype with a number from 0 to `size() - 1`."""

    @abstractmethod
    def objection(self, genotype: Genotype) -> str:
        """Why a genotype is not in the space, as a clause; empty if it is."""

    @abstractmethod
    def neighbours(self, genotype: Genotype) -> tuple[Genotype, ...]:
        """All genotypes of the space that differ in exactly one decision."""

    def contains(self, genotype: Genotype) -> bool:
        """Whether a genotype is in the space."""
        return not self.objection(genotype)

    def unique_key(self, genotype: Genotype) -> str:
        """Text that is equal for genotypes that count as one architecture."""
        return str(genotype.canonical(fold_identities=True))

    def sample(self, rng: Generator) -> Genotype:
        """Draw a genotype, every one with the same probability."""
        return self.at(uniform_index(self.size(), rng))

    def mutate(self, genotype: Genotype, rng: Generator) -> Genotype:
        """Draw a neighbour, every one with the same probability; the genotype itself if it has none."""
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
        """Raise if a genotype is not in the space."""
        reason = self.objection(genotype)
        require(not reason, f"the genotype is not in the space {self.name}: {reason}", MismatchError)


def uniform_index(size: int, rng: Generator) -> int:
    """Draw an integer from 0 to `size - 1`, exactly uniform: random bits, drawn again if the number is too large.

    >>> rng = Generator().manual_seed(0)
    >>> uniform_index(1, rng), 0 <= uniform_index(10**30, rng) < 10**30
    (0, True)
    """
    require(size >= 1, "the space is empty, there is no genotype to draw; give a space with genotypes")
    bits = (size - 1).bit_length()
    words = math.ceil(bits / _WORD)
    while True:
        drawn = torch.randint(2**_WORD, (words,), generator=rng).tolist() if words else []
        index = sum(word << (_WORD * position) for position, word in enumerate(drawn)) >> (words * _WORD - bits)
        if index < size:
            return int(index)


def digits(index: int, radices: Sequence[int]) -> list[int]:
    """Mixed-radix digits of a number; the last digit changes fastest.

    >>> [digits(index, (2, 3)) for index in (0, 1, 2, 3, 5)]
    [[0, 0], [0, 1], [0, 2], [1, 0], [1, 2]]
    >>> digits(6, (2, 3))
    Traceback (most recent call last):
    nearkin.core.errors.OptionError: there is no genotype 6; they are numbered from 0 to 5
    """
    size = math.prod(radices)
    if not 0 <= index < size:
        raise OptionError(f"there is no genotype {index}; they are numbered from 0 to {size - 1}")
    values = []
    for radix in reversed(radices):
        index, digit = divmod(index, radix)
        values.append(digit)
    return values[::-1]


def locate_summand(index: int, sizes: Sequence[int]) -> tuple[int, int]:
    """Which of several consecutive ranges contains a number, and its offset there.

    >>> locate_summand(4, (3, 5)), locate_summand(2, (3, 5))
    ((1, 1), (0, 2))
    """
    ends = list(itertools.accumulate(sizes, initial=0))
    if not 0 <= index < ends[-1]:
        raise OptionError(f"there is no genotype {index}; they are numbered from 0 to {ends[-1] - 1}")
    summand = next(number for number, end in enumerate(ends[1:]) if index < end)
    return summand, index - ends[summand]


def require_distinct(names: Sequence[object], items: str) -> None:
    """Raise if a list of choices is empty or names a choice twice."""
    require(
        0 < len(names) == len(set(names)),
        f"a space needs {items}, each once; got {', '.join(map(str, names)) or 'none'}",
    )


def unknown_operation(names: Sequence[str], known: Sequence[str]) -> str:
    """Objection to the first unknown operation; empty if all are known.

    >>> unknown_operation(("conv3", "conv9"), ("conv3", "zero"))
    "it has the operation 'conv9', the space has conv3, zero"
    """
    strange = next((name for name in names if name not in known), None)
    return "" if strange is None else f"it has the operation {strange!r}, the space has {', '.join(known)}"
