"""Integrity checks: verify every file of a zoo, and find and remove files that no task uses."""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nearkin.core.errors import NearkinError, ZooError, require
from nearkin.core.events import Progress, Work, operation
from nearkin.core.files import TEMPORARY_PREFIX
from nearkin.core.objects import UnreachableError
from nearkin.store.catalogue import Catalogue
from nearkin.store.schema import BATCH

YOUNG_SECONDS = 60.0  # a younger temporary file may belong to a process that is writing
OF_JOBS = ("jobs", "slurm")  # results and calls of jobs, which are not work to be continued


@dataclass(frozen=True)
class DamagedBlob:
    """A blob that cannot be used, and the tasks that need it."""

    digest: str
    tasks: tuple[str, ...]


@dataclass(frozen=True)
class Health:
    """Result of an integrity check.

    Attributes:
        tasks: number of tasks.
        blobs: number of blobs that tasks use.
        missing: blobs that do not exist.
        altered: blobs whose content was changed, or that cannot be read.
        problems: errors that the checks of the database report.
        orphans: blobs that no task uses; harmless.
        leftovers: temporary files of processes that are writing, or were killed while writing; harmless.
        unfinished: entries of `work/` and checkpoints of stages, from which interrupted work is resumed.
    """

    tasks: int
    blobs: int
    missing: tuple[DamagedBlob, ...] = ()
    altered: tuple[DamagedBlob, ...] = ()
    problems: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether every task can be read completely.

        >>> Health(tasks=1, blobs=2, orphans=("ab" * 32,)).sound
        True
        >>> Health(tasks=1, blobs=2, missing=(DamagedBlob("ab" * 32, ("even",)),)).sound
        False
        """
        return not (self.missing or self.altered or self.problems)

    def to_dict(self) -> dict[str, Any]:
        """The result as plain JSON values."""
        return {"sound": self.sound, **asdict(self)}


@dataclass(frozen=True)
class CleanupResult:
    """Digests of the removed blobs, paths of the removed temporary files in the zoo, and their total size in bytes."""

    orphans: tuple[str, ...]
    leftovers: tuple[str, ...]
    freed: int


@operation
def examine(catalogue: Catalogue) -> Work[Health]:
    """Read every blob and every row. Other processes may change the zoo meanwhile; this is not reported as damage."""
    problems = catalogue.database.problems()
    try:
        named = _named(catalogue)
        stored = set(catalogue.blobs.digests())
        missing, altered = [], []
        for done, digest in enumerate(named):
            yield Progress("check", done, len(named))
            if not catalogue.blobs.has(digest):
                missing.append(digest)
            elif not catalogue.blobs.sound(digest):
                altered.append(digest)
        yield Progress("check", len(named), len(named))
        now = _named(catalogue)
        tasks = catalogue.count()
    except NearkinError as unreadable:
        return Health(tasks=0, blobs=0, problems=(*problems, str(unreadable)))
    return Health(
        tasks=tasks,
        blobs=len(now),
        missing=tuple(DamagedBlob(digest, now[digest]) for digest in missing if digest in now),
        altered=tuple(DamagedBlob(digest, now[digest]) for digest in altered if digest in now),
        problems=tuple(problems),
        orphans=tuple(sorted(stored - now.keys() - named.keys())),
        leftovers=tuple(_below(catalogue, path) for path in _leftovers(catalogue)),
        unfinished=tuple(sorted(_unfinished(catalogue))),
    )


def _unfinished(catalogue: Catalogue) -> Iterator[str]:
    yield from (name for name in catalogue.work.entries() if name not in OF_JOBS)
    for fingerprint in catalogue.stages.entries():
        yield from (name for name in catalogue.stages.within(fingerprint).names() if name.endswith(".part"))


@operation
def clean(catalogue: Catalogue, older_than_seconds: float = 3600.0) -> Work[CleanupResult]:
    """Remove orphans and leftovers that are older; safe while other processes add tasks.

    Blobs are removed under the write lock, and a process that adds a task checks under the same lock that its blobs
    still exist. Temporary files are not protected in this way, so that files younger than a minute are never removed.
    """
    problems = catalogue.database.problems()
    require(not problems, f"nothing was removed, the zoo is damaged: {''.join(problems[:1])}", ZooError)
    named = _named(catalogue)
    unused = (digest for digest in catalogue.blobs.digests() if digest not in named)
    old = [digest for digest in unused if catalogue.blobs.age(digest) >= older_than_seconds]
    sizes = {digest: _size(catalogue, digest) for digest in old}
    orphans: list[str] = []
    for start in range(0, len(old), BATCH):
        yield Progress("clean", start, len(old))
        orphans += catalogue.discard(old[start : start + BATCH])
    yield Progress("clean", len(old), len(old))
    leftovers, freed = _remove_leftovers(catalogue, max(older_than_seconds, YOUNG_SECONDS))
    return CleanupResult(tuple(orphans), tuple(leftovers), freed + sum(sizes[digest] for digest in orphans))


def _size(catalogue: Catalogue, digest: str) -> int:
    """Size of a blob; 0 if another process has removed it."""
    try:
        return catalogue.blobs.size(digest)
    except UnreachableError:
        raise
    except ZooError:
        return 0


def _named(catalogue: Catalogue) -> dict[str, tuple[str, ...]]:
    """Digests of the blobs in use, each with the names of its tasks."""
    tasks: dict[str, dict[str, None]] = {}
    for artifact in catalogue.artifacts():
        tasks.setdefault(artifact.digest, {})[artifact.task] = None
    return {digest: tuple(names) for digest, names in tasks.items()}


def _leftovers(catalogue: Catalogue) -> Iterator[Path]:
    if not catalogue.shared:
        yield from sorted(catalogue.path.glob(f"{TEMPORARY_PREFIX}*"))
    yield from catalogue.blobs.leftovers()


def _remove_leftovers(catalogue: Catalogue, older_than_seconds: float) -> tuple[Sequence[str], int]:
    """Remove old temporary files under the write lock; returns their paths and total size."""
    removed, freed = [], 0
    with catalogue.database.writing():
        for path in _leftovers(catalogue):
            if _age(path) >= older_than_seconds:
                with suppress(OSError):
                    size = path.stat().st_size
                    path.unlink()
                    removed.append(_below(catalogue, path))
                    freed += size
    return removed, freed


def _below(catalogue: Catalogue, path: Path) -> str:
    return str(path.relative_to(catalogue.blobs.folder if catalogue.shared else catalogue.path))


def _age(path: Path) -> float:
    """Seconds since the file was last written; -1 if it does not exist any more."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return -1.0
