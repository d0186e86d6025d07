"""Add the solved target to the zoo: networks with Fisher information, cells, and distances for the map."""

from dataclasses import replace

from nearkin.core.errors import NearkinError
from nearkin.core.events import Caution, Note, Work, operation
from nearkin.distance.matrix import DistanceMatrix
from nearkin.distance.registry import STRUCTURE
from nearkin.nets.adopted_spec import ADOPTED_FACTS
from nearkin.nets.recipe import Recipe
from nearkin.nets.registry import default_network
from nearkin.nets.solved import Solved
from nearkin.nets.training_loop import fit
from nearkin.search.searcher import NUM_BEST, ScoredGenotype
from nearkin.solver.allocation import JOINING, JOINING_LATER, pretrained_recipe
from nearkin.solver.contenders import search_skeleton
from nearkin.solver.contest import Contest
from nearkin.solver.encoder_head import model_facts, with_fitted_head
from nearkin.solver.kin import GAIN
from nearkin.solver.plan import Plan
from nearkin.solver.relations import Relations
from nearkin.solver.solution import KIND, Solution
from nearkin.store.records import TaskRecord
from nearkin.tasks.network_inputs import needs_adopted_network
from nearkin.tasks.task import Task
from nearkin.zoo.adopted_rows import store_solved
from nearkin.zoo.best_cells import BestCells
from nearkin.zoo.comparison import Comparison, shares_start
from nearkin.zoo.search import CELLS
from nearkin.zoo.zoo import Zoo

MAPPED = 12  # tasks on the map of a report, the target among them


def join_zoo(zoo: Zoo, task: Task, plan: Plan, contest: Contest, solution: Solution) -> Work[None]:
    """Add the target to the zoo; what is stored already stays unchanged."""
    relations = solution.relations
    yield from _add(zoo, task, plan, solution)
    cells = _best_cells(contest)
    if cells:
        skeleton = search_skeleton(contest.learn).to_dict()
        zoo.keep_cells(task.name, BestCells(CELLS, skeleton, plan.method, tuple(cells)))
    gain = _gain(contest)
    if relations.cells_of is not None and relations.distance is not None and gain is not None:
        facts = {"distance": relations.distance, "gain": gain, "form": relations.form}
        zoo.keep_pair(GAIN, relations.cells_of, task.name, 0, facts)


@operation
def add_solved(solution: Solution, task: Task, zoo: Zoo, plan: Plan) -> Work[None]:
    """Add the task of a short run to the zoo after its answer, in a few seconds that are not part of the budget."""
    yield from _add(zoo, replace(task, notes=()), plan, solution)
    keep_solution(zoo, solution)


def keep_solution(zoo: Zoo, solution: Solution) -> None:
    """Store a solution with its task."""
    zoo.keep(solution.name, KIND, solution.to_state(), {"chosen": solution.chosen, "metric": solution.metric})


def _add(zoo: Zoo, task: Task, plan: Plan, solution: Solution) -> Work[None]:
    """Train the networks that make the target comparable with others, unless it is in the zoo."""
    if task.name in zoo:
        return
    if needs_adopted_network(task):
        yield from _add_adopted(zoo, task, plan, solution)
        return
    network, recipe, seed, trials = _like_kin(zoo, task, plan, solution.relations)
    yield from zoo.add.work(
        task, network, trials=trials, recipe=recipe, seed=seed, device=str(plan.device), from_file=True
    )
    yield Note(f"'{task.name}' was added to the zoo, with its Fisher information")


def _add_adopted(zoo: Zoo, task: Task, plan: Plan, solution: Solution) -> Work[None]:
    """Add a task that few networks read, with the selected model.

    A model that has no gradients, such as that of closed-form transfer, is replaced by its source, fine-tuned.
    """
    results = sorted(solution.standings, key=lambda result: result.name != solution.chosen)
    sources = (result.settings.get("encoder") or result.settings.get("kin") for result in results)
    name = str(next(filter(None, sources)))
    source, solved = zoo.solved(name), solution.solved
    if solved.network != source.network:
        seen = source.inputs(task)
        model = with_fitted_head(source.model(), seen, plan.seed)
        recipe = _limited(pretrained_recipe(seen, flip=False, **plan.options()), plan, 1)
        trained = yield from fit.work(model, seen, recipe, seed=plan.seed, device=plan.device)
        solved = Solved(task.name, source.network, model_facts(source, task), source.seed, (trained,))
    yield from store_solved(zoo, task, solved, {ADOPTED_FACTS: zoo.record(name).facts.get(ADOPTED_FACTS, {})})
    yield Note(f"'{task.name}' was added to the zoo with the network of '{name}'")


def map_tasks(zoo: Zoo, task: Task, plan: Plan, relations: Relations) -> Work[DistanceMatrix | None]:
    """Distances between the target and its nearest tasks; None without any.

    Tasks with another kind of network or input shape are left out: to compare all pairs, each would have to be trained
    in every shape.
    """
    rows = relations.rankings.get(STRUCTURE, ())
    if not rows:
        return None
    records = {record.name: record for record in zoo.records()}
    same = [str(row["name"]) for row in rows if _comparable(records[str(row["name"])], records[task.name])]
    if not same:
        yield Note("no map: no related task has the target's network and input shape")
        return None
    names, trials = [*same[: MAPPED - 1], task.name], len(rows[0]["trials"])
    try:
        how = Comparison(measure=STRUCTURE, trials=trials, device=plan.device)
        return (yield from zoo.matrix.work(names, how=how))
    except NearkinError as error:
        yield Caution(f"no map: {error}")
        return None


def _comparable(first: TaskRecord, second: TaskRecord) -> bool:
    """Whether the networks of two tasks have the same architecture, input shape and initialisation."""
    return (first.network, first.input_shape, first.seed) == (second.network, second.input_shape, second.seed)


def _like_kin(zoo: Zoo, task: Task, plan: Plan, relations: Relations) -> tuple[str, Recipe, int, int]:
    """Network, recipe, seed and trials of the nearest trained task, which make the target comparable with it."""
    nearest = (zoo.record(name) for name in relations.nearest.values())
    record = next(filter(shares_start, nearest), None)  # networks that were trained elsewhere have no recipe
    if record is None:
        trials = plan.trials if plan.unhurried else 1
        return default_network(task), _limited(plan.recipe(task), plan, trials), plan.seed, trials
    recipe = Recipe(**record.facts["recipe"]).like(record.facts["num_train"], len(task.train))
    rows = next(iter(relations.rankings.values()))
    return record.network, _limited(recipe, plan, len(rows[0]["trials"])), record.seed, len(rows[0]["trials"])


def _limited(recipe: Recipe, plan: Plan, trials: int) -> Recipe:
    """The recipe with its share of the time limit of a run."""
    share = JOINING if plan.joins else JOINING_LATER
    return replace(recipe, seconds=share * plan.seconds / trials) if plan.focused and plan.seconds else recipe


def _best_cells(contest: Contest) -> list[ScoredGenotype]:
    """The best distinct cells of all searches."""
    every = [cell for outcome in contest.outcomes.values() for cell in outcome.found]
    by_text = {str(cell.genotype): cell for cell in sorted(every, key=lambda cell: cell.score)}
    return sorted(by_text.values(), key=lambda cell: -cell.score)[:NUM_BEST]


def _gain(contest: Contest) -> float | None:
    """Validation metric of the search from a related task's cells minus that of the search from scratch."""
    gains = {result.name: result.gain for result in contest.results if result.validation is not None}
    kin, scratch = gains.get("kin-search"), gains.get("full-search")
    return None if kin is None or scratch is None else kin - scratch
