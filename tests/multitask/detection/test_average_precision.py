"""Average precision against pycocotools on random detections."""

import contextlib
import io
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nearkin.core.errors import OptionError
from nearkin.multitask.detection.average_precision import AreaLimits, AveragePrecision, average_precision
from nearkin.tasks.detections import Detections, binned_precision, count_hits

NAMES = ("mean", "at_50", "at_75", "small", "medium", "large")


def drawn(seed: int, images: int = 6, classes: int = 3, most: int = 5, ties: bool = False) -> tuple[list[Any], Tensor]:
    """Boxes of many sizes; detections near them, far from them, repeated and of wrong classes."""
    rng = np.random.default_rng(seed)
    targets = torch.zeros(images, most, 5)
    targets[..., 0] = -1
    detections = []
    for image in range(images):
        count = int(rng.integers(0, most + 1))
        corner, side = rng.uniform(0, 100, (count, 2)), np.exp(rng.uniform(1, 5, (count, 2)))
        labels = rng.integers(0, classes, count)
        targets[image, :count, 0] = torch.from_numpy(labels).float()
        targets[image, :count, 1:] = torch.from_numpy(np.concatenate([corner, corner + side], 1)).float()
        repeats = int(rng.integers(0, 4))
        boxes = np.concatenate([corner, corner + side], 1).repeat(repeats, 0)
        boxes = boxes + rng.normal(0, 0.08, boxes.shape) * side.repeat(repeats, 0).repeat(2, 1)
        far = rng.uniform(0, 100, (int(rng.integers(0, 5)), 2))
        boxes = np.concatenate([boxes, np.concatenate([far, far + rng.uniform(1, 80, far.shape)], 1)])
        boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2] + 0.5)
        named = np.concatenate([labels.repeat(repeats), rng.integers(0, classes, len(far))])
        wrong = rng.random(len(named)) < 0.1
        named[wrong] = rng.integers(0, classes, int(wrong.sum()))
        scores = rng.random(len(named))
        scores = np.round(scores, 1) if ties else scores
        order = np.argsort(-scores, kind="stable")
        values = (boxes[order].astype(np.float32), scores[order].astype(np.float32), named[order].astype(np.int64))
        detections.append(Detections(*map(torch.from_numpy, values)))
    return detections, targets


def reference(detections: list[Any], targets: Tensor, classes: int, limits: AreaLimits) -> list[float | None]:
    """COCO's own evaluation, from tables that are written here."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    truth, found = [], []
    for image, target in enumerate(targets.double().numpy()):
        for label, x1, y1, x2, y2 in target[target[:, 0] >= 0]:
            truth.append({"id": len(truth) + 1, "image_id": image, "category_id": int(label), "iscrowd": 0,
                          "bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1)})  # fmt: skip
    for image, (boxes, scores, labels) in enumerate(detections):
        for (x1, y1, x2, y2), score, label in zip(
            boxes.double().numpy(), scores.tolist(), labels.tolist(), strict=True
        ):
            found.append({"image_id": image, "category_id": label, "bbox": [x1, y1, x2 - x1, y2 - y1], "score": score})
    table = {"info": {}, "images": [{"id": i} for i in range(len(targets))], "annotations": truth,
             "categories": [{"id": i, "name": str(i)} for i in range(classes)]}  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        data = COCO()
        data.dataset = table
        data.createIndex()
        results = COCO()
        if found:
            results = data.loadRes(found)
        else:
            results.dataset = {**table, "annotations": []}
            results.createIndex()
        evaluation = COCOeval(data, results, "bbox")
        evaluation.params.areaRng = limits.ranges
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return [None if value == -1 else float(value) for value in evaluation.stats[:6]]


def compare(found: AveragePrecision, expected: list[float | None]) -> None:
    for name, value in zip(NAMES, expected, strict=True):
        got = getattr(found, name)
        assert (got is None) == (value is None), name
        assert value is None or abs(got - value) < 1e-6, (name, got, value)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("ties", [False, True], ids=["scores", "ties"])
@pytest.mark.parametrize("classes", [1, 3, 40])
def test_equal_to_pycocotools(classes: int, ties: bool) -> None:
    values = []
    for seed in range(12):
        detections, targets = drawn(seed, classes=classes, ties=ties)
        limits = AreaLimits() if seed % 2 else AreaLimits(8, 20)
        found = average_precision(detections, targets, classes, limits)
        compare(found, reference(detections, targets, classes, limits))
        values.append(found.mean)
    assert len(set(values)) > 6, "the comparison is about different numbers"


def test_no_detections_and_no_boxes() -> None:
    detections, targets = drawn(1)
    none = [Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0).long())] * len(targets)
    found = average_precision(none, targets, 3)
    compare(found, reference(none, targets, 3, AreaLimits()))
    assert found.mean == 0.0
    empty = torch.zeros_like(targets)
    empty[..., 0] = -1
    assert average_precision(detections, empty, 3).to_dict() == dict.fromkeys(NAMES)
    assert average_precision(none, empty, 3).mean is None


def test_many_detections_of_one_image() -> None:
    """Only the 100 detections of a class with the highest scores count."""
    rng = np.random.default_rng(0)
    boxes = torch.from_numpy(rng.uniform(0, 50, (300, 2))).float()
    detections = [Detections(torch.cat([boxes, boxes + 20], 1), torch.linspace(1, 0, 300), torch.zeros(300).long())]
    targets = torch.cat([torch.zeros(40, 1), torch.cat([boxes, boxes + 20], 1)[80:120]], 1)[None]
    compare(average_precision(detections, targets, 1), reference(detections, targets, 1, AreaLimits()))


def test_perfect_detections() -> None:
    _, targets = drawn(2)
    exact = []
    for target in targets:
        real = target[target[:, 0] >= 0]
        exact.append(Detections(real[:, 1:], torch.ones(len(real)), real[:, 0].long()))
    assert average_precision(exact, targets, 3).mean == pytest.approx(1.0)


def test_counts_in_bins_are_close() -> None:
    """The metric of training against COCO's at an overlap of 0.5: recall in 101 steps, and scores in full precision."""
    gaps = []
    for seed in range(10):
        detections, targets = drawn(seed, images=20)
        counted = binned_precision(count_hits(detections, targets, 3))
        gaps.append(abs(counted - (average_precision(detections, targets, 3).at_50 or 0.0)))
    assert max(gaps) < 0.03


def test_wrong_arguments() -> None:
    with pytest.raises(OptionError, match="got detections of 0 images and targets of 2"):
        average_precision([], torch.zeros(2, 1, 5), 1)
    with pytest.raises(OptionError, match="limits must be above 0 and rise"):
        AreaLimits(10, 5)
