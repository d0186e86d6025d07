"""A space under a limit on parameters, multiply-adds, measured latency or any other cost of a genotype."""

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
"""Genotypes that are drawn before a limit that none of them keeps to is met in another way."""

_FEW = 20_000
_TURNS = 20
_STEPS = 50


@dataclass(frozen=True)
class Limit:
    """`cost(genotype) <= at_most`.

    Attributes:
        cost: must give the same number for the same genotype.
        at_most: the largest cost allowed.
        name: what the cost is called in messages.
    """

    cost: Cost
    at_most: float
    name: str = "cost"

    def __post_init__(self) -> None:
        require(not math.isnan(self.at_most), f"a limit on {self.name} is a number, got {self.at_most}")

    def allows(self, genotype: Genotype) -> bool:
        """Whether the genotype keeps to the limit."""
        return self.cost(genotype) <= self.at_most


def limit_space(space: Space, cost: Cost, at_most: float, *, name: str = "cost") -> "LimitedSpace":
    """The genotypes of a space whose cost is at most so much; limit it again for a second cost.

    Costs are remembered, so that dear ones are measured once for each genotype.

    >>> from nearkin.search.spaces.general import GeneralSpace
    >>> def convolutions(genotype: Genotype) -> int:
    ...     return str(genotype).count("conv")
    >>> small = limit_space(GeneralSpace((3,), ("zero", "conv3")), convolutions, 1, name="convolutions")
    >>> small.size(), convolutions(small.sample(Generator().manual_seed(0))) <= 1
    (4, True)
    >>> limit_space(small, convolutions, -1).sample(Generator().manual_seed(0))
    Traceback (most recent call last):
    nearkin.core.errors.OptionError: no genotype of general (convolutions <= 1) has cost <= -1; the least found has 0
    """
    return LimitedSpace(space, Limit(_Remembered(cost), at_most, name))


class _Remembered:
    """A cost that is asked for once."""

    def __init__(self, cost: Cost) -> None:
        self.cost = cost
        self.known: dict[Genotype, float] = {}

    def __call__(self, genotype: Genotype) -> float:
        if genotype not in self.known:
            self.known[genotype] = self.cost(genotype)
        return self.known[genotype]


@dataclass(frozen=True)
class LimitedSpace(Space):
    """A space without the genotypes that break a limit; made by `limit_space`.

    Drawing, mutation and neighbours keep to the limit. Counting and numbering want a space that can be enumerated.
    """

    space: Space
    limit: Limit

    @property
    def name(self) -> str:
        """That of the whole space, and the limit."""
        return f"{self.space.name} ({self.limit.name} <= {self.limit.at_most:g})"

    def size(self) -> int:
        """Counted one by one."""
        return sum(1 for _ in self.enumerate())

    def at(self, index: int) -> Genotype:
        """Counted one by one."""
        for place, genotype in enumerate(self.enumerate()):
            if place == index:
                return genotype
        raise OptionError(f"there is no genotype {index} in {self.name}")

    def objection(self, genotype: Genotype) -> str:
        """Why a genotype lies outside, or costs too much."""
        if reason := self.space.objection(genotype):
            return reason
        if self.limit.allows(genotype):
            return ""
        return f"its {self.limit.name} is {self.limit.cost(genotype):g}, at most {self.limit.at_most:g} are allowed"

    def neighbours(self, genotype: Genotype) -> tuple[Genotype, ...]:
        """The neighbours in the whole space that keep to the limit."""
        self.require_member(genotype)
        return tuple(filter(self.limit.allows, self.space.neighbours(genotype)))

    def unique_key(self, genotype: Genotype) -> str:
        """That of the whole space."""
        return self.space.unique_key(genotype)

    def sample(self, rng: Generator) -> Genotype:
        """Drawn from the whole space until one keeps to the limit, so that all of these are equally likely.

        Where none does among many, a small space is gone through one by one. In a large one the cheapest that was drawn
        is led down from neighbour to neighbour and from there astray, no longer with equal probabilities.
        """
        whole = self._whole().size()
        cheapest = self.space.sample(rng)
        for _ in range(min(DRAWS, _TURNS * whole)):
            if self.limit.allows(cheapest):
                return cheapest
            cheapest = min(cheapest, self.space.sample(rng), key=self.limit.cost)
        if whole > _FEW:
            return self._astray(self._led_down(cheapest), rng)
        allowed = list(self.enumerate())
        if not allowed:
            self._refuse(min(self.space.enumerate(), key=self.limit.cost))
        return allowed[uniform_index(len(allowed), rng)]

    def mutate(self, genotype: Genotype, rng: Generator) -> Genotype:
        """As ever; costs are asked for in a random order, only until one keeps to the limit."""
        self.require_member(genotype)
        others = self.space.neighbours(genotype)
        order = torch.randperm(len(others), generator=rng).tolist()
        return next((others[place] for place in order if self.limit.allows(others[place])), genotype)

    def enumerate(self) -> Iterator[Genotype]:
        """Those of the whole space that keep to the limit."""
        return filter(self.limit.allows, self.space.enumerate())

    def _whole(self) -> Space:
        """The space without any limit."""
        return self.space._whole() if isinstance(self.space, LimitedSpace) else self.space

    def _led_down(self, genotype: Genotype) -> Genotype:
        """The first that keeps to the limit on the way from neighbour to cheapest neighbour."""
        while not self.limit.allows(genotype):
            best = min((genotype, *self.space.neighbours(genotype)), key=self.limit.cost)
            if best == genotype:
                self._refuse(genotype)
            genotype = best
        return genotype

    def _astray(self, genotype: Genotype, rng: Generator) -> Genotype:
        for _ in range(_STEPS):
            genotype = self.mutate(genotype, rng)
        return genotype

    def _refuse(self, cheapest: Genotype) -> NoReturn:
        name, least = self.limit.name, self.limit.cost(cheapest)
        raise OptionError(
            f"no genotype of {self.space.name} has {name} <= {self.limit.at_most:g}; the least found has {least:g}"
        )
