"""Points of many tasks in few files, so that a zoo of 100,000 tasks is screened without reading as many blobs.

A row of a file is the point of one blob, named by the digest of the blob. The database says which digests belong to
tasks now; rows of other digests are not used, and digests without a row are read from their blobs and packed. A file
is therefore never out of date: it only lacks rows, or has some too many. Files that are damaged are removed.

Files are blobs too, named by their content: those under a URL are kept in the local cache.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from nearkin.core.errors import DataError, MismatchError, ZooError, require
from nearkin.core.events import Checkpoint, Progress, Work
from nearkin.core.files import FileWriteError
from nearkin.core.objects import UnreachableError
from nearkin.core.rng import Streams
from nearkin.core.state import State, restoring
from nearkin.store.blobs import Blobs

ROWS = 16_384  # most rows of one file: 67 MB for 2,048 dimensions
BLOCK = 256  # rows that are converted to float32 together, so that they stay in the cache of the processor
SPARE = 8  # more candidates than asked for, whose distances are computed again in float64
SAMPLE = 5000  # tasks among which landmarks are chosen


@dataclass(frozen=True, eq=False)
class PointFile:
    """Some points with the digests of their blobs.

    Attributes:
        digests: of the blobs.
        points: `[n, D]` float16; a rounded entry differs by at most a part in 2,048.
        name: of the blob that holds them; empty before they are written.
    """

    digests: Sequence[str]
    points: Tensor
    name: str = ""

    def to_bytes(self) -> bytes:
        """Write as safetensors."""
        digests = torch.frombuffer(bytearray.fromhex("".join(self.digests)), dtype=torch.uint8).reshape(-1, 32)
        return State({"digests": digests, "points": self.points}).to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes, name: str, dims: int) -> "PointFile":
        """The inverse of `to_bytes`; `DataError` unless the content is intact and of these dimensions."""
        tensors = State.from_bytes(data, name, share=True).tensors
        with restoring(name):
            digests, points = tensors["digests"], tensors["points"]
            fits = points.shape == (len(digests), dims) and points.dtype == torch.float16
            require(fits and digests.shape[1:] == (32,), f"{name} holds no points of {dims} dimensions", DataError)
            text = digests.numpy().tobytes().hex()
        return cls([text[start : start + 64] for start in range(0, len(text), 64)], points, name)


@dataclass(frozen=True, eq=False)
class PackedPoints:
    """The points of the tasks of one group.

    Attributes:
        owners: ids of the tasks that each digest belongs to.
        files: the points; those without an owner are not used.
    """

    owners: Mapping[str, Sequence[int]]
    files: Sequence[PointFile]

    def nearest(self, point: Tensor, top: int, only: Collection[int] | None = None) -> list[tuple[int, float]]:
        r"""Ids of the nearest tasks with distances $\|p - q\| / \sqrt2$, nearest first.

        Args:
            point: `[D]`, of length one.
            top: number of tasks.
            only: ids of the tasks to choose from (default: all).
        """
        candidates: list[tuple[float, int]] = []
        for file, used in zip(self.files, self._used, strict=True):
            if only is not None:
                used = used & torch.tensor([any(i in only for i in self.owners.get(d, ())) for d in file.digests])
            products = _products(file.points, point).masked_fill_(~used, -math.inf)
            rows = products.topk(min(top + SPARE, len(products))).indices
            rows = rows[used[rows]]
            distances = (file.points[rows].double() - point.double()).norm(dim=1) / math.sqrt(2)
            for row, distance in zip(rows.tolist(), distances.tolist(), strict=True):
                owners = self.owners[file.digests[row]]
                candidates += [(distance, i) for i in owners if only is None or i in only]
        return [(i, distance) for distance, i in sorted(candidates)[:top]]

    def landmarks(self, count: int) -> list[int]:
        """Ids of tasks that are far from each other: each is the farthest from those before it.

        They are chosen among `SAMPLE` tasks drawn at random.
        """
        rows = [
            (self.owners[digest][0], file.points[row])
            for file, used in zip(self.files, self._used, strict=True)
            for row, digest in enumerate(file.digests)
            if used[row]
        ]
        rows.sort(key=lambda pair: pair[0])
        drawn = torch.randperm(len(rows), generator=Streams(0).at("landmarks"))[:SAMPLE].sort().values.tolist()
        points = torch.stack([rows[i][1] for i in drawn]).float()
        chosen, gap = [0], torch.full((len(points),), math.inf)
        while len(chosen) < min(count, len(points)):
            gap = torch.minimum(gap, 1 - points @ points[chosen[-1]])
            gap[chosen] = -math.inf
            chosen.append(int(gap.argmax()))
        return [rows[drawn[i]][0] for i in chosen]

    @cached_property
    def _used(self) -> list[Tensor]:
        """For each file, which rows are used `[n]`; of rows with the same digest the first."""
        seen: set[str] = set()
        masks = []
        for file in self.files:
            masks.append(torch.tensor([d in self.owners and d not in seen for d in file.digests], dtype=torch.bool))
            seen.update(file.digests)
        return masks


def pack_points(
    place: Blobs, owners: Mapping[str, Sequence[int]], read: Callable[[str], Tensor], dims: int
) -> Work[PackedPoints]:
    """Read the packed points of one place, and pack those that are missing; several processes may do it at once.

    Args:
        place: the files of one embedding.
        owners: ids of the tasks that each digest belongs to, of all tasks of the group.
        read: reads the point of a blob.
        dims: D.
    """
    files = list(_intact_files(place, dims))
    known = {digest for file in files for digest in file.digests}
    missing = sorted(digest for digest in owners if digest not in known)
    for start in range(0, len(missing), ROWS):
        batch, points = missing[start : start + ROWS], []
        for number, digest in enumerate(batch, start + 1):
            points.append(_checked(read(digest), digest, dims))
            if number % 100 == 0:
                yield Progress("packing points", number, len(missing))
                yield Checkpoint(lambda: State({}))
        files = _joined(place, files, PointFile(batch, torch.stack(points)), owners)
    return PackedPoints(owners, files)


def _intact_files(place: Blobs, dims: int) -> Iterator[PointFile]:
    """The files of a place; damaged ones are removed, and those that another process removes are left out."""
    for name in place.digests():
        try:
            yield PointFile.from_bytes(place.get(name), name, dims)
        except UnreachableError:
            raise
        except (DataError, ZooError):
            with suppress(FileWriteError):
                place.remove(name)


def _joined(
    place: Blobs, files: Sequence[PointFile], fresh: PointFile, owners: Mapping[str, Sequence[int]]
) -> list[PointFile]:
    """The files with a new one, which takes in files of up to twice its size, so that their number stays small."""
    kept: list[PointFile] = []
    parts = [fresh]
    size = len(fresh.digests)
    for file in sorted(files, key=lambda file: len(file.digests)):
        if len(file.digests) <= 2 * size and size + len(file.digests) <= ROWS:
            parts.append(file)
            size += len(file.digests)
        else:
            kept.append(file)
    rows = {
        digest: (part, row) for part in parts for row, digest in enumerate(part.digests) if digest in owners
    }  # the rows of removed tasks end here
    joined = fresh
    if len(parts) > 1:
        joined = PointFile(list(rows), torch.stack([part.points[row] for part, row in rows.values()]))
    name = ""
    with suppress(FileWriteError):  # a read-only zoo can still be screened
        name = place.put(joined.to_bytes())
        for part in parts[1:]:
            if part.name != name:
                place.remove(part.name)
    return [*kept, PointFile(joined.digests, joined.points, name)]


def _checked(point: Tensor, digest: str, dims: int) -> Tensor:
    require(
        point.shape == (dims,) and abs(float(point.norm()) - 1) < 1e-3,
        f"the point in blob {digest[:12]}… has shape {tuple(point.shape)} and length {float(point.norm()):.3g}, "
        f"expected ({dims},) and 1; run nearkin doctor",
        MismatchError,
    )
    return point.half()


def _products(points: Tensor, point: Tensor) -> Tensor:
    """Inner products `[n]` of float16 rows, computed in float32."""
    rows, products = torch.empty(BLOCK, points.shape[1]), torch.empty(len(points))
    for start in range(0, len(points), BLOCK):
        block = points[start : start + BLOCK]
        torch.mv(rows[: len(block)].copy_(block), point.float(), out=products[start : start + BLOCK])
    return products
