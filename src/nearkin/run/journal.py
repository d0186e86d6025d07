"""Journals: the progress of running commands, in small files that the web pages show.

Every command writes one file in the folder `journal/` of the zoo. The file is replaced while the command runs and once
at its end. It is not in `work/`, where every file counts as unfinished work. If it cannot be written, the command runs
without a journal.
"""

import math
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from nearkin.core.errors import DataError, NearkinError, require
from nearkin.core.events import Caution, Event, Listener, Note, Progress
from nearkin.core.files import TEMPORARY_PREFIX, write_durably
from nearkin.core.plain import sealed, typed, unsealed

FOLDER = "journal"
ZOO_MARK = "zoo.db"  # a folder with this file is a zoo
EVERY_SECONDS = 0.5  # time between two updates of the file, and at first between two points of the history
KEPT_SECONDS = 7 * 86400.0
KEPT_ENTRIES = 50
HISTORY = 240  # largest number of points; when it is exceeded, every second point is dropped
LINES = 12  # largest number of notes, of cautions and of values
LONGEST = 300  # largest number of characters of a line
LARGEST = 1 << 20  # largest file that is read, in bytes
LATEST = 253_370_764_800.0  # seconds since 1970 at the start of the year 9999
RUNNING, DONE, INTERRUPTED, FAILED, STOPPED = "running", "done", "interrupted", "failed", "stopped"
_PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")

Point = tuple[float, str, dict[str, float]]
"""Seconds since the start, stage, values."""


@dataclass(frozen=True)
class JournalEntry:
    """Content of the journal of one run of a command.

    Attributes:
        id: name of the file without its suffix; sorted by the start of the run.
        command: words of the command line.
        process: identifier of the process.
        host: name of the computer.
        born: start time of the process as the system counts it, to recognise a later process of the same identifier.
        started: start of the run, in seconds since 1970.
        updated: last update, in seconds since 1970.
        state: `running`, `done`, `interrupted`, `failed`, or `stopped` if the process ended without saying why.
        stage: current or last stage.
        done: finished units of the stage.
        total: all units of the stage; None if unknown.
        values: current figures, such as the loss.
        notes: latest notes.
        cautions: latest cautions.
        history: earlier figures, evenly thinned.
        error: reason of a failure.
    """

    id: str
    command: tuple[str, ...]
    process: int
    host: str
    born: str
    started: float
    updated: float
    state: str = RUNNING
    stage: str = ""
    done: int = 0
    total: int | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    history: tuple[Point, ...] = ()
    error: str = ""

    @property
    def seconds(self) -> float:
        """Time from the start to the last update."""
        return max(0.0, self.updated - self.started)

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> "JournalEntry":
        """Read the result of `asdict`; other values raise `DataError`."""
        entry = typed(cls, dict(facts), "the journal")
        for name, seconds in (("started", entry.started), ("updated", entry.updated)):
            require(
                0 <= seconds < LATEST,
                f"the journal: {name} is {seconds}, expected a time before the year 9999; remove it",
                DataError,
            )
        return entry


class _Writer:
    """Listener that updates an entry and writes it at most every `EVERY_SECONDS`."""

    def __init__(self, zoo: Path, command: Sequence[str]) -> None:
        now, process = time.time(), os.getpid()
        self.zoo, self.folder = zoo, zoo / FOLDER
        self.facts: dict[str, Any] = asdict(
            JournalEntry(
                id=f"{time.time_ns():020d}-{process}",
                command=tuple(_PASSWORD.sub("…@", _line(word)) for word in command),
                process=process,
                host=_host(),
                born=_born(process),
                started=now,
                updated=now,
            )
        )
        self.begun = time.monotonic()
        self.written = -math.inf
        self.spacing, self.history = EVERY_SECONDS, list[Point]()

    def __call__(self, event: Event) -> None:
        with suppress(TypeError, ValueError, OverflowError):  # a wrong figure must not stop the work
            self._update(event)
        if time.monotonic() - self.written >= EVERY_SECONDS:
            self.write()

    def _update(self, event: Event) -> None:
        facts = self.facts
        if isinstance(event, Progress):
            new_stage = facts["stage"] != _line(event.stage)
            facts |= {"stage": _line(event.stage), "done": int(event.done), "values": _values(event.values)}
            facts["total"] = None if event.total is None else int(event.total)
            self._add_point(new_stage)
        elif isinstance(event, Note | Caution):
            name = "notes" if isinstance(event, Note) else "cautions"
            facts[name] = (*facts[name], _line(event.text))[-LINES:]

    def _add_point(self, new_stage: bool) -> None:
        """Append a point to the history if the last one is old enough."""
        at = time.monotonic() - self.begun
        if not self.facts["values"] or (self.history and not new_stage and at - self.history[-1][0] < self.spacing):
            return
        self.history.append((round(at, 3), self.facts["stage"], self.facts["values"]))
        if len(self.history) > HISTORY:
            self.history, self.spacing = self.history[::2], 2 * self.spacing

    def write(self, **last: Any) -> None:
        """Write the entry; errors of the disk are ignored."""
        self.written = time.monotonic()
        self.facts |= {"updated": self.facts["started"] + self.written - self.begun, **last}
        if (self.zoo / ZOO_MARK).is_file():  # no folder is created if there is no zoo, or no longer
            with suppress(OSError, NearkinError, TypeError, ValueError):
                data = sealed({**self.facts, "history": self.history})
                write_durably(self.folder / f"{self.facts['id']}.json", data)

    def end(self, state: str, error: str = "") -> None:
        """Write the final state."""
        if self.facts["values"] and (not self.history or self.history[-1][2] != self.facts["values"]):
            self.history.append((round(time.monotonic() - self.begun, 3), self.facts["stage"], self.facts["values"]))
        self.write(state=state, error=_line(error))


