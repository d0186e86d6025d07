"""Planted twins are found, ordinary samples are not taken for twins."""

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from nearkin.core.rng import Streams
from nearkin.tasks.checks.duplicates import (
    Duplicates,
    Scan,
    Sketch,
    block_rows,
    candidate_distances,
    coincidental,
    contradictions,
    duplicates,
    scan_rows,
)
from nearkin.tasks.rows import Mapped, Pixels, Values, gathered
from nearkin.tasks.sources import task as read
from nearkin.tasks.task import Task


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def found(task: Task, seed: int = 0) -> Duplicates:
    sketch = Sketch.of(task.train.inputs, Streams(seed).at("sketch"))
    train, test = (
        Scan.joined(list(scan_rows(task.train.inputs, sketch))),
        Scan.joined(list(scan_rows(task.test.inputs))),
    )
    return duplicates(task, train, test, sketch, seed=seed)


def planted(task: Task, change: Callable[[Tensor], Tensor], count: int) -> Task:
    """The task with `count` training inputs, changed, put in the place of its first test inputs."""
    x, x_test = gathered(task.train.inputs).clone(), gathered(task.test.inputs).clone()
    y, y_test = task.train.labels(), task.test.labels().clone()
    x_test[:count], y_test[:count] = change(x[5 : 5 + count]), y[5 : 5 + count]
    return Task.from_arrays("planted", x, y, x_test, y_test, likelihood=task.likelihood, classes=task.classes)


def test_digits_have_no_duplicates() -> None:
    twins = found(read("digits"))
    assert (twins.test_in_train, twins.within_train, twins.contradictory, twins.near) == (0, 0, 0, 0)
    assert not twins.grave


def test_exact_twins_are_counted_and_named() -> None:
    twins = found(planted(read("digits"), lambda x: x, 30))
    assert twins.test_in_train == 30
    assert twins.pairs == tuple((i, 5 + i) for i in range(10))
    assert twins.near == 0
    assert twins.grave


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x + 0.005 * torch.randn(x.shape, generator=rng()),
        lambda x: 0.8 * x + 0.1,
        lambda x: 0.5 * x,
    ],
    ids=["noise", "brightness", "contrast"],
)
def test_near_twins_of_digits_are_found(change: Callable[[Tensor], Tensor]) -> None:
    twins = found(planted(read("digits"), change, 30))
    assert twins.test_in_train == 0
    assert twins.near is not None
    assert 28 <= twins.near <= 30
    assert all(train == test + 5 for test, train in twins.near_pairs)
    assert twins.grave


def test_near_twins_of_a_table_are_found_and_ordinary_rows_are_not() -> None:
    x = torch.randn(2000, 8, generator=rng())
    plain = Task.from_arrays("table", x, torch.arange(2000) % 2)
    assert not found(plain).grave
    twins = found(planted(plain, lambda rows: rows + 1e-3, 20))
    assert twins.near is not None
    assert 20 <= twins.near <= 22
    assert twins.grave


@pytest.mark.parametrize("width", [1, 2, 3])
def test_chance_neighbours_in_few_dimensions_are_no_duplicates(width: int) -> None:
    x = torch.rand(3000, width, generator=rng(width))
    twins = found(Task.from_arrays("square", x, torch.arange(3000) % 2))
    assert not twins.grave
    assert twins.share < 0.01


def test_rows_of_few_values_coincide_and_raise_no_alarm() -> None:
    x = torch.randint(3, (1000, 4), generator=rng()).float()
    twins = found(Task.from_arrays("survey", x, torch.arange(1000) % 2))
    assert twins.test_in_train > 100
    assert twins.coarse
    assert not twins.grave
    assert "by chance" in twins.text


def test_real_numbers_do_not_coincide_but_codes_do() -> None:
    assert not coincidental(Values(torch.randn(500, 3, generator=rng())), rng())
    assert coincidental(Values(torch.randint(2, (500, 3), generator=rng()).float()), rng())


def test_contradictions_against_a_count_by_hand() -> None:
    hashes = torch.randint(40, (300,), generator=rng()).numpy()
    labels = torch.randint(2, (300,), generator=rng(1)).numpy()
    by_hand = sum(any(hashes[i] == hashes[j] and labels[i] != labels[j] for j in range(300)) for i in range(300))
    assert contradictions(hashes, labels) == by_hand


def test_same_image_under_two_labels_is_told() -> None:
    x = torch.rand(200, 1, 8, 8, generator=rng())
    x[100:150] = x[:50]
    y = torch.cat([torch.zeros(100), torch.ones(100)]).long()
    twins = found(Task.from_arrays("two", x, y, torch.rand(100, 1, 8, 8, generator=rng(1)), torch.arange(100) % 2))
    assert (twins.contradictory, twins.within_train) == (100, 50)
    assert twins.grave
    assert "correct their labels" in twins.text


def test_hashes_do_not_depend_on_blocks_nor_on_how_rows_are_read() -> None:
    images = torch.randint(256, (40, 3, 200, 200), generator=rng(), dtype=torch.uint8)
    images[39] = images[0]
    rows = Pixels(images)
    assert block_rows(rows) < 40
    whole = Scan.joined(list(scan_rows(rows))).hashes
    lazy = Scan.joined(list(scan_rows(Mapped(rows, lambda value, index: value)))).hashes
    assert np.array_equal(whole, lazy)
    assert len(np.unique(whole)) == 39
    assert whole[0] == whole[39]


def test_distance_of_images_ignores_brightness_contrast_and_a_shift() -> None:
    image = torch.rand(1, 3, 12, 12, generator=rng())
    for y, x in [(0, 0), (1, 0), (0, -1), (1, 1)]:
        moved = 0.3 * torch.roll(image, (y, x), (2, 3)) + 0.5
        assert float(candidate_distances(image, moved[:, None])) < 2e-3
    assert float(candidate_distances(image, torch.rand(1, 1, 3, 12, 12, generator=rng(1)))) > 0.5


def test_flat_images_are_near_nothing() -> None:
    flat = torch.full((2, 1, 8, 8), 0.3)
    assert (candidate_distances(flat, flat[:, None]) > 1).all()


def test_facts_are_plain_json_and_depend_on_the_seed_alone() -> None:
    task = read("digits?classes=0,1")
    assert json.dumps(found(task).facts(), allow_nan=False) == json.dumps(found(task).facts(), allow_nan=False)


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["mnist", "fashion", "cifar10"])
def test_ordinary_images_are_no_duplicates(name: str, real_data: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARKIN_DATA", str(real_data))
    twins = found(read(f"{name}?limit=2000"))
    assert twins.share <= 0.002
    assert not twins.grave


@pytest.mark.realdata
def test_shifted_mnist_is_found_in_part(real_data: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARKIN_DATA", str(real_data))
    task = read("mnist?limit=1000")
    few = replace(task, test=task.test.chosen(torch.arange(500)))
    twins = found(planted(few, lambda x: torch.roll(x, 1, 3), 100))
    assert twins.near is not None
    assert twins.near >= 60
    assert twins.grave
