"""Journal: what a running command does, in a small file beside the zoo, for whoever wants to look on.

One file a run, below `journal/` of the zoo, rewritten whole while the work goes on and once when it ends. It lies apart
from `work/`, where everything counts as unfinished. Where it cannot be written, the work goes on without one.
"""

import math
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nearkin.core.errors import DataError, NearkinError, require
from nearkin.core.events import Caution, Event, Listener, Note, Progress
from nearkin.core.files import TEMPORARY_PREFIX, write_durably
from nearkin.core.plain import sealed, typed, unsealed

FOLDER = "journal"
ZOO_MARK = "zoo.db"  # a folder that holds it is a zoo
EVERY_SECONDS = 0.5  # between two writings, and at first between two points of the history
KEPT_SECONDS = 7 * 86400.0
KEPT_ENTRIES = 50
HISTORY = 240  # points at the most; when it is full, every second one goes
LINES = 12  # notes, cautions and values that are kept, of each
LONGEST = 300  # characters of a line
LARGEST = 1 << 20  # bytes of a file that is read
LATEST = 253_370_764_800.0  # seconds since 1970 at the start of the year 9999
RUNNING, DONE, INTERRUPTED, FAILED, STOPPED = "running", "done", "interrupted", "failed", "stopped"
_PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")

Point = tuple[float, str, dict[str, float]]
"""Seconds since the start, stage, values."""


