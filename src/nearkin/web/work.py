"""Running and recent commands, read from the journals of a zoo, as values for the page and its script."""

import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from nearkin.core.text import counted, duration, plain
from nearkin.run.journal import DONE, RUNNING, JournalEntry, read_journals
from nearkin.store.read_only import ReadOnlyStore
from nearkin.web.frame import render
from nearkin.web.job_list import BLANK_JOB, queue_facts
from nearkin.web.sparkline import sparkline

CURVES = 4
NOT_DRAWN = ("seconds left", "MiB")  # figures without a curve
SILENT_SECONDS = 30.0  # without an update, after which the page says so


def work_facts(zoo: ReadOnlyStore) -> dict[str, Any]:
    """Running and recent commands, latest first, and the jobs, in plain JSON values.

    Commands on a shared zoo write no journals; `running` is the number of its running jobs.
    """
    queue = queue_facts(zoo)
    if zoo.folder is None:
        return {"running": sum(job["state"] == RUNNING for job in queue["jobs"]), "runs": [], "damaged": [], **queue}
    entries, damaged = read_journals(zoo.folder)
    runs = [run_facts(entry, time.time()) for entry in entries]
    running = sum(run["state"] == RUNNING for run in runs)
    return {"running": running, "runs": runs, "damaged": [plain(name) for name in damaged], **queue}


def work_page(zoo: ReadOnlyStore) -> str:
    """The page of running work, which updates itself."""
    fixed = {"blank": _BLANK, "blank_job": BLANK_JOB, "shared": zoo.folder is None}
    return render("web_work.html", "/work", zoo.address, **fixed, **work_facts(zoo))


def run_facts(entry: JournalEntry, now: float) -> dict[str, Any]:
    """One run as the page shows it: texts, progress from 0 to 1 (None if unknown), curves."""
    share = min(1.0, entry.done / entry.total) if entry.total else None
    if entry.state != RUNNING:  # an unknown share would be an endless animation
        share = 1.0 if entry.state == DONE else share or 0.0
    total = f" of {counted(entry.total)}" if entry.total is not None else ""
    return {
        "id": plain(entry.id),
        "command": plain(shlex.join(["nearkin", *_without_zoo(entry.command)])),
        "state": plain(entry.state),
        "when": _when(entry, now),
        "stage": plain(entry.stage),
        "progress": f"{counted(entry.done)}{total}" if entry.stage else "",
        "share": share,
        "figures": [{"name": plain(name), "value": f"{value:.4g}"} for name, value in entry.values.items()],
        "curves": _curves(entry),
        "cautions": [plain(text) for text in entry.cautions],
        "notes": [plain(text) for text in entry.notes],
        "error": plain(entry.error),
    }


def _curves(entry: JournalEntry) -> list[dict[str, Any]]:
    """Figures over time, one curve for every figure with several points."""
    names = dict.fromkeys(name for _, _, values in entry.history for name in values if name not in NOT_DRAWN)
    lines = (sparkline(plain(name), _points(entry, name)) for name in names)
    return [asdict(line) for line in lines if line is not None][:CURVES]


def _points(entry: JournalEntry, name: str) -> Sequence[tuple[float, float]]:
    return [(at, values[name]) for at, _, values in entry.history if name in values]


def _without_zoo(words: Sequence[str]) -> list[str]:
    """A command without its option `--zoo`, which is this zoo.

    >>> _without_zoo(["--zoo", "kin", "add", "zero", "digits"]), _without_zoo(["--zoo=kin", "near", "zero"])
    (['add', 'zero', 'digits'], ['near', 'zero'])
    """
    return [word for before, word in zip(["", *words], words, strict=False)
            if "--zoo" not in (before, word) and not word.startswith("--zoo=")]  # fmt: skip


def _when(entry: JournalEntry, now: float) -> str:
    """When a run began, how long it took, and when it was last updated if that is long ago."""
    began = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.started))
    running = entry.state == RUNNING
    length = duration((now if running else entry.updated) - entry.started)
    silent = now - entry.updated
    stale = f", last update {duration(silent)} ago" if running and silent > SILENT_SECONDS else ""
    return f"{'for' if running else 'after'} {length}, since {began}{stale}" if running else f"{began}, {length}"


_BLANK: dict[str, Any] = {
    **dict.fromkeys(("id", "command", "state", "when", "stage", "progress", "error"), ""),
    **dict.fromkeys(("figures", "curves", "cautions", "notes"), ()),
    "share": None,
}
"""An empty run: the template that the script fills in."""
