"""Solve a task: data checks, related tasks, searches, trainings, selection, and an entry in the zoo.

Every stage is stored in the zoo's folder `stages`, resumes after an interruption, and is read again if its inputs did
not change. The answer is selected on a validation set; the test set is used once, to report the result.
"""

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, NotRequired, TypedDict

import torch

from nearkin.core.budget import Budget
from nearkin.core.clock import LoadMeter, timed_by
from nearkin.core.device import device as chosen_device
from nearkin.core.errors import TrainingError, ZooError, require
from nearkin.core.events import Caution, Note, Work, operation
from nearkin.core.lazy import Lazy
from nearkin.core.state import State
from nearkin.nets.solved import Solved
from nearkin.run.stages import StageCache
from nearkin.solver.claims import check_claims
from nearkin.solver.contenders import Contender
from nearkin.solver.contest import Contest
from nearkin.solver.finals import final_model, has_time_for
from nearkin.solver.finetuning_forecast import signals_of
from nearkin.solver.joining import add_solved, join_zoo, keep_solution, map_tasks
from nearkin.solver.kin import relate, search_domains
from nearkin.solver.load import LoadEffect, load_effect
from nearkin.solver.model_outputs import metric_on_test, quality_on_test
from nearkin.solver.overlap import choose_weight_source
from nearkin.solver.plan import Plan, require_answerable
from nearkin.solver.quality import Quality
from nearkin.solver.relations import Relations
from nearkin.solver.result import ordered
from nearkin.solver.roster import contenders, search_contender
from nearkin.solver.run_noise import run_noise, with_run_noise
from nearkin.solver.schedule import run_equally, run_focused
from nearkin.solver.sentence import sentence
from nearkin.solver.solution import KIND, ZOO_STAGES, Solution
from nearkin.solver.without_zoo import estimate, measure_zoo_value
from nearkin.tasks.checks.data_checks import Checks, check_data
from nearkin.tasks.derive import class_weighted
from nearkin.tasks.network_inputs import needs_adopted_network
from nearkin.tasks.sources import task as read_task
from nearkin.tasks.task import Task
from nearkin.tasks.texts import is_text
from nearkin.zoo.recorded_runs import record_run, recorded_runs
from nearkin.zoo.search import FULL, NEAREST
from nearkin.zoo.zoo import Zoo

if TYPE_CHECKING:
    from nearkin.solver import contender_jobs
    from nearkin.zoo import zoo_jobs
else:
    contender_jobs, zoo_jobs = Lazy("nearkin.solver.contender_jobs"), Lazy("nearkin.zoo.zoo_jobs")

OTHER_WORK = "start, scores and report values"
"""Name of the time that belongs to no stage."""


class _Seconds(TypedDict):
    """Time that belongs to no stage, and the number of workers if there were any."""

    seconds: float
    workers: NotRequired[int]


class _Slowdown(TypedDict):
    """Wall time of a run divided by its processor time."""

    slowdown: float


@operation
def solve(
    target: Task | str,
    zoo: Zoo,
    budget: Budget | None = None,
    *,
    seed: int = 0,
    device: str = "auto",
    plan: Plan | None = None,
    restart: bool = False,
    **options: object,
) -> Work[Solution]:
    """Solve a task with the help of a zoo, and add it to the zoo; after an interruption the same call continues.

    Args:
        target: a task, or a data string, which is then also its name.
        zoo: solved tasks; it may be empty.
        budget: total minutes, or cells of each search (default: 5 minutes).
        seed: seed of everything random.
        device: `auto`, `cpu` or `cuda`.
        plan: all options as one value, instead of budget, seed, device and options.
        restart: discard stored stages of earlier calls for this task's data.
        **options: of `nearkin.solver.plan.Plan`: measures, space, method, hand_made, only, validation, ….
    """
    task = read_task(target) if isinstance(target, str) else target
    if plan is None:
        limits = {} if budget is None else {"budget": budget}
        plan = Plan(seed=seed, device=chosen_device(device), **limits, **options)  # type: ignore[arg-type]
    require_answerable(task, plan.metric, plan.class_weight)
    _require_own(zoo, task)
    _require_space(zoo, plan)
    clock = plan.budget.clock()
    meter = None if plan.budget.minutes is None else LoadMeter(clock)
    with contender_jobs.suited_runner(zoo, plan) if zoo.runner else nullcontext():
        return (yield from timed_by(clock, _solve(task, zoo, plan, restart, meter)))


