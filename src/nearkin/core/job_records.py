"""Jobs in a queue as plain values, and the interface of a queue that workers take jobs from."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from nearkin.core.events import Caution, Event, Note, Progress

PENDING, RUNNING, DONE, FAILED, CANCELLED = "pending", "running", "done", "failed", "cancelled"
STATES = (PENDING, RUNNING, DONE, FAILED, CANCELLED)
ENDED = (DONE, FAILED, CANCELLED)
ATTEMPTS = 3  # workers that may die in one job, before it fails
KEPT_LINES = 200  # of the log of a job
NOTE, CAUTION = "note", "caution"


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """A job in a queue.

    Attributes:
        key: of the job and of its result.
        spec: what it does, as JSON.
        title: what the user sees of it.
        mebibytes: memory that it needs, 0 if unknown.
        group: who submitted it.
        state: pending, running, done, failed or cancelled.
        worker: who does it, or did it last.
        host: name of the worker's machine.
        beat: number of signs of life of its workers.
        attempts: number of workers that died in it, with the one that does it now.
        error: why it failed.
        progress: last stage with finished and all units; None if nothing was reported.
        log: kind (note or caution) and text of what it reported.
        logged: number of all lines that it reported; the log has the last ones.
        updated: time of the last change, in ISO form and UTC; it is shown and decides nothing.
    """

    key: str
    spec: str = field(repr=False)
    title: str = ""
    mebibytes: float = 0.0
    group: str = ""
    state: str = PENDING
    worker: str = ""
    host: str = ""
    beat: int = 0
    attempts: int = 0
    error: str = ""
    progress: Progress | None = None
    log: Sequence[tuple[str, str]] = field(default=(), repr=False)
    logged: int = 0
    updated: str = ""

    def events_after(self, count: int) -> list[Event]:
        """Notes and cautions after the first `count` ones, as far as they are kept."""
        new = min(len(self.log), max(0, self.logged - count))
        return [Note(text) if kind == NOTE else Caution(text) for kind, text in self.log[len(self.log) - new :]]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values for lists of jobs."""
        stage = self.progress
        return {
            "id": self.key, "title": self.title, "state": self.state, "worker": self.worker, "host": self.host,
            "attempts": self.attempts, "updated": self.updated, "error": self.error,
            "progress": None if stage is None else {"stage": stage.stage, "done": stage.done, "total": stage.total},
            "log": [text for _, text in self.log],
        }  # fmt: skip


@dataclass(frozen=True)
class JobReport:
    """What a worker reports: its progress, and notes and cautions since the last report."""

    progress: Progress | None = None
    lines: Sequence[tuple[str, str]] = ()


class JobQueue(Protocol):
    """Jobs that several processes submit, do and watch; `tests/laws/job_queue.py` tests each implementation.

    Every method is one transaction. A job is done by one worker at a time; a worker that was taken for dead finds at
    its next report that the job is not its own any more.
    """

    def put(self, jobs: Iterable[JobRecord]) -> None:
        """Add pending jobs. Known ones join the new group; those that have ended begin again."""
        ...

    def claim(self, worker: str, host: str, free_mebibytes: float, group: str | None = None) -> JobRecord | None:
        """Take the oldest pending job, of one group or of all; None if there is none.

        A job that needs more memory than is free waits until no other job runs on the host.
        """
        ...

    def report(self, worker: str, key: str, report: JobReport) -> bool:
        """Give a sign of life; False if the job is not this worker's any more."""
        ...

    def end(self, worker: str, key: str, state: str, error: str, report: JobReport) -> bool:
        """Store how a job ended; False if it is not this worker's any more."""
        ...

    def put_back(self, job: JobRecord, reason: str) -> bool:
        """Put back a running job that has lost its worker; after `ATTEMPTS` workers it fails with the reason.

        False if its worker has given a sign of life since the record was read, or if it has ended.
        """
        ...

    def leave(self, worker: str, reason: str = "") -> list[str]:
        """Put back the running jobs of a worker that has ended, and return their keys.

        Args:
            worker: the worker.
            reason: why it died; empty if it gave back its job in good order, which counts as no attempt.
        """
        ...

    def cancel(self, keys: Sequence[str]) -> list[str]:
        """Cancel jobs that have not ended, and return their keys; a worker notices it at its next report."""
        ...

    def retry(self, keys: Sequence[str]) -> list[str]:
        """Put failed and cancelled jobs back into the queue with all their attempts, and return their keys."""
        ...

    def forget(self, keys: Sequence[str]) -> None:
        """Remove jobs."""
        ...

    def jobs(self, states: Sequence[str] = STATES) -> list[JobRecord]:
        """Jobs in these states, oldest first."""
        ...

    def changes(self, since: int) -> tuple[int, list[JobRecord]]:
        """Number of the last change, and the jobs that were changed after number `since`."""
        ...

    def close(self) -> None:
        """Release connections."""
        ...
