"""Boxes of objects in images: padded targets, their checks, and the overlap of boxes.

The target of an image is `[B, 5]`: class number, x1, y1, x2, y2 of every box in pixels, from its upper left to its
lower right corner. All images of a task have the same B; rows without a box have class −1 and zeros.

Notation: N images, B boxes, A other boxes, C classes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.core.errors import DataError
from nearkin.core.opening import require_bytes
from nearkin.tasks.arrays import ArrayExamples, input_rows, numbered_classes
from nearkin.tasks.examples import Examples
from nearkin.tasks.rows import Rows, Values, gathered

PADDING = -1  # class of rows without a box
COLUMNS = 5
OUTSIDE = 1e-4  # share of a side by which a box may lie outside the image, for rounding


def overlap(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of all pairs of boxes `[…, A, 4]` and `[…, B, 4]`: `[…, A, B]`, 0 for empty boxes.

    >>> overlap(torch.tensor([[0.0, 0.0, 2.0, 2.0]]), torch.tensor([[1.0, 0.0, 3.0, 2.0], [0.0, 0.0, 0.0, 0.0]]))
    tensor([[0.3333, 0.0000]])
    """
    sides = torch.minimum(a[..., :, None, 2:], b[..., None, :, 2:]) - torch.maximum(
        a[..., :, None, :2], b[..., None, :, :2]
    )
    shared = sides.clamp_min(0).prod(-1)
    union = box_areas(a)[..., :, None] + box_areas(b)[..., None, :] - shared
    return shared / union.clamp_min(torch.finfo(union.dtype).tiny)


def box_areas(boxes: Tensor) -> Tensor:
    """Areas `[…]` of boxes `[…, 4]`."""
    return (boxes[..., 2:] - boxes[..., :2]).prod(-1)


def padded_targets(boxes: Sequence[Tensor], labels: Sequence[Tensor], rows: int) -> Tensor:
    """Targets `[N, rows, 5]` from the boxes `[n, 4]` and class numbers `[n]` of every image.

    >>> padded_targets([torch.ones(1, 4), torch.ones(0, 4)], [torch.tensor([2]), torch.tensor([])], 1)
    tensor([[[ 2.,  1.,  1.,  1.,  1.]],
    <BLANKLINE>
            [[-1.,  0.,  0.,  0.,  0.]]])
    """
    require_bytes(4 * COLUMNS * len(boxes) * rows, f"the boxes of {len(boxes):,} images, {rows} each,")
    targets = torch.zeros(len(boxes), rows, COLUMNS)
    targets[..., 0] = PADDING
    for target, corners, numbers in zip(targets, boxes, labels, strict=True):
        target[: len(numbers), 0] = numbers
        target[: len(numbers), 1:] = corners
    return targets


def scaled_boxes(rows: Rows, height: float, width: float) -> Rows:
    """Targets whose boxes are scaled by two factors."""
    factors = torch.tensor([1.0, width, height, width, height])
    return Values(gathered(rows) * factors)


def check_boxes(name: str, rows: Rows, split: str, input_shape: tuple[int, ...], num_classes: int) -> None:
    """Refuse targets that are no boxes of known classes inside the image; the error names the first one."""
    if len(input_shape) != 3 or len(rows.shape) != 2 or rows.shape[1] != COLUMNS:
        raise DataError(
            f"{name}: {split} inputs have shape {input_shape} and targets {rows.shape}, detection needs images "
            f"(C, H, W) and boxes (B, {COLUMNS}); use Task.from_boxes"
        )
    targets = gathered(rows)
    classes, corners = targets[..., 0], targets[..., 1:]
    real = classes != PADDING
    sides = torch.tensor([input_shape[2], input_shape[1]] * 2)
    low, high = -OUTSIDE * sides, (1 + OUTSIDE) * sides
    known = (classes >= 0) & (classes < num_classes) & (classes == classes.round())
    faults = (
        (~torch.isfinite(targets).all(-1), "is not finite; correct or remove it"),
        (~known, f"has a class that is none of 0 to {num_classes - 1}; fix the labels or name all classes"),
        ((corners[..., 2:] <= corners[..., :2]).any(-1),
         "has no width or no height; give x1, y1, x2, y2 with x1 < x2 and y1 < y2, or remove it"),
        (((corners < low) | (corners > high)).any(-1),
         f"lies outside its image of {input_shape[1]} x {input_shape[2]} (height x width); clip or remove it"),
    )  # fmt: skip
    for wrong, reason in faults:
        places = torch.nonzero(wrong & real)
        if len(places):
            image, box = places[0].tolist()
            number, *numbers = (f"{value:g}" for value in targets[image, box].tolist())
            shown = f"box {box} of {split} image {image}, ({', '.join(numbers)}) of class {number},"
            raise DataError(f"{name}: {shown} {reason}")


