r"""The prior's covariance by its products, $K c = Φ (Φ^⊤ c)$, for conjugate gradients on many points.

Features are held if they fit the memory (`held`); else products take passes of the network
(`passes`).

Notation: as in `kernel`; V columns side by side.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from nearkin.core.rng import Streams
from nearkin.transfer.iterative.held import held_features
from nearkin.transfer.iterative.passes import passes
from nearkin.transfer.kernel import Prior

HELD_BYTES = 2**29  # of a kernel that is held
FEATURE_BYTES = 5 * 2**28  # of features that are held
KEPT_BYTES = 2**29  # of graphs that stay in memory between products
PIVOTS_AT_ONCE = 64


class Products(Protocol):
    """Products with the features Φ `[R, D]` of some points."""

    def told(self) -> str:
        """How they are made, in words."""
        ...

    def pull(self, columns: Tensor, quick: bool = False) -> Tensor:
        r"""$Φ^⊤$ times `[R, V]`: `[D, V]`; may round to float32 if `quick`."""
        ...

    def push(self, weights: Tensor, quick: bool = False) -> Tensor:
        """Φ times `[D, V]`: `[R, V]`; may round to float32 if `quick`."""
        ...

    def columns(self, samples: Tensor) -> Tensor:
        """The kernel of all samples with some of them, given by numbers in rising order."""
        ...

    def diagonal(self) -> Tensor:
        """Of the kernel, `[R]`."""
        ...


def products(prior: Prior, x: Tensor) -> Products:
    """Products with the features of some points, the quickest that the memory allows."""
    held = held_features(prior, x, FEATURE_BYTES)
    return passes(prior, x, KEPT_BYTES) if held is None else held


@dataclass(frozen=True, eq=False)
class LowRank:
    r"""A factor with $L L^⊤$ near K and never above it.

    Attributes:
        factor: L `[R, V]`.
        pivots: the rows it was made from `[S]`, S ≥ V.
        left: what is left of the diagonal `[R]`.
    """

    factor: Tensor
    pivots: Tensor
    left: Tensor


@dataclass(frozen=True, eq=False)
class Covariance:
    """A prior's covariance K `[R, R]` on some points.

    Attributes:
        prior: the network and its scales.
        x: `[N, *input_shape]`.
        rows: R.
        held: the matrix itself, if it fits.
        seed: of pivots.

    >>> from nearkin.transfer.hyper import Hyper
    >>> from nearkin.transfer.linearized import linearize
    >>> prior = Prior(linearize(torch.nn.Linear(1, 1)), Hyper(scale=3.0))
    >>> covariance(prior, torch.tensor([[1.0], [2.0]])).times(torch.tensor([[1.0], [0.0]]).double()).flatten()
    tensor([6., 9.], dtype=torch.float64)
    """

    prior: Prior
    x: Tensor
    rows: int
    held: Tensor | None = None
    seed: int = 0

    @cached_property
    def features(self) -> Products:
        """Products with Φ."""
        return products(self.prior, self.x)

    @property
    def each(self) -> int:
        """Rows of one sample."""
        return self.rows // len(self.x)

    def told(self) -> str:
        """How products are made, in words."""
        return self.features.told() if self.held is None else "the kernel held in memory"

    def times(self, columns: Tensor, quick: bool = False) -> Tensor:
        """K times `[R, V]`; may round to float32 if `quick`."""
        if self.held is not None:
            return self.held @ columns
        return self.features.push(self.features.pull(columns, quick), quick)

    def columns(self, rows: Tensor) -> Tensor:
        """K `[R, V]` at the numbers of some rows `[V]`."""
        if self.held is not None:
            return self.held[:, rows]
        samples, places = (rows // self.each).unique(return_inverse=True)
        return self.features.columns(samples)[:, places * self.each + rows % self.each]

    def block(self, samples: Tensor) -> Tensor:
        """K of some samples with each other."""
        if self.held is None:
            return self.prior.kernel(self.x[samples])
        rows = sample_rows(samples, self.each)
        return self.held[rows][:, rows]

    def diagonal(self) -> Tensor:
        """`[R]`."""
        return self.features.diagonal() if self.held is None else self.held.diagonal()

    def low_rank(self, rank: int, noise: Tensor | None = None, enough: float = 0.0) -> LowRank:
        r"""A factor of at most that rank, or of so many columns that $\sum_i (K - L L^⊤)_{ii} / V_i$ is `enough`.

        Pivots are drawn by what is left of the diagonal, some at a time (Chen et al. 2022), so that columns of K are
        made by few passes.
        """
        diagonal, rng = self.diagonal(), Streams(self.seed).at("pivots")
        most, total = min(rank, self.rows), float(diagonal.sum())
        weigh = torch.ones_like(diagonal) if noise is None else noise.reciprocal()
        factor, size, left = diagonal.new_empty(self.rows, most), 0, diagonal.clone()
        taken: list[Tensor] = []
        while size < most and float(left.sum()) > 1e-12 * total and float(left @ weigh) > enough:
            count = min(PIVOTS_AT_ONCE, most - size, int((left > 0).sum()))
            pivots = torch.multinomial(left, count, generator=rng)
            found = factor[:, :size]
            fresh = self.columns(pivots) - found @ found[pivots].t()
            values, vectors = torch.linalg.eigh((fresh[pivots] + fresh[pivots].t()) / 2)
            fit = values > 1e-10 * values[-1]
            more = fresh @ (vectors[:, fit] / values[fit].sqrt())
            factor[:, size : size + more.shape[1]] = more
            size += more.shape[1]
            left = (left - more.square().sum(1)).clamp_min(0)
            left[pivots] = 0
            taken.append(pivots)
        return LowRank(factor[:, :size], torch.cat(taken) if taken else torch.zeros(0).long(), left)


def sample_rows(samples: Tensor, each: int) -> Tensor:
    """Numbers of the rows of some samples.

    >>> sample_rows(torch.tensor([0, 2]), 2).tolist()
    [0, 1, 4, 5]
    """
    return (samples[:, None] * each + torch.arange(each)).flatten()


def covariance(prior: Prior, x: Tensor, seed: int = 0, hold: bool = True) -> Covariance:
    """The prior's covariance on some points.

    Args:
        prior: the network and its scales.
        x: `[N, *input_shape]`.
        seed: of pivots.
        hold: whether the matrix is held if it fits.
    """
    x = prior.linearized.inputs(x)
    rows = len(x) * prior.rows_each(prior.linearized.num_outputs(x))
    return Covariance(prior, x, rows, prior.kernel(x) if hold and rows**2 * 8 <= HELD_BYTES else None, seed)
