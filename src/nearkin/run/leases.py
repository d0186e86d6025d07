"""Leases of running jobs: a worker that gives no sign of life for some time loses its job.

Time is measured by the clock of the one who watches, from the moment when it first saw a sign of life. So the clocks of
several machines need not agree, and may be set while jobs run.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from nearkin.core.job_records import RUNNING, JobQueue, JobRecord

BEAT_SECONDS = 1.0  # between two signs of life
LEASE_SECONDS = 20.0


@dataclass
class LeaseWatch:
    """Notices running jobs whose worker gives no sign of life.

    Attributes:
        seconds: after which a job counts as lost.
        clock: seconds of a clock that is never set.
        seen: worker, sign of life and time when it was first seen, by the key of the job.

    >>> now = 0.0
    >>> watch = LeaseWatch(10, lambda: now)
    >>> job = JobRecord(key="one", spec="{}", state="running", worker="a", beat=1)
    >>> watch.expired([job])
    []
    >>> now = 11.0
    >>> [job.key for job in watch.expired([job])]
    ['one']
    """

    seconds: float = LEASE_SECONDS
    clock: Callable[[], float] = time.monotonic
    seen: dict[str, tuple[str, int, float]] = field(default_factory=dict)

    def expired(self, jobs: Iterable[JobRecord]) -> list[JobRecord]:
        """Those of all running jobs that are lost."""
        now, seen, lost = self.clock(), dict[str, tuple[str, int, float]](), list[JobRecord]()
        for job in jobs:
            if job.state != RUNNING:
                continue
            worker, beat, since = self.seen.get(job.key, ("", 0, now))
            seen[job.key] = (job.worker, job.beat, since if (worker, beat) == (job.worker, job.beat) else now)
            if now - seen[job.key][2] > self.seconds:
                lost.append(job)
        self.seen = seen
        return lost

    def put_back_lost(self, queue: JobQueue) -> list[JobRecord]:
        """Put the lost jobs of a queue back, and return them."""
        return [
            job
            for job in self.expired(queue.jobs([RUNNING]))
            if queue.put_back(job, f"worker {job.worker} on {job.host} gave no sign of life for {self.seconds:g} s")
        ]
