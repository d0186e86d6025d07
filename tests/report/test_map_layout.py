"""MapLayout: what lies in a plane is found again, and stress never rises above its start."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import procrustes

from nearkin.core.errors import MismatchError
from nearkin.distance.matrix import DistanceMatrix
from nearkin.report.map_layout import classical, layout, pairwise, planar, symmetric


def points(size: int, dimension: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(size, dimension))


@settings(max_examples=25, deadline=None)
@given(st.integers(3, 40), st.integers(0, 10**6))
def test_a_planar_configuration_is_recovered(size: int, seed: int) -> None:
    known = points(size, 2, seed)
    found = planar(pairwise(known))
    assert procrustes(known, found.points)[2] < 1e-6
    assert np.abs(pairwise(found.points) - pairwise(known)).max() < 1e-6
    assert found.stress < 1e-6


def test_missing_pairs_have_no_say() -> None:
    known = points(12, 2, 1)
    distances = pairwise(known)
    for a, b in ((0, 1), (3, 7), (5, 6), (0, 9)):
        distances[a, b] = distances[b, a] = np.nan
    assert procrustes(known, planar(distances).points)[2] < 1e-6


@pytest.mark.parametrize("size", [1, 2, 3])
def test_few_tasks_are_exact(size: int) -> None:
    known = points(size, 2)
    found = planar(pairwise(known))
    assert found.points.shape == (size, 2)
    assert np.abs(pairwise(found.points) - pairwise(known)).max() < 1e-9


def test_duplicates_coincide() -> None:
    known = points(9, 6)
    found = planar(pairwise(np.concatenate([known, known[:3]]))).points
    assert np.abs(found[:3] - found[9:]).max() < 1e-6
    assert pairwise(found[:9])[~np.eye(9, dtype=bool)].min() > 0.1


def test_all_at_one_place() -> None:
    found = planar(np.zeros((5, 5)))
    assert np.all(found.points == 0)
    assert found.stress == 0


@pytest.mark.parametrize("seed", range(5))
def test_stress_is_at_most_that_of_classical_scaling(seed: int) -> None:
    wanted = pairwise(points(20, 6, seed))
    start = pairwise(classical(wanted))
    before = np.sqrt(((start - wanted) ** 2).sum() / (wanted**2).sum())
    assert 0 < planar(wanted).stress < before


def test_four_equidistant_tasks_have_the_known_least_stress() -> None:
    """A square of side s and diagonal s√2: 4(s − 1)² + 2(s√2 − 1)² is least at s = (4 + 2√2)/8."""
    side = (4 + 2 * np.sqrt(2)) / 8
    least = np.sqrt((4 * (side - 1) ** 2 + 2 * (side * np.sqrt(2) - 1) ** 2) / 6)
    assert planar(1 - np.eye(4)).stress == pytest.approx(least, rel=1e-6)


def test_parts_without_a_known_pair_are_set_apart() -> None:
    distances = np.full((7, 7), np.nan)
    distances[:3, :3] = 1 - np.eye(3)
    distances[3:6, 3:6] = 1 - np.eye(3)
    found = planar(distances)
    assert found.stress < 1e-6
    between = pairwise(found.points)[:3, 3:]
    assert between.min() > 0.5
    assert pairwise(found.points)[6, :6].min() > 0.5


def test_same_seed_same_bits() -> None:
    wanted = pairwise(points(20, 6))
    assert np.array_equal(planar(wanted, seed=3).points, planar(wanted, seed=3).points)


def test_the_longer_axis_comes_first_and_the_centre_is_the_origin() -> None:
    found = planar(pairwise(points(20, 2) * (1, 5))).points
    assert np.ptp(found[:, 0]) > np.ptp(found[:, 1])
    assert np.abs(found.mean(0)).max() < 1e-9


def test_directions_are_averaged_and_negative_measures_shifted() -> None:
    values = torch.tensor([[[9.0, -0.5, 0.2], [-0.1, 9.0, 0.4], [0.4, torch.nan, 9.0]]], dtype=torch.float64)
    matrix = DistanceMatrix(("a", "b", "c"), "minus logme", values)
    both, shift = symmetric(matrix)
    assert shift == pytest.approx(-0.3)
    expected = [[0.0, 0.0, 0.6], [0.0, 0.0, 0.7], [0.6, 0.7, 0.0]]
    assert both.tolist() == [pytest.approx(row) for row in expected]
    assert layout(matrix).shift == shift


@pytest.mark.parametrize("bad", [np.zeros((2, 3)), np.array([[0.0, -1.0], [-1.0, 0.0]])])
def test_bad_dissimilarities_are_refused(bad: np.ndarray) -> None:
    with pytest.raises(MismatchError, match="dissimilarities"):
        planar(bad)
