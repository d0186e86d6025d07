"""Search methods by name: from a method, a task and a space to a searcher that the driver can run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from nearkin.core.errors import MismatchError, OptionError, require
from nearkin.nets.recipe import Recipe
from nearkin.search.evaluate import TrainedObjective
from nearkin.search.genotypes.genotype import Cells, Chain, Genotype, Recurrent
from nearkin.search.methods.darts.gradient_search import Darts, PCDarts
from nearkin.search.methods.darts.guards import Guards
from nearkin.search.methods.darts.options import PARTIAL, GradientOptions
from nearkin.search.methods.evolution import Evolution, evolution
from nearkin.search.methods.fuse.fuse import Fuse
from nearkin.search.methods.fuse.rounds import Fusion, SideBySide
from nearkin.search.methods.local_search import local_search
from nearkin.search.methods.random_search import random_search
from nearkin.search.methods.sampling import unlimited
from nearkin.search.methods.shared_random import PathTraining, SharedRandom
from nearkin.search.methods.warm_start import kin_search
from nearkin.search.networks.build import Skeleton
from nearkin.search.options import Option, options_of, typed
from nearkin.search.searcher import Searcher
from nearkin.search.spaces.base import Space
from nearkin.search.supernet.reference import Frame
from nearkin.tasks.task import Task

PROXY = Recipe(steps=90, batch_size=64, learning_rate=1e-2)
"""How searchers that ask about one genotype at a time train it: about a second for a small cell."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What a method is given.

    Attributes:
        task: what is to be learned; its test part is not looked at.
        space: where to look.
        skeleton: what genotypes are set into while they are compared.
        first: genotypes to begin with, a kin's best, best first.
        proxy: how a genotype is trained by methods that ask about one at a time.
        seed: of those trainings.
        options: of the method itself: candidates and patience of FUSE, order of DARTS, ….
    """

    task: Task
    space: Space
    skeleton: Skeleton
    first: Sequence[Genotype] = ()
    proxy: Recipe = PROXY
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def objective(self) -> TrainedObjective:
        """The metric on held-out training data after a short training from scratch."""
        return TrainedObjective(self.task, self.skeleton, self.proxy, self.seed)

    def chosen(self, *settings: Any) -> dict[str, Any]:
        """Those of the options that belong to these settings."""
        names = {option.name for option in options_of(settings)}
        return {name: value for name, value in self.options.items() if name in names}


@dataclass(frozen=True)
class Method:
    """A way of searching.

    Attributes:
        name: on the command line.
        summary: one line.
        settings: the dataclasses whose plain fields are the method's options, or values of them with other defaults.
        build: makes the searcher; the options of its `Ask` are checked and typed.
        supernet: whether one network is trained for the whole space. Such a method searches cells for classes or
            values, and does not start from given genotypes.
        endless: whether nothing but a budget ends it.
    """

    name: str
    summary: str
    settings: tuple[Any, ...]
    build: Callable[[Ask], Searcher[Any]]
    supernet: bool = False
    endless: bool = False

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """What can be set."""
        return options_of(self.settings)

    def usual_space(self, task: Task) -> str:
        """The name of the whole space that this method searches for a task."""
        return "recurrent" if task.likelihood == "language" else "darts" if self.supernet else "general"

    def require_suited(self, task: Task, space: Space | None = None) -> None:
        """Refuse a task that no network of the method can learn, or a space whose networks cannot, before any work."""
        text, dense = task.likelihood == "language", task.likelihood == "dense"
        require(
            text or len(task.input_shape) == 3,
            f"{task.name} has inputs of shape {task.input_shape}; architectures are searched for images (C, H, W) and "
            f"text, use a network such as mlp for it",
            MismatchError,
        )
        require(
            not (self.supernet and (text or dense)),
            f"{self.name} trains a supernet that predicts classes or values, and {task.name} is a {task.likelihood} "
            f"task; use fuse, side-by-side, random, evolution, local or kin",
            MismatchError,
        )
        if space is None:
            return
        kind = type(unlimited(space).at(0))
        suited = (Recurrent,) if text else (Cells,) if dense or self.supernet else (Cells, Chain)
        require(
            issubclass(kind, suited),
            f"{self.name} cannot search the space {space.name} for {task.name}, a {task.likelihood} task; use "
            f"--space {self.usual_space(task)}",
            MismatchError,
        )


def _fuse(contest: Fusion | SideBySide) -> Callable[[Ask], Searcher[Any]]:
    def build(ask: Ask) -> Searcher[Any]:
        judged = replace(contest, **ask.chosen(contest))
        return Fuse(ask.space, ask.task, ask.skeleton, judged, first=tuple(ask.first), **ask.chosen(Fuse))

    return build


def _asking(make: Callable[..., Searcher[Any]]) -> Callable[[Ask], Searcher[Any]]:
    return lambda ask: make(ask.space, ask.objective, first=tuple(ask.first), **ask.options)


def _frame(ask: Ask, usual: Frame) -> Frame:
    """The supernet's frame, as wide and deep as the skeleton."""
    around = {name: getattr(ask.skeleton, name) for name in ("channels", "num_cells", "stem_stride")}
    return replace(usual, **around, **ask.chosen(usual))


