"""Rank the tasks of a zoo by several measures, and choose whose cells and weights to use."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from nearkin.core.errors import NearkinError
from nearkin.core.events import Caution, Note, Work
from nearkin.core.state import State
from nearkin.distance.fisher_based.forms import DEFAULT, FALLBACK
from nearkin.distance.measure import Need
from nearkin.distance.ranking import Ranking
from nearkin.distance.registry import DEFAULT as DEFAULT_MEASURE
from nearkin.distance.registry import STRUCTURE, current_name, measure_named, title_of
from nearkin.nets.recipe import Recipe
from nearkin.nets.registry import build
from nearkin.run.stages import StageCache
from nearkin.search.spaces.registry import space as space_named
from nearkin.search.spaces.restricted import restrict_space
from nearkin.solver.nearness import Threshold, Trial, shipped, threshold
from nearkin.solver.plan import Plan
from nearkin.solver.relations import RankingRow, Relations, agreements
from nearkin.solver.sizing import step_seconds
from nearkin.store.records import TaskRecord
from nearkin.tasks.batches import num_batches
from nearkin.tasks.pixels import fitted_to
from nearkin.tasks.task import Task
from nearkin.zoo.comparison import Comparison, shares_start
from nearkin.zoo.near import rank_sources
from nearkin.zoo.search import CELLS, FULL, NEAREST, SearchDomain
from nearkin.zoo.zoo import Zoo

FEW_KIN = 12  # in larger zoos, measures that can screen compare this many tasks exactly
FEWEST_ALIKE = 3
TRAINING_SHARE = 0.15  # of a time limit, for networks of the target that a measure needs
GAIN = "solve gain"
"""Key of the stored gains from a related task's cells, by pair of tasks."""


class _Ranked(TypedDict):
    """Stored rankings: rows by measure, agreement of measures, and what could not be compared."""

    rankings: Mapping[str, Sequence[RankingRow]]
    agreement: dict[str, float]
    refused: dict[str, str]
    missing: list[str]
    seconds: float


def relate(zoo: Zoo, task: Task, plan: Plan, stages: StageCache, slowdown: float = 1.0) -> Work[Relations]:
    """Rank related tasks by every measure, then choose whose cells and weights are used.

    Args:
        zoo: the zoo.
        task: the target.
        plan: options of the run.
        stages: cache of finished stages.
        slowdown: seconds of the time limit for each second of processor time.
    """
    others = [record for record in zoo.records() if record.name != task.name]
    if not others or plan.hurried:
        why = "there was no time to look for related tasks" if others else "the zoo has no other task"
        return Relations(why=f"{why}, so the search has no cells to start from")
    known = [  # with the time, since a removed model may have a successor of the same name
        [record.name, record.fingerprint, record.network, record.trials, record.created, record.seconds]
        for record in others
    ]
    measures = [measure_named(name).stored_name for name in plan.quick_measures]
    inputs = {"data": task.fingerprint(), "zoo": known, "measures": measures, "trials": _trials(plan),
              "hurry": plan.seconds is not None, "form": [str(DEFAULT), str(FALLBACK)]}  # fmt: skip
    done = yield from stages.stage("kin", inputs, lambda _: _ranked(zoo, task, plan, slowdown))
    facts = done.read(_Ranked)
    rankings, missing = {current_name(name): rows for name, rows in facts["rankings"].items()}, facts["missing"]
    if not rankings:
        yield Caution(missing[0])
        return Relations(
            refused=facts["refused"],
            why="no task of the zoo could be compared",
        )
    for reason in missing:
        yield Caution(reason)
    tuned = next(
        (str(rows[0]["name"]) for name in (DEFAULT_MEASURE, *plan.measures) if (rows := rankings.get(name))), None
    )
    relations = Relations(
        rankings=rankings, agreement=facts["agreement"], refused=facts["refused"], tuned=tuned,
        seconds=facts["seconds"],
    )  # fmt: skip
    return (yield from _choose_cells(zoo, task.name, plan, relations))


def search_domains(zoo: Zoo, relations: Relations) -> tuple[SearchDomain | None, SearchDomain]:
    """The search domain of the chosen related task, if any, and the full one."""
    whole = SearchDomain(space_named(CELLS))
    if relations.cells_of is None:
        return None, whole
    cells = zoo.cells(relations.cells_of)
    assert cells is not None
    space = restrict_space(space_named(cells.space), cells.genotypes)
    return SearchDomain(space, cells.genotypes, relations.cells_of), whole


def own_trials(zoo: Zoo, target: str) -> tuple[Trial, ...]:
    """Recorded gains from a related task's cells, of earlier solutions in this zoo."""
    return tuple(
        Trial(source, name, facts["distance"], facts["gain"], "zoo", facts.get("form", ""))
        for name in zoo.names()
        if name != target
        for (source, _), facts in zoo.pairs(GAIN, name).items()
    )


def _trials(plan: Plan) -> int | None:
    return None if plan.unhurried else 1


