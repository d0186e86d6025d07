r"""Products with the features Φ of points by passes of the network, where they are too many to be held.

Notation: as in `kernel`; V columns side by side.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from nearkin.core.types import Params
from nearkin.fisher.jacobian import Jacobian
from nearkin.fisher.tangent_blocks import graph_bytes
from nearkin.fisher.tangent_features import TangentPlan
from nearkin.fisher.tape import detached_weights
from nearkin.fisher.vectors import flat, unflat, vmapped_columns
from nearkin.transfer.kernel import Prior
from nearkin.transfer.linearized import chosen_outputs

BATCH_BYTES = 2**26  # of one graph


@dataclass(frozen=True, eq=False)
class Passes:
    """Products with Φ by passes of the network; see `products`.

    Attributes:
        prior: the network and its scales.
        x: `[N, *input_shape]`.
        out: the shape of one sample's outputs.
        batches: the points in parts whose graphs fit the memory.
        kept: the parts' Jacobians, if they all fit.
    """

    prior: Prior
    x: Tensor
    out: torch.Size
    batches: tuple[Tensor, ...]
    kept: tuple[Jacobian, ...] | None = None

    def told(self) -> str:
        """How products are made, in words."""
        return f"graphs of {len(self.batches)} batches {'made anew for each product' if self.kept is None else 'kept'}"

    def pull(self, columns: Tensor, quick: bool = False) -> Tensor:
        r"""$Φ^⊤$ times `[R, V]`: `[D, V]`."""
        if self.prior.linearized.outputs == "all":
            return self._roots(1) * self._pulled(columns)
        chosen = self._chosen
        found = []
        for c in chosen:  # every output has weights of its own
            wide = columns.new_zeros(len(self.x), self.out.numel(), columns.shape[1])
            wide[:, c] = columns
            found.append(self._pulled(wide.flatten(0, 1)))
        return self._roots(len(chosen)) * torch.cat(found)

    def push(self, weights: Tensor, quick: bool = False) -> Tensor:
        """Φ times `[D, V]`: `[R, V]`."""
        if self.prior.linearized.outputs == "all":
            return self._pushed(self._roots(1) * weights)
        chosen, size = self._chosen, self.out.numel()
        parts = zip(chosen, (self._roots(len(chosen)) * weights).chunk(len(chosen)), strict=True)
        pushed = (self._pushed(part).view(len(self.x), size, -1)[:, c] for c, part in parts)
        return torch.stack(list(pushed)).sum(0)

    def columns(self, samples: Tensor) -> Tensor:
        """The kernel of all samples with some of them."""
        return self.prior.kernel(self.x, self.x[samples])

    def diagonal(self) -> Tensor:
        """Of the kernel, `[R]`."""
        return self.prior.diagonal(self.x)

    @property
    def _chosen(self) -> range:
        return chosen_outputs(self.prior.linearized.outputs, self.out.numel())

    def _roots(self, copies: int) -> Tensor:
        return self.prior.weight_scales().sqrt().to(self.x.device).repeat(copies)[:, None] / math.sqrt(copies)

    def _pulled(self, columns: Tensor) -> Tensor:
        """All outputs' Jᵀ times `[N·C, V]`."""
        found, start = torch.zeros(()).to(columns), 0
        for jacobian in self._jacobians():
            part = columns[start : start + jacobian.num_samples * self.out.numel()].to(self.x.dtype)
            found = found + _batched(_pulling(jacobian), part).double()
            start += len(part)
        return found

    def _pushed(self, weights: Tensor) -> Tensor:
        """All outputs' J times `[P, V]`."""
        like, weights = self.prior.linearized.params, weights.to(self.x.dtype)
        return torch.cat([_batched(_pushing(one, like), weights) for one in self._jacobians()]).double()

    def _jacobians(self) -> Iterator[Jacobian]:
        yield from self.kept if self.kept is not None else (_jacobian(self.prior, part) for part in self.batches)


def _jacobian(prior: Prior, x: Tensor) -> Jacobian:
    return Jacobian(prior.linearized.model, x, params=prior.linearized.params, keep=True)


def _pulling(jacobian: Jacobian) -> Callable[[Tensor], Tensor]:
    return lambda u: flat(jacobian.pull(u.view(jacobian.shape)))


def _pushing(jacobian: Jacobian, like: Params) -> Callable[[Tensor], Tensor]:
    return lambda v: jacobian.push(unflat(v, like)).flatten()


def _batched(product: Callable[[Tensor], Tensor], columns: Tensor) -> Tensor:
    """A product with columns `[A, V]`: some at once, or one by one where the network's operations do not let."""
    found = vmapped_columns(product, columns.contiguous()) if columns.shape[1] > 1 else None
    if found is None:
        found = torch.stack([product(column) for column in columns.t().contiguous()], 1)
    return found


def pushed(prior: Prior, x: Tensor, weights: Tensor) -> Tensor:
    """Features of new points times `[D, V]`: `[S, V]`, by one pass of each."""
    return passes(prior, prior.linearized.inputs(x)).push(weights)


def pulled(prior: Prior, x: Tensor, columns: Tensor) -> Tensor:
    """The transpose of points' features times `[R, V]`: `[D, V]`, by one pass of each."""
    return passes(prior, prior.linearized.inputs(x)).pull(columns)


def passes(prior: Prior, x: Tensor, memory: int = 0) -> Passes:
    """Products by passes; graphs stay between them if they all fit in so many bytes."""
    model = prior.linearized.model
    out = _jacobian(prior, x[:1]).shape[1:]
    seen = TangentPlan(model, detached_weights(model), {}, {}, prior.linearized.names, range(out.numel()), False)
    each = max(1, graph_bytes(seen, x[:1]))
    batches = x.split(max(1, BATCH_BYTES // each))
    kept = tuple(_jacobian(prior, part) for part in batches) if len(x) * each <= memory else None
    return Passes(prior, x, out, batches, kept)
