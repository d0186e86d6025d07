"""Architecture search beside a zoo: in a whole space, in what a named task's cells used, or in the nearest kin's.

The way of it: a space and genotypes to begin with, a searcher, its best genotype trained from scratch, one result. All
of it is one `Work`; what is not finished lies in the zoo's `work/` and goes on from there.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from nearkin.core.checkpoints import resumed, stored
from nearkin.core.errors import NearkinError, ZooError, require
from nearkin.core.events import Caution, Note, Work
from nearkin.core.state import State, copied
from nearkin.nets.evaluate import Scores
from nearkin.nets.fit import Fit
from nearkin.nets.history import History
from nearkin.nets.recipe import Recipe
from nearkin.nets.solved import Solved
from nearkin.search.budget import Budget
from nearkin.search.cost import Costs
from nearkin.search.evaluate import Evaluated, evaluating
from nearkin.search.genotype import Genotype
from nearkin.search.methods import PROXY, SUPERNETS, Ask, searcher
from nearkin.search.named import network_string
from nearkin.search.network import Skeleton
from nearkin.search.restricted import restricted
from nearkin.search.searcher import Outcome, searching
from nearkin.search.space import Space
from nearkin.search.spaces import space as space_named
from nearkin.tasks.task import Task
from nearkin.zoo.cells import KeptCells
from nearkin.zoo.comparison import Comparison, Part, Shelf
from nearkin.zoo.kinship import nearing

FREE = ("kin",)
"""Methods that begin with a kin's cells and look beyond what those used, should the kin turn out to be far."""

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
        method: a name of `nearkin.search.methods`.
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
        options: of the method.
    """

    method: str = "fuse"
    space: str = NEAREST
    budget: Budget = field(default_factory=Budget)
    skeleton: Skeleton
    final: Skeleton | None = None
    proxy: Recipe = PROXY
    recipe: Recipe | None = None
    measure: str = "frechet"
    parameters: int | None = None
    multiply_adds: int | None = None
    latency: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """All that decides where the search goes, but for its budget."""
        names = ("method", "space", "measure", "parameters", "multiply_adds", "latency")
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


def architecting(
    cellar: Cellar,
    target: Task | str,
    work: Path,
    how: Search,
    *,
    seed: int = 0,
    device: torch.device | None = None,
    resume: bool = False,
) -> Work[Architecture]:
    """Search an architecture for a task and train it.

    Args:
        cellar: the zoo.
        target: a new task, or the name of one in the zoo.
        work: folder for what is not finished.
        how: what is asked.
        seed: the one seed.
        device: where the best network is trained.
        resume: go on with what an earlier call with the same question left.
    """
    task = cellar.task(target) if isinstance(target, str) else target
    ground = yield from grounding(cellar, target, work, how)
    mark = _mark(task, how, seed)
    searching_, found, training = (work / f"{what}-{mark}.safetensors" for what in ("search", "found", "training"))
    outcome = (yield from stored(found, lambda state: state.read(Outcome))) if resume else None
    if outcome is not None:
        yield Note("the search was done before; going on with the training of what it found")
    else:
        outcome = yield from _searched(task, ground, how, seed, searching_, resume)
        State({}, outcome.to_dict()).save(found)
        training.unlink(missing_ok=True)
    final = how.final or how.skeleton
    best = outcome.best.genotype
    evaluated = yield from resumed(
        lambda start: evaluating(best, task, final, how.recipe, seed, start, device=device), training, resume=resume
    )
    found.unlink(missing_ok=True)
    return Architecture(outcome, evaluated, ground, final)


CELLS = "general"
CELL_METHOD = "evolution"


def celling(
    task: Task, work: Path, skeleton: Skeleton, budget: Budget, *, proxy: Recipe = PROXY, seed: int = 0
) -> Work[KeptCells]:
    """A task's best cells in the general space, by regularised evolution; stopped, the same call goes on there."""
    how = Search(method=CELL_METHOD, space=CELLS, budget=budget, skeleton=skeleton, proxy=proxy)
    file = work / f"cells-{_mark(task, how, seed)}.safetensors"
    outcome = yield from _searched(task, Ground(space_named(CELLS)), how, seed, file, resume=file.exists())
    return KeptCells(CELLS, skeleton.to_dict(), outcome.method, outcome.found)


def _searched(task: Task, ground: Ground, how: Search, seed: int, file: Path, resume: bool) -> Work[Outcome]:
    """The search alone."""
    costs = Costs(how.skeleton, task.input_shape, task.num_outputs)
    space = costs.limits(ground.space, parameters=how.parameters, multiply_adds=how.multiply_adds, latency=how.latency)
    ask = Ask(task=task, space=space, skeleton=how.skeleton, first=ground.first, proxy=how.proxy, seed=seed,
              options=dict(how.options))  # fmt: skip
    chosen = searcher(how.method, ask)
    if resume and not file.exists():
        yield Note("there is nothing to go on with; starting anew")
    begin = lambda start: searching(chosen, how.budget, seed=seed, resume=start)  # noqa: E731
    return (yield from resumed(begin, file, resume=resume))


def grounding(cellar: Cellar, target: Task | str, work: Path, how: Search) -> Work[Ground]:
    """Where to look: the space that `how` names, and what to begin with."""
    if how.space == FULL:
        return Ground(space_named("darts" if how.method in SUPERNETS else "general"))
    if how.space != NEAREST and not _is_task(cellar, how.space):
        return Ground(space_named(how.space))
    require(
        how.method not in SUPERNETS,
        f"{how.method} trains one network for a whole space and does not begin with cells; use --space full, or "
        f"another method in a kin's space",
    )
    kin = how.space if how.space != NEAREST else (yield from _nearest(cellar, target, work, how))
    found = cellar.cells(kin)
    if found is None:
        raise ZooError(f"{kin} has no cells in the zoo; search them with nearkin add NAME DATA --cell")
    whole = space_named(found.space)
    if how.method in FREE:
        yield Note(f"beginning with the {len(found.found)} cells of {kin}, free to leave them")
        return Ground(whole, found.genotypes, kin)
    yield Note(f"in what the {len(found.found)} cells of {kin} used, and beginning with these")
    return Ground(restricted(whole, found.genotypes), found.genotypes, kin)


def _nearest(cellar: Cellar, target: Task | str, work: Path, how: Search) -> Work[str]:
    own = target if isinstance(target, str) else None
    known = [record for record in cellar.records() if record.name != own and cellar.cells(record.name) is not None]
    require(
        bool(known),
        "no other task of the zoo has cells; add one with nearkin add NAME DATA --cell, or search with --space full",
        ZooError,
    )
    if len(known) == 1:
        yield Caution(f"{known[0].name} is the only task with cells, so it is the nearest; add more with --cell")
        return known[0].name
    ranking = yield from nearing(Part(cellar, known, own), target, work, Comparison(measure=how.measure))
    nearest = ranking.nearest
    yield Note(f"nearest by {how.measure}: {nearest.name} at {nearest.distance:.3f} ± {nearest.std:.3f}")
    return str(nearest.name)


def _is_task(cellar: Cellar, name: str) -> bool:
    try:
        cellar.record(name)
    except NearkinError:
        return False
    return True


def _mark(task: Task, how: Search, seed: int) -> str:
    """A name for the files of this very question."""
    facts = {"task": task.fingerprint(), "seed": seed, **how.facts()}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
