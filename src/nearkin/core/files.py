"""Files that are written whole or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from nearkin.core.errors import NearkinError

TEMPORARY_PREFIX = ".part-"


class FileWriteError(NearkinError):
    """The disk is full, read-only, or would not take a file; nothing was changed."""


@contextmanager
def durable_file(path: Path) -> Iterator[BinaryIO]:
    """Write to a temporary neighbour, fsync it, rename it over `path`, fsync the folder.

    An exception in the block, or the end of the process at any moment, leaves `path` as it was.
    """
    name = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, suffix=f"-{path.name[:40]}", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
        _sync_folder(path.parent)
    except OSError as refused:
        _discard(name)
        reason = refused.strerror or str(refused)
        raise FileWriteError(
            f"cannot write {path}: {reason}; nothing was changed: free space or choose another place, then run it again"
        ) from refused
    except BaseException:
        _discard(name)
        raise


def write_durably(path: Path, data: bytes) -> None:
    """`durable_file` for bytes at hand.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_durably(Path(folder, "a.bin"), b"whole")
    ...     Path(folder, "a.bin").read_bytes(), len(os.listdir(folder))
    (b'whole', 1)
    """
    with durable_file(path) as file:
        file.write(data)


def _discard(name: str) -> None:
    if name:
        with suppress(OSError):
            os.unlink(name)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where the system lets a folder be opened."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _umask() -> int:
    """The process's umask; it can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
