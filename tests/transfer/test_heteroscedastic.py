"""Closed-form transfer from networks that also predict a log variance: kernel and mean come from the means alone."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Generator, Tensor, nn

import nearkin as nk
from nearkin.core.events import finish
from nearkin.nets.evaluate import evaluate
from nearkin.nets.solved import Solved
from nearkin.solver.closed import fit_closed_form
from nearkin.solver.contenders import Contender, trained_network, training_state
from nearkin.transfer import family, linearize
from nearkin.transfer.closed_form import closed_form, source_means
from nearkin.transfer.finetune import bayesian_last_layer

SEEDS = range(5)
GRID = torch.linspace(-2, 2, 200)[:, None]


def source_task(seed: int) -> nk.Task:
    """A sine whose noise rises along the axis."""
    rng = Generator().manual_seed(seed)
    x = 4 * torch.rand(400, 1, generator=rng) - 2
    noise = 0.05 + 0.45 * torch.sigmoid(6 * x)
    y = torch.sin(3 * x) + noise * torch.randn(400, 1, generator=rng)
    return nk.Task.from_arrays("source", x, y, x[:50], y[:50], likelihood="heteroscedastic", standardise=False)


def target_task(seed: int, likelihood: str = "gaussian") -> nk.Task:
    """The same sine on a slope, twelve points."""

    def target(x: Tensor) -> Tensor:
        return torch.sin(3 * x) + 0.3 * x + 0.2

    rng = Generator().manual_seed(100 + seed)
    x = 4 * torch.rand(12, 1, generator=rng) - 2
    y = target(x) + 0.1 * torch.randn(12, 1, generator=rng)
    return nk.Task.from_arrays("target", x, y, GRID, target(GRID), likelihood=likelihood, standardise=False)


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[nk.Zoo]:
    folder: Path = tmp_path_factory.mktemp("heteroscedastic")
    with nk.Zoo(folder / "zoo") as zoo:
        recipe = nk.Recipe(steps=600, learning_rate=0.01)
        zoo.add(source_task(0), "mlp?hidden=32", trials=len(SEEDS), recipe=recipe)
        yield zoo


@pytest.fixture(scope="module")
def source(zoo: nk.Zoo) -> Solved:
    return zoo.solved("source")


def rmse(metric: float, task: nk.Task) -> float:
    """Of R² on the test part."""
    return float((1 - metric) * task.test.all().y.var(correction=0)) ** 0.5


@pytest.mark.soak
def test_the_means_alone_transfer_better_over_five_seeds(zoo: nk.Zoo, source: Solved) -> None:
    assert source_means(source) == 1
    alone, mixed = [], []
    for seed in SEEDS:
        task = target_task(seed)
        found = zoo.transfer("source", task, trial=seed, baselines=False)
        both = finish(closed_form(source.model(seed), task))  # the log variance beside the mean
        assert found.outcome.facts["mean"] == "network", "the network's mean takes part in the choice"
        assert both.facts["mean"] == "constant"
        alone.append(rmse(found.metric, task))
        mixed.append(rmse(both.metric, task))
    assert all(one < other for one, other in zip(alone, mixed, strict=True)), (alone, mixed)
    assert np.mean(alone) < 0.75 * np.mean(mixed), (alone, mixed)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("likelihood", ["gaussian", "heteroscedastic"])
def test_the_contender_of_solve_is_the_same_model_and_is_read_again(source: Solved, likelihood: str) -> None:
    task = target_task(0, likelihood)
    contender = Contender(name="transfer", title="transfer", kind="transfer", task=task)
    solved, _ = trained_network(training_state(*finish(fit_closed_form(source, task))), contender)
    model = solved.model()
    again = evaluate(model, task.test, task.form)
    assert again.metric == solved.trials[0].scores.metric
    expected = finish(closed_form(source.model(), task, means=1))
    assert again.metric == pytest.approx(expected.metric, abs=1e-4)
    assert model(GRID).shape == (200, task.num_outputs)


def test_the_bayesian_last_layer_has_the_networks_mean_too(source: Solved) -> None:
    found = finish(bayesian_last_layer(source.model(), target_task(0), means=source_means(source)))
    assert found.facts["mean"] == "network"


def test_estimators_and_families_take_the_means_alone(source: Solved) -> None:
    network, task = source.model(), target_task(0)
    x, y = task.train.all()
    flat = linearize(network, means=1)
    assert torch.equal(flat.kernel(x), linearize(network, outputs=0).kernel(x))
    assert torch.allclose(flat.mean(x), network(x)[:, :1].double(), atol=1e-5)
    regressor = nk.LinearizedRegressor(network, outputs=0).fit(x.numpy(), y[:, 0].numpy())
    assert regressor.hyper_.mean == "network"
    expected = finish(closed_form(network, task, means=1))
    assert regressor.score(GRID.numpy(), task.test.all().y[:, 0].numpy()) == pytest.approx(expected.metric, abs=1e-4)
    assert family(flat, [(x, y), target_task(1).train.all()]).hyper.mean == "network"


def test_weights_are_still_chosen_by_their_own_names() -> None:
    net = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 2))
    assert linearize(net, "head", means=1).num_weights == 10
    assert linearize(net, "0.weight", means=1).num_weights == 4
