"""Layers whose per-sample weight gradients are known in closed form.

From a layer's input `x` and the gradient at its output `g`, both with the samples on the first axis, a rule computes
the gradients of its parameters, one per sample, and (if there is a cheaper method than squaring those) the sum of their
squares. `rule_for` returns the rule of a layer; layers without a rule are differentiated by autograd.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearkin.fisher.contraction import contracted_squares
from nearkin.fisher.convolution import Convolution, convolution_gradients, convolution_squares

Local: TypeAlias = Mapping[str, Tensor]
"""A layer's own parameters and buffers by their local names."""

Gradients: TypeAlias = Callable[[Any, Local, Tensor, Tensor], dict[str, Tensor]]
"""(layer, local, x, g) → per-sample gradients `[B, *shape]` by local name."""

Squares: TypeAlias = Callable[[Any, Local, Tensor, Sequence[Tensor], dict[str, Tensor]], None]
"""(layer, local, x, gradients, into) adds the sums of squares of each gradient at one input to `into`."""


NORM_FLOATS = 1 << 16  # activations that are multiplied at once


@dataclass(frozen=True)
class Rule:
    """How the gradients of a kind of layer are computed, and their squares if that is cheaper than squaring them."""

    gradients: Gradients
    squares: Squares | None = None

    def add_squares(
        self, layer: nn.Module, local: Local, x: Tensor, gradients: Sequence[Tensor], into: dict[str, Tensor]
    ) -> None:
        """Add the squared weight gradients of every sample to `into`, by local name, for every gradient at `x`."""
        if self.squares is not None:
            self.squares(layer, local, x, gradients, into)
            return
        for g in gradients:
            for name, gradient in self.gradients(layer, local, x, g).items():
                into[name] += gradient.square().sum(0)  # not in place: a gradient may be g itself


def _over_positions(g: Tensor) -> Tensor:
    """Sums `[B, C]` of `[B, C, …]` over all axes after the channels."""
    return g.flatten(2).sum(2) if g.dim() > 2 else g


def _linear_gradients(layer: nn.Linear, local: Local, x: Tensor, g: Tensor) -> dict[str, Tensor]:
    rows, columns = g.reshape(len(g), -1, g.shape[-1]), x.reshape(len(x), -1, x.shape[-1])
    gradients = {"weight": rows.transpose(1, 2) @ columns}
    return gradients if layer.bias is None else {**gradients, "bias": rows.sum(1)}


def _linear_squares(
    layer: nn.Linear, local: Local, x: Tensor, gradients: Sequence[Tensor], into: dict[str, Tensor]
) -> None:
    r"""Without positions, $\sum_b (g_{bo} x_{bi})^2 = (g^2)^\top x^2$: one product for all gradients at x."""
    if x.dim() == 2:
        squared = gradients[0].square()
        for g in gradients[1:]:
            squared.addcmul_(g, g)
        into["weight"].addmm_(squared.t(), x.square())
        if "bias" in into:
            into["bias"] += squared.sum(0)
        return
    for g in gradients:
        rows, columns = g.flatten(1, -2), x.flatten(1, -2)
        contracted_squares(rows.transpose(1, 2), columns, into["weight"])
        if "bias" in into:
            into["bias"] += rows.sum(1).square_().sum(0)


def _convolution_gradients(layer: nn.Conv2d, local: Local, x: Tensor, g: Tensor) -> dict[str, Tensor]:
    gradients = {"weight": convolution_gradients(layer, x, g)}
    return gradients if layer.bias is None else {**gradients, "bias": _over_positions(g)}


def _convolution_squares(
    layer: Convolution, local: Local, x: Tensor, gradients: Sequence[Tensor], into: dict[str, Tensor]
) -> None:
    convolution_squares(layer, x, gradients, into["weight"])
    if "bias" in into:
        for g in gradients:
            into["bias"] += _over_positions(g).square_().sum(0)


def _affine(normalised: Tensor, g: Tensor, local: Local) -> dict[str, Tensor]:
    """Gradients of y = w·x̂ + b with one weight a channel."""
    gradients = {"weight": _over_positions(g * normalised), "bias": _over_positions(g)}
    return {name: value for name, value in gradients.items() if name in local}


def _batch_norm(layer: nn.BatchNorm2d, local: Local, x: Tensor, g: Tensor) -> dict[str, Tensor]:
    """In evaluation mode an affine map: Σ g x̂ = (Σ g x − mean Σ g) / deviation, without forming x̂."""
    total = _over_positions(g)
    product = _products(g.flatten(2), x.flatten(2)) if g.dim() > 2 else g * x
    deviation = (local["running_var"] + layer.eps).sqrt()
    gradients = {"weight": (product - local["running_mean"] * total) / deviation, "bias": total}
    return {name: value for name, value in gradients.items() if name in local}


