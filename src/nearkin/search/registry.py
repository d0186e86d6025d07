"""Search methods by name: from a method, a task and a space to a searcher that the driver can run.

To add a method, write a searcher and an entry: commands, help, messages and documentation take everything from here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from nearkin.core.budget import Budget
from nearkin.core.errors import MismatchError, OptionError, require
from nearkin.core.options import Option, options_of, read_options
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
from nearkin.search.searcher import Searcher
from nearkin.search.spaces.base import Space
from nearkin.search.supernet.reference import Frame
from nearkin.tasks.task import Task

PROXY = Recipe(steps=90, batch_size=64, learning_rate=1e-2)
"""How searchers that ask about one genotype at a time train it: about a second for a small cell."""

NOT_OPTIONS = ("name", "channels", "num_cells", "stem_stride")  # a constant, and what the skeleton decides


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
        names = {option.name for option in options_of(settings, NOT_OPTIONS)}
        return {name: value for name, value in self.options.items() if name in names}


BUDGET = "a budget"
"""Need of a method that nothing else ends."""

EVALUATIONS = 24  # of a method that needs a budget, where none is given

IMAGES, DENSE, TEXT = "images with classes or values", "images with images as outputs", "text"
"""Kinds of tasks that architectures are searched for."""


@dataclass(frozen=True)
class Domain:
    """What a method searches for one kind of task.

    Attributes:
        full: string of the whole space, which `--space full` names.
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


@dataclass(frozen=True)
class Method:
    """A search method.

    Attributes:
        name: on the command line.
        summary: what it does, in one line.
        settings: the dataclasses whose plain fields are the method's options, or values of them with other defaults.
        build: makes the searcher; the options of its `Ask` are checked and typed.
        spaces: what it searches, by kind of task; other kinds are refused.
        needs: what must be given; `BUDGET`, or nothing.
        ends: what ends it besides a budget.
        kin_cells: how it uses the cells of a kin: `within` searches what they used and starts from them, `free` starts
            from them in the whole space, `none` does not start from given genotypes: one network is trained for the
            whole space.
        num_cells: depth of the network that genotypes are compared in.
        aliases: further names.
    """

    name: str
    summary: str
    settings: tuple[Any, ...]
    build: Callable[[Ask], Searcher[Any]]
    spaces: Mapping[str, Domain] = field(default_factory=lambda: EVERY)
    needs: tuple[str, ...] = ()
    ends: str = ""
    kin_cells: Literal["within", "free", "none"] = "within"
    num_cells: int = 2
    aliases: tuple[str, ...] = ()

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """What can be set."""
        return options_of(self.settings, NOT_OPTIONS)

    def budget(self, minutes: float | None, steps: int | None, evaluations: int | None) -> Budget:
        """The budget of these limits; a method that needs one gets a default where there is no limit."""
        if BUDGET in self.needs and minutes is None and steps is None and evaluations is None:
            evaluations = EVALUATIONS
        return Budget(minutes=minutes, steps=steps, evaluations=evaluations)

    def full_space(self, task: Task) -> str:
        """The name of the whole space that this method searches for a task."""
        return self.spaces[kind_of(task)].full

    def require_cells(self, *advice: str) -> None:
        """Refuse to start from a kin's cells where the method cannot; the message advises other methods too."""
        others = [method.name for method in METHODS.values() if method.kin_cells != "none"]
        require(
            self.kin_cells != "none",
            f"{self.name} trains one network for a whole space and does not begin with a kin's cells; use "
            f"{_either([*advice, *others])}",
        )

    def require_suited(self, task: Task, space: Space | None = None) -> None:
        """Refuse a task that no network of the method can learn, or a space whose networks cannot, before any work."""
        kind = kind_of(task)
        require(
            kind == TEXT or len(task.input_shape) == 3,
            f"{task.name} has inputs of shape {task.input_shape}; architectures are searched for images (C, H, W) and "
            f"text, use a network such as mlp for it",
            MismatchError,
        )
        others = [method.name for method in METHODS.values() if kind in method.spaces]
        require(
            kind in self.spaces,
            f"{self.name} searches for {_either(list(self.spaces))}, and {task.name} is a {task.likelihood} task; use "
            f"{_either(others)}",
            MismatchError,
        )
        require(
            space is None or isinstance(unlimited(space).at(0), self.spaces[kind].genotypes),
            f"{self.name} cannot search the space {space.name if space else ''} for {task.name}, a {task.likelihood} "
            f"task; use --space {self.full_space(task)}",
            MismatchError,
        )


