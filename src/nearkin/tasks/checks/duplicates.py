r"""Duplicate samples: in training and test set, within the training set, or with two labels.

Exact duplicates have the same hash of their unscaled input. Near duplicates (a little noise, another brightness, a
shift by a pixel) have an unusually small distance to a training input, compared with the median distance between
training inputs. A sketch of at most 64 numbers selects candidates; whole images are then compared at shifts of up to
one pixel by $\sqrt{2 - 2r}$ with their correlation $r$. For data of m dimensions the probability of a distance below
$\epsilon$ medians is about $\epsilon^m$, so $\epsilon = \min(0.2, 10^{-3/m})$ keeps it below one in a thousand. The
nearest of 1,000 test images is at 0.43 medians in digits, 0.31 in MNIST and 0.24 in CIFAR-10.

Rows of tables with few distinct values coincide by chance; if that is expected, duplicates are reported without a
warning.
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
SIDE = 32  # larger images are pooled to this side before they are compared
MOST_SKETCHED = 200_000  # training rows, 50 MB
QUERIES, LAZY_QUERIES = 1_000, 250  # of rows in memory, and of rows that must be decoded
CANDIDATES = 4
NEAREST, CHANCE = 0.2, 1e-3
LEAST_ROWS = 50
GRAVE_SHARE = 0.01
SHOWN = 10
BLOCK_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Duplicates:
    """Numbers of duplicate samples; `pairs` and `near_pairs` are (test row, training row).

    `near` counts near duplicates among `looked_at` test rows, without exact ones; None if not measured. `coarse` means
    that rows have so few distinct values that they coincide by chance.
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
        """Share of the test set with an exact or near duplicate in the training set."""
        near = 0.0 if self.near is None or self.near < 2 else self.near / self.looked_at
        return min(1.0, self.test_in_train / self.num_test + near)

    @property
    def all_equal(self) -> bool:
        """Whether all training inputs are equal."""
        return self.num_train > 1 and self.within_train == self.num_train - 1

    @property
    def grave(self) -> bool:
        """Over 1 % of the test set is in the training set, over 1 % of samples have two labels, or all are equal."""
        contradictory = (self.contradictory or 0) / (self.num_train + self.num_test)
        return self.all_equal or (not self.coarse and max(self.share, contradictory) > GRAVE_SHARE)

    @property
    def text(self) -> str:
        """The finding in one sentence."""
        if self.all_equal:
            return f"All {self.num_train} training inputs are the same: check how they are read."
        clauses = [f"{self.test_in_train} of {self.num_test} test samples are in the training set"]
        if self.near is not None:
            clauses.append(f"{self.near} of {self.looked_at} checked have a near duplicate there")
        clauses.append(f"{self.within_train} training samples repeat another")
        if self.contradictory is not None:
            clauses.append(f"{self.contradictory} samples have a duplicate with another label")
        if self.coarse and self.test_in_train + self.within_train:
            clauses.append("rows with so few distinct values coincide by chance")
        rows = ", ".join(str(row) for row, _ in (self.pairs + self.near_pairs)[:5])
        advice = f"; remove them (test rows {rows}) before you use test metrics" if rows else "; correct their labels"
        return ", ".join(clauses) + (advice if self.grave else "") + "."

    def facts(self) -> dict[str, Any]:
        """JSON values."""
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
    """Number of rows in one block of a scan: 1024, or fewer for large rows."""
    return int(max(16, min(1024, BLOCK_BYTES // (4 * max(1, int(np.prod(rows.shape)))))))


Hashes: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class Scan:
    """Hashes of rows, and optionally their sketches `[N, d]`."""

    hashes: Hashes
    sketches: Tensor | None = None

    @classmethod
    def joined(cls, scans: Sequence["Scan"]) -> "Scan":
        """Join the blocks of a scan."""
        sketches = [scan.sketches for scan in scans if scan.sketches is not None]
        return cls(np.concatenate([scan.hashes for scan in scans]), torch.cat(sketches) if sketches else None)


def scan_rows(rows: Rows, sketch: "Sketch | None" = None) -> Iterator[Scan]:
    """Scan all rows in order, in blocks: 64-bit hashes of their values, and sketches of the first 200,000.

    >>> from nearkin.tasks.rows import Values
    >>> scan, = scan_rows(Values(torch.tensor([[1.0, 0.0], [2.0, 0.0], [1.0, -0.0]])))
    >>> bool(scan.hashes[0] == scan.hashes[2]), bool(scan.hashes[0] == scan.hashes[1])
    (True, False)
    """
    for block in torch.arange(len(rows)).split(block_rows(rows)):
        values = rows.take(block)
        unsigned = values + 0 if values.is_floating_point() else values  # −0 becomes 0
        data = unsigned.contiguous().numpy().reshape(len(block), -1)
        digests = b"".join(hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in data)
        sketches = sketch(values) if sketch is not None and int(block[0]) < MOST_SKETCHED else None
        yield Scan(np.frombuffer(digests, dtype=np.int64), sketches)


def duplicates(task: Task, train: Scan, test: Scan, sketch: "Sketch | None", *, seed: int = 0) -> Duplicates:
    """Duplicates of a scanned task; near duplicates only if the training set has sketches."""
    distinct, row = np.unique(train.hashes, return_index=True)
    match = np.minimum(np.searchsorted(distinct, test.hashes), len(distinct) - 1)
    repeated = distinct[match] == test.hashes
    contradictory = None
    if task.likelihood == "categorical":
        labels = torch.cat([task.train.labels(), task.test.labels()]).numpy()
        contradictory = contradictions(np.concatenate([train.hashes, test.hashes]), labels)
    coarse = len(task.input_shape) == 1 and coincidental(task.train.inputs, Streams(seed).at("checks", "few"))
    near: tuple[tuple[tuple[int, int], ...], int] | None = None
    if sketch is not None and train.sketches is not None and not coarse and len(distinct) >= LEAST_ROWS:
        exact = torch.from_numpy(repeated)
        near = near_duplicates(task.train.inputs, task.test.inputs, train.sketches, sketch, exact, seed)
    return Duplicates(
        num_train=len(task.train),
        num_test=len(task.test),
        test_in_train=int(repeated.sum()),
        within_train=len(task.train) - len(distinct),
        contradictory=contradictory,
        pairs=tuple((int(i), int(row[match[i]])) for i in np.flatnonzero(repeated)[:SHOWN]),
        near=None if near is None else len(near[0]),
        looked_at=0 if near is None else near[1],
        near_pairs=() if near is None else near[0][:SHOWN],
        coarse=coarse,
    )


def contradictions(hashes: Any, labels: Any) -> int:
    """Number of samples that share their input with a sample of another label.

    >>> contradictions(np.array([7, 7, 8, 8, 9]), np.array([0, 1, 2, 2, 0]))
    2
    """
    groups, number = np.unique(hashes, return_inverse=True)
    low, high = np.full(len(groups), np.iinfo(np.int64).max), np.full(len(groups), -1)
    np.minimum.at(low, number, labels)
    np.maximum.at(high, number, labels)
    return int((low < high)[number].sum())


def coincidental(rows: Rows, rng: Generator, samples: int = 2000, columns: int = 256) -> bool:
    r"""Whether more than 1 % of the rows of a table are expected to coincide by chance.

    $N \sqrt{\prod_j \sum_v p_{jv}^2} > 0.01$ over columns j and values v; the root allows for correlated columns.
    """
    count = len(rows)
    x = rows.take(torch.randperm(count, generator=rng)[:samples])[:, :columns].double()
    logs = 0.0
    for column in x.T:
        shares = torch.unique(column, return_counts=True)[1] / len(column)
        # probability that two different samples have the same value: 0 for a column of distinct values
        equal = float((shares * (shares * len(column) - 1)).sum()) / max(1, len(column) - 1)
        logs += np.log(max(equal, 1e-6))
    return bool(np.log(count) + logs / 2 > np.log(GRAVE_SHARE))


def near_duplicates(
    train: Rows, test: Rows, sketches: Tensor, sketch: "Sketch", exact: Tensor, seed: int
) -> tuple[tuple[tuple[int, int], ...], int] | None:
    """Pairs (test row, training row) of near duplicates, and the number of test rows that were checked.

    `exact` `[N_test]` marks exact duplicates, which are left out. None if too few training rows are distinct.
    """
    streams = Streams(seed).child("checks", "near")
    queries = QUERIES if in_memory(train) and in_memory(test) else LAZY_QUERIES
    own = torch.randperm(len(sketches), generator=streams.at("own"))[: queries // 2].sort().values
    distances, _ = _nearest(train, train, own, sketches, sketch, own)
    distances = distances[distances[:, 0] > 1e-4]
    if len(distances) < LEAST_ROWS // 2:
        return None
    threshold = min(NEAREST, CHANCE ** (1 / dimension(distances))) * float(distances[:, 0].median())
    drawn = torch.randperm(len(test), generator=streams.at("asked"))[:queries].sort().values
    checked = drawn[~exact[drawn]]
    if len(checked) == 0:
        return (), len(drawn)
    distances, rows = _nearest(train, test, checked, sketches, sketch, None)
    near = torch.nonzero(distances[:, 0] < threshold).flatten().tolist()
    return tuple((int(checked[i]), int(rows[i])) for i in near), len(drawn)


def dimension(distances: Tensor) -> float:
    r"""Intrinsic dimension from distances `[N, k]` to the k nearest neighbours, in rising order.

    Levina and Bickel (2004):

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
    """At most 64 numbers of an input: a pooled image without its brightness, or a scaled row of a table."""

    mean: Tensor | None = None
    deviation: Tensor | None = None
    projection: Tensor | None = None

    @classmethod
    def of(cls, rows: Rows, rng: Generator) -> "Sketch":
        """The sketch for training rows of images or of a table."""
        if len(rows.shape) == 3:
            return cls()
        x = rows.take(torch.randperm(len(rows), generator=rng)[:2000]).flatten(1).float()
        width = x.shape[1]
        projection = torch.randn(width, SKETCH, generator=rng) / SKETCH**0.5 if width > SKETCH else None
        deviation = x.std(0)
        return cls(x.mean(0), torch.where(deviation > 0, deviation, torch.ones_like(deviation)), projection)

    def whole(self, x: Tensor) -> Tensor:
        """Inputs for the final comparison: images `[B, C, H, W]` or scaled rows `[B, D]`."""
        if self.mean is None or self.deviation is None:
            return F.adaptive_avg_pool2d(x.float(), (min(SIDE, x.shape[2]), min(SIDE, x.shape[3])))
        return (x.flatten(1).float() - self.mean) / self.deviation

    def __call__(self, x: Tensor) -> Tensor:
        """Sketches `[B, d]`."""
        x = self.whole(x)
        if x.dim() == 4:
            side = max(1, int((SKETCH // x.shape[1]) ** 0.5))
            return unit_vectors(F.adaptive_avg_pool2d(x, (min(side, x.shape[2]), min(side, x.shape[3]))))
        return x if self.projection is None else x @ self.projection


def unit_vectors(images: Tensor) -> Tensor:
    """Images `[B, ...]` as vectors `[B, D]` of mean 0 and length 1; a flat image becomes 0."""
    x = images.flatten(1)
    x = x - x.mean(1, keepdim=True)
    length = x.norm(dim=1, keepdim=True)
    return torch.where(length > 1e-4, x / length.clamp_min(1e-4), torch.zeros_like(x))


def candidate_distances(a: Tensor, b: Tensor) -> Tensor:
    r"""Distances `[B, k]` of `a` `[B, ...]` to candidates `b` `[B, k, ...]`; for images the smallest over shifts.

    >>> image = torch.rand(1, 1, 9, 9, generator=torch.Generator().manual_seed(0))
    >>> shifted = torch.roll(image, 1, 3)[:, None] * 0.5 + 0.2
    >>> [bool(candidate_distances(image, other) < 1e-2) for other in (shifted, image.flip(3)[:, None])]
    [True, False]
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
            vectors = unit_vectors(there.flatten(0, 1)).view(*b.shape[:2], -1)
            r = torch.einsum("bd,bkd->bk", unit_vectors(here), vectors)
            best = torch.minimum(best, (2 - 2 * r).clamp_min(0).sqrt())
    return best


def _nearest(
    train: Rows, queries: Rows, index: Tensor, sketches: Tensor, sketch: Sketch, own: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Distances `[B, k]` to the nearest training rows in rising order, and the nearest row `[B]`."""
    distances, rows = [], []
    count = min(CANDIDATES, len(sketches) - 1)
    for block in torch.arange(len(index)).split(min(128, block_rows(train))):
        query = queries.take(index[block])
        between = torch.cdist(sketch(query), sketches)
        if own is not None:
            between[torch.arange(len(block)), own[block]] = float("inf")
        near = between.topk(count, largest=False).indices
        candidates = sketch.whole(train.take(near.flatten()))
        exact = candidate_distances(sketch.whole(query), candidates.view(len(block), count, *candidates.shape[1:]))
        order, best = exact.sort(1)
        distances.append(order)
        rows.append(near.gather(1, best[:, :1])[:, 0])
    return torch.cat(distances), torch.cat(rows)
