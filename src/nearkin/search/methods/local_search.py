"""Local search: climb from neighbour to better neighbour; from a summit, start again elsewhere."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.evolution import CHILD
from nearkin.search.methods.random_search import DRAWN
from nearkin.search.methods.sampling import Proposer, Sampling, Trials
from nearkin.search.objective import Objective
from nearkin.search.spaces.base import Space


@dataclass(frozen=True)
class LocalSearch(Proposer):
    """Neighbours of the foothold in a random order; the first better one is the next foothold.

    A neighbour that was measured before costs nothing. A foothold without a better neighbour is a summit: the next
    foothold is drawn from the whole space. With genotypes given, the best of them is the first foothold.
    """

    name: str = "local"

    def settings(self) -> dict[str, float]:
        """Nothing to set."""
        return {}

    def propose(self, trials: Trials, space: Space) -> tuple[Genotype, str]:
        """A neighbour of the foothold that was not measured, or a draw where there is none."""
        rng = trials.streams["draw"]
        while trials.marks:
            (foothold,) = trials.marks
            others = space.neighbours(trials.records[foothold].genotype)
            order = torch.randperm(len(others), generator=rng).tolist()
            for other in map(others.__getitem__, order):
                known = trials.places.get(space.unique_key(other))
                if known is None:
                    return other, CHILD
                if trials.records[known].score > trials.records[foothold].score:
                    trials.marks = [known]
                    break
            else:
                trials.marks = []
        return space.sample(rng), DRAWN

    def observe(self, trials: Trials, place: int) -> None:
        """Step there if it is higher, or if there is no foothold and it is new."""
        records = trials.records
        if not trials.marks:
            trials.marks = [] if trials.repeats else [place]
        elif records[place].score > records[trials.marks[0]].score:
            trials.marks = [place]


def local_search(space: Space, objective: Objective, *, first: Iterable[Genotype] = ()) -> Sampling:
    """Local search from the best of the genotypes given first, or from a draw."""
    return Sampling(space, objective, LocalSearch(), tuple(first))
