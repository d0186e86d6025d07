"""Checkpoints that say which work they belong to, and reading them back."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from nearkin.core.errors import NearkinError
from nearkin.core.events import Caution, Checkpoint, Work
from nearkin.core.state import State

T = TypeVar("T")


def signed(work: Work[T], facts: Mapping[str, Any]) -> Work[T]:
    """The same work; its checkpoints carry these facts as well."""

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


def recovered(file: Path) -> Work[State | None]:
    """The checkpoint in a file, or None; one that cannot be read is named and removed."""
    if not file.exists():
        return None
    try:
        return State.load(file)
    except NearkinError as broken:
        yield Caution(f"{broken}; that part is done again")
        file.unlink(missing_ok=True)
        return None