def _gradient(make: Callable[..., Searcher[Any]], usual: GradientOptions) -> Callable[[Ask], Searcher[Any]]:
    def build(ask: Ask) -> Searcher[Any]:
        frame, guards = _frame(ask, usual.frame), replace(usual.guards, **ask.chosen(Guards))
        return make(ask.task, ask.space, replace(usual, frame=frame, guards=guards, **ask.chosen(usual)))

    return build


def _shared(ask: Ask) -> Searcher[Any]:
    training = PathTraining(**ask.chosen(PathTraining))
    return SharedRandom(ask.space, ask.task, _frame(ask, Frame()), training, **ask.chosen(SharedRandom))


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("fuse", "candidates mixed by softmax(α), trained together; the largest α wins a round",
               (Fuse, Fusion), _fuse(Fusion())),
        Method("side-by-side", "the control of fuse: the same candidates on their own losses",
               (Fuse, SideBySide), _fuse(SideBySide())),
        Method("random", "genotypes drawn alike, each trained briefly",
               (), _asking(random_search), endless=True),
        Method("random-shared", "one supernet trained along random paths; genotypes are measured with its weights",
               (SharedRandom, PathTraining, Frame), _shared, supernet=True, endless=True),
        Method("evolution", "regularised evolution",
               (Evolution,), _asking(evolution), endless=True),
        Method("local", "from neighbour to better neighbour, with restarts",
               (), _asking(local_search), endless=True),
        Method("kin", "evolution, half of whose first population is a kin's cells",
               (Evolution,), _asking(kin_search), endless=True),
        Method("darts", "one supernet whose operations are weighed by α",
               (GradientOptions(), Frame, Guards), _gradient(Darts, GradientOptions()), supernet=True),
        Method("pcdarts", "DARTS on a part of the channels, with weighed edges",
               (PARTIAL, PARTIAL.frame, PARTIAL.guards), _gradient(PCDarts, PARTIAL), supernet=True),
    )
}  # fmt: skip
"""By the names of the command line."""

SUPERNETS = tuple(name for name, method in METHODS.items() if method.supernet)
"""Methods that train one network for the whole space: its normal space is that of DARTS, and nothing is begun with."""


def method_named(name: str) -> Method:
    """The method of that name.

    >>> method_named("fused")
    Traceback (most recent call last):
    nearkin.core.errors.OptionError: unknown method 'fused'; choose one of fuse, side-by-side, random, \
random-shared, evolution, local, kin, darts, pcdarts
    """
    if name not in METHODS:
        raise OptionError(f"unknown method {name!r}; choose one of {', '.join(METHODS)}")
    return METHODS[name]


def checked(method: str, task: Task, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a method in their types; an unknown one, or a task that the method cannot search, is refused."""
    chosen = method_named(method)
    chosen.require_suited(task)
    return typed(chosen.options, options, method)


def searcher(method: str, ask: Ask) -> Searcher[Any]:
    """The searcher of that name for what is asked; unsuited tasks and spaces and unknown options are refused."""
    chosen = method_named(method)
    chosen.require_suited(ask.task, ask.space)
    return chosen.build(replace(ask, options=typed(chosen.options, ask.options, method)))
