"""Matrix-free spectra against dense eigenvalues."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

from nearkin.core.errors import DataError, MismatchError, OptionError
from nearkin.fisher import spectra
from nearkin.fisher.spectra import Product, log_determinant, top_eigenvalues, trace

SIZE = 60


def seeded(seed: int) -> Generator:
    return torch.Generator().manual_seed(seed)


def product(matrix: Tensor) -> Product:
    return lambda block: matrix @ block


def with_spectrum(values: Tensor, seed: int = 0) -> Tensor:
    size = len(values)
    turn = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=seeded(seed))).Q
    return turn * values @ turn.T


def decaying(seed: int = 0) -> Tensor:
    return with_spectrum(10.0 * torch.arange(1, SIZE + 1, dtype=torch.float64) ** -1.5, seed)


def dense_log_determinant(matrix: Tensor, scale: float) -> float:
    return float(torch.linalg.slogdet(torch.eye(len(matrix), dtype=matrix.dtype) + scale * matrix).logabsdet)


@pytest.mark.parametrize("method", ["hutchinson", "hutch++"])
def test_trace_lies_within_four_standard_errors_and_is_unbiased(method: str) -> None:
    matrix = decaying()
    found = [trace(product(matrix), SIZE, seeded(seed), 30, method) for seed in range(60)]
    truth = float(matrix.trace())
    assert sum(abs(one.value - truth) <= 4 * one.error for one in found) >= 58
    mean = sum(one.value for one in found) / len(found)
    assert abs(mean - truth) <= 4 * math.sqrt(sum(one.error**2 for one in found)) / len(found)


def test_the_stated_error_is_the_spread_over_seeds() -> None:
    matrix = decaying()
    found = [trace(product(matrix), SIZE, seeded(seed), 30) for seed in range(200)]
    spread = float(torch.tensor([one.value for one in found]).std())
    stated = math.sqrt(sum(one.error**2 for one in found) / len(found))
    assert 0.8 < stated / spread < 1.25


def test_hutchinson_is_exact_for_diagonal_matrices() -> None:
    values = torch.rand(SIZE, dtype=torch.float64, generator=seeded(0))
    found = trace(product(values.diag()), SIZE, seeded(1), 4)
    assert found.value == pytest.approx(float(values.sum()), rel=1e-14)
    assert found.error < 1e-14


@given(st.integers(1, 8), st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_hutch_plus_plus_is_exact_for_low_rank(rank: int, seed: int) -> None:
    root = torch.randn(SIZE, rank, dtype=torch.float64, generator=seeded(seed))
    found = trace(product(root @ root.T), SIZE, seeded(seed + 1), 3 * rank + 2, "hutch++")
    assert found.value == pytest.approx(float(root.square().sum()), rel=1e-10)
    assert found.error < 1e-8


def test_hutch_plus_plus_beats_hutchinson_on_a_falling_spectrum() -> None:
    matrix = decaying()
    plain = sum(trace(product(matrix), SIZE, seeded(seed), 30).error for seed in range(10))
    assert sum(trace(product(matrix), SIZE, seeded(seed), 30, "hutch++").error for seed in range(10)) < plain / 2


@pytest.mark.parametrize("k", [1, 5, 20, SIZE])
def test_top_eigenvalues_and_vectors(k: int) -> None:
    matrix = decaying()
    found = top_eigenvalues(product(matrix), SIZE, k, seeded(0), tol=1e-8)
    assert torch.allclose(found.values, torch.linalg.eigvalsh(matrix).flip(0)[:k], atol=1e-7)
    assert torch.allclose(found.vectors.T @ found.vectors, torch.eye(k, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(matrix @ found.vectors, found.vectors * found.values, atol=1e-7)
    assert float(found.errors.max()) <= 1e-7


def test_top_eigenvalues_of_a_large_matrix_after_many_restarts() -> None:
    values = torch.linspace(0, 1, 1500, dtype=torch.float64).square()
    found = top_eigenvalues(lambda block: values[:, None] * block, 1500, 6, seeded(0), tol=1e-5)
    assert torch.allclose(found.values, values.flip(0)[:6], atol=1e-5)


def test_repeated_eigenvalues_are_found_as_often_as_they_are_there() -> None:
    values = torch.cat([torch.full((4,), 7.0), torch.full((3,), 2.0), torch.zeros(SIZE - 7)]).double()
    found = top_eigenvalues(product(with_spectrum(values)), SIZE, 9, seeded(0))
    assert torch.allclose(found.values, values[:9], atol=1e-10)


def test_top_eigenvalues_of_zero_are_zero() -> None:
    assert top_eigenvalues(torch.zeros_like, 5, 2, seeded(0)).values.tolist() == [0, 0]
    assert log_determinant(torch.zeros_like, 5, 3.0, seeded(0)).value == 0
    assert trace(torch.zeros_like, 5, seeded(0), 8, "hutch++").value == 0


def test_too_few_steps_for_top_eigenvalues_say_so() -> None:
    with pytest.raises(OptionError, match=r"2 steps left a residual of .*expected 1e-12; raise steps or tol"):
        top_eigenvalues(product(decaying()), SIZE, 3, seeded(0), tol=1e-12, steps=2)


@pytest.mark.parametrize("scale", [0.1, 10.0, 1e4])
@pytest.mark.parametrize("steps", [4, 20])
def test_log_determinant_lies_within_four_standard_errors(scale: float, steps: int) -> None:
    matrix = decaying()
    truth = dense_log_determinant(matrix, scale)
    found = [log_determinant(product(matrix), SIZE, scale, seeded(seed), 8, steps) for seed in range(40)]
    assert sum(abs(one.value - truth) <= 4 * one.error for one in found) >= 39


@given(st.lists(st.floats(0, 100), min_size=1, max_size=4), st.floats(0, 1e3), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_log_determinant_is_exact_for_diagonals_of_few_distinct_values(
    values: list[float], scale: float, seed: int
) -> None:
    diagonal = torch.tensor(values, dtype=torch.float64).repeat(7)
    found = log_determinant(lambda block: diagonal[:, None] * block, len(diagonal), scale, seeded(seed), 3, 6)
    truth = float((scale * diagonal).log1p().sum())
    assert found.value == pytest.approx(truth, rel=1e-8, abs=1e-8)
    assert found.error <= 1e-6 * max(1.0, truth)


@pytest.mark.parametrize("steps", [1, 3, 8, 15])
def test_the_bracket_of_each_probe_holds_its_quadratic_form_and_narrows(steps: int) -> None:
    matrix, scale = decaying(), 5.0
    z = torch.randn(SIZE, 6, dtype=torch.float64, generator=seeded(3))
    values, turn = torch.linalg.eigh(matrix)
    truth = ((turn.T @ z / z.norm(dim=0)).square() * (scale * values).log1p()[:, None]).sum(0)
    alphas, betas = spectra._lanczos(product(matrix), z, steps)
    upper = spectra._quadrature(alphas, betas, scale, torch.log1p)
    lower = spectra._quadrature(spectra._radau(alphas, betas), betas, scale, torch.log1p)
    assert bool((lower <= truth + 1e-12).all())
    assert bool((truth <= upper + 1e-12).all())
    assert float((upper - lower).max()) < 2.0 * 0.75**steps


def test_full_length_lanczos_leaves_no_truncation() -> None:
    matrix = decaying()[:12, :12]
    z = torch.randn(12, 5, dtype=torch.float64, generator=seeded(3))
    alphas, betas = spectra._lanczos(product(matrix), z, 12)
    values, turn = torch.linalg.eigh(matrix)
    truth = ((turn.T @ z / z.norm(dim=0)).square() * (9.0 * values).log1p()[:, None]).sum(0)
    assert torch.allclose(spectra._quadrature(alphas, betas, 9.0, torch.log1p), truth, atol=1e-10)


def test_probes_in_groups_give_the_same_as_together(monkeypatch: pytest.MonkeyPatch) -> None:
    together = log_determinant(product(decaying()), SIZE, 2.0, seeded(0), 150, 10)
    monkeypatch.setattr(spectra, "MEMORY", 3 * SIZE * 10)
    apart = log_determinant(product(decaying()), SIZE, 2.0, seeded(1), 150, 10)
    assert abs(together.value - apart.value) <= 4 * math.hypot(together.error, apart.error)


def test_single_precision_is_kept() -> None:
    matrix = decaying().float()
    seen = set()

    def apply(block: Tensor) -> Tensor:
        seen.add(block.dtype)
        return matrix @ block

    found = log_determinant(apply, SIZE, 10.0, seeded(0), 8, 20, torch.float32)
    assert abs(found.value - dense_log_determinant(matrix.double(), 10.0)) <= 4 * found.error
    assert top_eigenvalues(apply, SIZE, 2, seeded(0), 1e-4, dtype=torch.float32).values[0] == pytest.approx(
        10, rel=1e-4
    )
    assert trace(apply, SIZE, seeded(0), dtype=torch.float32).value > 0
    assert seen == {torch.float32}


def test_the_same_seed_gives_the_same_estimate() -> None:
    first, second = (log_determinant(product(decaying()), SIZE, 1.0, seeded(5)) for _ in range(2))
    assert first == second


CALLS: dict[str, Callable[[Product, int], object]] = {
    "trace": lambda apply, size: trace(apply, size, seeded(0)),
    "hutch++": lambda apply, size: trace(apply, size, seeded(0), method="hutch++"),
    "top": lambda apply, size: top_eigenvalues(apply, size, 1, seeded(0)),
    "log": lambda apply, size: log_determinant(apply, size, 1.0, seeded(0)),
}


@pytest.mark.parametrize("call", CALLS)
def test_bad_products_and_sizes(call: str) -> None:
    with pytest.raises(DataError, match="the product is not finite"):
        CALLS[call](lambda block: block / 0, 5)
    with pytest.raises(MismatchError, match=r"the product gives shape \(4, .* for vectors of shape \(5, "):
        CALLS[call](lambda block: block[1:], 5)
    for size in (0, -3):
        with pytest.raises(OptionError, match=f"count of weights >= 1, got {size}"):
            CALLS[call](lambda block: block, size)


def test_an_indefinite_product_is_refused() -> None:
    with pytest.raises(DataError, match="eigenvalue of -1 beside one of 1, expected none below 0"):
        log_determinant(lambda block: torch.tensor([[1.0], [-1.0]]).double() * block, 2, 1.0, seeded(0))


def test_options_out_of_range() -> None:
    for wrong, call in {
        "got 1": lambda: trace(product(decaying()), SIZE, seeded(0), 1),
        "4 probes or more, got 3": lambda: trace(product(decaying()), SIZE, seeded(0), 3, "hutch++"),
        "unknown trace method 'guess'": lambda: trace(product(decaying()), SIZE, seeded(0), 8, "guess"),
        "from 1 to 60, .* got 61": lambda: top_eigenvalues(product(decaying()), SIZE, 61, seeded(0)),
        "got 0": lambda: top_eigenvalues(product(decaying()), SIZE, 0, seeded(0)),
        "tol must be > 0": lambda: top_eigenvalues(product(decaying()), SIZE, 1, seeded(0), tol=0.0),
        "got -1.0": lambda: log_determinant(product(decaying()), SIZE, -1.0, seeded(0)),
        "got nan": lambda: log_determinant(product(decaying()), SIZE, math.nan, seeded(0)),
        "got 1 and 40": lambda: log_determinant(product(decaying()), SIZE, 1.0, seeded(0), 1),
        "got 16 and 0": lambda: log_determinant(product(decaying()), SIZE, 1.0, seeded(0), steps=0),
    }.items():
        with pytest.raises(OptionError, match=wrong):
            call()
