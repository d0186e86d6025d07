"""Durable writing of files: a file is written completely or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from nearkin.core.errors import NearkinError

TEMPORARY_PREFIX = ".part-"


class FileWriteError(NearkinError):
    """A file that cannot be written, because the disk is full or read-only; nothing was changed."""


@contextmanager
def durable_file(path: Path) -> Iterator[BinaryIO]:
    """Write to a temporary file in the same folder, fsync it, rename it to `path`, fsync the folder.

    If the block raises, or the process is killed at any moment, `path` stays as it was.
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
            f"cannot write {path}: {reason}; nothing was changed: free space or use another folder, then run it again"
        ) from refused
    except BaseException:
        _discard(name)
        raise


def write_durably(path: Path, data: bytes) -> None:
    """Write bytes to a file, completely or not at all.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_durably(Path(folder, "a.bin"), b"data")
    ...     Path(folder, "a.bin").read_bytes(), len(os.listdir(folder))
    (b'data', 1)
    """
    with durable_file(path) as file:
        file.write(data)


def _discard(name: str) -> None:
    if name:
        with suppress(OSError):
            os.unlink(name)


def _sync_folder(folder: Path) -> None:
    """Make the rename durable; systems that cannot open a folder do not need it."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _umask() -> int:
    """The umask of the process, which can be read only by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
