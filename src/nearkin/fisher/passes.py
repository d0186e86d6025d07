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
"""Outputs `[N, *out]` of one batch as a function of the weights."""


@contextmanager
def gradients_enabled() -> Iterator[None]:
    """Enable all kinds of differentiation within the block, also if the caller has disabled them.

    Solvers compute products in functions without derivatives; there the results would be zero without an error.

    >>> with torch.inference_mode(), gradients_enabled():
    ...     torch.ones(1).requires_grad_().exp().requires_grad
    True
    """
    with torch.inference_mode(False), torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
        yield


def leaves(params: Params) -> Params:
    """The same values as new leaves of a graph; the tensors passed in are not changed."""
    return {name: value.detach().requires_grad_() for name, value in params.items()}


def plain_pass(f: Function, params: Params) -> Tensor:
    """Outputs of the network; an error of one line if it fails."""
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
    """Outputs with their graph, and Jv, from one pass through the network; `params` must be leaves.

    >>> theta = leaves({"w": torch.tensor([3.0])})
    >>> [value.item() for value in dual_pass(lambda p: p["w"] ** 2, theta, {"w": torch.tensor([1.0])})]
    [9.0, 6.0]
    """
    with forward_ad.dual_level() as level:
        # not forward_ad.make_dual: its first call compiles derivatives of backward formulas, which takes seconds
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
    r"""$J^\top u$ by name, by one forward and one backward pass; `cotangent` computes u from the outputs."""
    theta = leaves(params)
    with torch.enable_grad():
        outputs = plain_pass(f, theta)
    return gradients(outputs, theta, cotangent(outputs.detach()))


def line_of(failed: Exception) -> str:
    """The message of an error in one short line."""
    return " ".join(str(failed).split())[:160]
