"""Head of a detector in the manner of RetinaNet (Lin et al. 2017), on the feature maps of any encoder.

Notation: N images, A anchors, C classes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from nearkin.core.errors import require
from nearkin.multitask.detection.anchors import AnchorOptions, anchor_boxes
from nearkin.multitask.feature_pyramid import FeaturePyramid
from nearkin.search.supernet.reference import MapShape
from nearkin.tasks.boxes import PADDING, box_areas
from nearkin.tasks.task import Task

PRIOR = 0.01  # probability of every class at every anchor before training
GROUP = 8  # channels that are normalised together
SMALLER = 0.1  # quantile of the sides of boxes


@dataclass(frozen=True, kw_only=True)
class DetectionHeadOptions:
    """Size of a head.

    Attributes:
        width: channels of the pyramid and of the towers; a multiple of 8.
        depth: 3x3 convolutions in each tower, in front of the last one; 4 in RetinaNet.
        finest: smallest stride of a map in pixels; finer maps have many anchors and are not used, unless all are finer.
        anchors: sizes and shapes of the anchors.
    """

    width: int = 32
    depth: int = 1
    finest: int = 2
    anchors: AnchorOptions = field(default_factory=lambda: AnchorOptions(octaves=2))

    def __post_init__(self) -> None:
        require(
            self.width >= GROUP and self.width % GROUP == 0,
            f"width must be a multiple of {GROUP}, got {self.width}",
        )
        require(self.depth >= 0, f"depth must be 0 or more, got {self.depth}")
        require(self.finest >= 1, f"finest must be 1 or more, got {self.finest}")


def suited_options(task: Task, strides: Sequence[int]) -> DetectionHeadOptions:
    """Options whose smallest anchors have the side of the smaller training boxes of a task.

    The finest map is the coarsest one whose stride is at most half of that side: finer maps have many more anchors.

    Args:
        task: a detection task.
        strides: strides of the encoder's maps in pixels.
    """
    targets = task.train.labels()
    sides = box_areas(targets[targets[..., 0] != PADDING][:, 1:]).sqrt()
    side = float(sides.quantile(SMALLER)) if len(sides) else 1.0
    finest = max((stride for stride in strides if 2 * stride <= side), default=min(strides))
    return DetectionHeadOptions(finest=finest, anchors=AnchorOptions(scale=side / finest, octaves=2))


class DetectionHead(nn.Module):
    """Feature pyramid, and two towers of convolutions that all levels share: one for classes, one for boxes.

    Args:
        shapes: shapes of the encoder's maps, finest first.
        num_classes: C.
        stem_stride: factor by which the stem of the encoder reduces height and width.
        options: size of the head.
    """

    def __init__(
        self,
        shapes: Sequence[MapShape],
        num_classes: int,
        stem_stride: int = 1,
        options: DetectionHeadOptions | None = None,
    ) -> None:
        super().__init__()
        require(num_classes >= 1, f"a detector has one class or more, got {num_classes}")
        self.options = options or DetectionHeadOptions()
        strides = [shape.reduction * stem_stride for shape in shapes]
        self.first = next((i for i, stride in enumerate(strides) if stride >= self.options.finest), len(strides) - 1)
        self.strides = strides[self.first :]
        self.num_classes, width, count = num_classes, self.options.width, self.options.anchors.count
        self.pyramid = FeaturePyramid(shapes[self.first :], width)
        self.classes = _tower(width, self.options.depth, count * num_classes)
        self.boxes = _tower(width, self.options.depth, count * 4)
        nn.init.constant_(self.classes[-1].bias, -math.log((1 - PRIOR) / PRIOR))  # type: ignore[arg-type]
        nn.init.zeros_(self.boxes[-1].bias)  # type: ignore[arg-type]

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """Maps, finest first, to logits, offsets and anchors `[N, A, C + 8]`."""
        levels = self.pyramid(maps[self.first :])
        return torch.cat([self._level(x, stride) for x, stride in zip(levels, self.strides, strict=True)], 1)

    def _level(self, x: Tensor, stride: int) -> Tensor:
        logits, offsets = (
            tower(x).permute(0, 2, 3, 1).reshape(len(x), -1, width)
            for tower, width in ((self.classes, self.num_classes), (self.boxes, 4))
        )
        anchors = anchor_boxes(x.shape[2], x.shape[3], stride, self.options.anchors)
        anchors = anchors.to(x.device, torch.promote_types(x.dtype, torch.float32))  # pixels need float32
        return torch.cat([logits, offsets, anchors.expand(len(x), -1, -1)], -1)


def _tower(width: int, depth: int, out: int) -> nn.Sequential:
    """Convolutions with group norm, whose last one has small weights, so that the prior holds at first."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(width // GROUP, width), nn.ReLU()]
    last = nn.Conv2d(width, out, 3, padding=1)
    nn.init.normal_(last.weight, std=0.01)
    return nn.Sequential(*layers, last)
