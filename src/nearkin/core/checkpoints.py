"""Resuming from files: a state that is intact is used, one that is damaged is put aside and its work done again."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

from nearkin.core.errors import DataError
from nearkin.core.events import Caution, Checkpoint, Work, kept
from nearkin.core.state import State, restoring

T = TypeVar("T")

DAMAGED = ".damaged"
"""Suffix of a file that was put aside."""


def stored(file: Path, read: Callable[[State], T]) -> Work[T | None]:
    """What an earlier run stored in a file; None where there is no file, or where it is damaged."""
    if not file.exists():
        return None
    try:
        state = State.load(file)
        with restoring(str(file)):
            return read(state)
    except DataError as broken:
        yield _put_aside(file, broken)
        return None


def resumed(begin: Callable[[State | None], Work[T]], file: Path, *, resume: bool = True) -> Work[T]:
    """Work that continues from the checkpoint in a file and keeps its next checkpoints there.

    Args:
        begin: makes the work from a checkpoint, or from the beginning; it restores the state before its first event,
            and raises `DataError` if it cannot.
        file: of the checkpoint; removed when the work is done.
        resume: whether a checkpoint of an earlier run is used.
    """
    start = (yield from stored(file, lambda state: state)) if resume else None
    return (yield from kept(_begun(begin, start, file), file))


def signed(work: Work[T], facts: Mapping[str, Any]) -> Work[T]:
    """The same work; its checkpoints carry these facts as well, which say what they belong to."""

    def with_facts(moment: Checkpoint) -> Checkpoint:
        def capture() -> State:
            state = moment.capture()
            return State(state.tensors, {**state.facts, **facts})

        return Checkpoint(capture)

    try:
        while True:
            try:
                event = next(work)
            except StopIteration as end:
                return cast(T, end.value)
            yield with_facts(event) if isinstance(event, Checkpoint) else event
    finally:
        work.close()


def _begun(begin: Callable[[State | None], Work[T]], start: State | None, file: Path) -> Work[T]:
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
        yield _put_aside(file, refused)
        return (yield from begin(None))
    yield first
    return (yield from work)


def _put_aside(file: Path, broken: DataError) -> Caution:
    aside = file.with_name(file.name + DAMAGED)
    with suppress(OSError):
        file.replace(aside)
    reason = str(broken).rpartition("; ")[0] or str(broken)
    return Caution(f"{reason}; it was renamed to {aside.name}, and this part of the work is done again")
