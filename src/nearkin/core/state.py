"""Tensors and JSON facts: the content of checkpoints, blobs and model files.

It is written as a safetensors file, never as a pickle, with one metadata entry `nearkin` of JSON with sorted keys.
Equal states give equal bytes, so that blobs can be named by their content. A file that is saved by its path has a
second entry `sha256`, the checksum of the rest of the file; the checksum of a blob is its name.
"""

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from nearkin.core.errors import DataError, NearkinError
from nearkin.core.events import Checkpoint, Event, Work, map_events
from nearkin.core.files import write_durably
from nearkin.core.opening import open_regular, unreadable
from nearkin.core.plain import CHECKSUM, json_object, typed

T = TypeVar("T")

FACTS = "nearkin"
_START = b'{"__metadata__":{'  # every header that nearkin writes begins with it
_MARK = _START + f'"{CHECKSUM}":"'.encode()
_DIGITS = 64  # length of a checksum
_SHARED = {"F16": torch.float16, "F32": torch.float32, "I64": torch.int64, "U8": torch.uint8}  # read as views
_BROKEN = (
    safetensors.SafetensorError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
"""Exceptions of torch, safetensors and nearkin for stored values that are wrong."""


@dataclass(frozen=True)
class State:
    """Named tensors and JSON facts; `origin` names their file in errors.

    >>> state = State({"w": torch.ones(2)}, {"step": 3})
    >>> copy = State.from_bytes(state.to_bytes())
    >>> copy.facts, copy.tensors["w"].tolist()
    ({'step': 3}, [1.0, 1.0])
    """

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any] = field(default_factory=dict)
    origin: str = field(default="the stored state", compare=False, repr=False)

    def to_bytes(self) -> bytes:
        """Write as safetensors; equal states give equal bytes."""
        seen: set[int] = set()
        tensors: dict[str, Tensor] = {}
        for name, tensor in self.tensors.items():
            value = tensor.detach().cpu().contiguous()
            storage = value.untyped_storage().data_ptr()
            tensors[name] = value.clone() if storage in seen else value
            seen.add(storage)
        facts = json.dumps(dict(self.facts), sort_keys=True)
        data: bytes = safetensors.torch.save(tensors, metadata={"nearkin": facts})
        return data

    @classmethod
    def from_bytes(cls, data: bytes, origin: str = "the data", share: bool = False) -> "State":
        """Read safetensors, and verify the checksum if there is one.

        Args:
            data: content of the file.
            origin: names the file in errors.
            share: the tensors are views of the data, which is faster for large files; they must not be changed.
        """
        try:
            size = int.from_bytes(data[:8], "little")
            if not 2 <= size <= len(data) - 8:
                raise ValueError(f"a header of {size} bytes in a file of {len(data)}")
            header = data[8 : 8 + size]
            entries = json_object(header, "the header")
            metadata = entries.pop("__metadata__", {})
            known = isinstance(metadata, dict) and (FACTS not in metadata or not set(metadata) - {FACTS, CHECKSUM})
            if not known or not _intact(header, memoryview(data)[8 + size :], CHECKSUM in metadata):
                raise ValueError("its checksum does not match: it was altered after it was written")
            tensors = _views(data, 8 + size, entries) if share else safetensors.torch.load(data)
            facts = json_object(metadata.get(FACTS, "{}"), "the metadata")
        except (DataError, *_BROKEN) as broken:
            reason = " ".join(str(broken).split())[:200]
            raise DataError(
                f"{origin} is not an intact safetensors file ({reason}); write or fetch it again"
            ) from broken
        return cls(tensors, facts, origin)

    def to_file(self) -> bytes:
        """Write as safetensors with a checksum, which `from_bytes` verifies."""
        data = memoryview(self.to_bytes())
        size = int.from_bytes(data[:8], "little")
        header, tensors = bytes(data[8 : 8 + size]).rstrip(b" "), data[8 + size :]
        header = _MARK + _checksum(header, tensors) + b'",' + header.removeprefix(_START)
        header += b" " * (-len(header) % 8)  # safetensors aligns tensors to eight bytes
        return b"".join((len(header).to_bytes(8, "little"), header, tensors))

    def save(self, path: Path) -> None:
        """Write a file durably, with a checksum; a reader sees the old file or the complete new one."""
        write_durably(path, self.to_file())

    @classmethod
    def load(cls, path: Path) -> "State":
        """Read a regular file, and verify its checksum."""
        with open_regular(path) as file:
            try:
                return cls.from_bytes(file.read(), str(path))
            except OSError as error:
                raise unreadable(path, error) from error

    def read(self, kind: type[T]) -> T:
        """Read the facts as a dataclass or a TypedDict; the error names what is missing or of another type."""
        return typed(kind, dict(self.facts), self.origin)

    def section(self, prefix: str) -> dict[str, Tensor]:
        """Tensors whose names start with `prefix/`, without that prefix.

        >>> State({"a/x": torch.ones(1), "b/x": torch.zeros(1)}).section("a")
        {'x': tensor([1.])}
        """
        start = prefix + "/"
        return {name.removeprefix(start): value for name, value in self.tensors.items() if name.startswith(start)}


@contextmanager
def restoring(origin: str) -> Iterator[None]:
    """Turn errors while stored values are restored into a `DataError` that names the file."""
    try:
        yield
    except NearkinError:
        raise
    except _BROKEN as odd:
        reason = " ".join(f"{type(odd).__name__}: {odd}".split())[:200]
        raise DataError(
            f"{origin} does not hold what was expected ({reason}); it is damaged or of another version: "
            f"remove it and run the command again"
        ) from odd


def _checksum(header: bytes, tensors: memoryview) -> bytes:
    digest = hashlib.sha256(header)
    digest.update(tensors)
    return digest.hexdigest().encode()


def _intact(header: bytes, tensors: memoryview, expected: bool) -> bool:
    """Whether the checksum in the header is that of the rest; files of older versions have none."""
    if not header.startswith(_MARK):
        return not expected
    start, end = len(_MARK), len(_MARK) + _DIGITS
    rest = header[end:].rstrip(b" ")
    return rest.startswith(b'",') and _checksum(_START + rest[2:], tensors) == header[start:end]


def _views(data: bytes, start: int, entries: Mapping[str, Any]) -> dict[str, Tensor]:
    """Tensors that share the memory of safetensors whose tensors begin at `start`."""
    tensors = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that bytes are read-only
        for name, entry in entries.items():
            kind, (first, last) = _SHARED[entry["dtype"]], entry["data_offsets"]
            count = (last - first) // kind.itemsize
            flat = torch.frombuffer(data, dtype=kind, count=count, offset=start + first) if count else torch.empty(0)
            tensors[name] = flat.to(kind).reshape(entry["shape"])
    return tensors


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Put `prefix/` before every name; `State.section` is the inverse."""
    return {f"{prefix}/{name}": value for name, value in tensors.items()}


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Detached copies on the CPU, which later changes of the originals do not affect."""
    return {name: torch.clone(value.detach()).cpu() for name, value in tensors.items()}


def change_checkpoints(work: Work[T], change: Callable[[State], State]) -> Work[T]:
    """Yield the events of work; the state of every checkpoint goes through `change`."""

    def changed(event: Event) -> Event:
        return Checkpoint(lambda: change(event.capture())) if isinstance(event, Checkpoint) else event

    return map_events(work, changed)


def add_facts(work: Work[T], facts: Mapping[str, Any]) -> Work[T]:
    """Yield the events of work; its checkpoints hold these facts as well, which say what they belong to."""
    return change_checkpoints(work, lambda state: State(state.tensors, {**state.facts, **facts}))