@dataclass(frozen=True)
class Entry:
    """One run as its journal tells it.

    Attributes:
        id: its file's name without the ending; later runs sort behind earlier ones.
        command: the words that were typed.
        process: number of the process, on `host`; `born` tells it from a later one of the same number.
        started: seconds since 1970, as `updated`.
        state: `running`, `done`, `interrupted`, `failed`, or `stopped` where its process is gone without a word.
        stage: what was done last, `done` of `total` of it.
        values: the figures of the moment.
        history: figures of earlier moments, evenly thinned.
        error: why it failed.
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
        """How long it has run, as far as the journal knows."""
        return max(0.0, self.updated - self.started)

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> "Entry":
        """The inverse of `asdict`; anything else raises `DataError`."""
        entry = typed(cls, dict(facts), "the journal")
        for name, seconds in (("started", entry.started), ("updated", entry.updated)):
            require(0 <= seconds < LATEST, f"the journal: {name} is {seconds}, no time before the year 9999", DataError)
        return entry


class _Writer:
    """The listener that keeps one entry and writes it now and then."""

    def __init__(self, zoo: Path, command: Sequence[str]) -> None:
        now, number = time.time(), os.getpid()
        self.zoo, self.folder = zoo, zoo / FOLDER
        self.facts: dict[str, Any] = asdict(
            Entry(
                id=f"{time.time_ns():020d}-{number}",
                command=tuple(_PASSWORD.sub("…@", _line(word)) for word in command),
                process=number,
                host=_host(),
                born=_born(number),
                started=now,
                updated=now,
            )
        )
        self.begun = time.monotonic()
        self.written = -math.inf
        self.spacing, self.history = EVERY_SECONDS, list[Point]()

    def __call__(self, event: Event) -> None:
        with suppress(TypeError, ValueError, OverflowError):  # figures that are none are the work's own affair
            self._hear(event)
        if time.monotonic() - self.written >= EVERY_SECONDS:
            self.write()

    def _hear(self, event: Event) -> None:
        facts = self.facts
        if isinstance(event, Progress):
            new_stage = facts["stage"] != _line(event.stage)
            facts |= {"stage": _line(event.stage), "done": int(event.done), "values": _values(event.values)}
            facts["total"] = None if event.total is None else int(event.total)
            self._remember(new_stage)
        elif isinstance(event, Note | Caution):
            name = "notes" if isinstance(event, Note) else "cautions"
            facts[name] = (*facts[name], _line(event.text))[-LINES:]

    def _remember(self, new_stage: bool) -> None:
        """A point of the history, if the last one is long enough ago."""
        at = time.monotonic() - self.begun
        if not self.facts["values"] or (self.history and not new_stage and at - self.history[-1][0] < self.spacing):
            return
        self.history.append((round(at, 3), self.facts["stage"], self.facts["values"]))
        if len(self.history) > HISTORY:
            self.history, self.spacing = self.history[::2], 2 * self.spacing

    def write(self, **last: Any) -> None:
        """Write the entry as it is now; a disk that does not take it is no concern of the work."""
        self.written = time.monotonic()
        self.facts |= {"updated": self.facts["started"] + self.written - self.begun, **last}
        if (self.zoo / ZOO_MARK).is_file():  # never a folder for a zoo that is not there, or not any more
            with suppress(OSError, NearkinError, TypeError, ValueError):
                data = sealed({**self.facts, "history": self.history})
                write_durably(self.folder / f"{self.facts['id']}.json", data)

    def end(self, state: str, error: str = "") -> None:
        """The last word on the run."""
        if self.facts["values"] and (not self.history or self.history[-1][2] != self.facts["values"]):
            self.history.append((round(time.monotonic() - self.begun, 3), self.facts["stage"], self.facts["values"]))
        self.write(state=state, error=_line(error))


@contextmanager
def journaled(zoo: Path, command: Sequence[str]) -> Iterator[Listener]:
    """A listener that keeps the journal of the work done in the block; how the block ends is its last word.

    Args:
        zoo: the folder of the zoo; where it is none, nothing is written.
        command: the words that were typed; passwords in addresses are left out.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Path(folder, ZOO_MARK).touch()
    ...     with journaled(Path(folder), ["add", "zero"]) as listen:
    ...         listen(Progress("zero, trial 1", 3, 10, {"loss": 0.5}))
    ...     (entry,) = journals(Path(folder))
    ...     entry.command, entry.state, entry.done, entry.total
    (('add', 'zero'), 'done', 3, 10)
    """
    writer = _Writer(zoo, command)
    with suppress(OSError):
        _tidy(writer.folder)
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


def journals(zoo: Path) -> list[Entry]:
    """The runs that a zoo knows of, latest first; changes nothing. A file that is no journal is passed over."""
    return read_journals(zoo)[0]


def read_journals(zoo: Path) -> tuple[list[Entry], list[str]]:
    """The runs that a zoo knows of, latest first, and the names of the files that are damaged."""
    entries, damaged = [], []
    with suppress(OSError):
        for path in sorted((zoo / FOLDER).glob("[!.]*.json"), reverse=True)[: 2 * KEPT_ENTRIES]:
            try:
                data = path.read_bytes() if path.is_file() and path.stat().st_size <= LARGEST else b""
                entries.append(_looked_at(Entry.from_dict(unsealed(data, path.name))))
            except FileNotFoundError:  # removed meanwhile
                continue
            except (OSError, DataError):
                damaged.append(path.name)
    return entries, damaged


def _looked_at(entry: Entry) -> Entry:
    """The entry, which is not running any more if its process is gone; of another machine's nothing can be said."""
    if entry.state == RUNNING and entry.host == _host() and not _alive(entry.process, entry.born):
        return Entry(**{**vars(entry), "state": STOPPED})
    return entry


def _alive(process: int, born: str) -> bool:
    """Whether that very process runs."""
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
    """When a process began, in the system's own count; empty where the system does not tell."""
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


def _tidy(folder: Path) -> None:
    """Remove journals that are old or too many, and what killed writers left."""
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
    """The first few finite figures."""
    finite = ((_line(str(name)), float(value)) for name, value in values.items())
    return dict([(name, value) for name, value in finite if math.isfinite(value)][:LINES])


def _line(text: str) -> str:
    r"""One line of bounded length that JSON and UTF-8 can take.

    >>> _line("a\nb  c"), len(_line("x" * 1000))
    ('a b c', 300)
    """
    plain = " ".join(text.split()).encode("utf-8", "replace").decode()
    return plain if len(plain) <= LONGEST else plain[: LONGEST - 1] + "…"
