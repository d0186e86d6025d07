"""Interface of every store of a zoo; `tests/laws/store.py` tests each implementation."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from nearkin.store.records import ArtifactRecord, NewArtifact, NewTask, PendingArtifact, ReadBlob, TaskRecord


class Store(Protocol):
    """Storage of tasks, their artifacts, and measurements between tasks.

    Every implementation guarantees:

    - **Atomic changes.** A method that returns has made its change durable and visible to all processes. A method that
      raises, or whose process is killed, has changed no record; blobs that it wrote may remain as orphans.
    - **Consistent reads.** A method that reads returns one committed state, and does not wait for writers.
    - **Complete records.** No record names a missing blob: a blob is written before the record that names it, and
      deleted only while no record names it and no process can add one.
    - **Concurrent use.** Several processes and threads may use the same store. Writers wait for each other; after a
      limited time the wait ends with `ZooError`.
    - **Lost connections.** If the server of the database is restarted, a method waits for it for up to a minute and is
      repeated. A change whose commit was not confirmed is made once, also if the first attempt had succeeded.

    Errors: `ZooError` for a name that is not valid, unknown or already used, and for a damaged store;
    `nearkin.core.files.FileWriteError` if the store cannot be written. Each message is one line.
    """

    @property
    def writable(self) -> bool:
        """Whether this process may change the store; if not, all methods that change it raise `FileWriteError`."""
        ...

    def close(self) -> None:
        """Release connections. It may be called twice; no other method may be called afterwards."""
        ...

    def tasks(self, limit: int | None = None, after: int | None = None) -> list[TaskRecord]:
        """Tasks in the order in which they were added: at most `limit`, of those with an id above `after`."""
        ...

    def names(self) -> list[str]:
        """Names of all tasks, in the order in which they were added."""
        ...

    def count(self) -> int:
        """Number of tasks."""
        ...

    def has(self, name: str) -> bool:
        """Whether there is a task of that name; false for names that are not valid."""
        ...

    def task(self, name: str) -> TaskRecord:
        """The task of that name. For an unknown name the error suggests up to three similar ones."""
        ...

    def artifacts(self, name: str | None = None, kind: str | None = None) -> list[ArtifactRecord]:
        """Artifacts of one task or of all, of one kind or of all.

        They are sorted by task, in the order in which tasks were added, then by kind, then by trial. An unknown task
        is an error; an unknown kind gives an empty list.
        """
        ...

    def blob(self, artifact: ArtifactRecord) -> bytes:
        """The bytes of an artifact; `ZooError` if they are missing or do not have the digest of the record."""
        ...

    def claimable(self, name: str) -> str:
        """Return the name if it is valid and no task has it; else raise `ZooError`.

        The name is not reserved: `add` and `admit` check it again.
        """
        ...

    def add(self, task: NewTask, artifacts: Sequence[NewArtifact] = ()) -> TaskRecord:
        """Store a new task with all its artifacts, and return its record.

        A name that is used, or two artifacts of the same kind and trial, raise an error and store nothing.
        """
        ...

    def attach(self, name: str, artifacts: Sequence[NewArtifact]) -> list[ArtifactRecord]:
        """Add artifacts to a task, and return all artifacts of the task.

        An artifact of the same kind and trial is replaced; its blob is deleted if no record names it any more.
        """
        ...

    def remove(self, name: str) -> None:
        """Remove a task, its artifacts, its measurements, and the blobs that no other task uses."""
        ...

    def pairs(self, measure: str, target: str) -> dict[tuple[str, int], dict[str, Any]]:
        """Facts that `keep_pair` stored for a measure and a target, by the name of the source and the trial."""
        ...

    def keep_pair(self, measure: str, source: str, target: str, trial: int, facts: Mapping[str, Any]) -> None:
        """Store facts of a measure between two tasks, in place of earlier ones with the same four keys.

        They are removed with either of the tasks.
        """
        ...

    def admit(
        self, entries: Sequence[tuple[NewTask, Sequence[PendingArtifact]]], read_blob: ReadBlob
    ) -> list[TaskRecord]:
        """Store new tasks whose blobs are written already, all of them or none, and return their records in order.

        A blob that was deleted before the records are written is taken from `read_blob` and written again.
        """
        ...

    def provisional(self) -> AbstractContextManager[list[str]]:
        """A block in which blobs are written before `admit` stores their records.

        The block appends the digests of its blobs to the list. If it raises, those that no record names are deleted.
        """
        ...
