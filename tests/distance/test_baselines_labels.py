"""LEEP, NCE, H-score, nearest neighbours: closed forms, inequalities of the papers, and scikit-learn."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.covariance import ledoit_wolf as reference_shrinkage
from sklearn.metrics import mutual_info_score, r2_score
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from torch import Tensor

from nearkin.core.errors import DataError, MismatchError, OptionError
from nearkin.distance.baselines import hscore, knn_accuracy, knn_r2, leep, nce
from nearkin.distance.baselines.hscore import ledoit_wolf
from nearkin.distance.baselines.inputs import centred
from nearkin.distance.baselines.neighbours import Metric


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def drawn(count: int, classes: int, seed: int) -> Tensor:
    return torch.randint(classes, (count,), generator=torch.Generator().manual_seed(seed))


def entropy(labels: Tensor) -> float:
    return float(mutual_info_score(labels, labels))


def leep_by_loops(theta: Tensor, y: Tensor) -> float:
    joint = [[sum(float(t[z]) for t, label in zip(theta, y, strict=True) if label == c) for z in range(theta.shape[1])]
             for c in range(int(y.max()) + 1)]  # fmt: skip
    alone = [sum(row[z] for row in joint) for z in range(theta.shape[1])]
    each = [
        math.log(sum(joint[int(c)][z] / alone[z] * float(t[z]) for z in range(len(t))))
        for t, c in zip(theta, y, strict=True)
    ]
    return sum(each) / len(each)


@given(st.integers(2, 20), st.integers(1, 5), st.integers(0, 300))
@settings(max_examples=30, deadline=None)
def test_leep_is_its_definition(count: int, width: int, seed: int) -> None:
    theta, y = normal(count, width, seed=seed).softmax(1), drawn(count, 3, seed)
    assert leep(theta, y, 3) == pytest.approx(leep_by_loops(theta, y), abs=1e-12)


@given(st.integers(1, 40), st.integers(1, 6), st.integers(0, 300))
@settings(max_examples=40, deadline=None)
def test_leep_of_sure_predictions_is_nce(count: int, width: int, seed: int) -> None:
    z, y = drawn(count, width, seed), drawn(count, 4, seed + 1)
    assert leep(F.one_hot(z, width), y, 4) == pytest.approx(nce(z, y), abs=1e-12)


@given(st.integers(2, 40), st.integers(1, 6), st.integers(0, 300), st.floats(0.1, 5))
@settings(max_examples=40, deadline=None)
def test_leep_lies_between_its_conditional_entropy_and_zero(count: int, width: int, seed: int, sharp: float) -> None:
    theta, y = (sharp * normal(count, width, seed=seed)).softmax(1), drawn(count, 3, seed)
    joint = torch.stack([theta[y == c].sum(0) for c in range(3)]) / count
    conditional = joint / joint.sum(0)
    soft = float(torch.xlogy(joint, conditional).sum())
    found = leep(theta, y, 3)
    assert -entropy(y) - 1e-12 <= soft <= found + 1e-12 <= 1e-12  # the middle one is Jensen's
    for z in range(width):  # one term of the sum alone
        assert found >= float((conditional[y, z] * theta[:, z]).log().mean()) - 1e-12


def test_the_printed_bound_of_leep_by_nce_does_not_hold() -> None:
    theta, y = torch.tensor([[0.9, 0.1], [0.1, 0.9]]), torch.tensor([0, 1])
    sure, z = theta.max(1)
    assert nce(z, y) + float(sure.log().mean()) > leep(theta, y, 2) + 0.05


@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 300))
@settings(max_examples=40, deadline=None)
def test_nce_is_mutual_information_less_entropy(count: int, width: int, seed: int) -> None:
    z, y = drawn(count, width, seed), drawn(count, 4, seed + 1)
    assert nce(z, y) == pytest.approx(float(mutual_info_score(z, y)) - entropy(y), abs=1e-12)
    assert nce(y, y) == 0
    assert nce(torch.zeros_like(y), y) == pytest.approx(-entropy(y), abs=1e-12)
    assert nce(z * 10**9, y) == nce(z, y)  # names of classes are names alone


def test_a_source_class_that_never_appears_does_no_harm() -> None:
    theta, y = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.8, 0.0]]), torch.tensor([0, 1])
    assert leep(theta, y, 2) == pytest.approx(leep(theta[:, :2], y, 2), abs=1e-15)


def test_leep_refuses_what_is_no_distribution() -> None:
    y = torch.tensor([0, 1])
    with pytest.raises(DataError, match="give the softmax"):
        leep(torch.tensor([[2.0, 1.0], [0.5, 0.5]]), y, 2)
    with pytest.raises(DataError, match="give the softmax"):
        leep(torch.tensor([[1.5, -0.5], [0.5, 0.5]]), y, 2)
    with pytest.raises(DataError, match="run from 0 to 1, expected 0 to 0"):
        leep(torch.full((2, 2), 0.5), y, 1)
    assert math.isfinite(leep(normal(2, 1000).half().softmax(1), y, 2))


def dense_hscore(f: Tensor, y: Tensor) -> float:
    middle = f.mean(0)
    means = torch.stack([f[y == c].mean(0) for c in y])
    between = (means - middle).T @ (means - middle) / len(f)
    return float((torch.linalg.pinv((f - middle).T @ (f - middle) / len(f), hermitian=True) @ between).trace())


@given(st.integers(20, 60), st.integers(1, 8), st.integers(2, 4), st.integers(0, 200))
@settings(max_examples=30, deadline=None)
def test_hscore_is_its_definition_and_within_its_range(count: int, width: int, classes: int, seed: int) -> None:
    f, y = normal(count, width, seed=seed), torch.arange(count) % classes
    assert hscore(f, y) == pytest.approx(dense_hscore(f, y), rel=1e-9)
    assert 0 <= hscore(f, y) <= min(width, classes - 1) + 1e-9


@pytest.mark.parametrize("shrinkage", [False, True])
def test_hscore_of_the_labels_themselves_and_of_constants(shrinkage: bool) -> None:
    y = torch.arange(60) % 4
    assert hscore(torch.ones(60, 5), y, shrinkage=shrinkage) == 0
    own = hscore(F.one_hot(y).double(), y, shrinkage=shrinkage)
    assert 2.5 < own < 3 if shrinkage else own == pytest.approx(3, abs=1e-9)


def test_hscore_knows_spans_alone() -> None:
    f, y = normal(50, 4) @ normal(4, 4, seed=1), torch.arange(50) % 3
    assert hscore(f @ normal(4, 4, seed=2), y) == pytest.approx(hscore(f, y), rel=1e-9)
    assert hscore(torch.cat([f, f[:, :2]], 1), y) == pytest.approx(hscore(f, y), rel=1e-9)
    assert hscore(f.float() + 100, y) == pytest.approx(hscore(f, y), rel=1e-3)


def test_with_as_many_features_as_samples_only_shrinkage_tells_good_from_noise() -> None:
    y = torch.arange(40) % 4
    good = torch.cat([F.one_hot(y) + 0.3 * normal(40, 4), 0.3 * normal(40, 76, seed=1)], 1)
    noise = normal(40, 80, seed=2)
    assert hscore(good, y) == pytest.approx(3) == hscore(noise, y)
    assert hscore(good, y, shrinkage=True) > 1.2 * hscore(noise, y, shrinkage=True)


@pytest.mark.parametrize("shrinkage", [False, True])
@pytest.mark.parametrize("width", [3, 30, 200])
def test_the_adjusted_hscore_is_zero_on_average_over_permutations(width: int, shrinkage: bool) -> None:
    count = 60
    f, y = normal(count, width) * torch.logspace(0, 1, width, dtype=torch.float64), torch.arange(count) % 5
    generator = torch.Generator().manual_seed(0)
    draws = [
        hscore(f, y[torch.randperm(count, generator=generator)], shrinkage=shrinkage, adjusted=True) for _ in range(300)
    ]
    deviation = float(np.std(draws))
    assert abs(np.mean(draws)) < 4 * deviation / 300**0.5 + 1e-9
    good = torch.cat([F.one_hot(y).double(), f[:, :0]], 1)
    assert hscore(good, y, adjusted=True) == pytest.approx(1)
    if shrinkage and width == 200:
        assert hscore(f, y, shrinkage=True) > 1  # of at most 4: this is what the adjustment is for


def test_isotropic_features_have_an_adjusted_hscore() -> None:
    """With full shrinkage the score and its largest value are 0; the adjusted score is the limit of their ratio."""
    y = torch.arange(120) % 4
    f = torch.stack([y % 2, y // 2], 1).double() + 0.05 * normal(120, 2)
    assert ledoit_wolf(f) == 1
    assert hscore(f, y, shrinkage=True) == 0
    score = hscore(f, y, shrinkage=True, adjusted=True)
    assert 0.95 < score <= 1
    stretched = f * torch.tensor([1.0, 1.5])  # less shrinkage
    assert ledoit_wolf(stretched) < 1
    assert hscore(stretched, y, shrinkage=True, adjusted=True) == pytest.approx(score, abs=0.02)
    assert abs(hscore(normal(120, 2), y, shrinkage=True, adjusted=True)) < 0.05


@given(st.integers(5, 40), st.integers(1, 50), st.integers(0, 200))
@settings(max_examples=30, deadline=None)
def test_the_shrinkage_is_that_of_ledoit_and_wolf(count: int, width: int, seed: int) -> None:
    f = centred(normal(count, width, seed=seed) * torch.logspace(0, 1, width, dtype=torch.float64))
    reference, alpha = reference_shrinkage(f.numpy(), assume_centered=True) if width > 1 else (None, 0.0)
    assert ledoit_wolf(f) == pytest.approx(alpha, abs=1e-12)
    if reference is not None:
        y = torch.arange(count) % 2
        means = torch.stack([f[y == c].mean(0) for c in y])
        between = means.T @ means / count
        dense = (1 - alpha) * float((torch.linalg.pinv(torch.from_numpy(reference), hermitian=True) @ between).trace())
        assert hscore(f, y, shrinkage=True) == pytest.approx(dense, rel=1e-8)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("k", [1, 5])
def test_neighbours_are_those_of_the_reference(metric: str, k: int) -> None:
    f, g = normal(120, 6), normal(70, 6, seed=1)
    y, z = (f[:, 0] > 0).long(), (g[:, 0] > 0).long()  # two classes and an odd k: no vote ties
    reference = KNeighborsClassifier(k, metric=metric).fit(f, y).score(g, z)
    assert knn_accuracy(f, y, g, z, k, metric) == pytest.approx(reference, abs=1e-12)
    values = KNeighborsRegressor(k, metric=metric).fit(f, f[:, :2]).predict(g)
    expected = r2_score(g[:, :2], values, multioutput="variance_weighted")
    assert knn_r2(f, f[:, :2], g, g[:, :2], k, metric) == pytest.approx(expected, abs=1e-12)


def test_neighbours_of_themselves_are_right() -> None:
    f, y = normal(30, 4), drawn(30, 3, 0)
    assert knn_accuracy(f, y, f, y, k=1) == 1
    assert knn_r2(f, f, f, f, k=1) == pytest.approx(1, abs=1e-12)


def test_ties_share_their_vote_whatever_the_order() -> None:
    f, y = torch.zeros(3, 2), torch.tensor([0, 0, 1])
    assert knn_accuracy(f, y, f[:1], torch.tensor([0]), k=1) == 1  # two thirds of the one vote
    assert knn_accuracy(f[1:], y[1:], f[:1], torch.tensor([1]), k=1) == 0.5
    assert knn_accuracy(f[1:].flip(0), y[1:].flip(0), f[:1], torch.tensor([1]), k=1) == 0.5
    assert knn_r2(f, torch.tensor([0.0, 1.0, 2.0]), f[:2], torch.tensor([0.0, 2.0]), k=2) == pytest.approx(0)


def test_more_neighbours_than_samples_and_classes_never_seen() -> None:
    f, y = normal(4, 2), torch.tensor([0, 0, 0, 1])
    assert knn_accuracy(f, y, f, y, k=50) == 0.75
    assert knn_accuracy(f, y, f, torch.full((4,), 9), k=1) == 0


def test_judging_in_parts_changes_nothing() -> None:
    f, g, y = normal(50, 3), normal(2100, 3, seed=1), drawn(50, 3, 0)
    z = drawn(2100, 3, 1)
    parts = [knn_accuracy(f, y, g[s : s + 700], z[s : s + 700]) for s in (0, 700, 1400)]
    assert knn_accuracy(f, y, g, z) == pytest.approx(sum(parts) / 3, abs=1e-12)


def test_neighbours_refuse() -> None:
    f, y = normal(4, 2), torch.tensor([0, 0, 1, 1])
    with pytest.raises(OptionError, match="k is the number of neighbours"):
        knn_accuracy(f, y, f, y, k=0)
    with pytest.raises(OptionError, match="euclidean or cosine"):
        knn_accuracy(f, y, f, y, metric="manhattan")  # type: ignore[arg-type]
    with pytest.raises(MismatchError, match="compute both with one network"):
        knn_accuracy(f, y, f[:, :1], y)
    with pytest.raises(MismatchError, match="the same columns"):
        knn_r2(f, f, f, f[:, :1])


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_leave_one_out_neighbours_are_those_of_all_other_samples(metric: Metric) -> None:
    rng = torch.Generator().manual_seed(0)
    f, y = torch.randn(40, 3, generator=rng), torch.randint(3, (40,), generator=rng)
    keep = [torch.arange(40) != i for i in range(40)]
    shares = [knn_accuracy(f[k], y[k], f[i : i + 1], y[i : i + 1], 5, metric) for i, k in enumerate(keep)]
    assert knn_accuracy(f, y, k=5, metric=metric) == pytest.approx(sum(shares) / 40, abs=1e-12)
    assert knn_accuracy(f, y, k=100, metric=metric) >= 0  # as many neighbours as there are others
    order = torch.randperm(40, generator=rng)
    assert knn_accuracy(f[order], y[order], metric=metric) == pytest.approx(knn_accuracy(f, y, metric=metric))
    assert knn_r2(f, f[:, :1], k=1, metric=metric) < 1  # no sample is its own neighbour


def test_leave_one_out_works_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = torch.Generator().manual_seed(1)
    f, y = torch.randn(50, 3, generator=rng), torch.randint(2, (50,), generator=rng)
    whole = knn_accuracy(f, y)
    monkeypatch.setattr("nearkin.distance.baselines.neighbours.ROWS", 7)
    assert knn_accuracy(f, y) == whole


def test_test_features_want_test_targets() -> None:
    f, y = torch.randn(10, 2), torch.arange(10) % 2
    with pytest.raises(MismatchError, match="give both, or neither for leave-one-out"):
        knn_accuracy(f, y, f)
