"""Objects under a URL of fsspec: S3 and compatible stores, memory, and whatever else fsspec opens.

Credentials are those of the driver: its environment variables and configuration files. Nothing is renamed, because
object stores have no rename. A store that does not put objects atomically may show a reader half of an object; the
digests of blobs and the checksums of states detect it.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from nearkin.core.addresses import without_secrets
from nearkin.core.errors import MissingExtraError, NearkinError, OptionError, optional, require
from nearkin.core.files import FileWriteError
from nearkin.core.objects import FolderObjects, Objects, UnreachableError, checked_name

PIECE = 8 << 20  # bytes of one request of `chunks`
WAITS = (0.2, 1.0, 3.0)  # seconds before the second, third and fourth attempt
BUCKETS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl")
"""Protocols whose paths start with a bucket, whose puts are atomic and verified by the server, and whose drivers repeat
requests themselves."""
_PERMANENT = (PermissionError, IsADirectoryError, NotADirectoryError, NotImplementedError, TypeError, ValueError)
"""Errors that another attempt does not change."""
_DENIED = ("NoCredentialsError", "PartialCredentialsError", "PermissionError")


@dataclass(frozen=True)
class UrlObjects:
    """Objects below a path of an fsspec file system.

    >>> objects = UrlObjects.at("memory://doctest/objects")
    >>> objects.write("ab/abc", b"data")
    >>> objects.read("ab/abc"), objects.size("abc"), objects.names(), objects.within("ab").names()
    (b'data', None, [], ['abc'])
    >>> objects.clear()

    Attributes:
        address: URL without secrets.
        root: path in the file system.
        files: file system of fsspec.
        secrets: parts of the URL that no message may repeat.
        seen: whether the bucket is known to exist, shared with the groups of this place.
    """

    address: str
    root: str
    files: Any = field(repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    seen: dict[str, bool] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def at(cls, url: str) -> "UrlObjects":
        """Open a URL; nothing is read or written yet."""
        address, protocol, secrets = without_secrets(url), url.partition("://")[0], _secrets(url)
        fsspec = optional("fsspec", "remote", f"opening {address}")
        try:
            files, root = fsspec.url_to_fs(url, skip_instance_cache=True)
        except ImportError as missing:
            package = getattr(missing.__cause__ or missing, "name", None) or protocol
            raise MissingExtraError(f"opening {address} needs {package}: pip install {package}") from missing
        except ValueError as unknown:
            if protocol in fsspec.available_protocols():
                raise UnreachableError(_refusal("open", address, unknown, secrets)) from None
            raise OptionError(
                f"{address} has the unknown protocol {protocol}://, expected a folder, s3://, memory:// or another "
                "protocol of fsspec"
            ) from None
        except Exception as failed:
            raise UnreachableError(_refusal("open", address, failed, secrets)) from None
        return cls(address.partition("?")[0].rstrip("/"), root.rstrip("/"), files, secrets)

    def label(self, name: str = "") -> str:
        """The URL without secrets."""
        return f"{self.address}/{name}" if name else self.address

    def read(self, name: str) -> bytes | None:
        """Content of an object, in one request."""
        try:
            return bytes(self._ask("read", name, self.files.cat_file, self._path(name)))
        except FileNotFoundError:
            self._require_bucket()
            return None

    def chunks(self, name: str) -> Iterator[bytes]:
        """Content of an object in pieces of 8 MiB."""
        size = self.size(name)
        if size is None:
            raise FileNotFoundError(self.label(name))
        for start in range(0, size, PIECE):
            end = min(start + PIECE, size)
            yield bytes(self._ask("read", name, self.files.cat_file, self._path(name), start=start, end=end))

    def write(self, name: str, data: bytes) -> None:
        """Store an object, and compare what is stored: its size, and its bytes if the server does not verify them."""
        path = self._path(name)
        try:
            self._change("write", name, self._put, path, data)
        except FileNotFoundError as missing:
            raise self._error("write", name, missing, FileWriteError) from None
        try:
            whole = self.size(name) == len(data) and (self._has_buckets() or self.read(name) == data)
        except NearkinError as unreadable:
            raise FileWriteError(str(unreadable)) from None
        if not whole:
            raise FileWriteError(
                f"cannot write {self.label(name)}: the storage returns other bytes than were written; run it again"
            )

    def size(self, name: str) -> int | None:
        """Size that the storage reports."""
        info = self._info(name)
        return None if info is None else int(info["size"])

    def age(self, name: str) -> float:
        """Time since the storage says that the object was written; 0 if it does not say it."""
        info = self._info(name)
        if info is None:
            return -1.0
        moment = next((info[key] for key in ("LastModified", "last_modified", "mtime", "created") if key in info), None)
        if isinstance(moment, datetime):
            moment = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        return max(0.0, time.time() - moment) if isinstance(moment, int | float) else 0.0

    def remove(self, name: str) -> None:
        """Delete an object."""
        try:
            self._change("remove", name, self.files.rm_file, self._path(name))
        except FileNotFoundError:
            return

    def move(self, name: str, new: str) -> None:
        """Write the content under the other name, then remove the object."""
        data = self.read(name)
        if data is not None:
            self.write(new, data)
            self.remove(name)

    def names(self) -> list[str]:
        """Names of the objects directly below the path."""
        return self._list("file")

    def entries(self) -> list[str]:
        """Names of the objects, and of the folders or common prefixes, directly below the path."""
        return self._list("file", "directory")

    def within(self, name: str) -> "UrlObjects":
        """The objects below a longer path."""
        return UrlObjects(self.label(name), self._path(name), self.files, self.secrets, self.seen)

    def clear(self) -> None:
        """Delete every object below the path, and folders where the storage has them; never the bucket."""
        try:
            if not self._has_buckets():
                self._change("remove", "", self.files.rm, self.root, recursive=True)
                return
            self.files.invalidate_cache()
            if below := self._ask("list", "", self.files.find, self.root):
                self._change("remove", "", self.files.rm, below)
        except FileNotFoundError:
            return

    def leftovers(self) -> list[Path]:
        """None: there are no temporary objects."""
        return []

    def _path(self, name: str) -> str:
        return f"{self.root}/{checked_name(name)}"

    def _has_buckets(self) -> bool:
        return self.address.partition("://")[0] in BUCKETS

    def _put(self, path: str, data: bytes) -> None:
        """Put an object; folders are made where the storage needs them, buckets never."""
        try:
            self.files.pipe_file(path, data)
        except FileNotFoundError:
            if self._has_buckets():
                raise
            self.files.makedirs(path.rpartition("/")[0], exist_ok=True)
            self.files.pipe_file(path, data)

    def _info(self, name: str) -> Mapping[str, Any] | None:
        self.files.invalidate_cache()
        try:
            info: Mapping[str, Any] = self._ask("read", name, self.files.info, self._path(name))
        except FileNotFoundError:
            self._require_bucket()
            return None
        return info if info["type"] == "file" else None

    def _list(self, *kinds: str) -> list[str]:
        """Names of what is directly below the path; other processes may have changed it since the last time."""
        self.files.invalidate_cache()
        try:
            entries = self._ask("list", "", self.files.ls, self.root, detail=True)
        except FileNotFoundError:
            self._require_bucket()
            return []
        start = f"{self.root.lstrip('/')}/"
        paths = (str(entry["name"]).strip("/") for entry in entries if entry["type"] in kinds)
        return sorted(path.removeprefix(start) for path in paths if path.startswith(start))

    def _require_bucket(self) -> None:
        """Raise an error if the object that was not found has no bucket either."""
        if self._has_buckets() and not self.seen.get("bucket"):
            bucket = self.root.split("/")[0]
            if not self._ask("read", "", self.files.exists, bucket):
                raise UnreachableError(
                    f"cannot read {self.address}: there is no bucket {bucket!r}; create it or check the URL"
                )
            self.seen["bucket"] = True

    def _ask(self, verb: str, name: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return self._call(verb, name, UnreachableError, function, *args, **options)

    def _change(self, verb: str, name: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return self._call(verb, name, FileWriteError, function, *args, **options)

    def _call(
        self,
        verb: str,
        name: str,
        error: type[NearkinError],
        function: Callable[..., Any],
        *args: Any,
        **options: Any,
    ) -> Any:
        """Call the driver, again after errors that may pass; `FileNotFoundError` is left to the caller."""
        for wait in (*(() if self._has_buckets() else WAITS), None):
            try:
                return function(*args, **options)
            except FileNotFoundError:
                raise
            except Exception as failed:
                if wait is None or isinstance(failed, _PERMANENT) or type(failed).__name__ in _DENIED:
                    raise self._error(verb, name, failed, error) from None
            time.sleep(wait)
        raise AssertionError("unreachable")

    def _error(self, verb: str, name: str, failed: Exception, error: type[NearkinError]) -> NearkinError:
        return error(_refusal(verb, self.label(name), failed, self.secrets))


def _refusal(verb: str, label: str, failed: Exception, secrets: tuple[str, ...]) -> str:
    """One line about an error of the driver."""
    reason = " ".join(str(failed).split()) or type(failed).__name__
    for secret in secrets:
        reason = reason.replace(secret, "…")
    if isinstance(failed, FileNotFoundError):
        reason, advice = f"not found ({reason})", "create the bucket or check the URL"
    elif type(failed).__name__ in _DENIED:
        reason, advice = f"access denied ({reason})", "check the credentials in the environment of the driver"
    else:
        advice = "check the URL, the network and the credentials, then run it again"
    return f"cannot {verb} {label}: {without_secrets(reason)[:300]}; {advice}"


def _secrets(url: str) -> tuple[str, ...]:
    """Password and values of parameters of a URL.

    >>> _secrets("s3://key:word@bucket/zoo?token=abc")
    ('word', 'abc')
    """
    parts = urlsplit(url)
    user = parts.netloc.rpartition("@")[0]
    values = (user.partition(":")[2], *(value for _, value in parse_qsl(parts.query)))
    return tuple(value for value in values if value)


def objects_at(place: str | Path) -> Objects:
    """The objects in a folder or under a URL; `file://` is a folder.

    >>> objects_at("file:///data/blobs")
    FolderObjects(folder=PosixPath('/data/blobs'))
    """
    text = str(place)
    if isinstance(place, Path) or "://" not in text:
        return FolderObjects(Path(place))
    protocol, _, rest = text.partition("://")
    if protocol in ("file", "local"):
        require(rest.startswith("/"), f"{text} is not the URL of a folder, expected file:///path/of/the/folder")
        return FolderObjects(Path(rest))
    return UrlObjects.at(text)
