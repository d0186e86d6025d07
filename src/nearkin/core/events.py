"""Events of long operations: progress, notes, cautions, checkpoints.

A long operation is written once, as a generator that yields events and returns its result (`Work[T]`), and decorated
with `operation`: `fit(...)` runs it to the end, `fit.work(...)` yields its events. Operations nest by
`yield from other.work(...)`. A listener receives the events: it can show them, save a checkpoint, or raise to stop the
operation. Only the command line and the web pages show events.
"""

import functools
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, cast, overload

if TYPE_CHECKING:  # commands that only show events must not wait for torch
    from nearkin.core.state import State

T = TypeVar("T")
R = TypeVar("R", covariant=True)
S = TypeVar("S")
P = ParamSpec("P")
Q = ParamSpec("Q")


@dataclass(frozen=True)
class Progress:
    """`done` of `total` units of a stage are finished; `values` are the current figures, such as the loss.

    `worker` names another process that does the stage at the same time as others; empty for this one.
    """

    stage: str
    done: int
    total: int | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    worker: str = field(default="", repr=False)


@dataclass(frozen=True)
class Note:
    """Information for the user: a choice that was made, a stage that ended."""

    text: str


@dataclass(frozen=True)
class Caution:
    """Something the user should know before trusting the result."""

    text: str


@dataclass(frozen=True)
class Checkpoint:
    """A point from which the work can be resumed. Its state is copied only when `capture()` is called."""

    capture: "Callable[[], State]"


Event: TypeAlias = Progress | Note | Caution | Checkpoint
Work: TypeAlias = Generator[Event, None, T]
Listener: TypeAlias = Callable[[Event], None]


_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send the events of all operations that are called in the block to a listener.

    >>> @operation
    ... def count(n: int):
    ...     yield Progress("count", n, n)
    ...     return n
    >>> with listening(lambda event: print(event.stage)):
    ...     count(3)
    count
    3
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


class Operation(Generic[P, R]):
    """A long operation: a call runs it to the end, `work` yields its events. In a class it is a method."""

    def __init__(self, steps: Callable[P, Work[R]]) -> None:
        self.work = steps
        functools.update_wrapper(self, steps)

    def __call__(self, *args: P.args, **options: P.kwargs) -> R:
        """Run to the end and return the result; events go to the listener of `listening`, if one is set."""
        listener = _listener.get()
        if "listen" in options:
            warnings.warn("listen= is deprecated; use `with nk.listening(...)`", DeprecationWarning, stacklevel=2)
            listener = options.pop("listen") or listener  # type: ignore[assignment]
        return finish(self.work(*args, **options), listener)

    @overload
    def __get__(self, owner: None, kind: type) -> "Operation[P, R]": ...
    @overload
    def __get__(self: "Operation[Concatenate[S, Q], R]", owner: S, kind: type | None = None) -> "Operation[Q, R]": ...
    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        return self if owner is None else Operation(MethodType(self.work, owner))

    def __reduce__(self) -> str:
        return str(self.__qualname__)  # type: ignore[attr-defined]


def operation(steps: Callable[P, Work[R]]) -> Operation[P, R]:
    """Decorate a generator function or method as a long operation.

    >>> @operation
    ... def double(n: int):
    ...     for i in range(n):
    ...         yield Progress("double", i + 1, n)
    ...     return 2 * n
    >>> double(3), len(list(double.work(3)))
    (6, 3)
    """
    return Operation(steps)


def finish(work: Work[T], listen: Listener | None = None) -> T:
    """Run work to the end, send every event to the listener, and return the result.

    If the listener raises, the work is stopped at that event, so that a checkpoint can be saved there.

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
        return cast(T, end.value)
    finally:
        work.close()


def map_events(work: Work[T], change: Callable[[Event], Event | None]) -> Work[T]:
    """Yield the events of work after `change`; events for which it returns None are left out.

    >>> def count():
    ...     yield Note("one")
    ...     return 1
    >>> list(map_events(count(), lambda event: Note(event.text.upper()))), list(map_events(count(), lambda event: None))
    ([Note(text='ONE')], [])
    """
    try:
        while True:
            try:
                event = change(next(work))
            except StopIteration as end:
                return cast(T, end.value)
            if event is not None:
                yield event
    finally:
        work.close()
