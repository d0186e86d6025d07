"""Arrays in npz archives: headers are checked against the archive and the limit before memory is allocated.

NumPy's reader trusts the header: a type of size zero with 10¹¹ entries keeps it busy for hours. This reader accepts
numbers and text only, and never unpickles.
"""

import ast
import io
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from nearkin.core.errors import DataError
from nearkin.core.numbers import quoted
from nearkin.core.opening import CHUNK, open_regular, require_bytes

MAGIC = b"\x93NUMPY"
MAX_HEADER = 10_000  # bytes of an array's header; NumPy's own is below 200
MAX_DIRECTORY = 8 * 2**20  # bytes of the archive's directory, enough for 100,000 arrays
MAX_AXES = 8
MAPPED_BYTES = 64 * 2**20  # larger uncompressed arrays are mapped, not read
LOCAL_HEADER = 30  # bytes of a zip member's header before its name
TYPES = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248]|[SU][1-9][0-9]{0,5})", re.ASCII)
ENCRYPTED = 0x1
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
FAULTS = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, ValueError, OverflowError, RuntimeError,
          MemoryError)  # fmt: skip


class Header(NamedTuple):
    """Shape, order and type of an array, and the position of its data in the member."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    start: int

    @property
    def nbytes(self) -> int:
        """Number of bytes of the data."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def memory(self) -> int:
        """Number of bytes of the data and of a task's copy; byte images and float32 are not copied."""
        kept = self.dtype == np.float32 or (self.dtype == np.uint8 and len(self.shape) > 2)
        return self.nbytes if kept else self.nbytes + 8 * math.prod(self.shape)


class _ArchiveFile(io.BufferedReader):
    """A file that refuses to read a very long directory at once."""

    def read(self, size: int | None = -1, /) -> bytes:
        _check(size is None or size <= MAX_DIRECTORY, "its directory is longer than 8 MiB")
        return super().read(size)


class Archive:
    """An open npz archive; its arrays are named without the ending `.npy`."""

    def __init__(self, path: Path, file: _ArchiveFile) -> None:
        self.path, self.file, self.size = path, file, path.stat().st_size
        self.zip = zipfile.ZipFile(file)
        self.members: dict[str, zipfile.ZipInfo] = {}
        for info in self.zip.infolist():
            name = info.filename.removesuffix(".npy")
            _check(name not in self.members, f"it contains {quoted(name)} twice")
            self.members[name] = info

    def arrays(self, names: Iterable[str]) -> dict[str, np.ndarray[Any, Any]]:
        """The named arrays; all headers and the total size are checked before the first is read."""
        headers = {name: self._header(self.members[name]) for name in names}
        mapped = {name for name in headers if self._is_mappable(self.members[name], headers[name])}
        total = sum(header.memory - header.nbytes * (name in mapped) for name, header in headers.items())
        require_bytes(total, str(self.path))
        return {
            name: (self._map if name in mapped else self._read)(self.members[name], header)
            for name, header in headers.items()
        }

    def _header(self, info: zipfile.ZipInfo) -> Header:
        shown = quoted(info.filename)
        _check(not info.flag_bits & ENCRYPTED, f"{shown} is encrypted")
        _check(info.compress_type in METHODS, f"{shown} is compressed by method {info.compress_type}")
        with self.zip.open(info) as file:
            header = parsed_header(file, shown)
        _check(
            header.start + header.nbytes == info.file_size,
            f"the header of {shown} states {header.nbytes:,} bytes for an array {list(header.shape)}, the archive "
            f"has {info.file_size - header.start:,}",
        )
        return header

    def _is_mappable(self, info: zipfile.ZipInfo, header: Header) -> bool:
        """Whether the array is large, uncompressed and aligned for torch."""
        if info.compress_type != zipfile.ZIP_STORED or info.file_size <= MAPPED_BYTES:
            return False
        start = self._offset(info) + header.start
        return start + header.nbytes <= self.size and start % header.dtype.alignment == 0

    def _map(self, info: zipfile.ZipInfo, header: Header) -> np.ndarray[Any, Any]:
        start, order = self._offset(info) + header.start, "F" if header.fortran else "C"
        return np.memmap(self.file, header.dtype, "c", start, header.shape, order)  # type: ignore[call-overload,no-any-return]

    def _read(self, info: zipfile.ZipInfo, header: Header) -> np.ndarray[Any, Any]:
        """The data of a member, unpacked in chunks into memory of the stated size."""
        data = np.empty(header.nbytes, np.uint8)
        filled = 0
        with self.zip.open(info) as file:
            file.read(header.start)
            while filled < len(data) and (chunk := file.read(min(CHUNK, len(data) - filled))):
                data[filled : filled + len(chunk)] = np.frombuffer(chunk, np.uint8)
                filled += len(chunk)
            file.read(1)  # compares the checksum
        _check(filled == len(data), f"{quoted(info.filename)} ends after {filled:,} bytes")
        return data.view(header.dtype).reshape(header.shape, order="F" if header.fortran else "C")

    def _offset(self, info: zipfile.ZipInfo) -> int:
        """Position of a member's bytes; its own header may be longer than the directory states."""
        self.file.seek(info.header_offset)
        name_length, extra_length = struct.unpack("<HH", self.file.read(LOCAL_HEADER)[26:30])
        return info.header_offset + LOCAL_HEADER + int(name_length) + int(extra_length)


