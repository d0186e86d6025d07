r"""Products with the prior's covariance, $K c = Φ (Φ^⊤ c)$, for conjugate gradients on many points.

Features are held in memory if they fit (`held`); otherwise each product runs the network (`network_passes`).

Notation: as in `kernel`; V columns.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

from nearkin.core.rng import Streams
from nearkin.transfer.iterative.held import HeldFeatures, held_features
from nearkin.transfer.iterative.network_passes import NetworkPasses, network_passes
from nearkin.transfer.kernel import Prior

HELD_BYTES = 2**29  # largest kernel that is held in memory
FEATURE_BYTES = 5 * 2**28  # largest features that are held in memory
KEPT_BYTES = 2**29  # largest autograd graphs that are kept between products
PIVOTS_AT_ONCE = 64


FeatureProducts: TypeAlias = HeldFeatures | NetworkPasses
"""Products with the features Φ of some points: `pull`, `push`, and `columns` and `diagonal` of the kernel."""


def feature_products(prior: Prior, x: Tensor) -> FeatureProducts:
    """Products with the features of points, by the fastest method that fits into memory."""
    held = held_features(prior, x, FEATURE_BYTES)
    return network_passes(prior, x, KEPT_BYTES) if held is None else held


@dataclass(frozen=True, eq=False)
class LowRank:
    r"""A low-rank factor with $L L^⊤ ⪯ K$ near K.

    Attributes:
        factor: L `[R, V]`.
        pivots: the rows it was computed from `[S]`, S ≥ V.
        remainder: the diagonal of $K - L L^⊤$ `[R]`.
    """

    factor: Tensor
    pivots: Tensor
    remainder: Tensor


@dataclass(frozen=True, eq=False)
class Covariance:
    """A prior's covariance K `[R, R]` on some points.

    Attributes:
        prior: the network and its scales.
        x: `[N, *input_shape]`.
        rows: R.
        held: the matrix itself, if it fits into memory.
        seed: of the pivots.

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
    def features(self) -> FeatureProducts:
        """FeatureProducts with Φ."""
        return feature_products(self.prior, self.x)

    @property
    def each(self) -> int:
        """Number of rows of one sample."""
        return self.rows // len(self.x)

    def describe(self) -> str:
        """How products are computed, as text."""
        return self.features.describe() if self.held is None else "the kernel held in memory"

    def times(self, columns: Tensor, quick: bool = False) -> Tensor:
        """K times `[R, V]`; `quick` allows float32."""
        if self.held is not None:
            return self.held @ columns
        return self.features.push(self.features.pull(columns, quick), quick)

    def columns(self, rows: Tensor) -> Tensor:
        """The columns `[R, V]` of K at the given rows `[V]`."""
        if self.held is not None:
            return self.held[:, rows]
        samples, index = (rows // self.each).unique(return_inverse=True)
        return self.features.columns(samples)[:, index * self.each + rows % self.each]

    def block(self, samples: Tensor) -> Tensor:
        """K among some of the samples."""
        if self.held is None:
            return self.prior.kernel(self.x[samples])
        rows = sample_rows(samples, self.each)
        return self.held[rows][:, rows]

    def diagonal(self) -> Tensor:
        """The diagonal of K `[R]`."""
        return self.features.diagonal() if self.held is None else self.held.diagonal()

    def low_rank(self, rank: int, noise: Tensor | None = None, enough: float = 0.0) -> LowRank:
        r"""A factor of at most this rank, or with enough columns that $\sum_i (K - L L^⊤)_{ii} / V_i$ is `enough`.

        Pivots are drawn several at a time with the remaining diagonal as probabilities (Chen et al. 2022), so that few
        passes of the network give all columns of K.
        """
        diagonal, rng = self.diagonal(), Streams(self.seed).at("pivots")
        max_rank, total = min(rank, self.rows), float(diagonal.sum())
        inverse_noise = torch.ones_like(diagonal) if noise is None else noise.reciprocal()
        factor, size, remainder = diagonal.new_empty(self.rows, max_rank), 0, diagonal.clone()
        pivots: list[Tensor] = []
        while size < max_rank and float(remainder.sum()) > 1e-12 * total and float(remainder @ inverse_noise) > enough:
            count = min(PIVOTS_AT_ONCE, max_rank - size, int((remainder > 0).sum()))
            drawn = torch.multinomial(remainder, count, generator=rng)
            previous = factor[:, :size]
            columns = self.columns(drawn) - previous @ previous[drawn].t()
            values, vectors = torch.linalg.eigh((columns[drawn] + columns[drawn].t()) / 2)
            usable = values > 1e-10 * values[-1]
            added = columns @ (vectors[:, usable] / values[usable].sqrt())
            factor[:, size : size + added.shape[1]] = added
            size += added.shape[1]
            remainder = (remainder - added.square().sum(1)).clamp_min(0)
            remainder[drawn] = 0
            pivots.append(drawn)
        return LowRank(factor[:, :size], torch.cat(pivots) if pivots else torch.zeros(0).long(), remainder)


def sample_rows(samples: Tensor, each: int) -> Tensor:
    """Indices of the rows of some samples.

    >>> sample_rows(torch.tensor([0, 2]), 2).tolist()
    [0, 1, 4, 5]
    """
    return (samples[:, None] * each + torch.arange(each)).flatten()


def covariance(prior: Prior, x: Tensor, seed: int = 0, hold: bool = True) -> Covariance:
    """The prior's covariance on some points.

    Args:
        prior: the network and its scales.
        x: `[N, *input_shape]`.
        seed: of the pivots.
        hold: whether the matrix is held if it fits into memory.
    """
    x = prior.linearized.inputs(x)
    rows = len(x) * prior.rows_each(prior.linearized.num_outputs(x))
    return Covariance(prior, x, rows, prior.kernel(x) if hold and rows**2 * 8 <= HELD_BYTES else None, seed)
