"""Baselines beside the closed form: what they judge by, and that the closed form earns its place."""

import copy
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
import torch
from torch import Tensor, nn

from nearkin.core.errors import DataError, OptionError
from nearkin.core.events import Caution, finish
from nearkin.core.rng import derived_seed
from nearkin.nets.functional import outputs_of, view
from nearkin.nets.heads import with_start
from nearkin.nets.recipe import Recipe
from nearkin.nets.registry import build
from nearkin.nets.training_loop import fit
from nearkin.tasks.sources import task
from nearkin.tasks.task import Task
from nearkin.transfer.closed_form import closed_form
from nearkin.transfer.finetune import BASELINES, START, all_weights, linear_head, run_baselines
from nearkin.transfer.labels.classes import Classes
from nearkin.transfer.outcome import score_classes, score_values
from nearkin.zoo.transfer import TransferOptions, with_shots
from nearkin.zoo.zoo import Zoo


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def lines() -> Task:
    """Two classes that a linear model of the features tells apart."""
    x, new = drawn(0, 60, 3), drawn(1, 200, 3)
    return Task.from_arrays("lines", x, (x[:, 0] > 0).long(), new, (new[:, 0] > 0).long())


@pytest.fixture(scope="module")
def values() -> Task:
    x, new = drawn(2, 60, 3), drawn(3, 200, 3)

    def y(inputs: Tensor, seed: int) -> Tensor:
        return torch.stack([inputs[:, 0], inputs[:, 1] - inputs[:, 2]], 1) + 0.1 * drawn(seed, len(inputs), 2)

    return Task.from_arrays("values", x, y(x, 4), new, y(new, 5), likelihood="gaussian")


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return build("mlp?hidden=32", (3,), 4, seed=0)


@pytest.mark.parametrize("kind", ["lines", "values"])
def test_every_way_learns_and_none_changes_the_source(kind: str, model: nn.Module, request) -> None:
    facing: Task = request.getfixturevalue(kind)
    before = view(model).params
    others = finish(run_baselines(model, facing, 300))
    mine = finish(closed_form(model, facing))
    assert [one.name for one in others] == ["linear head", "last layer", "Bayesian last layer", "all weights"]
    for one in (mine, *others):
        assert one.metric > 0.85, one.name
        assert 0 <= one.ece < 0.5
        assert math.isfinite(one.nll)
        assert one.seconds > 0
    assert all(torch.equal(before[name], value) for name, value in view(model).params.items())


@pytest.mark.parametrize("baseline", BASELINES)
def test_the_same_seed_gives_the_same_outcome(baseline, lines: Task, model: nn.Module) -> None:
    one, other = (finish(baseline(model, lines, 20, 3)) for _ in range(2))
    assert (one.metric, one.nll, one.ece) == (other.metric, other.nll, other.ece)


def test_fine_tuning_starts_from_the_head_that_is_stated(lines: Task, model: nn.Module) -> None:
    large = copy.deepcopy(model)
    with torch.no_grad():
        large.body[1].weight.mul_(20)
    network = with_start(large, 2, derived_seed(3, "all weights"), lines.train.all().x, START)
    fit(network, lines, Recipe(steps=2), seed=3)
    p = outputs_of(network, lines.test.all().x).double().softmax(1)
    found = finish(all_weights(large, lines, 2, 3))
    assert found.nll == pytest.approx(score_classes("it", p, lines.test.all().y, 0.0).nll, rel=1e-6)


def test_outcomes_against_closed_forms() -> None:
    p, labels = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), torch.tensor([0, 1, 1])
    found = score_classes("it", p, labels, 1.5)
    assert found.metric == pytest.approx(2 / 3)
    assert found.nll == pytest.approx(-(math.log(0.9) + math.log(0.8) + math.log(0.4)) / 3)
    mean, y = drawn(0, 50, 2).double(), drawn(1, 50, 2).double()
    said = score_values("it", mean, torch.full((2,), 4.0), y, 0.0)
    wanted = -torch.distributions.Normal(mean, 2.0).log_prob(y).sum(1).mean()
    assert said.nll == pytest.approx(float(wanted))
    assert said.metric == pytest.approx(1 - float((mean - y).square().sum() / (y - y.mean(0)).square().sum()))


def test_shots_are_drawn_by_the_seed_and_nested(lines: Task) -> None:
    few, more, other = (set(map(tuple, with_shots(lines, *how).train.all().x.tolist())) for how in ((3,), (8,), (3, 1)))
    assert few < more
    assert few != other
    assert torch.bincount(with_shots(lines, 8).train.labels()).tolist() == [8, 8]


