"""Searches and trainings for several tasks by jobs: one job for each task.

Independent searches and the trainings of the evaluation phase do not depend on each other; a search that finds one
architecture for all tasks is one piece of work.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from nearkin.core.budget import Budget
from nearkin.core.events import Work
from nearkin.core.state import State
from nearkin.multitask.evaluation import EvaluationOptions, evaluate_tasks, evaluation_state
from nearkin.run.checkpoints import SUFFIX, facts_digest, resume
from nearkin.run.jobs import JobPlace, job
from nearkin.run.runner import Runner
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.searcher import SearchResult, run_search
from nearkin.tasks.task import Task
from nearkin.zoo.interleaving import Interleaving
from nearkin.zoo.solved_tasks import SolvedTasks
from nearkin.zoo.zoo_jobs import do_jobs, named_task, open_zoo, read_named, spec_for


def spread_searches(
    zoo: SolvedTasks, runner: Runner, tasks: Sequence[Task], how: Interleaving, seed: int
) -> Work[dict[int, SearchResult]]:
    """Results of independent searches by the number of their task; none if workers cannot read all tasks."""
    named = [named_task(zoo, task) for task in tasks]
    if None in named:
        return {}
    options = json.loads(json.dumps(dict(how.options)))
    inputs = {
        "tasks": named, "method": how.method, "num_rounds": how.num_rounds, "space": how.space, "options": options,
        "budget": vars(how.budget),
    }  # fmt: skip
    specs = [
        spec_for(search_alone, {**inputs, "number": number}, seed, f"the search for '{task.name}'")
        for number, task in enumerate(tasks)
    ]
    states = yield from do_jobs(runner, specs, "searches")
    return {number: state.read(SearchResult) for number, state in enumerate(states) if state is not None}


@job
def search_alone(place: JobPlace, inputs: Mapping[str, Any], seed: int) -> Work[State]:
    """Search an architecture for one of several tasks."""
    with open_zoo(place) as zoo:
        how = Interleaving(
            method=inputs["method"], num_rounds=inputs["num_rounds"], space=inputs["space"],
            options=inputs["options"], budget=Budget(**inputs["budget"]),
        )  # fmt: skip
        searcher = how.searchers([read_named(zoo, named) for named in inputs["tasks"]])[inputs["number"]]
        work = partial(run_search.work, searcher, how.budget, seed=seed)
        name = f"search-alone-{facts_digest({**inputs, 'seed': seed})}{SUFFIX}"
        done = yield from resume(zoo.work, name, lambda start: work(resume=start))
    return State({}, done.to_dict())


def spread_trainings(
    zoo: SolvedTasks,
    runner: Runner,
    genotypes: Sequence[Genotype],
    tasks: Sequence[Task],
    options: EvaluationOptions,
    seed: int,
    device: torch.device | None,
) -> Work[dict[str, State]]:
    """Trained networks by the name of their task, for `evaluate_tasks`; tasks that workers cannot read are left out."""
    named = {task.name: read for task in tasks if (read := named_task(zoo, task)) is not None}
    if len(named) < 2:
        return {}
    plain = json.loads(json.dumps(asdict(options)))
    genotype_of = {task.name: str(genotype) for genotype, task in zip(genotypes, tasks, strict=True)}
    specs = [
        spec_for(
            train_for_task,
            {"task": read, "genotype": genotype_of[name], "options": plain, "device": str(device or "cpu")},
            seed,
            f"the network for '{name}'",
        )
        for name, read in named.items()
    ]
    states = yield from do_jobs(runner, specs, "networks")
    return {name: state for name, state in zip(named, states, strict=True) if state is not None}


@job
def train_for_task(place: JobPlace, inputs: Mapping[str, Any], seed: int) -> Work[State]:
    """Train the network of a genotype for one task and measure it."""
    with open_zoo(place) as zoo:
        task, given = read_named(zoo, inputs["task"]), inputs["options"]
        options = EvaluationOptions(**{**given, "stages": given["stages"] and tuple(given["stages"])})
        genotype, device = Genotype.parse(inputs["genotype"]), torch.device(inputs["device"])
        work = partial(evaluate_tasks.work, genotype, [task], options, seed, device=device)
        name = f"network-{facts_digest({**inputs, 'seed': seed})}{SUFFIX}"
        done = yield from resume(zoo.work, name, lambda start: work(resume=start))
    return evaluation_state(done.tasks[task.name])
