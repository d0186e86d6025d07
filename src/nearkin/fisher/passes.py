r"""Passes through a network as a function of its weights: plain, with a tangent, and backward.

Notation: N samples of one batch, out the shape of one output, θ the weights by name, J the Jacobian
$\partial f / \partial θ$, `[N, *out]` by P.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad

from nearkin.core.errors import MismatchError, NearkinError
from nearkin.core.types import Params

Function: TypeAlias = Callable[[Params], Tensor]
"""Outputs `[N, *out]` of one batch under given weights."""


@contextmanager
def gradients_enabled() -> Iterator[None]:
    """A block in which the network can be differentiated, whatever the caller has switched off.

    Outside of it there would be zeros and no error: solvers run products inside functions without derivatives.

    >>> with torch.inference_mode(), gradients_enabled():
    ...     torch.ones(1).requires_grad_().exp().requires_grad
    True
    """
    with torch.inference_mode(False), torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
        yield


def leaves(params: Params) -> Params:
    """The same values as new leaves of a graph; the given tensors are left alone."""
    return {name: value.detach().requires_grad_() for name, value in params.items()}


def plain_pass(f: Function, params: Params) -> Tensor:
    """Outputs, or one line that says why there are none."""
    try:
        return f(params)
    except NearkinError:
        raise
    except Exception as failed:
        raise MismatchError(
            f"the network cannot be run on these inputs ({line_of(failed)}); give it inputs [N, *input_shape] of the "
            f"shape and type it was made for"
        ) from failed


def dual_pass(f: Function, params: Params, v: Params) -> tuple[Tensor, Tensor]:
    """Outputs with their graph, and Jv, from one pass through the network; `params` are leaves.

    >>> theta = leaves({"w": torch.tensor([3.0])})
    >>> [value.item() for value in dual_pass(lambda p: p["w"] ** 2, theta, {"w": torch.tensor([1.0])})]
    [9.0, 6.0]
    """
    with forward_ad.dual_level() as level:
        # not forward_ad.make_dual: before its first call it compiles, for seconds, derivatives of backward formulas
        duals = {name: torch._VF._make_dual(value, v[name].detach(), level=level) for name, value in params.items()}
        outputs, tangent = forward_ad.unpack_dual(f(duals))
    return outputs, torch.zeros_like(outputs) if tangent is None else tangent


def gradients(outputs: Tensor, params: Params, u: Tensor, **options: bool) -> Params:
    """Gradient of `(outputs * u).sum()` by name, zeros for weights that the outputs do not depend on."""
    if not outputs.requires_grad:
        return {name: torch.zeros_like(value) for name, value in params.items()}
    values = torch.autograd.grad(outputs, list(params.values()), u, materialize_grads=True, **options)
    return dict(zip(params, values, strict=True))


def backward_pass(f: Function, params: Params, cotangent: Callable[[Tensor], Tensor]) -> Params:
    r"""$J^\top u$ by name from one pass and one backward pass, with u from the outputs."""
    theta = leaves(params)
    with torch.enable_grad():
        outputs = plain_pass(f, theta)
    return gradients(outputs, theta, cotangent(outputs.detach()))


def line_of(failed: Exception) -> str:
    """What an error of torch says, in one short line."""
    return " ".join(str(failed).split())[:160]
