"""Factors of losses against closed forms, and aggregators of gradients."""

from typing import Any

import pytest
import torch
from torch import nn

from nearkin.core.errors import OptionError
from nearkin.multitask.joint.aggregators import AGGREGATORS, aggregate, aggregator
from nearkin.multitask.joint.loss_weighting import LossWeighting, WeightingOptions


def test_with_constant_losses_the_learned_variances_are_the_losses() -> None:
    losses = [0.2, 1.0, 5.0]
    weighting = LossWeighting(WeightingOptions(weighting="uncertainty", weighting_rate=0.02), 3)
    for _ in range(1500):
        weighting.update(losses, [1.0] * 3)
    assert weighting.values.exp().tolist() == pytest.approx(losses, rel=1e-3)
    assert weighting.factors == pytest.approx([1 / loss for loss in losses], rel=1e-3)


def test_variances_stay_bounded_if_a_loss_is_negative() -> None:
    weighting = LossWeighting(WeightingOptions(weighting="uncertainty", weighting_rate=1.0), 2)
    for _ in range(50):
        weighting.update([-1.0, 1.0], [1.0, 1.0])
    assert weighting.values.abs().max() <= 7


def test_gradient_norms_become_equal_where_tasks_learn_equally_fast() -> None:
    norms = [0.1, 1.0, 4.0]
    weighting = LossWeighting(WeightingOptions(weighting="gradient-norm", weighting_rate=0.002), 3)
    for _ in range(3000):
        weighting.update([1.0, 2.0, 3.0], norms)
    weighted = [factor * norm for factor, norm in zip(weighting.factors, norms, strict=True)]
    # closed form: factors with the sum 3 that make all products equal
    common = 3 / sum(1 / norm for norm in norms)
    assert weighted == pytest.approx([common] * 3, rel=0.1)
    assert sum(weighting.factors) == pytest.approx(3)


def test_a_task_that_learns_slowly_gets_a_larger_gradient() -> None:
    weighting = LossWeighting(WeightingOptions(weighting="gradient-norm", weighting_rate=0.002, restoring=1.0), 2)
    weighting.update([1.0, 1.0], [1.0, 1.0])
    for _ in range(2000):
        weighting.update([0.2, 0.6], [1.0, 1.0])  # fractions 0.5 and 1.5 of their mean
    assert weighting.factors == pytest.approx([0.5, 1.5], rel=0.05)


@pytest.mark.parametrize("kind", ["uniform", "uncertainty", "gradient-norm"])
def test_factors_resume_with_the_same_bits(kind: str) -> None:
    options = WeightingOptions(weighting=kind)
    whole, other = LossWeighting(options, 2), LossWeighting(options, 2)
    whole.update([1.0, 2.0], [3.0, 1.0])
    other.restore(whole.capture())
    for weighting in (whole, other):
        weighting.update([0.5, 2.0], [3.0, 2.0])
    assert whole.factors == other.factors
    assert (whole.factors == [1.0, 1.0]) == (kind == "uniform")


CONFLICT = torch.tensor([[4.0, 1.0, 0.0], [-1.0, 0.5, 1.0]])  # the inner product is negative


@pytest.mark.parametrize("name", AGGREGATORS)
def test_every_aggregator_gives_a_direction(name: str) -> None:
    torch.manual_seed(0)
    direction = aggregator(name)(CONFLICT)
    assert direction.shape == (3,)
    assert direction.isfinite().all()
    assert direction.norm() > 0


@pytest.mark.parametrize("name", ["MGDA", "PCGrad", "IMTLG", "AlignedMTL"])
def test_where_gradients_conflict_no_task_gets_worse_but_with_the_mean_one_does(name: str) -> None:
    assert (CONFLICT @ aggregator("Mean")(CONFLICT)).min() < 0
    assert (CONFLICT @ aggregator(name)(CONFLICT)).min() > 0


def test_mgda_is_the_shortest_convex_combination() -> None:
    steps = torch.linspace(0, 1, 100001)[:, None]
    shortest = (steps * CONFLICT[0] + (1 - steps) * CONFLICT[1]).norm(dim=1).min()
    assert float(aggregator("MGDA")(CONFLICT).norm()) == pytest.approx(float(shortest), rel=1e-2)


def test_pcgrad_projects_each_gradient_on_the_normal_plane_of_the_other() -> None:
    one, two = CONFLICT
    inner = one @ two
    expected = one - inner / (two @ two) * two + two - inner / (one @ one) * one
    torch.testing.assert_close(aggregator("PCGrad")(CONFLICT), expected)


def test_only_weights_that_all_tasks_have_are_aggregated() -> None:
    shared, own = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(3))
    total = aggregate(
        [{shared: torch.ones(2, 2), own: torch.ones(3)}, {shared: 3 * torch.ones(2, 2)}], aggregator("Mean")
    )
    assert total[shared].tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert total[own].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WeightingOptions(weighting="equal"), "weighting must be one of uniform, given.*got 'equal'"),
        (lambda: WeightingOptions(weighting="given"), "got loss_weights '' with weighting given"),
        (lambda: WeightingOptions(loss_weights="1,2"), "got loss_weights '1,2' with weighting uniform"),
        (lambda: WeightingOptions(weighting_rate=0.0), "weighting_rate must be > 0"),
        (lambda: WeightingOptions(restoring=-1.0), "restoring must be 0 or more, got -1"),
        (
            lambda: LossWeighting(WeightingOptions(weighting="given", loss_weights="1,x"), 2),
            "loss_weights is '1,x', expected 2 numbers above 0",
        ),
        (lambda: LossWeighting(WeightingOptions(weighting="given", loss_weights="1,0"), 2), "expected 2 numbers above"),
        (lambda: LossWeighting(WeightingOptions(weighting="given", loss_weights="1"), 2), "expected 2 numbers above 0"),
        (lambda: aggregator("UPGrad"), "aggregator must be one of Mean, Sum, .*got 'UPGrad'"),
    ],
)
def test_bad_options_are_refused_in_one_line(make: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message) as refused:
        make()
    assert "\n" not in str(refused.value)
