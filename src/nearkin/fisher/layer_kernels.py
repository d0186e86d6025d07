r"""What single layers add to a tangent kernel, from their inputs `x` and the gradients `g` at their outputs.

A layer that applies one weight matrix at T positions has the gradient $\sum_t g_t u_t^⊤$, where $u_t$ is what it read
there (a convolution: a patch). Two samples' gradients meet in

$$k = \Big\langle \sum_t g_t u_t^⊤, \sum_s g'_s u_s'^⊤ \Big\rangle = \sum_{t,s} (u_t^⊤ u'_s)(g_t^⊤ g'_s),$$

and a bias adds one to $u_t^⊤ u'_s$. The left form keeps per-sample gradients of this layer alone (`Rows`), the right
one keeps their factors (`Pairs`); which is cheaper depends on the layer's sizes (`pairs_are_cheaper`).

Notation: B samples, C outputs of the network, R outputs kept apart (C, or 1 where the kernel is their sum), P weights;
a layer has T positions and G groups of D inputs and O outputs.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Convolution: TypeAlias = nn.Conv1d | nn.Conv2d | nn.Conv3d
KNOWN: frozenset[type[nn.Module]] = frozenset(
    {nn.Linear, nn.Embedding, nn.LayerNorm, nn.GroupNorm, nn.Conv1d, nn.Conv2d, nn.Conv3d}
    | {nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d}
)
MOVED = 16  # multiply-adds of a matrix product in the time one number takes to be written and read again
SCRATCH = 2**20  # numbers that one step of a contraction may hold


@dataclass(frozen=True, eq=False)
class Rows:
    """Per-sample gradients `values` `[B, R, P]`; their kernel is one matrix product."""

    values: Tensor

    def part(self, start: int, stop: int) -> "Rows":
        """The samples from `start` to `stop`."""
        return Rows(self.values[start:stop])

    def num_bytes(self) -> int:
        """Memory of these numbers."""
        return self.values.nbytes


@dataclass(frozen=True, eq=False)
class Pairs:
    """Factors of per-sample gradients; their kernel runs over pairs of positions.

    Attributes:
        u: `[B, G, T, D]` what the layer read; of an embedding the tokens `[B, G, T]`.
        g: `[B, G, R, T, O]` gradients at what it gave.
        bias: whether the bias is among the parameters.
    """

    u: Tensor
    g: Tensor
    bias: bool

    def part(self, start: int, stop: int) -> "Pairs":
        """The samples from `start` to `stop`."""
        return Pairs(self.u[start:stop], self.g[start:stop], self.bias)

    def num_bytes(self) -> int:
        """Memory of these numbers."""
        return self.u.nbytes + self.g.nbytes


Feature: TypeAlias = Rows | Pairs


def pairs_are_cheaper(
    positions: int, inputs: int, outputs: int, num_outputs: int, summed: bool, partners: int, words: bool = False
) -> bool:
    """Whether a sample meets `partners` others at less cost by `Pairs` than by `Rows`; both have G alike.

    Costs are multiply-adds for one pair of samples, building the rows shared among all partners.

    Args:
        positions: T.
        inputs: D.
        outputs: O.
        num_outputs: C.
        summed: whether the kernel is summed over outputs.
        partners: samples that each sample meets.
        words: whether what was read are D words, which are compared, not multiplied.

    >>> pairs_are_cheaper(1, 784, 512, 1, False, 1000), pairs_are_cheaper(784, 25, 6, 1, False, 1000)
    (True, False)
    """
    products = num_outputs if summed else num_outputs**2
    kept = 1 if summed else products
    built = num_outputs * inputs * outputs
    rows = products * inputs * outputs + built * (positions + MOVED) / partners
    pairs = positions**2 * ((MOVED if words else inputs) + products * outputs + kept * MOVED)
    return pairs < rows


def feature(layer: nn.Module, x: Tensor, g: Tensor, wanted: Collection[str], summed: bool, partners: int) -> Feature:
    """The numbers of one call of a layer that its part of the kernel needs.

    Args:
        layer: one whose type is in `KNOWN`.
        x: `[B, …]` what it read.
        g: `[B, C, …]` gradients of the network's outputs at what it gave.
        wanted: which of its parameters count: `weight`, `bias` or both.
        summed: whether the kernel is summed over outputs.
        partners: samples that each sample meets; see `pairs_are_cheaper`.

    >>> x, g = torch.tensor([[1.0, 2.0]]), torch.tensor([[[3.0]]])
    >>> one, k = feature(nn.Linear(2, 1), x, g, ("weight", "bias"), False, 1), torch.zeros(1, 1)
    >>> add_kernel(k, one, one)
    >>> k  # (1 + 4 + 1) 9
    tensor([[54.]])
    """
    weight, bias = "weight" in wanted, "bias" in wanted
    if not isinstance(layer, nn.Linear | nn.Embedding | Convolution):
        return _rows(_norm_parts(layer, x, g, weight, bias), summed)
    u, g = _factors(layer, x, g)
    words = isinstance(layer, nn.Embedding)
    _, num_outputs, _, positions, outputs = g.shape
    inputs = layer.weight.shape[0] if words else layer.weight[0].numel()
    if weight and pairs_are_cheaper(positions, inputs, outputs, num_outputs, summed, partners, words):
        return Pairs(u.contiguous(), _kept(g, summed), bias)
    parts = [_weight_rows(layer, u, g)] if weight else []
    return _rows(parts + ([g.sum(3).flatten(2)] if bias else []), summed)


def room_for(made: Feature, count: int) -> Feature:
    """Uninitialised features of `count` samples, like those made of some."""
    if isinstance(made, Rows):
        return Rows(made.values.new_empty(count, *made.values.shape[1:]))
    u, g = (value.new_empty(count, *value.shape[1:]) for value in (made.u, made.g))
    return Pairs(u, g, made.bias)


def write(into: Feature, made: Feature) -> None:
    """Copy features into room for them: the memory of a batch is free for the next one, and stays warm."""
    for name in ("values",) if isinstance(into, Rows) else ("u", "g"):
        getattr(into, name).copy_(getattr(made, name))


def add_kernel(out: Tensor, left: Feature, right: Feature) -> None:
    """Add the kernel of two features to `out` `[A R, B R]` in place."""
    if isinstance(left, Rows):
        out.addmm_(left.values.flatten(0, 1), cast(Rows, right).values.flatten(0, 1).t())
        return
    right = cast(Pairs, right)
    kept, positions = left.g.shape[2:4]
    height = max(1, SCRATCH // (len(right.g) * (kept * positions) ** 2))
    for start in range(0, len(left.g), height):
        some = left.part(start, start + height)
        for group in range(left.g.shape[1]):
            _add_pairs(out[start * kept : (start + height) * kept], some, right, group)


def _add_pairs(out: Tensor, left: Pairs, right: Pairs, group: int) -> None:
    r"""Add one group's $\sum_{t,s} (u_t^⊤ u'_s + 1)(g_t^⊤ g'_s)$ to `out` `[A R, B R]`."""
    (a, _, kept, positions, _), b = left.g.shape, len(right.g)
    outer = left.g[:, group].flatten(0, 2) @ right.g[:, group].flatten(0, 2).t()
    if left.u.is_floating_point():
        inner = left.u[:, group].flatten(0, 1) @ right.u[:, group].flatten(0, 1).t()
        inner = inner.add_(1) if left.bias else inner
    else:
        inner = (left.u[:, group].flatten()[:, None] == right.u[:, group].flatten()).to(outer.dtype)
    if kept * positions == 1:
        out.addcmul_(inner, outer)
        return
    terms = outer.view(a, kept, positions, b, kept, positions)
    terms.mul_(inner.view(a, 1, positions, b, 1, positions))
    out.add_(terms.sum((2, 5)).view(a * kept, b * kept))


def _factors(layer: nn.Linear | nn.Embedding | Convolution, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """What a layer read at its positions `[B, G, T, D]` (tokens `[B, 1, T]`), and the gradients `[B, C, G, T, O]`."""
    b, c = g.shape[:2]
    if isinstance(layer, Convolution):
        return _patches(layer, x), g.reshape(b, c, layer.groups, -1, math.prod(g.shape[3:])).transpose(3, 4)
    g = g.reshape(b, c, 1, -1, g.shape[-1])
    if isinstance(layer, nn.Linear):
        return x.reshape(b, 1, -1, x.shape[-1]), g
    tokens = x.reshape(b, 1, -1)
    if layer.padding_idx is not None:
        g = g * (tokens != layer.padding_idx)[:, None, :, :, None]
    return tokens, g


def _patches(layer: Convolution, x: Tensor) -> Tensor:
    """Patches `[B, G, T, D]` that a convolution reads from `[B, G D', …]`."""
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    padding = layer._reversed_padding_repeated_twice
    x = F.pad(x, padding, mode=mode).contiguous() if any(padding) else x.contiguous()
    (b, channels, *sides), steps = x.shape, x.stride()[2:]
    spans = [d * (k - 1) + 1 for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
    places = [(side - span) // s + 1 for side, span, s in zip(sides, spans, layer.stride, strict=True)]
    inside = [step * d for step, d in zip(steps, layer.dilation, strict=True)]
    across = [step * s for step, s in zip(steps, layer.stride, strict=True)]
    x = x.as_strided((b, channels, *layer.kernel_size, *places), (*x.stride()[:2], *inside, *across))
    return x.reshape(b, layer.groups, -1, math.prod(places)).transpose(2, 3)


def _weight_rows(layer: nn.Module, u: Tensor, g: Tensor) -> Tensor:
    r"""Per-sample gradients $\sum_t g_t u_t^⊤$ of a weight, `[B, C, P]`."""
    b, c, groups, positions, outputs = g.shape
    if isinstance(layer, nn.Embedding):
        table = g.new_zeros(b, layer.num_embeddings, c, outputs)
        at = u[:, 0, :, None, None].expand(b, positions, c, outputs)
        return table.scatter_add_(1, at, g[:, :, 0].transpose(1, 2)).transpose(1, 2).flatten(2)
    factors = g.permute(0, 2, 1, 4, 3).reshape(b, groups, c * outputs, positions)
    return (factors @ u).view(b, groups, c, -1).transpose(1, 2).flatten(2)


def _norm_parts(layer: nn.Module, x: Tensor, g: Tensor, weight: bool, bias: bool) -> list[Tensor]:
    """Per-sample gradients `[B, C, P]` of a norm's scale and shift: sums of `g` times the normalised input, of `g`."""
    b, c = g.shape[:2]
    if isinstance(layer, nn.LayerNorm):
        size = math.prod(layer.normalized_shape)
        scaled = F.layer_norm(x, layer.normalized_shape, eps=layer.eps).reshape(b, 1, -1, size)
        g, over = g.reshape(b, c, -1, size), 2
    else:
        scaled, g, over = _normalised(layer, x).reshape(b, 1, x.shape[1], -1), g.reshape(b, c, x.shape[1], -1), 3
    return [(g * scaled).sum(over)] * weight + [g.sum(over)] * bias


def _normalised(layer: nn.Module, x: Tensor) -> Tensor:
    """What a norm over channels gives before scale and shift."""
    if isinstance(layer, nn.GroupNorm):
        return F.group_norm(x, layer.num_groups, eps=layer.eps)
    norm = cast(nn.BatchNorm2d, layer)
    if norm.running_mean is None:
        return F.instance_norm(x, eps=norm.eps)
    return F.batch_norm(x, norm.running_mean, norm.running_var, eps=norm.eps)


def _kept(g: Tensor, summed: bool) -> Tensor:
    """`[B, C, G, T, O]` as `[B, G, R, T, O]`; summed outputs stand beside each other as more numbers of a layer."""
    if summed:
        b, _, groups, positions, _ = g.shape
        return g.permute(0, 2, 3, 1, 4).reshape(b, groups, 1, positions, -1)
    return g.transpose(1, 2).contiguous()


def _rows(parts: Sequence[Tensor], summed: bool) -> Rows:
    """Rows of all a layer's parameters `[B, C, P]`; summed outputs stand beside each other as more parameters."""
    values = parts[0] if len(parts) == 1 else torch.cat(list(parts), 2)
    return Rows(values.flatten(1)[:, None] if summed else values)
