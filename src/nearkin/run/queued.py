"""Runner whose jobs are in a queue, from which workers of any kind take them.

The runner starts workers through a `Staff` (processes, Ray, SLURM) and watches the queue. Workers that join by hand
(`nearkin worker`) take the same jobs. A worker that dies is replaced and its job put back at once if the staff notices
it, and else after the lease of the job.
"""

import contextlib
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

from nearkin.core.errors import DataError, NearkinError, require
from nearkin.core.job_records import CANCELLED, DONE, ENDED, JobQueue, JobRecord
from nearkin.core.state import State
from nearkin.run.checkpoints import Checkpoints
from nearkin.run.jobs import JobError, JobSpec, record_of
from nearkin.run.leases import LEASE_SECONDS, LeaseWatch
from nearkin.run.runner import Job
from nearkin.run.worker import next_wait, worker_name

LONGEST_WAIT = 0.1  # seconds between two looks at the queue
UNREACHABLE_SECONDS = 120.0  # for which a queue may be unreachable, before open jobs fail
FRUITLESS = 3  # workers that may end in a row before they take a job


class Staff(Protocol):
    """Starts workers, and notices when they end."""

    def start(self, worker: str, group: str) -> None:
        """Start a worker with a name, which takes jobs of a group; `NearkinError` if that is not possible."""
        ...

    def ended(self) -> list[tuple[str, str]]:
        """Names of the workers that have ended since the last call, and why; empty for those that had no job left."""
        ...

    def stop(self) -> None:
        """Stop all workers, and wait for their end."""
        ...


class QueueRunner:
    """Does jobs of a queue by workers.

    Args:
        queue: the jobs.
        results: where results are stored; all workers must see it.
        staff: starts workers.
        workers: number of workers, at most as many as there are jobs.
    """

    def __init__(self, queue: JobQueue, results: Checkpoints, staff: Staff, workers: int) -> None:
        require(workers >= 1, f"the number of workers must be 1 or more, got {workers}")
        self.queue, self.results, self.staff, self.workers = queue, results, staff, workers
        self.group = worker_name()
        self.closed = False
        self._open: dict[str, list[Job]] = {}
        self._lock, self._submitted = threading.Lock(), threading.Event()
        self._watch = _Watch(self)

    def __enter__(self) -> "QueueRunner":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def submit(self, spec: JobSpec) -> Job:
        """Put a job into the queue; a job whose result is stored has ended at once."""
        require(not self.closed, "the runner is closed; make a new one", JobError)
        job = Job(spec, self._cancel)
        with contextlib.suppress(DataError):  # a damaged result is written again
            stored = self.results.read(spec.key)
            if stored is not None:
                job.end(stored)
                return job
        with self._lock:
            self._open.setdefault(spec.key, []).append(job)
            self.queue.put([record_of(spec, self.group)])
        if not self._watch.is_alive():
            self._watch.start()
        self._submitted.set()
        return job

    def forget(self, specs: Sequence[JobSpec]) -> None:
        """Remove the results of jobs, and the jobs from the queue."""
        for spec in specs:
            self.results.remove(spec.key)
        self.queue.forget([spec.key for spec in specs])

    def close(self) -> None:
        """Stop all workers; jobs that have not ended are cancelled."""
        self.closed = True
        with self._lock:
            waiting = list(self._open)
        with contextlib.suppress(NearkinError):  # an unreachable queue must not keep the process
            self.queue.cancel(waiting)
        self._submitted.set()
        if self._watch.is_alive():
            self._watch.join()
        self.staff.stop()
        self.end_all(None)
        self.queue.close()

    def _cancel(self, job: Job) -> None:
        """Cancel one job; it is stopped in its worker if no other one has its key."""
        job.end_cancelled()
        with self._lock:
            same = self._open.get(job.id, [])
            if job in same:
                same.remove(job)
            if same:
                return
            self._open.pop(job.id, None)
        self.queue.cancel([job.id])

    @property
    def num_open(self) -> int:
        """Number of jobs that have not ended."""
        return len(self._open)

    def take(self, record: JobRecord) -> None:
        """Pass the news of a job on to those who submitted it."""
        with self._lock:
            jobs = list(self._open.get(record.key, ()))
        for job in jobs:
            job.update(record)
        if jobs and record.state in ENDED:
            outcome = self._outcome(record)
            with self._lock:
                self._open.pop(record.key, None)
            for job in jobs:
                job.end_cancelled() if record.state == CANCELLED else job.end(outcome)

    def _outcome(self, record: JobRecord) -> State | NearkinError:
        if record.state != DONE:
            return JobError(record.error)
        try:
            stored = self.results.read(record.key)
        except NearkinError as damaged:
            return damaged
        return JobError(f"the result of {record.key} was removed; run the command again") if stored is None else stored

    def compare_open(self) -> None:
        """Compare the open jobs with the queue: a failure of its machine may lose the last changes.

        Jobs that are not in the queue are submitted again. Jobs that have ended there are taken: after such a failure
        the numbers of lost changes are used again, and `JobQueue.changes` does not tell those that follow.
        """
        with self._lock:
            records = {record.key: record for record in self.queue.jobs()}
            missing = [jobs[0].spec for key, jobs in self._open.items() if key not in records]
            ended = [records[key] for key in self._open if key in records and records[key].state in ENDED]
            if missing:
                self.queue.put([record_of(spec, self.group) for spec in missing])
        for record in ended:
            self.take(record)

    def end_all(self, error: NearkinError | None) -> None:
        """End all open jobs with an error; without one, as cancelled."""
        with self._lock:
            jobs = [job for same in self._open.values() for job in same]
            self._open.clear()
        for job in jobs:
            job.end_cancelled() if error is None else job.end(error)

    def wait_for_submission(self, seconds: float) -> bool:
        """Wait, but not longer than until a job is submitted; whether one was."""
        submitted = self._submitted.wait(seconds)
        self._submitted.clear()
        return submitted


