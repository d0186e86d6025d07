r"""The features Φ of many points, held layer by layer as their factors, and their products with vectors.

A linear layer's gradient is $g u^⊤$: what it read, u, and the gradient at what it gave, g. Held once for all points, a
product $Φ^⊤ c$ or $Φ w$ is a single matrix product a layer, with no pass of the network; `fisher.layer_kernels` has the
factors, and the rows of layers that have none.

Notation: as in `kernel`; C outputs whose features stand side by side (`outputs="sum"`; else 1), P weights, D = C·P;
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

BATCH_BYTES = 2**25  # of features that one step of a product reads
DIAGONAL = 64  # samples whose kernels with each other are computed for the sake of the diagonal
WIDTH = 1024  # samples that meet the columns of a kernel at once


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer's part of Φ on some samples, with its scale.

    Attributes:
        places: where each of its parameters lies among the P weights, and its shape.
        copies: C.
        feature: gradients or their factors, R outputs kept apart.
    """

    places: tuple[tuple[slice, torch.Size], ...]
    copies: int
    feature: Feature

    def part(self, start: int, stop: int) -> "Layer":
        """Some of the samples."""
        return replace(self, feature=self.feature.samples(start, stop))

    def at(self, samples: Tensor) -> "Layer":
        """The samples with these numbers."""
        one = self.feature
        return replace(self, feature=Feature(one.g[samples], None if one.u is None else one.u[samples], one.bias))

    def single(self) -> "Layer":
        """The same in float32."""
        one = self.feature
        u = one.u.float() if one.u is not None and one.u.is_floating_point() else one.u
        return replace(self, feature=Feature(one.g.float(), u, one.bias))

    def pull(self, out: Tensor, column: Tensor) -> None:
        """Add the transpose times `[B, R]` to `out` `[C, P]`."""
        g, u = self.feature.g, self.feature.u
        column = column.to(g.dtype)
        if u is None:
            total = g.flatten(0, 3).t() @ column.flatten()
            self._write(out, total.view(self.copies, -1))
            return
        weighed = _weighed(g, column)  # [G, B·T, C·O]
        if u.is_floating_point():
            outer = weighed.mT @ u.transpose(0, 1).flatten(1, 2)  # [G, C·O, I]
        else:  # words: what each read is a row of ones at its own
            outer = weighed.new_zeros(1, self.places[0][1][0], weighed.shape[2])
            outer[0].index_add_(0, u.flatten(), weighed[0])
            outer = outer.mT
        found = outer.reshape(len(outer), self.copies, -1, outer.shape[2]).transpose(0, 1)
        if not u.is_floating_point():
            found = found.mT
        parts = [found.flatten(1)]
        if self.feature.bias:
            parts.append(weighed.sum(1).view(len(outer), self.copies, -1).transpose(0, 1).flatten(1))
        self._write(out, torch.cat(parts, 1) if len(parts) > 1 else parts[0])

    def push(self, weights: Tensor) -> Tensor:
        """The features times `[C, P]`: `[B, R]`."""
        g, u = self.feature.g, self.feature.u
        own = [weights[:, place].to(g.dtype) for place, _ in self.places]
        if u is None:
            return (g.flatten(0, 3) @ torch.cat(own, 1).flatten()).view(len(g), -1)
        groups, shape = g.shape[1], self.places[0][1]
        if u.is_floating_point():
            matrix = own[0].view(self.copies, groups, -1, u.shape[-1]).transpose(0, 1).flatten(1, 2)  # [G, C·O, I]
            read = u.transpose(0, 1).flatten(1, 2) @ matrix.mT  # [G, B·T, C·O]
        else:
            matrix = own[0].view(self.copies, *shape).transpose(0, 1).flatten(1)  # [words, C·O]
            read = matrix[u.flatten()][None]
        if self.feature.bias:
            read = read + own[1].view(self.copies, groups, -1).transpose(0, 1).flatten(1)[:, None]
        placed = read.view(groups, len(g), g.shape[3], -1).transpose(0, 1)  # [B, G, T, C·O]
        if g.shape[2] == 1:
            return (g[:, :, 0] * placed).flatten(1).sum(1, keepdim=True)
        return torch.einsum("bgrto,bgto->br", g, placed)

    def _write(self, out: Tensor, found: Tensor) -> None:
        """Add numbers `[C, …]` of the layer's parameters to `out` `[C, P]`."""
        start = 0
        for place, shape in self.places:
            out[:, place] += found[:, start : start + prod(shape)]
            start += prod(shape)


def _weighed(g: Tensor, column: Tensor) -> Tensor:
    """Gradients `[B, G, R, T, O]` weighed by `[B, R]` and summed over R: `[G, B·T, O]`."""
    one = g.shape[2] == 1
    found = g[:, :, 0] * column[:, :, None, None] if one else torch.einsum("bgrto,br->bgto", g, column)
    return found.transpose(0, 1).flatten(1, 2)


