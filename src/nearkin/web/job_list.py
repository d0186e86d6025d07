"""Jobs in the queue of a zoo, as values for the page of running work and its script."""

from typing import Any

from nearkin.core.errors import NearkinError
from nearkin.core.job_records import ATTEMPTS, PENDING, RUNNING, STATES, JobRecord
from nearkin.core.text import counted, plain
from nearkin.store.read_only import JobList, ReadOnlyStore


def queue_facts(zoo: ReadOnlyStore) -> dict[str, Any]:
    """Jobs in plain JSON values, running ones first: `jobs`, `queue` (numbers in words), `unread` (an error)."""
    try:
        listed = zoo.jobs()
    except NearkinError as refused:
        return {"jobs": [], "queue": "", "unread": f"The jobs cannot be shown: {plain(str(refused))}"}
    return {"jobs": [job_facts(job) for job in listed.jobs], "queue": _numbers(listed), "unread": ""}


def job_facts(job: JobRecord) -> dict[str, Any]:
    """One job as the page shows it: texts, and progress from 0 to 1 (None if unknown).

    >>> facts = job_facts(JobRecord(key="a", spec="", title="train zero", state=RUNNING, host="node7", attempts=2))
    >>> facts["title"], facts["state"], facts["note"]
    ('train zero', 'running', 'on node7, attempt 2 of 3')
    """
    stage, running = job.progress, job.state == RUNNING
    share = max(0.0, min(1.0, stage.done / stage.total)) if stage is not None and stage.total else None
    total = f" of {counted(stage.total)}" if stage is not None and stage.total is not None else ""
    return {
        "id": plain(job.key),
        "title": plain(job.title or job.key),
        "state": plain(job.state),
        "host": plain(job.host),
        "worker": plain(job.worker),
        "attempts": job.attempts,
        "updated": plain(job.updated),
        "note": _note(job),
        "stage": plain(f"{stage.stage} {counted(stage.done)}{total}") if stage is not None and running else "",
        "share": share if running else 0.0,
        "error": plain(job.error),
    }


def _note(job: JobRecord) -> str:
    """Where a job runs or ran, and how often it was begun, if more than once."""
    begun = job.attempts + (job.state == PENDING)  # a pending job counts the workers that died in it
    parts = [f"on {job.host}"] * bool(job.host and job.state != PENDING)
    parts += [f"attempt {begun} of {ATTEMPTS}"] * (1 < begun <= ATTEMPTS)
    return plain(", ".join(parts))


def _numbers(listed: JobList) -> str:
    """Numbers of jobs by state, and how many are shown if not all are.

    >>> _numbers(JobList({"pending": 1200, "running": 2}, ()))
    '1,200 pending, 2 running; the first 0 are listed.'
    """
    known = {state: listed.counts[state] for state in STATES if state in listed.counts}
    text = ", ".join(f"{counted(count)} {state}" for state, count in known.items())
    cut = f"; the first {len(listed.jobs)} are listed" if len(listed.jobs) < sum(listed.counts.values()) else ""
    return f"{text}{cut}." if text else ""


BLANK_JOB: dict[str, Any] = {
    **dict.fromkeys(("id", "title", "state", "note", "stage", "error"), ""),
    "share": None,
}
"""An empty job: the template that the script fills in."""
