"""The health of a zoo: is every file there and unharmed, and what lies about that nobody needs."""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nearkin.core.errors import NearkinError, ZooError, require
from nearkin.core.events import Progress, Work, operation
from nearkin.core.files import TEMPORARY_PREFIX
from nearkin.store.catalogue import Catalogue
from nearkin.store.schema import BATCH

YOUNG_SECONDS = 60.0  # a temporary file younger than this belongs to a writer at work


@dataclass(frozen=True)
class Damage:
    """A blob that cannot be used, and the tasks that name it."""

    digest: str
    tasks: tuple[str, ...]


@dataclass(frozen=True)
class Health:
    """What was found.

    Attributes:
        tasks: how many there are.
        blobs: how many blobs they name.
        missing: blobs that are not there.
        altered: blobs whose bytes are not what they were, or cannot be read.
        problems: what the database's own checks say.
        orphans: blobs that no task names; harmless.
        leftovers: temporary files of writers at work or killed, below the zoo; harmless.
        unfinished: entries of `work/` and parts of stages, from which interrupted work goes on.
    """

    tasks: int
    blobs: int
    missing: tuple[Damage, ...] = ()
    altered: tuple[Damage, ...] = ()
    problems: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether everything the catalogue promises can be had.

        >>> Health(tasks=1, blobs=2, orphans=("ab" * 32,)).sound
        True
        >>> Health(tasks=1, blobs=2, missing=(Damage("ab" * 32, ("even",)),)).sound
        False
        """
        return not (self.missing or self.altered or self.problems)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"sound": self.sound, **asdict(self)}


@dataclass(frozen=True)
class Cleaning:
    """What was removed: blobs by digest, temporary files by path below the zoo, and the bytes they took."""

    orphans: tuple[str, ...]
    leftovers: tuple[str, ...]
    freed: int


@operation
def examine(catalogue: Catalogue) -> Work[Health]:
    """Read every blob and every row. The zoo may be in use: what changes meanwhile is not taken for damage."""
    problems = catalogue.database.problems()
    try:
        named = _named(catalogue)
        lying = set(catalogue.blobs.digests())
        missing, altered = [], []
        for done, digest in enumerate(named):
            yield Progress("check", done, len(named))
            if not catalogue.blobs.has(digest):
                missing.append(digest)
            elif not catalogue.blobs.sound(digest):
                altered.append(digest)
        yield Progress("check", len(named), len(named))
        now = _named(catalogue)
        tasks = len(catalogue.tasks())
    except NearkinError as unreadable:
        return Health(tasks=0, blobs=0, problems=(*problems, str(unreadable)))
    return Health(
        tasks=tasks,
        blobs=len(now),
        missing=tuple(Damage(digest, now[digest]) for digest in missing if digest in now),
        altered=tuple(Damage(digest, now[digest]) for digest in altered if digest in now),
        problems=tuple(problems),
        orphans=tuple(sorted(lying - now.keys() - named.keys())),
        leftovers=tuple(_below(catalogue, path) for path in _leftovers(catalogue)),
        unfinished=tuple(sorted(path.name for path in _unfinished(catalogue))),
    )


def _unfinished(catalogue: Catalogue) -> Iterator[Path]:
    yield from catalogue.work.glob("*")
    yield from catalogue.stages.glob("*/*.part")


@operation
def clean(catalogue: Catalogue, older_than_seconds: float = 3600.0) -> Work[Cleaning]:
    """Remove orphans and leftovers older than that; safe while others add.

    Blobs go under the write lock, and whoever adds looks under the same lock whether its blobs are still there. A
    temporary file has no such guard, so one younger than a minute stays in any case.
    """
    problems = catalogue.database.problems()
    require(not problems, f"nothing was removed, the zoo is damaged: {'; '.join(problems[:1])}", ZooError)
    named = _named(catalogue)
    paths = {digest: catalogue.blobs.path(digest) for digest in catalogue.blobs.digests() if digest not in named}
    old = [digest for digest, path in paths.items() if _age(path) >= older_than_seconds]
    sizes = {digest: catalogue.blobs.size(digest) for digest in old if catalogue.blobs.has(digest)}
    orphans: list[str] = []
    for start in range(0, len(old), BATCH):
        yield Progress("clean", start, len(old))
        orphans += catalogue.discard(old[start : start + BATCH])
    yield Progress("clean", len(old), len(old))
    leftovers, freed = _swept(catalogue, max(older_than_seconds, YOUNG_SECONDS))
    return Cleaning(tuple(orphans), tuple(leftovers), freed + sum(sizes.get(digest, 0) for digest in orphans))


def _named(catalogue: Catalogue) -> dict[str, tuple[str, ...]]:
    """Digests that rows name, each with its tasks."""
    tasks: dict[str, dict[str, None]] = {}
    for item in catalogue.artifacts():
        tasks.setdefault(item.digest, {})[item.task] = None
    return {digest: tuple(names) for digest, names in tasks.items()}


def _leftovers(catalogue: Catalogue) -> Iterator[Path]:
    yield from sorted(catalogue.path.glob(f"{TEMPORARY_PREFIX}*"))
    yield from catalogue.blobs.leftovers()


def _swept(catalogue: Catalogue, older_than_seconds: float) -> tuple[Sequence[str], int]:
    """Remove old temporary files, under the write lock; their paths and bytes."""
    gone, freed = [], 0
    with catalogue.database.writing():
        for path in _leftovers(catalogue):
            if _age(path) >= older_than_seconds:
                with suppress(OSError):
                    size = path.stat().st_size
                    path.unlink()
                    gone.append(_below(catalogue, path))
                    freed += size
    return gone, freed


def _below(catalogue: Catalogue, path: Path) -> str:
    return str(path.relative_to(catalogue.path))


def _age(path: Path) -> float:
    """Seconds since the file was last written; what is gone is of no age at all."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return -1.0
