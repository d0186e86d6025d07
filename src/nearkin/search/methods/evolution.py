"""Regularised evolution (Real et al. 2019): children of tournament winners replace the oldest members."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from nearkin.core.errors import require
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.sampling import CHILD, DRAWN, Proposer, Sampling, Trials
from nearkin.search.objective import Objective
from nearkin.search.spaces.base import Space

PATIENCE = 50
"""Number of repeated children in a row after which a genotype is drawn from the space instead."""


@dataclass(frozen=True)
class Evolution(Proposer):
    """A population of the latest measured genotypes; each new one is a neighbour of a tournament's winner.

    The population starts with the given genotypes and is filled with draws from the space. A child that was measured
    before does not join and costs nothing.

    Attributes:
        population: number of members; a new member replaces the oldest one.
        tournament: number of members drawn, the best of which has a child; NAS-Bench-201 uses the whole population.
    """

    population: int = 10
    tournament: int = 10
    name: str = "evolution"

    def __post_init__(self) -> None:
        require(self.population >= 2, f"a population has at least 2 members, got {self.population}")
        require(
            1 <= self.tournament <= self.population,
            f"a tournament has 1 to {self.population} members, the population; got {self.tournament}",
        )

    def propose(self, trials: Trials, space: Space) -> tuple[Genotype, str]:
        """Draw while the population grows, then propose a child."""
        rng = trials.streams["draw"]
        if len(trials.marks) < self.population or trials.repeats >= PATIENCE:
            return space.sample(rng), DRAWN
        drawn = torch.randperm(self.population, generator=rng)[: self.tournament].tolist()
        parent = max((trials.records[trials.marks[member]] for member in drawn), key=lambda record: record.score)
        return space.mutate(parent.genotype, rng), CHILD

    def observe(self, trials: Trials, index: int) -> None:
        """Add a new genotype to the population and drop the oldest member if it is full."""
        if not trials.repeats:
            trials.marks = [*trials.marks, index][-self.population :]


def evolution(
    space: Space, objective: Objective, *, population: int = 10, tournament: int = 10, first: Iterable[Genotype] = ()
) -> Sampling:
    """Regularised evolution whose population starts with the given genotypes."""
    return Sampling(space, objective, Evolution(population, tournament), tuple(first))
