"""Workers of a zoo as processes that can be killed, forked from the server of `faults.processes`."""

import itertools
import random
import resource
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from faults.processes import FORK, start_server
from nearkin.run.queued import QueueRunner
from nearkin.zoo.solved_tasks import SolvedTasks
from nearkin.zoo.zoo_runner import job_queue, job_results, open_worker

MEBIBYTE = 2**20


def jumping_clock(seed: int) -> Callable[[], float]:
    """A clock that is set to another day at every look."""
    moments, real = random.Random(seed), time.time
    return lambda: real() + 86400 * moments.uniform(-30, 30)


def _work(zoo: str, blobs: str, name: str, group: str, fault: str) -> None:
    torch.set_num_threads(1)
    if fault == "clock":
        time.time = jumping_clock(1)
    if fault == "memory":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + 48 * MEBIBYTE
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    open_worker(SolvedTasks(zoo, create=False, blobs=blobs), name, group).run()


class ForkStaff:
    """Starts workers by forks.

    Args:
        zoo: whose jobs they do.
        faults: fault of each worker that is started, in order: clock, memory, or none.
    """

    def __init__(self, zoo: SolvedTasks, *faults: str) -> None:
        self.place, self.faults = zoo.place, itertools.chain(faults, itertools.repeat(faults[-1] if faults else ""))
        self.processes: dict[str, BaseProcess] = {}

    def start(self, worker: str, group: str) -> None:
        start_server()
        given = (self.place.zoo, self.place.blobs, worker, group, next(self.faults))
        self.processes[worker] = FORK.Process(target=_work, args=given, daemon=True)
        self.processes[worker].start()

    def ended(self) -> list[tuple[str, str]]:
        names = [name for name, process in self.processes.items() if not process.is_alive()]
        return [(name, f"exit status {self.processes.pop(name).exitcode}") for name in names]

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.join()


def forked_runner(place: Path | str, workers: int, *faults: str, blobs: str = "") -> tuple[QueueRunner, ForkStaff]:
    """A runner with such workers, and these."""
    zoo = SolvedTasks(place, blobs=blobs)
    staff = ForkStaff(zoo, *faults)
    return QueueRunner(job_queue(zoo), job_results(zoo), staff, workers), staff
