"""Files named by the SHA-256 of their content, so that equal content is stored once."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from nearkin.core.errors import ZooError
from nearkin.core.files import TEMPORARY_PREFIX, FileWriteError, write_durably

SUFFIX = ".safetensors"
CHUNK = 1 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Blobs:
    """Blobs in a folder: `ab/abcdef….safetensors`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     blobs = Blobs(Path(folder))
    ...     digest = blobs.put(b"weights")
    ...     digest[:8], blobs.get(digest), blobs.size(digest), list(blobs.digests()) == [digest]
    ('9a129038', b'weights', 7, True)
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, digest: str) -> Path:
        """Path of a blob, which need not exist."""
        if not is_digest(digest):
            raise ZooError(f"the digest of a blob is {digest!r}, expected 64 hexadecimal digits; see nearkin list")
        return self.folder / digest[:2] / f"{digest}{SUFFIX}"

    def put(self, data: bytes) -> str:
        """Store bytes durably and return their digest; an intact blob of the same content is not written again."""
        digest = hashlib.sha256(data).hexdigest()
        if not (self.has(digest, len(data)) and self.sound(digest)):
            write_durably(self.path(digest), data)
        return digest

    def get(self, digest: str) -> bytes:
        """Read and verify a blob."""
        return b"".join(self.chunks(digest))

    def chunks(self, digest: str) -> Iterator[bytes]:
        """Read a blob in pieces; if its content was changed, `ZooError` is raised after the last piece."""
        content = hashlib.sha256()
        try:
            with self.path(digest).open("rb") as file:
                while chunk := file.read(CHUNK):
                    content.update(chunk)
                    yield chunk
        except FileNotFoundError:
            raise ZooError(_missing(digest)) from None
        except OSError as refused:
            reason = refused.strerror or refused
            raise ZooError(f"cannot read blob {digest[:12]}… of the zoo: {reason}; run nearkin doctor") from refused
        if content.hexdigest() != digest:
            raise ZooError(
                f"blob {digest[:12]}… of the zoo was altered after it was written; "
                f"run nearkin doctor to see which tasks use it"
            )

    def sound(self, digest: str) -> bool:
        """Whether the blob exists and its content is unchanged."""
        try:
            for _ in self.chunks(digest):
                pass
        except ZooError:
            return False
        return True

    def has(self, digest: str, size: int | None = None) -> bool:
        """Whether the blob exists, and has that size if one is given."""
        try:
            return self.size(digest) == size or size is None
        except ZooError:
            return False

    def size(self, digest: str) -> int:
        """Size of the file in bytes."""
        try:
            return self.path(digest).stat().st_size
        except OSError:
            raise ZooError(_missing(digest)) from None

    def digests(self) -> Iterator[str]:
        """Digests of all blobs in the folder, sorted; files with other names are ignored."""
        for path in sorted(self.folder.glob(f"??/*{SUFFIX}")):
            digest = path.name.removesuffix(SUFFIX)
            if is_digest(digest) and path.parent.name == digest[:2]:
                yield digest

    def remove(self, digest: str) -> None:
        """Delete a blob if it exists."""
        try:
            self.path(digest).unlink(missing_ok=True)
        except OSError as refused:
            reason = refused.strerror or refused
            raise FileWriteError(
                f"cannot remove {self.path(digest)}: {reason}; check the permissions of the folder"
            ) from refused

    def leftovers(self) -> Iterator[Path]:
        """Temporary files of processes that are writing, or were killed while writing."""
        yield from sorted(self.folder.glob(f"??/{TEMPORARY_PREFIX}*"))


def is_digest(text: str) -> bool:
    """Whether a text has the form of a digest.

    >>> is_digest("ab" * 32), is_digest("../../etc/passwd")
    (True, False)
    """
    return _DIGEST.fullmatch(text) is not None


def _missing(digest: str) -> str:
    return f"blob {digest[:12]}… is missing from the zoo; run nearkin doctor to see which tasks use it"
