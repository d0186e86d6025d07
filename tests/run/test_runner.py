"""Runners: in this process, and with worker processes."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from laws.runner import ParallelLaws, RunnerLaws, spec
from nearkin.core.errors import OptionError
from nearkin.run import local
from nearkin.run.checkpoints import FolderCheckpoints, MemoryCheckpoints
from nearkin.run.jobs import JobError, JobSpec
from nearkin.run.local import LocalRunner
from nearkin.run.runner import CANCELLED, SerialRunner, as_completed


class TestSerialRunner(RunnerLaws):
    @pytest.fixture
    def runner(self) -> SerialRunner:
        return SerialRunner(MemoryCheckpoints())


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRunner]:
    """One runner for all laws, as a process takes seconds to start."""
    with LocalRunner(FolderCheckpoints(tmp_path_factory.mktemp("results")), workers=2) as runner:
        yield runner


@pytest.mark.slow
class TestLocalRunner(ParallelLaws):
    @pytest.fixture
    def runner(self, workers: LocalRunner) -> LocalRunner:
        workers.results.clear()
        return workers


@pytest.mark.slow
def test_a_runner_starts_no_more_workers_than_jobs_and_stops_them(tmp_path: Path) -> None:
    with LocalRunner(FolderCheckpoints(tmp_path), workers=8) as runner:
        runner.submit(spec(2.0)).result(60)
        (thread,) = runner._threads
        process = thread.process
        assert process is not None
        waiting = runner.submit(JobSpec("nearkin.run.trial_jobs:wait", {"seconds": 600}))
    assert waiting.state == CANCELLED
    assert process.poll() is not None
    with pytest.raises(JobError, match="the runner is closed"):
        runner.submit(spec(2.0))


def test_stored_results_need_no_worker(tmp_path: Path) -> None:
    results = FolderCheckpoints(tmp_path)
    SerialRunner(results).submit(spec(3.0))
    with LocalRunner(results) as runner:
        assert runner.submit(spec(3.0)).result(0).facts["square"] == 9.0
        assert not runner._threads


@pytest.mark.slow
def test_a_job_waits_for_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 100 MiB available, a job of 200 MiB begins when no other job runs."""
    monkeypatch.setattr(local, "available_mebibytes", lambda: 100.0)
    with LocalRunner(FolderCheckpoints(tmp_path), workers=2) as runner:
        first = runner.submit(JobSpec("nearkin.run.trial_jobs:wait", {"seconds": 2}, mebibytes=90))
        while "waiting" not in first.log():
            time.sleep(0.05)
        large, small = runner.submit(spec(1.0, mebibytes=200)), runner.submit(spec(2.0, mebibytes=90))
        ended = [job.id for job in as_completed([first, large, small], 60)]
    assert ended.index(large.id) > ended.index(first.id)


@pytest.mark.slow
def test_a_script_without_a_guard_may_use_workers(tmp_path: Path) -> None:
    """The script is not imported again by the workers, as `multiprocessing` would."""
    script = tmp_path / "script.py"
    script.write_text(
        "import pathlib, nearkin.run.local as local, nearkin.run.jobs as jobs\n"
        "from nearkin.run.checkpoints import FolderCheckpoints\n"
        "print('once')\n"
        f"runner = local.LocalRunner(FolderCheckpoints(pathlib.Path({str(tmp_path / 'results')!r})), 1)\n"
        "job = runner.submit(jobs.JobSpec('nearkin.run.trial_jobs:square', {'value': 2.0}))\n"
        "print(job.result(60).facts['square'])\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, env={**os.environ})
    assert done.stdout.split() == ["once", "4.0"]


def test_the_number_of_workers_is_checked(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="workers must be 1 or more, got 0"):
        LocalRunner(FolderCheckpoints(tmp_path), workers=0)
