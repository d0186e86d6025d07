"""Batches in a set order: a function of examples, seed and epoch, so that any epoch can be entered midway."""

import math
from collections.abc import Iterator

import torch

from nearkin.core.errors import require
from nearkin.core.rng import Streams
from nearkin.tasks.augment import Augmentation
from nearkin.tasks.examples import Batch, Examples


def num_batches(count: int, size: int) -> int:
    """How many batches of at most `size` hold `count` samples.

    >>> num_batches(100, 32)
    4
    """
    require(size >= 1, f"a batch holds at least one sample, got a size of {size}")
    return max(1, math.ceil(count / size))


def epoch_batches(
    examples: Examples,
    size: int,
    streams: Streams,
    epoch: int,
    *,
    start: int = 0,
    augment: Augmentation | None = None,
) -> Iterator[Batch]:
    """The shuffled batches of one epoch, from number `start` on.

    Batch sizes differ by one at the most: 100 samples at size 32 are four batches of 25, never a last one of 4, on
    which batch normalisation would stumble.

    >>> from nearkin.tasks.rows import Values
    >>> toy = Examples(Values(torch.arange(10.0)[:, None]), Values(torch.arange(10)))
    >>> whole = [batch.y.tolist() for batch in epoch_batches(toy, 4, Streams(0), epoch=3)]
    >>> [len(batch) for batch in whole], sorted(sum(whole, []))
    ([4, 3, 3], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    >>> [batch.y.tolist() for batch in epoch_batches(toy, 4, Streams(0), epoch=3, start=1)] == whole[1:]
    True
    """
    order = torch.randperm(len(examples), generator=streams.at("order", epoch))
    parts = order.tensor_split(num_batches(len(examples), size))
    for number in range(start, len(parts)):
        rng = None if augment is None else streams.at("augment", epoch, number)
        yield examples.take(parts[number], augment, rng)


def ordered_batches(examples: Examples, size: int) -> Iterator[Batch]:
    """All examples in their own order."""
    for part in torch.arange(len(examples)).tensor_split(num_batches(len(examples), size)):
        yield examples.take(part)
