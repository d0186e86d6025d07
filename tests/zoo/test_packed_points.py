"""Packed points: the ranking of the plain way, whatever happens to tasks and files; few queries for many tasks."""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql
import torch
import torch.nn.functional as F
from torch import Tensor

from nearkin.core.errors import ZooError
from nearkin.core.events import finish
from nearkin.core.objects import FolderObjects
from nearkin.core.state import State
from nearkin.distance.screening import Embedding, Index
from nearkin.store.blob_cache import BlobCache
from nearkin.store.blobs import Blobs
from nearkin.store.columns import task_groups, tasks_with_ids
from nearkin.store.records import NewArtifact, NewTask, PendingArtifact
from nearkin.zoo import packed_points
from nearkin.zoo.packed_points import PackedPoints, pack_points
from nearkin.zoo.zoo import Zoo

DIMS = 64


def unit(count: int, seed: int, dims: int = DIMS) -> Tensor:
    return F.normalize(torch.randn(count, dims, generator=torch.Generator().manual_seed(seed)), dim=1)


class Points:
    """Tasks by id with their points, and the number of blobs that were read."""

    def __init__(self, count: int) -> None:
        self.of = dict(enumerate(unit(count, 0)))
        self.reads = 0

    def packed(self, folder: Path, cache: BlobCache | None = None) -> PackedPoints:
        blobs = {hashlib.sha256(point.numpy().tobytes()).hexdigest(): point for point in self.of.values()}
        owners: dict[str, list[int]] = {}
        for number, point in self.of.items():
            owners.setdefault(hashlib.sha256(point.numpy().tobytes()).hexdigest(), []).append(number)

        def read(digest: str) -> Tensor:
            self.reads += 1
            return blobs[digest]

        return finish(pack_points(Blobs(folder, cache), owners, read, DIMS))

    def check(self, folder: Path, reads: int) -> None:
        """The ranking is that of `Index`, and exactly so many blobs are read."""
        before = self.reads
        packed = self.packed(folder)
        assert self.reads - before == reads
        index = Index(Embedding(dims=DIMS)).add({str(number): point for number, point in self.of.items()})
        for query in unit(3, 99):
            expected = index.query(query, 10)
            found = packed.nearest(query, 10)
            assert [distance for _, distance in found] == pytest.approx([d for _, d in expected], abs=1e-3)
            assert {str(number) for number, _ in found[:3]} == {name for name, _ in expected[:3]}


def test_the_ranking_is_the_plain_one_and_only_new_points_are_read(tmp_path: Path) -> None:
    points = Points(200)
    points.check(tmp_path, 200)
    points.check(tmp_path, 0)
    points.of[7] = unit(1, 7)[0]  # changed
    del points.of[9]
    points.check(tmp_path, 1)
    for number in range(300, 330):  # one after the other
        points.of[number] = unit(1, number)[0]
        points.check(tmp_path, 1)
    assert len(list(Blobs(tmp_path).digests())) < 8
    points.of[500] = points.of[1]  # two tasks with the same point
    points.check(tmp_path, 0)
    assert {i for i, _ in points.packed(tmp_path).nearest(points.of[1], 2)} == {1, 500}
    assert [i for i, _ in points.packed(tmp_path).nearest(points.of[1], 2, only={3, 500})] == [500, 3]


def test_a_damaged_file_is_read_again_from_the_blobs(tmp_path: Path) -> None:
    points = Points(50)
    points.check(tmp_path, 50)
    for damage in (lambda data: data[:-5], lambda data: data[:-9] + b"x" + data[-8:], lambda data: b""):
        (digest,) = Blobs(tmp_path).digests()
        file = Blobs(tmp_path).path(digest)
        file.write_bytes(damage(file.read_bytes()))
        points.check(tmp_path, 50)
        points.check(tmp_path, 0)


def test_files_are_read_from_the_local_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, points = BlobCache(tmp_path / "cache"), Points(50)
    points.packed(tmp_path / "far", cache)
    monkeypatch.setattr(FolderObjects, "read", None)
    assert points.packed(tmp_path / "far", cache).nearest(points.of[3], 1)[0][0] == 3
    assert points.reads == 50


def test_several_builders_do_not_disturb_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_points, "ROWS", 32)
    with ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(lambda _: Points(100).packed(tmp_path), range(4)))) == 4
    Points(100).check(tmp_path, 0)


def test_landmarks_are_far_from_each_other(tmp_path: Path) -> None:
    points = Points(5)
    centres = [points.of[number] for number in range(5)]
    points.of |= {number: F.normalize(centres[number % 5] + unit(1, number)[0] / 50, dim=0) for number in range(5, 50)}
    assert {number % 5 for number in points.packed(tmp_path).landmarks(5)} == set(range(5))


@contextmanager
def statements() -> Iterator[list[str]]:
    texts: list[str] = []

    def note(connection: Any, cursor: Any, text: str, *_: Any) -> None:
        texts.append(text)

    sql.event.listen(sql.Engine, "before_cursor_execute", note)
    yield texts
    sql.event.remove(sql.Engine, "before_cursor_execute", note)


def large_zoo(path: Path, count: int) -> tuple[Zoo, Embedding]:
    zoo, embedding = Zoo(path), Embedding(network=repr(("mlp", (4,), 0)))
    entries = []
    data = State({"point": unit(1, 0, embedding.dims)[0].clone()}).to_bytes()
    digest = zoo.catalogue.blobs.put(data)
    for number in range(count):
        task = NewTask(name=f"task {number}", network="mlp", likelihood="categorical", data="", num_classes=2,
                       input_shape=(4,), metric=0.9, epsilon=0.1, trials=1, parameters=9, seconds=1.0, seed=0,
                       fingerprint="f")  # fmt: skip
        entries.append((task, [PendingArtifact("point", 1, digest, len(data), asdict(embedding))]))
    zoo.catalogue.admit(entries, lambda _: data)
    for number in range(5):
        own = State({"point": unit(1, number + 1, embedding.dims)[0].clone()}).to_bytes()
        zoo.catalogue.attach(f"task {number}", [NewArtifact("point", 1, own, asdict(embedding))])
    return zoo, embedding


def test_the_number_of_queries_does_not_grow_with_the_tasks(tmp_path: Path) -> None:
    counts = []
    for count in (20, 2000):
        zoo, embedding = large_zoo(tmp_path / str(count), count)
        with statements() as texts:
            (group,) = task_groups(zoo.catalogue)
            packed = finish(zoo.points(group, 1, embedding))
            nearest = packed.nearest(unit(1, 3, embedding.dims)[0], 10)
            assert tasks_with_ids(zoo.catalogue, [number for number, _ in nearest])[0].name == "task 2"
        counts.append(len(texts))
        assert (group.count, group.trials, group.probe) == (count, 1, ("mlp", (4,), 0))
    assert counts[0] == counts[1] <= 6  # three queries, each in a transaction
    with pytest.raises(ZooError, match=r"the zoo has 2000 tasks.*at most 300"):
        zoo.matrix()
    names = zoo.map_names()
    assert len(names) == len(set(names)) <= 60
    assert len({"task 1", "task 2", "task 3", "task 4"} & set(names)) == 4
