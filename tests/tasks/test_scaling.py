"""Scaling by mean and deviation must not depend on the unit of a column; constant columns are reported."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import nearkin as nk
from nearkin.core.events import Caution, finish
from nearkin.tasks.checks.data_checks import check_data
from nearkin.tasks.examples import Scaling
from nearkin.tasks.rows import Values
from nearkin.tasks.task import Task

FACTORS = (5e-7, 1e-20, 1e20)


def digits_table(factor: float) -> Task:
    task = nk.task("digits?limit=600")
    x = task.train.inputs.take(torch.arange(len(task.train))).flatten(1)
    return Task.from_arrays("digits", (factor * x).numpy(), task.train.labels().numpy())


@pytest.mark.parametrize("factor", FACTORS)
def test_the_unit_of_the_inputs_does_not_matter(factor):
    plain, scaled = digits_table(1.0), digits_table(factor)
    assert torch.allclose(plain.train.all().x, scaled.train.all().x, atol=1e-4)
    assert plain.train.scaling.constant == scaled.train.scaling.constant
    scores = []
    for task in (plain, scaled):
        model = LogisticRegression(max_iter=100).fit(*(part.numpy() for part in task.train.all()))
        scores.append(model.score(*(part.numpy() for part in task.test.all())))
    assert scores[0] == scores[1] > 0.85


@pytest.mark.parametrize("factor", FACTORS)
def test_the_unit_of_the_targets_does_not_matter(factor):
    x = np.arange(20.0)[:, None]
    plain, scaled = (Task.from_arrays("line", x, f * x[:, 0]) for f in (1.0, factor))
    assert torch.allclose(plain.train.all().y, scaled.train.all().y, atol=1e-4)


def test_a_small_spread_beside_a_large_mean_is_kept():
    x = 1000 + 0.01 * torch.arange(100.0)[:, None]
    scaled = Scaling.of(Values(x))(x)
    assert abs(float(scaled.std(correction=0)) - 1) < 1e-2
    assert Scaling.of(Values(x)).constant == ()


@pytest.mark.parametrize("value", [0.0, 0.1, -7.0, 1e-30, 1e30])
def test_rounding_alone_is_constant(value):
    column = torch.full((100, 1), value)
    column[::2] = torch.nextafter(column[::2], torch.tensor(2 * value))
    scaling = Scaling.of(Values(column))
    assert scaling.constant == (0,)
    assert float(scaling(column).abs().max()) < 1e-5
    assert Scaling.from_dict(scaling.to_dict()).constant == (0,)


def test_constant_columns_are_reported(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4)), np.arange(60) % 2
    x[:, 2] = 5.0
    task = Task.from_arrays("some", x, y)
    assert "1 of 4 input columns is constant" in task.constant_inputs()
    findings = {finding.kind: finding for finding in check_data(task).findings}
    assert findings["inputs"].facts == {"constant": [2]}
    assert not findings["inputs"].grave
    events = []
    with nk.Zoo(tmp_path / "zoo") as zoo:
        finish(zoo.add.work(task, trials=1, recipe=nk.Recipe(epochs=1)), events.append)
    warnings = [event.text for event in events if isinstance(event, Caution)]
    assert any("column 2" in text for text in warnings)


def test_a_task_of_constant_columns_is_a_grave_finding():
    x, y = np.ones((60, 4)), np.arange(60) % 2
    x[:, 0] = np.arange(60)
    findings = {finding.kind: finding for finding in check_data(Task.from_arrays("most", x, y)).findings}
    assert findings["inputs"].grave
    assert "3 of 4 input columns are constant" in findings["inputs"].text


@pytest.mark.parametrize("factor", FACTORS)
def test_the_data_checks_do_not_depend_on_the_unit(factor):
    task, same = digits_table(1.0), digits_table(factor)
    kinds = [[(f.kind, f.grave) for f in check_data(each, samples=300).findings] for each in (task, same)]
    assert kinds[0] == kinds[1]
