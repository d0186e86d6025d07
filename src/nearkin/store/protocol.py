"""What every store of a zoo can do; `tests/laws/store.py` holds the laws that each implementation must pass."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from nearkin.store.records import ArtifactRecord, NewArtifact, NewTask, Placed, Supply, TaskRecord


class Store(Protocol):
    """Records of tasks, their artifacts, and distances between them.

    Every change is whole or not at all, whoever is killed at whatever moment, and no record names a missing blob.
    """

    @property
    def writable(self) -> bool:
        """Whether this process may change the store."""
        ...

    def close(self) -> None:
        """Release the connection."""
        ...

    def tasks(self) -> list[TaskRecord]:
        """Every task, in the order they were added."""
        ...

    def task(self, name: str) -> TaskRecord:
        """The task of that name; an unknown one raises an error that names the nearest."""
        ...

    def artifacts(self, name: str | None = None, kind: str | None = None) -> list[ArtifactRecord]:
        """Artifacts of one task or of all, of one kind or of all; by task, kind and trial."""
        ...

    def blob(self, artifact: ArtifactRecord) -> bytes:
        """The bytes of an artifact, verified."""
        ...

    def claimable(self, name: str) -> str:
        """The name, if a new task may take it; else an error."""
        ...

    def add(self, task: NewTask, artifacts: Sequence[NewArtifact] = ()) -> TaskRecord:
        """Store a task with its artifacts."""
        ...

    def attach(self, name: str, artifacts: Sequence[NewArtifact]) -> list[ArtifactRecord]:
        """Add artifacts to a task; one of the same kind and trial is replaced. Returns all of the task."""
        ...

    def remove(self, name: str) -> None:
        """Remove a task, and the blobs that no other task names."""
        ...

    def pairs(self, measure: str, target: str) -> dict[tuple[str, int], dict[str, Any]]:
        """What was measured between every source and a target, by source and trial."""
        ...

    def keep_pair(self, measure: str, source: str, target: str, trial: int, facts: Mapping[str, Any]) -> None:
        """Store what was measured between two tasks; measured again, it is replaced."""
        ...

    def admit(self, entries: Sequence[tuple[NewTask, Sequence[Placed]]], supply: Supply) -> list[TaskRecord]:
        """Store tasks whose blobs are there already, all or none."""
        ...

    def provisional(self) -> AbstractContextManager[list[str]]:
        """A list for digests of blobs that are written before their records; if the block fails, they are removed."""
        ...
