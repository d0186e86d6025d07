"""A runner for tests, which does every job in this process and keeps it."""

from collections import Counter
from pathlib import Path

from nearkin.run.checkpoints import MemoryCheckpoints
from nearkin.run.jobs import JobPlace, JobSpec
from nearkin.run.runner import Job, SerialRunner


class CountingRunner(SerialRunner):
    """A runner that keeps the jobs that it did."""

    workers = 2

    def __init__(self, folder: Path) -> None:
        super().__init__(MemoryCheckpoints(), JobPlace(str(folder)))
        self.jobs: list[Job] = []

    def submit(self, spec: JobSpec) -> Job:
        self.jobs.append(super().submit(spec))
        return self.jobs[-1]

    def counts(self) -> dict[str, int]:
        """Number of jobs by the name of their function."""
        return dict(Counter(job.spec.function.partition(":")[2] for job in self.jobs))
