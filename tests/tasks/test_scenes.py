"""Generated scenes: boxes around what is visible, separate source images, the same scenes from the same seed."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import nearkin as nk
from nearkin.core.errors import DataError, NearkinError
from nearkin.tasks.boxes import overlap
from nearkin.tasks.scenes import SceneOptions, make_scenes
from nearkin.tasks.task import Task


def test_boxes_contain_the_visible_pixels() -> None:
    """On a plain background nothing bright is outside the boxes, and every side of a box touches a bright pixel."""
    task = nk.task("scenes?count=60&test=10&background=plain&size=24x40")
    assert task.input_shape == (1, 24, 40)
    index = torch.arange(20)
    images, targets = task.train.inputs.take(index), task.train.labels()[:20]
    for brightness, target in zip(images[:, 0], targets, strict=True):
        image = brightness > 0.199  # 0.2 in bytes
        inside = torch.zeros_like(image)
        for _, *corners in target[target[:, 0] >= 0].long().tolist():
            x1, y1, x2, y2 = corners
            inside[y1:y2, x1:x2] = True
            window = image[y1:y2, x1:x2]
            assert window[0].any()
            assert window[-1].any()
            assert window[:, 0].any()
            assert window[:, -1].any()
        assert float(brightness[~inside].max()) < 0.201


def test_objects_hardly_overlap_and_are_one_to_four() -> None:
    targets = nk.task("scenes?count=100&test=10").train.labels()
    counts = (targets[..., 0] >= 0).sum(1)
    assert set(counts.tolist()) == {1, 2, 3, 4}
    for target in targets:
        boxes = target[target[:, 0] >= 0][:, 1:]
        assert float((overlap(boxes, boxes) - torch.eye(len(boxes))).max()) <= 0.1 + 1e-6


def test_training_and_test_scenes_have_different_sources() -> None:
    images = torch.cat([torch.full((5, 1, 8, 8), 0.5), torch.full((5, 1, 8, 8), 1.0)])
    source = Task.from_arrays("flat", images[:5], [0, 1, 0, 1, 0], images[5:], [0, 1, 0, 1, 0])
    task = make_scenes(source, SceneOptions(count=20, test=20, background="plain"))
    assert task.train.inputs.take(torch.arange(20)).unique().tolist() == pytest.approx([0, 128 / 255])
    assert task.test.inputs.take(torch.arange(20)).unique().tolist() == [0, 1]


def test_a_seed_gives_the_same_scenes() -> None:
    first, again, other = (nk.task(f"scenes?count=40&test=5&seed={seed}") for seed in (1, 1, 2))
    assert first.digest() == again.digest() != other.digest()
    longer = nk.task("scenes?count=45&test=5&seed=1")
    assert longer.train.labels()[:40].equal(first.train.labels())


@pytest.mark.realdata
@pytest.mark.parametrize(("source", "folder"), [("mnist", "mnist"), ("fashion", "fashion_mnist")])
def test_other_sources(source: str, folder: str, real_folder: Callable[[str], Path]) -> None:
    real_folder(folder)
    task = nk.task(f"scenes?of={source}&count=60&test=5&size=48")
    assert task.input_shape == (1, 48, 48)
    assert len(task.classes) == 10


@pytest.mark.parametrize(
    ("options", "words"),
    [("of=cats", "of must be one of"), ("size=8", "16 pixels a side"), ("count=0", "count must be a whole number"),
     ("objects=x", "objects must be"), ("background=red", "background must be noise or plain"),
     ("count=1&test=1", "no training image has a box of class")],
)  # fmt: skip
def test_wrong_options(options: str, words: str) -> None:
    with pytest.raises(NearkinError, match=words):
        nk.task(f"scenes?{options}")


def test_dark_sources_are_refused() -> None:
    dark = Task.from_arrays("dark", torch.zeros(4, 1, 8, 8), [0, 1, 0, 1], torch.zeros(2, 1, 8, 8), [0, 1])
    with pytest.raises(DataError, match="is dark, so it has no box"):
        make_scenes(dark, SceneOptions())
