"""Targets and noise as the rows of a Gaussian process, and predictions back in the shape of the targets.

Notation: N samples, K targets, C outputs of the network, R rows of the kernel, T columns that share one covariance, F
covariances side by side. With `outputs="all"` the N·C rows are one column (F = T = 1). Else every target is a column:
all share one covariance (F = 1, T = K), unless their known noise differs (F = K, T = 1).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from nearkin.core.errors import DataError, MismatchError, require
from nearkin.fisher.tangent import Outputs
from nearkin.transfer.hyper import Mean
from nearkin.transfer.linearized import Linearized, chosen_outputs


@dataclass(frozen=True)
class Layout:
    """How targets lie in the rows of a kernel.

    Attributes:
        outputs: of the linearized network.
        num_outputs: C.
        num_targets: K.
        apart: whether each target has a covariance of its own.

    >>> layout = Layout("all", 2, 2)
    >>> layout.rows(torch.tensor([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [[[1.0], [2.0], [3.0], [4.0]]]
    """

    outputs: Outputs
    num_outputs: int
    num_targets: int
    apart: bool = False

    def __post_init__(self) -> None:
        chosen_outputs(self.outputs, self.num_outputs)
        require(
            self.outputs != "all" or self.num_targets == self.num_outputs,
            f"outputs='all' gives {self.num_outputs} outputs, the targets have {self.num_targets} columns; use "
            f"outputs='sum', which takes any number",
            MismatchError,
        )

    @property
    def joint(self) -> bool:
        """Whether outputs are rows."""
        return self.outputs == "all"

    def has_network_mean(self) -> bool:
        """Whether the network's outputs can be the targets' mean."""
        return self.num_targets == (1 if isinstance(self.outputs, int) else self.num_outputs)

    def rows(self, values: Tensor) -> Tensor:
        """`[N, K]` as `[F, R, T]`."""
        if self.joint:
            return values.reshape(1, -1, 1)
        return values.t()[:, :, None] if self.apart else values[None]

    def back(self, rows: Tensor) -> Tensor:
        """The inverse of `rows`."""
        if self.joint:
            return rows.reshape(-1, self.num_targets)
        return rows[:, :, 0].t() if self.apart else rows[0]

    def spread(self, rows: Tensor) -> Tensor:
        """Numbers of rows `[F, R]` that all T columns share, as `[N, K]`."""
        if self.joint:
            return rows.reshape(-1, self.num_targets)
        return rows.t().expand(-1, self.num_targets)

    def basis(self, num_samples: int, mean: Mean) -> Tensor:
        """H `[R, Q]`, the constants in every row: none, one, or one an output."""
        if mean != "constant":
            return torch.zeros(num_samples * (self.num_outputs if self.joint else 1), 0).double()
        return torch.eye(self.num_outputs if self.joint else 1).double().repeat(num_samples, 1)

    def network(self, outputs: Tensor) -> Tensor:
        """The network's outputs `[N, C]` as means of the targets `[N, K]`."""
        require(
            self.has_network_mean(),
            f"mean='network' needs as many targets as outputs; there are {self.num_targets} targets and "
            f"{self.num_outputs} outputs; use mean='constant'",
            MismatchError,
        )
        return outputs[:, [self.outputs]] if isinstance(self.outputs, int) else outputs


def checked_targets(y: Tensor, num_samples: int) -> Tensor:
    """Targets `[N, K]` in float64, from `[N]` or `[N, K]`; refused if some are not finite."""
    require(isinstance(y, Tensor), f"targets are a tensor [N] or [N, K], got a {type(y).__name__}", DataError)
    found = (y[:, None] if y.dim() == 1 else y).detach().double()
    require(
        found.dim() == 2 and len(found) == num_samples and found.shape[1] > 0,
        f"targets have shape {tuple(y.shape)}, expected ({num_samples},) or ({num_samples}, K)",
        MismatchError,
    )
    broken = ~found.isfinite().all(1)
    require(
        not bool(broken.any()),
        f"the targets are not finite at sample {int(broken.int().argmax())}; mend the data or leave it out",
        DataError,
    )
    return found


def checked_noise(noise: Tensor | None, num_samples: int, num_targets: int) -> Tensor:
    """Known variances `[N, 1]` or `[N, K]` in float64, zeros where none are known."""
    if noise is None:
        return torch.zeros(num_samples, 1).double()
    require(isinstance(noise, Tensor), f"noise is a tensor of variances, got a {type(noise).__name__}", DataError)
    found = (noise[:, None] if noise.dim() == 1 else noise).detach().double()
    require(
        found.dim() == 2 and len(found) == num_samples and found.shape[1] in (1, num_targets),
        f"noise has shape {tuple(noise.shape)}, expected ({num_samples},) or ({num_samples}, {num_targets})",
        MismatchError,
    )
    fit = found.isfinite() & (found >= 0)
    where = int((~fit.all(1)).int().argmax())
    require(bool(fit.all()), f"noise is variances, finite and >= 0; got {found[where].tolist()} at {where}", DataError)
    return found


def layout_of(linearized: Linearized, x: Tensor, targets: Tensor, noise: Tensor) -> Layout:
    """The layout of targets `[N, K]` with known noise `[N, 1]` or `[N, K]`."""
    num_targets = targets.shape[1]
    apart = linearized.outputs != "all" and noise.shape[1] > 1
    return Layout(linearized.outputs, linearized.num_outputs(x), num_targets, apart)


def noise_rows(layout: Layout, noise: Tensor) -> Tensor:
    """Known variances `[N, 1]` or `[N, K]` as those of the rows `[F, R]`."""
    if layout.joint:
        return noise.expand(-1, layout.num_targets).reshape(1, -1)
    return noise.t()
