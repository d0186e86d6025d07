"""Path actions and transition probabilities against propagators on a grid and closed forms."""

import math

import pytest
import torch
from torch import Tensor, nn

from nearkin.core.errors import NearkinError
from nearkin.distance.reachability.onsager_machlup import (
    minimise_action,
    path_action,
    path_potential,
    straight_line,
    transition_probability,
)
from nearkin.distance.reachability.potentials import AutodiffPotential, NetworkPotential
from nearkin.distance.reachability.string_method import minimum_energy_path
from nearkin.distance.reachability.trajectory import DescentOptions, sgd_trajectory
from nearkin.distance.reachability.wells import curved_double_well, double_well

D, TIME = 0.3, 1.0


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def at(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


class TestGridPropagator:
    """An asymmetric well, in which U differs between the two ends."""

    grid = torch.linspace(-2.6, 2.6, 401, dtype=torch.float64)
    well = AutodiffPotential(lambda w: (w[..., 0].square() - 1).square() / 4 + 0.3 * w[..., 0])

    def diffusion(self) -> Tensor:
        """D ∇² with zero density beyond the grid."""
        spacing, size = float(self.grid[1] - self.grid[0]), len(self.grid)
        off = torch.ones(size - 1, dtype=torch.float64)
        return D * (torch.diag(off, 1) + torch.diag(off, -1) - 2 * torch.eye(size).double()) / spacing**2

    def density(self) -> Tensor:
        """p(x_f, t | x_0) `[f, 0]` from the Fokker-Planck equation, whose drift is −U′."""
        spacing = float(self.grid[1] - self.grid[0])
        slope = self.well.gradient(self.grid[:, None])[:, 0]
        drift = (torch.diag(slope[1:], 1) - torch.diag(slope[:-1], -1)) / (2 * spacing)
        return torch.linalg.matrix_exp(TIME * (self.diffusion() + drift)) / spacing

    def kernel(self, sign: float = 1.0) -> Tensor:
        """K, from `path_potential`; `sign` −1 turns the sign of the Laplacian."""
        spacing = float(self.grid[1] - self.grid[0])
        v = [path_potential(self.well, point[None], D).value for point in self.grid]
        half_square = self.well.gradient(self.grid[:, None])[:, 0].square() / 2
        potential = half_square + sign * (torch.tensor(v) - half_square)
        return torch.linalg.matrix_exp(TIME * (self.diffusion() - torch.diag(potential) / (2 * D))) / spacing

    @pytest.mark.slow
    def test_density_is_the_static_factor_times_a_symmetric_kernel(self) -> None:
        density, kernel = self.density(), self.kernel()
        values = self.well.value(self.grid[:, None])
        assert torch.allclose(kernel, kernel.T, atol=1e-10)
        wrong, wrong_ratios = self.kernel(-1.0), []
        for first, last in ((140, 260), (260, 140), (120, 200), (230, 170)):
            static = math.exp(-float(values[last] - values[first]) / (2 * D))
            assert abs(float(density[last, first]) / (static * float(kernel[last, first])) - 1) < 1e-3
            wrong_ratios.append(float(density[last, first]) / (static * float(wrong[last, first])))
        assert max(abs(ratio - 1) for ratio in wrong_ratios) > 0.3

    @pytest.mark.slow
    def test_laplaces_method_is_near_the_density_and_split_as_it_is(self) -> None:
        density = self.density()
        values = self.well.value(self.grid[:, None])
        first, last = 150, 230
        there, back = (
            transition_probability(self.well, self.grid[[a]], self.grid[[b]], D, TIME)
            for a, b in ((first, last), (last, first))
        )
        assert abs(there.log_probability - math.log(float(density[last, first]))) < 0.15
        assert math.isclose(there.static, -float(values[last] - values[first]) / (2 * D))
        assert math.isclose(there.static, -back.static)
        assert math.isclose(there.dynamic, back.dynamic, abs_tol=1e-5)


@pytest.mark.parametrize("duration", [0.3, 2.0])
def test_transition_probability_is_exact_in_a_bowl_of_two_dimensions(duration: float) -> None:
    stiffness = at(1.0, 3.0)
    bowl = AutodiffPotential(lambda w: (stiffness * w.square()).sum(-1) / 2)
    start, end = at(1.0, -0.5), at(-0.3, 0.4)
    found = transition_probability(bowl, start, end, D, duration, segments=60)
    variance = D / stiffness * (1 - (-2 * stiffness * duration).exp())
    mean = start * (-stiffness * duration).exp()
    exact = torch.distributions.Normal(mean, variance.sqrt()).log_prob(end).sum()
    assert found.fluctuations
    assert abs(found.log_probability - float(exact)) < 3e-3


def test_action_is_the_onsager_machlup_integral() -> None:
    """The static and the dynamic part add up to the integral of the Lagrangian, computed by its own formula."""
    well, size = curved_double_well(), 4000
    t = torch.linspace(0, 1, size + 1, dtype=torch.float64)[:, None]
    path = torch.cat([2 * t - 1, (3 * t).sin()], 1)
    times = 2.0 / size
    found = path_action(well, path, D, 2.0)
    middle = (path[1:] + path[:-1]) / 2
    speed = path.diff(dim=0) / times + well.gradient(middle)
    units = torch.eye(2, dtype=torch.float64)
    laplacians = sum(well.hessian_product(middle, unit.expand_as(middle)) @ unit for unit in units)
    direct = (speed.square().sum(-1) / (4 * D) - laplacians / 2).sum() * times
    assert math.isclose(found.action, float(direct), rel_tol=1e-5)
    assert math.isclose(found.length, float(path.diff(dim=0).norm(dim=-1).sum()))


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("diffusion", "duration"), [(0.1, 4.0), (0.05, 2.0), (0.3, 1.0)])
def test_minimised_path_has_the_smallest_action(diffusion: float, duration: float) -> None:
    well = curved_double_well()
    line = straight_line(at(-1.0, 0.0), at(1.0, 0.0), 40)
    string = minimum_energy_path(well, line[0], line[-1]).points
    best = minimise_action(well, string, diffusion, duration)
    actions = [path_action(well, path, diffusion, duration).action for path in (best, string, line)]
    assert actions == sorted(actions)
    from_line = minimise_action(well, line, diffusion, duration)
    assert path_action(well, from_line, diffusion, duration).action < actions[2]
    assert torch.equal(from_line[[0, -1]], line[[0, -1]])


