"""Average precision as COCO defines it, computed by faster-coco-eval.

Precision and recall of every class at ten overlaps (0.5 to 0.95), for all boxes and by their area, with at most 100
detections per image.
"""

import contextlib
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from torch import Tensor

from nearkin.core.errors import optional, require
from nearkin.tasks.boxes import PADDING, box_areas
from nearkin.tasks.detections import Detections

COCO_SMALL, COCO_MEDIUM = 32.0, 96.0  # sides in pixels, of images of about 640
HUGE = 1e10  # above all areas


@dataclass(frozen=True)
class AveragePrecision:
    """Average precision, from 0 to 1; None where there is no box of that size.

    Attributes:
        mean: mean over overlaps .5, .55, …, .95, the main figure of COCO.
        at_50: at an overlap of 0.5.
        at_75: at an overlap of 0.75.
        small: mean over overlaps, boxes below the first limit of the area.
        medium: boxes between both limits.
        large: boxes above the second limit.
    """

    mean: float | None
    at_50: float | None
    at_75: float | None
    small: float | None
    medium: float | None
    large: float | None

    def to_dict(self) -> dict[str, float | None]:
        """The figures as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class AreaLimits:
    """Sides of the squares whose areas divide small, medium and large boxes, in pixels (default: those of COCO).

    >>> AreaLimits.for_side(32)
    AreaLimits(small=1.6, medium=4.8)
    """

    small: float = COCO_SMALL
    medium: float = COCO_MEDIUM

    def __post_init__(self) -> None:
        require(0 < self.small < self.medium, f"limits must be above 0 and rise, got {self.small} and {self.medium}")

    @classmethod
    def for_side(cls, side: int) -> "AreaLimits":
        """COCO's limits for images of another size, in the proportion of this side to 640 pixels."""
        return cls(COCO_SMALL * side / 640, COCO_MEDIUM * side / 640)

    @property
    def ranges(self) -> list[list[float]]:
        """Ranges of the area: all, small, medium, large."""
        small, medium = self.small**2, self.medium**2
        return [[0, HUGE], [0, small], [small, medium], [medium, HUGE]]


def average_precision(
    detections: Sequence[Detections], targets: Tensor, num_classes: int, limits: AreaLimits | None = None
) -> AveragePrecision:
    """Average precision of the detections of N images.

    Args:
        detections: of every image.
        targets: boxes `[N, B, 5]`.
        num_classes: C.
        limits: of small, medium and large boxes (default: those of COCO).
    """
    require(
        len(detections) == len(targets),
        f"got detections of {len(detections)} images and targets of {len(targets)}; give both of the same images",
    )
    truth, found = coco_tables(detections, targets, num_classes)
    library = optional("faster_coco_eval", "detection", "average precision")
    with contextlib.redirect_stdout(io.StringIO()):
        data = library.COCO(truth)
        results = data.loadRes(found) if found else library.COCO({**truth, "annotations": []})
        evaluation = library.COCOeval_faster(data, results, iouType="bbox", print_function=_silent)
        evaluation.params.areaRng = (limits or AreaLimits()).ranges
        evaluation.run()
    precision = evaluation.eval["precision"]  # overlaps, recalls, classes, areas, numbers of detections
    overlaps = evaluation.params.iouThrs
    at = [int(np.abs(overlaps - value).argmin()) for value in (0.5, 0.75)]
    every = [precision[:, :, :, area, -1] for area in range(4)]
    parts = (every[0], every[0][at[0]], every[0][at[1]], *every[1:])
    return AveragePrecision(*(_mean(part) for part in parts))


def coco_tables(
    detections: Sequence[Detections], targets: Tensor, num_classes: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Boxes and detections as the tables of COCO's JSON; boxes are x, y, width, height."""
    annotations: list[dict[str, Any]] = []
    for image, target in enumerate(targets.tolist()):
        areas = box_areas(targets[image, :, 1:]).tolist()
        for (number, x1, y1, x2, y2), area in zip(target, areas, strict=True):
            if number != PADDING:
                annotations.append({"id": len(annotations) + 1, "image_id": image, "category_id": int(number),
                                    "bbox": [x1, y1, x2 - x1, y2 - y1], "area": area, "iscrowd": 0})  # fmt: skip
    found = [
        {"image_id": image, "category_id": label, "bbox": [x1, y1, x2 - x1, y2 - y1], "score": score}
        for image, parts in enumerate(detections)
        for (x1, y1, x2, y2), score, label in zip(*(part.tolist() for part in parts), strict=True)
    ]
    truth = {
        "info": {},
        "images": [{"id": image} for image in range(len(targets))],
        "categories": [{"id": number, "name": str(number)} for number in range(num_classes)],
        "annotations": annotations,
    }
    return truth, found


def _mean(precision: Any) -> float | None:
    """Mean of the entries that exist; −1 marks classes without a box."""
    values = precision[precision > -1]
    return float(values.mean()) if values.size else None


def _silent(*words: object) -> None:
    """Print nothing."""
