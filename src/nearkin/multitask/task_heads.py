"""Heads on the feature maps of an encoder, for targets that a linear layer cannot predict.

Notation: N samples, C channels, W width of a pyramid.
"""

from collections.abc import Sequence
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from nearkin.core.errors import require
from nearkin.multitask.detection.head import DetectionHead, suited_options
from nearkin.multitask.feature_pyramid import FeaturePyramid
from nearkin.search.supernet.reference import HeadMaker, MapShape
from nearkin.tasks.task import Task

DENSE_WIDTH = 32


class DenseHead(nn.Module):
    """Images from feature maps: the finest level of a pyramid in the size of the input, and a 3x3 convolution.

    Args:
        shapes: shapes of the maps, finest first.
        num_outputs: channels of the images.
        sides: height and width of the images.
        width: W.
    """

    def __init__(
        self, shapes: Sequence[MapShape], num_outputs: int, sides: tuple[int, int], width: int = DENSE_WIDTH
    ) -> None:
        super().__init__()
        require(num_outputs >= 1, f"num_outputs must be 1 or more, got {num_outputs}")
        self.sides = sides
        self.pyramid = FeaturePyramid(shapes, width)
        self.output = nn.Conv2d(width, num_outputs, 3, padding=1)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """Maps, finest first, to images `[N, num_outputs, H, W]`."""
        finest = F.relu(self.pyramid(maps)[0])
        if finest.shape[2:] != self.sides:
            finest = F.interpolate(finest, self.sides, mode="bilinear", align_corners=False)
        outputs: Tensor = self.output(finest)
        return outputs


def head_for(task: Task, stem_stride: int) -> HeadMaker | None:
    """Maker of the head that a task needs; None if a linear layer on the mean of the last map suits it.

    Args:
        task: the task.
        stem_stride: factor by which the stem of the encoder reduces height and width.
    """
    if task.likelihood == "detection":
        return partial(_detection_head, task, stem_stride)
    if task.likelihood == "dense":
        _, height, width = task.input_shape
        return partial(DenseHead, num_outputs=task.num_outputs, sides=(height, width))
    return None


def _detection_head(task: Task, stem_stride: int, shapes: Sequence[MapShape]) -> nn.Module:
    options = suited_options(task, [shape.reduction * stem_stride for shape in shapes])
    return DetectionHead(shapes, len(task.classes), stem_stride, options)