def kind_of(task: Task) -> str:
    """The kind of a task: `IMAGES`, `DENSE` or `TEXT`."""
    return {"language": TEXT, "dense": DENSE}.get(task.likelihood, IMAGES)


def _either(names: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


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
        Method(
            "fuse",
            "candidates and the incumbent are trained together, mixed by softmax(α); α learns on validation data until "
            "it has converged, and the largest wins",
            (Fuse, Fusion), _fuse(Fusion()), ends="the incumbent has won `patience` rounds",
        ),
        Method(
            "side-by-side",
            "control of fuse: the same candidates on their own losses, selected by validation loss",
            (Fuse, SideBySide), _fuse(SideBySide()), ends="as fuse", aliases=("fuse-control",),
        ),
        Method(
            "random", "genotypes drawn at random, each trained briefly from scratch",
            (), _asking(random_search), needs=(BUDGET,),
        ),
        Method(
            "random-shared",
            "one supernet trained along random paths, then genotypes drawn at random and measured with its weights",
            (SharedRandom, PathTraining, Frame), _shared, SUPERNET, (BUDGET,), kin_cells="none", num_cells=5,
            aliases=("shared-random",),
        ),
        Method("evolution", "regularised evolution", (Evolution,), _asking(evolution), needs=(BUDGET,)),
        Method(
            "local", "from neighbour to better neighbour, with restarts",
            (), _asking(local_search), needs=(BUDGET,),
        ),
        Method(
            "kin", "evolution, half of whose first population is a kin's cells, free to leave what they used",
            (Evolution,), _asking(kin_search), needs=(BUDGET,), kin_cells="free", aliases=("warm-start",),
        ),
        Method(
            "darts", "one supernet for the whole space whose operations are weighted by α",
            (GradientOptions(), Frame, Guards), _gradient(Darts, GradientOptions()), SUPERNET,
            ends="its epochs, or a guard", kin_cells="none", num_cells=5,
        ),
        Method(
            "pcdarts", "DARTS on a share of the channels, with weighted edges and a warm-up",
            (PARTIAL, PARTIAL.frame, PARTIAL.guards), _gradient(PCDarts, PARTIAL), SUPERNET,
            ends="its epochs, or a guard", kin_cells="none", num_cells=5,
        ),
    )
}  # fmt: skip
"""By the names of the command line."""

_NAMED = {name: method for method in METHODS.values() for name in (method.name, *method.aliases)}


def method_named(name: str) -> Method:
    """The method of a name or an alias.

    >>> method_named("fused")
    Traceback (most recent call last):
    nearkin.core.errors.OptionError: unknown method 'fused'; choose one of fuse, side-by-side, random, \
random-shared, evolution, local, kin, darts, pcdarts
    """
    if name not in _NAMED:
        raise OptionError(f"unknown method {name!r}; choose one of {', '.join(METHODS)}")
    return _NAMED[name]


def checked(method: str, task: Task, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a method in their types; an unknown one, or a task that the method cannot search, is refused."""
    chosen = method_named(method)
    chosen.require_suited(task)
    return read_options(chosen.options, options, method)


def searcher(method: str, ask: Ask) -> Searcher[Any]:
    """The searcher of that name for what is asked; unsuited tasks and spaces and unknown options are refused."""
    chosen = method_named(method)
    chosen.require_suited(ask.task, ask.space)
    return chosen.build(replace(ask, options=read_options(chosen.options, ask.options, method)))