@contextmanager
def write_journal(zoo: Path, command: Sequence[str]) -> Iterator[Listener]:
    """Give the block a listener that writes a journal, and record how the block ends.

    Args:
        zoo: folder of the zoo; if it is not a zoo, nothing is written.
        command: words of the command line; passwords in addresses are left out.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Path(folder, ZOO_MARK).touch()
    ...     with write_journal(Path(folder), ["add", "zero"]) as listen:
    ...         listen(Progress("zero, trial 1", 3, 10, {"loss": 0.5}))
    ...     (entry,) = journals(Path(folder))
    ...     entry.command, entry.state, entry.done, entry.total
    (('add', 'zero'), 'done', 3, 10)
    """
    writer = _Writer(zoo, command)
    with suppress(OSError):
        _remove_old(writer.folder)
    writer.write()
    try:
        yield writer
    except Exception as error:
        writer.end(FAILED, str(error) or type(error).__name__)
        raise
    except BaseException:
        writer.end(INTERRUPTED)
        raise
    writer.end(DONE)


def journals(zoo: Path) -> list[JournalEntry]:
    """Read the journals of a zoo, latest first; damaged files are left out, and no file is changed."""
    return read_journals(zoo)[0]


def read_journals(zoo: Path) -> tuple[list[JournalEntry], list[str]]:
    """Read the journals of a zoo, latest first; returns also the names of damaged files."""
    entries, damaged = [], []
    with suppress(OSError):
        for path in sorted((zoo / FOLDER).glob("[!.]*.json"), reverse=True)[: 2 * KEPT_ENTRIES]:
            try:
                data = path.read_bytes() if path.is_file() and path.stat().st_size <= LARGEST else b""
                entries.append(_check_process(JournalEntry.from_dict(unsealed(data, path.name))))
            except FileNotFoundError:  # removed meanwhile
                continue
            except (OSError, DataError):
                damaged.append(path.name)
    return entries, damaged


def _check_process(entry: JournalEntry) -> JournalEntry:
    """Change the state from running to stopped if the process does not exist; other computers cannot be checked."""
    gone = entry.state == RUNNING and entry.host == _host() and not _alive(entry.process, entry.born)
    return replace(entry, state=STOPPED) if gone else entry


def _alive(process: int, born: str) -> bool:
    """Whether the process still runs, and is the same."""
    if process <= 0:
        return False
    try:
        os.kill(process, 0)
    except PermissionError:
        pass
    except (OSError, OverflowError):
        return False
    return not born or _born(process) in (born, "")


def _born(process: int) -> str:
    """Start time of a process, as the system counts it; empty on systems without `/proc`."""
    try:
        words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return "gone" if words[0] in "ZX" else words[19]
    except (OSError, IndexError, ValueError):
        return ""


def _host() -> str:
    try:
        return socket.gethostname()
    except OSError:
        return ""


def _remove_old(folder: Path) -> None:
    """Remove journals that are old or too many, and temporary files of killed processes."""
    now, kept = time.time(), 1
    for path in sorted(folder.glob("[!.]*.json"), reverse=True):
        with suppress(OSError):
            if kept < KEPT_ENTRIES and now - path.stat().st_mtime <= KEPT_SECONDS:
                kept += 1
            else:
                path.unlink()
    for path in folder.glob(f"{TEMPORARY_PREFIX}*"):
        with suppress(OSError):
            if now - path.stat().st_mtime > 3600:
                path.unlink()


def _values(values: Mapping[str, Any]) -> dict[str, float]:
    """The first finite values, at most `LINES`."""
    finite = ((_line(str(name)), float(value)) for name, value in values.items())
    return dict([(name, value) for name, value in finite if math.isfinite(value)][:LINES])


def _line(text: str) -> str:
    r"""A text on one line, of limited length, without lone surrogates.

    >>> _line("a\nb  c"), len(_line("x" * 1000))
    ('a b c', 300)
    """
    plain = " ".join(text.split()).encode("utf-8", "replace").decode()
    return plain if len(plain) <= LONGEST else plain[: LONGEST - 1] + "…"
