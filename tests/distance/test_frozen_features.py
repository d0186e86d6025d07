"""CKA, leave-one-out ridge, gradient flow, MMD, FID and Task2Vec against their definitions, done the long way."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.linalg import sqrtm
from torch import Tensor

from nearkin.core.errors import DataError, MismatchError, OptionError
from nearkin.distance.baselines import (
    cka,
    fid,
    gradient_flow,
    mmd,
    random_order,
    ridge_loo,
    task2vec_asymmetric,
    task2vec_distance,
)
from nearkin.distance.baselines.frozen_features import RIDGES
from nearkin.fisher.values import FisherDiagonal


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def rotation(size: int, seed: int = 0) -> Tensor:
    return torch.linalg.qr(normal(size, size, seed=seed)).Q


def dense_cka(a: Tensor, b: Tensor) -> float:
    middle = torch.eye(len(a), dtype=torch.float64) - 1 / len(a)
    k, m = middle @ a @ a.T @ middle, middle @ b @ b.T @ middle
    return float((k * m).sum() / (k.norm() * m.norm()))


@given(st.integers(3, 20), st.integers(1, 30), st.integers(1, 30), st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_cka_is_that_of_the_gram_matrices(count: int, width: int, other: int, seed: int) -> None:
    a, b = normal(count, width, seed=seed), 2 + normal(count, other, seed=seed + 1)
    found = cka(a, b)
    assert found == pytest.approx(dense_cka(a, b), abs=1e-10)
    assert found == pytest.approx(cka(b, a), abs=1e-12)
    assert 0 <= found <= 1


@pytest.mark.parametrize("width", [2, 20, 300])
def test_the_adjusted_cka_is_zero_on_average_over_permutations(width: int) -> None:
    a, b = normal(40, width), normal(40, 3, seed=1)
    generator = torch.Generator().manual_seed(0)
    draws = [cka(a, b[torch.randperm(40, generator=generator)], adjusted=True) for _ in range(300)]
    assert abs(np.mean(draws)) < 4 * float(np.std(draws)) / 300**0.5
    assert cka(a, a, adjusted=True) == pytest.approx(1)
    assert cka(torch.ones(40, 2), b, adjusted=True) == 0


def test_cka_knows_no_rotation_no_scale_and_no_shift() -> None:
    a = normal(30, 6)
    assert cka(a, 7 * a @ rotation(6) - 3) == pytest.approx(1, abs=1e-12)
    y = torch.arange(30) % 3
    assert cka(a, y) == pytest.approx(dense_cka(a, F.one_hot(y).double()), abs=1e-12)
    assert cka(torch.ones(30, 2), y) == 0


@pytest.mark.parametrize(("count", "width"), [(14, 3), (9, 20)])
def test_leaving_one_out_is_leaving_one_out(count: int, width: int) -> None:
    f, y = 1 + normal(count, width), normal(count, 2, seed=1)
    y[:, 0] += f[:, 0]
    spread = f - f.mean(0)
    top, errors = float(torch.linalg.svdvals(spread)[0]) ** 2, []
    for ridge in RIDGES[12:]:  # smaller ones are solved poorly the long way
        total = 0.0
        for n in range(count):
            keep = torch.arange(count) != n
            x, t = f[keep], y[keep]
            inner = x - x.mean(0)
            price = torch.eye(width, dtype=torch.float64) * min(ridge, 1e12) * top
            weight = torch.linalg.solve(inner.T @ inner + price, inner.T @ (t - t.mean(0)))
            total += float((y[n] - t.mean(0) - (f[n] - x.mean(0)) @ weight).square().sum())
        errors.append(total / float((y - y.mean(0)).square().sum()))
    assert ridge_loo(f, y) == pytest.approx(min(errors), rel=1e-6)


@given(st.integers(3, 30), st.integers(1, 40), st.integers(0, 100), st.floats(0.01, 100))
@example(3, 3, 0, 0.125)  # the mean's rounding is no third direction
@settings(max_examples=30, deadline=None)
def test_ridge_never_does_worse_than_the_mean(count: int, width: int, seed: int, scale: float) -> None:
    f, y = normal(count, width, seed=seed), normal(count, 1, seed=seed + 1)
    found = ridge_loo(f, y)
    assert 0 <= found <= (count / (count - 1)) ** 2 + 1e-12
    assert ridge_loo(scale * f @ rotation(width) + 5, 3 * y - 1) == pytest.approx(found, rel=1e-6)


def test_ridge_of_labels() -> None:
    y = torch.arange(40) % 4
    good = F.one_hot(y).double() + 0.1 * normal(40, 4)
    assert ridge_loo(good, y) == pytest.approx(ridge_loo(good, F.one_hot(y).double()), abs=1e-12)
    assert ridge_loo(good, y) < 0.2 < ridge_loo(normal(40, 4, seed=1), y)
    assert ridge_loo(torch.zeros(40, 2), y) == pytest.approx((40 / 39) ** 2, abs=1e-12)


@pytest.mark.parametrize(("count", "width"), [(12, 3), (8, 8), (6, 15)])
def test_gradient_flow_is_the_area_under_the_flow(count: int, width: int) -> None:
    f, y = normal(count, width) + 0.5, normal(count, 2, seed=1)
    y = y - y.mean(0)

    def loss(time: float) -> float:
        return float((torch.linalg.matrix_exp(-time / count * f @ f.T) @ y).square().sum() / y.square().sum())

    for end in (0.3, 2.0, 20.0):
        assert gradient_flow(f, y, end) == pytest.approx(quad(loss, 0, end, epsabs=1e-11)[0] / end, abs=1e-8)
    several = [gradient_flow(f, y, end) for end in (0.3, 2.0, 20.0)]
    assert gradient_flow(f, y, (0.3, 2.0, 20.0)) == pytest.approx(sum(several) / 3, abs=1e-12)
    assert 1 > several[0] > several[1] > several[2] > 0
    assert gradient_flow(f, y + 9) == pytest.approx(gradient_flow(f, y), abs=1e-12)


def test_gradient_flow_at_the_ends_of_time() -> None:
    f, y = normal(20, 3), torch.arange(20) % 2
    assert gradient_flow(f, y, 1e-9) == pytest.approx(1, abs=1e-6)
    hot = F.one_hot(y).double()
    hot = hot - hot.mean(0)
    left = hot - f @ torch.linalg.lstsq(f, hot).solution
    assert gradient_flow(f, y, 1e9) == pytest.approx(float(left.square().sum() / hot.square().sum()), abs=1e-6)
    with pytest.raises(OptionError, match="times must be"):
        gradient_flow(f, y, (1.0, 0.0))


def mmd_by_loops(a: Tensor, b: Tensor) -> float:
    everyone = torch.cat([a, b])
    apart = torch.tensor([float((x - z).norm()) for x, z in combinations(everyone, 2)], dtype=torch.float64)
    pairs = torch.cat([apart[apart > 0], apart[apart > 0]])
    h = float(pairs.median())

    def mean(x: Tensor, z: Tensor, same: bool) -> float:
        values = [math.exp(-float((p - q).square().sum()) / (2 * h * h))
                  for i, p in enumerate(x) for j, q in enumerate(z) if not (same and i == j)]  # fmt: skip
        return sum(values) / len(values)

    return mean(a, a, True) + mean(b, b, True) - 2 * mean(a, b, False)


def test_mmd_is_its_definition() -> None:
    a, b = normal(7, 3) + 50, 1.5 * normal(9, 3, seed=1) + 50.5
    assert mmd(a, b) == pytest.approx(mmd_by_loops(a, b), abs=1e-12)
    assert mmd(b, a) == pytest.approx(mmd(a, b), abs=1e-12)
    assert mmd(100 * a @ rotation(3) + 1, 100 * b @ rotation(3) + 1) == pytest.approx(mmd(a, b), abs=1e-10)


def test_mmd_is_unbiased() -> None:
    everyone = normal(8, 2)
    halves = [list(chosen) for chosen in combinations(range(8), 4)]
    values = [mmd(everyone[half], everyone[[i for i in range(8) if i not in half]]) for half in halves]
    assert sum(values) / len(values) == pytest.approx(0, abs=1e-12)
    assert min(values) < 0 < max(values)


def test_mmd_grows_with_the_shift() -> None:
    a, b = normal(60, 4), normal(60, 4, seed=1)
    values = [mmd(a, b + shift) for shift in (0.0, 0.5, 1.0, 2.0)]
    assert values == sorted(values)
    assert values[0] < 0.02


def test_fid_is_its_definition() -> None:
    a, b = normal(40, 5) @ normal(5, 5, seed=2), normal(30, 5, seed=1) + 1
    left, right = a.T.cov().numpy(), b.T.cov().numpy()
    cross = sqrtm(left @ right).real.trace()
    expected = float((a.mean(0) - b.mean(0)).square().sum()) + left.trace() + right.trace() - 2 * cross
    assert fid(a, b) == pytest.approx(expected, rel=1e-9)
    assert fid(b, a) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("count", "width"), [(20, 3), (5, 30)])
def test_fid_knows_shifts_scales_and_itself(count: int, width: int) -> None:
    a = normal(count, width)
    spread = float((a - a.mean(0)).square().sum()) / (count - 1)
    assert fid(a, a) == pytest.approx(0, abs=1e-12)
    assert fid(a, a + 2) == pytest.approx(4 * width, rel=1e-9)
    centred = a - a.mean(0)
    assert fid(centred, 3 * centred) == pytest.approx(4 * spread, rel=1e-9)


def fisher(*layers: Tensor, bias: float = 1.0) -> FisherDiagonal:
    values = {f"{i}.weight": layer for i, layer in enumerate(layers)}
    return FisherDiagonal({**values, "0.bias": torch.tensor([bias])}, "observed", 10)


def test_task2vec_is_the_cosine_of_shares() -> None:
    a, b = normal(6, 4, 3).square(), normal(6, 4, 3, seed=1).square()
    x, y = a.mean((1, 2)), b.mean((1, 2))
    expected = 1 - float(F.cosine_similarity(x / (x + y), y / (x + y), dim=0))
    assert task2vec_distance(fisher(a), fisher(b)) == pytest.approx(expected, abs=1e-12)
    assert task2vec_distance(fisher(b), fisher(a, bias=9.0)) == pytest.approx(expected, abs=1e-12)
    assert task2vec_distance(fisher(a), fisher(100 * a)) == pytest.approx(0, abs=1e-12)


def test_filters_that_both_ignore_say_nothing() -> None:
    a, b = torch.tensor([[1.0], [2.0], [0.0]]), torch.tensor([[3.0], [1.0], [0.0]])
    assert task2vec_distance(fisher(a), fisher(b)) == pytest.approx(task2vec_distance(fisher(a[:2]), fisher(b[:2])))


def test_the_asymmetric_form_takes_off_the_sources_complexity() -> None:
    a, b = normal(6, 4).square(), normal(6, 4, seed=1).square()
    even = a.mean().expand(6, 4)
    apart, own = task2vec_distance(fisher(a), fisher(b)), task2vec_distance(fisher(a), fisher(even))
    assert task2vec_asymmetric(fisher(a), fisher(b)) == pytest.approx(apart - 0.15 * own, abs=1e-12)
    assert task2vec_asymmetric(fisher(a), fisher(b), alpha=0) == apart
    assert task2vec_asymmetric(fisher(a), fisher(b), trivial=fisher(b)) == pytest.approx(0.85 * apart, abs=1e-12)


def test_heads_are_left_out_or_refused() -> None:
    body, wide, narrow = normal(4, 3).square(), normal(5, 4).square(), normal(2, 4).square()
    a, b = fisher(body, wide), fisher(2 * body, narrow)
    assert task2vec_distance(a, b, head="1") == pytest.approx(0, abs=1e-12)
    with pytest.raises(MismatchError, match=r"filters of 1\.weight; .*head="):
        task2vec_distance(a, b)
    with pytest.raises(DataError, match="no weight with two axes"):
        task2vec_distance(FisherDiagonal({"0.bias": torch.ones(3)}, "observed", 1), a)
    with pytest.raises(DataError, match="zero everywhere"):
        task2vec_distance(fisher(torch.zeros(2, 2)), fisher(torch.ones(2, 2)))


def test_random_orders_are_fair_and_repeatable() -> None:
    names = ["a", "b", "c"]
    orders = [tuple(random_order(names, seed)) for seed in range(300)]
    counts = {order: orders.count(order) for order in set(orders)}
    assert len(counts) == 6
    assert min(counts.values()) > 25
    assert orders[7] == tuple(random_order(reversed(names), 7))
    assert random_order([], 0) == []
