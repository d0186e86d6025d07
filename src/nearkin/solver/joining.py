"""The solved target joins the zoo: its networks with their Fisher information, its cells, its place on the map."""

from nearkin.core.errors import NearkinError
from nearkin.core.events import Caution, Note, Work
from nearkin.distance.matrix import DistanceMatrix
from nearkin.distance.registry import STRUCTURE
from nearkin.nets.recipe import Recipe
from nearkin.nets.registry import default_network
from nearkin.search.searcher import NUM_BEST, ScoredGenotype
from nearkin.solver.contenders import search_skeleton
from nearkin.solver.contest import Contest
from nearkin.solver.kin import GAIN
from nearkin.solver.plan import Plan
from nearkin.solver.relations import Relations
from nearkin.store.records import TaskRecord
from nearkin.tasks.task import Task
from nearkin.zoo.cells import KeptCells
from nearkin.zoo.comparison import Comparison
from nearkin.zoo.search import CELLS
from nearkin.zoo.zoo import Zoo

MAPPED = 12  # tasks on the map of a report, the target among them


def join_zoo(zoo: Zoo, task: Task, plan: Plan, contest: Contest, relations: Relations) -> Work[None]:
    """Put the target into the zoo, so that the next task has one more kin; what is there already is left."""
    if task.name not in zoo:
        network, recipe, seed, trials = _like_kin(zoo, task, plan, relations)
        yield from zoo.add.work(
            task, network, trials=trials, recipe=recipe, seed=seed, device=str(plan.device), from_file=True
        )
        yield Note(f"{task.name} is in the zoo now, with its Fisher information")
    found = _best_cells(contest)
    if found:
        skeleton = search_skeleton(contest.learn).to_dict()
        zoo.keep_cells(task.name, KeptCells(CELLS, skeleton, plan.method, tuple(found)))
    gain = _gain(contest)
    if relations.cells_of is not None and relations.distance is not None and gain is not None:
        facts = {"distance": relations.distance, "gain": gain, "form": relations.form}
        zoo.keep_pair(GAIN, relations.cells_of, task.name, 0, facts)


def map_tasks(zoo: Zoo, task: Task, plan: Plan, relations: Relations) -> Work[DistanceMatrix | None]:
    """Distances of the target and its nearest kin to each other; None where there are none to draw.

    Tasks that were solved with another kind of network, or in another input shape, are left out: to compare all with
    all, each of them would have to be learned in every shape.
    """
    rows = relations.rankings.get(STRUCTURE, ())
    if not rows:
        return None
    records = {record.name: record for record in zoo.records()}
    same = [str(row["name"]) for row in rows if _alike(records[str(row["name"])], records[task.name])]
    if not same:
        yield Note("no kin has the target's network and input shape, so there is no map")
        return None
    names, trials = [*same[: MAPPED - 1], task.name], len(rows[0]["trials"])
    try:
        how = Comparison(measure=STRUCTURE, trials=trials, device=plan.device)
        return (yield from zoo.matrix.work(names, how=how))
    except NearkinError as error:
        yield Caution(f"there is no map: {error}")
        return None


def _alike(one: TaskRecord, other: TaskRecord) -> bool:
    """Whether two tasks' networks can be compared as they are."""
    return (one.network, one.input_shape, one.seed) == (other.network, other.input_shape, other.seed)


def _like_kin(zoo: Zoo, task: Task, plan: Plan, relations: Relations) -> tuple[str, Recipe, int, int]:
    """Network, recipe, seed and trials that make the target comparable with its kin: those of the nearest."""
    nearest = next(iter(relations.nearest.values()), None)
    if nearest is None:
        return default_network(task), plan.recipe(task), plan.seed, plan.trials if plan.unhurried else 1
    record = zoo.record(nearest)
    recipe = Recipe(**record.facts["recipe"]).like(record.facts["num_train"], len(task.train))
    rows = next(iter(relations.rankings.values()))
    return record.network, recipe, record.seed, len(rows[0]["trials"])


def _best_cells(contest: Contest) -> list[ScoredGenotype]:
    """The best of all searches, each once."""
    every = [one for outcome in contest.outcomes.values() for one in outcome.found]
    by_text = {str(one.genotype): one for one in sorted(every, key=lambda one: one.score)}
    return sorted(by_text.values(), key=lambda one: -one.score)[:NUM_BEST]


def _gain(contest: Contest) -> float | None:
    """What beginning with the kin's cells brought against beginning with nothing, on the data of the choice."""
    worth = {one.name: one.validation for one in contest.results}
    kin, nothing = worth.get("kin-search"), worth.get("full-search")
    return None if kin is None or nothing is None else kin - nothing
