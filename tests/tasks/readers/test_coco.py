"""COCO folders: boxes, splits, sizes and faults."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import nearkin as nk
from nearkin.core.errors import DataError

CATEGORIES = [{"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}]
WHITE = np.full((20, 10), 255, np.uint8)


def table(count: int = 3) -> dict[str, Any]:
    images = [{"id": 10 + i, "file_name": f"{i}.png", "height": 20, "width": 10} for i in range(count)]
    boxes = [(10, 7, [1, 2, 3, 4]), (10, 3, [0, 0, 10, 20]), (11, 3, [5, 5, 5.5, 2])]
    annotations = [
        {"id": i, "image_id": image, "category_id": category, "bbox": box, "iscrowd": 0, "area": 1}
        for i, (image, category, box) in enumerate(boxes)
    ]
    crowd = {"id": 99, "image_id": 12, "category_id": 3, "bbox": [0, 0, 4, 4], "iscrowd": 1}
    return {"images": images, "annotations": [*annotations, crowd], "categories": deepcopy(CATEGORIES)}


def write(root: Path, name: str = "train.json", folder: str = "images", content: Any = None, count: int = 3) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(table(count) if content is None else content))
    (root / folder).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        Image.fromarray(WHITE).save(root / folder / f"{number}.png")
    return root


def test_boxes_become_corners_and_crowds_are_left_out(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path, "val.json")
    task = nk.task(f"coco:{tmp_path}")
    assert task.classes == ("cat", "dog"), "in the order of ids"
    assert task.input_shape == (1, 20, 10)
    boxes = task.train.labels()
    assert boxes[0].tolist() == [[1, 1, 2, 4, 6], [0, 0, 0, 10, 20]]
    assert boxes[1].tolist() == [[0, 5, 5, 10, 7], [-1, 0, 0, 0, 0]], "clipped to the image"
    assert boxes[2, :, 0].tolist() == [-1, -1], "only a crowd"
    assert task.test.labels().equal(boxes)


def test_files_of_the_official_layout(tmp_path: Path) -> None:
    write(tmp_path, "annotations/instances_train2017.json", "train2017")
    write(tmp_path, "annotations/instances_val2017.json", "val2017")
    task = nk.task(f"coco:{tmp_path}")
    assert (len(task.train), len(task.test)) == (3, 3)
    again = nk.task(task.source)
    assert again.fingerprint() == task.fingerprint()


def test_images_and_boxes_are_resized_together(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path, "val.json")
    task = nk.task(f"coco:{tmp_path}?size=10x20")
    assert task.input_shape == (1, 10, 20)
    assert task.train.labels()[0, 0].tolist() == [1, 2, 1, 8, 3]


def test_some_classes(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path, "test.json")
    task = nk.task(f"coco:{tmp_path}?classes=cat")
    assert task.classes == ("cat",)
    assert (task.train.labels()[..., 0] >= 0).sum() == 2
    with pytest.raises(DataError, match="has no class bird; its classes are cat, dog"):
        nk.task(f"coco:{tmp_path}?classes=bird")


def test_faulty_boxes_can_be_dropped(tmp_path: Path) -> None:
    content = table()
    content["annotations"].append({"id": 5, "image_id": 12, "category_id": 3, "bbox": [1, 1, 0, 2]})
    write(tmp_path, content=content)
    write(tmp_path, "val.json")
    task = nk.task(f"coco:{tmp_path}?faulty=drop")
    assert "1 boxes without area or outside their image are left out" in task.notes


def edited(*path: Any, value: Any) -> dict[str, Any]:
    content: Any = table()
    entry = content
    for key in path[:-1]:
        entry = entry[key]
    entry[path[-1]] = value
    return content


BOX = ("annotations", 0, "bbox")
FAULTS: dict[str, tuple[Any, str]] = {
    "outside": (edited(*BOX, value=[5, 5, 9, 2]), "[5, 5, 9, 2] lies outside its image of 20 x 10"),
    "negative corner": (edited(*BOX, value=[-3, 5, 4, 2]), "lies outside its image"),
    "no width": (edited(*BOX, value=[5, 5, 0, 2]), "has no area"),
    "negative height": (edited(*BOX, value=[5, 5, 1, -2]), "has no area"),
    "infinite": (edited(*BOX, value=[5, 5, float("inf"), 2]), "is not finite"),
    "not a number": (edited(*BOX, value=[5, 5, float("nan"), 2]), "is not finite"),
    "huge": (edited(*BOX, value=[5, 5, 10**400, 2]), "beyond floating point"),
    "text": (edited(*BOX, value=[5, 5, "1", 2]), "is not x, y, width, height"),
    "three numbers": (edited(*BOX, value=[5, 5, 1]), "is not x, y, width, height"),
    "table as box": (edited(*BOX, value={}), "bbox is {}, expected a list"),
    "unknown image": (edited("annotations", 0, "image_id", value=77), "belongs to image 77, which is not listed"),
    "unknown category": (edited("annotations", 0, "category_id", value=1), "has category 1, which is not listed"),
    "class without boxes": (edited("categories", 0, value={"id": 4, "name": "owl"}), "category 7, which is not"),
    "further class": (edited("categories", value=[*CATEGORIES, {"id": 9, "name": "owl"}]), "box of class owl"),
    "same id": (edited("images", 1, "id", value=10), "image 10 is listed twice"),
    "same category": (edited("categories", 1, "id", value=7), "is listed twice"),
    "no height": (edited("images", 0, "height", value=0), "is 0 x 10 pixels"),
    "height as text": (edited("images", 0, "height", value="20"), "height is '20', expected a whole number"),
    "another height": (edited("images", 2, "height", value=21), "its entry states 21 x 10"),
    "missing file": (edited("images", 0, "file_name", value="x.png"), "there is no file 'x.png'"),
    "path outside": (edited("images", 0, "file_name", value="../0.png"), "a path inside the folder"),
    "absolute path": (edited("images", 0, "file_name", value="/dev/zero"), "a path inside the folder"),
    "no images": (edited("images", value=[]), "lists no images"),
    "no categories": (edited("categories", value=[]), "has no categories"),
    "list of lists": (edited("images", value=[[]]), "images has an entry that is not a table"),
    "a list": ([1], "has no list 'images'"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_refused_in_one_line(fault: str, tmp_path: Path) -> None:
    content, words = FAULTS[fault]
    write(tmp_path, content=content)
    write(tmp_path, "val.json")
    with pytest.raises(DataError) as error:
        nk.task(f"coco:{tmp_path}")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_folders_without_annotations(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has neither annotations/instances_train\*.json nor train.json"):
        nk.task(f"coco:{tmp_path}")
    with pytest.raises(DataError, match="there is no folder"):
        nk.task(f"coco:{tmp_path / 'nothing'}")
    (tmp_path / "train.json").write_text("{")
    with pytest.raises(DataError, match="is not JSON"):
        nk.task(f"coco:{tmp_path}")
    write(tmp_path)
    write(tmp_path, "annotations/instances_train.json")
    with pytest.raises(DataError, match="for the same split; keep one of them"):
        nk.task(f"coco:{tmp_path}")