class _Watch(threading.Thread):
    """Looks at the queue, and keeps as many workers as there are jobs for."""

    def __init__(self, runner: QueueRunner) -> None:
        super().__init__(daemon=True)
        self.runner, self.leases = runner, LeaseWatch()
        self.alive: set[str] = set()
        self.useful: set[str] = set()
        self.fruitless, self.looked, self.change = 0, 0.0, 0

    def run(self) -> None:
        news = reached = time.monotonic()
        while not self.runner.closed:
            try:
                if self._look():
                    news = time.monotonic()
                reached = time.monotonic()
            except NearkinError as unreachable:
                if time.monotonic() - reached > UNREACHABLE_SECONDS:
                    self.runner.end_all(unreachable)
            wait = next_wait(time.monotonic() - news, LONGEST_WAIT) if self.runner.num_open else LONGEST_WAIT
            if self.runner.wait_for_submission(wait):
                news = time.monotonic()

    def _look(self) -> bool:
        """Take the news of the queue and keep its workers; whether a job has ended."""
        runner = self.runner
        self.change, changed = runner.queue.changes(self.change)
        for record in changed:
            if record.worker in self.alive:
                self.useful.add(record.worker)
            runner.take(record)
        for worker, reason in runner.staff.ended():
            self.alive.discard(worker)
            self.fruitless = self.fruitless + 1 if reason and worker not in self.useful else 0
            runner.queue.leave(worker, reason)
            if self.fruitless >= FRUITLESS:
                self.fruitless = 0
                runner.end_all(JobError(f"{FRUITLESS} workers ended before they took a job: {reason}"))
        while len(self.alive) < min(runner.workers, runner.num_open) and not runner.closed:
            self._start()
        if time.monotonic() - self.looked > LEASE_SECONDS / 10:
            self.looked = time.monotonic()
            self.leases.put_back_lost(runner.queue)
            runner.compare_open()
        return any(record.state in ENDED for record in changed)

    def _start(self) -> None:
        name = worker_name()
        try:
            self.runner.staff.start(name, self.runner.group)
        except NearkinError as refused:
            self.runner.end_all(refused)
            return
        self.alive.add(name)
