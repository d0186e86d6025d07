"""One architecture for several tasks: search it, train it for each task, and measure it.

All of it is one `Work`; unfinished work is stored in the zoo's `work/` and resumed from there.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nearkin.core.budget import Budget
from nearkin.core.clock import now
from nearkin.core.errors import OptionError, require
from nearkin.core.events import Note, Work
from nearkin.core.lazy import Lazy
from nearkin.core.memory import peak_mebibytes
from nearkin.core.options import read_options
from nearkin.core.state import State
from nearkin.distance.registry import STRUCTURE
from nearkin.multitask.evaluation import DETECTION, EvaluationOptions, TasksEvaluation, evaluate_tasks
from nearkin.multitask.joint.independent import run_searches
from nearkin.multitask.methods import Searchers, multitask_method
from nearkin.multitask.multitask_search import MultitaskSearch
from nearkin.multitask.multitask_state import MultitaskState, merge_forgetting
from nearkin.multitask.named_options import gradient_fields, gradient_options
from nearkin.multitask.task_order import order_by_distance
from nearkin.run.checkpoints import SUFFIX, facts_digest, read_stored, resume
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.networks.skeleton import Skeleton
from nearkin.search.plasticity.telemetry import Forgetting, summary
from nearkin.search.searcher import SearchResult
from nearkin.search.spaces.mobile import MobileSpace
from nearkin.search.spaces.registry import space as space_named
from nearkin.tasks.task import Task
from nearkin.zoo.comparison import Comparison
from nearkin.zoo.near import compare_all
from nearkin.zoo.search import solved_network
from nearkin.zoo.solved_tasks import SolvedTasks

if TYPE_CHECKING:
    from nearkin.run.runner import Runner
    from nearkin.zoo import interleave_jobs
else:
    interleave_jobs = Lazy("nearkin.zoo.interleave_jobs")

GIVEN, NEAR = "given", "near"
ORDERS = (GIVEN, NEAR)


@dataclass(frozen=True, kw_only=True)
class Interleaving:
    """Options of a search for several tasks, checked on construction.

    Attributes:
        method: a name of `nearkin.multitask.methods`.
        num_rounds: M, turns of every task in a pass.
        space: a space string of cells or chains.
        order: `given`, or `near`: neighbours by the distance matrix of the zoo follow each other.
        measure: distance of `near`.
        budget: limit of the search.
        options: of the method and of its supernets, by name; text is converted to the option's type.
        evaluation: networks and trainings of the evaluation phase.
    """

    method: str = "interleave"
    num_rounds: int = 2
    space: str = "darts"
    order: str = GIVEN
    measure: str = STRUCTURE
    budget: Budget = field(default_factory=Budget)
    options: Mapping[str, Any] = field(default_factory=dict)
    evaluation: EvaluationOptions = field(default_factory=lambda: EvaluationOptions(channels=16, num_cells=8))

    def __post_init__(self) -> None:
        method = multitask_method(self.method)
        require(self.num_rounds >= 1, f"the number of rounds must be 1 or more, got {self.num_rounds}")
        require(self.order in ORDERS, f"order must be {' or '.join(ORDERS)}, got {self.order!r}")
        known = (*method.options, *gradient_fields())
        object.__setattr__(self, "options", read_options(known, self.options, self.method))
        space = space_named(self.space)
        if isinstance(space, MobileSpace) and self.evaluation.stages is None:
            object.__setattr__(self, "evaluation", replace(self.evaluation, stages=space.stages))

    def searchers(self, tasks: Sequence[Task]) -> Searchers:
        """The search for all tasks, or one for each."""
        method = multitask_method(self.method)
        own = {option.name for option in method.options}
        mine = {name: value for name, value in self.options.items() if name in own}
        stride = max(Skeleton.of_task(task).stem_stride for task in tasks)
        gradient = gradient_options({"stem_stride": stride, **self.options})
        return method.build(tasks, space_named(self.space), gradient, self.num_rounds, mine)

    def facts(self) -> dict[str, Any]:
        """All options that affect the course of the search, except its budget."""
        names = ("method", "num_rounds", "space", "order", "measure")
        return {**{name: getattr(self, name) for name in names}, "options": dict(self.options)}


@dataclass(frozen=True)
class InterleavePlan:
    """What a search will cost, from a trial of three passes.

    Attributes:
        order: names of the tasks in the order of their turns.
        stages: number of stages in a pass: turns of all tasks and the step of the architecture.
        passes: number of passes.
        weights: number of weights of all supernets.
        mebibytes: largest memory of the process so far, with one pass that has a transfer.
        seconds: time of the search; the trainings after it are not part of it.
    """

    order: tuple[str, ...]
    stages: int
    passes: int
    weights: int
    mebibytes: float
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "order": list(self.order)}


@dataclass(frozen=True, eq=False)
class InterleavedSearch:
    """Result of a search for several tasks, with the trained networks.

    Attributes:
        outcomes: result of the search; for independent searches one for each task.
        evaluated: networks that were trained from scratch, with their figures on the test sets.
        tasks: the tasks in the order of their turns.
        how: options of the search.
        distances: distances of all pairs of tasks in this order, if they gave it.
    """

    outcomes: tuple[SearchResult, ...]
    evaluated: TasksEvaluation
    tasks: tuple[Task, ...]
    how: Interleaving
    distances: Tensor | None = None

    @property
    def order(self) -> list[str]:
        """Names of the tasks in the order of their turns."""
        return [task.name for task in self.tasks]

    @property
    def genotypes(self) -> list[Genotype]:
        """The genotype of every task: the same for all, unless the searches were independent."""
        best = [outcome.best.genotype for outcome in self.outcomes]
        return best * len(self.tasks) if len(best) == 1 else best

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """Figures of every task after its turn in each round, in the last pass of every epoch."""
        return [record for outcome in self.outcomes for record in outcome.details.get("rounds", ())]

    @property
    def active(self) -> list[float]:
        """Share of pairs of augmentation sets that were active, for every pass with transfer."""
        return list(self.outcomes[0].details.get("active", ()))

    @property
    def forgetting(self) -> list[Forgetting]:
        """Forgetting of every epoch over all tasks."""
        return merge_forgetting([outcome.forgetting for outcome in self.outcomes])

    @property
    def search_seconds(self) -> float:
        """Time of the search."""
        return sum(outcome.seconds for outcome in self.outcomes)

    def to_dict(self) -> dict[str, Any]:
        """The result as plain JSON values."""
        outcome = self.outcomes[0]
        return {
            "order": self.order,
            "method": self.how.method,
            "space": self.how.space,
            "genotype": str(self.genotypes[0]),
            **({"genotypes": dict(zip(self.order, map(str, self.genotypes), strict=True))}
               if len(self.outcomes) > 1 else {}),
            "metrics": self.evaluated.metrics(),
            "tasks": self.evaluated.to_dict()["tasks"],
            "num_rounds": self.how.num_rounds,
            "rounds": self.rounds,
            "active_fraction": fmean(self.active) if self.active else None,
            "active": self.active,
            "forgetting": summary(self.forgetting),
            "search": {
                "facts": dict(outcome.best.facts), "steps": outcome.steps, "seconds": self.search_seconds,
                "reason": outcome.reason,
            },
            "seconds": self.search_seconds + self.evaluated.seconds,
            **({} if self.distances is None else {"distances": self.distances.tolist()}),
        }  # fmt: skip


def interleave_tasks(
    zoo: SolvedTasks,
    targets: Sequence[Task | str],
    how: Interleaving,
    *,
    seed: int = 0,
    device: torch.device | None = None,
    restart: bool = False,
    runner: "Runner | None" = None,
) -> Work[InterleavedSearch]:
    """Search one architecture for several tasks and train it for each; the same call resumes an interrupted one.

    Args:
        zoo: the zoo.
        targets: new tasks, or names of tasks in the zoo; two or more.
        how: options.
        seed: of all random numbers.
        device: where the networks of the evaluation are trained.
        restart: discard the unfinished work of an interrupted call.
        runner: does independent searches, and the trainings of the evaluation, at the same time (default: one after
            the other).
    """
    tasks, distances = yield from ordered_tasks(zoo, targets, how, runner)
    searchers, work = how.searchers(tasks), zoo.work
    facts = _facts(tasks, how, seed)
    with_budget = {**facts, "budget": vars(how.budget)}
    unfinished, finished = _name("interleave", facts), _name("interleaved", with_budget)
    training = _name("interleave-training", {**with_budget, "evaluation": asdict(how.evaluation)})
    if restart:
        for name in (unfinished, finished, training):
            work.remove(name)
    outcomes, begun = (yield from read_stored(work, finished, _read_results)), work.names()
    if outcomes is None:
        known: dict[int, SearchResult] = {}
        if runner is not None and len(searchers) > 1 and unfinished not in begun:
            known = yield from interleave_jobs.spread_searches(zoo, runner, tasks, how, seed)
        outcomes = yield from resume(
            work,
            unfinished,
            lambda start: run_searches.work(searchers, how.budget, seed=seed, resume=start, known=known),
        )
        work.write(finished, State({}, {"results": [outcome.to_dict() for outcome in outcomes]}))
    else:
        yield Note("the search is finished; continuing with the trainings of its genotype")
    best = [outcome.best.genotype for outcome in outcomes]
    best = best * len(tasks) if len(best) == 1 else best
    trained: dict[str, State] = {}
    if runner is not None and training not in begun:
        trained = yield from interleave_jobs.spread_trainings(zoo, runner, best, tasks, how.evaluation, seed, device)
    evaluated = yield from resume(
        work,
        training,
        lambda start: evaluate_tasks.work(best, tasks, how.evaluation, seed, start, device=device, trained=trained),
    )
    work.remove(finished)
    return InterleavedSearch(outcomes, evaluated, tuple(tasks), how, distances)


def keep_networks(zoo: SolvedTasks, result: InterleavedSearch, seed: int) -> list[str]:
    """Store the trained networks with those tasks that are in the zoo, as searched networks; returns their names."""
    kept = []
    for task in result.tasks:
        done = result.evaluated.tasks[task.name]
        if task.name in zoo and task.likelihood != DETECTION:
            skeleton = result.how.evaluation.skeleton(done.genotype, task)
            zoo.keep_architecture(task.name, solved_network(task, done, skeleton, seed))
            kept.append(task.name)
    return kept


def plan_interleaving(
    zoo: SolvedTasks, targets: Sequence[Task | str], how: Interleaving, *, seed: int = 0
) -> Work[InterleavePlan]:
    """Try three passes of a search, and estimate its time and memory from them."""
    tasks, _ = yield from ordered_tasks(zoo, targets, how)
    seconds, passes, weights, memory = 0.0, 0, 0, 0.0
    for searcher in how.searchers(tasks):
        assert isinstance(searcher, MultitaskSearch)
        state = searcher.init(seed)
        spent = yield from _mean_pass_seconds(searcher, state)
        total = searcher.gradient.epochs * searcher.passes_per_epoch(state.streams)
        seconds, passes, memory = seconds + total * spent, passes + total, peak_mebibytes()
        weights += searcher.num_weights(state)
    stages = how.num_rounds * len(tasks) + 1
    return InterleavePlan(tuple(task.name for task in tasks), stages, passes, weights, memory, seconds)


def _mean_pass_seconds(searcher: MultitaskSearch, state: MultitaskState) -> Work[float]:
    """Mean time of a pass with a step of the architecture, over passes with a transfer and those without one."""
    every = searcher.transfer_every
    warm = int(searcher.gradient.warmup * searcher.passes_per_epoch(state.streams))
    first = every * math.ceil(warm / every)
    seconds = []
    for done in (first, first, first + 1):  # the first one is a rehearsal
        state.done, start = done, now()
        yield from searcher.step(state)
        seconds.append(now() - start)
    _, with_transfer, without = seconds
    return (with_transfer + (every - 1) * without) / every


def ordered_tasks(
    zoo: SolvedTasks, targets: Sequence[Task | str], how: Interleaving, runner: "Runner | None" = None
) -> Work[tuple[list[Task], Tensor | None]]:
    """The tasks in the order of their turns, and their distances in this order if these give it."""
    require(
        len(targets) >= 2,
        f"got {len(targets)} {'task' if len(targets) == 1 else 'tasks'}, expected two or more that share an "
        f"architecture; for one task use nearkin search",
    )
    tasks = [zoo.task(target) if isinstance(target, str) else target for target in targets]
    if how.order == GIVEN:
        return tasks, None
    names = [target for target in targets if isinstance(target, str)]
    if len(names) < len(targets):
        other = next(target.name for target in targets if isinstance(target, Task))
        raise OptionError(f"order near needs tasks of the zoo, and {other!r} is not one; add it, or use order given")
    matrix = yield from compare_all(zoo, names, Comparison(measure=how.measure), runner)
    require(len(matrix.tasks) == len(names), "not all tasks can be compared; use order given")
    order = order_by_distance(matrix.mean)
    yield Note(f"order by {how.measure}: {', '.join(names[number] for number in order)}")
    return [tasks[number] for number in order], matrix.mean[order][:, order]


def _read_results(state: State) -> tuple[SearchResult, ...]:
    return tuple(SearchResult.from_dict(facts) for facts in state.facts["results"])


def _facts(tasks: Sequence[Task], how: Interleaving, seed: int) -> dict[str, Any]:
    """All that affects the course of a search, except its budget: a longer search resumes a shorter one."""
    versions = {"nearkin": version("nearkin"), "torch": torch.__version__}
    return {"tasks": [task.fingerprint() for task in tasks], "seed": seed, **how.facts(), "versions": versions}


def _name(kind: str, facts: Mapping[str, Any]) -> str:
    """Name of unfinished work with these facts."""
    return f"{kind}-{facts_digest(facts)}{SUFFIX}"
