"""`solve` by a chosen metric: selection, report, sentence and JSON name the same metric."""

import html
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_absolute_error, recall_score

import nearkin as nk
from nearkin.cli.solve import written
from nearkin.core.budget import Budget
from nearkin.core.errors import OptionError
from nearkin.solver.plan import Plan
from nearkin.solver.result import Result, ordered
from nearkin.solver.solution import Solution
from nearkin.solver.solving import solve
from nearkin.tasks.metrics import METRICS
from nearkin.tasks.task import Task

ONLY = ("logistic", "extra-trees")


def plan(**changes: object) -> Plan:
    return Plan(budget=Budget(evaluations=1), join=False, epochs=2, only=ONLY, **changes)  # type: ignore[arg-type]


def values() -> Task:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(160, 3, generator=rng)
    return Task.from_arrays("values", x, 1000 + 50 * x[:, 0] + 20 * x[:, 1].abs() + torch.randn(160, generator=rng))


def classes() -> Task:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(200, 3, generator=rng)
    return Task.from_arrays("classes", x, (x[:, 0] + 0.7 * torch.randn(200, generator=rng) > 0.4).long())


def rare(count: int = 600) -> Task:
    """5 % positives, which overlap with the others."""
    rng = np.random.default_rng(0)
    y = (np.arange(count) % 20 == 0).astype(int)
    x = rng.normal(size=(count, 4)) + 1.2 * y[:, None]
    return Task.from_arrays("rare", x.astype(np.float32), y)


@pytest.fixture(autouse=True)
def few_trees_and_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearkin.solver.quality.METRIC_RESAMPLES", 40)
    monkeypatch.setattr("nearkin.solver.simple.forest.TREES", 30)
    monkeypatch.setattr("nearkin.solver.simple.forest.TRIAL_TREES", 10)


@pytest.fixture
def zoo(tmp_path: Path) -> Iterator[nk.Zoo]:
    with nk.Zoo(tmp_path / "zoo") as zoo:
        yield zoo


@pytest.mark.thinned(3)
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in METRICS if name not in ("accuracy", "r2")])
def test_every_place_names_the_chosen_metric(zoo: nk.Zoo, name: str, tmp_path: Path) -> None:
    metric = METRICS[name]
    task = classes() if metric.of_classes else values()
    solution = solve(task, zoo, plan=plan(metric=name))
    kept = json.loads(json.dumps(written(solution, tmp_path), allow_nan=False))
    again = Solution.load(tmp_path / "solution.safetensors")
    assert kept["metric_name"] == kept["quality"]["name"] == kept["made"]["metric"] == again.quality.name == name
    assert kept["metric"] == kept["finals"][solution.chosen] == again.metric
    low, high = solution.interval
    assert low <= solution.metric <= high
    assert low < high
    said = again.predict(task.test.inputs.take(torch.arange(len(task.test))))
    outputs = said.mean if said.probabilities is None else said.probabilities.log()
    assert metric.compute(outputs, task.test.labels()) == pytest.approx(solution.metric, rel=1e-4)
    best = (max if metric.higher_is_better else min)(result.validation for result in solution.standings)  # type: ignore[type-var]
    assert solution.standing.validation == best, "selected by this metric"
    assert all(result.metric == name for result in solution.standings)
    assert all(ahead >= 0 for ahead, _, _ in solution.margins.values())
    assert metric.title in solution.sentence
    page = html.unescape((tmp_path / "report.html").read_text())
    assert f"contender with the best {metric.title} on it was chosen" in page
    assert metric.about in page
    assert metric.gain(solution.metric) > metric.gain(solution.quality.guess), "better than a constant"


def test_errors_are_in_the_units_of_the_data(zoo: nk.Zoo) -> None:
    task = values()
    solution = solve(task, zoo, plan=plan(metric="mae"))
    predicted = solution.predict(task.test.inputs.take(torch.arange(len(task.test)))).mean
    assert solution.metric == pytest.approx(mean_absolute_error(task.test.labels(), predicted), rel=1e-5)
    assert solution.quality.guess > 10


def test_results_are_ordered_by_their_metric() -> None:
    results = [
        Result(name=str(v), title="", kind="made", validation=v, metric="rmse", loss=0.0) for v in (3.0, 1.0, 2.0)
    ]
    assert [result.name for result in ordered(results)] == ["1.0", "2.0", "3.0"]


def test_balanced_weights_and_balanced_accuracy_go_together() -> None:
    assert plan(class_weight="balanced").metric == "balanced-accuracy"
    assert plan(metric="balanced_accuracy").class_weight == "balanced"
    assert plan(class_weight="balanced", metric="f1").metric == "f1"
    assert plan(class_weight="yes=2").metric == ""
    assert plan(class_weight="yes=2", metric="balanced-accuracy").class_weight == {"yes": 2.0}


def test_a_metric_of_another_kind_is_refused_before_anything_runs(zoo: nk.Zoo) -> None:
    with pytest.raises(OptionError, match="metric auc is for classes, 'values' predicts values"):
        solve(values(), zoo, plan=plan(metric="auc"))
    with pytest.raises(OptionError, match="unknown metric 'auk'"):
        plan(metric="auk")


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("options", [{"metric": "balanced-accuracy"}, {"class_weight": "balanced"}], ids=str)
def test_a_rare_class_is_found_more_often(zoo: nk.Zoo, options: dict[str, str]) -> None:
    task = rare()
    labels, inputs = task.test.labels(), task.test.inputs.take(torch.arange(len(task.test)))
    usual, better = (solve(task, zoo, plan=plan(**changes)) for changes in ({}, options))
    first, second = (float(recall_score(labels, found.predict(inputs).labels)) for found in (usual, better))
    assert second >= first + 0.2


def test_estimators_take_a_metric() -> None:
    task = classes()
    x, y = task.train.inputs.take(torch.arange(len(task.train))).numpy(), task.train.labels().numpy()
    found = nk.NearkinClassifier(minutes=None, only=("logistic",), metric="auc").fit(x, y)
    assert found.solution_.quality.name == "auc"
    regressor = nk.NearkinRegressor(minutes=None, only=("logistic",), metric="rmse").fit(x, x @ [1.0, 2.0, 3.0])
    assert regressor.solution_.quality.name == "rmse"
