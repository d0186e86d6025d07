r"""The prior's covariance: the kernel of a linearized network with its scales, $s \sum_l s_l K_l$.

Notation: N and M samples; R and S rows of the kernel, which are samples, or samples times outputs for
`outputs="all"`; D features, Φ `[R, D]` with $K = Φ Φ^⊤$.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from nearkin.core.events import Work, operation
from nearkin.transfer.hyper import Hyper
from nearkin.transfer.linearized import Linearized

NUMBERS = 2**24  # in one block of rows: 128 MiB in float64


@dataclass(frozen=True, eq=False)
class Prior:
    """A linearized network and its scales.

    Attributes:
        linearized: the network.
        hyper: the scales; noise and mean are not used here.

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
    def _names_by_scale(self) -> dict[float, list[str]]:
        names_by_scale: dict[float, list[str]] = {}
        for layer, names in self.linearized.layers.items():
            names_by_scale.setdefault(self.hyper.scale * self.hyper.layers.get(layer, 1.0), []).extend(names)
        return names_by_scale

    @operation
    def kernel(self, x: Tensor, x2: Tensor | None = None) -> Work[Tensor]:
        """The covariance `[R, S]` of all rows of `x` with all rows of `x2` (default: `x`)."""
        total: Tensor | None = None
        for scale, names in self._names_by_scale.items():
            kernel = yield from self.linearized.kernel.work(x, x2, names)
            total = kernel.mul_(scale) if total is None else total.add_(kernel, alpha=scale)
        assert total is not None
        return total

    def diagonal(self, x: Tensor) -> Tensor:
        """Prior variances of the rows `[R]`."""
        parts = (scale * self.linearized.diagonal(x, names) for scale, names in self._names_by_scale.items())
        return sum(parts, torch.zeros(()).double())

    def weight_scales(self) -> Tensor:
        """Prior variances of the single weights `[P]`."""
        scales = {name: scale for scale, names in self._names_by_scale.items() for name in names}
        return torch.cat(
            [torch.full_like(v, scales[n], dtype=torch.float64).flatten() for n, v in self.linearized.params.items()]
        )

    def features(self, x: Tensor) -> Tensor:
        """Φ `[R, D]` with its scales."""
        raw, roots = self.linearized.features(x), self.weight_scales().sqrt().to(self.linearized.inputs(x).device)
        return raw * roots.repeat(raw.shape[1] // len(roots))

    def num_features(self, num_outputs: int) -> int:
        """D, for a network with this number of outputs."""
        return self.linearized.num_weights * (num_outputs if self.linearized.outputs == "sum" else 1)

    def rows_each(self, num_outputs: int) -> int:
        """Rows of the kernel for one sample."""
        return num_outputs if self.linearized.outputs == "all" else 1


@dataclass(frozen=True, eq=False)
class SolvedProcess:
    """Base class of the solved Gaussian processes, which are stored by name.

    Attributes:
        prior: the network and its scales.
    """

    STORED: ClassVar[tuple[str, ...]] = ()
    prior: Prior

    def tensors(self) -> dict[str, Tensor]:
        """The stored fields; single numbers are tensors without axes."""
        values = {name: getattr(self, name) for name in self.STORED}
        return {
            name: torch.tensor(value).double() if isinstance(value, float) else torch.as_tensor(value)
            for name, value in values.items()
        }

    @classmethod
    def restored(cls, prior: Prior, tensors: Mapping[str, Tensor]) -> Self:
        """The inverse of `tensors`."""
        values = {name: tensors[name] for name in cls.STORED}
        return cls(prior, **{name: value if value.dim() else value.item() for name, value in values.items()})


def blocks(x: Tensor, width: int) -> Iterator[Tensor]:
    """Samples in blocks whose rows of this width fit into memory.

    >>> [len(block) for block in blocks(torch.zeros(5, 1), NUMBERS // 2)]
    [2, 2, 1]
    """
    yield from x.split(max(1, NUMBERS // max(1, width)))


def moments_by_block(
    moments: Callable[[Tensor], tuple[Tensor, Tensor]], x: Tensor, width: int
) -> tuple[Tensor, Tensor]:
    """Means `[F, S, T]` and variances `[F, S]` of samples, computed block by block."""
    means, variances = zip(*(moments(block) for block in blocks(x, width)), strict=True)
    return torch.cat(means, 1), torch.cat(variances, 1)