@pytest.mark.soak
def test_paths_of_a_network() -> None:
    """Straight line, recorded training and minimised path between the same two weight vectors."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double().eval()
    x = torch.randn(24, 3, generator=seeded(0), dtype=torch.float64)
    y = (x[:, 0] * x[:, 1] > 0).long()
    descent = DescentOptions(0.2, 8, 60, every=6, decay=0.01)
    potential = NetworkPotential(net, x, y, decay=0.01)
    recorded = sgd_trajectory(net, x, y, descent)
    line = straight_line(recorded[0], recorded[-1], 10)
    diffusion = 0.01
    exact = path_action(potential, line, diffusion, descent.duration)
    estimated = path_action(potential, line, diffusion, descent.duration, seeded(0), 24)
    assert exact.error == 0 < estimated.error
    assert abs(estimated.dynamic - exact.dynamic) < 4 * estimated.error
    assert estimated.static == exact.static > 0
    best = minimise_action(potential, line, diffusion, descent.duration, seeded(1), 2, iterations=15)
    same_probes = [path_action(potential, path, diffusion, descent.duration, seeded(1), 2) for path in (best, line)]
    assert same_probes[0].action < same_probes[1].action
    training = path_action(potential, recorded, diffusion, [descent.learning_rate * descent.every] * 10)
    assert training.static == exact.static
    assert training.length > exact.length


def test_bad_input_is_one_clear_line() -> None:
    well, line = double_well(), straight_line(at(-1.0), at(1.0), 4)
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(NearkinError, match="diffusion must be > 0 and finite"):
            path_action(well, line, bad, 1.0)
        with pytest.raises(NearkinError, match="duration must be > 0 and finite"):
            path_action(well, line, 0.1, bad)
    with pytest.raises(NearkinError, match="3 times for 4 segments"):
        path_action(well, line, 0.1, [1.0, 1.0, 1.0])
    with pytest.raises(NearkinError, match="NaN"):
        path_action(well, line * math.nan, 0.1, 1.0)
    with pytest.raises(NearkinError, match="1 and 2 coordinates"):
        straight_line(at(1.0), at(1.0, 2.0))
    with pytest.raises(NearkinError, match=r"a path is \[M \+ 1, P\]"):
        path_action(well, line[:1], 0.1, 1.0)
