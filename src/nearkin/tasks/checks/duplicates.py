r"""Samples that occur twice: in both parts, within the training part, or under two labels.

Exact duplicates are found by a hash of every input, unscaled. Near ones (a little noise, another brightness, a shift by
a pixel) by the distance to the nearest training inputs, against what is usual between training inputs: candidates come
from a sketch of at most 64 numbers, images are then compared whole, at shifts of up to one pixel, by
$\sqrt{2 - 2r}$ with their correlation $r$. Ordinary neighbours scatter too: with m dimensions of the data the chance of
a distance below $\epsilon$ medians is about $\epsilon^m$, so $\epsilon = \min(0.2, 10^{-3/m})$ keeps chance below one
in a thousand. The nearest of 1,000 test images lies at 0.43 medians in digits, 0.31 in MNIST and 0.24 in CIFAR-10.

Rows of tables of few distinct values coincide by chance; where that is to be expected they are told, not warned of.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from nearkin.core.rng import Streams
from nearkin.tasks.rows import Rows, in_memory
from nearkin.tasks.task import Task

SKETCH = 64
SIDE = 32  # larger images are pooled to it before they are compared
MOST_SKETCHED = 200_000  # training rows, 50 MB
QUERIES, LAZY_QUERIES = 1_000, 250  # in memory, and where a row is a file to decode
CANDIDATES = 4
NEAREST, CHANCE = 0.2, 1e-3
LEAST_ROWS = 50
GRAVE_SHARE = 0.01
SHOWN = 10
BLOCK_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Duplicates:
    """How many samples occur twice; `pairs` and `near_pairs` are (test row, training row).

    `near` counts among `looked_at` test rows, exact ones left out; None where nearness was not measured. `coarse` says
    that rows of so few distinct values coincide by chance.
    """

    num_train: int
    num_test: int
    test_in_train: int
    within_train: int
    contradictory: int | None
    pairs: tuple[tuple[int, int], ...] = ()
    near: int | None = None
    looked_at: int = 0
    near_pairs: tuple[tuple[int, int], ...] = ()
    coarse: bool = False

    @property
    def share(self) -> float:
        """Share of the test part that is in the training part, exactly or nearly."""
        near = 0.0 if self.near is None or self.near < 2 else self.near / self.looked_at
        return min(1.0, self.test_in_train / self.num_test + near)

    @property
    def alike(self) -> bool:
        """Whether all training inputs are one and the same."""
        return self.num_train > 1 and self.within_train == self.num_train - 1

    @property
    def grave(self) -> bool:
        """A hundredth of the test part is in the training part, or of all samples under two labels; or all are one."""
        contradictory = (self.contradictory or 0) / (self.num_train + self.num_test)
        return self.alike or (not self.coarse and max(self.share, contradictory) > GRAVE_SHARE)

    @property
    def text(self) -> str:
        """One plain sentence."""
        if self.alike:
            return f"All {self.num_train} training inputs are the same: check how they are read."
        said = [f"{self.test_in_train} of {self.num_test} test samples are in the training part"]
        if self.near is not None:
            said.append(f"{self.near} of {self.looked_at} looked at have a near duplicate there")
        said.append(f"{self.within_train} training samples repeat another")
        if self.contradictory is not None:
            said.append(f"{self.contradictory} samples have a twin of another class")
        if self.coarse and self.test_in_train + self.within_train:
            said.append("rows of so few distinct values coincide by chance")
        rows = ", ".join(str(row) for row, _ in (self.pairs + self.near_pairs)[:5])
        cure = f"; remove them (test rows {rows}) before trusting test figures" if rows else "; settle their labels"
        return ", ".join(said) + (cure if self.grave else "") + "."

    def facts(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "test_in_train": self.test_in_train,
            "within_train": self.within_train,
            "contradictory": self.contradictory,
            "near": self.near,
            "looked_at": self.looked_at,
            "share_of_test": round(self.share, 6),
            "coincidence": self.coarse,
            "pairs": [list(pair) for pair in self.pairs],
            "near_pairs": [list(pair) for pair in self.near_pairs],
        }


def block_rows(rows: Rows) -> int:
    """How many rows make one block of the scan: 1024, or fewer where rows are large."""
    return int(max(16, min(1024, BLOCK_BYTES // (4 * max(1, int(np.prod(rows.shape)))))))


Hashes: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class Scan:
    """Hashes of some rows, and their sketches `[N, d]` where those were wanted."""

    hashes: Hashes
    sketches: Tensor | None = None

    @classmethod
    def joined(cls, scans: Sequence["Scan"]) -> "Scan":
        """Blocks of a scan as one."""
        sketches = [scan.sketches for scan in scans if scan.sketches is not None]
        return cls(np.concatenate([scan.hashes for scan in scans]), torch.cat(sketches) if sketches else None)


def scanned(rows: Rows, sketch: "Sketch | None" = None) -> Iterator[Scan]:
    """All rows in order, block by block: 64-bit hashes of their values, and sketches of the first 200,000.

    >>> from nearkin.tasks.rows import Values
    >>> one, = scanned(Values(torch.tensor([[1.0, 0.0], [2.0, 0.0], [1.0, -0.0]])))
    >>> bool(one.hashes[0] == one.hashes[2]), bool(one.hashes[0] == one.hashes[1])
    (True, False)
    """
    for part in torch.arange(len(rows)).split(block_rows(rows)):
        values = rows.take(part)
        plain = values + 0 if values.is_floating_point() else values  # −0 and 0 are one
        data = plain.contiguous().numpy().reshape(len(part), -1)
        digests = b"".join(hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in data)
        wanted = sketch is not None and int(part[0]) < MOST_SKETCHED
        yield Scan(np.frombuffer(digests, dtype=np.int64), sketch(values) if sketch is not None and wanted else None)


def duplicates(task: Task, train: Scan, test: Scan, sketch: "Sketch | None", *, seed: int = 0) -> Duplicates:
    """Duplicates of a task whose parts were scanned; near ones where the training part was sketched."""
    first, place = np.unique(train.hashes, return_index=True)
    spot = np.minimum(np.searchsorted(first, test.hashes), len(first) - 1)
    twin = first[spot] == test.hashes
    contradictory = None
    if task.likelihood == "categorical":
        labels = torch.cat([task.train.labels(), task.test.labels()]).numpy()
        contradictory = contradictions(np.concatenate([train.hashes, test.hashes]), labels)
    coarse = len(task.input_shape) == 1 and coincidental(task.train.inputs, Streams(seed).at("checks", "few"))
    near: tuple[tuple[tuple[int, int], ...], int] | None = None
    if sketch is not None and train.sketches is not None and not coarse and len(first) >= LEAST_ROWS:
        known = torch.from_numpy(twin)
        near = near_duplicates(task.train.inputs, task.test.inputs, train.sketches, sketch, known, seed)
    return Duplicates(
        num_train=len(task.train),
        num_test=len(task.test),
        test_in_train=int(twin.sum()),
        within_train=len(task.train) - len(first),
        contradictory=contradictory,
        pairs=tuple((int(i), int(place[spot[i]])) for i in np.flatnonzero(twin)[:SHOWN]),
        near=None if near is None else len(near[0]),
        looked_at=0 if near is None else near[1],
        near_pairs=() if near is None else near[0][:SHOWN],
        coarse=coarse,
    )


def contradictions(hashes: Any, labels: Any) -> int:
    """How many samples share their input with a sample of another label.

    >>> contradictions(np.array([7, 7, 8, 8, 9]), np.array([0, 1, 2, 2, 0]))
    2
    """
    groups, number = np.unique(hashes, return_inverse=True)
    low, high = np.full(len(groups), np.iinfo(np.int64).max), np.full(len(groups), -1)
    np.minimum.at(low, number, labels)
    np.maximum.at(high, number, labels)
    return int((low < high)[number].sum())


def coincidental(rows: Rows, rng: Generator, samples: int = 2000, columns: int = 256) -> bool:
    r"""Whether rows of a table are expected to coincide by chance in more than a hundredth of cases.

    $N \sqrt{\prod_j \sum_v p_{jv}^2} > 0.01$ over columns j and values v; the root, because columns hang together.
    """
    count = len(rows)
    x = rows.take(torch.randperm(count, generator=rng)[:samples])[:, :columns].double()
    logs = 0.0
    for column in x.T:
        shares = torch.unique(column, return_counts=True)[1] / len(column)
        # two samples drawn apart, not one twice: a column of N distinct values has no coincidence
        met = float((shares * (shares * len(column) - 1)).sum()) / max(1, len(column) - 1)
        logs += np.log(max(met, 1e-6))
    return bool(np.log(count) + logs / 2 > np.log(GRAVE_SHARE))


def near_duplicates(
    train: Rows, test: Rows, sketches: Tensor, sketch: "Sketch", known: Tensor, seed: int
) -> tuple[tuple[tuple[int, int], ...], int] | None:
    """Pairs (test row, training row) that are nearly the same, and the number of test rows looked at.

    `known` `[N_test]` marks exact duplicates, which are left out. None where the training rows have no usual distance.
    """
    streams = Streams(seed).child("checks", "near")
    queries = QUERIES if in_memory(train) and in_memory(test) else LAZY_QUERIES
    own = torch.randperm(len(sketches), generator=streams.at("own"))[: queries // 2].sort().values
    usual, order, _ = _nearest(train, train, own, sketches, sketch, own)
    distinct = usual > 1e-4
    if int(distinct.sum()) < LEAST_ROWS // 2:
        return None
    nearest = min(NEAREST, CHANCE ** (1 / dimension(order[distinct]))) * float(usual[distinct].median())
    asked = torch.randperm(len(test), generator=streams.at("asked"))[:queries].sort().values
    rest = asked[~known[asked]]
    if len(rest) == 0:
        return (), len(asked)
    distance, _, where = _nearest(train, test, rest, sketches, sketch, None)
    hits = torch.nonzero(distance < nearest).flatten().tolist()
    return tuple((int(rest[i]), int(where[i])) for i in hits), len(asked)


def dimension(distances: Tensor) -> float:
    r"""Dimension of data from distances `[N, k]` to its k nearest, in rising order (Levina and Bickel 2004).

    $1/m = \mathrm{mean}_{i,\,j<k} \log(T_k / T_j)$.

    >>> ball = torch.rand(2000, 2, generator=torch.Generator().manual_seed(0))
    >>> 1.7 < dimension(torch.cdist(ball, ball).topk(5, largest=False).values[:, 1:]) < 2.3
    True
    """
    last = distances[:, -1:].clamp_min(1e-12)
    ratio = (last / distances[:, :-1].clamp_min(1e-12)).clamp_min(1).double().log()
    return float(1 / ratio.mean().clamp_min(1e-2))


@dataclass(frozen=True, eq=False)
class Sketch:
    """At most 64 numbers of an input: an image pooled and freed of its brightness, a row of a table scaled."""

    mean: Tensor | None = None
    deviation: Tensor | None = None
    projection: Tensor | None = None

    @classmethod
    def of(cls, rows: Rows, rng: Generator) -> "Sketch":
        """The sketch that suits the training rows."""
        if len(rows.shape) == 3:
            return cls()
        x = rows.take(torch.randperm(len(rows), generator=rng)[:2000]).flatten(1).float()
        width = x.shape[1]
        projection = torch.randn(width, SKETCH, generator=rng) / SKETCH**0.5 if width > SKETCH else None
        deviation = x.std(0)
        return cls(x.mean(0), torch.where(deviation > 0, deviation, torch.ones_like(deviation)), projection)

    def whole(self, x: Tensor) -> Tensor:
        """Inputs as they are compared in the end: images `[B, C, H, W]` or scaled rows `[B, D]`."""
        if self.mean is None or self.deviation is None:
            return F.adaptive_avg_pool2d(x.float(), (min(SIDE, x.shape[2]), min(SIDE, x.shape[3])))
        return (x.flatten(1).float() - self.mean) / self.deviation

    def __call__(self, x: Tensor) -> Tensor:
        """Sketches `[B, d]`."""
        x = self.whole(x)
        if x.dim() == 4:
            side = max(1, int((SKETCH // x.shape[1]) ** 0.5))
            return unit(F.adaptive_avg_pool2d(x, (min(side, x.shape[2]), min(side, x.shape[3]))))
        return x if self.projection is None else x @ self.projection


def unit(images: Tensor) -> Tensor:
    """Images `[B, ...]` as vectors `[B, D]` without mean and of length 1; flat ones are 0."""
    x = images.flatten(1)
    x = x - x.mean(1, keepdim=True)
    length = x.norm(dim=1, keepdim=True)
    return torch.where(length > 1e-4, x / length.clamp_min(1e-4), torch.zeros_like(x))


def apart(a: Tensor, b: Tensor) -> Tensor:
    r"""Distances `[B, k]` of `a` `[B, ...]` to candidates `b` `[B, k, ...]`; for images the least over shifts.

    >>> image = torch.rand(1, 1, 9, 9, generator=torch.Generator().manual_seed(0))
    >>> moved = torch.roll(image, 1, 3)[:, None] * 0.5 + 0.2
    >>> bool(apart(image, moved) < 1e-2), bool(apart(image, image.flip(3)[:, None]) > 0.5)
    (True, True)
    """
    if a.dim() != 4:
        return (a[:, None] - b).square().sum(-1).sqrt()
    height, width = a.shape[2:]
    reach = 1 if min(height, width) >= 8 else 0
    best = torch.full(b.shape[:2], float("inf"))
    for y in range(-reach, reach + 1):
        for x in range(-reach, reach + 1):
            here = a[..., max(0, y) : height + min(0, y), max(0, x) : width + min(0, x)]
            there = b[..., max(0, -y) : height + min(0, -y), max(0, -x) : width + min(0, -x)]
            vectors = unit(there.flatten(0, 1)).view(*b.shape[:2], -1)
            r = torch.einsum("bd,bkd->bk", unit(here), vectors)
            best = torch.minimum(best, (2 - 2 * r).clamp_min(0).sqrt())
    return best


def _nearest(
    train: Rows, asked: Rows, index: Tensor, sketches: Tensor, sketch: Sketch, own: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Distance to the nearest training row `[B]`, to the nearest few in rising order `[B, k]`, and its row `[B]`."""
    distances, orders, rows = [], [], []
    count = min(CANDIDATES, len(sketches) - 1)
    for part in torch.arange(len(index)).split(min(128, block_rows(train))):
        rows_asked = asked.take(index[part])
        between = torch.cdist(sketch(rows_asked), sketches)
        if own is not None:
            between[torch.arange(len(part)), own[part]] = float("inf")
        near = between.topk(count, largest=False).indices
        some = sketch.whole(train.take(near.flatten()))
        exact = apart(sketch.whole(rows_asked), some.view(len(part), count, *some.shape[1:]))
        order, best = exact.sort(1)
        distances.append(order[:, 0])
        orders.append(order)
        rows.append(near.gather(1, best[:, :1])[:, 0])
    return torch.cat(distances), torch.cat(orders), torch.cat(rows)
