"""Cost of a zoo by its number of tasks: a store of many synthetic tasks, and all distances of small real zoos.

    python benchmarks/scale.py store 100000
    python benchmarks/scale.py packed 100000
    python benchmarks/scale.py matrix 3 10 30 100
    python benchmarks/scale.py page

Every part adds its figures to `scale.json`; `page` writes `docs/scale.md`. Synthetic tasks have a row and a point of
2,048 random numbers, and no weights; they are inserted by the functions of the store. PostgreSQL is a private server on
the same machine (its programs must be installed). Times are seconds of the processor, as the machine may be shared.
"""

import hashlib
import json
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import sqlalchemy as sql
import torch
import torch.nn.functional as F

import nearkin as nk
from nearkin.core.state import State
from nearkin.distance.screening import RUNGS, Embedding
from nearkin.store.blobs import Blobs
from nearkin.store.columns import task_groups, tasks_with_ids
from nearkin.store.records import NewTask, PendingArtifact
from nearkin.zoo.comparison import StoredTarget
from nearkin.zoo.packed_points import ROWS, PackedPoints, PointFile, pack_points
from nearkin.zoo.solved_tasks import SolvedTasks
from results import keep

FILE = Path(__file__).with_suffix(".json")
NETWORK, SHAPE, BATCH, REPEATS = "mlp?hidden=8", (1, 8, 8), 5000, 3


@contextmanager
def spent(figures: dict[str, Any], name: str) -> Iterator[None]:
    """Seconds of the processor, of this process and of those that it started and that ended, wall time, statements."""
    statements = count()

    def counted(*args: Any) -> None:
        next(statements)

    def processor() -> float:
        own, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime

    sql.event.listen(sql.Engine, "before_cursor_execute", counted)
    begun, wall = processor(), time.perf_counter()
    try:
        yield
    finally:
        cpu, whole = processor() - begun, time.perf_counter() - wall
        sql.event.remove(sql.Engine, "before_cursor_execute", counted)
    figures[name] = {"cpu": round(cpu, 4), "wall": round(whole, 4), "statements": next(statements)}
    print(name, figures[name], flush=True)


def repeated(figures: dict[str, Any], name: str, action: Callable[[], Any]) -> None:
    """The median of the time of the processor, and the shortest wall time, of some repetitions."""
    rounds: dict[str, Any] = {}
    for turn in range(REPEATS):
        with spent(rounds, f"{name} {turn}"):
            action()
    values = list(rounds.values())
    figures[name] = {
        "cpu": statistics.median(value["cpu"] for value in values),
        "wall": min(value["wall"] for value in values),
        "statements": values[-1]["statements"],
    }


# A store of many synthetic tasks


def fill(zoo: SolvedTasks, number: int, folder: Path, embedding: Embedding) -> None:
    """Insert tasks; blobs are written as plain files, without waiting for the disk."""
    rng = torch.Generator().manual_seed(0)
    for first in range(0, number, BATCH):
        entries = []
        rows = F.normalize(torch.randn(min(BATCH, number - first), embedding.dims, generator=rng), dim=1)
        for offset, point in enumerate(rows):
            data = State({"point": point.clone()}).to_bytes()
            digest = hashlib.sha256(data).hexdigest()
            path = folder / "blobs" / digest[:2] / f"{digest}.safetensors"
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            task = NewTask(
                name=f"task {first + offset}", network=NETWORK, likelihood="categorical", data="digits?parity",
                num_classes=2, input_shape=SHAPE, metric=0.97, epsilon=0.03, trials=1, parameters=538, seconds=1.5,
                seed=0, fingerprint=f"{first + offset:x}", facts={"classes": ["odd", "even"]},
            )  # fmt: skip
            entries.append((task, [PendingArtifact("point", 1, digest, len(data), asdict(embedding))]))
        zoo.catalogue.admit(entries, lambda _: b"")
        print(first + len(entries), "tasks", flush=True)


