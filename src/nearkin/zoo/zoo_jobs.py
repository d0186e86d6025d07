"""Jobs on a zoo: how operations are spread over them, and the trainings of trials.

A job stores what it computes where the operation looks for it, as trained trials in the unfinished work, or returns it,
and the operation takes it in before it starts. The operation then runs as without a runner and finds everything, so it
ends in the same bits. What a job could not do, the operation does again, and gives the reason if that fails too.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, TypeAlias

import torch

from nearkin.core.errors import DataError, NearkinError, require
from nearkin.core.events import Caution, Work
from nearkin.core.state import State
from nearkin.nets.recipe import Recipe
from nearkin.run.jobs import JobFunction, JobPlace, JobSpec, job
from nearkin.run.runner import Runner, run_jobs
from nearkin.tasks.network_inputs import NetworkInputs
from nearkin.tasks.sources import task as read_task
from nearkin.tasks.task import Task
from nearkin.zoo.solved_tasks import SolvedTasks
from nearkin.zoo.trials import TrialCache

NamedTask: TypeAlias = dict[str, Any]
"""How a worker reads a task: name, data string (empty for a task of the zoo) and fingerprint of the data."""


def stored_task(zoo: SolvedTasks, name: str) -> NamedTask:
    """How a worker reads a task of the zoo."""
    return {"name": name, "data": "", "fingerprint": zoo.record(name).fingerprint}


def named_task(zoo: SolvedTasks, task: Task) -> NamedTask | None:
    """How a worker reads a task; None for one made of arrays that is not in the zoo, which only this process has."""
    if task.source:
        return {"name": task.name, "data": task.source, "fingerprint": task.fingerprint()}
    known = task.name in zoo and zoo.record(task.name).fingerprint == task.fingerprint()
    return stored_task(zoo, task.name) if known else None


def read_named(zoo: SolvedTasks, named: NamedTask) -> Task:
    """The task of a job; its data must be those of the process that submitted the job."""
    if not named["data"]:
        return zoo.task(named["name"])
    task = read_task(named["data"], name=named["name"])
    require(
        task.fingerprint() == named["fingerprint"],
        f"the data of '{task.name}' are others in this worker than in the command; give all workers the same data",
        DataError,
    )
    return task


@contextmanager
def open_zoo(place: JobPlace) -> Iterator[SolvedTasks]:
    """The zoo of a worker, closed at the end of the block."""
    zoo = SolvedTasks(place.zoo, create=False, blobs=place.blobs)
    with closing(zoo.catalogue):
        yield zoo


def num_workers(runner: Runner) -> int:
    """Number of jobs that a runner does at the same time."""
    return int(getattr(runner, "workers", 1))


def spec_for(function: JobFunction, inputs: Mapping[str, Any], seed: int = 0, title: str = "") -> JobSpec:
    """The specification of a job whose result depends on the version of torch."""
    path = f"{function.__module__}:{function.__name__}"
    return JobSpec(path, {**inputs, "torch": torch.__version__}, seed, title)


def do_jobs(runner: Runner, specs: Sequence[JobSpec], stage: str, keep: bool = False) -> Work[list[State | None]]:
    """Do jobs and remove their stored results, unless `keep`; None and a caution for a job that failed."""
    outcomes = yield from run_jobs(runner, specs, stage)
    if not keep:
        runner.forget(specs)
    done: list[State | None] = []
    for spec, outcome in zip(specs, outcomes, strict=True):
        if isinstance(outcome, NearkinError):
            yield Caution(f"{spec.title} failed in a worker: {outcome}; it is done again here")
        done.append(None if isinstance(outcome, NearkinError) else outcome)
    return done


def spread_trials(
    runner: Runner, cache: TrialCache, named: NamedTask | None, trials: Sequence[int], count: int,
    device: torch.device, inputs_of: str = "",
) -> Work[None]:  # fmt: skip
    """Train trials of a task by jobs, which store them in its cache.

    Trials with a time limit are left to the caller, and those of a task that workers cannot read.

    Args:
        runner: who does the jobs.
        cache: of the trials.
        named: how workers read the task, before its inputs are changed to the shape of the cache's task.
        trials: numbers of the trials.
        count: number of all trials.
        device: where they are trained.
        inputs_of: name of a model of the zoo whose preprocessing the cache's task has (default: that of no model).
    """
    if named is None or len(trials) < 2 or cache.recipe.seconds is not None:
        return
    inputs = {
        "task": named, "shape": list(cache.task.input_shape), "network": cache.network,
        "recipe": cache.recipe.to_dict(), "trials": count, "device": str(device),
        **({"inputs_of": inputs_of} if inputs_of else {}),
    }  # fmt: skip
    name = cache.task.name
    specs = [spec_for(train_trial, {**inputs, "trial": n}, cache.seed, f"'{name}', trial {n + 1}") for n in trials]
    yield from do_jobs(runner, specs, f"trials of '{name}'")


@job
def train_trial(place: JobPlace, inputs: Mapping[str, Any], seed: int) -> Work[State]:
    """Train one trial of a task, and store it in the unfinished work of a zoo."""
    with open_zoo(place) as zoo:
        reader = inputs.get("inputs_of")
        prepared = zoo.network_inputs(zoo.record(reader)) if reader else NetworkInputs(tuple(inputs["shape"]))
        task = prepared(read_named(zoo, inputs["task"]))
        cache = TrialCache.of(zoo.work, task, inputs["network"], Recipe(**inputs["recipe"]), seed)
        yield from cache.trial(inputs["trial"], inputs["trials"], torch.device(inputs["device"]))
    return State({}, {"trial": inputs["trial"]})
