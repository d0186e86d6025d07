"""Architecture search beside a zoo: in a whole space, in what a named task's cells used, or in the nearest kin's.

The way of it: a space and genotypes to begin with, a searcher, its best genotype trained from scratch, one result. All
of it is one `Work`; what is not finished lies in the zoo's `work/` and goes on from there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Protocol

import torch

from nearkin.core.budget import Budget
from nearkin.core.errors import NearkinError, ZooError, require
from nearkin.core.events import Caution, Note, Work
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
from nearkin.search.evaluate import Evaluated, evaluate_genotype
from nearkin.search.genotypes.genotype import Genotype, Recurrent
from nearkin.search.networks.build import Skeleton
from nearkin.search.networks.named import network_string
from nearkin.search.registry import PROXY, Ask, method_named, searcher
from nearkin.search.searcher import Outcome, run_search
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.registry import space as space_named
from nearkin.search.spaces.restricted import restricted
from nearkin.tasks.task import Task
from nearkin.zoo.cells import KeptCells
from nearkin.zoo.comparison import Comparison, Part, Shelf
from nearkin.zoo.near import rank_sources

NEAREST = "nearest"
FULL = "full"


class Cellar(Shelf, Protocol):
    """What of a zoo is needed here besides: the cells of its tasks."""

    def cells(self, name: str) -> KeptCells | None:
        """The best cells that were searched for a task."""
        ...


@dataclass(frozen=True, kw_only=True)
class Search:
    """What is asked of a search.

    Attributes:
        method: a name of `nearkin.search.registry`.
        space: `full` (the method's whole space), `nearest` (that of the nearest task of the zoo that has cells), the
            name of such a task, or a space string.
        budget: what ends it besides itself.
        skeleton: what genotypes are set into while they are compared.
        final: what the best one is set into at last; the same where nothing is said.
        proxy: how methods that ask about one genotype at a time train it.
        recipe: how the best one is trained at last; one that suits the task where nothing is said.
        measure: what `nearest` means.
        parameters: the most that a network may have, in `skeleton`.
        multiply_adds: the most for one input.
        latency: the most seconds for one input.
        options: of the method, checked against `Method.options`; text is read in the option's type.
        seed_cells: whether a search in a kin's space begins with the kin's own cells. Without them `random` is the
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
        """All that decides where the search goes, but for its budget."""
        names = ("method", "space", "measure", "parameters", "multiply_adds", "latency", "seed_cells")
        return {
            **{name: getattr(self, name) for name in names},
            "skeleton": self.skeleton.to_dict(),
            "proxy": self.proxy.to_dict(),
            "options": dict(self.options),
        }


@dataclass(frozen=True)
class Ground:
    """Where a search looks: a space, genotypes to begin with, and whose they are."""

    space: Space
    first: tuple[Genotype, ...] = ()
    kin: str | None = None


@dataclass(frozen=True, eq=False)
class Architecture:
    """What a search came to, trained.

    Attributes:
        outcome: of the search.
        evaluated: of the best genotype, trained from scratch and measured on the test part.
        ground: where it was looked for.
        skeleton: what it is set into.
    """

    outcome: Outcome
    evaluated: Evaluated
    ground: Ground
    skeleton: Skeleton

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        figures = self.evaluated.to_dict()
        return {
            "genotype": figures["genotype"],
            "metric": figures["metric"],
            "loss": figures["loss"],
            "parameters": figures["parameters"],
            "multiply_adds": figures["multiply_adds"],
            "seconds": self.outcome.seconds + figures["seconds"],
            "evaluations": self.outcome.evaluations,
            "method": self.outcome.method,
            "space": self.ground.space.name,
            "kin": self.ground.kin,
            "seed_cells": bool(self.ground.first),
            "search": {
                "score": self.outcome.best.score,
                "facts": dict(self.outcome.best.facts),
                "steps": self.outcome.steps,
                "seconds": self.outcome.seconds,
                "reason": self.outcome.reason,
                "history": [list(row) for row in self.outcome.history],
            },
            "training": {name: figures[name] for name in ("part", "count", "steps", "seconds")},
            "skeleton": self.skeleton.to_dict(),
        }


def solved(found: Architecture, task: Task, seed: int) -> Solved:
    """The trained network as a task's solution, as model files and the zoo keep them."""
    model, done = found.evaluated.network, found.evaluated
    params, buffers = copied(dict(model.named_parameters())), copied(dict(model.named_buffers()))
    scores = Scores(done.metric, done.loss, done.count)
    fit = Fit(params, buffers, History(torch.zeros(0)), scores, done.seconds, reached=True)
    return Solved(task.name, network_string(done.genotype, found.skeleton), task.facts(), seed, (fit,))


def search_architecture(
    cellar: Cellar,
    target: Task | str,
    work: Checkpoints,
    how: Search,
    *,
    seed: int = 0,
    device: torch.device | None = None,
    restart: bool = False,
) -> Work[Architecture]:
    """Search an architecture for a task and train it; interrupted, the same call continues.

    Args:
        cellar: the zoo.
        target: a new task, or the name of one in the zoo.
        work: where unfinished work is stored.
        how: what is asked.
        seed: the one seed.
        device: where the best network is trained.
        restart: discard what an interrupted call left, and begin again.
    """
    task = cellar.task(target) if isinstance(target, str) else target
    method_named(how.method).require_suited(task)
    ground = yield from search_domain(cellar, target, work, how)
    final, recipe = how.final or how.skeleton, how.recipe or Recipe.suited(task)
    asked = _question(task, how, seed)
    with_budget = {**asked, "budget": vars(how.budget)}
    with_training = {**with_budget, "final": final.to_dict(), "recipe": recipe.to_dict()}
    unfinished = _name("search", asked)
    found = _name("found", with_budget)
    training = _name("training", with_training)
    if restart:
        for name in (unfinished, found, training):
            work.remove(name)
    outcome = yield from read_stored(work, found, lambda state: state.read(Outcome))
    if outcome is not None:
        yield Note("the search is finished; continuing with the training of its best genotype")
    else:
        outcome = yield from _searched(task, ground, how, seed, work, unfinished)
        work.write(found, State({}, outcome.to_dict()))
    best = outcome.best.genotype
    evaluated = yield from resume(
        work, training, lambda start: evaluate_genotype.work(best, task, final, recipe, seed, start, device=device)
    )
    work.remove(found)
    return Architecture(outcome, evaluated, ground, final)


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
) -> Work[KeptCells]:
    """A task's best cells in the general space, of text the recurrent one; interrupted, the same call continues."""
    space = "recurrent" if task.likelihood == "language" else CELLS
    how = Search(method=method, space=space, budget=budget, skeleton=skeleton, proxy=proxy, options=options or {})
    unfinished = _name("cells", _question(task, how, seed))
    if restart:
        work.remove(unfinished)
    outcome = yield from _searched(task, Ground(space_named(space)), how, seed, work, unfinished)
    return KeptCells(space, skeleton.to_dict(), outcome.method, outcome.found)


