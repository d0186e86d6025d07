"""Work that runs or ran: what the journals of a zoo tell, as values that a page and a script show alike."""

import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from nearkin.core.text import counted, duration, plain
from nearkin.run.journal import DONE, RUNNING, JournalEntry, read_journals
from nearkin.store.read_only import ReadOnlyStore
from nearkin.web.curve import curve
from nearkin.web.frame import render

CURVES = 4
NOT_DRAWN = ("seconds left", "MiB")  # figures that say nothing by how they went
SILENT_SECONDS = 30.0  # after which it is said when a run was heard of last


def work_facts(zoo: ReadOnlyStore) -> dict[str, Any]:
    """Running and recent work in plain JSON values, latest first."""
    entries, damaged = read_journals(zoo.path)
    runs = [run_facts(entry, time.time()) for entry in entries]
    running = sum(run["state"] == RUNNING for run in runs)
    return {"running": running, "runs": runs, "damaged": [plain(name) for name in damaged]}


def work_page(zoo: ReadOnlyStore) -> str:
    """The page that follows it."""
    facts = work_facts(zoo)
    return render("web_work.html", "/work", str(zoo.path), blank=_BLANK, **facts)


def run_facts(entry: JournalEntry, now: float) -> dict[str, Any]:
    """One run as it is shown: texts, a share from 0 to 1 (None where it is unknown), curves."""
    share = min(1.0, entry.done / entry.total) if entry.total else None
    if entry.state != RUNNING:  # a bar that tells nothing would move for ever
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
    """The figures over time, one curve for every name that has several points."""
    names = dict.fromkeys(name for _, _, values in entry.history for name in values if name not in NOT_DRAWN)
    found = (curve(plain(name), _points(entry, name)) for name in names)
    return [asdict(one) for one in found if one is not None][:CURVES]


def _points(entry: JournalEntry, name: str) -> Sequence[tuple[float, float]]:
    return [(at, values[name]) for at, _, values in entry.history if name in values]


def _without_zoo(words: Sequence[str]) -> list[str]:
    """A command without the zoo that it worked on, which is this one.

    >>> _without_zoo(["--zoo", "kin", "add", "zero", "digits"]), _without_zoo(["--zoo=kin", "near", "zero"])
    (['add', 'zero', 'digits'], ['near', 'zero'])
    """
    return [word for before, word in zip(["", *words], words, strict=False)
            if "--zoo" not in (before, word) and not word.startswith("--zoo=")]  # fmt: skip


def _when(entry: JournalEntry, now: float) -> str:
    """When it began, how long it took, and when it was heard of last if that is long ago."""
    began = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.started))
    running = entry.state == RUNNING
    length = duration((now if running else entry.updated) - entry.started)
    silent = now - entry.updated
    heard = f", last heard of {duration(silent)} ago" if running and silent > SILENT_SECONDS else ""
    return f"{'for' if running else 'after'} {length}, since {began}{heard}" if running else f"{began}, {length}"


_BLANK: dict[str, Any] = {
    **dict.fromkeys(("id", "command", "state", "when", "stage", "progress", "error"), ""),
    **dict.fromkeys(("figures", "curves", "cautions", "notes"), ()),
    "share": None,
}
"""What a run looks like before anything is known of it: the pattern that the script fills in."""
