"""A linearized network that computes a kernel once for several posteriors that differ in hyper-parameters alone."""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nearkin.core.events import Work, operation
from nearkin.fisher.tangent import MEMORY_BYTES
from nearkin.transfer.linearized import Linearized

KEPT_BYTES = 2**27


@dataclass(frozen=True, eq=False)
class Shared(Linearized):
    """The same network; kernels of inputs seen before are taken from memory, the oldest forgotten beyond a bound.

    >>> from nearkin.transfer.linearized import linearize
    >>> flat = linearize(torch.nn.Linear(2, 1))
    >>> shared = Shared.of(flat)
    >>> bool((shared.kernel(torch.eye(2)) == flat.kernel(torch.eye(2))).all()), len(shared.seen)
    (True, 1)
    """

    seen: dict[tuple[object, ...], Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, linearized: Linearized) -> "Shared":
        """With nothing in memory."""
        return cls(linearized.model, linearized.names, linearized.outputs)

    @operation
    def kernel(
        self, x: Tensor, x2: Tensor | None = None, names: Collection[str] | None = None, memory: int = MEMORY_BYTES
    ) -> Work[Tensor]:
        """As of `Linearized`, from memory where it can."""
        key = (_digest(x), None if x2 is None else _digest(x2), None if names is None else tuple(names))
        if key not in self.seen:
            self.seen[key] = yield from super().kernel.work(x, x2, names, memory)
        found = self.seen[key].clone()  # those who ask scale it in place
        while sum(one.numel() * one.element_size() for one in self.seen.values()) > KEPT_BYTES:
            del self.seen[next(iter(self.seen))]
        return found


def _digest(x: Tensor) -> str:
    raw = x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.blake2b(raw + repr((x.shape, x.dtype)).encode(), digest_size=16).hexdigest()
