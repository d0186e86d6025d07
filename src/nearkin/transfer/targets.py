"""Targets and noise as the rows of a Gaussian process, and predictions back in the shape of the targets.

Notation: N samples, K targets, C outputs of the network, R rows of the kernel, T columns that share one covariance, F
covariances. With `outputs="all"` the N·C rows are one column (F = T = 1). Otherwise every target is a column: all
columns share one covariance (F = 1, T = K), unless their known noise differs (F = K, T = 1).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from nearkin.core.errors import DataError, MismatchError, require
from nearkin.fisher.tangent import Outputs
from nearkin.transfer.hyper import Hyper, Mean
from nearkin.transfer.linearized import Linearized, chosen_outputs, require_finite


@dataclass(frozen=True, eq=False)
class PointRows:
    """Training points as rows of a Gaussian process.

    Attributes:
        x: inputs `[N, *input_shape]`.
        noise: variances of the observations V `[F, R]`.
        basis: the constants in every row H `[R, Q]`.
        targets: y `[F, R, T]`.
    """

    x: Tensor
    noise: Tensor
    basis: Tensor
    targets: Tensor

    @property
    def values(self) -> Tensor:
        """Z = (H, y) `[F, R, Q + T]`."""
        return torch.cat([self.basis.expand(len(self.noise), -1, -1), self.targets], 2)

    def joined(self, other: "PointRows") -> "PointRows":
        """These rows followed by others."""
        return PointRows(
            torch.cat([self.x, other.x]),
            torch.cat([self.noise, other.noise], 1),
            torch.cat([self.basis, other.basis]),
            torch.cat([self.targets, other.targets], 1),
        )

    def require_noise(self, method: str) -> None:
        """Refuse variances of 0, where the method divides by them."""
        require(bool((self.noise > 0).all()), f"got a noise of 0, {method} needs noise above 0; raise it", DataError)


@dataclass(frozen=True)
class RowLayout:
    """How targets are arranged in the rows of a kernel.

    Attributes:
        outputs: of the linearized network.
        num_outputs: C.
        num_targets: K.
        apart: whether each target has its own covariance.

    >>> layout = RowLayout("all", 2, 2)
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
        """Whether each output of a sample is a row."""
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
        return rows.reshape(-1, self.num_targets) if self.joint else rows.t().expand(-1, self.num_targets)

    def noise_rows(self, noise: Tensor) -> Tensor:
        """Known variances `[N, 1]` or `[N, K]` as those of the rows `[F, R]`."""
        return noise.expand(-1, self.num_targets).reshape(1, -1) if self.joint else noise.t()

    def basis(self, num_samples: int, mean: Mean) -> Tensor:
        """H `[R, Q]`, the constants in every row: none, one, or one for each output."""
        size = self.num_outputs if self.joint else 1
        if mean != "constant":
            return torch.zeros(num_samples * size, 0).double()
        return torch.eye(size).double().repeat(num_samples, 1)

    def network(self, outputs: Tensor) -> Tensor:
        """The network's outputs `[N, C]` as means of the targets `[N, K]`."""
        require(
            self.has_network_mean(),
            f"mean='network' needs as many targets as outputs; there are {self.num_targets} targets and "
            f"{self.num_outputs} outputs; use mean='constant'",
            MismatchError,
        )
        return outputs[:, [self.outputs]] if isinstance(self.outputs, int) else outputs

    def points(self, linearized: Linearized, hyper: Hyper, x: Tensor, y: Tensor, known: Tensor) -> PointRows:
        """Rows of samples with targets `[N, K]` and known variances `[N, 1]` or `[N, K]`."""
        if hyper.mean == "network":
            y = y - self.network(linearized.mean(x))
        return PointRows(x, self.noise_rows(known) + hyper.noise, self.basis(len(x), hyper.mean), self.rows(y))


def checked_targets(y: Tensor, num_samples: int) -> Tensor:
    """Targets `[N, K]` in float64, from `[N]` or `[N, K]`; refused if some are not finite."""
    require(isinstance(y, Tensor), f"targets are a tensor [N] or [N, K], got a {type(y).__name__}", DataError)
    targets = (y[:, None] if y.dim() == 1 else y).detach().double()
    require(
        targets.dim() == 2 and len(targets) == num_samples and targets.shape[1] > 0,
        f"targets have shape {tuple(y.shape)}, expected ({num_samples},) or ({num_samples}, K)",
        MismatchError,
    )
    require_finite(targets, "the targets are", "fix or remove this sample")
    return targets


def checked_noise(noise: Tensor | None, num_samples: int, num_targets: int) -> Tensor:
    """Known variances `[N, 1]` or `[N, K]` in float64; zeros if None."""
    if noise is None:
        return torch.zeros(num_samples, 1).double()
    require(isinstance(noise, Tensor), f"noise is a tensor of variances, got a {type(noise).__name__}", DataError)
    variances = (noise[:, None] if noise.dim() == 1 else noise).detach().double()
    require(
        variances.dim() == 2 and len(variances) == num_samples and variances.shape[1] in (1, num_targets),
        f"noise has shape {tuple(noise.shape)}, expected ({num_samples},) or ({num_samples}, {num_targets})",
        MismatchError,
    )
    valid = variances.isfinite() & (variances >= 0)
    where = int((~valid.all(1)).int().argmax())
    require(
        bool(valid.all()),
        f"got the noise {variances[where].tolist()} at sample {where}, expected variances, finite and >= 0; fix it",
        DataError,
    )
    return variances


def row_layout(linearized: Linearized, x: Tensor, targets: Tensor, noise: Tensor) -> RowLayout:
    """The layout of targets `[N, K]` with known noise `[N, 1]` or `[N, K]`."""
    apart = linearized.outputs != "all" and noise.shape[1] > 1
    return RowLayout(linearized.outputs, linearized.num_outputs(x), targets.shape[1], apart)
