r"""The prior's covariance by its products, $K u = Φ (Φ^⊤ u)$, for conjugate gradients on many points.

Notation: as in `kernel`; V columns side by side.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nearkin.core.rng import Streams
from nearkin.core.types import Params
from nearkin.fisher.jacobian import Jacobian
from nearkin.fisher.operators import SymmetricOperator
from nearkin.fisher.tangent_blocks import graph_bytes
from nearkin.fisher.tangent_features import Sight
from nearkin.fisher.tape import frozen
from nearkin.fisher.vectors import flat, side_by_side, unflat
from nearkin.transfer.kernel import Prior
from nearkin.transfer.linearize import chosen_outputs

HELD_BYTES = 2**30  # of a kernel that is held
KEPT_BYTES = 2**29  # of graphs that stay in memory between products
BATCH_BYTES = 2**26  # of one graph
PIVOTS_AT_ONCE = 64


@dataclass(frozen=True, eq=False)
class PriorProducts:
    """Products with a prior's covariance on some points.

    Attributes:
        prior: the network and its scales.
        x: `[N, *input_shape]`.
        out: the shape of one sample's outputs, C numbers.
        batches: the points in parts whose graphs fit the memory.
        held: the matrix itself, if it fits.
        kept: the parts' Jacobians, if they all fit.
        seed: of pivots.
        factor: of the whole matrix.
    """

    prior: Prior
    x: Tensor
    out: torch.Size
    batches: tuple[Tensor, ...]
    held: Tensor | None = None
    kept: tuple[Jacobian, ...] | None = None
    seed: int = 0
    factor: float = 1.0

    @property
    def chosen(self) -> range:
        """The outputs that count."""
        return chosen_outputs(self.prior.linearized.outputs, self.out.numel())

    @property
    def rows(self) -> int:
        """R."""
        return len(self.x) * (self.out.numel() if self.prior.linearized.outputs == "all" else 1)

    def told(self) -> str:
        """How products are made, in words."""
        if self.held is not None:
            return "the kernel held in memory"
        return f"graphs of {len(self.batches)} batches {'made anew for each product' if self.kept is None else 'kept'}"

    def times(self, columns: Tensor) -> Tensor:
        """K times `[R, V]`."""
        if self.held is not None:
            return self.factor * (self.held @ columns)
        outputs, size = self.prior.linearized.outputs, self.out.numel()
        if outputs == "all":
            return self.factor * self._products(columns)
        total = torch.zeros_like(columns)
        for c in self.chosen:  # every output has weights of its own
            wide = columns.new_zeros(len(self.x), size, columns.shape[1])
            wide[:, c] = columns
            total += self._products(wide.flatten(0, 1)).view(len(self.x), size, -1)[:, c]
        return self.factor * total / len(self.chosen)

    def _products(self, columns: Tensor) -> Tensor:
        """All outputs' J S Jᵀ times `[N·C, V]`, S the prior variances of the weights."""
        like, scales = self.prior.linearized.params, self.prior.weight_scales().to(columns)[:, None]
        pulled, start = torch.zeros_like(scales), 0
        for jacobian in self._jacobians():
            part = columns[start : start + jacobian.num_samples * self.out.numel()].to(self.x.dtype)
            pulled = pulled + _batched(_pulling(jacobian), part).double()
            start += len(part)
        pulled = (scales * pulled).to(self.x.dtype)
        pushed = [_batched(_pushing(jacobian, like), pulled) for jacobian in self._jacobians()]
        return torch.cat(pushed).double()

    def _jacobians(self) -> Iterator[Jacobian]:
        yield from self.kept if self.kept is not None else (_jacobian(self.prior, part) for part in self.batches)

    def columns(self, rows: Tensor) -> Tensor:
        """K `[R, V]` at the numbers of some rows `[V]`."""
        if self.held is not None:
            return self.factor * self.held[:, rows]
        each = self.rows // len(self.x)
        samples, places = (rows // each).unique(return_inverse=True)
        return self.factor * self.prior.kernel(self.x, self.x[samples])[:, places * each + rows % each]

    def block(self, samples: Tensor) -> Tensor:
        """K of some samples with each other, less the factor."""
        if self.held is None:
            return self.prior.kernel(self.x[samples])
        rows = (samples[:, None] * (self.rows // len(self.x)) + torch.arange(self.rows // len(self.x))).flatten()
        return self.held[rows][:, rows]

    def diagonal(self) -> Tensor:
        """`[R]`."""
        return self.factor * (self.prior.diagonal(self.x) if self.held is None else self.held.diagonal())

    def low_rank(self, rank: int) -> Tensor:
        r"""L `[R, V]`, V at most the rank, with $L L^⊤$ near K and never above it.

        Pivots are drawn by what is left of the diagonal, some at a time (Chen et al. 2022), so that columns of K are
        made by few passes.
        """
        diagonal, rng = self.diagonal(), Streams(self.seed).at("pivots")
        found, left, total = diagonal.new_zeros(self.rows, 0), diagonal.clone(), float(diagonal.sum())
        while found.shape[1] < min(rank, self.rows) and float(left.sum()) > 1e-12 * total:
            count = min(PIVOTS_AT_ONCE, min(rank, self.rows) - found.shape[1], int((left > 0).sum()))
            pivots = torch.multinomial(left, count, generator=rng)
            fresh = self.columns(pivots) - found @ found[pivots].t()
            values, vectors = torch.linalg.eigh((fresh[pivots] + fresh[pivots].t()) / 2)
            fit = values > 1e-10 * values[-1]
            found = torch.cat([found, fresh @ (vectors[:, fit] / values[fit].sqrt())], 1)
            left = (diagonal - found.square().sum(1)).clamp_min(0)
            left[pivots] = 0
        return found


def _jacobian(prior: Prior, x: Tensor) -> Jacobian:
    return Jacobian(prior.linearized.model, x, params=prior.linearized.params, keep=True)


def _pulling(jacobian: Jacobian) -> Callable[[Tensor], Tensor]:
    return lambda u: flat(jacobian.pull(u.view(jacobian.shape)))


def _pushing(jacobian: Jacobian, like: Params) -> Callable[[Tensor], Tensor]:
    return lambda v: jacobian.push(unflat(v, like)).flatten()


def _batched(product: Callable[[Tensor], Tensor], columns: Tensor) -> Tensor:
    """A product with columns `[A, V]`: some at once, or one by one where the network's operations do not let."""
    found = side_by_side(product, columns.contiguous()) if columns.shape[1] > 1 else None
    if found is None:
        found = torch.stack([product(column) for column in columns.t().contiguous()], 1)
    return found


class PriorOperator(SymmetricOperator):
    """A prior's covariance `[R, R]` on some points, with rows and a diagonal for preconditioners.

    >>> from nearkin.transfer.hyper import Hyper
    >>> from nearkin.transfer.linearize import linearize
    >>> prior = Prior(linearize(torch.nn.Linear(1, 1)), Hyper(scale=3.0))
    >>> prior_operator(prior, torch.tensor([[1.0], [2.0]])) @ torch.tensor([1.0, 0.0]).double()
    tensor([6., 9.], dtype=torch.float64)
    """

    def times(self, factor: float) -> "PriorOperator":
        """The matrix times a number."""
        return PriorOperator(*self._args, source=replace(self.source, factor=self.source.factor * factor))

    def product(self, vector: Tensor) -> Tensor:
        """Ku `[R]`."""
        return self.products(vector[:, None])[:, 0]

    def products(self, columns: Tensor) -> Tensor:
        """K times `[R]` or `[R, V]`."""
        found: Tensor = self.source.times(columns if columns.dim() == 2 else columns[:, None])
        return found if columns.dim() == 2 else found[:, 0]

    def _size(self) -> torch.Size:
        return torch.Size([self.source.rows] * 2)

    def _diagonal(self) -> Tensor:
        found: Tensor = self.source.diagonal()
        return found

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        """Entries at index tensors, by the columns among them."""
        rows, columns = torch.broadcast_tensors(row_index, col_index)
        chosen, places = columns.unique(return_inverse=True)
        found: Tensor = self.source.columns(chosen)[rows, places]
        return found

    def pivoted_cholesky(self, rank: int, error_tol: float | None = None, return_pivots: bool = False) -> Tensor:
        """The low-rank factor that preconditions sums with a diagonal."""
        found: Tensor = self.source.low_rank(rank)
        return found


def prior_operator(prior: Prior, x: Tensor, seed: int = 0) -> PriorOperator:
    """The prior's covariance on some points; `seed` is that of its pivots."""
    x = prior.linearized.inputs(x)
    model = prior.linearized.model
    out = _jacobian(prior, x[:1]).shape[1:]
    seen = Sight(model, frozen(model), {}, {}, prior.linearized.names, range(out.numel()), False)
    each = max(1, graph_bytes(seen, x[:1]))
    batches = x.split(max(1, BATCH_BYTES // each))
    source = PriorProducts(prior, x, out, batches, seed=seed)
    if source.rows**2 * 8 <= HELD_BYTES:
        source = replace(source, held=prior.kernel(x))
    elif len(x) * each <= KEPT_BYTES:
        source = replace(source, kept=tuple(_jacobian(prior, part) for part in batches))
    return PriorOperator(torch.zeros(1).double(), source=source)