@dataclass(frozen=True, eq=False)
class HeldFeatures:
    """Φ of some points in memory.

    Attributes:
        batches: of every batch of samples the layers.
        num_features: D.
        rows_each: R of one sample.

    >>> from nearkin.transfer.hyper import Hyper
    >>> from nearkin.transfer.linearized import linearize
    >>> prior = Prior(linearize(torch.nn.Linear(1, 1)), Hyper(scale=4.0))
    >>> held = held_features(prior, torch.tensor([[1.0], [2.0]]).double(), 2**20)
    >>> held.push(torch.ones(2, 1).double()).flatten().tolist(), held.pull(torch.ones(2, 1).double()).flatten().tolist()
    ([4.0, 6.0], [6.0, 4.0])
    """

    batches: tuple[tuple[Layer, ...], ...]
    num_features: int
    rows_each: int

    def told(self) -> str:
        """How products are made, in words."""
        return f"features of {len(self.batches)} batches kept"

    def pull(self, columns: Tensor, quick: bool = False) -> Tensor:
        r"""$Φ^⊤$ times `[R, V]`: `[D, V]`; in float32 if `quick`."""
        copies = self.batches[0][0].copies
        found = columns.new_zeros(columns.shape[1], copies, self.num_features // copies)
        start = 0
        for batch in self.batches:
            size = len(batch[0].feature.g)
            some = columns[start : start + size * self.rows_each].view(size, self.rows_each, -1)
            for layer in batch:
                ready = layer.single() if quick else layer
                for v in range(columns.shape[1]):
                    ready.pull(found[v], some[:, :, v])
            start += size * self.rows_each
        return found.flatten(1).t()

    def push(self, weights: Tensor, quick: bool = False) -> Tensor:
        """Φ times `[D, V]`: `[R, V]`; in float32 if `quick`."""
        copies = self.batches[0][0].copies
        rows = weights.t().contiguous().view(weights.shape[1], copies, -1)
        found = []
        for batch in self.batches:
            total = weights.new_zeros(len(rows), len(batch[0].feature.g), self.rows_each)
            for layer in batch:
                ready = layer.single() if quick else layer
                for v, one in enumerate(rows):
                    total[v] += ready.push(one)
            found.append(total.flatten(1).t())
        return torch.cat(found)

    def columns(self, samples: Tensor) -> Tensor:
        """The kernel `[R, S]` of all samples with some of them, given by numbers in rising order."""
        chosen = self.at(samples)
        kept, found = self.rows_each, []
        for batch in self.batches:
            size = len(batch[0].feature.g)
            out = chosen[0].feature.g.new_zeros(size * kept, len(samples) * kept)
            for left, right in zip(batch, chosen, strict=True):
                for start in range(0, size, WIDTH):
                    tile = out[start * kept : (start + WIDTH) * kept]
                    add_kernel(tile, left.part(start, start + WIDTH).feature, right.feature)
            found.append(out)
        return torch.cat(found).double()

    def at(self, samples: Tensor) -> list[Layer]:
        """The layers of some samples."""
        parts: list[list[Layer]] = []
        start = 0
        for batch in self.batches:
            size = len(batch[0].feature.g)
            inside = samples[(samples >= start) & (samples < start + size)] - start
            if len(inside):
                parts.append([layer.at(inside) for layer in batch])
            start += size
        return [_joined(layers) for layers in zip(*parts, strict=True)]

    def diagonal(self) -> Tensor:
        """Of the kernel, `[R]`."""
        found, kept = [], self.rows_each
        for batch in self.batches:
            for start in range(0, len(batch[0].feature.g), DIAGONAL):
                some = [layer.part(start, start + DIAGONAL).feature for layer in batch]
                size = len(some[0].g) * kept
                out = some[0].g.new_zeros(size, size)
                for one in some:
                    add_kernel(out, one, one)
                found.append(out.diagonal().double())
        return torch.cat(found)


def _joined(layers: Sequence[Layer]) -> Layer:
    """One layer on several batches as one."""
    g = torch.cat([one.feature.g for one in layers])
    u = None if layers[0].feature.u is None else torch.cat([cast(Tensor, one.feature.u) for one in layers])
    return replace(layers[0], feature=Feature(g, u, layers[0].feature.bias))


def held_features(prior: Prior, x: Tensor, memory: int) -> HeldFeatures | None:
    """The features of points `[N, *input_shape]`; None if they take more bytes than that."""
    linearized = prior.linearized
    size = linearized.num_outputs(x)
    chosen, summed = chosen_outputs(linearized.outputs, size), linearized.outputs == "sum"
    seen = tangent_plan(linearized.model, linearized.names, chosen, summed, x)
    while True:
        try:
            each = sum(layer.feature.num_bytes() for layer in _layers(prior, seen, x[:1], len(x)))
            if each * len(x) > memory:
                return None
            batches = tuple(_layers(prior, seen, part, len(x)) for part in x.split(max(1, BATCH_BYTES // each)))
        except UnfitError as unfit:
            seen = seen.without(unfit.names)
            continue
        rows_each = 1 if summed else len(chosen)
        return HeldFeatures(batches, linearized.num_weights * (size if summed else 1), rows_each)


def _layers(prior: Prior, seen: TangentPlan, x: Tensor, partners: int) -> tuple[Layer, ...]:
    """Features of a batch with the prior's scales; those of layers come in the same order every time."""
    like = prior.linearized.params
    copies = len(seen.outputs) if seen.summed else 1
    roots = prior.weight_scales().sqrt() / sqrt(copies)
    places, start = {}, 0
    for name, value in like.items():
        places[name] = slice(start, start + value.numel())
        start += value.numel()
    found: dict[str, Layer] = {}

    def take(layer: str, one: Feature) -> None:
        names = seen.exact if layer == EXACT else tuple(seen.layers[layer].values())
        own = tuple((places[name], like[name].shape) for name in names)
        found[layer] = Layer(own, copies, _scaled(one, [roots[place] for place, _ in own], copies))

    features(seen, x, partners, take)
    return tuple(found[name] for name in sorted(found))


def _scaled(one: Feature, roots: Sequence[Tensor], copies: int) -> Feature:
    """Features times the roots of their weights' scales; factors have one for all."""
    if one.u is not None:
        return Feature(one.g * roots[0][0].to(one.g), one.u, one.bias)
    return Feature(one.g * torch.cat(list(roots)).repeat(copies).to(one.g), None)
