r"""The features Φ of many points, held in memory as factors of each layer, and their products with vectors.

The gradient of a linear layer is $g u^⊤$, with its input u and the gradient g at its output. With both held for all
points, a product $Φ^⊤ c$ or $Φ w$ is one matrix product for each layer and needs no pass of the network.
`fisher.layer_kernels` has the factors, and the full gradients of layers without factors.

Notation: as in `kernel`; C outputs whose features are concatenated (`outputs="sum"`; otherwise 1), P weights, D = C·P;
V columns; B samples of a batch; a layer has G groups, T positions, I inputs and O outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod, sqrt
from typing import cast

import torch
from torch import Tensor

from nearkin.fisher.layer_kernels import Feature, add_kernel
from nearkin.fisher.tangent_features import EXACT, TangentPlan, UnfitError, features, tangent_plan
from nearkin.transfer.kernel import Prior
from nearkin.transfer.linearized import chosen_outputs

BATCH_BYTES = 2**25  # size of the features of one batch
DIAGONAL = 64  # samples in one block of the kernel, of which only the diagonal is used
WIDTH = 1024  # samples in one block of kernel columns


@dataclass(frozen=True, eq=False)
class HeldLayer:
    """The features of one layer on some samples, with the prior's scale.

    Attributes:
        parameters: the slice of the P weights and the shape, for each parameter of the layer.
        copies: C.
        feature: gradients or their factors, for each of R outputs.
    """

    parameters: tuple[tuple[slice, torch.Size], ...]
    copies: int
    feature: Feature

    def part(self, start: int, stop: int) -> "HeldLayer":
        """The samples from `start` to `stop`."""
        return replace(self, feature=self.feature.samples(start, stop))

    def at(self, samples: Tensor) -> "HeldLayer":
        """The samples with these indices."""
        g, u = self.feature.g, self.feature.u
        return replace(self, feature=Feature(g[samples], None if u is None else u[samples], self.feature.bias))

    def single(self) -> "HeldLayer":
        """The same features in float32."""
        u = self.feature.u
        u = u.float() if u is not None and u.is_floating_point() else u
        return replace(self, feature=Feature(self.feature.g.float(), u, self.feature.bias))

    def pull(self, out: Tensor, column: Tensor) -> None:
        """Add the transposed features times `[B, R]` to `out` `[C, P]`."""
        g, u = self.feature.g, self.feature.u
        column = column.to(g.dtype)
        if u is None:
            total = g.flatten(0, 3).t() @ column.flatten()
            self._write(out, total.view(self.copies, -1))
            return
        single = g.shape[2] == 1
        weighted = g[:, :, 0] * column[:, :, None, None] if single else torch.einsum("bgrto,br->bgto", g, column)
        weighted = weighted.transpose(0, 1).flatten(1, 2)  # [G, B·T, C·O]
        if u.is_floating_point():
            outer = weighted.mT @ u.transpose(0, 1).flatten(1, 2)  # [G, C·O, I]
        else:  # tokens: the input u is a one-hot row, given by its index
            outer = weighted.new_zeros(1, self.parameters[0][1][0], weighted.shape[2])
            outer[0].index_add_(0, u.flatten(), weighted[0])
            outer = outer.mT
        gradient = outer.reshape(len(outer), self.copies, -1, outer.shape[2]).transpose(0, 1)
        if not u.is_floating_point():
            gradient = gradient.mT
        gradients = [gradient.flatten(1)]
        if self.feature.bias:
            gradients.append(weighted.sum(1).view(len(outer), self.copies, -1).transpose(0, 1).flatten(1))
        self._write(out, torch.cat(gradients, 1) if len(gradients) > 1 else gradients[0])

    def push(self, weights: Tensor) -> Tensor:
        """The features times `[C, P]`: `[B, R]`."""
        g, u = self.feature.g, self.feature.u
        own = [weights[:, indices].to(g.dtype) for indices, _ in self.parameters]
        if u is None:
            return (g.flatten(0, 3) @ torch.cat(own, 1).flatten()).view(len(g), -1)
        groups, shape = g.shape[1], self.parameters[0][1]
        if u.is_floating_point():
            matrix = own[0].view(self.copies, groups, -1, u.shape[-1]).transpose(0, 1).flatten(1, 2)  # [G, C·O, I]
            outputs = u.transpose(0, 1).flatten(1, 2) @ matrix.mT  # [G, B·T, C·O]
        else:
            matrix = own[0].view(self.copies, *shape).transpose(0, 1).flatten(1)  # [tokens, C·O]
            outputs = matrix[u.flatten()][None]
        if self.feature.bias:
            outputs = outputs + own[1].view(self.copies, groups, -1).transpose(0, 1).flatten(1)[:, None]
        outputs = outputs.view(groups, len(g), g.shape[3], -1).transpose(0, 1)  # [B, G, T, C·O]
        if g.shape[2] == 1:
            return (g[:, :, 0] * outputs).flatten(1).sum(1, keepdim=True)
        return torch.einsum("bgrto,bgto->br", g, outputs)

    def _write(self, out: Tensor, gradients: Tensor) -> None:
        start = 0
        for indices, shape in self.parameters:
            out[:, indices] += gradients[:, start : start + prod(shape)]
            start += prod(shape)


@dataclass(frozen=True, eq=False)
class HeldFeatures:
    """Φ of some points, held in memory.

    Attributes:
        batches: the layers, for every batch of samples.
        num_features: D.
        rows_each: number of rows of one sample.

    >>> from nearkin.transfer.hyper import Hyper
    >>> from nearkin.transfer.linearized import linearize
    >>> prior = Prior(linearize(torch.nn.Linear(1, 1)), Hyper(scale=4.0))
    >>> held = held_features(prior, torch.tensor([[1.0], [2.0]]).double(), 2**20)
    >>> held.push(torch.ones(2, 1).double()).flatten().tolist(), held.pull(torch.ones(2, 1).double()).flatten().tolist()
    ([4.0, 6.0], [6.0, 4.0])
    """

    batches: tuple[tuple[HeldLayer, ...], ...]
    num_features: int
    rows_each: int

    def describe(self) -> str:
        """How products are computed, as text."""
        return f"features of {len(self.batches)} batches kept"

    def pull(self, columns: Tensor, quick: bool = False) -> Tensor:
        r"""$Φ^⊤$ times `[R, V]`: `[D, V]`; in float32 if `quick`."""
        copies = self.batches[0][0].copies
        total = columns.new_zeros(columns.shape[1], copies, self.num_features // copies)
        start = 0
        for batch in self.batches:
            size = len(batch[0].feature.g)
            rows = columns[start : start + size * self.rows_each].view(size, self.rows_each, -1)
            for layer in batch:
                ready = layer.single() if quick else layer
                for v in range(columns.shape[1]):
                    ready.pull(total[v], rows[:, :, v])
            start += size * self.rows_each
        return total.flatten(1).t()

    def push(self, weights: Tensor, quick: bool = False) -> Tensor:
        """Φ times `[D, V]`: `[R, V]`; in float32 if `quick`."""
        copies = self.batches[0][0].copies
        vectors = weights.t().contiguous().view(weights.shape[1], copies, -1)
        products = []
        for batch in self.batches:
            total = weights.new_zeros(len(vectors), len(batch[0].feature.g), self.rows_each)
            for layer in batch:
                ready = layer.single() if quick else layer
                for v, vector in enumerate(vectors):
                    total[v] += ready.push(vector)
            products.append(total.flatten(1).t())
        return torch.cat(products)

    def columns(self, samples: Tensor) -> Tensor:
        """The kernel `[R, S]` of all samples with those at increasing indices."""
        chosen = self.at(samples)
        each, columns = self.rows_each, []
        for batch in self.batches:
            size = len(batch[0].feature.g)
            out = chosen[0].feature.g.new_zeros(size * each, len(samples) * each)
            for left, right in zip(batch, chosen, strict=True):
                for start in range(0, size, WIDTH):
                    tile = out[start * each : (start + WIDTH) * each]
                    add_kernel(tile, left.part(start, start + WIDTH).feature, right.feature)
            columns.append(out)
        return torch.cat(columns).double()

    def at(self, samples: Tensor) -> list[HeldLayer]:
        """The layers on some samples."""
        chosen: list[list[HeldLayer]] = []
        start = 0
        for batch in self.batches:
            size = len(batch[0].feature.g)
            inside = samples[(samples >= start) & (samples < start + size)] - start
            if len(inside):
                chosen.append([layer.at(inside) for layer in batch])
            start += size
        return [_joined(layers) for layers in zip(*chosen, strict=True)]

    def diagonal(self) -> Tensor:
        """The diagonal of the kernel `[R]`."""
        diagonals = []
        for batch in self.batches:
            for start in range(0, len(batch[0].feature.g), DIAGONAL):
                features = [layer.part(start, start + DIAGONAL).feature for layer in batch]
                size = len(features[0].g) * self.rows_each
                kernel = features[0].g.new_zeros(size, size)
                for feature in features:
                    add_kernel(kernel, feature, feature)
                diagonals.append(kernel.diagonal().double())
        return torch.cat(diagonals)


def _joined(layers: Sequence[HeldLayer]) -> HeldLayer:
    """One layer on the samples of several batches."""
    g = torch.cat([layer.feature.g for layer in layers])
    u = None if layers[0].feature.u is None else torch.cat([cast(Tensor, layer.feature.u) for layer in layers])
    return replace(layers[0], feature=Feature(g, u, layers[0].feature.bias))


def held_features(prior: Prior, x: Tensor, memory: int) -> HeldFeatures | None:
    """The features of points `[N, *input_shape]`; None if they take more than `memory` bytes."""
    linearized = prior.linearized
    size = linearized.num_outputs(x)
    chosen, summed = chosen_outputs(linearized.outputs, size), linearized.outputs == "sum"
    seen = tangent_plan(linearized.model, linearized.names, chosen, summed, x)
    while True:
        try:
            each = sum(layer.feature.num_bytes() for layer in _layers(prior, seen, x[:1], len(x)))
            if each * len(x) > memory:
                return None
            batches = tuple(_layers(prior, seen, batch, len(x)) for batch in x.split(max(1, BATCH_BYTES // each)))
        except UnfitError as unfit:
            seen = seen.without(unfit.names)
            continue
        return HeldFeatures(batches, prior.num_features(size), prior.rows_each(size))


def _layers(prior: Prior, seen: TangentPlan, x: Tensor, partners: int) -> tuple[HeldLayer, ...]:
    """Features of a batch with the prior's scales, sorted by layer."""
    like = prior.linearized.params
    copies = len(seen.outputs) if seen.summed else 1
    roots = prior.weight_scales().sqrt() / sqrt(copies)
    slices, start = {}, 0
    for name, value in like.items():
        slices[name] = slice(start, start + value.numel())
        start += value.numel()
    layers: dict[str, HeldLayer] = {}

    def take(layer: str, feature: Feature) -> None:
        names = seen.exact if layer == EXACT else tuple(seen.layers[layer].values())
        own = tuple((slices[name], like[name].shape) for name in names)
        g = feature.g
        if feature.u is not None:  # factors of a layer share one scale
            scaled = Feature(g * roots[own[0][0]][0].to(g), feature.u, feature.bias)
        else:
            scaled = Feature(g * torch.cat([roots[indices] for indices, _ in own]).repeat(copies).to(g), None)
        layers[layer] = HeldLayer(own, copies, scaled)

    features(seen, x, partners, take)
    return tuple(layers[name] for name in sorted(layers))
