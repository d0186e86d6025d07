"""Findings of whole tasks: figures by hand, alarms where they belong, edge cases, plain JSON."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from nearkin.core.errors import OptionError
from nearkin.core.events import Progress, finish
from nearkin.core.plain import typed
from nearkin.tasks.checks.data_checks import Checks, Finding, balance, check_data, class_shift, size, target
from nearkin.tasks.derive import corrupted
from nearkin.tasks.sources import task as read
from nearkin.tasks.task import Task


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def table(count: int, classes: int, width: int = 4, name: str = "table") -> Task:
    x, y = torch.randn(count, width, generator=rng()), torch.arange(count) % classes
    return Task.from_arrays(name, x, y, torch.randn(count, width, generator=rng(1)), y)


def checked(task: Task, **options: int) -> Checks:
    return check_data(task, **options)


def of_kind(checks: Checks, kind: str) -> Finding:
    (one,) = (finding for finding in checks.findings if finding.kind == kind)
    return one


def test_there_and_back_through_json() -> None:
    checks = checked(read("digits?classes=0,1,2"), samples=200)
    assert typed(Checks, json.loads(json.dumps(checks.to_dict(), allow_nan=False)), "the checks") == checks


def test_progress_rises_by_one_to_its_total_and_nothing_else_is_said() -> None:
    events: list[object] = []
    for task in (read("digits?classes=0,1"), read("digits?dense=edges"), _values(torch.randn(300, generator=rng()))):
        events.clear()
        finish(check_data.work(task, samples=100), events.append)
        steps = [event for event in events if isinstance(event, Progress)]
        assert len(steps) == len(events)
        assert {step.stage for step in steps} == {"checks of the data"}
        assert [step.done for step in steps] == list(range(1, len(steps) + 1))
        assert {step.total for step in steps} == {len(steps)}


def test_the_same_seed_finds_the_same() -> None:
    task = read("digits?classes=0,1,2&corrupt=0.2")
    assert checked(task, seed=1, samples=200).findings == checked(task, seed=1, samples=200).findings


def test_clean_digits_pass_and_corrupted_ones_are_cautioned() -> None:
    assert checked(read("digits"), samples=400).grave == ()
    (noise,) = checked(corrupted(read("digits"), 0.3), samples=400).grave
    assert noise.kind == "noise"
    assert noise.facts["share"] == pytest.approx(0.27, abs=0.05)


def test_size_is_grave_for_small_classes_few_tests_and_many_classes() -> None:
    assert not size(table(400, 4)).grave
    assert "has an interval from" in size(table(80, 4)).text
    few = size(table(180, 20))  # 9 of each, and more classes than a tenth
    assert few.grave
    assert few.facts["num_small_classes"] == 20
    assert "merge classes" in few.text


def test_balance_counts_ratio_and_entropy_by_hand() -> None:
    y = torch.tensor([0] * 220 + [1] * 20)
    found = balance(Task.from_arrays("skew", torch.randn(240, 2, generator=rng()), y, torch.randn(240, 2), y))
    p = 220 / 240
    assert found.facts["ratio"] == 11
    entropy = -(p * math.log(p) + (1 - p) * math.log(1 - p)) / math.log(2)
    assert found.facts["entropy_ratio"] == pytest.approx(entropy, abs=1e-5)
    assert found.grave
    even = balance(table(400, 4))
    assert even.facts["entropy_ratio"] == 1
    assert not even.grave


def test_a_class_that_the_test_part_lacks_is_named() -> None:
    x = torch.randn(90, 2, generator=rng())
    found = balance(Task.from_arrays("lack", x, torch.arange(90) % 3, x, torch.arange(90) % 2))
    assert found.facts["absent_in_test"] == ["2"]
    assert found.grave


def test_class_shift_is_chi_square_of_the_table() -> None:
    from scipy.stats import chi2_contingency

    train, test = torch.tensor([500, 300, 200]), torch.tensor([20, 50, 30])
    chi = chi2_contingency(torch.stack([train, test]).numpy(), correction=False).statistic
    effect, deviations = class_shift(train, test)
    assert deviations == pytest.approx((chi - 2) / 2)
    assert effect == pytest.approx(math.sqrt((chi - 2) * 1100 / (1000 * 100)))


def test_parts_drawn_from_one_law_are_not_called_shifted() -> None:
    for seed in range(20):
        draws = torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), 1500, replacement=True, generator=rng(seed))
        effect, deviations = class_shift(torch.bincount(draws[:1000]), torch.bincount(draws[1000:]))
        assert effect < 0.1 or deviations < 4


def _values(y: torch.Tensor) -> Task:
    x = torch.randn(len(y), 3, generator=rng(5))
    return Task.from_arrays("values", x, y, likelihood="gaussian")


def test_values_constant_targets_and_outliers() -> None:
    assert target(_values(torch.full((200,), 2.5))).grave
    y = torch.randn(500, generator=rng())
    assert not target(_values(y)).grave
    wild = target(_values(torch.where(torch.arange(500) < 20, y + 100, y)))
    assert wild.grave
    assert 10 <= wild.facts["num_outliers"] <= 20  # a fifth was set aside as the test part
    assert [finding.kind for finding in checked(_values(y)).findings] == ["size", "target", "duplicates", "leakage"]


def test_dense_tasks_are_checked_for_size_and_duplicates_only() -> None:
    assert [finding.kind for finding in checked(read("digits?dense=autoencode")).findings] == ["size", "duplicates"]


def test_language_is_checked_for_size_and_duplicates_only(tmp_path: Path) -> None:
    (tmp_path / "prose.txt").write_text("the cat sat on the mat and the dog ran after the cat again\n" * 200)
    checks = checked(read(f"text:{tmp_path / 'prose.txt'}"))
    assert [finding.kind for finding in checks.findings] == ["size", "duplicates"]


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(table(10, 2), id="ten samples"),
        pytest.param(table(10, 5), id="two per class"),
        pytest.param(table(60, 3, width=1), id="one column"),
        pytest.param(table(200, 2, width=100), id="a hundred columns"),
        pytest.param(Task.from_arrays("flat", np.full((60, 8, 8), 9, np.uint8), np.arange(60) % 3), id="flat images"),
        pytest.param(Task.from_arrays("same", np.full((60, 2), 9.0, np.float32), np.arange(60) % 3), id="flat table"),
        pytest.param(Task.from_arrays("dot", np.arange(60).reshape(60, 1, 1) / 60, np.arange(60) % 3), id="one pixel"),
        pytest.param(_values(torch.full((60,), 1.0)), id="constant target"),
        pytest.param(_values(torch.arange(10.0)), id="ten values"),
    ],
)
def test_edges_end_in_plain_json(task: Task) -> None:
    checks = checked(task)
    json.dumps(checks.to_dict(), allow_nan=False)
    for finding in checks.findings:
        assert finding.text.endswith(".")
        assert "nan" not in finding.text


def test_inputs_that_are_all_the_same_are_cautioned() -> None:
    task = Task.from_arrays("same", np.full((500, 2), 9.0, np.float32), np.arange(500) % 2)
    found = of_kind(checked(task), "duplicates")
    assert found.grave
    assert "are the same" in found.text


def test_ten_thousand_classes_are_quick() -> None:
    checks = checked(table(20_000, 10_000))
    assert checks.seconds < 20
    assert of_kind(checks, "size").grave
    assert of_kind(checks, "noise").facts["share"] is None


def test_a_lazily_read_folder(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = torch.randint(256, (60, 12, 12), generator=rng(), dtype=torch.uint8).numpy()
    for part, rows in (("train", range(60)), ("test", range(20))):
        for i in rows:
            (tmp_path / part / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
            image.fromarray(pixels[i]).save(tmp_path / part / "ab"[i % 2] / f"{i}.png")
    twins = of_kind(checked(read(f"folder:{tmp_path}")), "duplicates")
    assert twins.facts["test_in_train"] == 20
    assert twins.grave


def test_no_samples_to_look_at_is_refused() -> None:
    with pytest.raises(OptionError, match="got 0"):
        check_data(table(10, 2), samples=0)


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["mnist", "fashion", "cifar10"])
def test_clean_images_are_not_cautioned(name: str, real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARKIN_DATA", str(real_data))
    assert checked(read(f"{name}?limit=500")).grave == ()
