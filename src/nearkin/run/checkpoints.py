"""The one resumable cache: states of finished parts and of unfinished work, by name.

A name is made of all facts that decide the result (`named`), so that another question never reads it. A state that is
intact is used; one that is damaged is put aside, and its part of the work is done again.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from nearkin.core.errors import DataError
from nearkin.core.events import Caution, Checkpoint, Work
from nearkin.core.state import State, restoring

T = TypeVar("T")

DAMAGED = ".damaged"
"""Suffix of a state that was put aside."""
SUFFIX = ".safetensors"
SAVE_SECONDS = 10.0  # between two checkpoints that are saved


class Checkpoints(Protocol):
    """Where states are stored: a folder, or memory."""

    def read(self, name: str) -> State | None:
        """The state of that name; None where there is none. Raises `DataError` where it is damaged."""
        ...

    def write(self, name: str, state: State) -> None:
        """Store a state, whole or not at all; an earlier one of that name is replaced."""
        ...

    def remove(self, name: str) -> None:
        """Remove a state; none of that name is fine."""
        ...

    def put_aside(self, name: str) -> str:
        """Rename a damaged state, and return its new name."""
        ...

    def names(self) -> list[str]:
        """Names of all states."""
        ...

    def within(self, name: str) -> "Checkpoints":
        """A part with names of its own."""
        ...

    def clear(self) -> None:
        """Remove everything."""
        ...


@dataclass(frozen=True)
class FolderCheckpoints:
    """States as files of a folder, which is made when the first one is stored."""

    folder: Path

    def read(self, name: str) -> State | None:
        """Load a file, verified by its checksum."""
        file = self.folder / name
        return State.load(file) if file.exists() else None

    def write(self, name: str, state: State) -> None:
        """Save a file durably."""
        state.save(self.folder / name)

    def remove(self, name: str) -> None:
        """Delete a file."""
        (self.folder / name).unlink(missing_ok=True)

    def put_aside(self, name: str) -> str:
        """Append `.damaged` to the name of a file."""
        aside = f"{name}{DAMAGED}"
        with suppress(OSError):
            (self.folder / name).replace(self.folder / aside)
        return aside

    def names(self) -> list[str]:
        """Names of the files."""
        return sorted(path.name for path in self.folder.glob("*") if path.is_file())

    def within(self, name: str) -> "FolderCheckpoints":
        """A folder below."""
        return FolderCheckpoints(self.folder / name)

    def clear(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True)
class MemoryCheckpoints:
    """States in memory: for zoos that cannot be written to."""

    states: dict[str, State] = field(default_factory=dict)
    prefix: str = ""

    def read(self, name: str) -> State | None:
        """The state itself."""
        return self.states.get(self.prefix + name)

    def write(self, name: str, state: State) -> None:
        """Keep the state while the process lives."""
        self.states[self.prefix + name] = state

    def remove(self, name: str) -> None:
        """Forget the state."""
        self.states.pop(self.prefix + name, None)

    def put_aside(self, name: str) -> str:
        """Keep it under another name."""
        aside = f"{name}{DAMAGED}"
        self.states[self.prefix + aside] = self.states.pop(self.prefix + name)
        return aside

    def names(self) -> list[str]:
        """Names of this part."""
        own = (name.removeprefix(self.prefix) for name in self.states if name.startswith(self.prefix))
        return sorted(name for name in own if "/" not in name)

    def within(self, name: str) -> "MemoryCheckpoints":
        """The same memory, names prefixed."""
        return MemoryCheckpoints(self.states, f"{self.prefix}{name}/")

    def clear(self) -> None:
        """Forget this part."""
        for name in [name for name in self.states if name.startswith(self.prefix)]:
            del self.states[name]


def mark(facts: Mapping[str, Any]) -> str:
    """A short digest of facts: 16 hexadecimal digits.

    >>> mark({"seed": 0, "task": "even"}) == mark({"task": "even", "seed": 0}) != mark({"task": "even", "seed": 1})
    True
    """
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def stored(where: Checkpoints, name: str, read: Callable[[State], T]) -> Work[T | None]:
    """What an earlier run stored under a name; None where there is nothing, or where it is damaged."""
    try:
        state = where.read(name)
        if state is None:
            return None
        with restoring(state.origin or name):
            return read(state)
    except DataError as broken:
        yield _put_aside(where, name, broken)
        return None


def resumed(where: Checkpoints, name: str, begin: Callable[[State | None], Work[T]]) -> Work[T]:
    """Work that continues from the checkpoint of a name and stores its next checkpoints there.

    Args:
        where: the checkpoint is stored.
        name: of the checkpoint; removed when the work is done.
        begin: makes the work from a checkpoint, or from the beginning; it restores the state before its first event,
            and raises `DataError` if it cannot.
    """
    start = yield from stored(where, name, lambda state: state)
    return (yield from saved(_begun(where, name, begin, start), where, name))


def saved(work: Work[T], where: Checkpoints, name: str, every: float = SAVE_SECONDS) -> Work[T]:
    """The same work, its checkpoints stored every so many seconds and when it is stopped; removed at the end."""
    last = time.monotonic()
    while True:
        try:
            event = next(work)
        except StopIteration as end:
            where.remove(name)
            result: T = end.value
            return result
        if isinstance(event, Checkpoint) and time.monotonic() - last > every:
            where.write(name, event.capture())
            last = time.monotonic()
        try:
            yield event
        except GeneratorExit:
            if isinstance(event, Checkpoint):
                where.write(name, event.capture())
            work.close()
            raise


def kept_in_file(work: Work[T], file: Path, every: float = SAVE_SECONDS) -> Work[T]:
    """The same work, its checkpoints stored in one file; `resumed` also continues from there."""
    return saved(work, FolderCheckpoints(file.parent), file.name, every)


def _begun(where: Checkpoints, name: str, begin: Callable[[State | None], Work[T]], start: State | None) -> Work[T]:
    """The work, from the beginning if the checkpoint is refused."""
    if start is None:
        return (yield from begin(None))
    try:
        work = begin(start)
        first = next(work)
    except StopIteration as end:
        result: T = end.value
        return result
    except DataError as refused:
        yield _put_aside(where, name, refused)
        return (yield from begin(None))
    yield first
    return (yield from work)


def _put_aside(where: Checkpoints, name: str, broken: DataError) -> Caution:
    aside = where.put_aside(name)
    reason = str(broken).rpartition("; ")[0] or str(broken)
    return Caution(f"{reason}; it was renamed to {aside}, and this part of the work is done again")
