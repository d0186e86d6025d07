"""Minimum energy paths with known saddles, escape times, effective potentials."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nearkin.core.errors import NearkinError
from nearkin.core.events import Checkpoint
from nearkin.distance.quasi_newton import minimise
from nearkin.distance.reachability.escape import effective_potential, kramers_time
from nearkin.distance.reachability.potentials import NetworkPotential
from nearkin.distance.reachability.string_method import (
    StringOptions,
    barrier_height,
    connect_modes,
    equal_arc_length,
    minimum_energy_path,
)
from nearkin.distance.reachability.wells import (
    curved_double_well,
    double_well,
    first_passage_times,
    mean_first_passage_time,
    mueller_brown,
    narrowing_channel,
    simulate_langevin,
)


def at(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


class TestString:
    @pytest.mark.parametrize("bend", [0.3, 1.0])
    def test_finds_the_saddle_of_a_curved_well(self, bend: float) -> None:
        found = minimum_energy_path(curved_double_well(bend), at(-1.0, 0.0), at(1.0, 0.0))
        assert torch.allclose(found.saddle, at(0.0, bend), atol=1e-3)
        assert math.isclose(found.barrier, 0.25, abs_tol=1e-3)
        assert math.isclose(found.straight_barrier, 0.25 + 2 * bend**2)

    def test_the_gradient_is_parallel_to_the_path(self) -> None:
        found = minimum_energy_path(curved_double_well(), at(-1.0, 0.0), at(1.0, 0.0), StringOptions(images=41))
        tangent = found.points[2:] - found.points[:-2]
        tangent = tangent / tangent.norm(dim=-1, keepdim=True)
        slope = curved_double_well().gradient(found.points[1:-1])
        across = slope - (slope * tangent).sum(-1, keepdim=True) * tangent
        assert float(across.norm(dim=-1).max()) < 0.1 * float(slope.norm(dim=-1).max())

    @pytest.mark.parametrize(
        ("start", "end", "saddle", "height"),
        [
            ((-0.5582, 1.4417), (-0.0500, 0.4667), (-0.8220, 0.6243), -40.6648),
            ((0.6235, 0.0280), (-0.0500, 0.4667), (0.2125, 0.2930), -72.2489),
        ],
    )  # fmt: skip
    def test_finds_the_saddles_of_mueller_and_brown(self, start: Any, end: Any, saddle: Any, height: float) -> None:
        found = minimum_energy_path(mueller_brown(), at(*start), at(*end))
        assert torch.allclose(found.saddle, at(*saddle), atol=1e-3)
        assert math.isclose(found.saddle_value, height, abs_tol=1e-2)
        assert found.residual < 1e-2
        assert found.barrier > found.saddle_value - float(found.values[0]) - 0.5

    def test_images_are_at_equal_distances(self) -> None:
        points = torch.rand(9, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).cumsum(0)
        for _ in range(200):
            points = equal_arc_length(points)
        lengths = points.diff(dim=0).norm(dim=-1)
        assert float(lengths.max() / lengths.min()) < 1.001

    def test_an_interrupted_path_continues_with_the_same_result(self) -> None:
        ends, options = (at(-1.0, 0.0), at(1.0, 0.0)), StringOptions(images=7, iterations=30)
        events = list(minimum_energy_path.work(curved_double_well(), *ends, options))
        states = [event.capture() for event in events if isinstance(event, Checkpoint)]
        whole = minimum_energy_path(curved_double_well(), *ends, options)
        rest = minimum_energy_path(curved_double_well(), *ends, options, resume=states[11])
        assert states[11].facts["iterations"] == 12
        assert torch.equal(rest.points, whole.points)
        assert rest.iterations == whole.iterations
        with pytest.raises(NearkinError, match="of another path"):
            minimum_energy_path(curved_double_well(), *ends, StringOptions(images=9), resume=states[11])

    def test_barriers_are_those_of_the_profiles(self) -> None:
        ends = at(-1.0, 0.0), at(1.0, 0.0)
        found = minimum_energy_path(curved_double_well(), *ends, StringOptions(images=5, iterations=3))
        assert found.barrier == barrier_height(curved_double_well(), found.points)
        assert torch.allclose(found.values, curved_double_well().value(found.points))
        assert math.isclose(found.straight_barrier, 2.25)

    def test_barrier_is_seen_between_images(self) -> None:
        assert math.isclose(barrier_height(double_well(), torch.stack([at(-1.0), at(1.0)])), 0.25)

    def test_two_solutions_of_a_network_are_connected(self) -> None:
        """The minimised path has a lower barrier than the straight line, for three pairs of solutions."""
        rng = torch.Generator().manual_seed(0)
        x = torch.randn(40, 2, generator=rng, dtype=torch.float64)
        y = (x[:, 0] * x[:, 1] > 0).long()
        net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)).double().eval()
        potential = NetworkPotential(net, x, y, decay=1e-3)
        solutions = []
        for _ in range(4):
            point = torch.randn(len(potential.point()), generator=rng, dtype=torch.float64).requires_grad_()
            minimise(lambda w=point: potential.value(w), [point], 60)  # type: ignore[misc]
            solutions.append(potential.params(point.detach()))
        for start, end in pairwise(solutions):
            options = StringOptions(images=7, iterations=40, climbing=0)
            found = connect_modes(net, start, end, x, y, decay=1e-3, options=options)
            assert 0 <= found.barrier < 0.8 * found.straight_barrier
            assert torch.equal(found.points[0], potential.point(start))
            assert torch.equal(found.points[-1], potential.point(end))
            assert len(found.values) == 7

    def test_batch_normalisation_uses_the_statistics_of_every_point(self) -> None:
        """A scaled first layer computes the same after batch normalisation, so both ends and all between agree."""
        torch.manual_seed(0)
        x, y = torch.randn(30, 3, dtype=torch.float64), torch.arange(30) % 2
        net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, eps=1e-12), nn.Linear(4, 2)).double().eval()
        start = {name: value.detach() for name, value in net.named_parameters()}
        end = {name: 3 * value if name.startswith("0.") else value for name, value in start.items()}
        found = connect_modes(net, start, end, x, y, options=StringOptions(images=3, iterations=1, step=1e-9))
        expected = nn.functional.cross_entropy(net.train()(x), y).detach()
        assert torch.allclose(found.straight_profile, expected.expand(9), atol=1e-6)
        net.eval()
        assert not torch.allclose(nn.functional.cross_entropy(net(x), y), expected)


class TestKramers:
    def test_slope_of_the_exact_time_is_the_barrier(self) -> None:
        times = {d: mean_first_passage_time(double_well(), -1.0, 1.0, -4.0, d) for d in (0.02, 0.025, 0.03)}
        for low, high in ((0.02, 0.025), (0.025, 0.03)):
            slope = (math.log(times[low]) - math.log(times[high])) / (1 / low - 1 / high)
            assert 0.20 < slope < 0.28

    @pytest.mark.soak
    def test_simulated_first_passages_have_the_exact_mean(self) -> None:
        """800 particles at D = 0.15; the mean of exact times is within four standard errors, Kramers' time is not."""
        start, rng = torch.full((800, 1), -1.0, dtype=torch.float64), torch.Generator().manual_seed(0)
        times = first_passage_times(double_well(), start, 1.0, 0.15, 0.02, 1000.0, rng)
        exact = mean_first_passage_time(double_well(), -1.0, 1.0, -4.0, 0.15)
        error = float(times.std()) / math.sqrt(len(times))
        assert abs(float(times.mean()) - exact) < 4 * error < 0.15 * exact
        assert kramers_time(double_well(), at(-1.0), at(0.0), 0.15).time < exact - 4 * error

    def test_first_passages_are_refused_without_time_or_beyond_the_end(self) -> None:
        rng = torch.Generator().manual_seed(0)
        with pytest.raises(NearkinError, match="2 of 2 particles did not arrive in the time 1"):
            first_passage_times(double_well(), torch.full((2, 1), -1.0), 1.0, 0.01, 0.1, 1.0, rng)
        with pytest.raises(NearkinError, match="starts beyond the end 1"):
            first_passage_times(double_well(), torch.full((2, 1), 1.5), 1.0, 0.01, 0.1, 1.0, rng)

    def test_kramers_time_approaches_the_exact_time(self) -> None:
        errors = []
        for diffusion in (0.05, 0.02, 0.01):
            exact = mean_first_passage_time(double_well(), -1.0, 1.0, -4.0, diffusion)
            errors.append(abs(kramers_time(double_well(), at(-1.0), at(0.0), diffusion).time / exact - 1))
        assert errors == sorted(errors, reverse=True)
        assert errors[-1] < 0.05

    def test_directions_that_do_not_change_have_no_effect(self) -> None:
        for stiffness in (0.5, 8.0):
            two = kramers_time(curved_double_well(0.0, stiffness), at(-1.0, 0.0), at(0.0, 0.0), 0.05)
            assert math.isclose(two.log_time, kramers_time(double_well(), at(-1.0), at(0.0), 0.05).log_time)

    def test_a_time_too_large_for_a_number_has_a_logarithm(self) -> None:
        found = kramers_time(double_well(), at(-1.0), at(0.0), 1e-4)
        assert found.time == math.inf
        assert math.isclose(found.log_time, 2500 + math.log(2 * math.pi / math.sqrt(2)))

    def test_other_points_than_minimum_and_saddle_are_refused(self) -> None:
        with pytest.raises(NearkinError, match="the minimum has a curvature of -1"):
            kramers_time(double_well(), at(0.0), at(0.0), 0.1)
        with pytest.raises(NearkinError, match="the saddle has 0 negative curvatures of 1"):
            kramers_time(double_well(), at(-1.0), at(1.0), 0.1)


