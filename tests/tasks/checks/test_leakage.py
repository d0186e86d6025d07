"""Planted copies of the answer are found; honest columns raise no alarm."""

import numpy as np
import pytest
import torch
from sklearn import datasets
from torch import Tensor

from nearkin.tasks.checks.label_noise import label_noise
from nearkin.tasks.checks.leakage import (
    Leakage,
    binned,
    class_leakage,
    class_skills,
    usual_of,
    value_leakage,
    value_skills,
)
from nearkin.tasks.rows import gathered
from nearkin.tasks.sources import task as read
from nearkin.tasks.task import Task


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def leak_of(task: Task, seed: int = 0) -> Leakage:
    return class_leakage(task, label_noise(task, seed=seed, samples=600).skill, seed=seed, samples=2000)


def marked(task: Task, mark: Tensor, row: int = 0, column: int = 7) -> Task:
    """The task's training images with a mark `[N]` in one pixel."""
    x = gathered(task.train.inputs).clone()
    x[:, 0, row, column] = mark.float()
    return Task.from_arrays("marked", x, task.train.labels(), gathered(task.test.inputs), task.test.labels())


def test_bins_keep_the_order_and_equal_values_together() -> None:
    x = torch.randint(6, (200, 3), generator=rng()).float()
    bins = binned(x, 16)
    for values, numbers in zip(x.T, bins, strict=True):
        assert len(torch.unique(numbers)) == 6
        order = values.argsort()
        assert (numbers[order].diff() >= 0).all()


def test_skill_of_a_copy_is_one_and_of_chance_near_zero() -> None:
    y = torch.arange(3000) % 5
    chance = torch.randint(16, (3000,), generator=rng())
    half = torch.where(torch.rand(3000, generator=rng(1)) < 0.5, y, torch.randint(5, (3000,), generator=rng(2)))
    skill, caught = class_skills(torch.stack([4 - y, chance, half]), y, 5, rng(3))
    assert float(skill[0]) == pytest.approx(1, abs=1e-6)
    assert abs(float(skill[1])) < 0.05
    assert float(skill[2]) == pytest.approx(0.5, abs=0.05)  # right in half of the cases, and at chance in the rest
    assert caught[0].min() == pytest.approx(1, abs=1e-6)


def test_skill_does_not_depend_on_how_columns_are_cut_into_chunks() -> None:
    y = torch.arange(60) % 2
    bins = torch.randint(4, (30, 60), generator=rng())
    whole, _ = class_skills(bins, y, 2, rng(1))
    ones = torch.cat(
        [class_skills(torch.cat([bins[i : i + 1], bins[:1] * 0 + 3]), y, 2, rng(1))[0][:1] for i in range(30)]
    )
    torch.testing.assert_close(whole, ones)


def test_r2_of_a_straight_line_in_bins() -> None:
    x = torch.rand(8000, 1, generator=rng())
    noise = 0.1 * torch.randn(8000, generator=rng(1))
    r2 = value_skills(binned(x, 16), (x[:, 0] + noise).double(), rng(2))
    variance = 1 / 12
    within = variance / 16**2  # of a uniform value in its bin
    assert float(r2) == pytest.approx(1 - (within + 0.01) / (variance + 0.01), abs=0.01)


@pytest.mark.parametrize(
    "name", ["digits", "digits?parity", "digits?detect=0", "digits?classes=0,1", "digits?classes=3,7"]
)
def test_no_pixel_of_digits_is_a_leak(name: str) -> None:
    assert not leak_of(read(name)).grave


@pytest.mark.parametrize("load", [datasets.load_iris, datasets.load_wine, datasets.load_breast_cancer])
def test_honest_columns_of_real_tables_raise_no_alarm(load) -> None:  # type: ignore[no-untyped-def]
    data = load()
    assert not leak_of(Task.from_arrays("table", data.data.astype(np.float32), data.target)).grave


def test_a_strong_column_of_irises_is_told_with_its_question() -> None:
    data = datasets.load_iris()
    found = leak_of(Task.from_arrays("iris", data.data.astype(np.float32), data.target))
    assert found.column in ("column 2", "column 3")
    assert "is known before the prediction" in found.text


def test_a_label_written_into_a_pixel_is_found() -> None:
    task = read("digits")
    found = leak_of(marked(task, task.train.labels() / 9))
    assert found.grave
    assert found.column == "the pixel at row 0, column 7"
    assert found.skill > 0.99


def test_a_mark_on_one_class_is_found_and_the_class_is_named() -> None:
    task = read("digits")
    found = leak_of(marked(task, (task.train.labels() == 4) * 0.9 + 0.05 * torch.rand(1438, generator=rng())))
    assert found.grave
    assert (found.column, found.caught) == ("the pixel at row 0, column 7", "4")
    assert "class 4" in found.text


def test_brightness_that_tells_the_class_is_found() -> None:
    y = torch.arange(600) % 3
    x = torch.randn(600, 1, 16, 16, generator=rng()) + 0.4 * y[:, None, None, None]
    found = leak_of(Task.from_arrays("exposure", x, y))
    assert found.grave
    assert found.column == "the mean brightness"


def test_a_leak_in_a_table_of_noise_is_found_and_not_without_it() -> None:
    y = torch.arange(1000) % 4
    x = torch.randn(1000, 12, generator=rng())
    assert not leak_of(Task.from_arrays("noise", x, y)).grave
    x[:, 5] = y + 0.1 * torch.randn(1000, generator=rng(1))
    found = leak_of(Task.from_arrays("leak", x, y))
    assert found.grave
    assert found.column == "column 5"


def test_sorted_rows_are_no_leak() -> None:
    y = torch.arange(1000) // 250
    assert not leak_of(Task.from_arrays("sorted", torch.randn(1000, 6, generator=rng()), y)).grave


def test_values_a_copied_target_is_found_and_a_sum_of_causes_is_not() -> None:
    x = torch.randn(600, 6, generator=rng())
    y = x @ torch.tensor([1.0, -1.0, 1.0, 0.8, 0.5, 0.2]) + 0.1 * torch.randn(600, generator=rng(1))
    honest = value_leakage(Task.from_arrays("sum", x, y, likelihood="gaussian"))
    assert not honest.grave
    x[:, 3] = 7 * y - 2
    found = value_leakage(Task.from_arrays("copy", x, y, likelihood="gaussian"))
    assert found.grave
    assert found.column == "column 3"
    assert found.skill > 0.95


def test_diabetes_has_no_leak() -> None:
    data = datasets.load_diabetes()
    assert not value_leakage(Task.from_arrays("d", data.data.astype(np.float32), data.target.astype(np.float32))).grave


def test_usual_is_the_best_of_few_and_a_high_quantile_of_many() -> None:
    assert usual_of(torch.tensor([0.5]), 0) == 0
    assert usual_of(torch.arange(1000) / 1000, 999) == pytest.approx(0.969)


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["mnist?limit=600", "fashion?limit=600", "mnist?classes=0,1&limit=600"])
def test_no_pixel_of_real_images_is_a_leak(name: str, real_data: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARKIN_DATA", str(real_data))
    assert not leak_of(read(name)).grave
