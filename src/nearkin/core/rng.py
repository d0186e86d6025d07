"""One integer seed in, independent named generators out.

A stream's seed is a hash of the one seed and the stream's name, so asking for a new stream never shifts another,
and a loop that asks for `at("order", epoch)` needs no stored state to go on in the middle.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Generator, Tensor

from nearkin.core.errors import require


def derived_seed(seed: int, *path: str | int) -> int:
    """A 63-bit seed from one integer and a path of names.

    >>> derived_seed(0, "init") == derived_seed(0, "init")
    True
    >>> len({derived_seed(0, "init"), derived_seed(1, "init"), derived_seed(0, "order"), derived_seed(0, "init", 0)})
    4
    """
    text = "\x1f".join([str(seed), *(f"{type(part).__name__}:{part}" for part in path)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


class Streams:
    """Named `torch.Generator`s from one seed.

    `streams["name"]` is one generator that advances as it is used; `streams.at("name", step)` is a fresh one that
    depends on nothing but its path; `streams.child("trial", 3)` is a whole family below a name.

    >>> a, b = Streams(7), Streams(7)
    >>> bool((torch.randn(3, generator=a["x"]) == torch.randn(3, generator=b["x"])).all())
    True
    >>> kept = a.state()
    >>> first = torch.randn(3, generator=a["x"])
    >>> a.restore(kept)
    >>> bool((torch.randn(3, generator=a["x"]) == first).all())
    True
    """

    def __init__(self, seed: int) -> None:
        require(isinstance(seed, int) and seed >= 0, f"a seed is an integer >= 0, got {seed!r}")
        self.seed = seed
        self._live: dict[str, Generator] = {}

    def __getitem__(self, name: str) -> Generator:
        if name not in self._live:
            self._live[name] = self.at(name)
        return self._live[name]

    def at(self, *path: str | int) -> Generator:
        """A fresh generator that depends on the seed and this path alone."""
        return Generator().manual_seed(derived_seed(self.seed, *path))

    def numpy(self, *path: str | int) -> np.random.Generator:
        """The same for NumPy and scikit-learn."""
        return np.random.default_rng(derived_seed(self.seed, *path))

    def child(self, *path: str | int) -> "Streams":
        """A family of streams of its own below this path."""
        return Streams(derived_seed(self.seed, *path))

    def state(self) -> dict[str, Tensor]:
        """State of every generator that was drawn from, as byte tensors; `restore` takes it back."""
        return {name: generator.get_state() for name, generator in self._live.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go back to a kept state; streams that were not drawn from then start anew."""
        self._live = {}
        for name, value in state.items():
            self[name].set_state(value)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global generator for a block (constructors and dropout draw from it) and put it back after.

    >>> with seeded(1):
    ...     first = torch.rand(2)
    >>> with seeded(1):
    ...     bool((torch.rand(2) == first).all())
    True
    """
    kept = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(kept)
