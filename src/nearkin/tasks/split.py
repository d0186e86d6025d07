"""Splits and subsets of samples, stratified by class and reproducible from a seed."""

import torch
from torch import Tensor

from nearkin.core.errors import DataError, require
from nearkin.core.rng import Streams

TEST_SHARE = 0.2  # where a data set has no test set of its own


def held_out_split(labels: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
    """Positions of the training and of the test samples of a data set without a test set, always the same."""
    return split_index(labels, count, TEST_SHARE, seed=0)


def split_index(labels: Tensor | None, count: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Positions of the kept samples and of the share set aside, both in rising order; stratified if there are labels.

    A class of two samples or more has at least one sample on each side.

    >>> kept, aside = split_index(torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 1, 1]), 10, 0.2, seed=0)
    >>> len(kept), len(aside), sorted((aside >= 5).tolist())
    (8, 2, [False, True])
    """
    require(0 < share < 1, f"the share set aside must be between 0 and 1, got {share}")
    require(count >= 2, f"{count} samples cannot be split; add more", DataError)
    groups = torch.zeros(count, dtype=torch.int64) if labels is None else labels
    rng = Streams(seed).at("split")
    aside = torch.zeros(count, dtype=torch.bool)
    for group in groups.unique():
        members = torch.nonzero(groups == group).flatten()
        members = members[torch.randperm(len(members), generator=rng)]
        size = min(max(1, round(share * len(members))), len(members) - 1)
        aside[members[:size]] = True
    return torch.nonzero(~aside).flatten(), torch.nonzero(aside).flatten()


def balanced_index(labels: Tensor, count: int, seed: int) -> Tensor:
    """Positions of at most `count` samples in rising order, balanced over the classes as far as their sizes allow.

    >>> balanced_index(torch.tensor([0, 0, 0, 0, 1, 1]), 4, seed=0).shape
    torch.Size([4])
    >>> labels = torch.tensor([0] * 90 + [1] * 10)
    >>> torch.bincount(labels[balanced_index(labels, 50, seed=0)])
    tensor([40, 10])
    """
    pools, left, taken = _shuffled_classes(labels, seed), min(count, len(labels)), []
    for rank, pool in enumerate(sorted(pools, key=len)):
        size = min(len(pool), left // (len(pools) - rank))
        taken.append(pool[:size])
        left -= size
    return torch.cat(taken).sort().values


def stratified_index(labels: Tensor, count: int, seed: int) -> Tensor:
    """Positions of `count` samples in rising order, with the class shares of all samples.

    Shares are rounded by largest remainder; every class has at least one sample if `count` allows it.

    >>> labels = torch.tensor([0] * 90 + [1] * 8 + [2] * 2)
    >>> torch.bincount(labels[stratified_index(labels, 10, seed=0)])
    tensor([8, 1, 1])
    """
    pools = _shuffled_classes(labels, seed)
    sizes = torch.tensor([len(pool) for pool in pools])
    count = min(count, len(labels))
    quota = count * sizes.double() / len(labels)
    taken = quota.floor().long().clamp_min(1)
    while (missing := count - int(taken.sum())) != 0:
        gap = quota - taken  # add to the class furthest below its quota, remove from the one furthest above
        if missing > 0:
            taken[gap.masked_fill(taken >= sizes, -torch.inf).argmax()] += 1
        else:
            taken[gap.masked_fill(taken <= int(taken.max() > 1), torch.inf).argmin()] -= 1
    return torch.cat([pool[:size] for pool, size in zip(pools, taken.tolist(), strict=True)]).sort().values


def paired_index(labels: Tensor, count: int, seed: int) -> Tensor:
    """Positions of at most `count` samples in rising order: two of each class, then others by the class shares.

    If `count` does not suffice for two of each class, classes are drawn at random. So there are pairs of one class
    whatever the number of classes, as scores of features need them.

    >>> labels = torch.tensor([0] * 90 + [1] * 8 + [2] * 2)
    >>> torch.bincount(labels[paired_index(labels, 20, seed=0)])
    tensor([16,  2,  2])
    >>> torch.bincount(torch.arange(100)[paired_index(torch.arange(100) % 50, 10, seed=0)] % 50).unique()
    tensor([0, 2])
    """
    rng = Streams(seed).at("pairs")
    shuffled = torch.randperm(len(labels), generator=rng)
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    groups = labels[by_class]
    sizes = torch.bincount(groups)
    rank = torch.arange(len(labels)) - (sizes.cumsum(0) - sizes)[groups]  # of a sample within its class
    turns = torch.rand(len(sizes), generator=rng, dtype=torch.float64) - 1  # below 0: pairs come first
    key = torch.where((rank < 2) & (sizes[groups] > 1), turns[groups], (rank + 0.5) / sizes[groups])
    return by_class[key.argsort(stable=True)[:count]].sort().values


def _shuffled_classes(labels: Tensor, seed: int) -> list[Tensor]:
    rng = Streams(seed).at("limit")
    pools = [torch.nonzero(labels == group).flatten() for group in labels.unique()]
    return [pool[torch.randperm(len(pool), generator=rng)] for pool in pools]