def _searched(task: Task, ground: Ground, how: Search, seed: int, work: Checkpoints, name: str) -> Work[Outcome]:
    """The search alone, from its checkpoint if there is one."""
    costs = Costs(how.skeleton, task.input_shape, task.num_outputs)
    space = costs.limits(ground.space, parameters=how.parameters, multiply_adds=how.multiply_adds, latency=how.latency)
    ask = Ask(task=task, space=space, skeleton=how.skeleton, first=ground.first, proxy=how.proxy, seed=seed,
              options=dict(how.options))  # fmt: skip
    chosen = searcher(how.method, ask)
    names = work.names()
    others = [other for other in names if other.startswith(name.rpartition("-")[0]) and other.endswith(SUFFIX)]
    if name not in names and others:
        yield Note(
            f"an interrupted search for {task.name} had other options; this one starts anew, and the other one is kept "
            f"in {others[0]}"
        )
    return (yield from resume(work, name, lambda start: run_search.work(chosen, how.budget, seed=seed, resume=start)))


def search_domain(cellar: Cellar, target: Task | str, work: Checkpoints, how: Search) -> Work[Ground]:
    """Where to look: the space that `how` names, and what to begin with."""
    task = cellar.task(target) if isinstance(target, str) else target
    method = method_named(how.method)
    if how.space == FULL:
        return Ground(space_named(method.full_space(task)))
    if how.space != NEAREST and not _is_task(cellar, how.space):
        space = space_named(how.space)
        method.require_suited(task, space)
        return Ground(space)
    method.require_cells("--space full")
    kin = how.space if how.space != NEAREST else (yield from _nearest(cellar, target, work, how))
    cells = cellar.cells(kin)
    if cells is None:
        raise ZooError(f"{kin} has no cells in the zoo; search them with nearkin add NAME DATA --cell")
    whole = space_named(cells.space)
    method.require_suited(task, whole)
    first = cells.genotypes if how.seed_cells else ()
    begun = f"beginning with its {len(first)} cells" if first else "without its own cells"
    if method.kin_cells == "free":
        yield Note(f"in the whole space {whole.name}, {begun}; the kin is {kin}")
        return Ground(whole, first, kin)
    yield Note(f"in the space of the {len(cells.found)} cells of {kin}, {begun}")
    return Ground(restricted(whole, cells.genotypes), first, kin)


def _nearest(cellar: Cellar, target: Task | str, work: Checkpoints, how: Search) -> Work[str]:
    own = target if isinstance(target, str) else None
    task = cellar.task(target) if isinstance(target, str) else target
    known = [record for record in cellar.records() if record.name != own and _suits(cellar.cells(record.name), task)]
    require(
        bool(known),
        "no other task of the zoo has cells; add one with nearkin add NAME DATA --cell, or search with --space full",
        ZooError,
    )
    if len(known) == 1:
        yield Caution(f"{known[0].name} is the only task with cells, so it is the nearest; add more with --cell")
        return known[0].name
    ranking = yield from rank_sources(Part(cellar, known, own), target, work, Comparison(measure=how.measure))
    nearest = ranking.nearest
    yield Note(f"nearest by {how.measure}: {nearest.name} at {nearest.distance:.3f} ± {nearest.std:.3f}")
    return str(nearest.name)


def _suits(cells: KeptCells | None, task: Task) -> bool:
    """Whether there are cells that read the task's inputs: recurrent ones for text, others for images."""
    if cells is None:
        return False
    return isinstance(cells.genotypes[0], Recurrent) == (task.likelihood == "language")


def _is_task(cellar: Cellar, name: str) -> bool:
    try:
        cellar.record(name)
    except NearkinError:
        return False
    return True


def _question(task: Task, how: Search, seed: int) -> dict[str, Any]:
    """All that decides the course of a search, but for its budget: a longer one continues a shorter one."""
    versions = {"nearkin": version("nearkin"), "torch": torch.__version__}
    return {"task": task.fingerprint(), "seed": seed, **how.facts(), "versions": versions}


def _name(kind: str, question: Mapping[str, Any]) -> str:
    """The name of unfinished work on this very question; it begins with the kind and the task."""
    return f"{kind}-{question['task'][:16]}-{facts_digest(question)}{SUFFIX}"
