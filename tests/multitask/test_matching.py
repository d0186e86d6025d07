"""Matching of distributions against another implementation, closed forms and finite differences."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nearkin.core.errors import DataError, MismatchError, OptionError
from nearkin.distance.baselines.dataset import mmd
from nearkin.multitask.matching import (
    MatchingOptions,
    embedding_distance,
    match_encoders,
    set_differences,
    similarity_distance,
    weight_distance,
)


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 8), st.integers(1, 5))
def test_two_sets_are_compared_as_the_measure_mmd_does(seed: int, count: int, width: int) -> None:
    sets = drawn(seed, 2, count, width)
    found = set_differences(sets)
    assert float(found[0, 1]) == pytest.approx(mmd(sets[0], sets[1]), abs=1e-6)
    torch.testing.assert_close(found, found.T)
    assert float(found.diagonal().abs().max()) == 0


def test_a_linear_kernel_is_the_distance_of_means_without_bias() -> None:
    """Of samples of N(0, I) and N(m, I) the expectation is |m|², for every number of samples."""
    shift = torch.tensor([0.5, -1.0], dtype=torch.float64)
    values = []
    for seed in range(400):
        sets = drawn(seed, 2, 4, 2)
        sets[1] += shift
        values.append(float(set_differences(sets, MatchingOptions("linear"))[0, 1]))
    mean, error = torch.tensor(values).mean(), torch.tensor(values).std() / math.sqrt(len(values))
    assert abs(float(mean) - float(shift.square().sum())) < 4 * float(error)
    assert min(values) < 0, "the unbiased estimate may be below zero"


@pytest.mark.parametrize("kernel", ["rbf", "linear", "multiscale"])
def test_the_gradient_is_that_of_finite_differences(kernel: str) -> None:
    teacher, student = drawn(1, 5, 4, 3), drawn(2, 5, 4, 2)
    free = MatchingOptions(kernel, bandwidth=1.3)  # type: ignore[arg-type]
    middle = sum(float(set_differences(z, free).median()) for z in (teacher, student)) / 2
    options = replace(free, threshold=middle)
    student.requires_grad_()
    assert 0 < match_encoders(teacher, student, options).active < 1
    assert torch.autograd.gradcheck(lambda z: match_encoders(teacher, z, options).loss, (student,), eps=1e-6, atol=1e-6)


def test_the_printed_threshold_is_never_active() -> None:
    for seed in range(10):
        teacher, student = drawn(seed, 8, 6, 4), (50 * drawn(seed + 100, 8, 6, 4)).requires_grad_()
        found = match_encoders(teacher, student, MatchingOptions(bandwidth=0.1, threshold=5.0))
        found.loss.backward()
        assert (float(found.loss.detach()), found.active) == (0.0, 0.0)
        assert student.grad is not None
        assert float(student.grad.abs().max()) == 0.0


@pytest.mark.parametrize("quantile", [0.25, 0.5, 0.75])
def test_a_quantile_divides_the_pairs_and_independent_encoders_disagree_by_chance(quantile: float) -> None:
    shares = []
    for seed in range(8):
        found = match_encoders(drawn(seed, 14, 5, 6), drawn(seed + 50, 14, 5, 6), MatchingOptions(quantile=quantile))
        shares.append(found.active)
    chance = 2 * quantile * (1 - quantile)
    assert abs(sum(shares) / len(shares) - chance) < 0.06


def test_equal_encoders_agree_on_every_pair() -> None:
    z = drawn(3, 9, 4, 5)
    found = match_encoders(z, 3 * z)  # the bandwidth follows the scale
    assert (float(found.loss), found.agreement) == (0.0, 1.0)


def test_the_loss_is_the_printed_sum_over_pairs() -> None:
    teacher, student = drawn(0, 5, 3, 2), drawn(1, 5, 3, 4)
    options = MatchingOptions(threshold=0.3)
    ours, theirs = set_differences(student, options), set_differences(teacher, options)
    pairs = [(i, j) for j in range(5) for i in range(j)]
    terms = [max(0.0, -(float(theirs[pair]) - 0.3) * (float(ours[pair]) - 0.3)) for pair in pairs]
    found = match_encoders(teacher, student, options)
    assert float(found.loss) == pytest.approx(sum(terms), rel=1e-12)
    assert found.active == sum(term > 0 for term in terms) / len(pairs)


def test_descent_on_the_loss_raises_the_agreement() -> None:
    gains = []
    for seed in range(4):
        x = drawn(seed, 12, 5, 8).float()
        torch.manual_seed(seed)
        teacher, student = (nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)) for _ in range(2))
        with torch.no_grad():
            goal = teacher(x)
        optimiser = torch.optim.Adam(student.parameters(), 1e-2)
        before = match_encoders(goal, student(x)).agreement
        for _ in range(60):
            optimiser.zero_grad()
            match_encoders(goal, student(x)).loss.backward()
            optimiser.step()
        gains.append(match_encoders(goal, student(x)).agreement - before)
    assert min(gains) > 0.05
    assert sum(gains) / len(gains) > 0.15


def test_other_distances_are_zero_for_equal_encoders_and_ignore_other_heads() -> None:
    z, weights = drawn(0, 6, 3), {"w": drawn(1, 4), "head": drawn(2, 3)}
    assert float(embedding_distance(z, z)) == 0
    assert float(similarity_distance(z, 5 * z)) == pytest.approx(0, abs=1e-12)
    assert float(weight_distance(weights, {"w": weights["w"] + 2, "head": drawn(3, 7)})) == pytest.approx(4)


def test_bad_input_is_one_line() -> None:
    z = drawn(0, 4, 3, 2)
    for call in (
        lambda: set_differences(z[:, :1]),
        lambda: set_differences(z[0]),
        lambda: match_encoders(z, z[:3]),
        lambda: match_encoders(z[:2], z[:2]),
        lambda: embedding_distance(z[0], z[0, :, :1]),
        lambda: weight_distance({"a": z}, {"b": z}),
    ):
        with pytest.raises((DataError, MismatchError)) as error:
            call()
        assert "\n" not in str(error.value)
    for options in ({"kernel": "cubic"}, {"quantile": 1.0}, {"bandwidth": 0.0}, {"threshold": math.nan}):
        with pytest.raises(OptionError):
            MatchingOptions(**options)
