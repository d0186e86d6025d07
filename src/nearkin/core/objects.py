"""Named byte objects in one place: the files of a folder, or objects under a URL."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nearkin.core.errors import DataError, ZooError, require
from nearkin.core.files import TEMPORARY_PREFIX, FileWriteError, write_durably
from nearkin.core.opening import CHUNK, open_regular, unreadable


class UnreachableError(ZooError):
    """Storage that does not answer, refuses access or does not exist; says nothing about the objects in it."""


class Objects(Protocol):
    """Objects by name; a name may have parts, as in `ab/abc.safetensors`.

    What cannot be read raises `DataError`, or `UnreachableError` if the whole place does not answer; what cannot be
    written or removed raises `FileWriteError`.
    """

    def label(self, name: str = "") -> str:
        """Name of an object, or of the place, in messages; without secrets."""
        ...

    def read(self, name: str) -> bytes | None:
        """Content of an object; None if there is none."""
        ...

    def chunks(self, name: str) -> Iterator[bytes]:
        """Content of an object in pieces; raises `FileNotFoundError` if there is none."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Store an object durably, completely or not at all; replaces an earlier one."""
        ...

    def size(self, name: str) -> int | None:
        """Size of an object in bytes; None if there is none."""
        ...

    def age(self, name: str) -> float:
        """Seconds since the object was written; -1 if there is none."""
        ...

    def remove(self, name: str) -> None:
        """Remove an object, if there is one."""
        ...

    def move(self, name: str, new: str) -> None:
        """Give an object another name in the same place."""
        ...

    def names(self) -> list[str]:
        """Names of the objects, sorted, without those of `within`."""
        ...

    def entries(self) -> list[str]:
        """Names of the objects and of the groups that `within` opens, sorted."""
        ...

    def within(self, name: str) -> "Objects":
        """A separate group of names."""
        ...

    def clear(self) -> None:
        """Remove all objects, also those of `within`."""
        ...

    def leftovers(self) -> list[Path]:
        """Temporary files of processes that are writing, or were killed while writing; also those of `within`."""
        ...


@dataclass(frozen=True)
class FolderObjects:
    """Objects as files of a folder, which is created when the first one is stored.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     objects = FolderObjects(Path(folder))
    ...     objects.write("ab/abc", b"data")
    ...     objects.read("ab/abc"), objects.size("abc"), objects.names(), objects.within("ab").names()
    (b'data', None, [], ['abc'])
    """

    folder: Path

    def path(self, name: str) -> Path:
        """File of an object, which need not exist."""
        return self.folder / checked_name(name)

    def label(self, name: str = "") -> str:
        """The path."""
        return str(self.folder / name)

    def read(self, name: str) -> bytes | None:
        """Content of a regular file."""
        try:
            file = open_regular(self.path(name))
        except DataError as refused:
            if isinstance(refused.__cause__, FileNotFoundError):
                return None
            raise
        with file:
            try:
                return file.read()
            except OSError as error:
                raise unreadable(self.path(name), error) from error

    def chunks(self, name: str) -> Iterator[bytes]:
        """Content of a file in pieces of 1 MiB."""
        path = self.path(name)
        try:
            with path.open("rb") as file:
                while chunk := file.read(CHUNK):
                    yield chunk
        except FileNotFoundError:
            raise
        except OSError as error:
            raise unreadable(path, error) from error

    def write(self, name: str, data: bytes) -> None:
        """Write a file durably."""
        write_durably(self.path(name), data)

    def size(self, name: str) -> int | None:
        """Size of a file; None also if it cannot be asked for."""
        try:
            return self.path(name).stat().st_size
        except OSError:
            return None

    def age(self, name: str) -> float:
        """Time since the file was last written."""
        try:
            return time.time() - self.path(name).stat().st_mtime
        except OSError:
            return -1.0

    def remove(self, name: str) -> None:
        """Delete a file."""
        try:
            self.path(name).unlink(missing_ok=True)
        except OSError as refused:
            reason = refused.strerror or refused
            raise FileWriteError(
                f"cannot remove {self.path(name)}: {reason}; check the permissions of the folder"
            ) from refused

    def move(self, name: str, new: str) -> None:
        """Rename a file; nothing happens if it cannot be renamed."""
        with suppress(OSError):
            self.path(name).replace(self.path(new))

    def names(self) -> list[str]:
        """Names of the files; those that are being written are left out."""
        return sorted(entry.name for entry in self._entries() if entry.is_file())

    def entries(self) -> list[str]:
        """Names of the files and subfolders."""
        return sorted(entry.name for entry in self._entries())

    def within(self, name: str) -> "FolderObjects":
        """The objects in a subfolder of this name."""
        return FolderObjects(self.path(name))

    def clear(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def leftovers(self) -> list[Path]:
        """Files with temporary names."""
        return sorted(self.folder.rglob(f"{TEMPORARY_PREFIX}*"))

    def _entries(self) -> list["os.DirEntry[str]"]:
        try:
            with os.scandir(self.folder) as entries:
                return [entry for entry in entries if not entry.name.startswith(TEMPORARY_PREFIX)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise unreadable(self.folder, error) from error


def checked_name(name: str) -> str:
    """The name of an object, if it stays below its place.

    >>> checked_name("../passwords")
    Traceback (most recent call last):
    nearkin.core.errors.DataError: an object is named '../passwords', expected parts without .. and / at its start
    """
    parts = name.split("/")
    require(
        not {"", ".", ".."} & set(parts),
        f"an object is named {name!r}, expected parts without .. and / at its start",
        DataError,
    )
    return name
