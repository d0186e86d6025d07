"""What the zoo brought in one run: an estimate on the validation set, and a second run with an empty zoo on request."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from nearkin.core.errors import NearkinError
from nearkin.core.events import Note, Work
from nearkin.run.stages import StageCache
from nearkin.solver.contenders import Contender
from nearkin.solver.contest import Contest
from nearkin.solver.model_outputs import predictions
from nearkin.solver.overlap import STAGE
from nearkin.solver.paired import paired_difference
from nearkin.solver.plan import Plan
from nearkin.solver.result import ordered
from nearkin.solver.solution import Solution
from nearkin.solver.zoo_value import RANKING, MeasuredValue, ZooValue
from nearkin.tasks.task import Task
from nearkin.zoo.search import NEAREST
from nearkin.zoo.zoo import Zoo


def uses_kin(contender: Contender) -> bool:
    """Whether a contender uses weights, cells or the search space of a related task."""
    return contender.source is not None or (contender.domain is not None and contender.domain.kin is not None)


def estimate(contest: Contest) -> ZooValue:
    """Compare the best contender that uses a related task with the best that uses none, on the validation set."""
    ranked = ordered(contest.results)
    kin = [result for result in ranked if any(map(uses_kin, contest.contenders_of(result.name)))]
    others = [result for result in ranked if result not in kin]
    stages = {stage.stage: stage.seconds for stage in contest.stages.times}
    ranking = stages.get("kin", 0.0) + stages.get(STAGE, 0.0)
    return ZooValue(
        with_kin=kin[0].name if kin else "",
        without_kin=others[0].name if others else "",
        difference=contest.lead(kin[0].name, others[0].name) if kin and others else None,
        seconds={**({RANKING: ranking} if ranking else {}), **{result.name: result.seconds for result in kin}},
    )


class _EmptyZoo(Zoo):
    """An empty zoo that shares the finished stages of another: equal trainings are not repeated."""

    def __init__(self, path: Path, stages: StageCache) -> None:
        super().__init__(path)
        self._stages = stages

    def stages(self, task: Task) -> StageCache:
        return self._stages


def _empty_zoo(path: Path, zoo: Zoo, task: Task, plan: Plan) -> Zoo:
    """An empty zoo. With a time limit nothing is shared: without kin the other contenders have more time."""
    return _EmptyZoo(path, zoo.stages(task)) if plan.seconds is None else Zoo(path)


def measure_zoo_value(
    solution: Solution, task: Task, zoo: Zoo, plan: Plan, run: Callable[[Task, Zoo, Plan], Work[Solution]]
) -> Work[ZooValue]:
    """Run the same plan with an empty zoo, and compare both models on the test set; it takes the budget once more.

    Args:
        solution: the answer with the zoo.
        task: the target.
        zoo: the zoo.
        plan: of the run.
        run: solves a task with a zoo and a plan.
    """
    value = solution.zoo_value
    if not value.with_kin:
        return replace(value, not_measured="no contender used a related task")
    yield Note(solution.sentence)
    yield Note("the same plan is now run with an empty zoo, to measure what the zoo brought; this is not in the budget")
    space = plan.space if plan.space not in zoo else NEAREST
    join = plan.join and plan.seconds is not None  # adding the task takes a share of a limited time
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            _empty_zoo(Path(folder) / "zoo", zoo, task, plan) as empty,
        ):
            other = yield from run(task, empty, replace(plan, space=space, join=join, measure_zoo_value=False))
    except NearkinError as error:
        return replace(value, not_measured=str(error))
    first, second = (predictions(one.solved, task.test, one.temperature) for one in (solution, other))
    difference = paired_difference(first, second, task.test.labels())
    measured = MeasuredValue(
        chosen=other.standing.title, metric=other.metric, difference=difference, seconds=other.seconds
    )
    return replace(value, measured=measured)
