"""Contenders of a run without a time limit by jobs: a job does the stages of one contender, and the contest finds them.

Without a time limit no contender depends on another. With one, every contender gets what the ones before it left, so
they stay in one process.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import fields, replace
from typing import Any

import torch

from nearkin.core.budget import Budget
from nearkin.core.clock import now
from nearkin.core.events import Caution, Note, Work, finish, map_events
from nearkin.core.state import State
from nearkin.run.jobs import JobPlace, job
from nearkin.run.stages import StageCache
from nearkin.solver.contenders import Contender
from nearkin.solver.contest import Contest
from nearkin.solver.plan import Plan
from nearkin.solver.solving import prepare_contest
from nearkin.tasks.task import Task
from nearkin.zoo.zoo import Zoo
from nearkin.zoo.zoo_jobs import do_jobs, named_task, read_named, spec_for

NOT_OF_CONTENDERS = ("join", "measure_zoo_value", "elapsed", "command")


class _Missing(Exception):
    """A stage is not stored."""


class _StoredStages(StageCache):
    """Stages that are only read."""

    def stage(
        self, name: str, inputs: Mapping[str, Any], work: Callable[[State | None], Work[State]], key: str | None = None
    ) -> Work[State]:
        """Read the result of a stage; raises if it is not stored."""

        def refuse(start: State | None) -> Work[State]:
            raise _Missing

        return super().stage(name, inputs, refuse, key)


def spread_contenders(zoo: Zoo, task: Task, contest: Contest, contenders: Sequence[Contender]) -> Work[None]:
    """Do the stages of contenders by jobs of the zoo's runner, unless there is a time limit.

    Args:
        zoo: the zoo, in which stages are stored.
        task: the target, without weights of classes.
        contest: with its plan; the time of the jobs is noted in it.
        contenders: those that take part.
    """
    runner, named = zoo.runner, named_task(zoo, task)
    if runner is None or named is None or contest.plan.seconds is not None:
        return
    left = [contender for contender in contenders if not _is_stored(contest, contender)]
    if len(left) < 2:
        return
    begun, inputs = now(), {"task": named, "plan": _plain(contest.plan)}
    specs = [
        spec_for(judge, {**inputs, "contender": one.name}, contest.plan.seed, f"the contender {one.name}")
        for one in left
    ]
    yield from do_jobs(runner, specs, "contenders")
    contest.waited += now() - begun


@job
def judge(place: JobPlace, inputs: Mapping[str, Any], seed: int) -> Work[State]:
    """Search and train one contender; its stages are stored in the zoo. Notes are left to the contest."""
    with closing(Zoo(place.zoo, create=False, blobs=place.blobs)) as zoo:
        task = read_named(zoo, inputs["task"])
        work = _judged(zoo, task, _plan(inputs["plan"]), inputs["contender"])
        yield from map_events(work, lambda event: None if isinstance(event, Note | Caution) else event)
    return State({}, {"contender": inputs["contender"]})


def _judged(zoo: Zoo, task: Task, plan: Plan, name: str) -> Work[None]:
    prepared = yield from prepare_contest(task, zoo, plan, zoo.stages(task))
    for contender in prepared.contenders:
        if contender.name == name:
            yield from prepared.contest.judge(contender)


def _is_stored(contest: Contest, contender: Contender) -> bool:
    """Whether all stages of a contender are stored."""
    stages = _StoredStages(contest.stages.checkpoints, contest.stages.data)
    copy = replace(contest, stages=stages, results=[], trained={}, outcomes={}, forecasts={})
    try:
        finish(copy.judge(contender))
    except _Missing:
        return False
    return True


def _plain(plan: Plan) -> dict[str, Any]:
    """The options that decide how contenders are trained, as JSON values."""
    values = {field.name: getattr(plan, field.name) for field in fields(plan) if field.name not in NOT_OF_CONTENDERS}
    values |= {"budget": vars(plan.budget), "device": str(plan.device), "training": dict(plan.training)}
    plain: dict[str, Any] = json.loads(json.dumps(values, default=dict))
    return plain


def _plan(plain: Mapping[str, Any]) -> Plan:
    """The inverse of `_plain`."""
    listed = {name: tuple(plain[name]) for name in ("measures", "hand_made", "only")}
    return Plan(**{**plain, **listed, "budget": Budget(**plain["budget"]), "device": torch.device(plain["device"])})


@contextmanager
def suited_runner(zoo: Zoo, plan: Plan) -> Iterator[None]:
    """In the block the zoo has no runner if the processor time of this process is limited, or time is short."""
    with zoo.alone() if plan.budget.cpu_minutes is not None or not plan.unhurried else nullcontext():
        yield
