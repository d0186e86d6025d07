"""Regularised evolution (Real et al. 2019): children of tournament winners, and the oldest dies."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from nearkin.core.errors import require
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.random_search import DRAWN
from nearkin.search.methods.sampling import Proposer, Sampling, Trials
from nearkin.search.objective import Objective
from nearkin.search.spaces.base import Space

CHILD = "child"
"""Origin of a genotype that is another's neighbour."""

PATIENCE = 50
"""Children in a row that were measured before, after which a draw is proposed instead."""


@dataclass(frozen=True)
class Evolution(Proposer):
    """A population of the latest measured, each new one the neighbour of a tournament's winner.

    The first members are those given, and draws from the space until the population is full. A child that was measured
    before does not join, and costs nothing; after many of these in a row, a draw is proposed instead.

    Attributes:
        population: members alive; the oldest dies when another joins.
        tournament: members drawn, the best of which has a child; all of them in the setting of NAS-Bench-201.
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

    def settings(self) -> dict[str, int]:
        """Both numbers."""
        return {"population": self.population, "tournament": self.tournament}

    def propose(self, trials: Trials, space: Space) -> tuple[Genotype, str]:
        """A draw while the population grows, then a child."""
        rng = trials.streams["draw"]
        if len(trials.marks) < self.population or trials.repeats >= PATIENCE:
            return space.sample(rng), DRAWN
        drawn = torch.randperm(self.population, generator=rng)[: self.tournament].tolist()
        parent = max((trials.records[trials.marks[member]] for member in drawn), key=lambda record: record.score)
        return space.mutate(parent.genotype, rng), CHILD

    def observe(self, trials: Trials, place: int) -> None:
        """What is new joins the population; the oldest leaves a full one."""
        if not trials.repeats:
            trials.marks = [*trials.marks, place][-self.population :]


def evolution(
    space: Space,
    objective: Objective,
    *,
    population: int = 10,
    tournament: int = 10,
    first: Iterable[Genotype] = (),
) -> Sampling:
    """Regularised evolution whose population begins with the genotypes given first."""
    return Sampling(space, objective, Evolution(population, tournament), tuple(first))