@dataclass(frozen=True)
class Prepared:
    """A contest before its first contender.

    Attributes:
        contest: without results.
        contenders: those that take part.
        relations: related tasks.
        checks: of the data.
    """

    contest: Contest
    contenders: list[Contender]
    relations: Relations
    checks: Checks


def prepare_contest(
    task: Task, zoo: Zoo, plan: Plan, stages: StageCache, meter: LoadMeter | None = None
) -> Work[Prepared]:
    """Check the data, compare related tasks and choose the contenders; all of it is stored as stages."""
    checks = yield from _checked(task, plan, stages)
    relations = yield from relate(zoo, task, plan, stages, 1.0 if meter is None else meter.read())
    runs = [run for run in recorded_runs(zoo) if run.target != task.name]
    contest = Contest(class_weighted(task, plan.class_weight), plan, stages, meter=meter, recorded=runs)
    searches = _searches(contest, zoo, relations) if plan.searches(task) else ()
    if not searches:
        yield Note(_why_no_search(task, plan))
    source = yield from choose_weight_source(zoo, task, contest.learn, plan, relations, checks, stages)
    relations, contest.left_out = source.relations, source.left_out
    checks = replace(checks, findings=(*checks.findings, *source.findings))
    kin = None if relations.tuned is None else zoo.solved(relations.tuned)
    return Prepared(contest, (yield from contenders(contest, zoo, searches, kin)), relations, checks)


def _solve(task: Task, zoo: Zoo, plan: Plan, restart: bool, meter: LoadMeter | None) -> Work[Solution]:
    """Solve a task; the clock is that of the plan's budget."""
    stages = zoo.stages(task)
    if restart:
        stages.checkpoints.clear()
    for line in task.notes:
        yield Note(line)
    ready = yield from prepare_contest(task, zoo, plan, stages, meter)
    contest, relations, checks = ready.contest, ready.relations, ready.checks
    if zoo.runner is not None:
        contest.workers = zoo_jobs.num_workers(zoo.runner)
        yield from contender_jobs.spread_contenders(zoo, task, contest, ready.contenders)
    yield from (run_focused if plan.focused else run_equally)(contest, ready.contenders)
    _record_finetuning(zoo, contest)
    chosen = contest.selected()
    reason = contest.results[0].refused if contest.results else ""
    require(
        chosen is not None, f"no model could be trained for '{task.name}'; the first reason: {reason}", TrainingError
    )
    assert chosen is not None
    finals = {chosen: (yield from final_model(contest, chosen))}
    simple = next((result.name for result in ordered(contest.results) if result.kind == "simple"), chosen)
    if simple not in finals and has_time_for(contest, simple):
        finals[simple] = yield from final_model(contest, simple)
    solution = yield from _solution(task, plan, contest, checks, relations, finals, chosen)
    if plan.join and plan.hurried:
        yield Note(f"'{task.name}' is not added to the zoo: a run of {plan.seconds:.0f} s has no time for its networks")
    if plan.measure_zoo_value:
        run = lambda task, zoo, plan: solve.work(task, zoo, plan=plan)  # noqa: E731
        solution = replace(solution, zoo_value=(yield from measure_zoo_value(solution, task, zoo, plan, run)))
    if plan.joins_later:
        yield from add_solved.work(solution, task, zoo, plan)
    if not plan.joins:
        return solution
    yield from stages.timed(ZOO_STAGES[0], join_zoo(zoo, replace(task, notes=()), plan, contest, solution))
    matrix = yield from stages.timed(ZOO_STAGES[1], map_tasks(zoo, task, plan, relations))
    solution = yield from _with_times(replace(solution, matrix=matrix), contest)
    keep_solution(zoo, solution)
    return solution


