"""Static distance against closed forms of Bayesian linear regression, and its order on small tasks."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from nearkin.core.errors import MismatchError, OptionError
from nearkin.distance.information.curvature import (
    KINDS,
    CurvatureOptions,
    NetworkSamples,
    joint_curvature,
    measure_curvature,
)
from nearkin.distance.information.static_distance import (
    Columns,
    StaticOptions,
    TaskSamples,
    fit_tasks,
    fitted_complexity,
    joint_complexity,
    measure_static_distance,
    merged_labels,
    two_heads,
)

OPTIONS = StaticOptions(steps=100, curvature="full", limit=50, decay=0.01)


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def linear() -> nn.Module:
    return nn.Linear(3, 1, bias=False).double().eval()


def values(count: int, seed: int) -> TaskSamples:
    x = draws(count, 3, seed=seed)
    return TaskSamples(x, x @ draws(3, 1, seed=9) + draws(count, 1, seed=seed + 1), "gaussian")


def surprise(task: TaskSamples, variance: float) -> float:
    """−log evidence of Bayesian linear regression with unit noise: y ~ N(0, I + λ² X Xᵀ)."""
    covariance = torch.eye(len(task.x)).double() + variance * task.x @ task.x.T
    law = torch.distributions.MultivariateNormal(torch.zeros(len(task.x)).double(), covariance)
    return -float(law.log_prob(task.y[:, 0]))


def both(a: TaskSamples, b: TaskSamples) -> TaskSamples:
    return TaskSamples(torch.cat([a.x, b.x]), torch.cat([a.y, b.y]), a.likelihood)


def test_with_shared_outputs_it_is_the_surprise_of_the_target_given_the_source() -> None:
    a, b = values(20, 1), values(30, 5)
    union, own = (fitted_complexity(linear(), tasks, OPTIONS) for tasks in ([a, b], [a]))
    expected = surprise(both(a, b), OPTIONS.variance) - surprise(a, OPTIONS.variance)
    assert union.complexity - own.complexity == pytest.approx(expected, abs=1e-6)


def test_with_two_heads_on_fixed_features_it_is_the_surprise_of_the_target_alone() -> None:
    a, b = values(20, 1), values(30, 5)
    found = measure_static_distance(linear(), a, b, num_outputs=1, options=OPTIONS)
    assert found.distance == pytest.approx(surprise(b, OPTIONS.variance), abs=1e-6)
    assert found.source.complexity == pytest.approx(surprise(a, OPTIONS.variance), abs=1e-6)
    assert found.union.num_samples == 50


def test_its_asymmetry_is_the_difference_of_both_complexities() -> None:
    a, b = values(20, 1), values(30, 5)
    forth, back = (
        measure_static_distance(linear(), first, second, num_outputs=1, options=OPTIONS)
        for first, second in ((a, b), (b, a))
    )
    assert forth.distance - back.distance == pytest.approx(back.source.complexity - forth.source.complexity, abs=1e-6)


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double().eval()


def signs(seed: int, column: int = 0, random: bool = False) -> TaskSamples:
    x = draws(40, 4, seed=seed)
    y = (x[:, column] * x[:, column + 1] > 0).long()
    return TaskSamples(x, y[torch.randperm(40, generator=torch.Generator().manual_seed(3))] if random else y)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("union", ["heads", "labels"])
def test_a_task_is_nearer_to_itself_than_an_unrelated_one_is(union: str) -> None:
    options, names = replace(OPTIONS, union=union), ("no", "yes")
    source, model = signs(1), network()
    same, other, noise = (
        measure_static_distance(model, source, target, num_outputs=2, options=options, classes=(names, names)).distance
        for target in (source, signs(1, column=2), signs(1, random=True))
    )
    assert 0 < same < other
    assert same < noise


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("auto", "lanczos")])
def test_the_curvature_of_two_halves_is_that_of_the_whole(kind: str) -> None:
    model, x, options = network(), draws(24, 4), CurvatureOptions(kind)
    whole = measure_curvature(model, x, options=options).spectrum.log_determinant(10.0).value
    parts = [NetworkSamples(model, x[:8], "categorical"), NetworkSamples(model, x[8:], "categorical")]
    assert joint_curvature(parts, options).spectrum.log_determinant(10.0).value == pytest.approx(whole, rel=1e-9)


def test_lanczos_agrees_with_the_full_curvature_of_two_heads() -> None:
    wide, tasks = two_heads(network(), signs(1), replace(values(30, 5), x=draws(30, 4)), 1)
    full = joint_complexity(wide, tasks, curvature="full")
    lanczos = joint_complexity(wide, tasks, curvature=CurvatureOptions("lanczos", probes=64, steps=50))
    assert abs(lanczos.complexity - full.complexity) < 4 * lanczos.error
    assert lanczos.error < 0.05 * full.complexity


def test_two_heads_keep_the_answers_of_the_source_and_start_at_zero_for_the_target() -> None:
    model, source, target = network(), signs(1), values(30, 5)
    wide, tasks = two_heads(model, source, replace(target, x=draws(30, 4)), 3)
    assert torch.allclose(tasks[0].network(wide)(source.x), model(source.x), atol=1e-12)
    assert torch.equal(tasks[1].network(wide)(source.x), torch.zeros(40, 3).double())
    assert isinstance(tasks[1].network(wide), Columns)


def test_merged_labels_are_one_class_for_one_name() -> None:
    wide, (first, second) = merged_labels(network(), signs(1), signs(2), (("a", "b"), ("b", "c")))
    assert wide(first.x).shape == (40, 3)
    assert torch.equal(second.y, signs(2).y + 1)
    with pytest.raises(
        MismatchError, match="merged labels need two tasks with classes, got a categorical source and a"
    ):
        merged_labels(network(), signs(1), values(30, 5), (("a", "b"), ("c",)))


def test_a_fit_pulls_to_the_mean_of_the_prior_and_leaves_the_network_as_it_is() -> None:
    model, task = network(), signs(1)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    centre = {name: torch.full_like(value, 0.5) for name, value in before.items()}
    pulled = fit_tasks(model, [task], 1.0, 1e-8, 200, centre)
    assert all(torch.allclose(value, centre[name], atol=1e-3) for name, value in pulled.named_parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 0.0}, "beta must be > 0 and finite, got 0.0"),
        ({"decay": math.inf}, "decay must be > 0 and finite, got inf"),
        ({"steps": -1}, "steps must be 0 or more, got -1"),
        ({"limit": 1}, "limit must be 2 or more, got 1"),
        ({"union": "both"}, "union is one of heads, labels, got 'both'"),
        ({"curvature": "hessian"}, "curvature 'hessian' is unknown"),
    ],
)
def test_wrong_options_are_refused_in_one_line(options: dict[str, float | str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        StaticOptions(**options)  # type: ignore[arg-type]
