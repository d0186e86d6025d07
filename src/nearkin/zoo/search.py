"""Architecture search with a zoo: in a whole space, or in the space of the cells of a named or the nearest task.

Steps: select a space and initial genotypes, search, train the best genotype from scratch. All of it is one `Work`;
unfinished work is stored in the zoo's `work/` and resumed from there.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch

from nearkin.core.budget import Budget
from nearkin.core.errors import ZooError, require
from nearkin.core.events import Caution, Note, Work
from nearkin.core.lazy import Lazy
from nearkin.core.options import read_options
from nearkin.core.state import State, copied
from nearkin.distance.registry import STRUCTURE
from nearkin.nets.evaluate import Scores
from nearkin.nets.history import History
from nearkin.nets.recipe import Recipe
from nearkin.nets.solved import Solved
from nearkin.nets.training_loop import Fit
from nearkin.run.checkpoints import SUFFIX, Checkpoints, facts_digest, read_stored, resume
from nearkin.search.cost import Costs
from nearkin.search.genotype_evaluation import GenotypeEvaluation, evaluate_genotype
from nearkin.search.genotypes.genotype import Genotype, Recurrent
from nearkin.search.networks.build import Skeleton
from nearkin.search.networks.named import network_string
from nearkin.search.plasticity.telemetry import summary
from nearkin.search.registry import PROXY, SearchProblem, method_named, searcher
from nearkin.search.searcher import SearchResult, run_search, stored_method
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.mobile import MobileSpace
from nearkin.search.spaces.registry import space as space_named
from nearkin.search.spaces.restricted import RestrictedSpace, restrict_space
from nearkin.tasks.task import Task
from nearkin.zoo.best_cells import BestCells
from nearkin.zoo.comparison import Comparison
from nearkin.zoo.near import rank_sources
from nearkin.zoo.solved_tasks import SolvedTasks

if TYPE_CHECKING:
    from nearkin.run.runner import Runner
    from nearkin.zoo import search_jobs
else:
    search_jobs = Lazy("nearkin.zoo.search_jobs")

NEAREST = "nearest"
FULL = "full"


@dataclass(frozen=True, kw_only=True)
class Search:
    """Options of an architecture search.

    Attributes:
        method: a name of `nearkin.search.registry`.
        space: `full` (the method's whole space), `nearest` (that of the nearest task of the zoo that has cells), the
            name of such a task, or a space string.
        budget: limit of the search.
        skeleton: macro-architecture in which genotypes are compared.
        final: macro-architecture of the best one (default: `skeleton`).
        proxy: recipe of the trainings that compare genotypes one at a time.
        recipe: of the training of the best one (default: one that suits the task).
        measure: distance that defines `nearest`.
        parameters: maximal number of a network's parameters, in `skeleton`.
        multiply_adds: maximal number for one input.
        latency: maximal seconds for one input.
        options: of the method, checked against `Method.options`; text is converted to the option's type.
        seed_cells: whether a search in a kin's space starts with the kin's own cells. Without them `random` is the
            paper's control: draws from the nearest task's space, and nothing else.
    """

    method: str = "fuse"
    space: str = NEAREST
    budget: Budget = field(default_factory=Budget)
    skeleton: Skeleton
    final: Skeleton | None = None
    proxy: Recipe = PROXY
    recipe: Recipe | None = None
    measure: str = STRUCTURE
    parameters: int | None = None
    multiply_adds: int | None = None
    latency: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    seed_cells: bool = True

    def __post_init__(self) -> None:
        method = method_named(self.method)
        object.__setattr__(self, "method", method.name)
        object.__setattr__(self, "options", read_options(method.options, self.options, method.name))

    def facts(self) -> dict[str, Any]:
        """All options that affect the course of the search, except its budget."""
        names = ("space", "measure", "parameters", "multiply_adds", "latency", "seed_cells")
        return {
            "method": stored_method(self.method),
            **{name: getattr(self, name) for name in names},
            "skeleton": self.skeleton.to_dict(),
            "proxy": self.proxy.to_dict(),
            "options": dict(self.options),
        }


@dataclass(frozen=True)
class SearchDomain:
    """Domain of a search: a space, initial genotypes, and the task that they come from."""

    space: Space
    first: tuple[Genotype, ...] = ()
    kin: str | None = None


@dataclass(frozen=True, eq=False)
class Architecture:
    """Result of a finished search, with the trained network.

    Attributes:
        outcome: of the search.
        evaluated: the best genotype, trained from scratch and measured on the test set.
        domain: of the search.
        skeleton: macro-architecture of the network.
    """

    outcome: SearchResult
    evaluated: GenotypeEvaluation
    domain: SearchDomain
    skeleton: Skeleton

    @property
    def ground(self) -> SearchDomain:
        """Old name of `domain`."""
        warnings.warn("Architecture.ground is now Architecture.domain", DeprecationWarning, stacklevel=2)
        return self.domain

    def to_dict(self) -> dict[str, Any]:
        """The result as plain JSON values."""
        figures = self.evaluated.to_dict()
        return {
            **{name: figures[name] for name in ("genotype", "metric", "loss", "parameters", "multiply_adds")},
            "seconds": self.outcome.seconds + figures["seconds"],
            "evaluations": self.outcome.evaluations,
            "method": self.outcome.method,
            "space": self.domain.space.name,
            "kin": self.domain.kin,
            "seed_cells": bool(self.domain.first),
            "search": {
                "score": self.outcome.best.score,
                "facts": dict(self.outcome.best.facts),
                "steps": self.outcome.steps,
                "seconds": self.outcome.seconds,
                "reason": self.outcome.reason,
                "history": [list(row) for row in self.outcome.history],
            },
            "forgetting": summary(self.outcome.forgetting),
            "training": {name: figures[name] for name in ("part", "count", "steps", "seconds")},
            "skeleton": self.skeleton.to_dict(),
        }


def solved(architecture: Architecture, task: Task, seed: int) -> Solved:
    """The trained network as a solved task, for model files and the zoo."""
    return solved_network(task, architecture.evaluated, architecture.skeleton, seed)


def solved_network(task: Task, done: GenotypeEvaluation, skeleton: Skeleton, seed: int) -> Solved:
    """A network of a genotype, trained for a task, as a solved task."""
    model = done.network
    params, buffers = copied(dict(model.named_parameters())), copied(dict(model.named_buffers()))
    scores = Scores(done.metric, done.loss, done.count)
    fit = Fit(params, buffers, History(torch.zeros(0)), scores, done.seconds, reached=True)
    return Solved(task.name, network_string(done.genotype, skeleton), task.facts(), seed, (fit,))


def search_architecture(
    zoo: SolvedTasks,
    target: Task | str,
    how: Search,
    *,
    seed: int = 0,
    device: torch.device | None = None,
    restart: bool = False,
    runner: "Runner | None" = None,
) -> Work[Architecture]:
    """Search an architecture for a task and train it; the same call resumes an interrupted one.

    Args:
        zoo: the zoo.
        target: a new task, or the name of one in the zoo.
        how: options.
        seed: of all random numbers.
        device: where the best network is trained.
        restart: discard the unfinished work of an interrupted call.
        runner: measures several tasks, or evaluates several genotypes, at the same time (default: one after the other).
    """
    task, work = zoo.task(target) if isinstance(target, str) else target, zoo.work
    method_named(how.method).require_suited(task)
    domain = yield from search_domain(zoo, target, how, runner)
    how = _with_stages(how, domain.space)
    final, recipe = how.final or how.skeleton, how.recipe or Recipe.suited(task)
    facts = _facts(task, how, seed)
    with_budget = {**facts, "budget": vars(how.budget)}
    with_training = {**with_budget, "final": final.to_dict(), "recipe": recipe.to_dict()}
    unfinished = _name("search", facts)
    finished = _name("found", with_budget)
    training = _name("training", with_training)
    if restart:
        for name in (unfinished, finished, training):
            work.remove(name)
    outcome = yield from read_stored(work, finished, lambda state: state.read(SearchResult))
    if outcome is not None:
        yield Note("the search is finished; continuing with the training of its best genotype")
    else:
        jobs = None if runner is None else search_jobs.EvaluationJobs.of(zoo, runner, task)
        outcome = yield from _search(task, domain, how, seed, work, unfinished, jobs)
        work.write(finished, State({}, outcome.to_dict()))
    best = outcome.best.genotype
    evaluated = yield from resume(
        work, training, lambda start: evaluate_genotype.work(best, task, final, recipe, seed, start, device=device)
    )
    work.remove(finished)
    return Architecture(outcome, evaluated, domain, final)


CELLS = "general"
CELL_METHOD = "evolution"


def search_cells(
    task: Task,
    work: Checkpoints,
    skeleton: Skeleton,
    budget: Budget,
    *,
    method: str = CELL_METHOD,
    options: Mapping[str, Any] | None = None,
    proxy: Recipe = PROXY,
    seed: int = 0,
    restart: bool = False,
    jobs: "search_jobs.EvaluationJobs | None" = None,
) -> Work[BestCells]:
    """Search a task's best cells in the general space, for text in the recurrent one; the same call resumes."""
    space = "recurrent" if task.likelihood == "language" else CELLS
    how = Search(method=method, space=space, budget=budget, skeleton=skeleton, proxy=proxy, options=options or {})
    unfinished = _name("cells", _facts(task, how, seed))
    if restart:
        work.remove(unfinished)
    outcome = yield from _search(task, SearchDomain(space_named(space)), how, seed, work, unfinished, jobs)
    return BestCells(space, skeleton.to_dict(), outcome.method, outcome.found)


def _search(
    task: Task,
    domain: SearchDomain,
    how: Search,
    seed: int,
    work: Checkpoints,
    name: str,
    jobs: "search_jobs.EvaluationJobs | None" = None,
) -> Work[SearchResult]:
    """The search alone, resumed from its checkpoint if there is one; jobs evaluate genotypes ahead of it."""
    costs = Costs(how.skeleton, task.input_shape, task.num_outputs)
    space = costs.limits(domain.space, parameters=how.parameters, multiply_adds=how.multiply_adds, latency=how.latency)
    ask = SearchProblem(task=task, space=space, skeleton=how.skeleton, first=domain.first, proxy=how.proxy, seed=seed,
              options=dict(how.options), known={} if jobs is None else jobs.known)  # fmt: skip
    chosen = searcher(how.method, ask)
    prepare = None if jobs is None else jobs.preparation(chosen, ask, how.budget)
    if jobs is not None and not chosen.foresees:
        yield search_jobs.not_spread(chosen)
    names = work.names()
    others = [other for other in names if other.startswith(name.rpartition("-")[0]) and other.endswith(SUFFIX)]
    if name not in names and others:
        yield Note(
            f"an interrupted search for '{task.name}' had other options; this one starts from the beginning, and the "
            f"other one is kept in {others[0]}"
        )
    outcome = yield from resume(
        work, name, lambda start: run_search.work(chosen, how.budget, seed=seed, resume=start, prepare=prepare)
    )
    if jobs is not None:
        jobs.forget()
    return outcome


def _with_stages(how: Search, space: Space) -> Search:
    """The options with the stages of a space of chains, which may be restricted, in both skeletons."""
    inner = space.space if isinstance(space, RestrictedSpace) else space
    if not isinstance(inner, MobileSpace):
        return how
    final = how.final and replace(how.final, stages=inner.stages)
    return replace(how, skeleton=replace(how.skeleton, stages=inner.stages), final=final)


def search_domain(
    zoo: SolvedTasks, target: Task | str, how: Search, runner: "Runner | None" = None
) -> Work[SearchDomain]:
    """The space that `how` names, and the initial genotypes."""
    task = zoo.task(target) if isinstance(target, str) else target
    method = method_named(how.method)
    if how.space == FULL:
        return SearchDomain(space_named(method.full_space(task)))
    if how.space != NEAREST and how.space not in zoo:
        space = space_named(how.space)
        method.require_suited(task, space)
        return SearchDomain(space)
    method.require_cells("--space full")
    kin = how.space if how.space != NEAREST else (yield from _nearest(zoo, target, task, how, runner))
    cells = zoo.cells(kin)
    if cells is None:
        raise ZooError(f"'{kin}' has no cells in the zoo; search them with nearkin add NAME DATA --cell")
    whole = space_named(cells.space)
    method.require_suited(task, whole)
    first = cells.genotypes if how.seed_cells else ()
    start = f"starting with its {len(first)} cells" if first else "without its own cells"
    if method.kin_cells == "free":
        yield Note(f"searching the whole space {whole.name}, {start}; the kin is '{kin}'")
        return SearchDomain(whole, first, kin)
    yield Note(f"searching the space of the {len(cells.found)} cells of '{kin}', {start}")
    return SearchDomain(restrict_space(whole, cells.genotypes), first, kin)


def _nearest(zoo: SolvedTasks, target: Task | str, task: Task, how: Search, runner: "Runner | None") -> Work[str]:
    """Name of the nearest other task that has cells for the target's kind of inputs."""
    known = [record for record in zoo.records() if record.name != target and _suits(zoo.cells(record.name), task)]
    require(
        bool(known),
        "no other task of the zoo has cells; add one with nearkin add NAME DATA --cell, or search with --space full",
        ZooError,
    )
    if len(known) == 1:
        yield Caution(f"'{known[0].name}' is the only task with cells, so it is the nearest; add more with --cell")
        return known[0].name
    ranking = yield from rank_sources(zoo, target, Comparison(measure=how.measure), known, runner)
    nearest = ranking.nearest
    yield Note(f"nearest by {how.measure}: '{nearest.name}' at {nearest.distance:.3f} ± {nearest.std:.3f}")
    return nearest.name


def _suits(cells: BestCells | None, task: Task) -> bool:
    """Whether there are cells for the task's inputs: recurrent ones for text, others for images."""
    return cells is not None and isinstance(cells.genotypes[0], Recurrent) == (task.likelihood == "language")


def _facts(task: Task, how: Search, seed: int) -> dict[str, Any]:
    """All that affects the course of a search, except its budget: a longer search resumes a shorter one."""
    versions = {"nearkin": version("nearkin"), "torch": torch.__version__}
    return {"task": task.fingerprint(), "seed": seed, **how.facts(), "versions": versions}


def _name(kind: str, facts: Mapping[str, Any]) -> str:
    """Name of unfinished work with these facts; it starts with the kind and the task."""
    return f"{kind}-{facts['task'][:16]}-{facts_digest(facts)}{SUFFIX}"
