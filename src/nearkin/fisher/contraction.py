r"""Squares of per-sample contractions: what the Fisher diagonal of a layer is made of.

$$\sum_b \Big(\sum_l G_{bol} U_{blk}\Big)^2$$

Notation: B samples, O outputs, K inputs of a filter, L positions (pixels or tokens). G `[B, O, L]` are gradients at a
layer's outputs, U `[B, L, K]` what it read there, and the result `[O, K]` is the sum over samples of squared weight
gradients.

No way of computing it is best everywhere: with few positions pairs of positions beat samples, small weights fit in a
cache and large ones must be cut.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

Way: TypeAlias = Callable[[Tensor, Tensor, Tensor], None]
"""Adds the squares of G and U to the third tensor, `[O, K]`."""

SMALL_FLOATS = 1 << 15  # of weights up to which several samples go through one call
BUFFER_FLOATS = 1 << 20  # of one sample's product: beyond it leaves every cache
MOST_PAIRED = 4  # positions up to which pairs of them beat samples


def sample_by_sample(g: Tensor, u: Tensor, into: Tensor) -> None:
    """A matrix product a sample, cut by outputs where its result would leave the cache."""
    outputs, inputs = into.shape
    step = max(1, min(outputs, BUFFER_FLOATS // inputs))
    buffer = into.new_empty(step, inputs)
    for start in range(0, outputs, step):
        part = into[start : start + step]
        held = buffer[: len(part)]
        for b in range(len(g)):
            torch.mm(g[b, start : start + step], u[b], out=held)
            part.addcmul_(held, held)


def in_sample_batches(g: Tensor, u: Tensor, into: Tensor) -> None:
    """Batched matrix products of as many samples as the cache holds."""
    size = max(1, 8 * SMALL_FLOATS // into.numel())
    for start in range(0, len(g), size):
        each = torch.bmm(g[start : start + size], u[start : start + size])
        into += each.square_().sum(0)


def in_position_pairs(g: Tensor, u: Tensor, into: Tensor) -> None:
    r"""$\left(\sum_l a_l\right)^2 = \sum_{l} a_l^2 + 2 \sum_{l < m} a_l a_m$, one matrix product a pair."""
    positions = g.shape[2]
    for first in range(positions):
        for second in range(first, positions):
            left = g[:, :, first] * g[:, :, second]
            right = u[:, first] * u[:, second]
            into.addmm_(left.t(), right, alpha=1.0 if first == second else 2.0)


def contracted_squares(g: Tensor, u: Tensor, into: Tensor) -> None:
    r"""Add $\sum_b (G_b U_b)^2$ to `into` `[O, K]` by the way that suits the shape.

    >>> g, u, into = torch.ones(2, 1, 3), torch.ones(2, 3, 1), torch.zeros(1, 1)
    >>> contracted_squares(g, u, into)
    >>> into
    tensor([[18.]])
    """
    suited(g.shape[2], into.numel())(g, u, into)


def suited(positions: int, weights: int) -> Way:
    """The way that measured fastest for so many positions and weights; the same on every machine, for the same bits.

    >>> suited(1, 10).__name__, suited(64, 1000).__name__, suited(64, 10**6).__name__
    ('in_position_pairs', 'in_sample_batches', 'sample_by_sample')
    """
    if positions <= 2 or (positions <= MOST_PAIRED and weights > SMALL_FLOATS):
        return in_position_pairs
    return in_sample_batches if weights <= SMALL_FLOATS else sample_by_sample