def finished(work: Any) -> Any:
    """The result of an operation; its events are dropped."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


def screen(zoo: SolvedTasks, embedding: Embedding) -> PackedPoints:
    """What `near --screen` does between the point of the target and the race."""
    (group,) = task_groups(zoo.catalogue)
    packed: PackedPoints = finished(zoo.points(group, 1, embedding))
    point = F.normalize(torch.randn(embedding.dims, generator=torch.Generator().manual_seed(1)), dim=0)
    nearest = packed.nearest(point, RUNGS[0].contenders)
    assert len(tasks_with_ids(zoo.catalogue, [number for number, _ in nearest])) == RUNGS[0].contenders
    return packed


def store(number: int) -> dict[str, Any]:
    """Figures of a zoo of many tasks on SQLite and on PostgreSQL."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from postgres_server import PostgresServer

    embedding = Embedding(network=repr((NETWORK, SHAPE, 0)))
    figures: dict[str, Any] = {"tasks": number}
    server = PostgresServer()
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for kind, place in (("SQLite", (str(folder), "")), ("PostgreSQL", (server.address("scale"), str(folder)))):
                own = figures[kind] = {}
                zoo = SolvedTasks(place[0], blobs=place[1])
                with spent(own, "insert"):
                    fill(zoo, number, folder, embedding)
                shutil.rmtree(folder / "index", ignore_errors=True)
                with spent(own, "first screening"):
                    packed = screen(zoo, embedding)
                files = list((folder / "index").rglob("*"))
                own["index_bytes"] = sum(path.stat().st_size for path in files if path.is_file())
                repeated(own, "landmarks", lambda packed=packed: packed.landmarks(60))
                del packed
                repeated(own, "screening", lambda zoo=zoo: screen(zoo, embedding))
                repeated(own, "page", lambda zoo=zoo: zoo.catalogue.tasks(100, number // 2))
                zoo.catalogue.close()
    finally:
        server.close()
    figures["most_memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return figures


def packed(number: int) -> dict[str, Any]:
    """Time to read packed points and to find the nearest 150, without a database; all files hold the same points."""
    embedding = Embedding(network=NETWORK)
    figures: dict[str, Any] = {"tasks": number}
    points = F.normalize(torch.randn(ROWS, embedding.dims, generator=torch.Generator().manual_seed(0)), dim=1).half()
    digests = [f"{row:064x}" for row in range(number)]
    with tempfile.TemporaryDirectory() as name:
        for first in range(0, number, ROWS):
            rows = digests[first : first + ROWS]
            Blobs(Path(name)).put(PointFile(rows, points[: len(rows)]).to_bytes())
        owners = {digest: [row] for row, digest in enumerate(digests)}
        query = points[0].float()

        def nearest() -> None:
            found: PackedPoints = finished(pack_points(Blobs(Path(name)), owners, lambda _: query, len(query)))
            assert len(found.nearest(query, RUNGS[0].contenders)) == RUNGS[0].contenders

        repeated(figures, "nearest", nearest)
        figures["index_bytes"] = sum(path.stat().st_size for path in Path(name).rglob("*.safetensors"))
    figures["most_memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return figures


# Distances of all pairs of small zoos


def small_zoo(path: Path, number: int) -> float:
    """A zoo of tasks on 300 digits with random sets of classes; returns its bytes for each task."""
    digits = nk.task("digits")
    x, y = digits.train.all()
    with nk.Zoo(path) as zoo:
        for seed in range(number):
            chosen = torch.randperm(10, generator=torch.Generator().manual_seed(seed))[:5]
            labels = torch.isin(y, chosen).long()
            task = nk.Task.from_arrays(f"task {seed}", x[:200], labels[:200], x[200:300], labels[200:300])
            zoo.add(task, network=NETWORK, recipe=nk.Recipe(steps=20), trials=1)
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / number


def matrices(numbers: list[int]) -> list[dict[str, Any]]:
    """Time, Fisher passes, statements and bytes of all distances of zoos, by one and by two workers."""
    rows = []
    targets: list[StoredTarget] = []
    start = StoredTarget.__init__

    def listed(self: StoredTarget, *args: Any, **options: Any) -> None:
        start(self, *args, **options)
        targets.append(self)

    StoredTarget.__init__ = listed  # type: ignore[method-assign]
    for number in numbers:
        with tempfile.TemporaryDirectory() as name:
            added: dict[str, Any] = {}
            with spent(added, "add"):
                size = small_zoo(Path(name) / "zoo", number)
            for workers in (1, 2):
                path = Path(shutil.copytree(Path(name) / "zoo", Path(name) / str(workers)))
                row: dict[str, Any] = {"tasks": number, "workers": workers, "bytes_per_task": round(size), **added}
                targets.clear()
                with spent(row, "matrix"), nk.Zoo(path, workers=workers) as zoo:
                    zoo.matrix(measure="frechet", samples=100)
                row["passes"] = sum(target.passes for target in targets)
                rows.append(row)
                print(row, flush=True)
    return rows


def main() -> None:
    """Measure the part that is named, and write the page."""
    part, numbers = sys.argv[1], [int(word) for word in sys.argv[2:]]
    torch.set_num_threads(1)
    figures = json.loads(FILE.read_text()) if FILE.exists() else {}
    figures.pop("measured_on", None)
    if part == "store":
        figures.setdefault("stores", {})[str(numbers[0])] = store(numbers[0])
    elif part == "packed":
        figures.setdefault("packed", {})[str(numbers[0])] = packed(numbers[0])
    elif part == "matrix":
        known = [row for row in figures.get("matrices", []) if row["tasks"] not in numbers]
        figures["matrices"] = sorted([*known, *matrices(numbers)], key=lambda row: (row["tasks"], row["workers"]))
    if part != "page":
        keep(__file__, figures)
    else:
        from scale_page import write

        write(figures)


if __name__ == "__main__":
    main()