def test_bad_requests_end_in_one_line(lines: Task, values: Task, model: nn.Module) -> None:
    with pytest.raises(DataError, match=r"class [01] has \d+ training samples, got shots=99"):
        with_shots(lines, 99)
    with pytest.raises(DataError, match="60 training samples, got shots=61"):
        with_shots(values, 61)
    with pytest.raises(OptionError, match="shots must be 1 or more"):
        with_shots(lines, 0)
    with pytest.raises(OptionError, match="dirichlet or laplace"):
        TransferOptions(method="exact")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="mean or sampled"):
        TransferOptions(how="median")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="steps must be 1 or more"):
        finish(run_baselines(model, lines, 0))
    images = Task.from_arrays("images", torch.rand(6, 1, 4, 4), torch.rand(6, 1, 4, 4), likelihood="dense")
    with pytest.raises(DataError, match="for classes and values"):
        finish(closed_form(model, images))


@pytest.mark.soak
def test_ten_labels_a_class_beat_a_linear_head_on_new_digits() -> None:
    low, high = task("digits?classes=0,1,2,3,4&rest=drop"), task("digits?classes=5,6,7,8,9&rest=drop")
    source = build("lenet", low.input_shape, 5, seed=0)
    assert fit(source, low, Recipe(steps=250)).scores.metric > 0.95
    mine, theirs = [], []
    for seed in range(3):
        few = with_shots(high, 10, seed)
        mine.append(finish(closed_form(source, few)))
        theirs.append(finish(linear_head(source, few)))
    assert fmean(one.metric for one in mine) > 0.85
    assert fmean(one.metric for one in mine) > fmean(one.metric for one in theirs) + 0.05
    assert fmean(one.nll for one in mine) < fmean(one.nll for one in theirs)
    assert fmean(one.ece for one in mine) <= 0.06


@pytest.mark.soak
@pytest.mark.realdata
@pytest.mark.slow
def test_ten_labels_a_class_of_mnist(real_folder: Callable[[str], Path]) -> None:
    """The temperature's prior was learned on MNIST with other seeds, the method on digits."""
    real_folder("mnist")
    low = task("mnist?classes=0,1,2,3,4&rest=drop&limit=1500")
    high = task("mnist?classes=5,6,7,8,9&rest=drop")
    source = build("lenet", low.input_shape, 5, seed=0)
    fit(source, low, Recipe(steps=150))
    few = with_shots(high, 10, 1)
    few = replace(few, test=few.test.chosen(torch.arange(500)))
    exact, sampled, softmax = (
        finish(closed_form(source, few, options=options))
        for options in (Classes(), Classes(how="sampled"), Classes(method="laplace"))
    )
    other = finish(linear_head(source, few))
    for one in (exact, sampled, softmax):
        assert one.metric > other.metric + 0.05
        assert one.nll < other.nll
    assert exact.metric > 0.8
    assert exact.ece < 0.1


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory, lines: Task, values: Task) -> Iterator[Zoo]:
    with Zoo(tmp_path_factory.mktemp("zoo") / "zoo") as made:
        for one in (lines, values):
            made.add(one, "mlp?hidden=16", trials=1, recipe=Recipe(steps=60))
        yield made


def test_a_zoo_transfers_to_values(zoo: Zoo) -> None:
    x = drawn(7, 300, 3)
    target = Task.from_arrays("product", x, (x[:, 0] + x[:, 1] * x[:, 2])[:, None], likelihood="gaussian")
    found = zoo.transfer("values", target, 60, samples=40, steps=20)
    assert (found.metric_name, found.num_train, found.num_test, found.guess) == ("r2", 60, 40, 0.0)
    assert found.metric > 0.3
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert told["metric"] == found.metric == found.outcome.metric
    assert told["nll"] == found.nll
    assert told["ece"] == found.ece
    assert told["seconds"] == found.seconds > 0
    assert [one["name"] for one in told["baselines"]] == [one.name for one in found.baselines]
    assert zoo.transfer("values", target, 60, samples=40, baselines=False).nll == found.nll
    assert zoo.transfer("values", target, 60, 1, samples=40, baselines=False).nll != found.nll


def test_a_zoo_transfers_between_its_own_tasks(zoo: Zoo) -> None:
    heard: list[object] = []
    found = finish(zoo.transfer.work("values", "lines", 5, baselines=False), heard.append)
    assert found.metric > 0.6
    assert not any(isinstance(event, Caution) for event in heard)
    finish(zoo.transfer.work("lines", "lines", 5, baselines=False), heard.append)
    assert any(isinstance(event, Caution) and "its own source" in event.text for event in heard)


def test_too_many_labels_are_thinned_out_and_said(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearkin.zoo.transfer.LABELS", 20)
    heard: list[object] = []
    assert finish(zoo.transfer.work("values", "lines", baselines=False), heard.append).num_train == 20
    assert any(isinstance(event, Caution) and "20 of 60 labels" in event.text for event in heard)