def require_every_class(name: str, rows: Rows, classes: Sequence[str]) -> None:
    """Refuse training targets without a box of some class."""
    numbers = gathered(rows)[..., 0]
    counts = torch.bincount(numbers[numbers != PADDING].long(), minlength=len(classes))
    empty = [classes[number] for number in torch.nonzero(counts == 0).flatten().tolist()]
    if empty or not classes:
        raise DataError(
            f"{name}: no training image has a box of class {', '.join(empty[:5])}"
            f"{' and others' if len(empty) > 5 else ''}; add some or leave the class out"
        )


def read_boxes(
    name: str, splits: Sequence[tuple[Any, Sequence[Any], Sequence[Any]]], classes: Sequence[str] | None
) -> ArrayExamples:
    """Examples from images, boxes and labels of each split, as `Task.from_boxes` describes them."""
    corners = [[_corners(name, value, image) for image, value in enumerate(boxes)] for _, boxes, _ in splits]
    counts = [[len(value) for value in boxes] for boxes in corners]
    for (images, _, labels), sizes in zip(splits, counts, strict=True):
        if not len(images) == len(labels) == len(sizes):
            raise DataError(
                f"{name}: got {len(images)} images, {len(sizes)} lists of boxes and {len(labels)} lists of labels; "
                f"give one list of boxes and one of labels per image"
            )
        wrong = next((i for i, value in enumerate(labels) if len(value) != sizes[i]), None)
        if wrong is not None:
            raise DataError(
                f"{name}: image {wrong} has {sizes[wrong]} boxes and {len(labels[wrong])} labels; give each box a label"
            )
    flat = [_joined([np.asarray(value) for value in labels]) for _, _, labels in splits]
    filled = next((value for value in flat if len(value)), flat[0])
    flat = [value if len(value) else filled[:0] for value in flat]  # no labels have no type
    numbers, names = numbered_classes(name, flat, classes)
    rows = max(1, *(size for sizes in counts for size in sizes))
    train, *test = (
        Examples(input_rows(images, name), Values(padded_targets(boxes, labels.split(sizes), rows)))
        for (images, _, _), boxes, labels, sizes in zip(splits, corners, numbers, counts, strict=True)
    )
    return ArrayExamples(train, test[0] if test else None, "detection", names)


def _corners(name: str, value: Any, image: int) -> Tensor:
    try:
        boxes = torch.as_tensor(np.asarray(value, np.float32))
    except (TypeError, ValueError):
        boxes = torch.zeros(1)
    if boxes.numel() == 0:
        return torch.zeros(0, 4)
    if boxes.dim() != 2 or boxes.shape[1] != 4:
        raise DataError(f"{name}: the boxes of image {image} must be numbers [n, 4], x1, y1, x2, y2 each; convert them")
    return boxes


def _joined(labels: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Labels of all images in one array; those of images without a box have no type."""
    filled = [value for value in labels if len(value)]
    return np.concatenate(filled) if filled else np.zeros(0, np.int64)
