"""Potentials: derivatives of wells and networks, gradient noise, simulated diffusion."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from nearkin.core.errors import NearkinError
from nearkin.distance.reachability.descent_noise import gradient_noise
from nearkin.distance.reachability.potentials import AutodiffPotential, NetworkPotential, hessian, laplacian
from nearkin.distance.reachability.trajectory import DescentOptions, sgd_trajectory
from nearkin.distance.reachability.wells import curved_double_well, double_well, mueller_brown, simulate_langevin


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network(seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double().eval()
    x = torch.randn(30, 4, generator=seeded(seed), dtype=torch.float64)
    return net, x, torch.randint(3, (30,), generator=seeded(seed))


@pytest.mark.parametrize("well", [curved_double_well(), mueller_brown()], ids=["curved", "mueller-brown"])
def test_derivatives_of_wells_agree_with_differences_at_every_point(well: AutodiffPotential) -> None:
    points = torch.rand(5, 2, generator=seeded(0), dtype=torch.float64) - 0.5
    for index in range(2):
        step = torch.zeros(2, dtype=torch.float64)
        step[index] = 1e-5
        slope = (well.value(points + step) - well.value(points - step)) / 2e-5
        assert torch.allclose(well.gradient(points)[:, index], slope, rtol=1e-5, atol=1e-4)
        column = (well.gradient(points + step) - well.gradient(points - step)) / 2e-5
        unit = torch.eye(2, dtype=torch.float64)[index].expand(5, 2)
        assert torch.allclose(well.hessian_product(points, unit), column, rtol=1e-5, atol=1e-3)


def test_network_potential_is_the_loss_with_weight_decay() -> None:
    net, x, y = network()
    potential = NetworkPotential(net, x, y, decay=0.3)
    w = potential.point()
    loss = nn.functional.cross_entropy(functional_call(net, potential.params(w), (x,)), y)
    assert math.isclose(float(potential.value(w)), float(loss + 0.15 * w.square().sum()), rel_tol=1e-12)
    pair = torch.stack([w, 2 * w])
    for single, both in ((potential.value, potential.value(pair)), (potential.gradient, potential.gradient(pair))):
        assert torch.allclose(single(2 * w), both[1])
    dense = torch.func.hessian(lambda v: potential.function(v))(w)
    assert torch.allclose(hessian(potential, w), dense, atol=1e-10)
    centred = NetworkPotential(net, x, y, decay=0.3, centre=potential.params(w))
    assert math.isclose(float(centred.value(w)), float(loss), rel_tol=1e-12)


def test_hutchinsons_laplacian_is_within_its_error_of_the_exact_one() -> None:
    net, x, y = network()
    potential = NetworkPotential(net, x, y, decay=0.01)
    w = potential.point()
    exact = laplacian(potential, w)
    estimates = [laplacian(potential, w, seeded(seed), 24) for seed in range(12)]
    assert exact.error == 0
    assert sum(abs(one.value - exact.value) <= 3 * one.error for one in estimates) >= 11
    assert all(0 < one.error < exact.value for one in estimates)


def test_gradient_noise_is_the_spread_of_sgd_steps() -> None:
    """The variance of steps with batches of 5 is that of diffusion for one step of duration η."""
    net, x, y = network()
    noise = gradient_noise(net, x, y)
    rate, batch = 0.1, 5
    point = NetworkPotential(net, x, y).point()
    steps = torch.stack([
        sgd_trajectory(net, x, y, DescentOptions(rate, batch, 1, seed=seed))[1] - point for seed in range(600)
    ])  # fmt: skip
    spread = float(steps.var(0).mean())
    predicted = 2 * noise.diffusion(rate, batch) * rate * (len(x) - 1) / len(x)  # draws from 30 samples
    assert 0.85 < spread / predicted < 1.15


def test_simulated_particles_have_the_stationary_variance_and_mean() -> None:
    bowl, start = AutodiffPotential(lambda w: w.square().sum(-1)), torch.full((2000, 1), 2.0, dtype=torch.float64)
    path = simulate_langevin(bowl, start, 0.3, 3.0, 0.02, seeded(0))
    means, variances = path.mean(1)[:, 0], path.var(1)[:, 0]
    assert math.isclose(float(means[25]), 2 * math.exp(-2 * 0.5), rel_tol=0.06)
    assert 0.9 < float(variances[-1]) / 0.15 < 1.12


def test_recorded_weights_start_at_the_network_and_do_not_change_it() -> None:
    net, x, y = network()
    potential = NetworkPotential(net, x, y)
    before = potential.point()
    path = sgd_trajectory(net, x, y, DescentOptions(0.5, 30, 40, every=10))
    assert path.shape == (5, len(before))
    assert torch.equal(path[0], before)
    assert torch.equal(NetworkPotential(net, x, y).point(), before)
    assert float(potential.value(path[-1])) < float(potential.value(path[0]))


def test_bad_input_is_one_clear_line() -> None:
    net, x, y = network()
    with pytest.raises(NearkinError, match="no gradient noise and D would be 0"):
        gradient_noise(net, x[:1].repeat(4, 1), y[:1].repeat(4))
    with pytest.raises(NearkinError, match="2 samples or more, got 1"):
        gradient_noise(net, x[:1], y[:1])
    with pytest.raises(NearkinError, match="NaN"):
        gradient_noise(net, x * math.nan, y)
    with pytest.raises(NearkinError, match="learning_rate must be > 0"):
        gradient_noise(net, x, y).diffusion(0.0, 1)
    with pytest.raises(NearkinError, match="NaN or infinite"):
        hessian(double_well(), torch.tensor([math.nan]))
    with pytest.raises(NearkinError, match="diffusion must be > 0"):
        simulate_langevin(double_well(), torch.zeros(1, 1), 0.0, 1.0, 0.1, seeded(0))
    with pytest.raises(NearkinError, match="diverged; lower the step"):
        simulate_langevin(double_well(), torch.full((1, 1), 5.0), 0.1, 20.0, 1.0, seeded(0))
    with pytest.raises(NearkinError, match="data is empty"):
        NetworkPotential(net, x[:0], y[:0])
    with pytest.raises(NearkinError, match="diverged; lower the learning rate"):
        sgd_trajectory(net, x, x @ torch.ones(4, 3).double(), DescentOptions(1e6, 4, 60), "gaussian")
