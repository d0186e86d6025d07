"""Opening of data files: regular files only, and at most `max_bytes()` bytes.

The memory that a file or a request needs is compared with the limit before it is allocated. Compressed data is unpacked
as a stream, so that a small file that unpacks to a huge one is refused as soon as it exceeds the limit.
"""

import gzip
import io
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from nearkin.core.errors import DataError, OptionError, require
from nearkin.core.numbers import byte_count, quoted
from nearkin.core.text import byte_text

VARIABLE = "NEARKIN_MAX_BYTES"
DEFAULT_MAX_BYTES = 4 * 2**30
CHUNK = 2**20

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def max_bytes() -> int:
    """The most bytes that one data set may take: `$NEARKIN_MAX_BYTES` (default: 4 GiB).

    The command line sets the variable from `--max-bytes`.
    """
    text = os.environ.get(VARIABLE, "")
    return parsed_limit(text, f"${VARIABLE}") if text else DEFAULT_MAX_BYTES


def parsed_limit(text: str, option: str) -> int:
    """Parse a limit in bytes; `option` names it in the error.

    >>> parsed_limit("500MB", "--max-bytes")
    500000000
    """
    count = byte_count(text)
    if not count:
        raise OptionError(f"{option} is {quoted(text)}, expected a number of bytes such as 4GiB, 500MB or 2000000")
    return count


def require_bytes(count: int, subject: str) -> None:
    """Raise `DataError` if `subject` needs more bytes than the limit; called before they are allocated.

    >>> require_bytes(10 * 2**30, "digits at 20000 x 20000")
    Traceback (most recent call last):
    nearkin.core.errors.DataError: digits at 20000 x 20000 takes 10 GiB, the limit is 4 GiB; make it smaller, or raise \
the limit with nearkin --max-bytes or $NEARKIN_MAX_BYTES
    """
    limit = max_bytes()
    require(
        count <= limit,
        f"{subject} takes {byte_text(count)}, the limit is {byte_text(limit)}; make it smaller, or raise the limit "
        f"with nearkin --max-bytes or ${VARIABLE}",
        DataError,
    )


def local_path(text: str) -> Path:
    """The absolute path for a text, with `~` and symbolic links resolved; the file need not exist."""
    try:
        path = Path(text).expanduser().resolve()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{quoted(text)} cannot be a path ({reason}); name an existing file or folder") from error
    return path


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file for reading; folders, pipes, sockets and devices are refused without waiting for them.

    >>> open_regular(Path("/dev/null"))
    Traceback (most recent call last):
    nearkin.core.errors.DataError: /dev/null is a device, not a regular file; name a file
    """
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError as error:
        raise DataError(f"there is no file {path}; check the path") from error
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
        raise DataError(f"{path} is {kind}, not a regular file; name a file")
    return os.fdopen(handle, "rb")


@contextmanager
def unpacked(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file; one whose name ends in `.gz` is unpacked while it is read. Errors become `DataError`."""
    with open_regular(path) as file:
        try:
            yield io.BufferedReader(gzip.GzipFile(fileobj=file)) if path.suffix == ".gz" else file
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(f"{path} is a broken gzip file ({error}); fetch it again") from error
        except OSError as error:
            raise unreadable(path, error) from error


def read_file(path: Path, cost: int = 1) -> bytearray:
    """Read a regular file, unpacked if it ends in `.gz`, up to the limit.

    Args:
        path: the file, plain or `.gz`.
        cost: bytes of memory for each byte of the file after parsing (default: 1).
    """
    content = bytearray()
    with unpacked(path) as file:
        require_bytes(cost * os.fstat(file.fileno()).st_size, str(path))
        while chunk := file.read(CHUNK):
            content += chunk
            require_bytes(cost * len(content), f"{path}, unpacked,")
    return content


def unreadable(path: Path, error: Exception) -> DataError:
    """The error for a file that cannot be read."""
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return DataError(f"cannot read {path}: {reason}; check the path and its permissions, or fetch the file again")
