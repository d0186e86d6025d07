r"""A weighted sum of tensors that stores no products, with its second derivative.

$y = \sum_j w_j x_j$; with the gradient $g$ of $y$ the gradients are $w_j g$ in $x_j$ and $\langle g, x_j \rangle$ in
$w_j$, and the derivative of $\sum_j \langle u_j, w_j g \rangle + v_j \langle g, x_j \rangle$ is $\sum_j w_j u_j + v_j
x_j$ in $g$, $\langle u_j, g \rangle$ in $w_j$ and $v_j g$ in $x_j$.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def weighted_sum(weights: Tensor, terms: Sequence[Tensor]) -> Tensor:
    """Sum of tensors of one shape, each multiplied by its weight of `[J]`.

    >>> weighted_sum(torch.tensor([2.0, 3.0]), [torch.ones(2), torch.ones(2)])
    tensor([5., 5.])
    """
    total: Tensor = _Sum.apply(weights, *terms)  # type: ignore[no-untyped-call]
    return total


def _summed(weights: Sequence[float], terms: Sequence[Tensor]) -> Tensor:
    total = weights[0] * terms[0]
    for weight, term in zip(weights[1:], terms[1:], strict=True):
        total.add_(term, alpha=weight)
    return total


def _inner(slope: Tensor, terms: Sequence[Tensor]) -> Tensor:
    return torch.stack([(slope * term).sum() for term in terms])


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, *terms: Tensor) -> Tensor:
        ctx.save_for_backward(weights, *terms)
        return _summed(weights.tolist(), terms)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        weights, *terms = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _SumGradients.apply(slope, weights, *terms)  # type: ignore[no-untyped-call]
        inner = _inner(slope, terms) if ctx.needs_input_grad[0] else None
        return inner, *(weight * slope for weight in weights.tolist())


class _SumGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, slope: Tensor, weights: Tensor, *terms: Tensor) -> Any:
        ctx.save_for_backward(slope, weights, *terms)
        return _inner(slope, terms), *(weight * slope for weight in weights.tolist())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, v: Tensor, *u: Tensor) -> Any:
        slope, weights, *terms = ctx.saved_tensors
        in_slope = _summed([*weights.tolist(), *v.tolist()], [*u, *terms])
        return in_slope, _inner(slope, u), *(value * slope for value in v.tolist())
