"""Batches in an order that depends only on examples, seed and epoch, so that training can resume within an epoch."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from nearkin.core.errors import require
from nearkin.core.rng import Streams
from nearkin.tasks.augment import Augmentation
from nearkin.tasks.examples import Batch, Examples


def num_batches(count: int, size: int) -> int:
    """Number of batches of at most `size` samples for `count` samples.

    >>> num_batches(100, 32)
    4
    """
    require(size >= 1, f"a batch holds at least one sample, got a size of {size}; use 1 or more")
    return max(1, math.ceil(count / size))


def epoch_index(count: int, size: int, streams: Streams, epoch: int, start: int = 0) -> tuple[Tensor, ...]:
    """Positions of the samples in the batches of one epoch, from batch number `start`."""
    order = torch.randperm(count, generator=streams.at("order", epoch))
    return order.tensor_split(num_batches(count, size))[start:]


def part_of(values: Tensor, part: tuple[int, int]) -> Tensor:
    """Part number `part[0]` of the values of a batch, which are divided into `part[1]` parts of nearly equal size.

    >>> [part_of(torch.arange(5), (number, 2)).tolist() for number in range(2)]
    [[0, 1, 2], [3, 4]]
    """
    return values.tensor_split(part[1])[part[0]]


def epoch_batches(
    examples: Examples,
    size: int,
    streams: Streams,
    epoch: int,
    *,
    start: int = 0,
    augment: Augmentation | None = None,
    part: tuple[int, int] = (0, 1),
) -> Iterator[Batch]:
    """The shuffled batches of one epoch, from batch number `start`; of each, the part that `part_of` chooses.

    Batch sizes differ by at most one: 100 samples at size 32 are four batches of 25. A last batch of 4 would be too
    small for batch normalisation.

    >>> from nearkin.tasks.rows import Values
    >>> toy = Examples(Values(torch.arange(10.0)[:, None]), Values(torch.arange(10)))
    >>> whole = [batch.y.tolist() for batch in epoch_batches(toy, 4, Streams(0), epoch=3)]
    >>> [len(batch) for batch in whole], sorted(sum(whole, []))
    ([4, 3, 3], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    >>> [batch.y.tolist() for batch in epoch_batches(toy, 4, Streams(0), epoch=3, start=1)] == whole[1:]
    True
    """
    for number, index in enumerate(epoch_index(len(examples), size, streams, epoch, start), start):
        if augment is None:
            yield examples.take(part_of(index, part))
        else:  # the random numbers of a sample depend on its place in the whole batch
            batch = examples.take(index, augment, streams.at("augment", epoch, number))
            yield Batch(part_of(batch.x, part), part_of(batch.y, part))


def ordered_batches(examples: Examples, size: int) -> Iterator[Batch]:
    """All examples in batches, in their own order."""
    for index in torch.arange(len(examples)).tensor_split(num_batches(len(examples), size)):
        yield examples.take(index)
