r"""The proximal step of diagonal importance for many tensors at once.

Most shared tensors are small, so that calls and new memory cost more than the arithmetic. The importance of all of them
is therefore stored in one vector. A step computes $sF/(1 + sF)$ for up to `CHUNK` weights at a time in memory that is
kept from step to step, and then moves every tensor towards its anchor.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nearkin.search.plasticity.penalty_blocks import DiagonalBlock

CHUNK = 1 << 16


@dataclass(frozen=True, eq=False)
class PullChunk:
    """Importance of up to `CHUNK` weights; for each of their tensors the weights, the anchor and the pull."""

    importance: Tensor
    pull: Tensor
    divisor: Tensor
    members: tuple[tuple[Tensor, Tensor, Tensor], ...]


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
        scratch = flat.new_empty(2, min(CHUNK, len(flat)))
        self.chunks = tuple(_chunks(flat, scratch, self.names, weights, anchors))

    def fits(self, weights: Mapping[str, Tensor]) -> bool:
        """Whether the weights are still where they were."""
        return self._pointers(weights) == self.pointers

    def _pointers(self, weights: Mapping[str, Tensor]) -> list[int]:
        return [weights[name].data_ptr() for name in self.names]

    @torch.no_grad()
    def contract(self, scale: float) -> None:
        r"""$\theta \leftarrow (\theta + s F \hat\theta) / (1 + s F)$ in place; weights with F = 0 keep their bits."""
        for chunk in self.chunks:
            torch.mul(chunk.importance, scale, out=chunk.pull)
            torch.add(chunk.pull, 1, out=chunk.divisor)
            chunk.pull.div_(chunk.divisor)
            for weight, anchor, pull in chunk.members:
                weight.lerp_(anchor, pull)


def _chunks(
    flat: Tensor,
    scratch: Tensor,
    names: Sequence[str],
    weights: Mapping[str, Tensor],
    anchors: Mapping[str, Tensor],
) -> Iterator[PullChunk]:
    """Split the weights of all tensors, one after another, into chunks of the size of the scratch memory."""
    size, start, filled = scratch.shape[1], 0, 0
    members: list[tuple[Tensor, Tensor, Tensor]] = []
    for name in names:
        weight, anchor, first = weights[name].detach().view(-1), anchors[name].reshape(-1), 0
        while first < len(weight):
            count = min(len(weight) - first, size - filled)
            rows = slice(first, first + count)
            members.append((weight[rows], anchor[rows], scratch[0, filled : filled + count]))
            first, filled = first + count, filled + count
            if filled == size or start + filled == len(flat):
                yield PullChunk(flat[start : start + filled], scratch[0, :filled], scratch[1, :filled], tuple(members))
                start, filled, members = start + filled, 0, []
