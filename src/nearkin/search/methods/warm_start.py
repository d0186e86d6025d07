"""Warm start: an evolution whose first population is half the best genotypes of a kin and half random draws.

The best genotypes of a near kin are hard to beat, and so are their neighbours; those of a far kin are worse than random
draws. A few measurements show which is the case, if there are draws to compare with. Evolution then removes the old
members, among them those of a far kin. About ten other methods were tried on tables of known architectures, such as
bandits that divide the evaluations between sources; none was better (docs/figures/tables-benchmark.md).
"""

from collections.abc import Iterable

from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.evolution import Evolution
from nearkin.search.methods.sampling import Sampling
from nearkin.search.objective import Objective
from nearkin.search.spaces.base import Space


def warm_start_search(
    space: Space, objective: Objective, first: Iterable[Genotype], *, population: int = 10, tournament: int = 10
) -> Sampling:
    """Regularised evolution that measures the first given genotypes, best first, up to half a population."""
    chosen: list[Genotype] = []
    keys: set[str] = set()
    for genotype in first:
        if len(keys) == population // 2:
            break
        chosen.append(genotype)
        if space.contains(genotype):
            keys.add(space.unique_key(genotype))
    return Sampling(space, objective, Evolution(population, tournament, "warm-start"), tuple(chosen))
