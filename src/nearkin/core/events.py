"""Long work yields events; whoever runs it listens, shows, saves, or stops.

A piece of long work is a generator that yields events and returns its result: `Work[T]`. Works compose by
`yield from`; `finish` runs one to its end. Only the command line and the web pages show events.
"""

import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:  # events are shown by commands that must not wait for torch
    from nearkin.core.state import State

T = TypeVar("T")


@dataclass(frozen=True)
class Progress:
    """`done` of `total` units of a stage are behind us; `values` are the figures of the moment."""

    stage: str
    done: int
    total: int | None = None
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Note:
    """Something worth a line: a choice that was made, a stage that ended."""

    text: str


@dataclass(frozen=True)
class Caution:
    """Something the user should know before trusting the result."""

    text: str


@dataclass(frozen=True)
class Checkpoint:
    """A moment from which the work can go on; `capture()` copies its state, so it costs nothing unless taken."""

    capture: "Callable[[], State]"


Event: TypeAlias = Progress | Note | Caution | Checkpoint
Work: TypeAlias = Generator[Event, None, T]
Listener: TypeAlias = Callable[[Event], None]


def finish(work: Work[T], listen: Listener | None = None) -> T:
    """Run work to its end and return its result; every event goes to the listener.

    A listener that raises ends the work at that very event, so that `kept` can save the moment it stopped at.

    >>> def count(n):
    ...     for i in range(n):
    ...         yield Progress("count", i + 1, n)
    ...     return n
    >>> seen = []
    >>> finish(count(2), seen.append), len(seen)
    (2, 2)
    """
    try:
        while True:
            event = next(work)
            if listen is not None:
                listen(event)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        work.close()


def kept(work: Work[T], file: Path, every: float = 10.0) -> Work[T]:
    """The same work, its checkpoints written to a file: every so many seconds, and at the one it is stopped at.

    The file is removed when the work is done.
    """
    last = time.monotonic()
    while True:
        try:
            event = next(work)
        except StopIteration as end:
            file.unlink(missing_ok=True)
            result: T = end.value
            return result
        if isinstance(event, Checkpoint) and time.monotonic() - last > every:
            event.capture().save(file)
            last = time.monotonic()
        try:
            yield event
        except GeneratorExit:
            if isinstance(event, Checkpoint):
                event.capture().save(file)
            work.close()
            raise
