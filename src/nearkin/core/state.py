"""Tensors with a few plain facts beside them: what a checkpoint, a blob and a model file hold. Never a pickle.

On disk it is a safetensors file with one metadata entry, `nearkin`, of JSON with sorted keys: the same state gives
the same bytes, so that blobs can be named by their content.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from nearkin.core.errors import DataError
from nearkin.core.files import write_durably


@dataclass(frozen=True)
class State:
    """Named tensors and JSON facts.

    >>> state = State({"w": torch.ones(2)}, {"step": 3})
    >>> again = State.from_bytes(state.to_bytes())
    >>> again.facts, again.tensors["w"].tolist()
    ({'step': 3}, [1.0, 1.0])
    """

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any] = field(default_factory=dict)

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
        """Read the safetensors form; `origin` names it in the error."""
        try:
            tensors = safetensors.torch.load(data)
            size = int.from_bytes(data[:8], "little")
            header = json.loads(data[8 : 8 + size])
            facts = json.loads(header.get("__metadata__", {}).get("nearkin", "{}"))
        except (safetensors.SafetensorError, ValueError, KeyError) as broken:
            raise DataError(f"{origin} is not a whole safetensors file ({broken}); write or fetch it again") from broken
        return cls(tensors, facts)

    def save(self, path: Path) -> None:
        """Write durably: a reader sees the old file or the new one, never a part."""
        write_durably(path, self.to_bytes())

    @classmethod
    def load(cls, path: Path) -> "State":
        """Read a state from a file."""
        try:
            data = path.read_bytes()
        except OSError as missing:
            raise DataError(f"cannot read {path}: {missing.strerror or missing}; check the path") from missing
        return cls.from_bytes(data, str(path))

    def section(self, prefix: str) -> dict[str, Tensor]:
        """Tensors below `prefix/`, without the prefix.

        >>> State({"a/x": torch.ones(1), "b/x": torch.zeros(1)}).section("a")
        {'x': tensor([1.])}
        """
        start = prefix + "/"
        return {name.removeprefix(start): value for name, value in self.tensors.items() if name.startswith(start)}


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `State.section`: every name put below `prefix/`."""
    return {f"{prefix}/{name}": value for name, value in tensors.items()}


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Detached copies on the CPU, safe from what happens to the originals."""
    return {name: torch.clone(value.detach()).cpu() for name, value in tensors.items()}
