"""The structure function: slope −β, convexity, and its closed form on linear regression."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from nearkin.core.errors import NearkinError
from nearkin.distance.information.structure import StructureFunction, structure_function
from nearkin.distance.information.task_complexity import Complexity, WeightPrior
from nearkin.fisher.spectra import Estimate

BETAS = [10 ** (exponent / 2) for exponent in range(-4, 7)]


def regression() -> tuple[nn.Module, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(30, 4, generator=rng, dtype=torch.float64) * torch.tensor([3.0, 1.0, 0.3, 0.1])
    y = x @ torch.ones(4, 1).double() + torch.randn(30, 1, generator=rng, dtype=torch.float64)
    return nn.Linear(4, 1, bias=False).double(), x, y


def measured(refit: int) -> StructureFunction:
    net, x, y = regression()
    return structure_function(
        net, x, y, BETAS, refit=refit, likelihood="gaussian", prior=WeightPrior(variance=1.0)
    )  # fmt: skip


def point(beta: float, information: float, loss: float) -> Complexity:
    zero = Estimate(0.0, 0.0)
    return Complexity(loss, 2 * information, zero, zero, beta, 1.0, 1, 1, "full", "")


def test_refitted_points_have_the_closed_form_of_linear_regression() -> None:
    _, x, y = regression()
    for found in measured(refit=100).points:
        h, beta = x.T @ x, found.beta
        w = torch.linalg.solve(h + beta * torch.eye(4).double(), x.T @ y)
        assert math.isclose(found.weight_term, float(w.square().sum()), rel_tol=1e-6)
        loss = 0.5 * float((y - x @ w).square().sum() + 30 * math.log(2 * math.pi))
        sigma = beta * torch.linalg.inv(h + beta * torch.eye(4).double())
        assert math.isclose(found.expected_loss, loss + 0.5 * float((h @ sigma).trace()), rel_tol=1e-8)


def test_the_slope_between_two_points_lies_between_their_betas() -> None:
    """Both points are minimisers, so neither can be better at the other's β."""
    for low, high in pairwise(measured(refit=100).points):
        assert high.information < low.information
        slope = (high.expected_loss - low.expected_loss) / (low.information - high.information)
        assert low.beta * (1 - 1e-6) <= slope <= high.beta * (1 + 1e-6)


def test_all_minimisers_are_on_the_envelope_and_the_loss_falls() -> None:
    curve = measured(refit=100)
    line = curve.envelope()
    assert len(line) == len(BETAS)
    assert [loss for _, loss in line] == sorted((loss for _, loss in line), reverse=True)
    for found in curve.points:
        assert math.isclose(curve.loss_at(found.information), found.expected_loss, rel_tol=1e-9)
    assert curve.loss_at(line[0][0] / 2) == math.inf
    assert curve.loss_at(line[-1][0] + 10) == line[-1][1]


def test_without_refitting_less_information_costs_more_loss() -> None:
    kept, refitted = measured(refit=0), measured(refit=100)
    assert not kept.refitted
    assert refitted.refitted
    assert len({found.weight_term for found in kept.points}) == 1
    for fixed, best in zip(kept.points, refitted.points, strict=True):
        assert best.complexity < fixed.complexity


def test_points_above_the_envelope_are_left_out_and_the_fastest_fall_is_critical() -> None:
    curve = StructureFunction((point(1, 10, 1), point(10, 9, 5), point(100, 2, 6), point(1000, 1, 20)), True)
    assert curve.envelope() == [(1.0, 20.0), (2.0, 6.0), (10.0, 1.0)]
    assert math.isclose(curve.critical_beta, math.sqrt(10 * 100))


@pytest.mark.soak
def test_random_labels_are_given_up_above_the_critical_beta() -> None:
    """A network that must memorise random labels stores information below the critical β and next to none above."""
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 5, generator=rng, dtype=torch.float64), torch.randint(3, (40,), generator=rng)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    curve = structure_function(net, x, y, BETAS, refit=150, prior=WeightPrior(variance=1.0))
    below, above = curve.points[0], curve.points[-1]
    assert above.information < 0.05 * below.information
    assert above.loss > 0.9 * 40 * math.log(3)
    assert below.loss < 0.5 * 40 * math.log(3)
    assert BETAS[0] < curve.critical_beta < BETAS[-1]


def test_bad_betas_are_refused() -> None:
    net, x, y = regression()
    for betas in ([], [1.0, 0.0], [math.nan]):
        with pytest.raises(NearkinError, match="beta"):
            structure_function(net, x, y, betas, likelihood="gaussian")
    with pytest.raises(NearkinError, match="needs 2 betas"):
        _ = StructureFunction((point(1, 1, 1),), False).critical_beta
