"""One test metric in every place, and a test part that decides nothing."""

import html
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import nearkin as nk
from nearkin.cli.solve import written
from nearkin.core.budget import Budget
from nearkin.nets.evaluate import evaluate
from nearkin.solver.model_outputs import as_seen
from nearkin.solver.plan import Plan
from nearkin.solver.sentence import score_text
from nearkin.solver.solution import Solution
from nearkin.solver.solving import solve
from nearkin.tasks.rows import Values

PLAN = Plan(budget=Budget(evaluations=1), epochs=1, join=False, measures=("logme",))
WINNERS = ("svm", "boosting", "logistic", "transfer", "finetune", "lenet", "resnet18", "full-search")


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[nk.Zoo]:
    """One kin, whose images are larger than the target's."""
    with nk.Zoo(tmp_path_factory.mktemp("one-number") / "zoo") as zoo:
        task = nk.task("digits?parity&size=11&limit=150", name="even")
        zoo.add(task, "mlp?hidden=16", trials=1, recipe=nk.Recipe.suited(task, epochs=3))
        yield zoo


@pytest.mark.thinned(3)
@pytest.mark.parametrize("winner", WINNERS)
def test_every_place_tells_the_same_metric(zoo: nk.Zoo, winner: str, tmp_path: Path) -> None:
    question = "detect=0&" if winner == "boosting" else ""  # trees of ten classes take a minute
    target = nk.task(f"digits?{question}limit=100", name="new")
    solution = solve(target, zoo, plan=replace(PLAN, only=(winner,)))
    facts = written(solution, tmp_path)
    kept, again = json.loads((tmp_path / "solution.json").read_text()), Solution.load(tmp_path / "solution.safetensors")
    metric = solution.metric
    assert 0 < metric < 1
    assert kept == json.loads(json.dumps(facts))
    assert kept["metric"] == kept["finals"][winner] == kept["quality"]["metric"] == metric
    assert again.metric == again.finals[winner] == metric
    assert evaluate(again.model, as_seen(again.solved, target.test), target.form).metric == metric
    said = again.predict(target.test.inputs.take(torch.arange(len(target.test))))
    right = int((said.labels == target.test.labels()).sum())
    assert right / len(target.test) == metric
    assert sum(solution.quality.confusion[place][place] for place in range(len(target.classes))) == right  # type: ignore[index]
    page = (tmp_path / "report.html").read_text()
    count = len(target.test)
    page = html.unescape(page).replace("\xa0", " ")
    score = score_text(metric, "accuracy", count)
    assert f"{score} of {count} test samples right" in solution.sentence
    assert solution.sentence.partition(". ")[0] in page
    assert f"after this final training, {score}, is the result." in page
    standing = kept["standing"]
    assert standing["samples"] == kept["samples"]["available"] == 80
    assert kept["samples"]["finals"] == {winner: 100}
    assert "All contenders learned from the same 80 training samples." in page


def test_values_of_several_columns_have_one_metric_too(zoo: nk.Zoo, tmp_path: Path) -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(160, 4, generator=rng)
    y = torch.stack([x[:, 0] + 0.5 * torch.randn(160, generator=rng), 100 * x[:, 1].square()], 1)
    target = nk.Task.from_arrays("columns", x, y)
    solution = solve(target, zoo, plan=replace(PLAN, only=("logistic",)))
    kept = json.loads(json.dumps(written(solution, tmp_path)))
    again = Solution.load(tmp_path / "solution.safetensors")
    fresh = evaluate(again.model, as_seen(again.solved, target.test), target.form).metric
    assert kept["metric"] == kept["finals"]["logistic"] == again.metric == fresh
    assert kept["interval"][0] < fresh < kept["interval"][1]
    assert kept["metric_name"] == kept["quality"]["name"] == "r2"
    assert "R²" in solution.sentence
    assert "R²" in (tmp_path / "report.html").read_text()
    old = {**solution.quality.to_dict(), "name": "R²"}
    assert type(solution.quality).from_dict(old).name == "r2", "solutions of version 0.1 are still read"


def decisions(solution: Solution) -> dict[str, Any]:
    """All that a run decided, without the figures of the test part."""
    standings = [
        {key: value for key, value in one.to_dict().items() if key not in ("test", "seconds")}
        for one in solution.standings
    ]
    for one in standings:
        if one["search"]:
            one["search"] = one["search"]["best"]["genotype"]
        if one["forecast"]:
            one["forecast"] = {name: value for name, value in one["forecast"].items() if "seconds" not in name}
    rankings = {name: [row["name"] for row in rows] for name, rows in solution.relations.rankings.items()}
    return {
        "chosen": solution.chosen,
        "temperature": solution.temperature,
        "margins": solution.margins,
        "standings": standings,
        "cells of": solution.relations.cells_of,
        "fine-tuned": solution.relations.tuned,
        "rankings": rankings,
    }


def test_permuted_test_labels_change_no_choice(kin_zoo: nk.Zoo) -> None:
    target = nk.task("digits?classes=0,1,2&rest=other&limit=260", name="new")
    labels = target.test.labels()
    mixed = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))]
    other = replace(target, test=replace(target.test, targets=Values(mixed)))
    plan = Plan(
        budget=Budget(evaluations=1), epochs=1, join=False, only=("kin-search", "finetune", "transfer", "lenet", "svm")
    )
    true, permuted = (solve(task, kin_zoo, plan=plan) for task in (target, other))
    assert decisions(true) == decisions(permuted)
    assert true.temperature != 1.0, "a temperature was learned"
    mine, theirs = (one.solved.trials[0] for one in (true, permuted))
    for name, value in {**mine.params, **mine.buffers}.items():
        assert torch.equal(value, {**theirs.params, **theirs.buffers}[name]), name
    assert true.metric - permuted.metric > 0.1, "only the reported figure knows the test labels"
    assert true.standing.test != permuted.standing.test
