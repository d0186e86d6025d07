r"""Sums of squared per-sample contractions: the Fisher diagonal of a layer.

$$\sum_b \Big(\sum_l G_{bol} U_{blk}\Big)^2$$

Notation: B samples, O outputs, K inputs of a filter, L positions (pixels or tokens). G `[B, O, L]` are gradients at a
layer's outputs, U `[B, L, K]` the layer's inputs there. The result `[O, K]` is the sum of squared weight gradients.

Which method is fastest depends on the shape: with few positions, pairs of positions are cheaper than samples; small
weights fit in a cache, large ones are split.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

Contraction: TypeAlias = Callable[[Tensor, Tensor, Tensor], None]
"""Adds the squares of G and U to the third tensor, `[O, K]`."""

SMALL_FLOATS = 1 << 15  # largest weight for which several samples are computed in one call
BUFFER_FLOATS = 1 << 20  # largest product of one sample that stays in a cache
MOST_PAIRED = 4  # number of positions up to which pairs of positions are faster than samples


def sample_by_sample(g: Tensor, u: Tensor, into: Tensor) -> None:
    """One matrix product per sample, split by outputs if the result does not fit the cache."""
    outputs, inputs = into.shape
    step = max(1, min(outputs, BUFFER_FLOATS // inputs))
    buffer = into.new_empty(step, inputs)
    for start in range(0, outputs, step):
        rows = into[start : start + step]
        product = buffer[: len(rows)]
        for b in range(len(g)):
            torch.mm(g[b, start : start + step], u[b], out=product)
            rows.addcmul_(product, product)


def in_sample_batches(g: Tensor, u: Tensor, into: Tensor) -> None:
    """Batched matrix products of as many samples as fit the cache."""
    size = max(1, 8 * SMALL_FLOATS // into.numel())
    for start in range(0, len(g), size):
        each = torch.bmm(g[start : start + size], u[start : start + size])
        into += each.square_().sum(0)


def in_position_pairs(g: Tensor, u: Tensor, into: Tensor) -> None:
    r"""$\left(\sum_l a_l\right)^2 = \sum_{l} a_l^2 + 2 \sum_{l < m} a_l a_m$, one matrix product per pair."""
    positions = g.shape[2]
    for first in range(positions):
        for second in range(first, positions):
            left = g[:, :, first] * g[:, :, second]
            right = u[:, first] * u[:, second]
            into.addmm_(left.t(), right, alpha=1.0 if first == second else 2.0)


def contracted_squares(g: Tensor, u: Tensor, into: Tensor) -> None:
    r"""Add $\sum_b (G_b U_b)^2$ to `into` `[O, K]` by the fastest method for the shape.

    >>> g, u, into = torch.ones(2, 1, 3), torch.ones(2, 3, 1), torch.zeros(1, 1)
    >>> contracted_squares(g, u, into)
    >>> into
    tensor([[18.]])
    """
    fastest_contraction(g.shape[2], into.numel())(g, u, into)


def fastest_contraction(positions: int, weights: int) -> Contraction:
    """The method that was measured to be the fastest; the choice is the same on every machine, so that results are.

    >>> [fastest_contraction(*sizes).__name__ for sizes in ((1, 10), (64, 1000), (64, 10**6))]
    ['in_position_pairs', 'in_sample_batches', 'sample_by_sample']
    """
    if positions <= 2 or (positions <= MOST_PAIRED and weights > SMALL_FLOATS):
        return in_position_pairs
    return in_sample_batches if weights <= SMALL_FLOATS else sample_by_sample
