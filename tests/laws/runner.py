"""Laws of every runner."""

import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from nearkin.core.errors import NearkinError
from nearkin.core.events import Event, Note, Progress, finish
from nearkin.core.state import State
from nearkin.run.jobs import JobError, JobSpec
from nearkin.run.runner import DONE, FAILED, Runner, as_completed, run_jobs

SQUARE = "nearkin.run.trial_jobs:square"
FAIL = "nearkin.run.trial_jobs:fail"


def spec(value: float, **changes: Any) -> JobSpec:
    return JobSpec(SQUARE, {"value": value}, **changes)


class RunnerLaws:
    """Inherit, and give a fixture `runner` whose results are empty."""

    def test_a_job_gives_its_result(self, runner: Runner) -> None:
        job = runner.submit(spec(3.0, seed=5))
        state = job.result(60)
        assert (state.facts["square"], state.facts["seed"]) == (9.0, 5)
        assert torch.equal(state.tensors["values"], torch.full((3,), 9.0))
        assert job.state == DONE
        assert job.error() is None
        assert "squared 3.0" in job.log()
        assert not job.cancel(), "it has ended"

    def test_results_are_written_once_and_read_afterwards(self, runner: Runner) -> None:
        first = runner.submit(spec(2.0)).result(60)
        again = runner.submit(spec(2.0)).result(60)
        assert first.facts["made"] == again.facts["made"]
        assert runner.results.names() == [spec(2.0).key]
        assert runner.submit(spec(2.0, seed=1)).result(60).facts["made"] != first.facts["made"]

    def test_failures_are_kept_apart_and_in_order(self, runner: Runner) -> None:
        specs = [spec(1.0), JobSpec(FAIL, {"words": "no luck"}), spec(4.0), JobSpec("os:system", {"command": "true"})]
        events: list[Event] = []
        one, two, three, four = finish(run_jobs(runner, specs), events.append)
        assert isinstance(one, State)
        assert isinstance(three, State)
        assert (one.facts["square"], three.facts["square"]) == (1.0, 16.0)
        assert isinstance(two, NearkinError)
        assert str(two) == "no luck"
        assert isinstance(four, NearkinError)
        assert "'os:system' is not a job of nearkin" in str(four)
        assert Note("squared 4.0") in events
        assert events[-2] == Progress("jobs", 4, 4)

    def test_an_unexpected_error_is_one_line(self, runner: Runner) -> None:
        job = runner.submit(JobSpec(FAIL, {"words": "", "divide": True}))
        with pytest.raises(JobError, match="ZeroDivisionError"):
            job.result(60)
        assert job.state == FAILED
        assert "ZeroDivisionError" in job.log()

    def test_jobs_come_as_they_end(self, runner: Runner) -> None:
        jobs = [runner.submit(spec(float(value))) for value in range(4)]
        assert {job.id for job in as_completed(jobs, 60)} == {job.id for job in jobs}
        called = threading.Event()
        jobs[0].add_done_callback(lambda job: called.set())
        assert called.wait(1)

    def test_inputs_are_plain_values(self, runner: Runner) -> None:
        odd: list[Mapping[Any, Any]] = [{"x": torch.ones(1)}, {"x": (1, 2)}, {1: 2}, {"x": float("nan")}]
        for inputs in odd:
            with pytest.raises(NearkinError, match="must be JSON values"):
                JobSpec(SQUARE, inputs)

    def test_a_job_of_another_version_is_refused_in_one_line(self, runner: Runner) -> None:
        with pytest.raises(JobError, match="the job is of nearkin 0, and this process has"):
            runner.submit(spec(2.0, version="0")).result(60)
        assert spec(2.0).key != spec(2.0, version="0").key


class ParallelLaws(RunnerLaws):
    """Laws of runners that do jobs in other processes."""

    def test_a_running_job_can_be_cancelled(self, runner: Runner) -> None:
        job, other = runner.submit(JobSpec("nearkin.run.trial_jobs:wait", {"seconds": 60})), runner.submit(spec(5.0))
        limit = time.monotonic() + 60
        while "waiting" not in job.log() and time.monotonic() < limit:
            time.sleep(0.05)
        assert job.cancel()
        with pytest.raises(JobError, match="was cancelled"):
            job.result(60)
        assert other.result(60).facts["square"] == 25.0
        assert runner.submit(spec(6.0)).result(60).facts["square"] == 36.0

    def test_the_job_of_a_dead_worker_is_done_again(self, runner: Runner, tmp_path: Any) -> None:
        job = runner.submit(JobSpec("nearkin.run.trial_jobs:die_once", {"mark": str(tmp_path / "mark")}))
        assert job.result(120).facts["attempts"] == 2

    def test_a_job_that_kills_every_worker_fails_and_others_do_not(self, runner: Runner) -> None:
        deadly = runner.submit(JobSpec("nearkin.run.trial_jobs:die", {}))
        others = [runner.submit(spec(float(value))) for value in (7, 8)]
        assert [job.result(120).facts["square"] for job in others] == [49.0, 64.0]
        with pytest.raises(JobError, match="worker processes ended"):
            deadly.result(120)

    def test_stopped_work_cancels_its_jobs(self, runner: Runner) -> None:
        work = run_jobs(runner, [JobSpec("nearkin.run.trial_jobs:wait", {"seconds": 60}), spec(1.0)])
        for event in work:
            if event == Note("waiting"):
                break
        begun = time.monotonic()
        work.close()
        assert runner.submit(spec(9.0)).result(60).facts["square"] == 81.0
        assert time.monotonic() - begun < 40
