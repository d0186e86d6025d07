"""Random search: every architecture drawn alike. The control that every other way must beat."""

from collections.abc import Iterable
from dataclasses import dataclass

from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.sampling import Proposer, Sampling, Trials
from nearkin.search.objective import Objective
from nearkin.search.spaces.base import Space

DRAWN = "drawn"
"""Origin of a genotype that was drawn from the whole space."""


@dataclass(frozen=True)
class RandomDraws(Proposer):
    """Draw from the space, all genotypes alike."""

    name: str = "random"

    def settings(self) -> dict[str, float]:
        """Nothing to set."""
        return {}

    def propose(self, trials: Trials, space: Space) -> tuple[Genotype, str]:
        """Any genotype."""
        return space.sample(trials.streams["draw"]), DRAWN

    def observe(self, trials: Trials, place: int) -> None:
        """Nothing to learn."""


def random_search(space: Space, objective: Objective, *, first: Iterable[Genotype] = ()) -> Sampling:
    """Random search, after the genotypes given first."""
    return Sampling(space, objective, RandomDraws(), tuple(first))
