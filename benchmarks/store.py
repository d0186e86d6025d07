"""Inserts per second of one and of eight processes that add tasks to one zoo, on SQLite and on PostgreSQL; large lists.

    python benchmarks/store.py

Every task has one artifact of 100 kB of random bytes. All commits wait for the disk. PostgreSQL is a private server on
the same machine (its programs must be installed); the blobs are in a folder in both cases.
"""

import multiprocessing as processes
import os
import statistics
import sys
import tempfile
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from nearkin.store.catalogue import Catalogue
from nearkin.store.records import NewArtifact, NewTask

PAGE = Path(__file__).resolve().parents[1] / "docs" / "figures" / "store.md"
SECONDS, ROUNDS, COUNTS, BYTES = 8.0, 3, (1, 8), 100_000
LISTED = 100_000


def new_task(name: str) -> NewTask:
    return NewTask(
        name=name, network="mlp?width=32", likelihood="categorical", data="digits?parity", num_classes=2,
        input_shape=(1, 8, 8), metric=0.97, epsilon=0.03, trials=1, parameters=4522, seconds=1.5, seed=0,
        fingerprint="f00d", facts={"classes": ["odd", "even"]},
    )  # fmt: skip


def add_tasks(address: str, blobs: str, me: int, start: Barrier, counts: Any) -> None:
    """Add tasks for `SECONDS`, and put their number into the queue."""
    with Catalogue(address, blobs=blobs) as zoo:
        zoo.count()
        start.wait()
        begun, number = time.perf_counter(), 0
        while time.perf_counter() - begun < SECONDS:
            zoo.add(new_task(f"{me} {number}"), [NewArtifact("weights", 0, os.urandom(BYTES))])
            number += 1
        counts.put(number / (time.perf_counter() - begun))


def inserts_per_second(address: str, blobs: str, count: int) -> float:
    """Total over `count` processes, in an empty zoo."""
    context = processes.get_context("spawn")
    start, counts = context.Barrier(count), context.Queue()
    Catalogue(address, blobs=blobs).close()
    workers = [context.Process(target=add_tasks, args=(address, blobs, me, start, counts)) for me in range(count)]
    for worker in workers:
        worker.start()
    total = sum(counts.get(timeout=600) for _ in workers)
    for worker in workers:
        worker.join()
    return float(total)


def listing(address: str, blobs: str) -> dict[str, float]:
    """Seconds of a page of 100 tasks in the middle, of all names, and of the number, in a zoo of `LISTED` tasks."""
    with Catalogue(address, blobs=blobs) as zoo:
        for first in range(0, LISTED, 10_000):
            zoo.admit([(new_task(f"task {first + i}"), []) for i in range(10_000)], lambda _: b"")
        middle = zoo.task(f"task {LISTED // 2}").id
        actions = {
            "page": lambda: zoo.tasks(100, middle), "names": zoo.names, "count": zoo.count,
            "one": lambda: zoo.has("task 77"),
        }  # fmt: skip
        seconds = {}
        for name, action in actions.items():
            times = []
            for _ in range(5):
                begun = time.perf_counter()
                action()
                times.append(time.perf_counter() - begun)
            seconds[name] = round(statistics.median(times), 4)
    return seconds


def page(figures: dict[str, Any]) -> str:
    from results import table

    rows = [
        [
            name,
            *(f"{values[str(count)]:.0f}" for count in COUNTS),
            f"{values[str(COUNTS[1])] / values[str(COUNTS[0])]:.2f}",
        ]
        for name, values in figures["inserts_per_second"].items()
    ]
    lists = [
        [name, *(f"{1000 * values[key]:.1f}" for key in ("page", "names", "count", "one"))]
        for name, values in figures["listing_seconds"].items()
    ]
    return f"""# Stores: concurrent inserts, and large lists

Every inserted task has one artifact of 100 kB; all commits wait for the disk. The PostgreSQL server runs on the same
machine; blobs are in a folder. Median of {ROUNDS} rounds of {SECONDS:g} s; the kinds of runs take turns in every round.

## Inserts per second, all processes together

{table(["database", "1 process", "8 processes", "ratio"], rows)}

The goal was a ratio of at least 1: processes that wait for each other must not be slower together than one alone.

## A zoo of {LISTED:,} tasks, milliseconds

{table(["database", "page of 100", "all names", "number", "is a name used?"], lists)}

Median of 5. The goal was a page in less than 200 ms.
"""


def main() -> None:
    from results import keep  # here, because the other processes import this file and need neither scipy nor pytest

    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from postgres_server import PostgresServer

    inserts: dict[str, dict[str, list[float]]] = {
        name: {str(n): [] for n in COUNTS} for name in ("SQLite", "PostgreSQL")
    }
    server = PostgresServer(fsync=True)
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for turn in range(ROUNDS):
                for count in COUNTS:
                    mark = f"r{turn}_{count}"
                    places = {
                        "SQLite": (str(folder / mark), ""),
                        "PostgreSQL": (server.address(mark), str(folder / f"b{mark}")),
                    }
                    for kind, place in places.items():
                        inserts[kind][str(count)].append(inserts_per_second(*place, count))
                        print(kind, count, round(inserts[kind][str(count)][-1], 1), flush=True)
            lists = {
                "SQLite": listing(str(folder / "list"), ""),
                "PostgreSQL": listing(server.address("list"), str(folder / "b")),
            }
    finally:
        server.close()
    medians = {
        kind: {count: round(statistics.median(values), 1) for count, values in runs.items()}
        for kind, runs in inserts.items()
    }
    figures = {
        "bytes": BYTES, "seconds": SECONDS, "rounds": ROUNDS, "inserts_per_second": medians,
        "all_rounds": inserts, "tasks_listed": LISTED, "listing_seconds": lists,
    }  # fmt: skip
    keep(__file__, figures)
    PAGE.write_text(page(figures))
    print(figures)


if __name__ == "__main__":
    main()
