"""A zoo to look at, made without training, and a server on it."""

import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
import uvicorn

from nearkin.core.events import Progress
from nearkin.core.job_records import DONE, FAILED, JobRecord, JobReport
from nearkin.core.state import State
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.networks.named import network_string
from nearkin.search.networks.skeleton import Skeleton
from nearkin.search.searcher import ScoredGenotype
from nearkin.store.catalogue import Catalogue
from nearkin.store.job_table import open_job_table
from nearkin.store.read_only import ReadOnlyStore
from nearkin.store.records import NewArtifact, NewTask
from nearkin.web.server import address, open_socket, serve
from nearkin.zoo.best_cells import BestCells

CELL = Genotype.parse("normal(0): 1 = conv3(0); 2 = max3(0) + conv5(1); out = 2")
Place = TypeVar("Place", Path, str)
NAMES = ("zero", "six", "some")
MEASURE = "frechet model 1000"


def new_task(name: str, **changes: Any) -> NewTask:
    facts = {
        "classes": ["other", "<b>it</b>"], "num_train": 1438, "num_test": 359, "metric_name": "accuracy",
        "metric_std": 0.002, "guess": 0.9, "recipe": {"epochs": 5, "optimiser": "adam"},
    }  # fmt: skip
    fields: dict[str, Any] = {
        "name": name, "network": "lenet", "likelihood": "categorical", "data": f"digits?detect={len(name)}",
        "num_classes": 2, "input_shape": (1, 8, 8), "metric": 0.9 + len(name) / 100, "epsilon": 0.01, "trials": 2,
        "parameters": 20_000 + 100 * len(name), "seconds": 12.5, "seed": 0, "fingerprint": "f00d", "facts": facts,
        "created": "2026-01-02T03:04:05+00:00",
    }  # fmt: skip
    return NewTask(**{**fields, **changes})


def weights(steps: int = 300) -> list[NewArtifact]:
    losses = 2.0 * torch.exp(-torch.arange(steps) / 50)
    data = State({"history/losses": losses, "params/w": torch.ones(3)}).to_bytes()
    facts = {"metric": 0.97, "loss": 0.1, "count": 359, "steps": steps, "seconds": 6.2, "reached": True}
    return [NewArtifact("weights", trial, data, {**facts, "metric": 0.97 + trial / 100}) for trial in range(2)]


def filled(path: Place, blobs: str = "") -> Place:
    """A zoo of three tasks: all compared with each other, one with cells, one with a searched network."""
    cells = BestCells("general", {"channels": 8}, "evolution", (ScoredGenotype(CELL, 0.93, {"parameters": 300}),) * 4)
    network = network_string(CELL, Skeleton(channels=8, num_cells=2))
    with Catalogue(path, blobs=blobs) as zoo:
        for name in NAMES:
            zoo.add(new_task(name), weights())
        zoo.attach("zero", [NewArtifact("cells", 0, cells.to_state().to_bytes(), {})])
        zoo.attach("six", [NewArtifact("architecture", 0, b"weights", {"network": network, "metric": 0.99})])
        for a, source in enumerate(NAMES):
            for b, target in enumerate(NAMES):
                for trial in range(2):
                    value = 0.0 if a == b else 0.1 * (a + b) + 0.01 * trial + 0.02 * a
                    zoo.keep_pair(MEASURE, source, target, trial, {"sorted": value, "weight": value / 2})
    return path


def queued(address: str) -> None:
    """Put jobs of every state into the queue of a zoo."""
    table = open_job_table(address)
    titles = {
        "done": "zero, trial 1 of 2", "failed": "some, trial 1 of 2", "cancelled": "distances to zero",
        "running": "six, trial 2 of 2",
        "first": "distances to six", "second": "distances to a task with a rather long name, as people give them",
    }  # fmt: skip
    table.put([JobRecord(key=key, spec='"spec-of-a-job"', title=title) for key, title in titles.items()])
    no_labels = "the data has <b>no</b> labels; add some"
    for key, state, error in (("done", DONE, ""), ("failed", FAILED, no_labels)):
        table.claim("worker 1", "node7", 1000.0)
        assert table.end("worker 1", key, state, error, JobReport(Progress("training", 4, 4)))
    table.cancel(["cancelled"])
    table.claim("worker 2", "node7", 1000.0)
    assert table.report("worker 2", "running", JobReport(Progress("training <i>six</i>", 3, 4)))
    table.close()


def renamed(zoo: Path, old: str, new: str) -> None:
    """Give a task a name that the zoo itself would refuse, as a file from elsewhere might."""
    with closing(sqlite3.connect(zoo / "zoo.db")) as database:
        database.execute("UPDATE tasks SET name = ? WHERE name = ?", (new, old))
        database.commit()


@contextmanager
def serving(zoo: Path | str, token: str = "") -> Iterator[str]:
    """The address of a server in this process."""
    servers: list[uvicorn.Server] = []
    with ReadOnlyStore(zoo) as store, open_socket("127.0.0.1", 0) as taken:
        thread = threading.Thread(target=serve, args=(store, taken, token, servers.append))
        thread.start()
        try:
            _answering(taken)
            yield address(taken).rstrip("/")
        finally:
            while not servers and thread.is_alive():
                time.sleep(0.01)
            servers[0].should_exit = True
            thread.join(10)


def _answering(taken: socket.socket) -> None:
    with closing(socket.create_connection(taken.getsockname()[:2], timeout=10)) as line:
        line.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert line.recv(15).startswith(b"HTTP/1.1 ")
