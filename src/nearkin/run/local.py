"""Runner with worker processes on this machine.

Every worker is a new Python process that receives jobs as JSON lines (`nearkin.run.worker`), so nothing is pickled and
the script that started it is not imported again. If a worker dies, its job is given to a new one, up to `ATTEMPTS`
times in all.
"""

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from types import TracebackType
from typing import IO

from nearkin.core.errors import DataError, require
from nearkin.core.memory import available_mebibytes
from nearkin.run.checkpoints import FolderCheckpoints
from nearkin.run.jobs import JobError, JobSpec
from nearkin.run.runner import CANCELLED, Job
from nearkin.run.worker import DONE, heard

ATTEMPTS = 3
GRACE_SECONDS = 10.0  # for a worker to end at a checkpoint before it is killed
MEMORY_SECONDS = 0.5  # between two looks at the available memory
LAST_CHARACTERS = 300  # of the errors of a worker that died


class LocalRunner:
    """Does jobs in worker processes on this machine.

    A job that says how much memory it needs waits until that much is available, or until no other job runs.

    Args:
        results: folder of the results.
        workers: number of processes; each is started when it gets its first job.
        environment: gives variables for a worker that starts, in addition to those of this process and to one torch
            thread.
    """

    def __init__(
        self,
        results: FolderCheckpoints,
        workers: int = 2,
        environment: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        require(workers >= 1, f"the number of workers must be 1 or more, got {workers}")
        self.results, self.workers = results, workers
        self.environment = environment
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads: list[_WorkerThread] = []
        self._lock = threading.Lock()
        self.closed, self.running = False, 0

    def __enter__(self) -> "LocalRunner":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def submit(self, spec: JobSpec) -> Job:
        """Give a job to the next free worker; a job whose result is stored has ended at once."""
        require(not self.closed, "the runner is closed; make a new one", JobError)
        job = Job(spec, self._stop)
        with contextlib.suppress(DataError):  # a damaged result is written again
            stored = self.results.read(spec.key)
            if stored is not None:
                job.end(stored)
                return job
        with self._lock:
            if len(self._threads) < self.workers:
                thread = _WorkerThread(self, self._jobs)
                self._threads.append(thread)
                thread.start()
        self._jobs.put(job)
        return job

    def close(self) -> None:
        """Stop all workers; jobs that have not ended are cancelled."""
        self.closed = True
        for thread in self._threads:
            self._jobs.put(None)
            thread.stop_worker()
        for thread in self._threads:
            thread.join()
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            if job is not None:
                job.end_cancelled()

    def _stop(self, job: Job) -> None:
        """Cancel a job that waits, or stop the worker that does it."""
        job.end_cancelled()
        for thread in self._threads:
            if thread.job is job:
                thread.stop_worker()

    def wait_for_memory(self, job: Job) -> None:
        """Wait until a job has the memory that it needs, or is the only one; then count it as running."""
        while True:
            with self._lock:
                if self.running == 0 or job.spec.mebibytes <= available_mebibytes() or self.closed:
                    self.running += 1
                    return
            time.sleep(MEMORY_SECONDS)

    def ended(self) -> None:
        """Count a running job as ended."""
        with self._lock:
            self.running -= 1


class _WorkerThread(threading.Thread):
    """Owns one worker process, and gives it one job after the other."""

    def __init__(self, runner: LocalRunner, jobs: "queue.SimpleQueue[Job | None]") -> None:
        super().__init__(daemon=True)
        self.runner, self.jobs = runner, jobs
        self.job: Job | None = None
        self.process: subprocess.Popen[str] | None = None
        self.errors: IO[str] | None = None

    def run(self) -> None:
        while (job := self.jobs.get()) is not None:
            if job.state == CANCELLED:
                continue
            if self.runner.closed:
                job.end_cancelled()
                continue
            self.runner.wait_for_memory(job)
            self.job = job
            try:
                self._attempt(job)
            finally:
                self.job = None
                self.runner.ended()
        self._end_worker()

    def stop_worker(self) -> None:
        """Ask the worker to end at a checkpoint, and kill it if it does not."""
        process = self.process
        if process is None:
            return
        process.terminate()
        if self.job is None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()  # it waits for a job
        threading.Thread(target=_kill_later, args=(process,), daemon=True).start()

    def _attempt(self, job: Job) -> None:
        """Do a job, with a new worker if one dies."""
        job.started()
        for _ in range(ATTEMPTS):
            if job.state == CANCELLED or self.runner.closed:
                job.end_cancelled()
                return
            try:
                if self._done_by(self._worker(), job):
                    return
            except (OSError, ValueError):  # the pipe of a dead worker
                pass
            reason = self._end_worker()
        job.end(JobError(f"{ATTEMPTS} worker processes ended in {job.spec.title or job.id}: {reason}"))

    def _done_by(self, worker: "subprocess.Popen[str]", job: Job) -> bool:
        """Send a job to a worker and wait for its end; False if the worker dies."""
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(json.dumps({**asdict(job.spec), "inputs": dict(job.spec.inputs)}) + "\n")
        worker.stdin.flush()
        for line in worker.stdout:
            message = json.loads(line)
            event = heard(message)
            if event is not None:
                job.hear(event)
            elif message["end"] == DONE:
                stored = self.runner.results.read(job.spec.key)
                job.end(JobError(f"the result of {job.id} was removed") if stored is None else stored)
                return True
            else:
                job.end(JobError(message["error"]))
                return True
        return False

    def _worker(self) -> "subprocess.Popen[str]":
        if self.process is None:
            self.errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115, read at the end
            self.process = subprocess.Popen(
                [sys.executable, "-m", "nearkin.run.worker", str(self.runner.results.folder)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, encoding="utf-8",
                env={"OMP_NUM_THREADS": "1", **os.environ, **self.runner.environment()},
            )  # fmt: skip
        return self.process

    def _end_worker(self) -> str:
        """Let the worker end, wait for it, and say why it ended if it died."""
        process, self.process = self.process, None
        if process is None:
            return ""
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        code = process.wait()
        assert self.errors is not None
        with self.errors:
            self.errors.seek(0)
            said = " ".join(self.errors.read()[-LAST_CHARACTERS:].split())
        killed = " (killed; perhaps for lack of memory)" if code == -9 else ""
        return f"exit status {code}{killed}{f': {said}' if said else ''}"


def _kill_later(process: "subprocess.Popen[str]") -> None:
    """Kill a process that has not ended after some seconds."""
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
