r"""The contribution of single layers to a tangent kernel, from their inputs `x` and the gradients `g` at their outputs.

A layer that applies one weight matrix at T positions has the gradient $\sum_t g_t u_t^⊤$, where $u_t$ is its input
there (a patch, for a convolution). The inner product of the gradients of two samples is

$$k = \Big\langle \sum_t g_t u_t^⊤, \sum_s g'_s u_s'^⊤ \Big\rangle = \sum_{t,s} (u_t^⊤ u'_s)(g_t^⊤ g'_s),$$

and a bias adds one to $u_t^⊤ u'_s$. The left form stores the gradients of the layer, computed by its rule (`layers`);
the right form stores their factors. Which is cheaper depends on the layer's sizes (`pairs_are_cheaper`).

Notation: B samples, C outputs of the network, R outputs kept apart (C, or 1 where the kernel is their sum), P weights;
a layer has T positions and G groups of D inputs and O outputs.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearkin.fisher.convolution import FEW_POSITIONS, Convolution
from nearkin.fisher.layers import Local, Rule, rule_for

MOVED = 16  # multiply-adds of a matrix product in the time that it takes to write a number and read it again
SCRATCH = 2**20  # largest number of values in one step of a contraction


@dataclass(frozen=True, eq=False)
class Feature:
    """Gradients of a layer's weights, one per sample and output, or the factors of these gradients.

    Attributes:
        g: `[B, G, R, T, O]` gradients at the layer's outputs; if `u` is None those of its weights, `[B, 1, R, 1, P]`.
        u: `[B, G, T, D]` inputs; for an embedding the tokens `[B, G, T]`.
        bias: whether the factors include the bias.
    """

    g: Tensor
    u: Tensor | None = None
    bias: bool = False

    def samples(self, start: int, stop: int) -> "Feature":
        """The samples from `start` to `stop`, as a view."""
        return self._changed(lambda value: value[start:stop])

    def empty(self, count: int) -> "Feature":
        """Uninitialised features of `count` samples."""
        return self._changed(lambda value: value.new_empty(count, *value.shape[1:]))

    def write(self, other: "Feature") -> None:
        """Copy other features into this memory, so that the memory of a batch can be used for the next one."""
        self.g.copy_(other.g)
        if self.u is not None and other.u is not None:
            self.u.copy_(other.u)

    def num_bytes(self) -> int:
        """Memory of the features in bytes."""
        return self.g.nbytes + (0 if self.u is None else self.u.nbytes)

    def _changed(self, change: Callable[[Tensor], Tensor]) -> "Feature":
        return Feature(change(self.g), None if self.u is None else change(self.u), self.bias)


def pairs_are_cheaper(
    positions: int, inputs: int, outputs: int, num_outputs: int, summed: bool, partners: int, words: bool = False
) -> bool:
    """Whether pairs of positions are cheaper than gradients if each sample is combined with `partners` others.

    Costs are multiply-adds for one pair of samples; the cost of the gradients is divided among all partners.

    Args:
        positions: T.
        inputs: D.
        outputs: O.
        num_outputs: C.
        summed: whether the kernel is summed over outputs.
        partners: number of samples that each sample is combined with.
        words: whether the inputs are words, D in the vocabulary, which are compared and not multiplied.

    >>> pairs_are_cheaper(1, 784, 512, 1, False, 1000), pairs_are_cheaper(784, 25, 6, 1, False, 1000)
    (True, False)
    """
    products = num_outputs if summed else num_outputs**2
    kept = 1 if summed else products
    built = num_outputs * inputs * outputs
    rows = products * inputs * outputs + built * (positions + MOVED) / partners
    pairs = positions**2 * ((MOVED if words else inputs) + products * outputs + kept * MOVED)
    return pairs < rows


def feature(
    layer: nn.Module, local: Local, x: Tensor, g: Sequence[Tensor], wanted: Collection[str], summed: bool, partners: int
) -> Feature:
    """The features of one call of a layer, from which its kernel is computed.

    Args:
        layer: a layer with a rule.
        local: its own parameters and buffers.
        x: `[B, …]` its inputs.
        g: gradients at its outputs `[B, …]`, one for each of the network's outputs.
        wanted: local names of its selected parameters.
        summed: whether the kernel is summed over outputs.
        partners: number of samples that each sample is combined with; see `pairs_are_cheaper`.

    >>> x, g = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0]])
    >>> one, k = feature(nn.Linear(2, 1), {}, x, [g], ("weight", "bias"), False, 1), torch.zeros(1, 1)
    >>> add_kernel(k, one, one)
    >>> k  # (1 + 4 + 1) 9
    tensor([[54.]])
    """
    if isinstance(layer, nn.Linear | nn.Embedding | Convolution):
        placed = _by_position(layer, x, g[0][:, None] if len(g) == 1 else torch.stack(list(g), 1))
        if "weight" not in wanted:
            return rows(placed.sum(3).flatten(2), summed)
        words, (positions, outputs) = isinstance(layer, nn.Embedding), placed.shape[3:]
        inputs, bias = len(layer.weight) if words else layer.weight[0].numel(), "bias" in wanted
        if pairs_are_cheaper(positions, inputs, outputs, len(g), summed, partners, words):
            return Feature(_kept(placed, summed), _read(layer, x).contiguous(), bias)
        if not words and (len(g) > 1 or positions <= FEW_POSITIONS):  # what was read is gathered once for all outputs
            parts = [_products(placed, _read(layer, x)), *([placed.sum(3).flatten(2)] if bias else [])]
            return rows(torch.cat(parts, 2), summed)
    return rows(torch.stack([_gradients(layer, local, x, gradient, wanted) for gradient in g], 1), summed)


def rows(values: Tensor, summed: bool) -> Feature:
    """Gradients `[B, C, P]` of some weights as a feature; summed outputs are treated as more weights.

    >>> rows(torch.zeros(3, 4, 2), False).g.shape, rows(torch.zeros(3, 4, 2), True).g.shape
    (torch.Size([3, 1, 4, 1, 2]), torch.Size([3, 1, 1, 1, 8]))
    """
    return Feature(values.flatten(1)[:, None, None, None] if summed else values[:, None, :, None])


def add_kernel(out: Tensor, left: Feature, right: Feature) -> None:
    """Add the kernel of two features of one layer to `out` `[A R, B R]` in place."""
    if left.u is None:
        out.addmm_(left.g.flatten(0, 3), right.g.flatten(0, 3).t())
        return
    kept, positions = left.g.shape[2:4]
    height = max(1, SCRATCH // (len(right.g) * (kept * positions) ** 2))
    for start in range(0, len(left.g), height):
        some = left.samples(start, start + height)
        for group in range(left.g.shape[1]):
            _add_pairs(out[start * kept : (start + height) * kept], some, right, group)


def _add_pairs(out: Tensor, left: Feature, right: Feature, group: int) -> None:
    r"""Add one group's $\sum_{t,s} (u_t^⊤ u'_s + 1)(g_t^⊤ g'_s)$ to `out` `[A R, B R]`."""
    (a, _, kept, positions, _), b = left.g.shape, len(right.g)
    u, v = (cast(Tensor, side.u)[:, group].flatten(0, 1) for side in (left, right))
    outer = left.g[:, group].flatten(0, 2) @ right.g[:, group].flatten(0, 2).t()
    inner = (u @ v.t()).add_(left.bias) if u.is_floating_point() else (u[:, None] == v).to(outer.dtype)
    if kept * positions == 1:
        out.addcmul_(inner, outer)
        return
    terms = outer.view(a, kept, positions, b, kept, positions)
    terms.mul_(inner.view(a, 1, positions, b, 1, positions))
    out.add_(terms.sum((2, 5)).view(a * kept, b * kept))


def _by_position(layer: nn.Linear | nn.Embedding | Convolution, x: Tensor, g: Tensor) -> Tensor:
    """Gradients `[B, C, …]` at a layer's outputs, as `[B, C, G, T, O]`; those of an embedding's padding are zero."""
    if isinstance(layer, Convolution):
        return g.reshape(*g.shape[:2], layer.groups, -1, math.prod(g.shape[3:])).transpose(3, 4)
    g = g.flatten(2, -2) if g.dim() > 3 else g[:, :, None]
    if isinstance(layer, nn.Embedding) and layer.padding_idx is not None:
        g = g * (x != layer.padding_idx).reshape(len(x), 1, -1, 1)
    return g[:, :, None]


def _read(layer: nn.Linear | nn.Embedding | Convolution, x: Tensor) -> Tensor:
    """Inputs of a layer at its positions, `[B, G, T, D]`: vectors, or patches of a map; tokens `[B, 1, T]`."""
    if isinstance(layer, nn.Embedding):
        return x.reshape(len(x), 1, -1)
    if isinstance(layer, nn.Linear):
        return x.reshape(len(x), 1, -1, x.shape[-1])
    axes, mode = len(layer.kernel_size), "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    x = F.pad(x, layer._reversed_padding_repeated_twice, mode=mode)
    for axis, (size, step, apart) in enumerate(zip(layer.kernel_size, layer.stride, layer.dilation, strict=True), 2):
        x = x.unfold(axis, apart * (size - 1) + 1, step)[..., ::apart]
    positions = x.shape[2 : 2 + axes].numel()
    x = x.movedim(tuple(range(2, 2 + axes)), tuple(range(-axes, 0)))  # positions last: copied in longer runs
    return x.reshape(len(x), layer.groups, -1, positions).transpose(2, 3)


def _products(g: Tensor, u: Tensor) -> Tensor:
    r"""Gradients $\sum_t g_t u_t^⊤$ `[B, C, P]` of a weight from `[B, C, G, T, O]` and `[B, G, T, D]`."""
    b, c, groups, positions, _ = g.shape
    each = g.permute(0, 2, 1, 4, 3).reshape(b, groups, -1, positions) @ u
    return each.view(b, groups, c, -1).transpose(1, 2).flatten(2)


def _gradients(layer: nn.Module, local: Local, x: Tensor, g: Tensor, wanted: Collection[str]) -> Tensor:
    """Per-sample gradients `[B, P]` of a layer's wanted parameters, by its rule."""
    gradients = cast(Rule, rule_for(layer)).gradients(layer, local, x, g)
    return torch.cat([gradients[name].flatten(1) for name in wanted], 1)


def _kept(g: Tensor, summed: bool) -> Tensor:
    """`[B, C, G, T, O]` as `[B, G, R, T, O]`; summed outputs are treated as more outputs of the layer."""
    return g.permute(0, 2, 3, 1, 4).flatten(3)[:, :, None] if summed else g.transpose(1, 2).contiguous()
