"""Anchors: boxes of fixed sizes and shapes around every position of a feature map."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from nearkin.core.errors import require


@dataclass(frozen=True, kw_only=True)
class AnchorOptions:
    """Sizes and shapes of anchors.

    Attributes:
        scale: side of the smallest anchors in strides of their feature map.
        octaves: number of sizes between a map and the next coarser one, $2^{i / octaves}$ times the smallest.
        ratios: height divided by width.

    >>> AnchorOptions().count
    9
    """

    scale: float = 4.0
    octaves: int = 3
    ratios: tuple[float, ...] = (0.5, 1.0, 2.0)

    def __post_init__(self) -> None:
        require(self.scale > 0, f"scale must be above 0, got {self.scale}")
        require(self.octaves >= 1, f"octaves must be 1 or more, got {self.octaves}")
        require(min(self.ratios, default=0) > 0, f"ratios must be above 0, got {self.ratios}")

    @property
    def count(self) -> int:
        """Number of anchors at a position."""
        return self.octaves * len(self.ratios)

    def shapes(self, stride: int) -> Tensor:
        """Half the width and height `[count, 2]` of the anchors of a map."""
        sides = [stride * self.scale * 2 ** (octave / self.octaves) for octave in range(self.octaves)]
        return torch.tensor([[s / math.sqrt(r) / 2, s * math.sqrt(r) / 2] for s in sides for r in self.ratios])


def anchor_boxes(height: int, width: int, stride: int, options: AnchorOptions) -> Tensor:
    """Corners `[height · width · count, 4]` in pixels of the anchors of a map, row by row.

    >>> anchor_boxes(1, 2, 4, AnchorOptions(scale=1, octaves=1, ratios=(1.0,)))
    tensor([[0., 0., 4., 4.],
            [4., 0., 8., 4.]])
    """
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    centres = (torch.stack([x, y], -1).view(-1, 1, 2) + 0.5) * stride
    half = options.shapes(stride)
    return torch.cat([centres - half, centres + half], -1).view(-1, 4)
