r"""Detections: boxes, scores and classes from the outputs of a detector, and the area under their precision and recall.

The outputs of a detector are `[N, A, C + 8]` for A anchors of each image: C class logits, 4 offsets $t$, and the
corners of the anchor in pixels. With centre $(x_a, y_a)$ and sides $w_a, h_a$ of the anchor the box is
$$x = x_a + t_x w_a, \quad y = y_a + t_y h_a, \quad w = w_a e^{t_w}, \quad h = h_a e^{t_h}.$$

Notation: N images, A anchors, C classes, K detections, B boxes, S bins of the score.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nearkin.core.errors import optional, require
from nearkin.tasks.boxes import PADDING, overlap

LARGEST_GROWTH = math.log(1000 / 16)  # largest offset of a side, as in Faster R-CNN
NUM_BINS = 100
HIT_OVERLAP = 0.5


class BoxOutputs(NamedTuple):
    """Outputs of a detector: logits `[…, A, C]`, offsets `[…, A, 4]` and anchors `[…, A, 4]`."""

    logits: Tensor
    offsets: Tensor
    anchors: Tensor

    @classmethod
    def of(cls, outputs: Tensor) -> "BoxOutputs":
        """Split outputs `[…, A, C + 8]`; anchors are constants."""
        return cls(outputs[..., :-8], outputs[..., -8:-4], outputs[..., -4:].detach())


class Detections(NamedTuple):
    """Detected objects of one image, highest score first.

    Attributes:
        boxes: corners `[K, 4]` in pixels.
        scores: probabilities `[K]`.
        labels: class numbers `[K]`.
    """

    boxes: Tensor
    scores: Tensor
    labels: Tensor


@dataclass(frozen=True, kw_only=True)
class DecodingOptions:
    """How outputs become detections.

    Attributes:
        least_score: smallest score of a detection.
        candidates: number of boxes of an image that are compared with each other.
        most: largest number of detections of an image.
        overlap: largest intersection over union of two detections of one class; the one with the lower score goes.
        one_class: whether this holds for detections of different classes too, so that an object has one class. Average
            precision compares detections within each class and does not need it; pictures do.
    """

    least_score: float = 0.05
    candidates: int = 300
    most: int = 100
    overlap: float = 0.5
    one_class: bool = False

    def __post_init__(self) -> None:
        for name in ("least_score", "overlap"):
            require(0 <= getattr(self, name) <= 1, f"{name} must be from 0 to 1, got {getattr(self, name)}")
        for name in ("candidates", "most"):
            require(getattr(self, name) >= 1, f"{name} must be 1 or more, got {getattr(self, name)}")


def box_offsets(anchors: Tensor, boxes: Tensor) -> Tensor:
    """Offsets `[…, 4]` that turn anchors `[…, 4]` into boxes `[…, 4]`; the inverse of `moved_anchors`.

    >>> box_offsets(torch.tensor([0.0, 0.0, 4.0, 4.0]), torch.tensor([1.0, 0.0, 5.0, 4.0]))
    tensor([0.2500, 0.0000, 0.0000, 0.0000])
    """
    sides, wanted = anchors[..., 2:] - anchors[..., :2], boxes[..., 2:] - boxes[..., :2]
    shift = (boxes[..., 2:] + boxes[..., :2] - anchors[..., 2:] - anchors[..., :2]) / 2
    return torch.cat([shift / sides, (wanted / sides).log()], -1)


def moved_anchors(anchors: Tensor, offsets: Tensor) -> Tensor:
    """Boxes `[…, 4]` from anchors and offsets."""
    sides, centre = anchors[..., 2:] - anchors[..., :2], (anchors[..., 2:] + anchors[..., :2]) / 2
    centre = centre + offsets[..., :2] * sides
    half = sides * offsets[..., 2:].clamp(max=LARGEST_GROWTH).exp() / 2
    return torch.cat([centre - half, centre + half], -1)


@torch.no_grad()
def decode(
    outputs: Tensor, options: DecodingOptions | None = None, sides: tuple[int, int] | None = None
) -> list[Detections]:
    """Detections of every image, without repeated ones (non-maximum suppression within each class).

    Args:
        outputs: `[N, A, C + 8]`.
        options: limits (default: those of `DecodingOptions`).
        sides: height and width of the images, to which boxes are clipped (default: not clipped).
    """
    options = options or DecodingOptions()
    logits, offsets, anchors = BoxOutputs.of(outputs)
    scores, boxes = logits.sigmoid(), moved_anchors(anchors, offsets)
    if sides is not None:
        height, width = sides
        boxes = boxes.clamp_min(0).minimum(boxes.new_tensor([width, height, width, height]))
    return [_detections(*image, options) for image in zip(boxes, scores, strict=True)]


def _detections(boxes: Tensor, scores: Tensor, options: DecodingOptions) -> Detections:
    """Detections of one image from boxes `[A, 4]` and scores `[A, C]`."""
    flat, num_classes = scores.flatten(), scores.shape[1]
    best, index = flat.topk(min(options.candidates, len(flat)))
    index = index[best > options.least_score]
    boxes, labels = boxes[index // num_classes], index % num_classes
    if len(index):
        nms = optional("kornia.geometry.bbox", "detection", "detecting objects").nms
        groups = torch.zeros_like(labels) if options.one_class else labels
        apart = groups[:, None] * (boxes.max() - boxes.min() + 1)  # boxes of different groups do not overlap
        kept = nms(boxes + apart, flat[index], options.overlap)[: options.most]
        index, boxes, labels = index[kept], boxes[kept], labels[kept]
    return Detections(boxes, flat[index], labels)


def count_hits(detections: list[Detections], targets: Tensor, num_classes: int) -> Tensor:
    """Sums `[C, 2S + 1]` that add up over batches: hits and misses by bin of the score, and boxes, of every class.

    A detection is a hit if its overlap with a box of its class is at least 0.5 and no detection with a higher score has
    been assigned to that box.
    """
    counts = torch.zeros(num_classes, 2 * NUM_BINS + 1, dtype=torch.float64)
    for (boxes, scores, labels), target in zip(detections, targets.detach(), strict=True):
        real = target[target[:, 0] != PADDING]
        counts[:, -1] += torch.bincount(real[:, 0].long().cpu(), minlength=num_classes)
        overlaps = overlap(boxes, real[:, 1:].to(boxes)).masked_fill(labels[:, None] != real[:, 0].to(labels), 0).cpu()
        free = torch.ones(len(real))
        bins = (scores * NUM_BINS).long().clamp(0, NUM_BINS - 1).tolist()
        for row, label, number in zip(overlaps, labels.tolist(), bins, strict=True):
            value, place = (row * free).max(0) if len(real) else (row.new_zeros(()), 0)
            hit = bool(value >= HIT_OVERLAP)
            if hit:
                free[place] = 0
            counts[label, number if hit else NUM_BINS + number] += 1
    return counts


def binned_precision(counts: Tensor) -> float:
    """Average precision from the sums of `count_hits`: area under precision and recall, mean of the classes with boxes.

    Detections whose scores are in the same bin of 0.01 have no order; recall is that after the whole bin. Precision at
    a recall is the highest one at this recall or a higher one.

    >>> counts = torch.zeros(1, 2 * NUM_BINS + 1)
    >>> counts[0, 90], counts[0, NUM_BINS + 95], counts[0, -1] = 1, 1, 2  # a miss, then a hit; one of two boxes found
    >>> binned_precision(counts)
    0.25
    """
    present = counts[counts[:, -1] > 0].double()
    if len(present) == 0:
        return 0.0
    hits, misses = (part.flip(1).cumsum(1) for part in present[:, :-1].chunk(2, 1))
    precision = (hits / (hits + misses).clamp_min(1)).flip(1).cummax(1).values.flip(1)
    gained = hits.diff(dim=1, prepend=torch.zeros_like(hits[:, :1])) / present[:, -1:]
    return float((gained * precision).sum(1).mean())
