r"""Warm start: three proposers share the measurements by what their genotypes returned.

The best genotypes of a near kin are hard to beat, and so are their neighbours; those of a far kin are worse than random
draws. The scores of the target show which is the case. The search therefore has three proposers:

- *kin*: the genotypes of the kin, best first;
- *kin space*: neighbours that have the structures and operations of the kin's genotypes, of a parent that has them too;
- *whole space*: neighbours of any measured genotype.

The credit of a measurement is the share of earlier genotypes that it beats, in [0, 1]. After an opening of three
genotypes of the kin and three random draws in turn, each measurement goes to the proposer with the largest upper
confidence bound (UCB1, Auer et al. 2002)

$$\frac{r + \sum_i \text{credit}_i}{1 + m} + c \sqrt{\frac{\log(1 + n)}{1 + m}},$$

where $r = \tfrac12$, and $m$ of the $n$ measurements of all proposers were its own; the sum is over them. The draws of
the opening belong to no proposer, and the first genotype, which has none to beat, does not count. The parent is chosen
by the same bound: there $r$ is the share of the $n$ measured genotypes that the parent beats, and the sum is over its
$m$ children. So a parent whose children are bad gives way to others, and the search leaves a local optimum. Credits are
ranks, so that the scale of the scores does not matter. The marks of the trials are the parents.
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
from nearkin.search.methods.evolution import PATIENCE
from nearkin.search.methods.sampling import CHILD, DRAWN, GIVEN, ORIGIN, Proposer, Sampling, Trials
from nearkin.search.objective import Objective
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.limited import without_limits
from nearkin.search.spaces.restricted import restrict_space

KIN_CHILD = "child in the kin's space"
"""Origin of a neighbour that has the structures and operations of the kin's genotypes."""

OPENING = (GIVEN, DRAWN) * 3
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


def upper_bound(value: float, earned: Sequence[float], total: int, exploration: float) -> float:
    """Mean of a first value and of credits, with a bonus that is larger the fewer they are.

    >>> upper_bound(0.5, [1.0], total=0, exploration=0.1), upper_bound(0.5, [], total=1, exploration=1.0)
    (0.75, 1.3325546111576978)
    """
    count = 1 + len(earned)
    return (value + sum(earned)) / count + exploration * math.sqrt(math.log(1 + total) / count)


@dataclass(frozen=True)
class WarmStart(Proposer):
    """Bandit over the genotypes of a kin, their space and the whole space.

    Attributes:
        exploration: factor c of the upper confidence bounds; larger values share more evenly.
        in_kin_space: whether a genotype has the structures and operations of the kin's genotypes.
    """

    exploration: float = 0.1
    in_kin_space: Callable[[Genotype], bool] = field(default=lambda genotype: False, repr=False, compare=False)
    name: str = "warm-start"

    def __post_init__(self) -> None:
        require(0 <= self.exploration < math.inf, f"exploration must be a number of 0 or more, got {self.exploration}")

    def settings(self) -> dict[str, Any]:
        """Exploration; the genotypes of the kin are settings of the search."""
        return {"exploration": self.exploration}

    def wants_given(self, trials: Trials) -> bool:
        """Whether the next genotype of the kin has its turn."""
        return self._order(trials)[0] == GIVEN

    def propose(self, trials: Trials, space: Space) -> tuple[Genotype, str]:
        """Return a child of the first proposer that has one, or a draw from the space."""
        for origin in self._order(trials):
            if origin == DRAWN or trials.repeats >= PATIENCE:
                break
            if origin != GIVEN and (child := self._child(trials, space, origin)) is not None:
                return child, origin
        return space.sample(trials.streams["draw"]), DRAWN

    def observe(self, trials: Trials, index: int) -> None:
        """Mark the parent of a new genotype; one without a parent is marked with its own index."""
        if not trials.repeats:
            is_child = trials.records[index].facts[ORIGIN] in (KIN_CHILD, CHILD)
            trials.marks = [*trials.marks[:index], trials.marks[index] if is_child else index]

    def _order(self, trials: Trials) -> list[str]:
        """Origins by their upper confidence bounds, the largest first; in the opening, the one that has its turn."""
        if len(trials.records) < len(OPENING):
            return [OPENING[len(trials.records)]]
        earned: dict[str, list[float]] = {GIVEN: [], KIN_CHILD: [], CHILD: []}
        credits = rank_credits([record.score for record in trials.records])
        for record, credit in zip(trials.records[1:], credits, strict=True):
            earned.get(str(record.facts[ORIGIN]), []).append(credit)
        total = sum(map(len, earned.values()))
        return sorted(earned, key=lambda origin: -upper_bound(0.5, earned[origin], total, self.exploration))

    def _parents(self, trials: Trials) -> list[int]:
        """Indices of the measured genotypes by their upper confidence bounds, the largest first."""
        scores = [record.score for record in trials.records]
        earned: list[list[float]] = [[] for _ in scores]
        for index, credit in enumerate(rank_credits(scores), 1):
            if trials.marks[index] != index:
                earned[trials.marks[index]].append(credit)
        ordered, total = sorted(scores), len(scores)
        bounds = [
            upper_bound(bisect.bisect_left(ordered, score) / total, credits, total, self.exploration)
            for score, credits in zip(scores, earned, strict=True)
        ]
        return sorted(range(total), key=lambda index: -bounds[index])

    def _child(self, trials: Trials, space: Space, origin: str) -> Genotype | None:
        """A neighbour that was not measured, of the first parent that has one; None if no parent has."""
        for index in self._parents(trials):
            parent = trials.records[index].genotype
            if origin == CHILD or self.in_kin_space(parent):
                neighbours = without_limits(space).neighbours(parent)
                for position in torch.randperm(len(neighbours), generator=trials.streams["draw"]).tolist():
                    child: Genotype = neighbours[position]
                    if (
                        space.unique_key(child) not in trials.index_of
                        and (origin == CHILD or self.in_kin_space(child))
                        and space.contains(child)
                    ):
                        trials.marks = [*trials.marks[: len(trials.records)], index]
                        return child
        return None


def warm_start_search(
    space: Space, objective: Objective, first: Iterable[Genotype] = (), *, exploration: float = 0.1
) -> Sampling:
    """Search that shares its measurements between the given genotypes of a kin, their space and the whole space."""
    genotypes = tuple(first)
    options: dict[str, Any] = {"exploration": exploration}
    if genotypes:
        restricted = restrict_space(without_limits(space), genotypes)
        options["in_kin_space"] = functools.cache(restricted.contains)
    return Sampling(space, objective, WarmStart(**options), genotypes)
