"""Runs with a time limit: cross-validation of small tables, deferred entry in the zoo, honest times."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import nearkin as nk
from nearkin.core.events import Event, Note, finish
from nearkin.solver.kin import too_slow
from nearkin.solver.plan import Plan
from nearkin.solver.solving import solve

BUDGET = nk.Budget(cpu_minutes=0.2)


def table(count: int = 200) -> nk.Task:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(count + 80, 5, generator=rng)
    y = (x[:, 0] + 0.5 * x[:, 1] + 0.8 * torch.randn(count + 80, generator=rng) > 0).long()
    return nk.Task.from_arrays("sums", x[:count], y[:count], x[count:], y[count:])


@pytest.mark.soak
@pytest.mark.slow
def test_a_small_table_is_cross_validated_and_stored_with_the_zoo_afterwards(tmp_path: Path) -> None:
    events: list[Event] = []
    with nk.Zoo(tmp_path / "zoo") as zoo:
        solution = finish(solve.work(table(), zoo, plan=Plan(budget=BUDGET)), events.append)
        assert zoo.names() == ["sums"], "the task is added after the answer"
    results = {result.name: result for result in solution.standings}
    assert solution.samples["cross_validated"]
    assert solution.quality.load is None, "the limit is one of processor time"
    assert results["mlp"].settings["networks"] == 5
    assert "five parts" in _page(solution)
    assert solution.seconds <= 1.1 * 12, "the answer keeps to the limit; joining is not part of it"
    assert sum(stage.seconds for stage in solution.stages) == solution.seconds
    assert not any(stage.stage == "adding to the zoo" for stage in solution.stages)
    solution.save(tmp_path / "solution.safetensors")
    again = nk.Solution.load(tmp_path / "solution.safetensors")
    x = table().test.inputs.take(torch.arange(10))
    assert torch.allclose(again.predict(x).probabilities, solution.predict(x).probabilities)  # type: ignore[arg-type]
    assert any(isinstance(event, Note) and "all models share the time" in event.text for event in events)


def _page(solution: nk.Solution) -> str:
    from nearkin.report.solution_page import solution_page

    return solution_page(solution)


def test_when_a_run_cross_validates_and_when_it_joins() -> None:
    plan, images = Plan(budget=BUDGET), nk.task("digits?limit=300")
    assert plan.cross_validates(table())
    assert not plan.cross_validates(table(2001))
    assert not plan.cross_validates(images), "a short run has time for one network only"
    assert replace(plan, budget=nk.Budget(minutes=2)).cross_validates(images)
    assert not replace(plan, compare_all=True).cross_validates(table())
    assert not Plan(budget=nk.Budget(evaluations=1)).cross_validates(table())
    assert (plan.joins, plan.joins_later) == (False, True)
    longer = replace(plan, budget=nk.Budget(minutes=1))
    assert (longer.joins, longer.joins_later) == (True, False)
    assert longer.reserved() > replace(longer, join=False).reserved()
    assert not replace(plan, join=False).joins_later
    assert not Plan(budget=nk.Budget(minutes=0.1)).joins_later, "simple models only"


def test_a_measure_that_would_train_too_long_is_left_out(kin_zoo: nk.Zoo, target: nk.Task) -> None:
    records, plan = kin_zoo.records(), Plan(budget=nk.Budget(minutes=2))
    for slowdown, left_out in ((1e-9, False), (1e6, True)):
        reason = too_slow(target, plan, "frechet", records, slowdown)
        assert bool(reason) is left_out
    assert "of 120 s" in reason
    assert not too_slow(target, plan, "logme", records, 1e6), "needs no network of the target"
    asked = Plan(budget=nk.Budget(minutes=2), measures=("frechet",))
    assert not too_slow(target, asked, "frechet", records, 1e6), "what was requested is measured"
    assert not too_slow(target, Plan(budget=nk.Budget(evaluations=1)), "frechet", records, 1e6), (
        "without a time limit everything is measured"
    )
