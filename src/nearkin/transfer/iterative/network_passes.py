r"""Products with the features Φ of points by passes of the network, for features that do not fit into memory.

Notation: as in `kernel`; V columns.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

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

BATCH_BYTES = 2**26  # size of one autograd graph


@dataclass(frozen=True, eq=False)
class NetworkPasses:
    """Products with Φ by passes of the network; see `FeatureProducts`.

    Attributes:
        prior: the network and its scales.
        x: `[N, *input_shape]`.
        out: the shape of one sample's outputs.
        batches: the points in batches whose graphs fit into memory.
        kept: the Jacobians of the batches, if all of them fit.
    """

    prior: Prior
    x: Tensor
    out: torch.Size
    batches: tuple[Tensor, ...]
    kept: tuple[Jacobian, ...] | None = None

    def describe(self) -> str:
        """How products are computed, as text."""
        return f"graphs of {len(self.batches)} batches {'rebuilt for each product' if self.kept is None else 'kept'}"

    def pull(self, columns: Tensor, quick: bool = False) -> Tensor:
        r"""$Φ^⊤$ times `[R, V]`: `[D, V]`."""
        if self.prior.linearized.outputs == "all":
            return self._roots(1) * self._pull_all(columns)
        chosen = self._chosen
        products = []
        for c in chosen:  # every output has weights of its own
            wide = columns.new_zeros(len(self.x), self.out.numel(), columns.shape[1])
            wide[:, c] = columns
            products.append(self._pull_all(wide.flatten(0, 1)))
        return self._roots(len(chosen)) * torch.cat(products)

    def push(self, weights: Tensor, quick: bool = False) -> Tensor:
        """Φ times `[D, V]`: `[R, V]`."""
        if self.prior.linearized.outputs == "all":
            return self._push_all(self._roots(1) * weights)
        chosen, size = self._chosen, self.out.numel()
        by_output = zip(chosen, (self._roots(len(chosen)) * weights).chunk(len(chosen)), strict=True)
        products = [self._push_all(own).view(len(self.x), size, -1)[:, c] for c, own in by_output]
        return torch.stack(products).sum(0)

    def columns(self, samples: Tensor) -> Tensor:
        """The kernel of all samples with those at these indices."""
        return self.prior.kernel(self.x, self.x[samples])

    def diagonal(self) -> Tensor:
        """The diagonal of the kernel `[R]`."""
        return self.prior.diagonal(self.x)

    @property
    def _chosen(self) -> range:
        return chosen_outputs(self.prior.linearized.outputs, self.out.numel())

    def _roots(self, copies: int) -> Tensor:
        return self.prior.weight_scales().sqrt().to(self.x.device).repeat(copies)[:, None] / math.sqrt(copies)

    def _pull_all(self, columns: Tensor) -> Tensor:
        """The transposed Jacobian of all outputs times `[N·C, V]`."""
        total, start = torch.zeros(()).to(columns), 0
        for jacobian in self._jacobians():
            rows = columns[start : start + jacobian.num_samples * self.out.numel()].to(self.x.dtype)
            total = total + _times_columns(partial(_pull, jacobian), rows).double()
            start += len(rows)
        return total

    def _push_all(self, weights: Tensor) -> Tensor:
        """The Jacobian of all outputs times `[P, V]`."""
        like, weights = self.prior.linearized.params, weights.to(self.x.dtype)
        products = [_times_columns(partial(_push, jacobian, like), weights) for jacobian in self._jacobians()]
        return torch.cat(products).double()

    def _jacobians(self) -> Iterator[Jacobian]:
        yield from self.kept if self.kept is not None else (_jacobian(self.prior, batch) for batch in self.batches)


def _jacobian(prior: Prior, x: Tensor) -> Jacobian:
    return Jacobian(prior.linearized.model, x, params=prior.linearized.params, keep=True)


def _pull(jacobian: Jacobian, column: Tensor) -> Tensor:
    return flat(jacobian.pull(column.view(jacobian.shape)))


def _push(jacobian: Jacobian, like: Params, weights: Tensor) -> Tensor:
    return jacobian.push(unflat(weights, like)).flatten()


def _times_columns(product: Callable[[Tensor], Tensor], columns: Tensor) -> Tensor:
    """A product with columns `[A, V]`: several at once, or one by one if the network's operations do not allow that."""
    result = vmapped_columns(product, columns.contiguous()) if columns.shape[1] > 1 else None
    if result is None:
        result = torch.stack([product(column) for column in columns.t().contiguous()], 1)
    return result


def push_features(prior: Prior, x: Tensor, weights: Tensor) -> Tensor:
    """The features of points times `[D, V]`: `[S, V]`."""
    return network_passes(prior, prior.linearized.inputs(x)).push(weights)


def pull_features(prior: Prior, x: Tensor, columns: Tensor) -> Tensor:
    """The transposed features of points times `[R, V]`: `[D, V]`."""
    return network_passes(prior, prior.linearized.inputs(x)).pull(columns)


def network_passes(prior: Prior, x: Tensor, memory: int = 0) -> NetworkPasses:
    """Products by passes of the network; graphs are kept between products if all of them fit into `memory` bytes."""
    model = prior.linearized.model
    out = _jacobian(prior, x[:1]).shape[1:]
    seen = TangentPlan(model, detached_weights(model), {}, {}, prior.linearized.names, range(out.numel()), False)
    each = max(1, graph_bytes(seen, x[:1]))
    batches = x.split(max(1, BATCH_BYTES // each))
    kept = tuple(_jacobian(prior, batch) for batch in batches) if len(x) * each <= memory else None
    return NetworkPasses(prior, x, out, batches, kept)