class TestEffectivePotential:
    """A channel U = ½ x² + ½ b(x) y², narrow on the right."""

    diffusion = 0.4
    channel = staticmethod(narrowing_channel)

    def share(self, weight: Callable[[Tensor], float]) -> float:
        """Share of the weight at x > 0."""
        x = torch.linspace(-4, 4, 161, dtype=torch.float64)
        weights = torch.tensor([weight(point) for point in x])
        return float(weights[x > 0].sum() / weights.sum())

    def predicted(self, factor: float) -> float:
        def weight(x: Tensor) -> float:
            point = torch.stack([x, torch.zeros_like(x)])
            found = effective_potential(self.channel(), point, self.diffusion, along=at(1.0, 0.0))
            assert found.positive == 1
            return math.exp(-(found.potential + factor * self.diffusion * found.log_determinant) / self.diffusion)

        return self.share(weight)

    def test_is_the_exact_marginal(self) -> None:
        y = torch.linspace(-12, 12, 1001, dtype=torch.float64)

        def weight(x: Tensor) -> float:
            points = torch.stack([x.expand_as(y), y], 1)
            return float(torch.trapezoid((-self.channel().value(points) / self.diffusion).exp(), y))

        exact = self.share(weight)
        assert abs(self.predicted(0.5) - exact) < 1e-6
        for printed in (1.0, -1.0):  # the factors of the paper
            assert abs(self.predicted(printed) - exact) > 0.05
        assert effective_potential(self.channel(), at(1.0, 0.0), 0.4, along=at(1.0, 0.0)).value == pytest.approx(
            0.5 + 0.2 * math.log(1 + 7 / (1 + math.exp(-4)))
        )

    def test_agrees_with_simulated_dynamics(self) -> None:
        """1,500 particles, 15 nearly independent times; the factor of the paper is far outside of the error."""
        start = torch.zeros(1500, 2, dtype=torch.float64)
        path = simulate_langevin(self.channel(), start, self.diffusion, 18.0, 0.03, torch.Generator().manual_seed(0))
        shares = (path[100::34, :, 0] > 0).double().mean(1)
        assert abs(float(shares.mean()) - self.predicted(0.5)) < 0.015
        assert abs(float(shares.mean()) - self.predicted(1.0)) > 0.05

    def test_negative_curvature_is_left_out_and_counted(self) -> None:
        found = effective_potential(curved_double_well(0.0, 4.0), at(0.0, 0.0), 0.1)
        assert (found.positive, found.negative) == (1, 1)
        assert math.isclose(found.value, 0.25 + 0.05 * math.log(4))


@pytest.mark.parametrize(
    "bad", [{"images": 2}, {"iterations": 0}, {"step": 0.0}, {"tolerance": math.nan}, {"climbing": -1}]
)
def test_bad_options_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(NearkinError, match=next(iter(bad))):
        StringOptions(**bad)


def test_bad_paths_are_refused() -> None:
    with pytest.raises(NearkinError, match="same point"):
        minimum_energy_path(double_well(), at(1.0), at(1.0))
    with pytest.raises(NearkinError, match="diverged; lower the step"):
        minimum_energy_path(double_well(), at(-9.0), at(8.0), StringOptions(step=10.0))
    with pytest.raises(NearkinError, match="NaN or infinite"):
        minimum_energy_path(double_well(), at(math.nan), at(1.0))
    with pytest.raises(NearkinError, match="diffusion must be > 0"):
        effective_potential(double_well(), at(1.0), -1.0)
    with pytest.raises(NearkinError, match="expected wall <= start < end"):
        mean_first_passage_time(double_well(), 1.0, -1.0, -4.0, 0.1)
