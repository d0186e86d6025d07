"""A space under a limit on parameters, multiply-adds, measured latency or any other cost of a genotype."""

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Generator

from nearkin.core.errors import OptionError, require
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.spaces.base import Space, uniform_index

Cost = Callable[[Genotype], float]

DRAWS = 2_000
"""Number of rejected draws after which a genotype within the limit is looked for differently."""

_ENUMERATED = 20_000  # size up to which a space is enumerated then
_DRAWS_PER_GENOTYPE = 20
_WALK = 50  # random steps from the first genotype within the limit


@dataclass(frozen=True)
class Limit:
    """The condition `cost(genotype) <= at_most`.

    Attributes:
        cost: function that gives the same number for the same genotype.
        at_most: largest allowed cost.
        name: name of the cost in messages.
    """

    cost: Cost
    at_most: float
    name: str = "cost"

    def __post_init__(self) -> None:
        require(not math.isnan(self.at_most), f"a limit on {self.name} must be a number, got {self.at_most}")

    def allows(self, genotype: Genotype) -> bool:
        """Whether the genotype is within the limit."""
        return self.cost(genotype) <= self.at_most


def limit_space(space: Space, cost: Cost, at_most: float, *, name: str = "cost") -> "LimitedSpace":
    """The genotypes of a space whose cost is at most a limit. Call it again for a second cost.

    The cost of each genotype is computed once.

    >>> from nearkin.search.spaces.general import GeneralSpace
    >>> def convolutions(genotype: Genotype) -> int:
    ...     return str(genotype).count("conv")
    >>> small = limit_space(GeneralSpace((3,), ("zero", "conv3")), convolutions, 1, name="convolutions")
    >>> small.size(), convolutions(small.sample(Generator().manual_seed(0))) <= 1
    (4, True)
    >>> limit_space(small, convolutions, -1).sample(Generator().manual_seed(0))
    Traceback (most recent call last):
    nearkin.core.errors.OptionError: no genotype of general (convolutions <= 1) has cost <= -1; the lowest found is 0
    """
    return LimitedSpace(space, Limit(functools.cache(cost), at_most, name))


@dataclass(frozen=True)
class LimitedSpace(Space):
    """The genotypes of a space within a limit; made by `limit_space`.

    Sampling, mutation and neighbours respect the limit. `size` and `at` enumerate the space.
    """

    space: Space
    limit: Limit

    @property
    def name(self) -> str:
        """Name of the whole space with the limit."""
        return f"{self.space.name} ({self.limit.name} <= {self.limit.at_most:g})"

    def size(self) -> int:
        """Number of genotypes, by enumeration."""
        return sum(1 for _ in self.enumerate())

    def at(self, index: int) -> Genotype:
        """Genotype with a number, by enumeration."""
        genotype = next(itertools.islice(self.enumerate(), index, None), None) if index >= 0 else None
        if genotype is None:
            raise OptionError(f"there is no genotype {index} in {self.name}")
        return genotype

    def objection(self, genotype: Genotype) -> str:
        """Why a genotype is outside the space or the limit."""
        if reason := self.space.objection(genotype):
            return reason
        if self.limit.allows(genotype):
            return ""
        return f"its {self.limit.name} is {self.limit.cost(genotype):g}, at most {self.limit.at_most:g} are allowed"

    def neighbours(self, genotype: Genotype) -> tuple[Genotype, ...]:
        """Neighbours in the whole space that are within the limit."""
        self.require_member(genotype)
        return tuple(filter(self.limit.allows, self.space.neighbours(genotype)))

    def unique_key(self, genotype: Genotype) -> str:
        """Key in the whole space."""
        return self.space.unique_key(genotype)

    def sample(self, rng: Generator) -> Genotype:
        """Draw from the whole space until a genotype is within the limit: uniform among those.

        If many draws are rejected, a small space is enumerated. In a large one, the search starts at the cheapest draw,
        goes to the cheapest neighbour until it is within the limit, and then takes random steps; the result is not
        uniform.
        """
        size = without_limits(self).size()
        cheapest = self.space.sample(rng)
        for _ in range(min(DRAWS, _DRAWS_PER_GENOTYPE * size)):
            if self.limit.allows(cheapest):
                return cheapest
            cheapest = min(cheapest, self.space.sample(rng), key=self.limit.cost)
        if size > _ENUMERATED:
            genotype = self._descend(cheapest)
            for _ in range(_WALK):
                genotype = self.mutate(genotype, rng)
            return genotype
        allowed = list(self.enumerate())
        if not allowed:
            self._refuse(min(self.space.enumerate(), key=self.limit.cost))
        return allowed[uniform_index(len(allowed), rng)]

    def mutate(self, genotype: Genotype, rng: Generator) -> Genotype:
        """Draw a neighbour within the limit; costs are computed in random order until one is found."""
        self.require_member(genotype)
        others = self.space.neighbours(genotype)
        order = torch.randperm(len(others), generator=rng).tolist()
        return next((others[index] for index in order if self.limit.allows(others[index])), genotype)

    def enumerate(self) -> Iterator[Genotype]:
        """Genotypes of the whole space within the limit."""
        return filter(self.limit.allows, self.space.enumerate())

    def _descend(self, genotype: Genotype) -> Genotype:
        """Go to the cheapest neighbour until a genotype is within the limit."""
        while not self.limit.allows(genotype):
            best = min((genotype, *self.space.neighbours(genotype)), key=self.limit.cost)
            if best == genotype:
                self._refuse(genotype)
            genotype = best
        return genotype

    def _refuse(self, cheapest: Genotype) -> NoReturn:
        name, least = self.limit.name, self.limit.cost(cheapest)
        raise OptionError(
            f"no genotype of {self.space.name} has {name} <= {self.limit.at_most:g}; the lowest found is {least:g}"
        )


def without_limits(space: Space) -> Space:
    """The space without its limits."""
    return without_limits(space.space) if isinstance(space, LimitedSpace) else space


def limits_of(space: Space) -> tuple[Limit, ...]:
    """The limits of a space, the last one first."""
    return (space.limit, *limits_of(space.space)) if isinstance(space, LimitedSpace) else ()
