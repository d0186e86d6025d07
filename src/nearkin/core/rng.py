"""Independent random generators, each with a name, from one integer seed.

The seed of a stream is a hash of the one seed and the name of the stream. A new stream therefore never changes the
numbers of another, and a loop that uses `at("order", epoch)` can be resumed in the middle without stored state.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Generator, Tensor

from nearkin.core.errors import require


def derived_seed(seed: int, *path: str | int) -> int:
    """Derive a 63-bit seed from an integer and a path of names.

    >>> derived_seed(0, "init") == derived_seed(0, "init")
    True
    >>> len({derived_seed(0, "init"), derived_seed(1, "init"), derived_seed(0, "order"), derived_seed(0, "init", 0)})
    4
    """
    text = "\x1f".join([str(seed), *(f"{type(name).__name__}:{name}" for name in path)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


class Streams:
    """Named generators from one seed.

    `streams["name"]` is a generator that advances as it is used. `streams.at("name", step)` is a new generator that
    depends on the seed and this path only. `streams.child("trial", 3)` are streams with a derived seed.

    >>> a, b = Streams(7), Streams(7)
    >>> bool((torch.randn(3, generator=a["x"]) == torch.randn(3, generator=b["x"])).all())
    True
    >>> state = a.state()
    >>> first = torch.randn(3, generator=a["x"])
    >>> a.restore(state)
    >>> bool((torch.randn(3, generator=a["x"]) == first).all())
    True
    """

    def __init__(self, seed: int) -> None:
        require(isinstance(seed, int) and seed >= 0, f"the seed is {seed!r}, expected an integer >= 0")
        self.seed = seed
        self._live: dict[str, Generator] = {}

    def __getitem__(self, name: str) -> Generator:
        if name not in self._live:
            self._live[name] = self.at(name)
        return self._live[name]

    def at(self, *path: str | int) -> Generator:
        """A new generator that depends on the seed and this path only."""
        return Generator().manual_seed(derived_seed(self.seed, *path))

    def numpy(self, *path: str | int) -> np.random.Generator:
        """Like `at`, as a generator of NumPy."""
        return np.random.default_rng(derived_seed(self.seed, *path))

    def child(self, *path: str | int) -> "Streams":
        """Streams whose seed is derived from this path."""
        return Streams(derived_seed(self.seed, *path))

    def state(self) -> dict[str, Tensor]:
        """States of all generators that were used, as byte tensors, for `restore`."""
        return {name: generator.get_state() for name, generator in self._live.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Return to an earlier state; streams that were not in use then start from their seeds."""
        self._live = {}
        for name, value in state.items():
            self[name].set_state(value)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generator of torch, which constructors and dropout use, for a block; restore it afterwards.

    >>> with seeded(1):
    ...     first = torch.rand(2)
    >>> with seeded(1):
    ...     bool((torch.rand(2) == first).all())
    True
    """
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before)
