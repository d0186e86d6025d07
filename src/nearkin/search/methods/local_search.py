"""Local search: move to a better neighbour; restart at a random genotype from a local optimum."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.sampling import CHILD, DRAWN, Proposer, Sampling, Trials
from nearkin.search.objective import Objective
from nearkin.search.spaces.base import Space


@dataclass(frozen=True)
class LocalSearch(Proposer):
    """Propose neighbours of the current genotype in random order; the first better one becomes the current one.

    A neighbour that was measured before costs nothing. A genotype without a better neighbour is a local optimum: the
    next current genotype is drawn from the whole space. With given genotypes, the search starts at the best of them.
    """

    name: str = "local"

    def propose(self, trials: Trials, space: Space) -> tuple[Genotype, str]:
        """Return a neighbour that was not measured, or a draw from the space if there is none."""
        rng = trials.streams["draw"]
        while trials.marks:
            (current,) = trials.marks
            neighbours = space.neighbours(trials.records[current].genotype)
            order = torch.randperm(len(neighbours), generator=rng).tolist()
            for neighbour in map(neighbours.__getitem__, order):
                known = trials.index_of.get(space.unique_key(neighbour))
                if known is None:
                    return neighbour, CHILD
                if trials.records[known].score > trials.records[current].score:
                    trials.marks = [known]
                    break
            else:
                trials.marks = []
        return space.sample(rng), DRAWN

    def observe(self, trials: Trials, index: int) -> None:
        """Make a genotype the current one if it is better, or if it is new and there is no current one."""
        records = trials.records
        if not trials.marks:
            trials.marks = [] if trials.repeats else [index]
        elif records[index].score > records[trials.marks[0]].score:
            trials.marks = [index]


def local_search(space: Space, objective: Objective, *, first: Iterable[Genotype] = ()) -> Sampling:
    """Local search from the best of the given genotypes, or from a random one."""
    return Sampling(space, objective, LocalSearch(), tuple(first))
