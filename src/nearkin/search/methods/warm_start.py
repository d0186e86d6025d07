r"""Warm start: three proposers share the measurements by what their genotypes returned.

The best genotypes of a near kin are hard to beat, and so are their neighbours; those of a far kin are worse than random
draws. The scores of the target show which is the case. The search therefore has three proposers:

- *kin*: the genotypes of the kin, best first;
- *kin space*: neighbours of the best genotype that have the structures and operations of the kin's genotypes;
- *evolution*: neighbours, in the whole space, of the best among the latest measured genotypes.

The credit of a measurement is the share of earlier genotypes that it beats, in [0, 1]. After an opening of two
genotypes of the kin and three random draws, each measurement goes to the proposer $p$ with the largest upper confidence
bound

$$\frac{\tfrac12 + \sum_i \text{credit}_i}{1 + n_p} + c \sqrt{\frac{\log(1 + n)}{1 + n_p}},$$

where $n_p$ of $n$ measurements were its own and the sum is over them (UCB1, Auer et al. 2002). The draws of the opening
belong to no proposer, and the first genotype, which has none to beat, does not count. Credits are ranks, so that the
scale of the scores does not matter. They are computed from the records: the proposer has no state of its own.
"""

import bisect
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from nearkin.core.errors import require
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.sampling import CHILD, DRAWN, GIVEN, ORIGIN, Proposer, Sampling, Trials, best_indices
from nearkin.search.objective import Objective
from nearkin.search.searcher import ScoredGenotype
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.limited import without_limits
from nearkin.search.spaces.restricted import restrict_space

KIN_CHILD = "child in the kin's space"
"""Origin of a neighbour that has the structures and operations of the kin's genotypes."""

OPENING = (GIVEN, DRAWN, GIVEN, DRAWN, DRAWN)
"""Origins of the first genotypes: enough draws to tell whether the kin's are better."""


def rank_credits(scores: Sequence[float]) -> list[float]:
    """For each score but the first, which has none to beat, the share of earlier scores that are smaller.

    >>> rank_credits([3.0, 5.0, 4.0, 4.0])
    [1.0, 0.5, 0.3333333333333333]
    """
    earlier = list(scores[:1])
    credits = []
    for score in scores[1:]:
        smaller = bisect.bisect_left(earlier, score)
        credits.append(smaller / len(earlier))
        earlier.insert(smaller, score)
    return credits


@dataclass(frozen=True)
class WarmStart(Proposer):
    """Bandit over the genotypes of a kin, their space and evolution in the whole space.

    Attributes:
        population: number of latest genotypes, the best of which has the next child in the whole space.
        exploration: factor c of the upper confidence bound; larger values share more evenly.
        in_kin_space: whether a genotype has the structures and operations of the kin's genotypes.
    """

    population: int = 10
    exploration: float = 0.2
    in_kin_space: Callable[[Genotype], bool] = field(default=lambda genotype: False, repr=False, compare=False)
    name: str = "warm-start"

    def __post_init__(self) -> None:
        require(self.population >= 2, f"a population has at least 2 members, got {self.population}")
        require(0 <= self.exploration < math.inf, f"exploration must be a number of 0 or more, got {self.exploration}")

    def settings(self) -> dict[str, Any]:
        """Population and exploration; the genotypes of the kin are settings of the search."""
        return {"population": self.population, "exploration": self.exploration}

    def wants_given(self, trials: Trials) -> bool:
        """Whether the next genotype of the kin has its turn."""
        return self._order(trials)[0] == GIVEN

    def propose(self, trials: Trials, space: Space) -> tuple[Genotype, str]:
        """Return a child of the first proposer that has one, or a draw from the space."""
        for origin in self._order(trials):
            if origin == DRAWN:
                break
            if origin != GIVEN and (child := self._child(trials, space, origin)) is not None:
                return child, origin
        return space.sample(trials.streams["draw"]), DRAWN

    def _order(self, trials: Trials) -> list[str]:
        """Origins by their upper confidence bounds, the largest first; in the opening, the one that has its turn."""
        if len(trials.records) < len(OPENING):
            return [OPENING[len(trials.records)]]
        bounds = self._bounds(trials.records)
        return sorted(bounds, key=lambda origin: -bounds[origin])

    def _bounds(self, records: Sequence[ScoredGenotype]) -> dict[str, float]:
        earned: dict[str, list[float]] = {GIVEN: [], KIN_CHILD: [], CHILD: []}
        for record, credit in zip(records[1:], rank_credits([record.score for record in records]), strict=True):
            earned.get(str(record.facts[ORIGIN]), []).append(credit)
        logarithm = math.log(1 + sum(map(len, earned.values())))
        return {
            origin: (0.5 + sum(credits)) / (1 + len(credits))
            + self.exploration * math.sqrt(logarithm / (1 + len(credits)))
            for origin, credits in earned.items()
        }

    def _child(self, trials: Trials, space: Space, origin: str) -> Genotype | None:
        """A neighbour that was not measured, of the best parent that has one; None if no parent has."""
        parents = trials.records[-self.population :] if origin == CHILD else trials.records
        for index in best_indices(parents, len(parents)):
            parent = parents[index].genotype
            if origin == CHILD or self.in_kin_space(parent):
                neighbours = without_limits(space).neighbours(parent)
                for position in torch.randperm(len(neighbours), generator=trials.streams["draw"]).tolist():
                    child: Genotype = neighbours[position]
                    if (
                        space.unique_key(child) not in trials.index_of
                        and (origin == CHILD or self.in_kin_space(child))
                        and space.contains(child)
                    ):
                        return child
        return None


def warm_start_search(
    space: Space,
    objective: Objective,
    first: Iterable[Genotype] = (),
    *,
    population: int = 10,
    exploration: float = 0.2,
) -> Sampling:
    """Search that shares its measurements between the given genotypes of a kin, their space and the whole space."""
    genotypes = tuple(first)
    options: dict[str, Any] = {"population": population, "exploration": exploration}
    if genotypes:
        restricted = restrict_space(without_limits(space), genotypes)
        options["in_kin_space"] = functools.cache(restricted.contains)
    return Sampling(space, objective, WarmStart(**options), genotypes)
