"""Searchers by name: from a method, a task and a space to something that the driver can run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from nearkin.core.errors import OptionError, require
from nearkin.nets.recipe import Recipe
from nearkin.search.evaluate import TrainedObjective
from nearkin.search.evolution import evolution
from nearkin.search.fuse import Fuse
from nearkin.search.fuse_round import Fusion, SideBySide
from nearkin.search.genotype import Genotype
from nearkin.search.kin_search import kin_search
from nearkin.search.local_search import local_search
from nearkin.search.network import Skeleton
from nearkin.search.random_search import random_search
from nearkin.search.searcher import Searcher
from nearkin.search.space import Space
from nearkin.search.supernet.gradient_search import Darts, PCDarts
from nearkin.search.supernet.options import PARTIAL, GradientOptions
from nearkin.search.supernet.plain import Frame
from nearkin.search.supernet.weight_sharing import PathTraining, SharedRandom
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
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def objective(self) -> TrainedObjective:
        """The metric on held-out training data after a short training from scratch."""
        return TrainedObjective(self.task, self.skeleton, self.proxy, self.seed)


def _fuse(ask: Ask, contest: Any) -> Searcher[Any]:
    return Fuse(ask.space, ask.task, ask.skeleton, contest, first=tuple(ask.first), **ask.options)


def _asking(make: Callable[..., Searcher[Any]]) -> Callable[[Ask], Searcher[Any]]:
    return lambda ask: make(ask.space, ask.objective, first=tuple(ask.first), **ask.options)


def _gradient(make: Callable[..., Searcher[Any]], usual: GradientOptions) -> Callable[[Ask], Searcher[Any]]:
    """Options by name, whether they are of the search, of its supernet or of its guards."""

    def chosen(ask: Ask, part: Any, **more: Any) -> Any:
        names = {one.name for one in fields(part)}
        return replace(part, **more, **{name: value for name, value in ask.options.items() if name in names})

    def build(ask: Ask) -> Searcher[Any]:
        around = {name: getattr(ask.skeleton, name) for name in ("channels", "num_cells", "stem_stride")}
        frame = chosen(ask, usual.frame, **{name: value for name, value in around.items() if name not in ask.options})
        guards = chosen(ask, usual.guards)
        known = {one.name for part in (usual, frame, guards) for one in fields(part)}
        strange = sorted(set(ask.options) - known)
        require(not strange, f"there is no option {', '.join(strange)}; there are {', '.join(sorted(known))}")
        return make(ask.task, ask.space, chosen(ask, usual, frame=frame, guards=guards))

    return build


def _shared(ask: Ask) -> Searcher[Any]:
    frame = Frame(**{name: getattr(ask.skeleton, name) for name in ("channels", "num_cells", "stem_stride")})
    return SharedRandom(ask.space, ask.task, frame, PathTraining(**ask.options))


METHODS: dict[str, Callable[[Ask], Searcher[Any]]] = {
    "fuse": lambda ask: _fuse(ask, Fusion()),
    "side-by-side": lambda ask: _fuse(ask, SideBySide()),
    "random": _asking(random_search),
    "random-shared": _shared,
    "evolution": _asking(evolution),
    "local": _asking(local_search),
    "kin": _asking(kin_search),
    "darts": _gradient(Darts, GradientOptions()),
    "pcdarts": _gradient(PCDarts, PARTIAL),
}
"""By the names of the command line."""

SUPERNETS = ("random-shared", "darts", "pcdarts")
"""Methods that train one network for the whole space: its normal space is that of DARTS, and nothing is begun with."""


def searcher(method: str, ask: Ask) -> Searcher[Any]:
    """The searcher of that name.

    >>> searcher("fused", None)
    Traceback (most recent call last):
    nearkin.core.errors.OptionError: unknown method 'fused'; choose one of fuse, side-by-side, random, \
random-shared, evolution, local, kin, darts, pcdarts
    """
    if method not in METHODS:
        raise OptionError(f"unknown method {method!r}; choose one of {', '.join(METHODS)}")
    try:
        return METHODS[method](ask)
    except TypeError as broken:
        raise OptionError(
            f"{method} does not take these options ({broken}); leave out what it does not know"
        ) from broken
