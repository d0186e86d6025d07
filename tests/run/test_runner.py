"""Runners: in this process, and with workers that take jobs from a queue."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from laws.runner import ParallelLaws, RunnerLaws, spec
from nearkin.core.errors import OptionError
from nearkin.core.job_records import CANCELLED, PENDING, RUNNING
from nearkin.run import leases, queued, worker
from nearkin.run.checkpoints import MemoryCheckpoints
from nearkin.run.jobs import JobError, JobPlace, JobSpec
from nearkin.run.local import LocalStaff
from nearkin.run.queued import QueueRunner
from nearkin.run.runner import SerialRunner, as_completed
from nearkin.run.worker import Worker
from nearkin.zoo.solved_tasks import SolvedTasks
from nearkin.zoo.zoo_runner import job_queue, job_results, open_runner, open_worker


class TestSerialRunner(RunnerLaws):
    @pytest.fixture
    def runner(self) -> SerialRunner:
        return SerialRunner(MemoryCheckpoints())


def local_runner(folder: Path, workers: int = 2) -> QueueRunner:
    return open_runner(SolvedTasks(folder / "zoo"), "local", workers)


def staff_of(runner: QueueRunner) -> LocalStaff:
    assert isinstance(runner.staff, LocalStaff)
    return runner.staff


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueueRunner]:
    """One runner for all laws, as a process takes seconds to start."""
    with local_runner(tmp_path_factory.mktemp("workers")) as runner:
        yield runner


@pytest.mark.slow
class TestLocalRunner(ParallelLaws):
    @pytest.fixture
    def runner(self, workers: QueueRunner) -> QueueRunner:
        workers.results.clear()
        return workers


@pytest.mark.slow
def test_a_runner_starts_no_more_workers_than_jobs_and_stops_them(tmp_path: Path) -> None:
    with local_runner(tmp_path, 8) as runner:
        runner.submit(spec(2.0)).result(60)
        (started,) = staff_of(runner).processes.values()
        waiting = runner.submit(JobSpec("nearkin.run.trial_jobs:wait", {"seconds": 600}))
        while waiting.state == PENDING:
            time.sleep(0.05)
    assert waiting.state == CANCELLED
    assert started.process.poll() is not None
    with pytest.raises(JobError, match="the runner is closed"):
        runner.submit(spec(2.0))


def test_stored_results_need_no_worker(tmp_path: Path) -> None:
    zoo = SolvedTasks(tmp_path / "zoo")
    SerialRunner(job_results(zoo)).submit(spec(3.0))
    with open_runner(zoo, "local", 2) as runner:
        assert runner.submit(spec(3.0)).result(0).facts["square"] == 9.0
        assert not staff_of(runner).processes


class ThreadStaff:
    """Workers as threads of this process; `lose` lets one vanish without a word, as a machine that is switched off."""

    def __init__(self, zoo: SolvedTasks) -> None:
        self.zoo, self.workers = zoo, dict[str, tuple[Worker, threading.Thread]]()

    def start(self, name: str, group: str) -> None:
        member = open_worker(self.zoo, name, group)
        member.exit_when_stuck = False
        thread = threading.Thread(target=member.run, daemon=True)
        self.workers[name] = (member, thread)
        thread.start()

    def ended(self) -> list[tuple[str, str]]:
        return []

    def stop(self) -> None:
        for member, thread in self.workers.values():
            member.stopping.set()
            thread.join()


def thread_runner(folder: Path, workers: int) -> tuple[QueueRunner, ThreadStaff]:
    zoo = SolvedTasks(folder / "zoo")
    staff = ThreadStaff(zoo)
    return QueueRunner(job_queue(zoo), job_results(zoo), staff, workers), staff


def test_a_job_waits_for_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 100 MiB available, a job of 200 MiB begins when no other job runs."""
    monkeypatch.setattr(worker, "available_mebibytes", lambda: 100.0)
    runner, _ = thread_runner(tmp_path, 2)
    with runner:
        first = runner.submit(JobSpec("nearkin.run.trial_jobs:wait", {"seconds": 2}, mebibytes=90))
        while first.state != RUNNING:
            time.sleep(0.05)
        large, small = runner.submit(spec(1.0, mebibytes=200)), runner.submit(spec(2.0, mebibytes=90))
        ended = [job.id for job in as_completed([first, large, small], 60)]
    assert ended == [small.id, first.id, large.id]