def _products(g: Tensor, x: Tensor) -> Tensor:
    """Sums `[B, C]` of g x over positions, for as many samples at a time as fit the cache."""
    size = max(1, NORM_FLOATS // g[0].numel())
    return torch.cat([torch.linalg.vecdot(*pair) for pair in zip(g.split(size), x.split(size), strict=True)])


def _group_norm(layer: nn.GroupNorm, local: Local, x: Tensor, g: Tensor) -> dict[str, Tensor]:
    return _affine(F.group_norm(x, layer.num_groups, None, None, layer.eps), g, local)


def _instance_norm(layer: nn.InstanceNorm2d, local: Local, x: Tensor, g: Tensor) -> dict[str, Tensor]:
    own = "running_mean" not in local
    mean, variance = (None, None) if own else (local["running_mean"], local["running_var"])
    return _affine(F.instance_norm(x, mean, variance, use_input_stats=own, eps=layer.eps), g, local)


def _layer_norm(layer: nn.LayerNorm, local: Local, x: Tensor, g: Tensor) -> dict[str, Tensor]:
    normalised = F.layer_norm(x, layer.normalized_shape, None, None, layer.eps)
    shape = (len(g), -1, *layer.normalized_shape)
    gradients = {"weight": (g * normalised).reshape(shape).sum(1), "bias": g.reshape(shape).sum(1)}
    return {name: value for name, value in gradients.items() if name in local}


def _embedding_rows(layer: nn.Embedding, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sample and word of every pair that occurs, and the word's gradient in the sample."""
    words, vectors = x.reshape(len(x), -1), g.reshape(len(g), -1, g.shape[-1])
    keys = torch.arange(len(x), device=x.device)[:, None] * layer.num_embeddings + words
    pairs, index = keys.flatten().unique(return_inverse=True)
    rows = vectors.new_zeros(len(pairs), g.shape[-1]).index_add_(0, index, vectors.flatten(0, 1))
    sample, word = pairs // layer.num_embeddings, pairs % layer.num_embeddings
    if layer.padding_idx is not None:
        rows[word == layer.padding_idx] = 0
    return sample, word, rows


def _embedding_gradients(layer: nn.Embedding, local: Local, x: Tensor, g: Tensor) -> dict[str, Tensor]:
    sample, word, rows = _embedding_rows(layer, x, g)
    gradient = g.new_zeros(len(x), layer.num_embeddings, layer.embedding_dim)
    gradient[sample, word] = rows
    return {"weight": gradient}


def _embedding_squares(
    layer: nn.Embedding, local: Local, x: Tensor, gradients: Sequence[Tensor], into: dict[str, Tensor]
) -> None:
    for g in gradients:
        _, word, rows = _embedding_rows(layer, x, g)
        into["weight"].index_add_(0, word, rows.square_())


CONVOLUTION = Rule(_convolution_gradients, _convolution_squares)
RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: Rule(_linear_gradients, _linear_squares),
    nn.Conv1d: CONVOLUTION,
    nn.Conv2d: CONVOLUTION,
    nn.Conv3d: CONVOLUTION,
    nn.ConvTranspose2d: Rule(_convolution_gradients),
    nn.BatchNorm1d: Rule(_batch_norm),
    nn.BatchNorm2d: Rule(_batch_norm),
    nn.BatchNorm3d: Rule(_batch_norm),
    nn.LayerNorm: Rule(_layer_norm),
    nn.GroupNorm: Rule(_group_norm),
    nn.InstanceNorm1d: Rule(_instance_norm),
    nn.InstanceNorm2d: Rule(_instance_norm),
    nn.InstanceNorm3d: Rule(_instance_norm),
    nn.Embedding: Rule(_embedding_gradients, _embedding_squares),
}


def rule_for(layer: nn.Module) -> Rule | None:
    """The rule of exactly this class of layer; a subclass may compute something else, so it has no rule.

    >>> rule_for(nn.Conv2d(1, 1, 3)) is CONVOLUTION, rule_for(nn.Bilinear(1, 1, 1)) is None
    (True, True)
    """
    if isinstance(layer, nn.Embedding) and (layer.max_norm is not None or layer.scale_grad_by_freq):
        return None
    return RULES.get(type(layer))
