"""Registry of search methods: builds a searcher from the name of a method, a task and a space.

To add a method, write a searcher and an entry of `METHODS`. Commands, help, messages and documentation follow from it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from nearkin.core.budget import Budget
from nearkin.core.errors import MismatchError, OptionError, TrainingError, require
from nearkin.core.options import Option, options_of, read_options
from nearkin.nets.recipe import Recipe
from nearkin.search.genotype_evaluation import TrainedObjective
from nearkin.search.genotypes.genotype import Cells, Chain, Genotype, Recurrent
from nearkin.search.methods.darts.gradient_options import PARTIAL, GradientOptions
from nearkin.search.methods.darts.gradient_search import Darts, PCDarts
from nearkin.search.methods.darts.guards import Guards
from nearkin.search.methods.enas.enas_options import EnasOptions
from nearkin.search.methods.enas.enas_search import Enas
from nearkin.search.methods.enas.reinforce import ControllerOptions
from nearkin.search.methods.enas.shared_options import SharedOptions
from nearkin.search.methods.evolution import Evolution, evolution
from nearkin.search.methods.fuse.fuse import Fuse
from nearkin.search.methods.fuse.rounds import Fusion, SideBySide
from nearkin.search.methods.local_search import local_search
from nearkin.search.methods.nao.model_training import ModelOptions
from nearkin.search.methods.nao.nao_options import NaoOptions
from nearkin.search.methods.nao.nao_search import Nao
from nearkin.search.methods.random_search import random_search
from nearkin.search.methods.shared_random import SharedRandom
from nearkin.search.methods.warm_start import WarmStart, warm_start_search
from nearkin.search.networks.build import Skeleton
from nearkin.search.objective import ObjectiveValue
from nearkin.search.plasticity.forgetting_options import ForgettingOptions
from nearkin.search.searcher import Searcher
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.limited import without_limits
from nearkin.search.supernet.reference import Frame
from nearkin.tasks.likelihood import require_one_output
from nearkin.tasks.task import Task

PROXY = Recipe(steps=90, batch_size=64, learning_rate=1e-2)
"""Training recipe of methods that measure one genotype at a time: about a second for a small cell."""

NOT_OPTIONS = ("name", "channels", "num_cells", "stem_stride")  # a constant, and values of the skeleton


@dataclass(frozen=True, kw_only=True)
class SearchProblem:
    """Inputs of a search method.

    Attributes:
        task: the task to learn; its test set is not used.
        space: the search space.
        skeleton: macro-architecture in which genotypes are compared.
        first: genotypes to start from, such as the best of a kin, best first.
        proxy: training recipe of methods that measure one genotype at a time.
        seed: seed of these trainings.
        options: options of the method: candidates and patience of FUSE, order of DARTS, ….
        known: values of genotypes that other processes measured.
    """

    task: Task
    space: Space
    skeleton: Skeleton
    first: Sequence[Genotype] = ()
    proxy: Recipe = PROXY
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    known: Mapping[str, ObjectiveValue | TrainingError] = field(default_factory=dict)

    @property
    def objective(self) -> TrainedObjective:
        """The validation metric after a short training from scratch."""
        return TrainedObjective(self.task, self.skeleton, self.proxy, self.seed, known=self.known)

    def options_for(self, *settings: Any) -> dict[str, Any]:
        """The options that are fields of these settings."""
        names = {option.name for option in options_of(settings, NOT_OPTIONS)}
        return {name: value for name, value in self.options.items() if name in names}


BUDGET = "a budget"
"""Requirement of a method that does not end by itself."""

EVALUATIONS = 24  # default budget of such a method

IMAGES, DENSE, TEXT = "images with classes or values", "images with images as outputs", "text"
"""Kinds of tasks for which architectures are searched."""


@dataclass(frozen=True)
class Domain:
    """Space and genotypes of a method for one kind of task.

    Attributes:
        full: name of the space that `--space full` selects.
        genotypes: classes of genotypes whose networks can learn such a task.
    """

    full: str
    genotypes: tuple[type[Genotype], ...]


EVERY = {
    IMAGES: Domain("general", (Cells, Chain)),
    DENSE: Domain("general", (Cells,)),
    TEXT: Domain("recurrent", (Recurrent,)),
}
SUPERNET = {IMAGES: Domain("darts", (Cells,))}
GRADIENT = {IMAGES: Domain("darts", (Cells, Chain))}
SHARED = {IMAGES: Domain("enas", (Cells,)), TEXT: Domain("recurrent?loose_ends=true", (Recurrent,))}


@dataclass(frozen=True)
class Method:
    """A search method.

    Attributes:
        name: name on the command line.
        summary: description in one line.
        settings: dataclasses whose plain fields are the options of the method, or instances with other defaults.
        build: function that makes the searcher; the options of its `SearchProblem` are checked and typed.
        spaces: spaces and genotypes by kind of task; other kinds are refused.
        needs: requirements; `BUDGET` or none.
        ends: what ends the search besides a budget.
        kin_cells: how the cells of a kin are used. `within`: start from them, in the space of their structures and
            operations. `free`: start from them, in the whole space. `none`: not used, because one network is trained
            for the whole space.
        num_cells: number of cells of the network in which genotypes are compared.
        aliases: other names on the command line.
    """

    name: str
    summary: str
    settings: tuple[Any, ...]
    build: Callable[[SearchProblem], Searcher[Any]]
    spaces: Mapping[str, Domain] = field(default_factory=lambda: EVERY)
    needs: tuple[str, ...] = ()
    ends: str = ""
    kin_cells: Literal["within", "free", "none"] = "within"
    num_cells: int = 2
    aliases: tuple[str, ...] = ()

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """Options of the method."""
        return options_of(self.settings, NOT_OPTIONS)

    def budget(self, minutes: float | None, steps: int | None, evaluations: int | None) -> Budget:
        """Budget with these limits; without any, a method that needs a budget gets the default."""
        if BUDGET in self.needs and minutes is None and steps is None and evaluations is None:
            evaluations = EVALUATIONS
        return Budget(minutes=minutes, steps=steps, evaluations=evaluations)

    def full_space(self, task: Task) -> str:
        """Name of the whole space of this method for a task."""
        return self.spaces[kind_of(task)].full

    def require_cells(self, *advice: str) -> None:
        """Raise if the method cannot start from the cells of a kin; the message names methods that can."""
        others = [method.name for method in METHODS.values() if method.kin_cells != "none"]
        require(
            self.kin_cells != "none",
            f"{self.name} trains one network for a whole space and does not start from the cells of a kin; use "
            f"{_either([*advice, *others])}",
        )

    def require_shared_weights(self) -> None:
        """Raise if the method trains every genotype by itself; the message names methods that share weights."""
        sharing = [method.name for method in METHODS.values() if ForgettingOptions in method.settings]
        require(
            self.name in sharing,
            f"{self.name} trains every genotype by itself, so no shared weights can be pulled; leave --plasticity out, "
            f"or use {_either(sharing)}",
        )

    def require_suited(self, task: Task, space: Space | None = None) -> None:
        """Raise if networks of the method, or of a space, cannot learn the task."""
        require_one_output(task.likelihood)
        kind = kind_of(task)
        require(
            kind == TEXT or len(task.input_shape) == 3,
            f"{task.name!r} has inputs of shape {task.input_shape}; architectures are searched for images (C, H, W) "
            f"and text; use a network such as mlp for it",
            MismatchError,
        )
        others = [method.name for method in METHODS.values() if kind in method.spaces]
        require(
            kind in self.spaces,
            f"{self.name} searches for {_either(list(self.spaces))}, and {task.name!r} is a {task.likelihood} task; "
            f"use {_either(others)}",
            MismatchError,
        )
        require(
            space is None or isinstance(without_limits(space).at(0), self.spaces[kind].genotypes),
            f"{self.name} cannot search the space {space.name if space else ''} for {task.name!r}, a {task.likelihood} "
            f"task; use --space {self.full_space(task)}",
            MismatchError,
        )


def kind_of(task: Task) -> str:
    """Kind of a task: `IMAGES`, `DENSE` or `TEXT`."""
    return {"language": TEXT, "dense": DENSE}.get(task.likelihood, IMAGES)


def _either(names: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _fuse(selection: Fusion | SideBySide) -> Callable[[SearchProblem], Searcher[Any]]:
    def build(problem: SearchProblem) -> Searcher[Any]:
        rule, options = replace(selection, **problem.options_for(selection)), problem.options_for(Fuse)
        return Fuse(problem.space, problem.task, problem.skeleton, rule, first=tuple(problem.first), **options)

    return build


def _sampling(make: Callable[..., Searcher[Any]]) -> Callable[[SearchProblem], Searcher[Any]]:
    return lambda problem: make(problem.space, problem.objective, first=tuple(problem.first), **problem.options)


def _frame(problem: SearchProblem, default: Frame) -> Frame:
    """Frame of a supernet with the width and depth of the skeleton."""
    sizes = {name: getattr(problem.skeleton, name) for name in ("channels", "num_cells", "stem_stride")}
    return replace(default, **sizes, **problem.options_for(default))


def _gradient(make: Callable[..., Searcher[Any]], default: GradientOptions) -> Callable[[SearchProblem], Searcher[Any]]:
    def build(problem: SearchProblem) -> Searcher[Any]:
        frame, guards = _frame(problem, default.frame), replace(default.guards, **problem.options_for(Guards))
        own, forgetting = problem.options_for(default), _forgetting(problem)
        options = replace(default, frame=frame, guards=guards, forgetting=forgetting, **own)
        return make(problem.task, problem.space, options)

    return build


def _forgetting(problem: SearchProblem) -> ForgettingOptions:
    return ForgettingOptions(**problem.options_for(ForgettingOptions))


def _shared(problem: SearchProblem) -> Searcher[Any]:
    options = SharedOptions(forgetting=_forgetting(problem), **problem.options_for(SharedOptions))
    return SharedRandom(problem.space, problem.task, _frame(problem, Frame()), options)


def _enas(problem: SearchProblem) -> Searcher[Any]:
    options = EnasOptions(forgetting=_forgetting(problem), **problem.options_for(EnasOptions))
    controller = ControllerOptions(**problem.options_for(ControllerOptions))
    return Enas(problem.space, problem.task, _frame(problem, Frame()), options, controller)


def _nao(problem: SearchProblem) -> Searcher[Any]:
    options = NaoOptions(forgetting=_forgetting(problem), **problem.options_for(NaoOptions))
    model = ModelOptions(**problem.options_for(ModelOptions))
    return Nao(problem.space, problem.task, _frame(problem, Frame()), options, model)


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            "fuse",
            "train candidates and the incumbent together, mixed by softmax(α); α is trained on validation data until "
            "it converges, and the largest wins",
            (Fuse, Fusion), _fuse(Fusion()), ends="the incumbent has won `patience` rounds in a row",
        ),
        Method(
            "side-by-side",
            "control of fuse: the same candidates, each trained on its own loss, selected by validation loss",
            (Fuse, SideBySide), _fuse(SideBySide()), ends="as fuse", aliases=("fuse-control",),
        ),
        Method(
            "random", "draw genotypes at random and train each briefly from scratch",
            (), _sampling(random_search), needs=(BUDGET,),
        ),
        Method(
            "random-shared",
            "train shared weights along random paths, then measure other random genotypes with them",
            (SharedOptions, ForgettingOptions, Frame), _shared, {**SHARED, **SUPERNET}, (BUDGET,), kin_cells="none",
            num_cells=5, aliases=("shared-random",),
        ),
        Method(
            "evolution", "regularised evolution: children of tournament winners replace the oldest",
            (Evolution,), _sampling(evolution), needs=(BUDGET,),
        ),
        Method(
            "local", "move to a better neighbour until there is none, then restart at random",
            (), _sampling(local_search), needs=(BUDGET,),
        ),
        Method(
            "warm-start",
            "cells of a kin, children in their space and children in the whole space; what returns more is asked more",
            (WarmStart,), _sampling(warm_start_search), needs=(BUDGET,), kin_cells="free", aliases=("kin",),
        ),
        Method(
            "darts", "train one supernet for the whole space, and the weights α of its operations by gradients",
            (GradientOptions(), ForgettingOptions, Frame, Guards), _gradient(Darts, GradientOptions()), GRADIENT,
            ends="all epochs are done, or a guard stops it", kin_cells="none", num_cells=5,
        ),
        Method(
            "pcdarts", "DARTS on a fraction of the channels, with weighted edges and a warm-up",
            (PARTIAL, ForgettingOptions, PARTIAL.frame, PARTIAL.guards), _gradient(PCDarts, PARTIAL), GRADIENT,
            ends="all epochs are done, or a guard stops it", kin_cells="none", num_cells=5,
        ),
        Method(
            "enas",
            "train shared weights along paths that a controller samples, and the controller on their validation scores",
            (EnasOptions, ForgettingOptions, ControllerOptions, Frame), _enas, SHARED, ends="all epochs are done",
            kin_cells="none", num_cells=5,
        ),
        Method(
            "nao",
            "train a pool of genotypes with shared weights, predict their ranks from an embedding, and replace the "
            "worst by gradient ascent in it",
            (NaoOptions, ForgettingOptions, ModelOptions, Frame), _nao, SHARED, ends="all epochs are done",
            kin_cells="none", num_cells=5,
        ),
    )
}  # fmt: skip
"""Methods by name."""

_NAMED = {name: method for method in METHODS.values() for name in (method.name, *method.aliases)}


def method_named(name: str) -> Method:
    """Method with a name or an alias.

    >>> method_named("fused")
    Traceback (most recent call last):
    nearkin.core.errors.OptionError: unknown method 'fused'; choose one of fuse, side-by-side, random, \
random-shared, evolution, local, warm-start, darts, pcdarts, enas, nao
    """
    if name not in _NAMED:
        raise OptionError(f"unknown method {name!r}; choose one of {', '.join(METHODS)}")
    return _NAMED[name]


def checked(method: str, task: Task, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a method in their types; raises for an unknown option or an unsuitable task."""
    chosen = method_named(method)
    chosen.require_suited(task)
    return read_options(chosen.options, options, method)


def searcher(method: str, problem: SearchProblem) -> Searcher[Any]:
    """Searcher of a method for a problem; raises for an unknown option, or an unsuitable task or space."""
    chosen = method_named(method)
    chosen.require_suited(problem.task, problem.space)
    return chosen.build(replace(problem, options=read_options(chosen.options, problem.options, chosen.name)))
