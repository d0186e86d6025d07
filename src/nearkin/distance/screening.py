r"""Screening: nearest-neighbour search among many tasks, so that the true distance is measured for a few only.

For diagonal Fisher information at unit trace, $\sqrt F$ is a point on the unit sphere, and the Fréchet distance is
Euclidean there. The distance of two tasks through their *own* networks,

$$d_{\text{screen}}(a, b) = \frac{1}{\sqrt2} \|\sqrt{F_{aa}} - \sqrt{F_{bb}}\|,$$

needs only the diagonals that are stored with solved tasks. (One more pass per task gives better points: with labels
sampled from the network's own predictions and its head padded to the widest of all, instead of observed labels.) It is
not the distance that `near` shows, whose $F_{ab}$ is that of network a on the data of b; it selects candidates.
`screened` measures that distance for the nearest candidates. `raced` measures it for many candidates on few samples,
then for fewer on more samples, which finds the nearest more often at the same cost.

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

Neighbours: TypeAlias = list[tuple[str, float]]
"""Names with distances, nearest first."""

MOST_DIMS = 2048
EXACT = 100_000 * MOST_DIMS  # numbers that an exact query may read, which takes about 40 ms
BLOCK = 4096  # weights whose positions in a sketch are drawn together
SPARE = 8  # additional tasks whose distance is computed again in float64, since float32 cannot order close ones
LISTS_PER_PROBE = 16  # an approximate query reads one list in so many


@dataclass(frozen=True, kw_only=True)
class Embedding:
    r"""Sketch of Fisher diagonals as points on the unit sphere of D dimensions.

    Each entry of $\sqrt F$ `[P]` is added, with a random sign and divided by $\sqrt s$, to one entry in each of s
    groups of D/s entries (Kane and Nelson 2014). Squared lengths and distances are unbiased with a relative deviation
    of at most $\sqrt{2/D}$, 3 % for 2,048 dimensions; no matrix is formed. The entries depend on the name and position
    of a weight only, so heads of different widths are compared as if padded with zeros.

    Attributes:
        network: whose Fisher information it is; points of different networks cannot be compared.
        dims: D, a multiple of `spread`.
        spread: s; larger values reduce the effect of large weights that are added to the same entry.
        seed: of entries and signs.

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
            f"{self.dims} dimensions cannot be divided into {self.spread} equal groups; choose another spread",
        )

    def point(self, trials: Sequence[FisherDiagonal]) -> Tensor:
        """The point `[D]` of a task, float32, from its Fisher information in every trial.

        The squared distance of two points is the mean over trials; trial t is compared with trial t only.
        """
        require(len(trials) > 0, "a point needs the Fisher information of one trial or more, got none")
        streams, total = Streams(self.seed), torch.zeros(self.dims, dtype=torch.float64)
        for trial, fisher in enumerate(trials):
            for name, value in fisher.unit_trace().values.items():
                root = value.detach().cpu().double().clamp_min(0).sqrt()
                self._add(root.flatten(), streams.child(trial, name), total)
        length = float(total.norm())
        require(
            math.isfinite(length) and length > 0,
            "the Fisher information is not finite; the weights diverged: train the network again",
            MismatchError,
        )
        return total.div_(length).float()

    def _add(self, root: Tensor, streams: Streams, total: Tensor) -> None:
        size = self.dims // self.spread
        groups = torch.arange(self.spread) * size
        for number, block in enumerate(root.split(BLOCK)):
            # always draw a whole block, so that a narrower head gets the same numbers
            drawn = torch.randint(2 * size, (BLOCK, self.spread), generator=streams.at(number))[: len(block)]
            signed = (drawn % 2 * 2 - 1) * block[:, None] / math.sqrt(self.spread)
            total.index_add_(0, (drawn // 2 + groups).flatten(), signed.flatten())


@dataclass(frozen=True, eq=False)
class Index:
    """Tasks by name with their points; immutable.

    Attributes:
        embedding: of all points.
        names: of the K tasks.
        points: `[K, D]` float32, unit rows.

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
            f"points have shape {tuple(self.points.shape)} and {self.points.dtype}, expected ({len(self.names)}, "
            f"{dims}) and torch.float32; compute them with one embedding",
            MismatchError,
        )
        unique = len(set(self.names)) == len(self.names)
        require(unique, "two tasks of the index have the same name; give each a name of its own", MismatchError)

    def __len__(self) -> int:
        return len(self.names)

    def add(self, points: Mapping[str, Tensor]) -> "Index":
        """A new index with more tasks; known names get their new point. Copies all points: add many at once."""
        if not points:
            return self
        fresh = torch.stack([self._checked(point, name) for name, point in points.items()])
        kept = [i for i, name in enumerate(self.names) if name not in points]
        old = self.points if len(kept) == len(self) else self.points[kept]
        return Index(self.embedding, (*(self.names[i] for i in kept), *points), torch.cat([old, fresh]))

    def query(
        self, point: Tensor, top: int = 10, leave_out: Collection[str] = (), exact: bool | None = None
    ) -> Neighbours:
        r"""The nearest tasks, with distances $\|p - q\| / \sqrt2$.

        Args:
            point: `[D]`, of length one.
            top: number of tasks.
            leave_out: names to leave out, such as the target's own.
            exact: whether to compare all points by one matrix product; otherwise an index of the extra `index` is
                used, which may miss some (default: exact up to 100,000 tasks of 2,048 dimensions).
        """
        require(top >= 1, f"top must be 1 or more, got {top}")
        point = self._checked(point, "the query")
        wanted = min(len(self), top + len(leave_out) + SPARE)
        if wanted == 0:
            return []
        if exact if exact is not None else self.points.numel() <= EXACT:
            rows = torch.mv(self.points, point).topk(wanted).indices
        else:
            _, positions = self._lists.search(point[None].numpy(), wanted)
            rows = torch.from_numpy(positions[0][positions[0] >= 0])
        distances = (self.points[rows].double() - point.double()).norm(dim=1) / math.sqrt(2)
        order = distances.argsort(stable=True).tolist()
        pairs = ((self.names[int(rows[i])], float(distances[i])) for i in order)
        excluded = frozenset(leave_out)
        return list(itertools.islice((pair for pair in pairs if pair[0] not in excluded), top))

    @cached_property
    def _lists(self) -> Any:
        """Points in lists around centres; a query reads the lists of the nearest centres."""
        faiss = optional("faiss", "index", f"an approximate search among {len(self):,} tasks")
        count = max(1, round(math.sqrt(len(self))))
        lists = faiss.IndexIVFFlat(
            faiss.IndexFlatIP(self.embedding.dims), self.embedding.dims, count, faiss.METRIC_INNER_PRODUCT
        )
        lists.cp.seed, lists.cp.max_points_per_centroid, lists.cp.min_points_per_centroid = 1, 64, 1
        lists.nprobe = math.ceil(count / LISTS_PER_PROBE)
        rows = self.points.numpy()
        lists.train(rows)
        lists.add(rows)
        return lists

    def _checked(self, point: Tensor, name: str) -> Tensor:
        dims = self.embedding.dims
        require(
            point.shape == (dims,) and abs(float(point.norm()) - 1) < 1e-3,
            f"{name} has a point of shape {tuple(point.shape)} and length {float(point.norm()):.3g}, expected "
            f"({dims},) and 1; compute it with {self.embedding}",
            MismatchError,
        )
        return point.detach().cpu().float()

    def to_state(self) -> State:
        """Names and points as a state that can be stored."""
        return State({"points": self.points}, {"names": list(self.names), "embedding": asdict(self.embedding)})

    @classmethod
    def from_state(cls, state: State) -> "Index":
        """The inverse of `to_state`."""
        return cls(Embedding(**state.facts["embedding"]), tuple(state.facts["names"]), state.tensors["points"])


@dataclass(frozen=True)
class Rung:
    """A round of a race: the best `contenders` are measured on this `share` of the samples."""

    share: float
    contenders: int

    def __post_init__(self) -> None:
        require(0 < self.share <= 1, f"the share of the samples must be above 0 and at most 1, got {self.share}")
        require(self.contenders >= 1, f"contenders must be 1 or more, got {self.contenders}")


RUNGS = (Rung(1 / 64, 150), Rung(1 / 16, 20), Rung(1.0, 6))
"""Rounds that cost less than ten passes over all samples."""


def num_passes(rungs: Sequence[Rung], num_tasks: int) -> float:
    """Cost of a race, in passes over all samples.

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
) -> Work[Neighbours]:
    """The `m` tasks nearest to a point, ordered by their true distance, which is measured for these only.

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
) -> Work[Neighbours]:
    """The contenders of a race's last round, ordered by their distance there.

    Args:
        index: all tasks.
        query: the target's point.
        measure: distance of a task, measured on a share of the target's samples.
        rungs: rounds with increasing shares and decreasing numbers of contenders; the first contenders are the nearest
            of the index.
        leave_out: names to leave out.

    >>> index = Index(Embedding(dims=4)).add(dict(zip("abcd", torch.eye(4))))
    >>> rungs = (Rung(0.1, 3), Rung(1.0, 1))
    >>> raced(index, torch.tensor([0.8, 0.6, 0.0, 0.0]), lambda name, share: {"a": 0.3, "b": 0.2}.get(name, 0.9), rungs)
    [('b', 0.2)]
    """
    for before, after in itertools.pairwise(rungs):
        require(
            before.share <= after.share and before.contenders >= after.contenders,
            f"got {after} after {before}, expected fewer contenders on more samples in each round; reorder the rungs",
        )
    require(len(rungs) > 0, "a race needs one rung or more, got none")
    nearest = index.query(query, rungs[0].contenders, leave_out)
    sizes = [min(len(nearest), rung.contenders) for rung in rungs]
    done = 0
    for rung, size in zip(rungs, sizes, strict=True):
        values: Neighbours = []
        for name, _ in nearest[:size]:
            values.append((name, measure(name, rung.share)))
            done += 1
            yield Progress("screening", done, sum(sizes))
        nearest = sorted(values, key=lambda pair: (math.isnan(pair[1]), pair[1]))
    return nearest


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One network for all tasks, to embed tasks that were solved by different networks or not solved.

    The probe of every task starts from the same weights and is trained for a few steps on the task's training set; then
    its Fisher information is measured on the test set with the task's labels, so that tasks on the same images differ
    by their labels. Without these steps it distinguishes tasks less well.

    Attributes:
        network: its network string.
        input_shape: to which images are converted (default: the task's own shape).
        steps: of training; 0 for none.
        samples: number of test samples that are used.
        seed: of the initial weights of all probes.

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
        require(self.steps >= 0, f"steps must be 0 or more, got {self.steps}")
        require(self.samples >= 1, f"samples must be 1 or more, got {self.samples}")

    @operation
    def fisher(self, task: Task, trial: int = 0) -> Work[FisherDiagonal]:
        """Fisher information of the probe on a task, for one of its initialisations."""
        task = fitted_to(task, self.input_shape or task.input_shape)
        model = build(self.network, task.input_shape, task.num_outputs, self.seed, trial)
        if self.steps > 0:
            yield from fit.work(model, task, Recipe(steps=self.steps), seed=self.seed, stage="probe")
        x, y = task.test.fixed_subset(self.samples)
        return (yield from diagonal.work(model.eval(), x, y, likelihood=task.likelihood))