def kept_solution(zoo: Zoo, name: str) -> Solution | None:
    """Stored solution of a task; None without one."""
    state = zoo.kept(name, KIND)
    return None if state is None else Solution.from_state(state, f"the solution of '{name}'")


def _require_own(zoo: Zoo, task: Task) -> None:
    """A name that exists in the zoo must belong to the same data."""
    if task.name in zoo:
        require(
            zoo.record(task.name).fingerprint == task.fingerprint(),
            f"the zoo has a task '{task.name}' with other data; choose another name, or remove it: "
            f"nearkin remove {task.name}",
            ZooError,
        )
    else:
        zoo.catalogue.claimable(task.name)


def _require_space(zoo: Zoo, plan: Plan) -> None:
    """A task whose cells are requested must have some; checked before anything is measured."""
    if plan.space not in (NEAREST, FULL):
        require(
            plan.space in zoo,
            f"unknown space {plan.space!r}; choose {NEAREST}, {FULL}, or a task of the zoo that has cells "
            f"({', '.join(name for name in zoo.names() if zoo.cells(name) is not None) or 'none has'})",
            ZooError,
        )
        require(
            zoo.cells(plan.space) is not None,
            f"'{plan.space}' has no cells; choose another space, or search some: nearkin add {plan.space} … --cell",
            ZooError,
        )


def _checked(task: Task, plan: Plan, stages: StageCache) -> Work[Checks]:
    quick = plan.focused and not plan.unhurried

    def work(_: State | None) -> Work[State]:
        return State({}, (yield from check_data.work(task, seed=plan.seed, quick=quick)).to_dict())

    done = yield from stages.stage(
        "checks of the data",
        {"data": task.fingerprint(), "seed": plan.seed, **({"quick": True} if quick else {})},
        work,
        "checks",
    )
    checks = done.read(Checks)
    for finding in checks.grave:
        yield Caution(finding.text)
    return checks


def _searches(contest: Contest, zoo: Zoo, relations: Relations) -> Sequence[Contender]:
    """Searches from the cells of a related task, at random in the same space, and in the full space."""
    (near, whole), method = search_domains(zoo, relations), contest.plan.method
    full = search_contender(contest, "full-search", "search in the full space", whole, method)
    if near is None:
        return full, search_contender(contest, "random-search", "random search in the full space", whole, "random")
    control = replace(near, first=())  # the paper's control: random draws without the cells of the related task
    title = f"random search in the space of '{near.kin}', without its cells"
    return (
        search_contender(contest, "kin-search", f"search from the cells of '{near.kin}'", near, method),
        search_contender(contest, "random-search", title, control, "random"),
        full,
    )


def _record_finetuning(zoo: Zoo, contest: Contest) -> None:
    """Store the curves of fine-tuning runs, so that later forecasts learn from them."""
    for name, facts in contest.forecasts.items():
        signals, trained = signals_of(facts), contest.trained.get(name, [])
        if signals is not None and trained:
            contender, history = trained[0].contender, trained[0].solved.trials[0].history
            assert contender.source is not None
            assert contender.sized is not None
            recipe = contender.sized.recipe
            record_run(zoo, contender.source.name, contest.task, contender.source.network, recipe, history, signals)


def _why_no_search(task: Task, plan: Plan) -> str:
    if plan.hurried:
        return f"{plan.seconds:.0f} s are too few for networks: only simple models are fitted"
    if needs_adopted_network(task):
        inputs = "texts" if is_text(task) else "named"
        return f"no architecture search: cells are for images, and the inputs are {inputs}"
    if len(task.input_shape) != 3:
        return "no architecture search: cells are for images, and the inputs are a table"
    return f"no architecture search: {len(task.train)} training samples are too few to compare cells"


