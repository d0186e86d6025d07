"""Files named by their content: the SHA-256 of a blob's bytes is its name, so equal blobs are kept once."""

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
        """Where the blob lies, or would lie."""
        if not is_digest(digest):
            raise ZooError(
                f"{digest!r} is not the name of a blob: 64 hexadecimal digits were expected; see nearkin list"
            )
        return self.folder / digest[:2] / f"{digest}{SUFFIX}"

    def put(self, data: bytes) -> str:
        """Keep the bytes durably and return their digest; what lies there unharmed is not written again."""
        digest = hashlib.sha256(data).hexdigest()
        if not (self.has(digest, len(data)) and self.sound(digest)):
            write_durably(self.path(digest), data)
        return digest

    def get(self, digest: str) -> bytes:
        """The bytes, verified."""
        return b"".join(self.chunks(digest))

    def chunks(self, digest: str) -> Iterator[bytes]:
        """The bytes in pieces; a blob that is not what it was raises `ZooError` after its last piece."""
        found = hashlib.sha256()
        try:
            with self.path(digest).open("rb") as file:
                while chunk := file.read(CHUNK):
                    found.update(chunk)
                    yield chunk
        except FileNotFoundError:
            raise ZooError(_missing(digest)) from None
        except OSError as refused:
            reason = refused.strerror or refused
            raise ZooError(f"cannot read blob {digest[:12]}… of the zoo: {reason}; run nearkin doctor") from refused
        if found.hexdigest() != digest:
            raise ZooError(
                f"blob {digest[:12]}… of the zoo was altered after it was written; "
                f"run nearkin doctor to see which tasks need it"
            )

    def sound(self, digest: str) -> bool:
        """Whether the blob is there and every byte is as it was written."""
        try:
            for _ in self.chunks(digest):
                pass
        except ZooError:
            return False
        return True

    def has(self, digest: str, size: int | None = None) -> bool:
        """Whether the blob is there and, where a size is given, of that size."""
        try:
            found = self.size(digest)
        except ZooError:
            return False
        return size is None or found == size

    def size(self, digest: str) -> int:
        """Bytes on disk."""
        try:
            return self.path(digest).stat().st_size
        except OSError:
            raise ZooError(_missing(digest)) from None

    def digests(self) -> Iterator[str]:
        """Every blob that lies in the folder, in order; files of other names are not ours."""
        for path in sorted(self.folder.glob(f"??/*{SUFFIX}")):
            digest = path.name.removesuffix(SUFFIX)
            if is_digest(digest) and path.parent.name == digest[:2]:
                yield digest

    def remove(self, digest: str) -> None:
        """Delete the blob; one that is not there is no error."""
        try:
            self.path(digest).unlink(missing_ok=True)
        except OSError as refused:
            reason = refused.strerror or refused
            raise FileWriteError(f"cannot remove {self.path(digest)}: {reason}; check your rights there") from refused

    def leftovers(self) -> Iterator[Path]:
        """Temporary files: of writers at work if young, of killed ones if old."""
        yield from sorted(self.folder.glob(f"??/{TEMPORARY_PREFIX}*"))


def is_digest(text: str) -> bool:
    """Whether the text can name a blob.

    >>> is_digest("ab" * 32), is_digest("../../etc/passwd")
    (True, False)
    """
    return _DIGEST.fullmatch(text) is not None


def _missing(digest: str) -> str:
    return f"blob {digest[:12]}… is missing from the zoo; run nearkin doctor to see which tasks need it"
