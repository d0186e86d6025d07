"""A run without a time limit whose contenders are trained by jobs gives the same solution."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import nearkin as nk
from counting_runner import CountingRunner
from nearkin.core.budget import Budget
from nearkin.core.events import Caution, Event, finish
from nearkin.solver import contender_jobs
from nearkin.solver.plan import Plan
from nearkin.solver.solution import Solution
from nearkin.solver.solving import solve

ONLY = ("kin-search", "finetune", "lenet", "logistic")


def facts(solution: Solution) -> Any:
    standings = [
        (one.name, one.validation, one.loss, one.test, one.genotype, one.refused) for one in solution.standings
    ]
    return solution.chosen, solution.metric, solution.finals, standings, solution.relations.rankings


def weights(solution: Solution) -> list[torch.Tensor]:
    return list(solution.solved.trials[0].params.values())


def test_contenders_are_trained_by_jobs(made_kin_zoo: Path, tmp_path: Path, target: nk.Task, quick: Plan) -> None:
    plan = replace(quick, only=ONLY, join=False, measures=("logme",))
    with nk.Zoo(shutil.copytree(made_kin_zoo, tmp_path / "alone")) as zoo:
        alone = solve(target, zoo, plan=plan)
    heard: list[Event] = []
    runner = CountingRunner(shutil.copytree(made_kin_zoo, tmp_path / "zoo"))
    with nk.Zoo(tmp_path / "zoo", runner=runner) as zoo:
        solution = finish(solve.work(target, zoo, plan=plan), heard.append)
        assert facts(solution) == facts(alone)
        assert all(map(torch.equal, weights(solution), weights(alone)))
        assert runner.counts() == {"measure_sources": 2, "judge": len(ONLY)}
        assert not any(isinstance(event, Caution) and "worker" in event.text for event in heard)
        assert "of work, shared by up to 2 workers." in solution.sentence
        assert solution.made["workers"] == 2
        stored = {name for name in zoo.stages(target).checkpoints.names() if name.startswith("train-")}
        again = solve(target, zoo, plan=plan)
        assert again.sentence == solution.sentence
        assert len(runner.jobs) == 2 + len(ONLY), "stored stages need no job"
        assert stored == {name for name in zoo.stages(target).checkpoints.names() if name.startswith("train-")}


def test_a_plan_survives_as_plain_values(quick: Plan) -> None:
    plan = replace(quick, class_weight={"0": 2.0}, metric="f1", training={"batch_size": 8}, width=0.5)
    other = contender_jobs._plan(contender_jobs._plain(plan))
    assert {**vars(other), "command": ""} == {**vars(plan), "command": ""}


def test_a_limit_of_processor_time_uses_no_workers(tmp_path: Path) -> None:
    runner = CountingRunner(tmp_path / "zoo")
    with nk.Zoo(tmp_path / "zoo", runner=runner) as zoo:
        with contender_jobs.suited_runner(zoo, Plan(budget=Budget(cpu_minutes=5))):
            assert zoo.runner is None
        with contender_jobs.suited_runner(zoo, Plan(budget=Budget(minutes=5))):
            assert zoo.runner is runner
        assert zoo.runner is runner
