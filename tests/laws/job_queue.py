"""Laws of every queue of jobs."""

import itertools
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nearkin.core.events import Note, Progress
from nearkin.core.job_records import (
    ATTEMPTS,
    CANCELLED,
    DONE,
    FAILED,
    KEPT_LINES,
    PENDING,
    RUNNING,
    JobQueue,
    JobRecord,
    JobReport,
)

NOTHING = JobReport()
LARGE = 1e9

INHERITED = [HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]  # several classes have this law


def record(key: str, **changes: object) -> JobRecord:
    return JobRecord(key=key, spec="{}", title=f"job {key}", **{"group": "us", **changes})  # type: ignore[arg-type]


def claimed(queue: JobQueue, worker: str = "w", group: str | None = None) -> str | None:
    job = queue.claim(worker, "here", LARGE, group)
    return None if job is None else job.key


class JobQueueLaws:
    """Inherit, and give a fixture `queue` that is empty."""

    def test_jobs_are_taken_once_and_in_order(self, queue: JobQueue) -> None:
        queue.put(map(record, "abc"))
        assert [claimed(queue) for _ in range(4)] == ["a", "b", "c", None]
        assert [job.state for job in queue.jobs()] == [RUNNING] * 3
        assert queue.end("w", "a", DONE, "", JobReport(Progress("x", 2, 3), [("note", "ended")]))
        (ended,) = queue.jobs([DONE])
        assert (ended.key, ended.progress, ended.attempts) == ("a", Progress("x", 2, 3), 1)
        assert ended.events_after(0) == [Note("ended")]
        assert ended.events_after(1) == []

    def test_a_job_belongs_to_one_worker(self, queue: JobQueue) -> None:
        queue.put([record("a")])
        assert claimed(queue, "one") == "a"
        assert queue.report("one", "a", NOTHING)
        assert not queue.report("two", "a", NOTHING)
        assert not queue.end("two", "a", DONE, "", NOTHING)
        assert not queue.report("one", "unknown", NOTHING)
        assert queue.jobs()[0].state == RUNNING

    def test_a_group_takes_its_own_jobs(self, queue: JobQueue) -> None:
        queue.put([record("a", group="them"), record("b")])
        assert claimed(queue, group="us") == "b"
        assert claimed(queue, group="us") is None
        queue.put([record("a")])
        assert claimed(queue, group="us") == "a", "it joined the group that submitted it last"

    def test_submitting_again_does_not_disturb_a_running_job(self, queue: JobQueue) -> None:
        queue.put([record("a")])
        assert claimed(queue) == "a"
        queue.put([record("a", group="them")])
        assert queue.report("w", "a", NOTHING)
        assert queue.end("w", "a", FAILED, "no luck", NOTHING)
        queue.put([record("a")])
        (again,) = queue.jobs()
        assert (again.state, again.attempts, again.error) == (PENDING, 0, "")

    def test_a_lost_job_is_put_back_and_fails_after_some_workers(self, queue: JobQueue) -> None:
        queue.put([record("a")])
        for attempt in range(ATTEMPTS):
            assert claimed(queue, f"w{attempt}") == "a"
            (lost,) = queue.jobs([RUNNING])
            assert lost.attempts == attempt + 1
            assert queue.put_back(lost, "it died")
            assert not queue.put_back(lost, "it died"), "it was put back already"
            assert not queue.report(f"w{attempt}", "a", NOTHING)
        (failed,) = queue.jobs()
        assert failed.state == FAILED
        assert failed.error == f"{ATTEMPTS} worker processes ended in job a: it died"

    def test_a_sign_of_life_keeps_the_job(self, queue: JobQueue) -> None:
        queue.put([record("a")])
        claimed(queue)
        (seen,) = queue.jobs()
        assert queue.report("w", "a", NOTHING)
        assert not queue.put_back(seen, "no sign of life")
        assert queue.jobs()[0].state == RUNNING

    def test_a_worker_that_leaves_gives_its_job_back(self, queue: JobQueue) -> None:
        queue.put(map(record, "ab"))
        claimed(queue, "one")
        claimed(queue, "two")
        for _ in range(2 * ATTEMPTS):
            assert queue.leave("one") == ["a"]
            assert claimed(queue, "one") == "a", "leaving in good order counts as no attempt"
        assert queue.leave("one", "killed") == ["a"]
        assert queue.leave("one", "killed") == []
        assert [job.state for job in queue.jobs()] == [PENDING, RUNNING]

    def test_cancel_and_retry(self, queue: JobQueue) -> None:
        queue.put(map(record, "abc"))
        claimed(queue)
        assert queue.cancel(["a", "b", "unknown"]) == ["a", "b"]
        assert queue.cancel(["a"]) == []
        assert not queue.report("w", "a", NOTHING), "its worker notices it"
        assert not queue.end("w", "a", DONE, "", NOTHING)
        assert [job.key for job in queue.jobs([CANCELLED])] == ["a", "b"]
        assert claimed(queue) == "c"
        assert queue.retry(["b", "c"]) == ["b"]
        assert claimed(queue) == "b"

    def test_a_large_job_waits_for_memory_of_its_machine(self, queue: JobQueue) -> None:
        queue.put([record("large", mebibytes=100.0), record("small", mebibytes=1.0), record("other", mebibytes=100.0)])
        first = queue.claim("w", "here", 10.0)
        assert first is not None
        assert first.key == "large", "no other job runs here"
        second = queue.claim("v", "here", 10.0)
        assert second is not None
        assert second.key == "small"
        assert queue.claim("u", "here", 10.0) is None
        elsewhere = queue.claim("u", "there", 10.0)
        assert elsewhere is not None
        assert elsewhere.key == "other"

    def test_changes_are_seen_once(self, queue: JobQueue) -> None:
        start, before = queue.changes(0)
        assert before == []
        queue.put(map(record, "ab"))
        change, changed = queue.changes(start)
        assert [job.key for job in changed] == ["a", "b"]
        assert queue.changes(change) == (change, [])
        queue.forget(["b"])
        claimed(queue)
        after, changed = queue.changes(change)
        assert [(job.key, job.state) for job in changed] == [("a", RUNNING)]
        queue.report("w", "a", JobReport(Progress("x", 1, 2)))
        assert [job.progress for job in queue.changes(after)[1]] == [Progress("x", 1, 2)]

    def test_numbers_of_changes_are_not_used_again(self, queue: JobQueue) -> None:
        queue.put(map(record, "ab"))
        change, _ = queue.changes(0)
        queue.forget(["a", "b"])
        queue.put([record("c")])
        assert [job.key for job in queue.changes(change)[1]] == ["c"]

    def test_a_long_log_keeps_its_end(self, queue: JobQueue) -> None:
        queue.put([record("a")])
        claimed(queue)
        queue.report("w", "a", JobReport(None, [("note", str(line)) for line in range(KEPT_LINES)]))
        queue.report("w", "a", JobReport(None, [("caution", "last")]))
        (job,) = queue.jobs()
        assert (len(job.log), job.logged) == (KEPT_LINES, KEPT_LINES + 1)
        assert job.log[0] == ("note", "1")
        assert [event.text for event in job.events_after(KEPT_LINES - 1)] == [str(KEPT_LINES - 1), "last"]  # type: ignore[union-attr]

    @settings(max_examples=25, suppress_health_check=INHERITED)
    @given(actions=st.lists(st.tuples(st.sampled_from("pclrekx"), st.integers(0, 3)), max_size=25))
    def test_no_job_is_ever_lost(self, queue: JobQueue, actions: list[tuple[str, int]]) -> None:
        """After any series of actions, workers that go on end every job that was not cancelled."""
        queue.forget([job.key for job in queue.jobs()])
        names = itertools.count()
        for action, number in actions:
            key, worker = f"job{number}", f"w{number}"
            match action:
                case "p":
                    queue.put([record(key)])
                case "c":
                    queue.claim(worker, "here", LARGE)
                case "l":
                    queue.leave(worker, "died" if number % 2 else "")
                case "r":
                    queue.report(worker, key, NOTHING)
                case "e":
                    queue.end(worker, key, DONE, "", NOTHING)
                case "k":
                    for job in queue.jobs([RUNNING]):
                        queue.put_back(job, "lost")
                case "x":
                    queue.retry([key])
        put = {f"job{number}" for action, number in actions if action == "p"}
        assert {job.key for job in queue.jobs()} == put
        for job in queue.jobs([RUNNING]):
            queue.put_back(job, "lost")
        while (job := queue.claim(f"last{next(names)}", "here", LARGE)) is not None:
            assert queue.end(job.worker, job.key, DONE, "", NOTHING)
        assert {job.state for job in queue.jobs()} <= {DONE, FAILED}

    def test_many_workers_take_each_job_once(self, queue: JobQueue) -> None:
        keys = [f"{number:03}" for number in range(40)]
        queue.put(map(record, keys))
        taken: list[str] = []

        def work(worker: str) -> None:
            while (job := queue.claim(worker, "here", LARGE)) is not None:
                taken.append(job.key)
                assert queue.end(worker, job.key, DONE, "", NOTHING)

        threads = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(taken) == keys

    @pytest.mark.parametrize("text", ["'; DROP TABLE jobs; --", "ü∀\n\t", "a" * 5000])
    def test_texts_are_stored_as_they_are(self, queue: JobQueue, text: str) -> None:
        queue.put([JobRecord(key="a", spec=text, title=text)])
        job = queue.claim(text, text, LARGE)
        assert job is not None
        assert (job.spec, job.title, job.worker, job.host) == (text, text, text, text)
        assert queue.end(text, "a", FAILED, text, JobReport(Progress(text, 1), [("note", text)]))
        (job,) = queue.jobs()
        assert (job.error, job.progress, list(job.log)) == (text, Progress(text, 1), [("note", text)])
