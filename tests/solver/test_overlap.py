"""Kin that learned from validation or test samples of the target: they are found, and their weights are not used."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sql
import torch

import nearkin as nk
from nearkin.core.budget import Budget
from nearkin.core.errors import NearkinError
from nearkin.core.events import Caution, Event, finish
from nearkin.solver.overlap import SharedSamples, _preferred
from nearkin.solver.plan import Plan
from nearkin.solver.solution import Solution
from nearkin.solver.solving import solve
from nearkin.store import schema
from nearkin.tasks.sample_digests import sample_digests
from nearkin.zoo.solved_tasks import DIGESTS

PLAN = Plan(
    budget=Budget(evaluations=1), measures=("logme",), epochs=1, join=False, space="full",
    only=("finetune", "logistic"),
)  # fmt: skip
CLEAN = "digits?part=1/2&detect=0&limit=90"
SHARED = "digits?part=2/2&parity"  # holds all training samples of the target
TESTED = "digits?split=1&detect=6&limit=90"  # holds test samples of the target
TARGET = "digits?part=2/2&classes=0,1,2&rest=other&limit=200"


@pytest.fixture
def zoo(tmp_path: Path) -> Iterator[nk.Zoo]:
    with nk.Zoo(tmp_path / "zoo") as zoo:
        yield zoo


def add(zoo: nk.Zoo, tasks: Iterable[nk.Task]) -> None:
    for task in tasks:
        zoo.add(task, "mlp?hidden=8", trials=1, recipe=nk.Recipe(steps=5))


def solved(zoo: nk.Zoo, *more: str) -> tuple[Solution, list[str]]:
    """The solution, and its cautions."""
    events: list[Event] = []
    plan = replace(PLAN, only=(*PLAN.only, *more))
    solution = finish(solve.work(nk.task(TARGET, name="new"), zoo, plan=plan), events.append)
    return solution, [event.text for event in events if isinstance(event, Caution)]


def overlap_texts(solution: Solution) -> list[str]:
    return [finding.text for finding in solution.checks.findings if finding.kind == "overlap"]


def test_a_kin_without_shared_samples_is_preferred(zoo: nk.Zoo) -> None:
    add(zoo, (nk.task(SHARED, name="even"), nk.task(TESTED, name="six"), nk.task(CLEAN, name="zero")))
    solution, _ = solved(zoo)
    assert solution.relations.tuned == "zero"
    *_, last = overlap_texts(solution)
    assert "No validation or test sample was in the training set of 'zero', whose weights are used" in last
    assert {row["name"] for row in solution.relations.rankings["logme"]} == {"even", "six", "zero"}
    assert [result.settings["left_out"] for result in solution.standings if result.kind == "tuned"] == [0]


def test_a_kin_with_test_samples_is_a_serious_finding_and_lends_no_weights(zoo: nk.Zoo) -> None:
    add(zoo, [nk.task(TESTED, name="six")])
    solution, cautions = solved(zoo)
    assert solution.relations.tuned is None
    assert {result.name for result in solution.standings} == {"logistic"}
    known = set(sample_digests(nk.task(TESTED).train.inputs).tolist())
    shared = len(known & set(sample_digests(nk.task(TARGET).test.inputs).tolist()))
    [grave] = [finding for finding in solution.checks.grave if finding.kind == "overlap"]
    assert grave.text.startswith(f"{shared} of the 359 test samples were in the training set of 'six'; its network is")
    assert grave.facts == {"shared_test": {"six": shared}}
    assert grave.text in cautions


def test_a_kin_that_knows_most_validation_samples_lends_no_weights(zoo: nk.Zoo) -> None:
    add(zoo, [nk.task(SHARED, name="even")])
    solution, _ = solved(zoo)
    assert solution.relations.tuned is None
    assert overlap_texts(solution)[0].startswith("No related task lends its weights: too many")
    assert not [finding for finding in solution.checks.grave if finding.kind == "overlap"]


@pytest.mark.slow
def test_contenders_are_scored_without_the_few_shared_samples(zoo: nk.Zoo) -> None:
    add(zoo, [nk.task("digits?part=2/2&parity&limit=200", name="even")])
    solution, _ = solved(zoo, "transfer")
    assert solution.relations.tuned == "even"
    scores = {result.name: result for result in solution.standings}
    left_out = int(scores["finetune"].settings["left_out"])
    assert 0 < left_out <= 20
    assert overlap_texts(solution)[0].startswith(f"{left_out} of the 40 validation samples were in the training set")
    for name, count in (("finetune", 40 - left_out), ("transfer", 40 - left_out), ("logistic", 40)):
        right = (scores[name].validation or 0.0) * count
        assert right == pytest.approx(round(right), abs=1e-4)  # a number of samples out of `count`
    assert all(0 <= high - low <= 2 for _, low, high in solution.margins.values())


def test_samples_of_the_own_training_data_are_not_counted(zoo: nk.Zoo) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((300, 1, 6, 6)), np.arange(300) % 2
    x_test, y_test = np.concatenate([x[:5], rng.random((95, 1, 6, 6))]), np.arange(100) % 2
    add(zoo, [nk.Task.from_arrays("copies", np.concatenate([x[:5], rng.random((200, 1, 6, 6))]), np.arange(205) % 2,
                                  x_test=rng.random((40, 1, 6, 6)), y_test=np.arange(40) % 2)])  # fmt: skip
    events: list[Event] = []
    task = nk.Task.from_arrays("new", x, y, x_test, y_test)
    solution = finish(solve.work(task, zoo, plan=PLAN), events.append)
    assert not [finding for finding in solution.checks.grave if finding.kind == "overlap"]


def test_digests_are_stored_computed_for_old_tasks_and_unknown_without_data(zoo: nk.Zoo, tmp_path: Path) -> None:
    file = tmp_path / "t.npz"
    x, y = np.random.default_rng(0).random((60, 1, 8, 8)), np.arange(60) % 2
    np.savez(file, x_train=x, y_train=y)
    add(zoo, [nk.task(f"npz:{file}", name="old"), nk.Task.from_arrays("arrays", x, y)])
    for name in ("old", "arrays"):
        stored = zoo.train_digests(name)
        assert stored.dtype == torch.int64
        assert stored.tolist() == sorted(sample_digests(zoo.task(name).train.inputs).tolist())
        _forget(zoo)
        assert zoo.kept(name, DIGESTS) is None
        assert torch.equal(zoo.train_digests(name), stored)
        assert zoo.kept(name, DIGESTS) is not None  # computed once
    _forget(zoo)
    file.unlink()
    with pytest.raises(NearkinError):
        zoo.train_digests("old")
    zoo.remove("arrays")
    solution, cautions = solved(zoo)
    assert solution.relations.tuned == "old"
    assert [text for text in cautions if text.startswith("whether 'old' learned from validation or test samples is")]
    assert "whose weights are used, learned from validation or test samples is unknown" in overlap_texts(solution)[0]


def _forget(zoo: nk.Zoo) -> None:
    """Make all tasks as they were stored before digests were."""
    rows = schema.artifacts
    with zoo.catalogue.database.writing() as connection:
        connection.execute(sql.delete(rows).where(rows.c.kind == DIGESTS))


def test_clean_kin_come_before_shared_ones_and_these_before_unknown_ones() -> None:
    unknown = SharedSamples("unknown", unknown="no data")
    few, many = SharedSamples("few", (0, 1)), SharedSamples("many", tuple(range(6)))
    tested, clean = SharedSamples("tested", test=1), SharedSamples("clean")
    assert _preferred([tested, unknown, many, few, clean], 10) is clean
    assert _preferred([tested, unknown, many, few], 10) is few
    assert _preferred([tested, unknown, many], 10) is unknown
    assert _preferred([tested, many], 10) is None
