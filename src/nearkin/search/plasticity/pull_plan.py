r"""The proximal step of diagonal importance for many tensors at once.

Most shared tensors are small, so that calls and new memory cost more than the arithmetic. The importance of all of them
is therefore stored in one vector. A step computes the pull $sF/(1 + sF) = F/(F + 1/s)$ in memory that is kept from step
to step, and moves every tensor towards its anchor. The pull of up to `KEPT` weights is computed again only if s
changes. That of more weights is computed in every step for `CHUNK` of them at a time, so that memory does not grow.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nearkin.search.plasticity.penalty_blocks import LIMIT, DiagonalBlock

KEPT, CHUNK = 1 << 20, 1 << 17


@dataclass(frozen=True, eq=False)
class PullChunk:
    """Importance and pull of some weights; for each of their tensors the weights, the anchor and the pull."""

    importance: Tensor
    pull: Tensor
    weights: list[Tensor]
    anchors: list[Tensor]
    pulls: list[Tensor]


class PullPlan:
    """Views of weights, anchors and importance, made once and used in every step until one of them moves.

    Args:
        blocks: diagonal blocks of the same device and dtype as their weights, which are contiguous.
        weights: by name; changed by `contract`.
        anchors: by name.

    Attributes:
        blocks: the blocks, whose values are now parts of one vector.

    >>> w, block = torch.tensor([2.0, 2.0]), DiagonalBlock("w", torch.tensor([1.0, 0.0]))
    >>> PullPlan([block], {"w": w}, {"w": torch.zeros(2)}).contract(1.0)
    >>> w
    tensor([1., 2.])
    """

    def __init__(
        self, blocks: Sequence[DiagonalBlock], weights: Mapping[str, Tensor], anchors: Mapping[str, Tensor]
    ) -> None:
        self.names = tuple(block.name for block in blocks)
        self.pointers = self._pointers(weights)
        flat = torch.cat([block.values.reshape(-1) for block in blocks])
        parts = flat.split([block.values.numel() for block in blocks])
        self.blocks = tuple(
            DiagonalBlock(block.name, part.view(block.values.shape)) for block, part in zip(blocks, parts, strict=True)
        )
        pull = flat.new_empty(len(flat) if len(flat) <= KEPT else CHUNK)
        self.chunks = tuple(_chunks(flat, pull, self.names, weights, anchors))
        self.scale: float | None = None  # of the pull in memory

    def fits(self, weights: Mapping[str, Tensor]) -> bool:
        """Whether the weights are still where they were."""
        return self._pointers(weights) == self.pointers

    def _pointers(self, weights: Mapping[str, Tensor]) -> list[int]:
        return [weights[name].data_ptr() for name in self.names]

    @torch.no_grad()
    def contract(self, scale: float) -> None:
        r"""$\theta \leftarrow (\theta + s F \hat\theta) / (1 + s F)$ in place; weights with F = 0 keep their bits."""
        shift = 1 / min(scale, LIMIT)  # not 0 in float32
        for chunk in self.chunks:
            if scale != self.scale or len(self.chunks) > 1:
                torch.add(chunk.importance, shift, out=chunk.pull)
                torch.div(chunk.importance, chunk.pull, out=chunk.pull)
            torch._foreach_lerp_(chunk.weights, chunk.anchors, chunk.pulls)
        self.scale = scale


def _chunks(
    flat: Tensor, pull: Tensor, names: Sequence[str], weights: Mapping[str, Tensor], anchors: Mapping[str, Tensor]
) -> Iterator[PullChunk]:
    """Split the weights of all tensors, one after another, into chunks of the size of the memory of the pull."""
    start, filled = 0, 0
    chunk = PullChunk(flat, pull, [], [], [])
    for name in names:
        weight, anchor, first = weights[name].detach().view(-1), anchors[name].reshape(-1), 0
        while first < len(weight):
            count = min(len(weight) - first, len(pull) - filled)
            chunk.weights.append(weight[first : first + count])
            chunk.anchors.append(anchor[first : first + count])
            chunk.pulls.append(pull[filled : filled + count])
            first, filled = first + count, filled + count
            if filled == len(pull) or start + filled == len(flat):
                yield replace(chunk, importance=flat[start : start + filled], pull=pull[:filled])
                start, filled, chunk = start + filled, 0, PullChunk(flat, pull, [], [], [])
