"""One architecture for several tasks beside a zoo: it resumes to the same bits; its order and its plan."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import nearkin as nk
from interrupting import Stop, stopping_at
from multitask_examples import without_times
from nearkin.core.budget import Budget
from nearkin.core.errors import OptionError
from nearkin.core.events import Event, Note, finish
from nearkin.multitask.evaluation import EvaluationOptions
from nearkin.multitask.task_order import loop_length
from nearkin.zoo import interleaving
from nearkin.zoo.interleaving import InterleavedSearch, Interleaving, plan_interleaving
from nearkin.zoo.zoo import Zoo

HOW = Interleaving(
    space="general?nodes=3&operations=zero+identity+conv3",
    options={"epochs": 3, "warmup": 1, "channels": 4, "num_cells": 2, "batch_size": 24, "num_sets": 8,
             "num_augmentations": 3, "every": 1, "watched": 2, "entropy": 0.0},
    evaluation=EvaluationOptions(channels=4, num_cells=2, epochs=2),
)  # fmt: skip
DATA = {"low": "digits?classes=0,1,2&rest=drop&limit=48", "high": "digits?classes=5,6&rest=drop&limit=48"}


@pytest.fixture(scope="module")
def tasks() -> list[nk.Task]:
    return [nk.task(data, name=name) for name, data in DATA.items()]


@pytest.fixture(scope="module")
def whole(tasks: list[nk.Task], tmp_path_factory: pytest.TempPathFactory) -> InterleavedSearch:
    """The search without an interruption."""
    return Zoo(tmp_path_factory.mktemp("whole")).interleave(tasks, how=HOW)


def figures(result: InterleavedSearch) -> Any:
    return without_times(result.to_dict())


def heard(zoo: Zoo, tasks: list[nk.Task], how: Interleaving = HOW, **more: bool) -> tuple[InterleavedSearch, str]:
    events: list[Event] = []
    found = finish(zoo.interleave.work(tasks, how=how, **more), events.append)
    return found, " ".join(event.text for event in events if isinstance(event, Note))


def stop(zoo: Zoo, tasks: list[nk.Task], number: int) -> None:
    with pytest.raises(Stop):
        finish(zoo.interleave.work(tasks, how=HOW), stopping_at(number))


def test_stopped_at_every_second_checkpoint_it_ends_in_the_same_bits(
    tmp_path: Path, tasks: list[nk.Task], whole: InterleavedSearch
) -> None:
    zoo, stops, kinds = Zoo(tmp_path), 0, set()
    while True:
        try:
            found = finish(zoo.interleave.work(tasks, how=HOW), stopping_at(2))
            break
        except Stop:
            stops += 1
            kinds |= {file.name.rpartition("-")[0] for file in (tmp_path / "work").glob("*.safetensors")}
    assert stops >= 3
    assert kinds >= {"interleave", "interleave-training"}, "it was stopped in the search and in the trainings"
    assert figures(found) == figures(whole)
    for name, done in found.evaluated.tasks.items():
        expected = whole.evaluated.tasks[name].network.state_dict()
        assert all(torch.equal(value, expected[key]) for key, value in done.network.state_dict().items())
    assert not list((tmp_path / "work").glob("*.safetensors"))


def test_the_same_call_continues_and_restart_does_not(
    tmp_path: Path, tasks: list[nk.Task], whole: InterleavedSearch
) -> None:
    zoo = Zoo(tmp_path)
    for restart in (False, True):
        stop(zoo, tasks, 2)
        found, notes = heard(zoo, tasks, restart=restart)
        assert ("resumed after" in notes) is not restart
        assert figures(found) == figures(whole)


def test_a_finished_search_serves_another_training_but_not_another_budget(tmp_path: Path, tasks: list[nk.Task]) -> None:
    zoo = Zoo(tmp_path)
    stop(zoo, tasks, 4)  # three passes, then the first training
    assert list((tmp_path / "work").glob("interleaved-*"))
    other = replace(HOW, evaluation=replace(HOW.evaluation, epochs=1))
    found, notes = heard(zoo, tasks, other)
    assert "the search is finished; continuing with the trainings" in notes
    assert found.outcomes[0].steps == 3
    stop(zoo, tasks, 4)
    shorter, notes = heard(zoo, tasks, replace(HOW, budget=Budget(steps=2)))
    assert "the search is finished" not in notes
    assert shorter.outcomes[0].steps == 2


def test_the_result_says_what_was_searched(whole: InterleavedSearch) -> None:
    facts = whole.to_dict()
    assert facts["order"] == ["low", "high"]
    assert facts["metrics"] == {name: facts["tasks"][name]["metric"] for name in DATA}
    assert len(facts["rounds"]) == 3 * 2 * 2
    assert {(record["round"], record["task"]) for record in facts["rounds"]} == {(m, k) for m in (1, 2) for k in DATA}
    assert len(facts["active"]) == 3
    assert facts["active_fraction"] == pytest.approx(sum(facts["active"]) / 3)
    assert [epoch["architectures"] for epoch in facts["forgetting"]["epochs"]] == [2, 2, 2]
    assert "distances" not in facts


def test_independent_searches_have_a_genotype_for_each_task(tmp_path: Path, tasks: list[nk.Task]) -> None:
    own = {name: value for name, value in HOW.options.items() if name not in ("num_sets", "num_augmentations", "every")}
    found = Zoo(tmp_path).interleave(tasks, how=replace(HOW, method="independent", options=own))
    facts = found.to_dict()
    assert facts["genotypes"].keys() == DATA.keys()
    assert {name: done["genotype"] for name, done in facts["tasks"].items()} == facts["genotypes"]
    assert facts["active_fraction"] is None


def test_near_tasks_take_their_turns_one_after_the_other(tmp_path: Path) -> None:
    zoo = Zoo(tmp_path)
    for name, data in {"a": "0,1", "b": "5,6", "c": "0,2", "d": "5,7"}.items():
        task = nk.task(f"digits?classes={data}&rest=drop&limit=60", name=name)
        zoo.add(task, "mlp?hidden=8", trials=1, recipe=nk.Recipe(steps=5))
    short = replace(HOW, order="near", budget=Budget(steps=1), evaluation=replace(HOW.evaluation, epochs=1))
    found = zoo.interleave(["a", "b", "c", "d"], how=short)
    assert sorted(found.order) == ["a", "b", "c", "d"]
    assert found.distances is not None
    assert found.distances.shape == (4, 4)
    assert loop_length(found.distances, range(4)) <= loop_length(found.distances, [0, 2, 1, 3]) + 1e-12
    matrix = zoo.matrix(["a", "b", "c", "d"], short.measure)
    places = ["a", "b", "c", "d"]
    rows = [places.index(name) for name in found.order]
    torch.testing.assert_close(found.distances, matrix.mean[rows][:, rows])
    assert found.to_dict()["distances"] == found.distances.tolist()
    with pytest.raises(OptionError, match="order near needs tasks of the zoo, and 'new' is not one"):
        zoo.interleave(["a", nk.task(DATA["high"], name="new")], how=short)


def test_a_plan_counts_what_the_search_does(tmp_path: Path, tasks: list[nk.Task], whole: InterleavedSearch) -> None:
    plan = finish(plan_interleaving(Zoo(tmp_path), tasks, HOW))
    assert (plan.order, plan.stages, plan.passes) == (("low", "high"), 5, whole.outcomes[0].steps)
    (searcher,) = HOW.searchers(tasks)
    slots = searcher.init(0).slots
    assert plan.weights == sum(weight.numel() for slot in slots for weight in slot.supernet.parameters())
    assert plan.seconds > 0 < plan.mebibytes
    assert not list((tmp_path / "work").glob("*.safetensors"))


@pytest.mark.parametrize(("every", "mean"), [(1, 9.0), (8, (9.0 + 7 * 1.0) / 8)])
def test_the_time_of_a_plan_weighs_passes_with_and_without_transfer(
    tmp_path: Path, tasks: list[nk.Task], monkeypatch: pytest.MonkeyPatch, every: int, mean: float
) -> None:
    """By this clock a rehearsal takes 100 s, a pass with transfer 9 s and one without 1 s."""
    clock = iter((0.0, 100.0, 100.0, 109.0, 109.0, 110.0))
    monkeypatch.setattr(interleaving, "now", lambda: next(clock))
    plan = finish(plan_interleaving(Zoo(tmp_path), tasks, replace(HOW, options={**HOW.options, "every": every})))
    assert plan.seconds == pytest.approx(plan.passes * mean)


def test_options_of_the_python_call(tmp_path: Path, tasks: list[nk.Task], whole: InterleavedSearch) -> None:
    options = {"space": HOW.space, "options": dict(HOW.options), "evaluation": HOW.evaluation}
    assert figures(Zoo(tmp_path).interleave(tasks, 2, **options)) == figures(whole)
