"""The share of wrong labels against known corruption, and what must hold of its parts."""

from dataclasses import replace

import pytest
import torch

from nearkin.core.rng import Streams
from nearkin.tasks.checks.label_noise import (
    LAPSES,
    balanced_skill,
    confident_joint,
    descriptors,
    known_classes,
    label_noise,
    lapse_curve,
    leave_one_out,
)
from nearkin.tasks.derive import corrupted
from nearkin.tasks.rows import Values
from nearkin.tasks.sources import task as read
from nearkin.tasks.task import Task


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_left_out_scores_equal_the_regression_without_that_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    from nearkin.tasks.checks import label_noise as module

    monkeypatch.setattr(module, "WIDTHS", (0.5,))
    monkeypatch.setattr(module, "RIDGES", (0.3,))
    x, y = torch.randn(12, 3, generator=rng()), torch.randn(12, 2, generator=rng(1)).double()
    (scores,) = leave_one_out(x, y, rng(2))
    # the oracle: kernel features of the same columns, an intercept, one sample taken out at a time
    middle = x[torch.randperm(12, generator=rng(2))]
    near, inner = torch.cdist(x, middle).square(), torch.cdist(middle, middle).square()
    values, vectors = torch.linalg.eigh(torch.exp(-inner / near.median()).double())
    large = values > 1e-6 * values.max()
    features = torch.exp(-near / near.median()).double() @ (vectors[:, large] / values[large].sqrt())
    design = torch.cat([features - features.mean(0), torch.ones(12, 1).double()], 1)
    penalty = 0.3 * torch.eye(design.shape[1]).double()
    penalty[-1, -1] = 0
    for i in range(12):
        rest = torch.arange(12) != i
        weights = torch.linalg.solve(design[rest].T @ design[rest] + penalty, design[rest].T @ y[rest])
        torch.testing.assert_close(scores[i], design[i] @ weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("lapse", [0.0, 0.1, 0.5])
def test_lapse_rate_of_drawn_labels_is_found(lapse: float) -> None:
    classes, count = 4, 20_000
    clean = torch.softmax(3 * torch.randn(count, classes, generator=rng()), 1)
    p = (1 - lapse) * clean + lapse / classes
    y = torch.multinomial(p, 1, generator=rng(1))
    found = LAPSES[lapse_curve(clean.gather(1, y)[:, 0], classes).argmax()]
    assert abs(float(found) - lapse) < 0.02


def test_confident_joint_is_a_joint_law_with_the_given_class_sizes() -> None:
    p = torch.softmax(torch.randn(200, 5, generator=rng()), 1)
    y = torch.randint(5, (200,), generator=rng(1))
    joint = confident_joint(p, y)
    torch.testing.assert_close(joint.sum(1), torch.bincount(y, minlength=5) / 200)
    assert (joint >= 0).all()


def test_confident_joint_of_a_perfect_model_is_the_table_of_labels() -> None:
    truth = torch.arange(300) % 3
    given = torch.where(torch.arange(300) % 10 == 0, (truth + 1) % 3, truth)
    joint = confident_joint(torch.nn.functional.one_hot(truth, 3).float() * 0.97 + 0.01, given)
    assert float(1 - joint.trace()) == pytest.approx(0.1, abs=1e-6)


def test_skill_is_one_without_error_and_does_not_depend_on_class_sizes() -> None:
    y = torch.tensor([0] * 90 + [1] * 10)
    assert balanced_skill(y, y, 2) == 1
    assert balanced_skill(1 - y, y, 2) == -1


def test_clean_digits_have_no_wrong_labels() -> None:
    found = label_noise(read("digits"), samples=800)
    assert found.share is not None
    assert found.share < 0.01
    assert not found.grave


@pytest.mark.thinned(3)
@pytest.mark.parametrize("share", [0.1, 0.2, 0.4])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_share_of_corrupted_digits(share: float, seed: int) -> None:
    clean = read("digits")
    noisy = corrupted(clean, share, seed)
    truth = float((noisy.train.labels() != clean.train.labels()).double().mean())  # a random label may be the right one
    found = label_noise(noisy, seed=seed, samples=1000)
    assert found.share is not None
    assert abs(found.share - truth) < 0.05
    assert found.low <= found.share <= found.high
    assert found.grave


def test_the_most_suspicious_rows_are_corrupted_ones() -> None:
    clean = read("digits")
    noisy = corrupted(clean, 0.1)
    wrong = noisy.train.labels() != clean.train.labels()
    suspects = label_noise(noisy, samples=1000).suspects
    assert len(suspects) == 20
    assert sum(bool(wrong[suspect.row]) for suspect in suspects) >= 19
    right = [suspect.likely == clean.classes[int(clean.train.labels()[suspect.row])] for suspect in suspects]
    assert sum(right) >= 18


def test_labels_without_any_bond_to_the_inputs_are_not_called_wrong() -> None:
    found = label_noise(Task.from_arrays("chance", torch.randn(600, 5, generator=rng()), torch.arange(600) % 3))
    assert found.share is None
    assert not found.grave
    assert "cannot be estimated" in found.text


def test_overlapping_classes_are_not_wrong_labels() -> None:
    y = torch.arange(1500) % 2
    x = torch.randn(1500, 4, generator=rng())
    x[:, 0] += 3 * y  # 7 % of the best rule's answers are wrong, honestly
    found = label_noise(Task.from_arrays("overlap", x, y))
    assert not found.grave
    assert found.share is not None
    assert found.share < 0.03


def test_rare_classes_are_left_out_and_the_rest_is_numbered_anew() -> None:
    labels = torch.tensor([3] * 6 + [1] * 4 + [0] * 5)
    rows, y, kept = known_classes(labels, 100, rng())
    assert kept.tolist() == [0, 3]
    assert torch.equal(kept[y], labels[rows])
    assert len(rows) == 11


def test_descriptors_do_not_know_the_unit_of_a_column() -> None:
    x = torch.randn(50, 3, generator=rng())
    rows = torch.arange(50)
    scaled = Values(x * torch.tensor([1e-3, 1.0, 1e4]) + 5)
    torch.testing.assert_close(descriptors(Values(x), rows), descriptors(scaled, rows), rtol=1e-2, atol=1e-2)
    assert descriptors(Values(torch.full((5, 2), 7.7)), torch.arange(5)).abs().max() == 0


def test_the_same_seed_gives_the_same_finding() -> None:
    noisy = corrupted(read("digits?classes=0,1,2,3"), 0.2)
    assert label_noise(noisy, seed=3, samples=300) == label_noise(noisy, seed=3, samples=300)


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["mnist", "fashion", "cifar10"])
def test_clean_images_raise_no_alarm(name: str, real_data: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARKIN_DATA", str(real_data))
    task = read(f"{name}?limit=800")
    found = label_noise(task)
    assert not found.grave
    assert found.share is None or found.share < 0.03


@pytest.mark.realdata
def test_corrupted_mnist(real_data: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARKIN_DATA", str(real_data))
    clean = read("mnist?limit=1000")
    hit = torch.randperm(1000, generator=Streams(0).at("hit"))[:200]
    labels = clean.train.labels().clone()
    labels[hit] = (labels[hit] + torch.randint(1, 10, (200,), generator=rng())) % 10
    noisy = replace(clean, train=replace(clean.train, targets=Values(labels)))
    found = label_noise(noisy)
    assert found.share == pytest.approx(0.2, abs=0.05)
