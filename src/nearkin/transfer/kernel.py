r"""The prior's covariance: the kernel of a linearized network with its scales, $s \sum_l s_l K_l$.

Notation: N and M samples; R and S rows of the kernel, which are samples, or samples times outputs for
`outputs="all"`; D features, Φ `[R, D]` with $K = Φ Φ^⊤$.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from nearkin.core.events import Work, operation
from nearkin.transfer.hyper import Hyper
from nearkin.transfer.linearized import Linearized

NUMBERS = 2**24  # of a block of rows: 128 MiB in float64


@dataclass(frozen=True, eq=False)
class Prior:
    """A linearized network and its scales.

    Attributes:
        linearized: the network.
        hyper: the scales; noise and mean are not looked at.

    >>> from nearkin.transfer.linearized import linearize
    >>> prior = Prior(linearize(torch.nn.Linear(1, 1)), Hyper(scale=3.0))
    >>> prior.kernel(torch.tensor([[1.0], [2.0]]))
    tensor([[ 6.,  9.],
            [ 9., 15.]], dtype=torch.float64)
    """

    linearized: Linearized
    hyper: Hyper

    def __post_init__(self) -> None:
        self.hyper.require_layers(self.linearized.layers)

    @property
    def _parts(self) -> dict[float, list[str]]:
        """Weights that share a scale, by that scale."""
        found: dict[float, list[str]] = {}
        for layer, names in self.linearized.layers.items():
            found.setdefault(self.hyper.scale * self.hyper.layers.get(layer, 1.0), []).extend(names)
        return found

    @operation
    def kernel(self, x: Tensor, x2: Tensor | None = None) -> Work[Tensor]:
        """`[R, S]`."""
        total: Tensor | None = None
        for scale, names in self._parts.items():
            found = yield from self.linearized.kernel.work(x, x2, names)
            total = found.mul_(scale) if total is None else total.add_(found, alpha=scale)
        assert total is not None
        return total

    def diagonal(self, x: Tensor) -> Tensor:
        """`[R]`."""
        return sum((s * self.linearized.diagonal(x, n) for s, n in self._parts.items()), torch.zeros(()).double())

    def weight_scales(self) -> Tensor:
        """Prior variances of the single weights `[P]`."""
        parts = {name: scale for scale, names in self._parts.items() for name in names}
        return torch.cat(
            [torch.full_like(v, parts[n], dtype=torch.float64).flatten() for n, v in self.linearized.params.items()]
        )

    def features(self, x: Tensor) -> Tensor:
        """Φ `[R, D]` with its scales."""
        raw, roots = self.linearized.features(x), self.weight_scales().sqrt().to(self.linearized.inputs(x).device)
        return raw * roots.repeat(raw.shape[1] // len(roots))

    def num_features(self, num_outputs: int) -> int:
        """D."""
        return self.linearized.num_weights * (num_outputs if self.linearized.outputs == "sum" else 1)

    def rows_each(self, num_outputs: int) -> int:
        """Rows of the kernel that one sample has."""
        return num_outputs if self.linearized.outputs == "all" else 1


def blocks(x: Tensor, width: int) -> Iterator[Tensor]:
    """Samples in blocks whose rows of that width stay within memory.

    >>> [len(part) for part in blocks(torch.zeros(5, 1), NUMBERS // 2)]
    [2, 2, 1]
    """
    yield from x.split(max(1, NUMBERS // max(1, width)))