def _solution(
    task: Task,
    plan: Plan,
    contest: Contest,
    checks: Checks,
    relations: Relations,
    finals: dict[str, tuple[Solved, int]],
    chosen: str,
) -> Work[Solution]:
    best = next(result for result in contest.results if result.name == chosen)
    (solved, _), temperature = finals[chosen], contest.temperature(chosen)
    quality, scores = quality_on_test(task, solved, temperature, contest.metric)
    solved = replace(solved, trials=(replace(solved.trials[0], scores=scores), *solved.trials[1:]))
    quality = with_run_noise(quality, run_noise(contest, chosen, quality.metric))
    quality = replace(quality, load=(yield from _load_effect(contest, chosen, quality)))
    rows = torch.tensor([mistake.row for mistake in quality.mistakes], dtype=torch.int64)
    standings, margins = tuple(contest.results), contest.margins(chosen)
    test_scores = {
        name: quality.metric if name == best.name else metric_on_test(task, solved, contest.metric)
        for name, (solved, _) in finals.items()
    }
    solution = Solution(
        solved=solved,
        chosen=best.name,
        sentence="",
        task=task.facts(),
        quality=quality,
        temperature=temperature,
        standings=standings,
        margins=margins,
        finals=test_scores,
        samples={
            "available": len(contest.learn.train),
            **({"cross_validated": True} if contest.cross_validated else {}),
            "finals": {name: count for name, (_, count) in finals.items()},
        },
        relations=relations,
        zoo_value=estimate(contest),
        checks=checks,
        promises=check_claims(standings, relations, quality.name),
        stages=(),
        matrix=None,
        pictures=task.test.inputs.take(rows) if len(rows) else torch.zeros(0),
        seed=plan.seed,
        made={
            **plan.facts(),
            "allocation": contest.why,
            "command": plan.command,
            "versions": _versions(),
            "data": task.source,
        },
    )
    return (yield from _with_times(solution, contest))


def _load_effect(contest: Contest, chosen: str, quality: Quality) -> Work[LoadEffect | None]:
    """What a busy machine changed; stored like a stage, so that a run that reads all stages states the same."""
    plan = contest.plan
    if contest.meter is None or plan.budget.cpu_minutes is not None:
        return None

    def work(_: State | None) -> Work[State]:
        yield from ()
        return State({}, {"slowdown": contest.slowdown})

    inputs = {"chosen": chosen, "seconds": plan.seconds, "seed": plan.seed, "metric": quality.metric}
    slowdown = (yield from contest.stages.stage(OTHER_WORK, inputs, work, key="load")).read(_Slowdown)["slowdown"]
    trained = any(contender.networks or contender.domain for contender in contest.contenders_of(chosen))
    return load_effect(slowdown, quality.name, quality.metric, quality.interval, contest.images, trained)


def _with_times(solution: Solution, contest: Contest) -> Work[Solution]:
    """The solution with the time of all stages so far and of the rest, and the sentence with the time of the answer.

    The rest is stored like a stage, so that a run that reads all stages gives the same times.
    """
    plan, stages = contest.plan, contest.stages
    measured = solution.zoo_value.measured  # a run of its own, outside the budget
    rest = plan.elapsed + stages.elapsed - stages.seconds - (0.0 if measured is None else measured.seconds)
    rest -= contest.waited

    def work(_: State | None) -> Work[State]:
        yield from ()
        return State({}, {"seconds": max(0.0, rest), **({"workers": contest.workers} if contest.workers else {})})

    names = {OTHER_WORK, *ZOO_STAGES}
    inputs = {"stages": [[time.stage, time.seconds] for time in stages.times if time.stage not in names]}
    other = (yield from stages.stage(OTHER_WORK, inputs, work, key="other-work")).read(_Seconds)
    seconds, workers = other["seconds"], other.get("workers", 0)
    times = tuple(replace(time, seconds=seconds) if time.stage == OTHER_WORK else time for time in stages.times)
    made = {**solution.made, **({"workers": workers} if workers else {})}
    solution = replace(solution, stages=times, made=made)
    answer = sentence(
        solution.name, solution.standing, solution.standings, solution.quality, solution.margins,
        solution.answer_seconds, solution.finals, workers, summed=plan.seconds is None,
    )  # fmt: skip
    return replace(solution, sentence=answer)


def _versions() -> dict[str, str]:
    names = ("nearkin", "torch", "numpy", "scikit-learn")
    return {"python": sys.version.split()[0], **{name: version(name) for name in names}}
