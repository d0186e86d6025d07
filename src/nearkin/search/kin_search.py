"""Search that starts from kin: a related task's best genotypes first, and a population that does not rest on them.

Near kin's best are hard to beat, and their neighbours are the place to look; far kin's best are worse than draws, and
so are their neighbours. Which it is shows in a few measurements, if there are draws to compare with. So at most half of
the first population is the kin's; the other half is by turns a draw and a child of the best so far, and from then on
evolution goes its way: the old die, and far kin with them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from nearkin.search.evolution import CHILD, PATIENCE, Evolution
from nearkin.search.genotype import Genotype
from nearkin.search.objective import Objective
from nearkin.search.sampling import Sampling, Trials, Way
from nearkin.search.space import Space


@dataclass(frozen=True)
class KinSearch(Way):
    """Regularised evolution, its population founded by kin, draws, and children of the best among both.

    Attributes:
        evolution: what follows when the population is full.
    """

    evolution: Evolution = field(default_factory=Evolution)
    name: str = "kin"

    def settings(self) -> dict[str, int]:
        """Those of the evolution."""
        return self.evolution.settings()

    def propose(self, trials: Trials, space: Space) -> tuple[Genotype, str]:
        """A child of the best every second time while the population grows; else what evolution proposes."""
        founding = len(trials.marks) < self.evolution.population
        if founding and len(trials.marks) % 2 and trials.repeats < PATIENCE:
            parent = trials.records[trials.best].genotype
            return space.mutate(parent, trials.streams["draw"]), CHILD
        return self.evolution.propose(trials, space)

    def met(self, trials: Trials, place: int) -> None:
        """As evolution does."""
        self.evolution.met(trials, place)


def kin_search(
    space: Space,
    objective: Objective,
    first: Iterable[Genotype],
    *,
    population: int = 10,
    tournament: int = 10,
) -> Sampling:
    """Search from a kin's genotypes, best first; of these, half a population is measured."""
    chosen: list[Genotype] = []
    counted: set[str] = set()
    for genotype in first:
        if len(counted) == population // 2:
            break
        chosen.append(genotype)
        if space.contains(genotype):
            counted.add(space.unique_key(genotype))
    return Sampling(space, objective, KinSearch(Evolution(population, tournament)), tuple(chosen))
