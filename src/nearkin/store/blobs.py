"""Objects named by the SHA-256 of their content, so that equal content is stored once."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from nearkin.core.errors import DataError, ZooError
from nearkin.core.objects import FolderObjects, Objects, UnreachableError
from nearkin.core.opening import CHUNK as CHUNK
from nearkin.store.blob_cache import BlobCache

SUFFIX = ".safetensors"
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Blobs:
    """Blobs in a folder or under a URL: `ab/abcdef….safetensors`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     blobs = Blobs(Path(folder))
    ...     digest = blobs.put(b"weights")
    ...     digest[:8], blobs.get(digest), blobs.size(digest), list(blobs.digests()) == [digest]
    ('9a129038', b'weights', 7, True)

    Args:
        place: a folder, or the objects of one place.
        cache: local copies of what `get` reads and `put` writes (default: none).
    """

    def __init__(self, place: Path | Objects, cache: BlobCache | None = None) -> None:
        self.objects: Objects = FolderObjects(place) if isinstance(place, Path) else place
        self.cache = cache

    @property
    def folder(self) -> Path:
        """The folder of the blobs; an error if they are under a URL."""
        if isinstance(self.objects, FolderObjects):
            return self.objects.folder
        raise ZooError(f"the blobs of the zoo are in {self.objects.label()}, expected a folder; read them with get")

    def path(self, digest: str) -> Path:
        """File of a blob in a folder, which need not exist."""
        name = _name(digest)
        return self.folder / name

    def put(self, data: bytes) -> str:
        """Store bytes durably and return their digest; an intact blob of the same content is not written again."""
        digest = hashlib.sha256(data).hexdigest()
        if not (self.has(digest, len(data)) and self.sound(digest)):
            self.objects.write(_name(digest), data)
        if self.cache is not None:
            self.cache.write(digest, data)
        return digest

    def get(self, digest: str) -> bytes:
        """Read and verify a blob."""
        name = _name(digest)
        if self.cache is not None and (copy := self.cache.read(digest)) is not None:
            return copy
        try:
            data = self.objects.read(name)
        except DataError as refused:
            raise _unreadable(digest, refused) from refused
        if data is None:
            raise ZooError(_missing(digest))
        if hashlib.sha256(data).hexdigest() != digest:
            raise ZooError(_altered(digest))
        if self.cache is not None:
            self.cache.write(digest, data)
        return data

    def chunks(self, digest: str) -> Iterator[bytes]:
        """Read a blob in pieces; if its content was changed, `ZooError` is raised after the last piece."""
        content = hashlib.sha256()
        try:
            for chunk in self.objects.chunks(_name(digest)):
                content.update(chunk)
                yield chunk
        except FileNotFoundError:
            raise ZooError(_missing(digest)) from None
        except DataError as refused:
            raise _unreadable(digest, refused) from refused
        if content.hexdigest() != digest:
            raise ZooError(_altered(digest))

    def sound(self, digest: str) -> bool:
        """Whether the blob exists and its content is unchanged; the cache is not asked."""
        try:
            for _ in self.chunks(digest):
                pass
        except UnreachableError:
            raise
        except ZooError:
            return False
        return True

    def has(self, digest: str, size: int | None = None) -> bool:
        """Whether the blob exists, and has that size if one is given."""
        if not is_digest(digest):
            return False
        stored = self.objects.size(_name(digest))
        return stored is not None and size in (None, stored)

    def size(self, digest: str) -> int:
        """Size of the blob in bytes."""
        size = self.objects.size(_name(digest))
        if size is None:
            raise ZooError(_missing(digest))
        return size

    def age(self, digest: str) -> float:
        """Seconds since the blob was written; -1 if it does not exist any more."""
        return self.objects.age(_name(digest))

    def digests(self) -> Iterator[str]:
        """Digests of all blobs, sorted; objects with other names are ignored. One group is listed after the other."""
        for group in self.objects.entries():
            for name in self.objects.within(group).entries() if len(group) == 2 else ():
                digest = name.removesuffix(SUFFIX)
                if is_digest(digest) and name == f"{digest}{SUFFIX}" and group == digest[:2]:
                    yield digest

    def remove(self, digest: str) -> None:
        """Delete a blob if it exists."""
        self.objects.remove(_name(digest))
        if self.cache is not None:
            self.cache.remove(digest)

    def leftovers(self) -> Iterator[Path]:
        """Temporary files of processes that are writing, or were killed while writing."""
        yield from self.objects.leftovers()


def is_digest(text: str) -> bool:
    """Whether a text has the form of a digest.

    >>> is_digest("ab" * 32), is_digest("../../etc/passwd")
    (True, False)
    """
    return _DIGEST.fullmatch(text) is not None


def _name(digest: str) -> str:
    if not is_digest(digest):
        raise ZooError(f"the digest of a blob is {digest!r}, expected 64 hexadecimal digits; see nearkin list")
    return f"{digest[:2]}/{digest}{SUFFIX}"


def _missing(digest: str) -> str:
    return f"blob {digest[:12]}… is missing from the zoo; run nearkin doctor to see which tasks use it"


def _altered(digest: str) -> str:
    return (
        f"blob {digest[:12]}… of the zoo was altered after it was written; run nearkin doctor to see which tasks use it"
    )


def _unreadable(digest: str, refused: DataError) -> ZooError:
    reason = str(refused).partition("; ")[0]
    return ZooError(f"cannot read blob {digest[:12]}… of the zoo: {reason}; run nearkin doctor")
