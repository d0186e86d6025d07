"""Complexity against closed forms, bounds between curvatures, and bad input."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, kl_divergence

import nearkin as nk
from nearkin.core.errors import NearkinError
from nearkin.distance.information.curvature import CurvatureOptions, Eigenvalues, measure_curvature
from nearkin.distance.information.task_complexity import Complexity, WeightPrior, complexity
from nearkin.distance.information.variational import minimise_over_covariance, optimal_covariance
from nearkin.distance.reachability.escape import effective_potential
from nearkin.distance.reachability.potentials import NetworkPotential


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def ridge(x: Tensor, y: Tensor, variance: float, centre: Tensor) -> nn.Module:
    """Linear regression with unit noise at the minimum of loss plus prior."""
    net = nn.Linear(x.shape[1], 1, bias=False).double()
    precision = x.T @ x + torch.eye(x.shape[1]) / variance
    net.weight.data = torch.linalg.solve(precision, x.T @ y + centre[:, None] / variance).T
    return net


def small_network(seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).eval()
    return net, normal(40, 6, seed=seed).float(), torch.randint(3, (40,), generator=seeded(seed))


class TestLinearRegression:
    @given(seed=st.integers(0, 1000), variance=st.floats(0.1, 10.0))
    @settings(max_examples=15)
    def test_complexity_at_beta_one_is_minus_the_log_evidence(self, seed: int, variance: float) -> None:
        x, y, centre = normal(25, 4, seed=seed), normal(25, 1, seed=seed + 1), normal(4, seed=seed + 2)
        net = ridge(x, y, variance, centre)
        found = complexity(
            net, x, y, likelihood="gaussian", prior=WeightPrior(variance=variance), prior_mean={"weight": centre[None]}
        )
        evidence = MultivariateNormal(x @ centre, torch.eye(25).double() + variance * x @ x.T).log_prob(y[:, 0])
        assert abs(found.complexity + float(evidence)) < 1e-8

    def test_information_is_the_divergence_of_the_posterior_from_the_prior(self) -> None:
        x, y = normal(25, 4, seed=0), normal(25, 1, seed=1)
        net = ridge(x, y, 2.0, torch.zeros(4).double())
        found = complexity(net, x, y, likelihood="gaussian", prior=WeightPrior(variance=2.0))
        covariance = optimal_covariance(x.T @ x, 1.0, 2.0)
        posterior = MultivariateNormal(next(net.parameters()).detach()[0], covariance)
        divergence = kl_divergence(posterior, MultivariateNormal(torch.zeros(4).double(), 2.0 * torch.eye(4).double()))
        assert math.isclose(found.information, float(divergence), rel_tol=1e-10)
        assert math.isclose(found.information_bits * math.log(2), found.information)
        assert math.isclose(found.complexity, found.expected_loss + found.information, rel_tol=1e-12)

    def test_weight_decay_gives_the_prior_of_the_mean_loss(self) -> None:
        x, y = normal(25, 4, seed=0), normal(25, 1, seed=1)
        net = ridge(x, y, 2.0, torch.zeros(4).double())
        by_decay = complexity(net, x, y, likelihood="gaussian", prior=WeightPrior(decay=1 / (25 * 2.0)))
        by_variance = complexity(net, x, y, likelihood="gaussian", prior=WeightPrior(variance=2.0))
        assert math.isclose(by_decay.complexity, by_variance.complexity, rel_tol=1e-12)


class TestCovariance:
    @pytest.mark.parametrize("beta", [0.3, 1.0, 4.0])
    @pytest.mark.parametrize("form", ["full", "diagonal"])
    def test_the_closed_form_is_the_numerical_minimum(self, beta: float, form: str) -> None:
        root = normal(6, 6, seed=0)
        h = 3 * root @ root.T
        found = minimise_over_covariance(
            lambda w: 0.5 * torch.einsum("ki,ij,kj->k", w, h, w), torch.zeros(6), beta, 1.3, form=form, rng=seeded(1)
        )
        used = h if form == "full" else torch.diag(h.diagonal())
        expected = optimal_covariance(used, beta, 1.3)
        assert torch.allclose(found.covariance, expected, atol=1e-6 * float(expected.max()))
        log_determinant = torch.logdet(torch.eye(6).double() + 1.3 / beta * used)
        assert abs(found.complexity - beta / 2 * float(log_determinant)) < 1e-8

    def test_any_other_covariance_costs_more(self) -> None:
        root = normal(5, 5, seed=2)
        h, beta, variance = root @ root.T, 0.7, 1.5
        best = optimal_covariance(h, beta, variance)

        def cost(sigma: Tensor) -> float:
            return float(0.5 * (h @ sigma).trace() + beta / 2 * (sigma.trace() / variance - sigma.logdet()))

        for seed in range(20):
            change = normal(5, 5, seed=seed)
            other = best + 0.1 * float(best.diagonal().min()) * (change + change.T) / change.norm()
            assert cost(other) > cost(best)

    def test_softmax_regression_with_a_narrow_prior_agrees_with_the_second_order_formula(self) -> None:
        """The Fisher information of one layer is its Hessian, and the loss is nearly quadratic near the mean."""
        torch.manual_seed(0)
        net, x = nn.Linear(6, 3).double(), normal(40, 6, seed=0)
        y = torch.randint(3, (40,), generator=seeded(0))
        potential = NetworkPotential(net, x, y)
        found = minimise_over_covariance(
            lambda w: len(x) * potential.value(w), potential.point(), 1.0, 1e-2, rng=seeded(0)
        )  # fmt: skip
        closed = complexity(net, x, y, prior=WeightPrior(variance=1e-2))
        assert abs(found.complexity - closed.complexity) < 0.02 * closed.log_determinant.value


class TestCurvatures:
    def test_fischers_inequality_and_reported_reasons(self) -> None:
        net, x, y = small_network()
        by_kind = {kind: complexity(net, x, y, curvature=kind) for kind in ("full", "block", "diagonal", "kronecker")}
        values = [by_kind[kind].log_determinant.value for kind in ("full", "block", "diagonal")]
        assert values == sorted(values)
        assert all(found.error == 0 and found.reason == "as requested" for found in by_kind.values())
        assert complexity(net, x, y) == replace(by_kind["full"], reason="53 weights, at most 3,000")

    def test_kronecker_is_exact_for_one_linear_layer(self) -> None:
        net, x = nn.Linear(4, 2), normal(30, 4, seed=0)
        y = normal(30, 2, seed=1)
        full, factored = (
            complexity(net, x, y, likelihood="gaussian", curvature=kind) for kind in ("full", "kronecker")
        )
        assert math.isclose(full.complexity, factored.complexity, rel_tol=1e-9)

    def test_lanczos_is_within_its_error_of_the_dense_value(self) -> None:
        net, x, y = small_network()
        dense = complexity(net, x, y, curvature="full")
        found = [complexity(net, x, y, curvature=CurvatureOptions("lanczos", 8, 53, seed)) for seed in range(12)]
        for name in ("log_determinant", "effective_dimension"):
            truth = getattr(dense, name).value
            estimates = [getattr(one, name) for one in found]
            assert sum(abs(one.value - truth) <= 3 * one.error for one in estimates) >= 11
            mean = sum(one.value for one in estimates) / len(estimates)
            assert abs(mean - truth) <= 4 * math.sqrt(sum(one.error**2 for one in estimates)) / len(estimates)
            assert all(0 < one.error < 0.2 * truth for one in estimates)

    def test_few_steps_are_covered_by_the_error(self) -> None:
        net, x, y = small_network(1)
        dense = complexity(net, x, y, curvature="full").log_determinant.value
        for seed in range(10):
            one = complexity(net, x, y, curvature=CurvatureOptions("lanczos", 8, 6, seed)).log_determinant
            assert abs(one.value - dense) <= 4 * one.error

    def test_no_matrix_is_formed_above_the_limit(self) -> None:
        net = nn.Sequential(nn.Linear(200, 20), nn.Tanh(), nn.Linear(20, 3)).eval()
        x, y = normal(5, 200, seed=0), torch.tensor([0, 1, 2, 0, 1])
        found = complexity(net, x, y, curvature=CurvatureOptions(probes=2, steps=4))
        assert (found.curvature, found.num_weights) == ("lanczos", 4083)
        assert CurvatureOptions().chosen(10_000_000)[0] == "kronecker"

    @given(scale=st.floats(1e-3, 1e3))
    @settings(max_examples=20)
    def test_effective_dimension_is_the_slope_of_the_log_determinant(self, scale: float) -> None:
        spectrum = Eigenvalues(normal(30, seed=0).square())
        ends = [spectrum.log_determinant(scale * math.exp(side)).value for side in (-1e-4, 1e-4)]
        assert math.isclose((ends[1] - ends[0]) / 2e-4, spectrum.effective_dimension(scale).value, rel_tol=1e-5)

    def test_batches_beyond_the_kept_graph_give_the_same_products(self, monkeypatch: pytest.MonkeyPatch) -> None:
        net, x, y = small_network()
        net, x, options = net.double(), x.double(), CurvatureOptions("lanczos", 4, 10)
        whole = complexity(net, x, y, curvature=options)
        monkeypatch.setattr("nearkin.distance.information.curvature.KEPT", 16)
        assert math.isclose(complexity(net, x, y, curvature=options).complexity, whole.complexity, rel_tol=1e-9)


class TestPrior:
    def test_at_its_own_weights_the_weight_term_is_zero(self) -> None:
        net, x, y = small_network()
        found = complexity(net, x, y, prior_mean=dict(net.named_parameters()))
        assert found.weight_term == 0
        assert found.complexity < complexity(net, x, y).complexity

    def test_frozen_parameters_do_not_count(self) -> None:
        net, x, y = small_network()
        net[0].requires_grad_(False)  # type: ignore[index]
        found = complexity(net, x, y)
        assert found.num_weights == 18
        expected = sum(float(value.double().square().sum()) for value in net[2].state_dict().values())  # type: ignore[index]
        assert math.isclose(found.weight_term * found.prior_variance, expected, rel_tol=1e-9)

    def test_the_network_is_not_changed(self) -> None:
        net, x, y = small_network()
        net.train()
        before = {name: value.clone() for name, value in net.named_parameters()}
        complexity(net, x, y)
        assert net.training
        assert all(torch.equal(before[name], value) for name, value in net.named_parameters())


def test_effective_potential_is_the_complexity_of_the_mean_loss() -> None:
    """For one linear layer the Fisher information is the Hessian, so both formulas must agree."""
    torch.manual_seed(0)
    net, x = nn.Linear(4, 3).double().eval(), normal(30, 4, seed=0)
    y = torch.randint(3, (30,), generator=seeded(0))
    found = complexity(net, x, y, beta=0.8, prior=WeightPrior(variance=2.0))
    diffusion = 0.8 / 30
    potential = NetworkPotential(net, x, y, decay=diffusion / 2.0)
    direct = effective_potential(potential, potential.point(), diffusion)
    assert direct.negative == 0
    assert math.isclose(found.effective_potential, direct.value, rel_tol=1e-8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"beta": 0.0}, "beta must be > 0 and finite, got 0.0"),
        ({"beta": -1.0}, "beta must be > 0 and finite, got -1.0"),
        ({"beta": math.nan}, "beta must be > 0 and finite, got nan"),
        ({"x": torch.full((40, 6), math.nan)}, "the loss is nan; check inputs, targets and weights for NaN"),
        ({"x": torch.zeros(0, 6), "y": torch.zeros(0, dtype=torch.int64)}, "the data is empty"),
        ({"y": torch.zeros(3, dtype=torch.int64)}, "40 inputs but 3 targets"),
        ({"curvature": "hessian"}, "curvature 'hessian' is unknown"),
        ({"prior_mean": {"0.weight": torch.zeros(2, 2)}}, "prior_mean does not fit the weights"),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_line(change: dict[str, Any], message: str) -> None:
    net, x, y = small_network()
    arguments: dict[str, Any] = {"x": x, "y": y, **change}
    with pytest.raises(NearkinError, match=message) as caught:
        complexity(net, **arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bad", [{"decay": 0.0}, {"decay": math.inf}, {"variance": -1.0}, {"variance": math.nan}])
def test_a_prior_has_a_positive_variance(bad: dict[str, float]) -> None:
    with pytest.raises(NearkinError, match="must be > 0 and finite"):
        WeightPrior(**bad)


def test_the_front_has_the_function_and_the_package_has_another_name() -> None:
    net, x, y = small_network()
    assert isinstance(nk.distance.complexity(net, x, y, beta=1.0), Complexity)
    assert measure_curvature(net, x).kind == "full"
