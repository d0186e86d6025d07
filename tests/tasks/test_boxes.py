"""Detection tasks from arrays: targets, checks, changed images, and what other packages say to them."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nearkin as nk
from nearkin.core.errors import DataError, MismatchError, NearkinError, OptionError
from nearkin.distance.pair import Target
from nearkin.nets.functional import check
from nearkin.nets.recipe import Recipe
from nearkin.nets.registry import default_network
from nearkin.nets.training_loop import fit
from nearkin.search.registry import method_named
from nearkin.solver.plan import require_answerable
from nearkin.tasks.boxes import overlap
from nearkin.tasks.pixels import grey, resized
from nearkin.tasks.task import Task
from nearkin.transfer.closed_form import require_classes_or_values

IMAGES = np.random.default_rng(0).integers(0, 255, (6, 8, 10), np.uint8)
BOXES = [[[0, 0, 4, 8]], [[1, 2, 10, 8], [0, 0, 2, 2]], [], [[3, 3, 5, 5]], [[0, 0, 1, 1]], [[2, 2, 6, 7]]]
LABELS = [["a"], ["b", "a"], [], ["b"], ["a"], ["b"]]


def boxed(**changes: object) -> Task:
    arguments = {"x": IMAGES, "boxes": BOXES, "labels": LABELS, "x_test": IMAGES, "boxes_test": BOXES,
                 "labels_test": LABELS}  # fmt: skip
    return Task.from_boxes("boxed", **{**arguments, **changes})


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=8, max_size=8))
def test_overlap_counts_shared_pixels(sides: list[int]) -> None:
    """Boxes with whole corners: intersection over union is a ratio of numbers of pixels."""
    boxes = []
    for a, b, c, d in (sides[:4], sides[4:]):
        boxes.append([min(a, b), min(c, d), max(a, b), max(c, d)])
    masks = torch.zeros(2, 12, 12, dtype=torch.bool)
    for mask, (x1, y1, x2, y2) in zip(masks, boxes, strict=True):
        mask[y1:y2, x1:x2] = True
    union = int((masks[0] | masks[1]).sum())
    expected = int((masks[0] & masks[1]).sum()) / union if union else 0.0
    first, second = torch.tensor(boxes, dtype=torch.float64)[:, None]
    assert float(overlap(first, second)) == pytest.approx(expected)


def test_targets_are_padded_and_stay_in_pixels() -> None:
    task = boxed()
    x, y = task.train.all()
    assert task.likelihood == "detection"
    assert task.classes == ("a", "b")
    assert y.shape == (6, 2, 5)
    assert y[1].tolist() == [[1, 1, 2, 10, 8], [0, 0, 0, 2, 2]]
    assert y[2, :, 0].tolist() == [-1, -1]
    assert abs(float(x.mean())) < 1e-5, "images are standardised"
    assert task.train.chosen(torch.tensor([1])).ready().all().y.equal(y[1:2])
    assert task.num_outputs == 10
    assert task.fingerprint() != boxed(boxes=[[[0, 0, 4, 7]], *BOXES[1:]]).fingerprint()


def test_a_fifth_becomes_the_test_set() -> None:
    task = Task.from_boxes("boxed", IMAGES, [[[0, 0, 2, 2]]] * 6, [[0]] * 6, classes=["thing"])
    assert (len(task.train), len(task.test), task.classes) == (5, 1, ("thing",))


def test_boxes_follow_the_size_of_images() -> None:
    task = boxed()
    wide = resized(task, (16, 5))
    factors = torch.tensor([0.5, 2.0, 0.5, 2.0])
    old, new = task.train.labels(), wide.train.labels()
    torch.testing.assert_close(new[..., 1:], old[..., 1:] * factors)
    assert new[..., 0].equal(old[..., 0])
    assert wide.train.target_scaling.mean is None
    assert grey(task).train.labels().equal(old)


FAULTS = {
    "outside": ({"boxes": [[[0, 0, 11, 8]], *BOXES[1:]]}, "box 0 of training image 0, (0, 0, 11, 8) of class 0, lies"),
    "no width": ({"boxes": [[[4, 0, 4, 8]], *BOXES[1:]]}, "has no width or no height"),
    "negative": ({"boxes_test": [[[4, 0, 2, 8]], *BOXES[1:]]}, "box 0 of test image 0"),
    "not finite": ({"boxes": [[[0, 0, float("nan"), 8]], *BOXES[1:]]}, "is not finite"),
    "three corners": ({"boxes": [[[0, 0, 8]], *BOXES[1:]]}, "boxes of image 0 must be numbers [n, 4]"),
    "text": ({"boxes": [[["x", 0, 8, 8]], *BOXES[1:]]}, "boxes of image 0 must be numbers [n, 4]"),
    "fewer labels": ({"labels": [[], *LABELS[1:]]}, "image 0 has 1 boxes and 0 labels"),
    "fewer images": ({"x": IMAGES[:5]}, "got 5 images, 6 lists of boxes"),
    "empty class": ({"classes": ["a", "b", "c"]}, "no training image has a box of class c"),
    "unknown class": ({"classes": ["a"]}, "are not among the classes"),
    "test without boxes": ({"boxes_test": None}, "give x_test, boxes_test and labels_test"),
    "no boxes at all": ({"boxes": [[]] * 6, "labels": [[]] * 6, "classes": ["a", "b"]}, "has a box of class a, b"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_boxes_are_refused_in_one_line(fault: str) -> None:
    changes, words = FAULTS[fault]
    with pytest.raises(DataError) as error:
        boxed(**changes)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_number_beyond_the_classes_is_refused() -> None:
    with pytest.raises(DataError, match="has a class that is none of 0 to 1"):
        boxed(labels=[[0], [1, 0], [], [1], [0], [7]], labels_test=[[0], [1, 0], [], [1], [0], [1]], classes=["a", "b"])


def test_tables_have_no_boxes() -> None:
    task = boxed()
    flat = replace(task.train, inputs=nk.tasks.rows.Values(torch.zeros(6, 3)))
    with pytest.raises(DataError, match="detection needs images"):
        Task("flat", flat, flat, "detection", ("a", "b"), (3,))


REFUSALS: dict[str, Callable[[Task], object]] = {
    "network": default_network,
    "outputs": lambda task: check(torch.nn.Flatten(), task.input_shape, task.num_outputs, task.likelihood),
    "distance": Target,
    "search": lambda task: method_named("evolution").require_suited(task),
    "solve": require_answerable,
    "transfer": require_classes_or_values,
}


@pytest.mark.parametrize("place", REFUSALS)
def test_other_packages_name_the_command_that_learns_detection(place: str) -> None:
    with pytest.raises(MismatchError, match=r"got a detection task.*use nearkin interleave"):
        REFUSALS[place](boxed())


def test_augmentation_would_leave_boxes_behind() -> None:
    with pytest.raises(OptionError, match="augmentation is for images with classes or values"):
        fit(torch.nn.Flatten(), boxed(), Recipe(steps=1, augment="flip"))


@pytest.mark.parametrize("change", ["classes=a", "balance", "corrupt=0.5", "detect=a", "parity"])
def test_changes_of_classes_are_refused(change: str) -> None:
    with pytest.raises(NearkinError, match="needs a task with classes, but its likelihood is detection"):
        nk.task(f"scenes?count=30&test=5&{change}")
