"""Scores of a shared table of features, and of parts of its samples, are those of the features alone."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nearkin.core.errors import DataError
from nearkin.distance.baselines import cka, hscore, knn_accuracy
from nearkin.distance.baselines.feature_table import Features, FeatureTable

SCORES: dict[str, Callable[[Features, Tensor], float]] = {
    "hscore": hscore,
    "shrunk hscore": lambda f, y: hscore(f, y, shrinkage=True),
    "adjusted hscore": lambda f, y: hscore(f, y, shrinkage=True, adjusted=True),
    "cka": cka,
    "adjusted cka": lambda f, y: cka(f, y, adjusted=True),
    "knn": knn_accuracy,
    "knn by cosine": lambda f, y: knn_accuracy(f, y, metric="cosine"),
}


def sample(count: int, width: int, seed: int, spread: float) -> tuple[Tensor, Tensor]:
    """Features whose columns have scales between 1 / spread and spread, far from 0, and labels of three classes."""
    rng = torch.Generator().manual_seed(seed)
    scales = spread ** (2 * torch.rand(width, generator=rng, dtype=torch.float64) - 1)
    table = scales * (5 + torch.randn(count, width, generator=rng, dtype=torch.float64))
    table[:, 0] = 7.0  # constant
    return table, torch.arange(count) % 3


@given(st.integers(12, 40), st.integers(2, 60), st.integers(0, 1000), st.sampled_from([1.0, 30.0, 1e3]))
@settings(max_examples=60, deadline=None)
def test_parts_of_a_table_score_as_their_features_alone(count: int, width: int, seed: int, spread: float) -> None:
    f, y = sample(count, width, seed, spread)
    kept = torch.randperm(count, generator=torch.Generator().manual_seed(seed))[: count * 3 // 4].sort().values
    if len(y[kept].unique()) < 2:
        return
    table = FeatureTable.of(f)
    part = table.chosen(kept)
    for name, score in SCORES.items():
        assert score(table, y) == pytest.approx(score(f, y), rel=1e-9, abs=1e-10), name
        assert score(part, y[kept]) == pytest.approx(score(f[kept], y[kept]), rel=1e-7, abs=1e-9), name


def test_a_part_without_the_outlier_of_its_table_keeps_its_digits() -> None:
    f, y = sample(20, 50, 0, 1.0)
    f[0] *= 1e9
    part = FeatureTable.of(f).chosen(torch.arange(1, 20))
    assert torch.equal(part.gram, FeatureTable.of(f[1:]).gram)
    assert hscore(part, y[1:], shrinkage=True) == pytest.approx(hscore(f[1:], y[1:], shrinkage=True), rel=1e-12)


@pytest.mark.parametrize("width", [4, 30])
def test_the_gram_matrix_is_computed_once_and_is_the_smaller_product(width: int) -> None:
    f, _ = sample(10, width, 1, 1.0)
    table = FeatureTable.of(f)
    middle = f - f.mean(0)
    dense = middle @ middle.T if width > 10 else middle.T @ middle
    torch.testing.assert_close(table.gram, dense, rtol=1e-12, atol=1e-12)
    assert table.gram is table.gram
    assert len(table.gram) == min(width, 10)
    assert FeatureTable.of(table) is table


def test_a_table_refuses_what_is_no_feature() -> None:
    with pytest.raises(DataError, match="1 of 4 features are NaN or infinite, first in sample 1"):
        FeatureTable.of(torch.tensor([[0.0, 1.0], [float("nan"), 1.0]]))
