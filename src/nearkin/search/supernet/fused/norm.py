r"""Batch norm whose weights are an argument, with an efficient second derivative.

With channels last, torch's batch norm sums thousands of values sequentially and loses a digit; here the sums are
computed in blocks.

Notation, channel by channel: M values $x$ with mean $\mu$, $s = 1/\sqrt{\mathrm{var} + \epsilon}$,
$\hat x = s (x - \mu)$, weight $w$, gradient $g$ of the output $w \hat x$; $\bar a$ is the mean of $a$ over M values.
The projection $P a = a - \bar a - \hat x\, \overline{a \hat x}$ is its own adjoint, and the gradients are
$w s P g$ in $x$ and $\sum g \hat x$ in $w$. The derivative of $\langle u, w s P g\rangle + v \sum g \hat x$ is

- $w s P u + v \hat x$ in $g$,
- $s \langle u, P g \rangle$ in $w$,
- $s P q - w s^2 \hat x\, \langle u, P g \rangle / M$ in $x$, with
  $q = (v - w s\, \overline{u \hat x})\, g - w s\, \overline{g \hat x}\, u$.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

EPS, MOMENTUM = 1e-5, 0.1  # of nn.BatchNorm2d


def batch_norm(x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, training: bool) -> Tensor:
    """Normalise `[N, C, H, W]` by batch statistics (training) or running ones, and multiply by the weight `[C]`.

    >>> x = torch.arange(4.0).view(2, 2, 1, 1)
    >>> batch_norm(x, torch.zeros(2), torch.ones(2), torch.tensor([1.0, 2.0]), True).flatten().round().tolist()
    [-1.0, -2.0, 1.0, 2.0]
    """
    if not training:
        return F.batch_norm(x, mean, var, weight, None, False, MOMENTUM, EPS)
    outputs: Tensor = _Norm.apply(x, weight, mean, var)  # type: ignore[no-untyped-call]
    return outputs


class AccurateNorm(nn.BatchNorm2d):
    """`nn.BatchNorm2d` whose statistics are as accurate with channels last as with channels first."""

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W]`, normalised."""
        assert self.running_mean is not None
        assert self.running_var is not None
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        outputs = batch_norm(x, self.running_mean, self.running_var, self.weight, self.training)
        return outputs + _wide(self.bias) if self.affine else outputs


def with_accurate_norms(module: nn.Module) -> nn.Module:
    """Replace every batch norm with default settings by an `AccurateNorm` with the same weights."""
    if (
        type(module) is nn.BatchNorm2d
        and module.track_running_stats
        and (module.eps, module.momentum) == (EPS, MOMENTUM)
    ):
        other = AccurateNorm(module.num_features, affine=module.affine)
        other.load_state_dict(module.state_dict())
        return other
    for name, child in module.named_children():
        setattr(module, name, with_accurate_norms(child))
    return module


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, mean: Tensor, var: Tensor) -> Tensor:
        count = x.numel() // x.shape[1]
        middle = x.mean((0, 2, 3))
        centred = x - _wide(middle)
        spread = centred.square().mean((0, 2, 3))
        scale = (spread + EPS).rsqrt()
        mean.lerp_(middle, MOMENTUM)
        var.lerp_(spread * (count / max(1, count - 1)), MOMENTUM)
        ctx.save_for_backward(x, weight, middle, scale)
        return centred.mul_(_wide(scale if weight is None else scale * weight))

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        x, weight, middle, scale = ctx.saved_tensors
        run = _NormGradients.apply if torch.is_grad_enabled() else _gradients
        in_x, in_weight = run(slope, x, weight, middle, scale)
        return in_x, None if weight is None else in_weight, None, None


def _gradients(slope: Tensor, x: Tensor, weight: Tensor | None, middle: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    gradients = torch.ops.aten.native_batch_norm_backward(
        slope, x, weight, None, None, middle, scale, True, EPS, (True, weight is not None, False)
    )
    return gradients[0], scale if weight is None else gradients[1]


class _NormGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, slope: Tensor, x: Tensor, weight: Tensor | None, middle: Tensor, scale: Tensor) -> Any:
        ctx.save_for_backward(slope, x, weight, middle, scale)
        ctx.set_materialize_grads(False)
        return _gradients(slope, x, weight, middle, scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, u: Tensor | None, v: Tensor | None) -> Any:
        g, x, weight, middle, s = ctx.saved_tensors
        w = torch.ones_like(s) if weight is None else weight
        v = torch.zeros_like(s) if v is None or weight is None else v
        u = torch.zeros_like(x) if u is None else u
        mean_u, mean_g, mean_ug = u.mean((0, 2, 3)), g.mean((0, 2, 3)), (u * g).mean((0, 2, 3))
        ux = s * ((u * x).mean((0, 2, 3)) - middle * mean_u)
        gx = s * ((g * x).mean((0, 2, 3)) - middle * mean_g)
        inner = mean_ug - mean_u * mean_g - ux * gx  # ⟨u, P g⟩ / M
        on_u, on_g = -w * s * gx, v - w * s * ux  # q = on_u · u + on_g · g
        mean_q, mean_qx = on_u * mean_u + on_g * mean_g, on_u * ux + on_g * gx
        in_g = _affine(u, w * s, x, s * (v - w * s * ux), -w * s * mean_u - s * (v - w * s * ux) * middle)
        on_x = -s * (mean_qx + w * s * inner)
        in_x = _affine(u, s * on_u, x, s * on_x, -s * (mean_q + on_x * middle)).addcmul_(g, _wide(s * on_g))
        count = x.numel() // x.shape[1]
        return in_g, in_x, None if weight is None else count * s * inner, None, None


def _affine(a: Tensor, on_a: Tensor, b: Tensor, on_b: Tensor, constant: Tensor) -> Tensor:
    """Channel by channel `on_a · a + on_b · b + constant`."""
    return torch.addcmul(_wide(constant), a, _wide(on_a)).addcmul_(b, _wide(on_b))


def _wide(channels: Tensor) -> Tensor:
    return channels[:, None, None]
