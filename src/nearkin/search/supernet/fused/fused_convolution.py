r"""A convolution whose second derivatives are single convolutions.

torch computes the second derivative of a grouped convolution group by group, and that of others inefficiently; this
took most of the time of an exact second-order step. A convolution $y = x * w$ is bilinear, and so are its two
gradients: with $A(g, w)$ the gradient in $x$ and $B(g, x)$ the gradient in $w$, the derivative of $\langle u, A \rangle
+ \langle v, B \rangle$ is $u * w + x * v$ in $g$, $A(g, v)$ in $x$ and $B(g, u)$ in $w$.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

_FIXED: ContextVar[bool] = ContextVar("fixed", default=False)


@contextmanager
def fixed_weights() -> Iterator[None]:
    """In this context, gradients of the kernels are not computed, because only those of the architecture are used."""
    token = _FIXED.set(True)
    try:
        yield
    finally:
        _FIXED.reset(token)


def convolution(
    x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> Tensor:
    """`F.conv2d` without bias.

    >>> x, weight = torch.ones(1, 2, 3, 3), torch.ones(2, 1, 3, 3)
    >>> convolution(x, weight, (1, 1), (1, 1), (1, 1), 2)[0, 0, 1, 1].item()
    9.0
    """
    outputs: Tensor = _Convolution.apply(x, weight, stride, padding, dilation, groups)  # type: ignore[no-untyped-call]
    return outputs


def _gradients(ctx: Any, slope: Tensor, x: Tensor, weight: Tensor, wanted: Sequence[bool]) -> tuple[Tensor, Tensor]:
    gradients = torch.ops.aten.convolution_backward(
        slope, x, weight, None, ctx.stride, ctx.padding, ctx.dilation, False, (0, 0), ctx.groups, (*wanted, False)
    )
    return gradients[0], gradients[1]


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int) -> Tensor:
        ctx.stride, ctx.padding, ctx.dilation, ctx.groups = stride, padding, dilation, groups
        ctx.save_for_backward(x, weight)
        return F.conv2d(x, weight, None, stride, padding, dilation, groups)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        wanted = (ctx.needs_input_grad[0], ctx.needs_input_grad[1] and not _FIXED.get())
        if torch.is_grad_enabled():
            geometry = (ctx.stride, ctx.padding, ctx.dilation, ctx.groups)
            both = _ConvolutionGradients.apply(slope, x, weight, wanted, geometry)  # type: ignore[no-untyped-call]
        else:
            both = _gradients(ctx, slope, x, weight, wanted)
        return *(value if want else None for value, want in zip(both, wanted, strict=True)), None, None, None, None


class _ConvolutionGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, slope: Tensor, x: Tensor, weight: Tensor, wanted: tuple[bool, bool], geometry: Any) -> Any:
        ctx.stride, ctx.padding, ctx.dilation, ctx.groups = geometry
        ctx.save_for_backward(slope, x, weight)
        ctx.set_materialize_grads(False)
        return _gradients(ctx, slope, x, weight, wanted)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, u: Tensor | None, v: Tensor | None) -> Any:
        slope, x, weight = ctx.saved_tensors
        geometry = (None, ctx.stride, ctx.padding, ctx.dilation, ctx.groups)
        in_slope = None if u is None else F.conv2d(u, weight, *geometry)
        if v is not None:
            moved = F.conv2d(x, v, *geometry)
            in_slope = moved if in_slope is None else in_slope.add_(moved)
        in_x = None if v is None or not ctx.needs_input_grad[1] else _gradients(ctx, slope, x, v, (True, False))[0]
        wanted = u is not None and ctx.needs_input_grad[2] and not _FIXED.get()
        in_weight = _gradients(ctx, slope, u, weight, (False, True))[1] if wanted and u is not None else None
        return in_slope, in_x, in_weight, None, None
