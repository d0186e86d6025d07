"""Feature pyramid (Lin et al. 2017): maps of every resolution that contain what coarser maps know."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from nearkin.core.errors import require
from nearkin.search.supernet.reference import MapShape


class FeaturePyramid(nn.Module):
    """Maps of one width: 1x1 convolutions, sums from the coarsest to the finest, and 3x3 convolutions.

    Args:
        shapes: shapes of the maps, finest first.
        width: channels of all levels.

    >>> import torch
    >>> pyramid = FeaturePyramid([MapShape(4, 1), MapShape(8, 2)], 16)
    >>> [tuple(level.shape) for level in pyramid([torch.ones(2, 4, 6, 6), torch.ones(2, 8, 3, 3)])]
    [(2, 16, 6, 6), (2, 16, 3, 3)]
    """

    def __init__(self, shapes: Sequence[MapShape], width: int) -> None:
        super().__init__()
        require(len(shapes) >= 1, "a pyramid needs one feature map or more, got none")
        require(width >= 1, f"the width of a pyramid must be 1 or more, got {width}")
        self.lateral = nn.ModuleList(nn.Conv2d(shape.channels, width, 1) for shape in shapes)
        self.smooth = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in shapes)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Maps `[N, C, H, W]`, finest first, to levels `[N, width, H, W]` of the same sizes."""
        levels = [convolve(x) for convolve, x in zip(self.lateral, maps, strict=True)]
        for number in reversed(range(len(levels) - 1)):
            size = levels[number].shape[2:]
            levels[number] = levels[number] + F.interpolate(levels[number + 1], size, mode="nearest")
        return [convolve(x) for convolve, x in zip(self.smooth, levels, strict=True)]
