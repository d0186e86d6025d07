r"""Screening: kin among many tasks by nearest-neighbour search, so that the true distance is measured on a few only.

With diagonal Fisher informations at unit trace, $\sqrt F$ is a point on the unit sphere and the Fréchet distance is
Euclidean there. The distance of two tasks through their *own* networks,

$$d_{\text{screen}}(a, b) = \frac{1}{\sqrt2} \|\sqrt{F_{aa}} - \sqrt{F_{bb}}\|,$$

needs nothing but the diagonals that are kept of solved tasks. (One pass more a task makes better points still: labels
drawn from the network's own answer, its head padded to the widest of all, instead of those observed.) It is not the
distance that `near` shows, whose $F_{ab}$ is of network a on the data of b: it says where to look. `screened` measures
that distance on the best few; `raced` gives many a short look at few samples and few a long one, which finds the
nearest more often at the same cost.

Notation: K tasks, D dimensions of a point, P weights.
"""

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor

from nearkin.core.errors import MismatchError, optional, require
from nearkin.core.events import Progress, Work, operation
from nearkin.core.rng import Streams
from nearkin.core.state import State
from nearkin.fisher.diagonals import diagonal
from nearkin.fisher.values import FisherDiagonal
from nearkin.nets.recipe import Recipe
from nearkin.nets.registry import build
from nearkin.nets.training_loop import fit
from nearkin.tasks.pixels import fitted_to
from nearkin.tasks.task import Task

Found: TypeAlias = list[tuple[str, float]]
"""Names with distances, nearest first."""

MOST_DIMS = 2048
EXACT = 100_000 * MOST_DIMS  # numbers that one query may read: memory gives them in some 40 ms
BLOCK = 4096  # weights whose places in a sketch are drawn together
SPARE = 8  # tasks beyond those asked for whose distance is taken again in float64, where float32 cannot order them
LOOKS = 16  # an index looks into one in so many of its lists