@contextmanager
def opened_archive(path: Path) -> Iterator[Archive]:
    """Open an npz archive; every fault becomes a `DataError` of one line that names the file."""
    try:
        with _ArchiveFile(open_regular(path).detach()) as file:
            yield Archive(path, file)
    except FAULTS as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path} is not a complete npz file ({reason}); save or fetch it again") from error


def parsed_header(file: IO[bytes], name: str) -> Header:
    """Read an array's header; only numbers and text of known size are accepted.

    >>> import io
    >>> buffer = io.BytesIO()
    >>> np.save(buffer, np.zeros((2, 3), np.float32))
    >>> _ = buffer.seek(0)
    >>> parsed_header(buffer, "x").shape
    (2, 3)
    """
    start = file.read(12)
    _check(start[:6] == MAGIC and len(start) == 12 and start[6] in (1, 2, 3), f"{name} is not an array")
    width = 2 if start[6] == 1 else 4
    length = int.from_bytes(start[8 : 8 + width], "little")
    _check(length <= MAX_HEADER, f"the header of {name} has {length:,} bytes")
    text = start[8 + width :] + file.read(length - 4 + width)
    facts = _literal(text[:length])
    known = isinstance(facts, Mapping) and facts.keys() == {"descr", "fortran_order", "shape"}
    _check(known, f"the header of {name} cannot be read")
    shape, dtype = _shape(facts["shape"], name), _dtype(facts["descr"], name)
    return Header(shape, facts["fortran_order"] is True, dtype, 8 + width + length)


def _literal(text: bytes) -> Any:
    try:
        plain = re.sub(r"(?<=[0-9])L", "", text.decode("utf-8"))  # Python 2 wrote sizes as 28L
        return ast.literal_eval(plain.strip(" \n\0"))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def _shape(sizes: Any, name: str) -> tuple[int, ...]:
    valid = isinstance(sizes, tuple) and all(type(size) is int and 0 <= size < 2**63 for size in sizes)
    _check(valid, f"the shape of {name} must be whole numbers of 0 or more, got {quoted(repr(sizes))}")
    _check(len(sizes) <= MAX_AXES, f"{name} has {len(sizes)} axes, at most {MAX_AXES} are supported")
    _check(math.prod(max(size, 1) for size in sizes) < 2**48, f"{name} has the impossible shape {list(sizes)}")
    return tuple(sizes)


def _dtype(descr: Any, name: str) -> np.dtype[Any]:
    if isinstance(descr, str) and TYPES.fullmatch(descr):
        return np.dtype(descr)
    shown = "Python objects, which only pickle could read" if "O" in repr(descr) else f"type {quoted(repr(descr))}"
    raise ValueError(f"{name} contains {shown}; save numbers or text of one shape")


def _check(condition: bool, reason: str) -> None:
    if not condition:
        raise ValueError(reason)  # `opened_archive` adds the path
