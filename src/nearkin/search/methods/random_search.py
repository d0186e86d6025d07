"""Random search: genotypes drawn uniformly. It is the baseline for every other method."""

from collections.abc import Iterable
from dataclasses import dataclass

from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.sampling import DRAWN, Proposer, Sampling, Trials
from nearkin.search.objective import Objective
from nearkin.search.spaces.base import Space


@dataclass(frozen=True)
class RandomDraws(Proposer):
    """Draw from the space, every genotype with the same probability."""

    name: str = "random"

    def propose(self, trials: Trials, space: Space) -> tuple[Genotype, str]:
        """Draw a genotype at random from the space."""
        return space.sample(trials.streams["draw"]), DRAWN


def random_search(space: Space, objective: Objective, *, first: Iterable[Genotype] = ()) -> Sampling:
    """Random search that measures the given genotypes first."""
    return Sampling(space, objective, RandomDraws(), tuple(first))
