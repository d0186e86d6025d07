"""Local copies of blobs whose storage is far away."""

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from nearkin.core.opening import parsed_limit

FOLDER, LIMIT = "NEARKIN_CACHE", "NEARKIN_CACHE_BYTES"
DEFAULT_LIMIT = 10 * 2**30
KEPT = 0.9  # part of the limit that is left after old copies were removed
COUNT_EVERY = 64  # writes between two counts of the folder, to which other processes write as well


class BlobCache:
    """Files named by digests in a folder; those that were not used for longest are removed first.

    Several processes may share the folder. A cache that is full, read-only or damaged is never an error: `read` returns
    None, and `write` does nothing.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cache = BlobCache(Path(folder), limit=10)
    ...     digests = [hashlib.sha256(data).hexdigest() for data in (b"first", b"second")]
    ...     cache.write(digests[0], b"first")
    ...     cache.write(digests[1], b"second")
    ...     cache.read(digests[0]), cache.read(digests[1])
    (None, b'second')

    Args:
        folder: place of the copies.
        limit: total size in bytes; 0 for no copies.
        by_content: whether the digests are those of the contents, which are then verified.
    """

    def __init__(self, folder: Path, limit: int = DEFAULT_LIMIT, by_content: bool = True) -> None:
        self.folder, self.limit, self.by_content = folder, limit, by_content
        self._bytes, self._writes = 0, 0

    @classmethod
    def of_user(cls, kind: str = "blobs", by_content: bool = True) -> "BlobCache":
        """The cache in `$NEARKIN_CACHE`, or in the cache folder of the user; its limit is `$NEARKIN_CACHE_BYTES`."""
        base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "nearkin"
        folder, limit = Path(os.environ.get(FOLDER) or base) / kind, os.environ.get(LIMIT, "").strip()
        with suppress(RuntimeError):  # there is no home folder
            folder = folder.expanduser()
        if not limit:
            return cls(folder, by_content=by_content)
        return cls(folder, 0 if limit == "0" else parsed_limit(limit, f"${LIMIT}"), by_content)

    def read(self, digest: str) -> bytes | None:
        """A copy, if there is one and its content is unchanged."""
        path = self._path(digest)
        with suppress(OSError):
            data = path.read_bytes()
            if not self.by_content or hashlib.sha256(data).hexdigest() == digest:
                with suppress(OSError):
                    os.utime(path)  # the time of its last use
                return data
            path.unlink()
        return None

    def write(self, digest: str, data: bytes) -> None:
        """Keep a copy, and remove old ones if all together exceed the limit."""
        if len(data) > self.limit:
            return
        path, name = self._path(digest), ""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(name, path)
        except OSError:
            with suppress(OSError):
                os.unlink(name)
        self._bytes += len(data)
        if self._writes % COUNT_EVERY == 0 or self._bytes > self.limit:
            self._shrink()
        self._writes += 1

    def remove(self, digest: str) -> None:
        """Delete a copy, if there is one."""
        with suppress(OSError):
            self._path(digest).unlink()

    def _path(self, digest: str) -> Path:
        return self.folder / digest[:2] / digest

    def _shrink(self) -> None:
        """Count the bytes in the folder; if they exceed the limit, remove files until `KEPT` of it is left."""
        files = []
        for path in self.folder.glob("??/*"):
            with suppress(OSError):
                status = path.stat()
                files.append((status.st_mtime_ns, status.st_size, path))
        self._bytes = sum(size for _, size, _ in files)
        if self._bytes <= self.limit:
            return
        for _, size, path in sorted(files)[:-1]:  # the newest is the one that was just written
            if self._bytes <= KEPT * self.limit:
                break
            with suppress(OSError):
                path.unlink()
                self._bytes -= size