def test_the_job_of_a_silent_worker_is_done_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker takes a job and gives no sign of life; nobody reports its end."""
    monkeypatch.setattr(leases, "LEASE_SECONDS", 1.0)
    monkeypatch.setattr(leases.LeaseWatch, "__init__", _short_lease)
    monkeypatch.setattr(queued, "LEASE_SECONDS", 1.0)
    runner, _ = thread_runner(tmp_path, 1)
    silent = job_queue(SolvedTasks(tmp_path / "zoo"))
    silent.put([queued.record_of(spec(5.0), "somebody")])
    assert silent.claim("silent", "elsewhere", 1e9) is not None
    with runner:
        job = runner.submit(spec(5.0))
        assert job.result(60).facts["square"] == 25.0
    assert not silent.report("silent", job.id, worker.JobReport()), "the job is not its own any more"
    silent.close()


def _short_lease(self: leases.LeaseWatch, seconds: float = 1.0) -> None:
    self.seconds, self.clock, self.seen = seconds, time.monotonic, {}


def test_a_job_that_the_queue_has_lost_is_submitted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queued, "LEASE_SECONDS", 1.0)
    zoo = SolvedTasks(tmp_path / "zoo")
    staff = ThreadStaff(zoo)
    monkeypatch.setattr(staff, "start", lambda name, group: None)
    with QueueRunner(job_queue(zoo), job_results(zoo), staff, 1) as runner:
        job = runner.submit(spec(5.0))
        runner.queue.forget([job.id])  # as after a power failure
        limit = time.monotonic() + 30
        while not runner.queue.jobs() and time.monotonic() < limit:
            time.sleep(0.05)
        assert open_worker(zoo).run(idle_seconds=0.0) == 1
        assert job.result(30).facts["square"] == 25.0


@pytest.mark.slow
def test_the_end_of_a_job_is_taken_although_its_change_was_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failure of the queue's machine, the numbers of lost changes are used again."""
    with local_runner(tmp_path, 1) as runner:
        monkeypatch.setattr(runner.queue, "changes", lambda since: (since, []))
        assert runner.submit(spec(2.0)).result(60).facts["square"] == 4.0


def test_workers_that_join_by_hand_take_the_same_jobs(tmp_path: Path) -> None:
    class NoStaff(ThreadStaff):
        def start(self, name: str, group: str) -> None:
            """Nobody is started."""

    zoo = SolvedTasks(tmp_path / "zoo")
    with QueueRunner(job_queue(zoo), job_results(zoo), NoStaff(zoo), 2) as runner:
        jobs = [runner.submit(spec(float(value))) for value in range(3)]
        assert open_worker(SolvedTasks(tmp_path / "zoo")).run(idle_seconds=0.0) == 3
        assert [job.result(10).facts["square"] for job in jobs] == [0.0, 1.0, 4.0]


def test_workers_that_cannot_start_end_the_jobs_with_their_last_words(tmp_path: Path) -> None:
    zoo = SolvedTasks(tmp_path / "zoo")
    with QueueRunner(job_queue(zoo), job_results(zoo), LocalStaff("nearkin.no_such_module"), 2) as runner:
        error = next(as_completed([runner.submit(spec(1.0))], 60)).error()
    assert "ended before they took a job: exit status 1" in str(error)
    assert "No module named" in str(error)


def test_a_damaged_job_fails_in_one_line_and_others_are_done(tmp_path: Path) -> None:
    runner, _ = thread_runner(tmp_path, 1)
    with runner:
        good = spec(2.0)
        for text in ("{", "[]", '{"function": 3}', '{"function": "os:system", "inputs": {}, "other": 1}'):
            runner.queue.put([queued.JobRecord(key=f"job {text}", spec=text, group=runner.group)])
        assert runner.submit(good).result(60).facts["square"] == 4.0
        failed = runner.queue.jobs(["failed"])
    assert len(failed) == 4
    assert all("is damaged" in job.error and "\n" not in job.error for job in failed)


def test_a_place_does_not_show_its_blobs() -> None:
    assert "secret" not in repr(JobPlace("zoo", "s3://key:secret@bucket"))


@pytest.mark.slow
def test_a_script_without_a_guard_may_use_workers(tmp_path: Path) -> None:
    """The script is not imported again by the workers, as `multiprocessing` would."""
    script = tmp_path / "script.py"
    script.write_text(
        "import nearkin.zoo.zoo_runner as zoo_runner, nearkin.run.jobs as jobs\n"
        "from nearkin.zoo.solved_tasks import SolvedTasks\n"
        "print('once')\n"
        f"runner = zoo_runner.open_runner(SolvedTasks({str(tmp_path / 'zoo')!r}), 'local', 1)\n"
        "job = runner.submit(jobs.JobSpec('nearkin.run.trial_jobs:square', {'value': 2.0}))\n"
        "print(job.result(60).facts['square'])\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, env={**os.environ})
    assert done.stdout.split() == ["once", "4.0"]


def test_the_number_of_workers_is_checked(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="workers must be 1 or more, got 0"):
        local_runner(tmp_path, 0)
