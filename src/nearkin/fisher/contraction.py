r"""Squares of per-sample contractions: what the Fisher diagonal of a layer is made of.

$$\sum_b \Big(\sum_l G_{bol} U_{blk}\Big)^2$$

Notation: B samples, O outputs, K inputs of a filter, L positions (pixels or tokens). G `[B, O, L]` are gradients at a
layer's outputs, U `[B, L, K]` what it read there, and the result `[O, K]` is the sum over samples of squared weight
gradients.

No way of computing it is best everywhere: with few positions pairs of positions beat samples, small weights fit in a
cache and large ones must be cut. `fastest` times the ways that the shape allows on a few samples, once a shape and
process.
"""

import time
from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

Way: TypeAlias = Callable[[Tensor, Tensor, Tensor], None]
"""Adds the squares of G and U to the third tensor, `[O, K]`."""

CACHE_FLOATS = 1 << 16  # of a buffer that stays in a core's own cache
MOST_PAIRED = 6  # positions up to which pairs of them are worth trying
TIMED_SAMPLES = 8

_chosen: dict[Hashable, int] = {}


def one_by_one(g: Tensor, u: Tensor, into: Tensor) -> None:
    """A matrix product a sample, cut by outputs so that its result never leaves the cache."""
    outputs, inputs = into.shape
    step = max(1, min(outputs, CACHE_FLOATS // inputs))
    buffer = into.new_empty(step, inputs)
    for start in range(0, outputs, step):
        part = into[start : start + step]
        held = buffer[: len(part)]
        for b in range(len(g)):
            torch.mm(g[b, start : start + step], u[b], out=held)
            part.addcmul_(held, held)


def in_batches(g: Tensor, u: Tensor, into: Tensor) -> None:
    """Batched matrix products of as many samples as the cache holds."""
    size = max(1, 4 * CACHE_FLOATS // into.numel())
    for start in range(0, len(g), size):
        each = torch.bmm(g[start : start + size], u[start : start + size])
        into += each.square_().sum(0)


def in_pairs(g: Tensor, u: Tensor, into: Tensor) -> None:
    r"""$\left(\sum_l a_l\right)^2 = \sum_{l} a_l^2 + 2 \sum_{l < m} a_l a_m$, one matrix product a pair."""
    positions = g.shape[2]
    for first in range(positions):
        for second in range(first, positions):
            left = g[:, :, first] * g[:, :, second]
            right = u[:, first] * u[:, second]
            into.addmm_(left.t(), right, alpha=1.0 if first == second else 2.0)


def contracted_squares(g: Tensor, u: Tensor, into: Tensor) -> None:
    r"""Add $\sum_b (G_b U_b)^2$ to `into` `[O, K]` by the way that is fastest for this shape.

    >>> g, u, into = torch.ones(2, 1, 3), torch.ones(2, 3, 1), torch.zeros(1, 1)
    >>> contracted_squares(g, u, into)
    >>> into
    tensor([[18.]])
    """
    ways: list[Way] = [one_by_one, in_batches]
    if g.shape[2] <= MOST_PAIRED:
        ways.append(in_pairs)
    key = ("contraction", tuple(g.shape[1:]), tuple(u.shape[1:]), g.dtype)
    way = fastest(key, ways, lambda way, count, scratch: way(g[:count], u[:count], scratch), into, len(g))
    way(g, u, into)


def fastest(
    key: Hashable,
    ways: Sequence[Callable[..., None]],
    trial: Callable[[Callable[..., None], int, Tensor], None],
    into: Tensor,
    samples: int,
) -> Callable[..., None]:
    """The way with the least process time on a few samples; remembered by key, device and number of threads."""
    if len(ways) == 1:
        return ways[0]
    key = (key, into.device.type, torch.get_num_threads(), len(ways))
    if key not in _chosen:
        scratch, count = torch.zeros_like(into), min(samples, TIMED_SAMPLES)
        times = []
        for way in ways:
            start = time.process_time_ns()
            trial(way, count, scratch)
            times.append(time.process_time_ns() - start)
            if times[-1] < 2 * min(times):  # a close race is run again, without the first run's surprises
                start = time.process_time_ns()
                trial(way, count, scratch)
                times[-1] = min(times[-1], time.process_time_ns() - start)
        _chosen[key] = times.index(min(times))
    return ways[_chosen[key]]


def forget_timings() -> None:
    """Time anew from here on; for benchmarks of a cold start."""
    _chosen.clear()
