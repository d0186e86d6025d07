"""Jobs on a zoo, and how operations are spread over them.

A job stores what it computes where the operation looks for it: trained trials in the unfinished work, distances with
the tasks. The operation then runs as without a runner and finds everything stored, so it ends in the same bits. What a
job could not do, the operation does again, and gives the reason if that fails too.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import torch

from nearkin.core.errors import NearkinError
from nearkin.core.events import Caution, Checkpoint, Work
from nearkin.core.state import State
from nearkin.nets.recipe import Recipe
from nearkin.run.jobs import JobPlace, JobSpec, job
from nearkin.run.runner import Runner, run_jobs
from nearkin.tasks.sources import task as read_task
from nearkin.tasks.task import Task
from nearkin.zoo.comparison import Comparison, StoredTarget
from nearkin.zoo.shortlist import every_trial
from nearkin.zoo.solved_tasks import SolvedTasks
from nearkin.zoo.trials import TrialCache


def spread_trials(
    zoo: SolvedTasks, runner: Runner, task: Task, network: str, recipe: Recipe, seed: int, trials: range,
    device: torch.device,
) -> Work[None]:  # fmt: skip
    """Train trials of a task by jobs; tasks that were made of arrays are left to the caller, as they have no name.

    Args:
        zoo: where the trained trials are stored.
        runner: who does the jobs.
        task: the task.
        network: network string.
        recipe: of the training.
        seed: of all random numbers.
        trials: numbers of the trials.
        device: where they are trained.
    """
    if not task.source or len(trials) < 2:
        return
    inputs = {
        "name": task.name, "data": task.source, "network": network,
        "recipe": recipe.to_dict(), "trials": len(trials), "device": str(device), "fingerprint": task.fingerprint(),
    }  # fmt: skip
    specs = [
        JobSpec(_path(train_trial), {**inputs, "trial": trial}, seed, f"'{task.name}', trial {trial + 1}")
        for trial in trials
    ]
    yield from _spread(runner, specs, f"trials of '{task.name}'")


@job
def train_trial(place: JobPlace, inputs: Mapping[str, Any], seed: int) -> Work[State]:
    """Train one trial of a task, and store it in the unfinished work of a zoo."""
    zoo = SolvedTasks(place.zoo, create=False, blobs=place.blobs)
    with closing(zoo.catalogue):
        task = read_task(inputs["data"], name=inputs["name"])
        cache = TrialCache.of(zoo.work, task, inputs["network"], Recipe(**inputs["recipe"]), seed)
        yield from cache.trial(inputs["trial"], inputs["trials"], torch.device(inputs["device"]))
    return State({}, {"trial": inputs["trial"]})


def spread_distances(
    zoo: SolvedTasks, runner: Runner, names: Sequence[str], how: Comparison, trials: int
) -> Work[None]:
    """Measure the distances of all pairs of tasks by jobs, one for each target.

    Args:
        zoo: where the distances are stored.
        runner: who does the jobs.
        names: names of the tasks.
        how: options of the comparison.
        trials: number of trials.
    """
    inputs = {
        "measure": how.measure, "options": dict(how.options), "samples": how.samples,
        "trials": trials, "device": str(how.device),
        "tasks": {name: zoo.record(name).fingerprint for name in names},
    }  # fmt: skip
    specs = [JobSpec(_path(measure_target), {**inputs, "target": name}, title=f"target '{name}'") for name in names]
    yield from _spread(runner, specs, f"targets by {how.measure}")


@job
def measure_target(place: JobPlace, inputs: Mapping[str, Any], seed: int) -> Work[State]:
    """Measure the distances of all sources to one target, and store them in a zoo."""
    zoo = SolvedTasks(place.zoo, create=False, blobs=place.blobs)
    with closing(zoo.catalogue):
        how = Comparison(
            measure=inputs["measure"], options=inputs["options"], samples=inputs["samples"],
            device=torch.device(inputs["device"]),
        )  # fmt: skip
        target, measured = StoredTarget(zoo, inputs["target"], how.device), 0
        for name in inputs["tasks"]:
            try:
                yield from every_trial(target.source(zoo.record(name)), target, inputs["trials"], how)
                measured += 1
            except NearkinError:  # the caller meets it too, and gives the reason
                pass
            yield Checkpoint(lambda: State({}))  # measured values are stored already
    return State({}, {"measured": measured})


def _path(function: Any) -> str:
    return f"{function.__module__}:{function.__name__}"


def _spread(runner: Runner, specs: Sequence[JobSpec], stage: str) -> Work[None]:
    """Do jobs; what they computed is stored, so their results are removed."""
    outcomes = yield from run_jobs(runner, specs, stage)
    runner.forget(specs)
    for spec, outcome in zip(specs, outcomes, strict=True):
        if isinstance(outcome, NearkinError):
            yield Caution(f"{spec.title} failed in a worker: {outcome}; it is done again here")
