"""Worker: takes jobs from a queue, does them, and gives signs of life meanwhile.

Workers differ only in who starts them: a user (`nearkin worker`), or a runner (`nearkin.run.queued`) as a process, by
Ray or by SLURM.
"""

import os
import random
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from nearkin.core.errors import NearkinError
from nearkin.core.events import Caution, Checkpoint, Event, Note, Progress, finish
from nearkin.core.job_records import CAUTION, DONE, FAILED, NOTE, JobQueue, JobRecord, JobReport
from nearkin.core.memory import available_mebibytes, out_of_memory
from nearkin.run.checkpoints import Checkpoints
from nearkin.run.jobs import JobPlace, spec_of
from nearkin.run.leases import BEAT_SECONDS, LEASE_SECONDS, LeaseWatch

GRACE_SECONDS = 10.0  # for a job to reach a checkpoint before its process is ended
SHORTEST_WAIT, LONGEST_WAIT = 0.001, 0.5  # seconds between two looks at an empty queue
STUCK = 3  # exit status of a worker whose job reached no checkpoint after it was stopped


class _Stopped(BaseException):
    """The job was cancelled or given to another worker, or the worker was asked to stop."""


@dataclass
class Worker:
    """Does jobs until it is asked to stop.

    Attributes:
        queue: where jobs come from.
        results: where results are stored.
        place: where jobs read and write data.
        name: of the worker; unique.
        group: jobs that it takes (default: all).
        exit_when_stuck: whether the process is ended if a job that should stop reaches no checkpoint.
        stopping: set to stop at the next checkpoint of a job, which is given back.
        listen: called with every job that begins or ends, for messages.
    """

    queue: JobQueue
    results: Checkpoints
    place: JobPlace
    name: str
    group: str | None = None
    exit_when_stuck: bool = True
    stopping: threading.Event = field(default_factory=threading.Event)
    listen: Callable[[JobRecord, str], None] = lambda job, state: None

    def run(self, idle_seconds: float | None = None) -> int:
        """Do jobs until `stopping` is set, or until there was none for some seconds; returns how many were done."""
        done, watch = 0, LeaseWatch()
        host, idle, looked = host_name(), time.monotonic(), 0.0
        while not self.stopping.is_set():
            job = self.queue.claim(self.name, host, available_mebibytes(), self.group)
            if job is not None:
                self._do(job)
                done, idle = done + 1, time.monotonic()
                continue
            if idle_seconds is not None and time.monotonic() - idle >= idle_seconds:
                break
            if time.monotonic() - looked > LEASE_SECONDS / 10:
                looked = time.monotonic()
                watch.put_back_lost(self.queue)
            self.stopping.wait(next_wait(time.monotonic() - idle, LONGEST_WAIT))
        return done

    def _do(self, job: JobRecord) -> None:
        """Do one job, and store how it ended."""
        self.listen(job, "begins")
        with _Reports(self, job) as reports:
            try:
                finish(spec_of(job).work(self.results, self.place), reports)
                state, error = DONE, ""
            except _Stopped:
                state, error = "", ""
            except NearkinError as refused:
                state, error = FAILED, str(refused)
            except Exception as failed:
                words = "out of memory" if out_of_memory(failed) else f"unexpected {type(failed).__name__}: {failed}"
                state, error = FAILED, words
        if state:
            self.queue.end(self.name, job.key, state, error, reports.taken())
        else:
            self.queue.leave(self.name)
        self.listen(job, error or state or "given back")


class _Reports:
    """Reports the events of a job from a thread of its own, and stops the job at a checkpoint when it must end."""

    def __init__(self, worker: Worker, job: JobRecord) -> None:
        self.worker, self.job = worker, job
        self.progress: Progress | None = None
        self.lines: list[tuple[str, str]] = []
        self.lock, self.ended, self.lost = threading.Lock(), threading.Event(), False
        self.thread = threading.Thread(target=self._report, daemon=True)

    def __enter__(self) -> "_Reports":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Checkpoint):
            if self.lost or self.worker.stopping.is_set():
                raise _Stopped
        elif isinstance(event, Progress):
            self.progress = event
        elif isinstance(event, Note | Caution):
            with self.lock:
                self.lines.append((NOTE if isinstance(event, Note) else CAUTION, event.text))

    def taken(self) -> JobReport:
        """What was not reported yet."""
        with self.lock:
            lines, self.lines = self.lines, []
        return JobReport(self.progress, lines)

    def _report(self) -> None:
        stopped: float | None = None
        while not self.ended.wait(BEAT_SECONDS):
            if self.lost or self.worker.stopping.is_set():
                stopped = stopped or time.monotonic()
                if time.monotonic() - stopped > GRACE_SECONDS and self.worker.exit_when_stuck:
                    os._exit(STUCK)
            if not self.lost:
                try:
                    self.lost = not self.worker.queue.report(self.worker.name, self.job.key, self.taken())
                except NearkinError:  # the database cannot be reached: the job goes on, and may lose its lease
                    continue


def next_wait(quiet: float, longest: float) -> float:
    """Seconds until the next look at a queue without news for `quiet` seconds; varied, as not all may look at once.

    >>> 0.0005 <= next_wait(0.0, 0.5) <= 0.001 <= next_wait(60.0, 0.5) <= 0.5
    True
    """
    return min(longest, max(SHORTEST_WAIT, quiet / 5)) * random.uniform(0.5, 1.0)


def host_name() -> str:
    """Name of this machine."""
    try:
        return socket.gethostname()
    except OSError:
        return "unknown"


def worker_name() -> str:
    """A name that no other worker has."""
    return f"{host_name()}-{os.getpid()}-{random.SystemRandom().getrandbits(32):08x}"
