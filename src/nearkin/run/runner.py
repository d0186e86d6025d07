"""Runners: they do jobs in this process, in other processes or on other machines, behind one interface.

The interface is shaped like `concurrent.futures`: `submit` returns a `Job`, `as_completed` yields jobs as they end, and
`run_jobs` does many in order, with failures kept apart from results.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from nearkin.core.errors import NearkinError
from nearkin.core.events import Caution, Checkpoint, Event, Note, Progress, Work
from nearkin.core.job_records import CANCELLED, DONE, ENDED, FAILED, PENDING, RUNNING, JobRecord
from nearkin.core.state import State
from nearkin.run.checkpoints import Checkpoints
from nearkin.run.jobs import JobError, JobPlace, JobSpec

POLL_SECONDS = 0.1  # between two looks at the events of running jobs


class Job:
    """A submitted job.

    Attributes:
        spec: what it does.
        state: pending, running, done, failed or cancelled.
        events: its events, which `run_jobs` passes on.

    Args:
        spec: what it does.
        stop: called by `cancel` for a job that has not ended.
    """

    def __init__(self, spec: JobSpec, stop: "Callable[[Job], None] | None" = None) -> None:
        self.spec, self.state = spec, PENDING
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._stop = stop
        self._ended = threading.Event()
        self._outcome: State | NearkinError | None = None
        self._lines: list[str] = []
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Job], None]] = []
        self._known = 0  # lines of its log in a queue that were heard

    @property
    def id(self) -> str:
        """Key of its result: the same job has the same identifier everywhere."""
        return self.spec.key

    def result(self, timeout: float | None = None) -> State:
        """Wait for the end and return the result.

        Args:
            timeout: seconds; after them `TimeoutError` is raised.

        Raises:
            JobError: the job failed or was cancelled.
        """
        if not self._ended.wait(timeout):
            raise TimeoutError(f"the job {self.spec.title or self.id} has not ended after {timeout} s")
        if isinstance(self._outcome, NearkinError):
            raise self._outcome
        assert self._outcome is not None
        return self._outcome

    def error(self) -> NearkinError | None:
        """Why it failed or was cancelled; None if it did not, or has not ended."""
        return self._outcome if isinstance(self._outcome, NearkinError) else None

    def cancel(self) -> bool:
        """Stop the job; False if it has ended already."""
        if self._stop is not None and not self._ended.is_set():
            self._stop(self)
        return self.state == CANCELLED

    def log(self) -> str:
        """Notes, cautions and errors so far, a line each."""
        return "\n".join(self._lines)

    def add_done_callback(self, call: "Callable[[Job], None]") -> None:
        """Call a function with the job when it has ended, or now if it has."""
        with self._lock:
            if not self._ended.is_set():
                self._callbacks.append(call)
                return
        call(self)

    def started(self) -> None:
        """Set the state to running; for runners."""
        self.state = RUNNING

    def hear(self, event: Event) -> None:
        """Take an event of the job; for runners."""
        if isinstance(event, Note | Caution):
            self._lines.append(event.text)
        self.events.put(event)

    def update(self, record: JobRecord) -> None:
        """Take state, progress and new lines of the job in a queue; for runners."""
        if record.state == RUNNING:
            self.state = RUNNING
        for event in record.events_after(self._known):
            self.hear(event)
        self._known = record.logged
        if record.progress is not None:
            self.hear(replace(record.progress, worker=record.worker))

    def end(self, outcome: State | NearkinError, state: str = "") -> None:
        """Set the result or the error; for runners. Only the first end counts."""
        failed = isinstance(outcome, NearkinError)
        with self._lock:
            if self._ended.is_set():
                return
            if failed:
                self._lines.append(str(outcome))
            self._outcome, self.state = outcome, state or (FAILED if failed else DONE)
            self._ended.set()
        for call in self._callbacks:
            call(self)

    def end_cancelled(self) -> None:
        """End as cancelled; for runners."""
        self.end(JobError(f"the job {self.spec.title or self.id} was cancelled"), CANCELLED)


class Runner(Protocol):
    """Does jobs."""

    @property
    def results(self) -> Checkpoints:
        """Where results are stored."""
        ...

    def submit(self, spec: JobSpec) -> Job:
        """Begin a job as soon as there is room; a job whose result is stored has ended at once."""
        ...

    def forget(self, specs: Sequence[JobSpec]) -> None:
        """Remove the results of jobs that have ended, and what else is stored of them."""
        ...

    def close(self) -> None:
        """Stop all jobs and workers; jobs that have not ended are cancelled."""
        ...


class SerialRunner:
    """Does each job in this process when it is submitted.

    Args:
        results: where results are stored.
        place: where jobs read and write data.
    """

    def __init__(self, results: Checkpoints, place: JobPlace | None = None) -> None:
        self.results, self.place = results, place or JobPlace()

    def submit(self, spec: JobSpec) -> Job:
        """Do a job."""
        job = Job(spec)
        job.started()
        work = spec.work(self.results, self.place)
        try:
            while True:
                job.hear(next(work))
        except StopIteration as end:
            job.end(end.value)
        except NearkinError as error:
            job.end(error)
        except Exception as error:
            job.end(JobError(f"{type(error).__name__}: {error}"))
        return job

    def forget(self, specs: Sequence[JobSpec]) -> None:
        """Remove results."""
        for spec in specs:
            self.results.remove(spec.key)

    def close(self) -> None:
        """Nothing is left to stop."""


def as_completed(jobs: Sequence[Job], timeout: float | None = None) -> Iterator[Job]:
    """Yield jobs in the order in which they end.

    Args:
        jobs: the jobs.
        timeout: seconds for all; after them `TimeoutError` is raised.
    """
    ended: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        job.add_done_callback(ended.put)
    limit = None if timeout is None else time.monotonic() + timeout
    for number in range(len(jobs)):
        try:
            yield ended.get(timeout=None if limit is None else max(0.0, limit - time.monotonic()))
        except queue.Empty:
            raise TimeoutError(f"{len(jobs) - number} of {len(jobs)} jobs have not ended after {timeout} s") from None


def run_jobs(runner: Runner, specs: Sequence[JobSpec], stage: str = "jobs") -> Work[list[State | NearkinError]]:
    """Do jobs and return their results in order, or for a failed one its error.

    If this work is stopped, jobs that have not ended are cancelled.

    Args:
        runner: who does them.
        specs: the jobs.
        stage: name in the progress.
    """
    jobs = [runner.submit(spec) for spec in specs]
    try:
        ended = -1
        while ended < len(jobs):
            before, ended = ended, sum(job.state in ENDED for job in jobs)
            for job in jobs:
                yield from _heard(job)
            if ended != before:
                yield Progress(stage, ended, len(jobs))
            yield Checkpoint(lambda: State({}))  # results are stored already
            if ended < len(jobs):
                time.sleep(POLL_SECONDS)
    finally:
        for job in jobs:
            job.cancel()
    return [job.error() or job.result() for job in jobs]


def _heard(job: Job) -> Work[None]:
    """The notes and cautions of a job since the last call, and its last progress if another process does it."""
    progress = None
    while True:
        try:
            event = job.events.get_nowait()
        except queue.Empty:
            break
        if isinstance(event, Note | Caution):
            yield event
        elif isinstance(event, Progress) and event.worker:
            progress = replace(event, stage=f"{job.spec.title}: {event.stage}" if job.spec.title else event.stage)
    if progress is not None and job.state == RUNNING:
        yield progress
