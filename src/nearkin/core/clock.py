"""The clock of time limits: wall time, processor time, or the one of which the larger share is used."""

import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeAlias, TypeVar, cast

from nearkin.core.events import Work

T = TypeVar("T")
Clock: TypeAlias = Callable[[], float]
"""Seconds since a fixed moment; only differences have a meaning."""

LEAST_PROCESSOR = 0.2  # seconds; with less, a load cannot be measured

_current: ContextVar[Clock] = ContextVar("clock", default=time.perf_counter)


def now() -> float:
    """Seconds of the current clock: wall time, unless the work runs in `timed_by` another clock."""
    return _current.get()()


def timed_by(clock: Clock, work: Work[T]) -> Work[T]:
    """Yield the events of work; while it runs, `now` reads this clock.

    >>> from nearkin.core.events import finish
    >>> def work():
    ...     yield from ()
    ...     return now()
    >>> finish(timed_by(lambda: 7.0, work()))
    7.0
    """
    try:
        while True:
            token = _current.set(clock)
            try:
                event = next(work)
            except StopIteration as end:
                return cast(T, end.value)
            finally:
                _current.reset(token)
            yield event
    finally:
        work.close()


def larger_share(wall: float, processor: float) -> Clock:
    """A clock that reaches `wall` seconds when the wall time reaches `wall` or the processor time `processor`.

    At every moment it shows the larger of the two used shares, times `wall`.
    """
    wall_start, processor_start = time.perf_counter(), time.process_time()

    def read() -> float:
        used = (time.process_time() - processor_start) / processor
        return max(time.perf_counter() - wall_start, wall * used)

    return read


class LoadMeter:
    """Seconds of a clock for each second of processor time of this thread, since the meter was made; at least 1.

    With wall time it is about 1 on an idle machine, and 3 if three processes share each core. Threads that this one
    starts are not counted, so their number does not matter.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start, self._processor_start = clock(), time.thread_time()

    def read(self) -> float:
        """The mean so far."""
        processor = time.thread_time() - self._processor_start
        return 1.0 if processor < LEAST_PROCESSOR else max(1.0, (self._clock() - self._start) / processor)