def _ranked(zoo: Zoo, task: Task, plan: Plan, slowdown: float) -> Work[State]:
    """One ranking per measure; a measure that cannot compare this task is left out, with the reason."""
    rankings: list[Ranking] = []
    missing: list[str] = []
    own = task.name if task.name in zoo else None
    for measure in plan.quick_measures:
        sources = _sources(zoo, task, plan, measure)
        screen = FEW_KIN if measure_named(measure).screens and len(sources) > FEW_KIN else None
        how = Comparison(measure=measure, trials=_trials(plan), screen=screen, device=plan.device)
        if own is None and (reason := too_slow(task, plan, measure, sources, slowdown)):
            missing.append(f"no ranking by {measure}: {reason}")
            continue
        try:
            rankings.append((yield from rank_sources(zoo, own or task, how, sources, zoo.runner)))
        except NearkinError as error:
            missing.append(f"no ranking by {measure}: {error}")
    refused = {name: why for ranking in rankings for name, why in ranking.refused.items()}
    facts = {
        "rankings": {ranking.measure: ranking.rows() for ranking in rankings},
        "agreement": agreements(rankings),
        "refused": refused,
        "missing": missing,
        "seconds": sum(ranking.seconds for ranking in rankings),
    }
    return State({}, facts)


def too_slow(task: Task, plan: Plan, measure: str, sources: Sequence[TaskRecord], slowdown: float) -> str:
    """Why a measure takes too much of the time limit; empty if it does not, or if it was requested."""
    if (
        plan.seconds is None
        or plan.measures != Plan.measures
        or Need.TARGET_NETWORK not in measure_named(measure).needs
    ):
        return ""
    kinds = {(record.network, record.input_shape, record.seed): record for record in sources if shares_start(record)}
    seconds = slowdown * sum(_training_seconds(task, record) for record in kinds.values())
    if seconds <= TRAINING_SHARE * plan.seconds:
        return ""
    return f"training the networks that it needs would take about {seconds:.0f} of {plan.seconds:.0f} s"


def _training_seconds(task: Task, source: TaskRecord) -> float:
    """Estimated time of training the network of a source on the target."""
    try:
        seen = fitted_to(task, source.input_shape)
        model = build(source.network, seen.input_shape, seen.num_outputs, source.seed)
    except NearkinError:
        return 0.0  # the comparison refuses it with the reason
    recipe = Recipe(**source.facts["recipe"]).like(source.facts["num_train"], len(seen.train))
    steps = recipe.total_steps(num_batches(len(seen.train), recipe.batch_size))
    return steps * step_seconds(model, seen, recipe.batch_size)


def _sources(zoo: Zoo, task: Task, plan: Plan, measure: str) -> list[TaskRecord]:
    """Tasks that a measure compares.

    Some measures need a network of the target for each kind of network and input shape in the zoo. When time is short,
    they compare only tasks with the target's input shape, if there are enough of them.
    """
    others = [record for record in zoo.records() if record.name != task.name]
    alike = [record for record in others if record.input_shape == task.input_shape]
    short = plan.seconds is not None and Need.TARGET_NETWORK in measure_named(measure).needs
    return alike if short and len(alike) >= FEWEST_ALIKE else others


def _choose_cells(zoo: Zoo, target: str, plan: Plan, relations: Relations) -> Work[Relations]:
    """Choose whose cells the search starts from, and why."""
    measured = relations.rankings.get(STRUCTURE, [])
    rows = measured or next((rows for measure in plan.measures if (rows := relations.rankings.get(measure))), [])
    with_cells = [row for row in rows if zoo.cells(str(row["name"])) is not None]
    if plan.space == FULL:
        return _with(relations, why="a search in the full space was requested")
    if plan.space != NEAREST:
        zoo.record(plan.space)
        row: Mapping[str, Any] = next((row for row in measured if row["name"] == plan.space), {})
        return _with(relations, why=f"the cells of '{plan.space}' were requested", cells_of=plan.space,
                     distance=row.get("distance"), form=row.get("form", ""))  # fmt: skip
    if not with_cells:
        return _with(relations, why="no related task has cells to start from")
    nearest = with_cells[0]
    name, distance = str(nearest["name"]), float(nearest["distance"])
    if not measured:
        yield Caution(f"no {title_of(STRUCTURE)} could be measured: the nearest task may be too far")
        return _with(relations, why=f"'{name}' is the nearest task that has cells", cells_of=name)
    form = str(nearest.get("form", ""))
    limit = threshold([*shipped(), *own_trials(zoo, target)], form)
    near = limit.near(distance)
    verdict = "within" if near else "beyond"
    known = "learned limit" if limit.learned else "assumed limit"
    why = f"'{name}' is the nearest task that has cells, at {distance:.3f}, {verdict} the {known} {limit.value:.3f}"
    yield Note(f"{why} ({limit.form})")
    cells_of = name if near else None
    return _with(relations, why=why, cells_of=cells_of, distance=distance, near=near, form=form, limit=limit)


def _with(relations: Relations, *, why: str, limit: Threshold | None = None, **changes: Any) -> Relations:
    stated = None if limit is None else {**limit.to_dict(), "words": limit.words()}
    return Relations(**{**vars(relations), "why": why, "threshold": stated, **changes})
