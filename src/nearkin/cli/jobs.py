"""`worker` and `jobs`: do the jobs of running commands on this machine too, and list, cancel or retry them."""

import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from nearkin.cli.console import Settings, answer, say, stop_signals, table
from nearkin.cli.zoo import Json
from nearkin.core.errors import OptionError, require
from nearkin.core.job_records import DONE, ENDED, JobRecord
from nearkin.core.lazy import Lazy
from nearkin.core.text import counted

if TYPE_CHECKING:
    from nearkin.store import job_table
    from nearkin.zoo import zoo_runner
else:
    job_table, zoo_runner = Lazy("nearkin.store.job_table"), Lazy("nearkin.zoo.zoo_runner")

ALL = "all"
SHOWN = 12  # characters of a job's id that a table shows


def worker(
    context: typer.Context,
    idle: Annotated[
        float | None, typer.Option(min=0, help="End after so many seconds without a job (default: never).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Do jobs of commands that run on this zoo, on this or on another machine, until Ctrl-C.

    Start as many workers as you like, before or after the commands that need them: any command with --workers or
    --runner puts its jobs where all workers of the zoo find them.
    """
    settings: Settings = context.obj
    with settings.open_zoo(create=False) as zoo:
        member = zoo_runner.open_worker(zoo)
        member.listen = _silent if settings.quiet else _print_job
        for number in stop_signals():
            signal.signal(number, lambda number, frame: member.stopping.set())
        if not settings.quiet:
            print(f"worker {member.name} waits for jobs of {settings.zoo_name}; stop with Ctrl-C", file=sys.stderr)
        done = member.run(idle)
    facts = {"worker": member.name, "jobs": done}
    answer(facts, as_json, lambda: say(f"{counted(done, 'job')} done"))


def _print_job(job: JobRecord, news: str) -> None:
    print(f"{job.title or job.key}: {news}", file=sys.stderr)


def _silent(job: JobRecord, news: str) -> None:
    pass


def jobs(
    context: typer.Context,
    cancel: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Cancel a job by the start of its id, or all; repeatable.")
    ] = None,
    retry: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Put failed and cancelled jobs back, or all; repeatable.")
    ] = None,
    clean: Annotated[bool, typer.Option("--clean", help="Remove jobs that have ended from the list.")] = False,
    as_json: Json = False,
) -> None:
    """List the jobs of the zoo, with their workers and progress; cancel or retry them."""
    settings: Settings = context.obj
    settings.open_catalogue(create=False).close()  # there must be a zoo
    queue = job_table.open_job_table(settings.zoo)
    try:
        known = queue.jobs()
        cancelled = queue.cancel(_chosen(known, cancel or []))
        retried = queue.retry(_chosen(known, retry or []))
        if clean:
            queue.forget([job.key for job in queue.jobs(ENDED)])
        listed = queue.jobs()
    finally:
        queue.close()

    def show() -> None:
        for word, keys in (("cancelled", cancelled), ("put back", retried)):
            if keys:
                say(f"{counted(len(keys), 'job')} {word}")
        if not listed:
            say("no jobs: commands with --workers N or --runner put theirs here while they run")
            return
        table(["id", "job", "state", "worker", "progress", "attempts", ""], [_row(job) for job in listed], ["attempts"])

    facts = {"jobs": [job.to_dict() for job in listed], "cancelled": cancelled, "retried": retried}
    answer(facts, as_json, show)


def _chosen(known: Sequence[JobRecord], starts: Sequence[str]) -> list[str]:
    """Keys that start with one of the texts; a text must name one job, or be `all`."""
    if ALL in starts:
        return [job.key for job in known]
    keys = []
    for start in starts:
        found = [job.key for job in known if _id(job).startswith(start) or job.key == start]
        require(bool(found), f"no job has an id that starts with {start!r}; nearkin jobs lists them", OptionError)
        require(len(found) == 1, f"{len(found)} jobs have ids that start with {start!r}; give more of it", OptionError)
        keys += found
    return keys


def _id(job: JobRecord) -> str:
    return job.key.removeprefix("job-")


def _row(job: JobRecord) -> list[str]:
    stage = job.progress
    shown = "" if stage is None or job.state == DONE else f"{stage.stage} {stage.done}/{stage.total or '?'}"
    where = job.worker.rpartition("-")[0] if job.worker else ""
    return [_id(job)[:SHOWN], job.title, job.state, where, shown, str(job.attempts), job.error]
