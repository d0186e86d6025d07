"""Tensors with a few plain facts beside them: what a checkpoint, a blob and a model file hold. Never a pickle.

As bytes it is a safetensors file with one metadata entry, `nearkin`, of JSON with sorted keys: the same state gives
the same bytes, so that blobs can be named by their content. A file that is saved by its path holds a second entry,
`sha256`, the checksum of everything else in it; a blob has its checksum in its name.
"""

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from nearkin.core.errors import DataError, NearkinError
from nearkin.core.events import Checkpoint, Work
from nearkin.core.files import durable_file
from nearkin.core.plain import CHECKSUM, json_object, typed

T = TypeVar("T")

FACTS = "nearkin"
_START = b'{"__metadata__":{'  # of every header that we write
_MARK = _START + f'"{CHECKSUM}":"'.encode()
_DIGITS = 64  # of a checksum
_BROKEN = (
    safetensors.SafetensorError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
"""What torch, safetensors and our own code raise when stored values are not what they should be."""


@dataclass(frozen=True)
class State:
    """Named tensors and JSON facts; `origin` names the file in errors.

    >>> state = State({"w": torch.ones(2)}, {"step": 3})
    >>> again = State.from_bytes(state.to_bytes())
    >>> again.facts, again.tensors["w"].tolist()
    ({'step': 3}, [1.0, 1.0])
    """

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any] = field(default_factory=dict)
    origin: str = field(default="the stored state", compare=False, repr=False)

    def to_bytes(self) -> bytes:
        """The safetensors form; equal states give equal bytes."""
        seen: set[int] = set()
        plain: dict[str, Tensor] = {}
        for name, tensor in self.tensors.items():
            value = tensor.detach().cpu().contiguous()
            storage = value.untyped_storage().data_ptr()
            plain[name] = value.clone() if storage in seen else value
            seen.add(storage)
        facts = json.dumps(dict(self.facts), sort_keys=True)
        data: bytes = safetensors.torch.save(plain, metadata={"nearkin": facts})
        return data

    @classmethod
    def from_bytes(cls, data: bytes, origin: str = "the data") -> "State":
        """Read the safetensors form, verified where it holds a checksum; `origin` names it in the error."""
        try:
            size = int.from_bytes(data[:8], "little")
            if not 2 <= size <= len(data) - 8:
                raise ValueError(f"a header of {size} bytes in a file of {len(data)}")
            header = data[8 : 8 + size]
            metadata = json_object(header, "the header").get("__metadata__", {})
            known = isinstance(metadata, dict) and (FACTS not in metadata or not set(metadata) - {FACTS, CHECKSUM})
            if not known or not _intact(header, memoryview(data)[8 + size :], CHECKSUM in metadata):
                raise ValueError("its checksum does not match: it was altered after it was written")
            tensors = safetensors.torch.load(data)
            facts = json_object(metadata.get(FACTS, "{}"), "the metadata")
        except (DataError, *_BROKEN) as broken:
            reason = " ".join(str(broken).split())[:200]
            raise DataError(f"{origin} is not a whole safetensors file ({reason}); write or fetch it again") from broken
        return cls(tensors, facts, origin)

    def save(self, path: Path) -> None:
        """Write durably, with a checksum: a reader sees the old file or the new one, never a part."""
        data = memoryview(self.to_bytes())
        size = int.from_bytes(data[:8], "little")
        header, tensors = bytes(data[8 : 8 + size]).rstrip(b" "), data[8 + size :]
        header = _MARK + _checksum(header, tensors) + b'",' + header.removeprefix(_START)
        header += b" " * (-len(header) % 8)  # safetensors keeps tensors at multiples of eight
        with durable_file(path) as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.write(tensors)

    @classmethod
    def load(cls, path: Path) -> "State":
        """Read a state from a file."""
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise DataError(f"cannot read {path}: it is not a regular file; check the path")
                data = file.read()
        except (OSError, ValueError) as missing:
            reason = getattr(missing, "strerror", None) or missing
            raise DataError(f"cannot read {path}: {reason}; check the path") from missing
        return cls.from_bytes(data, str(path))

    def read(self, kind: type[T]) -> T:
        """The facts, read as a dataclass or a TypedDict; what is missing or of another type is named in the error."""
        return typed(kind, dict(self.facts), self.origin)

    def section(self, prefix: str) -> dict[str, Tensor]:
        """Tensors below `prefix/`, without the prefix.

        >>> State({"a/x": torch.ones(1), "b/x": torch.zeros(1)}).section("a")
        {'x': tensor([1.])}
        """
        start = prefix + "/"
        return {name.removeprefix(start): value for name, value in self.tensors.items() if name.startswith(start)}


@contextmanager
def restoring(origin: str) -> Iterator[None]:
    """Turn whatever fails while stored values are put into place into one line that names the file."""
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
    found = hashlib.sha256(header)
    found.update(tensors)
    return found.hexdigest().encode()


def _intact(header: bytes, tensors: memoryview, expected: bool) -> bool:
    """Whether the checksum in the header is that of the rest; a file of an older version has none."""
    if not header.startswith(_MARK):
        return not expected
    start, end = len(_MARK), len(_MARK) + _DIGITS
    rest = header[end:].rstrip(b" ")
    return rest.startswith(b'",') and _checksum(_START + rest[2:], tensors) == header[start:end]


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `State.section`: every name put below `prefix/`."""
    return {f"{prefix}/{name}": value for name, value in tensors.items()}


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Detached copies on the CPU, safe from what happens to the originals."""
    return {name: torch.clone(value.detach()).cpu() for name, value in tensors.items()}


def signed(work: Work[T], facts: Mapping[str, Any]) -> Work[T]:
    """The same work; its checkpoints carry these facts as well, which say what they belong to."""

    def with_facts(moment: Checkpoint) -> Checkpoint:
        def capture() -> State:
            state = moment.capture()
            return State(state.tensors, {**state.facts, **facts})

        return Checkpoint(capture)

    try:
        while True:
            try:
                event = next(work)
            except StopIteration as end:
                return cast(T, end.value)
            yield with_facts(event) if isinstance(event, Checkpoint) else event
    finally:
        work.close()
