"""Resumable cache: states of finished and of unfinished work, by name.

A name contains a digest of all facts that determine the result (`facts_digest`), so that work with other inputs never
reads it. A damaged state is renamed, and its part of the work is done again.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from nearkin.core.errors import DataError, StoppedError
from nearkin.core.events import Caution, Checkpoint, Event, Work
from nearkin.core.objects import FolderObjects, Objects
from nearkin.core.state import State, restoring

T = TypeVar("T")

DAMAGED = ".damaged"
"""Suffix of a damaged state."""
SUFFIX = ".safetensors"
SAVE_SECONDS = 10.0  # time between two checkpoints that are saved


class Checkpoints(Protocol):
    """Storage of states by name: a folder, a URL, or memory."""

    def read(self, name: str) -> State | None:
        """Read a state; None if there is none. Raises `DataError` if it is damaged."""
        ...

    def write(self, name: str, state: State) -> None:
        """Store a state completely or not at all; replaces an earlier one of that name."""
        ...

    def remove(self, name: str) -> None:
        """Remove a state, if there is one of that name."""
        ...

    def put_aside(self, name: str) -> str:
        """Rename a damaged state and return its new name."""
        ...

    def names(self) -> list[str]:
        """Names of all states, sorted, without those of `within`."""
        ...

    def within(self, name: str) -> "Checkpoints":
        """A separate group of names."""
        ...

    def clear(self) -> None:
        """Remove all states, also those of `within`."""
        ...


@dataclass(frozen=True)
class ObjectCheckpoints:
    """States as objects of one place, with a checksum in each."""

    objects: Objects

    def read(self, name: str) -> State | None:
        """Load a state and verify its checksum."""
        data = self.objects.read(name)
        return None if data is None else State.from_bytes(data, self.objects.label(name))

    def write(self, name: str, state: State) -> None:
        """Save a state durably."""
        self.objects.write(name, state.to_file())

    def remove(self, name: str) -> None:
        """Delete a state."""
        self.objects.remove(name)

    def put_aside(self, name: str) -> str:
        """Append `.damaged` to the name of a state."""
        aside = f"{name}{DAMAGED}"
        self.objects.move(name, aside)
        return aside

    def names(self) -> list[str]:
        """Names of the objects."""
        return self.objects.names()

    def within(self, name: str) -> "ObjectCheckpoints":
        """The checkpoints in a group of this name."""
        return ObjectCheckpoints(self.objects.within(name))

    def clear(self) -> None:
        """Delete all objects."""
        self.objects.clear()


class FolderCheckpoints(ObjectCheckpoints):
    """States as files of a folder, which is created when the first one is stored."""

    def __init__(self, folder: Path) -> None:
        super().__init__(FolderObjects(folder))
        object.__setattr__(self, "folder", folder)

    folder: Path

    def within(self, name: str) -> "FolderCheckpoints":
        """The checkpoints in a subfolder of this name."""
        return FolderCheckpoints(self.folder / name)


@dataclass(frozen=True)
class MemoryCheckpoints:
    """States in memory, for zoos that are read-only."""

    states: dict[str, State] = field(default_factory=dict)
    prefix: str = ""

    def read(self, name: str) -> State | None:
        """Look up a state."""
        return self.states.get(self.prefix + name)

    def write(self, name: str, state: State) -> None:
        """Keep a state while the process runs."""
        self.states[self.prefix + name] = state

    def remove(self, name: str) -> None:
        """Drop a state."""
        self.states.pop(self.prefix + name, None)

    def put_aside(self, name: str) -> str:
        """Append `.damaged` to its name."""
        aside = f"{name}{DAMAGED}"
        self.states[self.prefix + aside] = self.states.pop(self.prefix + name)
        return aside

    def names(self) -> list[str]:
        """Names without prefix."""
        own = (name.removeprefix(self.prefix) for name in self.states if name.startswith(self.prefix))
        return sorted(name for name in own if "/" not in name)

    def within(self, name: str) -> "MemoryCheckpoints":
        """The same memory, with a prefix of all names."""
        return MemoryCheckpoints(self.states, f"{self.prefix}{name}/")

    def clear(self) -> None:
        """Drop all states with the prefix."""
        for name in [name for name in self.states if name.startswith(self.prefix)]:
            del self.states[name]


def facts_digest(facts: Mapping[str, Any]) -> str:
    """A digest of facts in 16 hexadecimal digits; the order of the keys does not matter.

    >>> facts_digest({"seed": 0, "task": "even"}), facts_digest({"task": "even", "seed": 0})
    ('6006ca4e5feba74b', '6006ca4e5feba74b')
    """
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def read_stored(checkpoints: Checkpoints, name: str, read: Callable[[State], T]) -> Work[T | None]:
    """Read what an earlier run stored under a name; None if there is nothing, or if it is damaged."""
    try:
        state = checkpoints.read(name)
        if state is None:
            return None
        with restoring(state.origin or name):
            return read(state)
    except DataError as broken:
        yield _put_aside(checkpoints, name, broken)
        return None


def resume(checkpoints: Checkpoints, name: str, begin: Callable[[State | None], Work[T]]) -> Work[T]:
    """Run work from its last checkpoint, and store its next checkpoints under the same name.

    Args:
        checkpoints: storage of the checkpoint.
        name: name of the checkpoint; it is removed when the work is done.
        begin: starts the work from a checkpoint, or from the beginning; it restores the state before its first event,
            and raises `DataError` if it cannot.
    """
    start = yield from read_stored(checkpoints, name, lambda state: state)
    return (yield from save_checkpoints(_begin(checkpoints, name, begin, start), checkpoints, name))


def save_checkpoints(work: Work[T], checkpoints: Checkpoints, name: str, every: float = SAVE_SECONDS) -> Work[T]:
    """Run work and store its checkpoint every so many seconds and when it is stopped; remove it at the end."""
    last = time.monotonic()
    event: Event | None = None
    while True:
        try:
            event = next(work)
        except StopIteration as end:
            checkpoints.remove(name)
            return cast(T, end.value)
        except StoppedError:  # right after the last event: its state is the current one
            if isinstance(event, Checkpoint):
                checkpoints.write(name, event.capture())
            raise
        if isinstance(event, Checkpoint) and time.monotonic() - last > every:
            checkpoints.write(name, event.capture())
            last = time.monotonic()
        try:
            yield event
        except GeneratorExit:
            if isinstance(event, Checkpoint):
                checkpoints.write(name, event.capture())
            work.close()
            raise


def save_to_file(work: Work[T], file: Path, every: float = SAVE_SECONDS) -> Work[T]:
    """Run work and store its checkpoints in one file, from which `resume` continues as well."""
    return save_checkpoints(work, FolderCheckpoints(file.parent), file.name, every)


def _begin(
    checkpoints: Checkpoints, name: str, begin: Callable[[State | None], Work[T]], start: State | None
) -> Work[T]:
    """Begin from a checkpoint, or from the beginning if `begin` refuses it."""
    if start is None:
        return (yield from begin(None))
    try:
        work = begin(start)
        first = next(work)
    except StopIteration as end:
        return cast(T, end.value)
    except DataError as refused:
        yield _put_aside(checkpoints, name, refused)
        return (yield from begin(None))
    yield first
    return (yield from work)


def _put_aside(checkpoints: Checkpoints, name: str, broken: DataError) -> Caution:
    aside = checkpoints.put_aside(name)
    reason = str(broken).rpartition("; ")[0] or str(broken)
    return Caution(f"{reason}; it was renamed to {aside}, and this part of the work is done again")