@dataclass(frozen=True, kw_only=True)
class Embedding:
    r"""From Fisher diagonals to points on the unit sphere of D dimensions.

    $\sqrt F$ `[P]` is sketched: each weight is added, with a random sign and divided by $\sqrt s$, to one place in each
    of s groups of D/s places (Kane and Nelson 2014). Squared lengths and distances are right in the mean with a
    relative deviation of at most $\sqrt{2/D}$, 3 % for 2,048 dimensions; no matrix is formed. A weight's places depend
    on its name and position alone, so heads of different widths meet as if padded with zeros.

    Attributes:
        network: what the Fisher informations are of; points of different networks have nothing to do with each other.
        dims: D, a multiple of `spread`.
        spread: s; more guards against a few large weights that meet in one place.
        seed: of places and signs.

    >>> f, g = (FisherDiagonal({"w": torch.tensor(v)}, "observed", 1) for v in ([1.0, 0.0], [0.5, 0.5]))
    >>> p, q = (Embedding(network="toy").point([fisher]) for fisher in (f, g))
    >>> p.shape, round(float((p - q).norm() / 2**0.5), 3)
    (torch.Size([2048]), 0.541)
    """

    network: str = ""
    dims: int = MOST_DIMS
    spread: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        require(1 <= self.dims <= MOST_DIMS, f"a point has 1 to {MOST_DIMS} dimensions, got {self.dims}")
        require(
            self.spread >= 1 and self.dims % self.spread == 0,
            f"{self.dims} dimensions do not fall into {self.spread} equal groups; choose a spread that divides them",
        )

    def point(self, trials: Sequence[FisherDiagonal]) -> Tensor:
        """The point `[D]` of a task, float32, of its Fisher information in every trial.

        The squared distance of two points is the mean over trials; trial t is compared with trial t only.
        """
        require(len(trials) > 0, "a point is made of the Fisher information of one trial or more, got none")
        streams, total = Streams(self.seed), torch.zeros(self.dims, dtype=torch.float64)
        for trial, fisher in enumerate(trials):
            for name, value in fisher.unit_trace().values.items():
                root = value.detach().cpu().double().clamp_min(0).sqrt()
                self._add(root.flatten(), streams.child(trial, name), total)
        length = float(total.norm())
        require(
            math.isfinite(length) and length > 0,
            "the Fisher information is not finite; the weights diverged: train the network anew",
            MismatchError,
        )
        return total.div_(length).float()

    def _add(self, root: Tensor, streams: Streams, total: Tensor) -> None:
        size = self.dims // self.spread
        groups = torch.arange(self.spread) * size
        for number, part in enumerate(root.split(BLOCK)):
            # a whole block is drawn whatever is needed of it: a narrower head draws the same
            drawn = torch.randint(2 * size, (BLOCK, self.spread), generator=streams.at(number))[: len(part)]
            signed = (drawn % 2 * 2 - 1) * part[:, None] / math.sqrt(self.spread)
            total.index_add_(0, (drawn // 2 + groups).flatten(), signed.flatten())


@dataclass(frozen=True, eq=False)
class Index:
    """Tasks by name with their points; a value that adding leaves as it was.

    Attributes:
        embedding: what made the points.
        names: of the K tasks.
        points: `[K, D]` float32, rows of length one.

    >>> east, north = torch.eye(4)[:2]
    >>> index = Index(Embedding(dims=4)).add({"east": east, "north": north})
    >>> [(name, round(d, 3)) for name, d in index.query((3 * east + 4 * north) / 5, top=2)]
    [('north', 0.447), ('east', 0.632)]
    """

    embedding: Embedding
    names: tuple[str, ...] = ()
    points: Tensor = field(default_factory=lambda: torch.zeros(0))

    def __post_init__(self) -> None:
        dims = self.embedding.dims
        if not self.names:
            object.__setattr__(self, "points", self.points.reshape(-1, dims).float())
        require(
            self.points.shape == (len(self.names), dims) and self.points.dtype == torch.float32,
            f"points have shape {tuple(self.points.shape)} and {self.points.dtype}, {len(self.names)} tasks want "
            f"({len(self.names)}, {dims}) and torch.float32; make them by one embedding",
            MismatchError,
        )
        once = len(set(self.names)) == len(self.names)
        require(once, "two tasks of an index have one name; name each once", MismatchError)

    def __len__(self) -> int:
        return len(self.names)

    def add(self, points: Mapping[str, Tensor]) -> "Index":
        """An index with more tasks; a name that is there already moves to its new point. Copies: add many at once."""
        fresh = torch.stack([self._checked(point, name) for name, point in points.items()]) if points else None
        if fresh is None:
            return self
        kept = [place for place, name in enumerate(self.names) if name not in points]
        old = self.points if len(kept) == len(self) else self.points[kept]
        return Index(self.embedding, (*(self.names[place] for place in kept), *points), torch.cat([old, fresh]))

    def query(self, point: Tensor, top: int = 10, leave_out: Collection[str] = (), exact: bool | None = None) -> Found:
        r"""The nearest tasks, with distances $\|p - q\| / \sqrt2$.

        Args:
            point: `[D]`, of length one.
            top: how many.
            leave_out: names that are not wanted, such as the target's own.
            exact: whether every point is looked at, by one matrix product. By default up to as many numbers as 100,000
                tasks of 2,048 dimensions have, and above that an index of the extra `index`, which may miss some.
        """
        require(top >= 1, f"a query asks for one task or more, got {top}")
        point = self._checked(point, "the query")
        wanted = min(len(self), top + len(leave_out) + SPARE)
        if wanted == 0:
            return []
        if exact if exact is not None else self.points.numel() <= EXACT:
            places = torch.mv(self.points, point).topk(wanted).indices
        else:
            _, found = self._lists.search(point[None].numpy(), wanted)
            places = torch.from_numpy(found[0][found[0] >= 0])
        away = (self.points[places].double() - point.double()).norm(dim=1) / math.sqrt(2)
        order = away.argsort(stable=True).tolist()
        pairs = ((self.names[int(places[i])], float(away[i])) for i in order)
        gone = frozenset(leave_out)
        return list(itertools.islice((pair for pair in pairs if pair[0] not in gone), top))

    @cached_property
    def _lists(self) -> Any:
        """Points in lists around centres; a query looks into the lists of the centres nearest to it."""
        faiss = optional("faiss", "index", f"searching {len(self):,} tasks without looking at each")
        count = max(1, round(math.sqrt(len(self))))
        lists = faiss.IndexIVFFlat(
            faiss.IndexFlatIP(self.embedding.dims), self.embedding.dims, count, faiss.METRIC_INNER_PRODUCT
        )
        lists.cp.seed, lists.cp.max_points_per_centroid, lists.cp.min_points_per_centroid = 1, 64, 1
        lists.nprobe = math.ceil(count / LOOKS)
        rows = self.points.numpy()
        lists.train(rows)
        lists.add(rows)
        return lists

    def _checked(self, point: Tensor, name: str) -> Tensor:
        dims = self.embedding.dims
        require(
            point.shape == (dims,) and abs(float(point.norm()) - 1) < 1e-3,
            f"{name} has a point of shape {tuple(point.shape)} and length {float(point.norm()):.3g}, this index wants "
            f"({dims},) and 1; make it by {self.embedding}",
            MismatchError,
        )
        return point.detach().cpu().float()

    def to_state(self) -> State:
        """The form that the zoo keeps."""
        return State({"points": self.points}, {"names": list(self.names), "embedding": asdict(self.embedding)})

    @classmethod
    def from_state(cls, state: State) -> "Index":
        """The inverse of `to_state`."""
        return cls(Embedding(**state.facts["embedding"]), tuple(state.facts["names"]), state.tensors["points"])


@dataclass(frozen=True)
class Rung:
    """A round of a race: the best `contenders` so far are measured on this `share` of the samples."""

    share: float
    contenders: int

    def __post_init__(self) -> None:
        require(0 < self.share <= 1, f"a rung measures on a share of the samples above 0 and up to 1, got {self.share}")
        require(self.contenders >= 1, f"a rung has one contender or more, got {self.contenders}")


RUNGS = (Rung(1 / 64, 150), Rung(1 / 16, 20), Rung(1.0, 6))
"""A race that costs less than ten whole passes."""


def num_passes(rungs: Sequence[Rung], num_tasks: int) -> float:
    """What a race costs, in passes over all samples.

    >>> num_passes(RUNGS, 200), num_passes(RUNGS, 5)
    (9.59375, 5.390625)
    """
    return sum(rung.share * min(num_tasks, rung.contenders) for rung in rungs)


@operation
def screened(
    index: Index,
    query: Tensor,
    measure: Callable[[str], float],
    m: int = 10,
    *,
    leave_out: Collection[str] = (),
) -> Work[Found]:
    """The `m` tasks nearest to a point, in the order of their true distance, which is measured on no others.

    >>> index = Index(Embedding(dims=4)).add(dict(zip("abcd", torch.eye(4))))
    >>> screened(index, torch.tensor([0.8, 0.6, 0.0, 0.0]), {"a": 0.3, "b": 0.2, "c": 0.1}.__getitem__, m=2)
    [('b', 0.2), ('a', 0.3)]
    """
    return raced.work(index, query, lambda name, share: measure(name), (Rung(1.0, m),), leave_out=leave_out)


@operation
def raced(
    index: Index,
    query: Tensor,
    measure: Callable[[str, float], float],
    rungs: Sequence[Rung] = RUNGS,
    *,
    leave_out: Collection[str] = (),
) -> Work[Found]:
    """The contenders of a race's last rung, in the order of what was measured there.

    Args:
        index: tasks that may take part.
        query: the target's point.
        measure: the distance of a task, measured on a share of the target's samples.
        rungs: shares that rise and contenders that fall; the first contenders are the nearest of the index.
        leave_out: names that do not take part.

    >>> index = Index(Embedding(dims=4)).add(dict(zip("abcd", torch.eye(4))))
    >>> rungs = (Rung(0.1, 3), Rung(1.0, 1))
    >>> raced(index, torch.tensor([0.8, 0.6, 0.0, 0.0]), lambda name, share: {"a": 0.3, "b": 0.2}.get(name, 0.9), rungs)
    [('b', 0.2)]
    """
    for before, after in itertools.pairwise(rungs):
        require(
            before.share <= after.share and before.contenders >= after.contenders,
            f"a race goes on with fewer contenders on more samples, got {after} after {before}; turn them round",
        )
    require(len(rungs) > 0, "a race has one rung or more, got none")
    found = index.query(query, rungs[0].contenders, leave_out)
    sizes = [min(len(found), rung.contenders) for rung in rungs]
    done = 0
    for rung, size in zip(rungs, sizes, strict=True):
        values: Found = []
        for name, _ in found[:size]:
            values.append((name, measure(name, rung.share)))
            done += 1
            yield Progress("screening", done, sum(sizes))
        found = sorted(values, key=lambda pair: (math.isnan(pair[1]), pair[1]))
    return found


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One network for all tasks, to embed those that were solved by different networks, or not at all.

    Every task's probe starts from the same weights and takes a few steps on the task's training part; then its Fisher
    information is measured on the test part with the task's labels, so that tasks on the same images differ by what
    they ask. Without these steps it tells tasks apart less well.

    Attributes:
        network: its network string.
        input_shape: what it reads; images are brought to it. By default the task's own shape.
        steps: of training; 0 for none.
        samples: test samples looked at.
        seed: of the weights that all probes start from.

    >>> x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    >>> probe, embedding = Probe(network="mlp?hidden=8"), Embedding(network="mlp?hidden=8")
    >>> tasks = [Task.from_arrays("toy", x, (x[:, i] > 0).long()) for i in (0, 1)]
    >>> p, q = (embedding.point([probe.fisher(task)]) for task in tasks)
    >>> bool((p - q).norm() > 0.1)
    True
    """

    network: str
    input_shape: tuple[int, ...] | None = None
    steps: int = 20
    samples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.steps >= 0, f"a probe takes 0 steps or more, got {self.steps}")
        require(self.samples >= 1, f"a probe looks at one sample or more, got {self.samples}")

    @operation
    def fisher(self, task: Task, trial: int = 0) -> Work[FisherDiagonal]:
        """The work of measuring it on a task, in one of its initialisations."""
        task = fitted_to(task, self.input_shape or task.input_shape)
        model = build(self.network, task.input_shape, task.num_outputs, self.seed, trial)
        if self.steps > 0:
            yield from fit.work(model, task, Recipe(steps=self.steps), seed=self.seed, stage="probe")
        x, y = task.test.fixed_subset(self.samples)
        return (yield from diagonal.work(model.eval(), x, y, likelihood=task.likelihood))
