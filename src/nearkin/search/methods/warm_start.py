"""Search that starts from kin: a related task's best genotypes first, and a population that does not rest on them.

Near kin's best are hard to beat, and their neighbours are the place to look; far kin's best are worse than draws, and
so are their neighbours. Which it is shows in a few measurements, if there are draws to compare with. So at most half of
the first population is the kin's and the rest is drawn; then evolution goes its way: the old die, far kin among them.
Ten more ingenious ways were tried on tables of known architectures, arms that share out the questions among them, and
none was better (docs/figures/tables-benchmark.md).
"""

from collections.abc import Iterable

from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.evolution import Evolution
from nearkin.search.methods.sampling import Sampling
from nearkin.search.objective import Objective
from nearkin.search.spaces.base import Space


def kin_search(
    space: Space,
    objective: Objective,
    first: Iterable[Genotype],
    *,
    population: int = 10,
    tournament: int = 10,
) -> Sampling:
    """Regularised evolution from a kin's genotypes, best first; of these, half a population is measured."""
    chosen: list[Genotype] = []
    counted: set[str] = set()
    for genotype in first:
        if len(counted) == population // 2:
            break
        chosen.append(genotype)
        if space.contains(genotype):
            counted.add(space.unique_key(genotype))
    return Sampling(space, objective, Evolution(population, tournament, "kin"), tuple(chosen))
