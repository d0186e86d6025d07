r"""Per-sample gradients where they are asked for, and for weights that no formula covers.

A cotangent `c` `[B, *outputs]` stands for the sample's loss: the gradient of sample b is $J_b^\top c_b$.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from nearkin.core.types import Params
from nearkin.fisher.layers import rule_for
from nearkin.fisher.plan import Plan, locally
from nearkin.fisher.tape import outputs_on_tape

MEMORY_BYTES = 256 * 2**20


def rest_gradients(
    model: nn.Module, weights: Mapping[str, Tensor], names: tuple[str, ...], x: Tensor, cotangent: Tensor
) -> Params:
    """Per-sample gradients `[B, *shape]` of the named parameters, by `vmap(grad)`; sample by sample if that fails."""
    chosen = {name: weights[name] for name in names}

    def inner(some: Params, one: Tensor, c: Tensor) -> Tensor:
        outputs: Tensor = functional_call(model, {**weights, **some}, (one[None],))
        return (outputs[0] * c).sum()

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")  # slow, and right
            found: Params = vmap(grad(inner), in_dims=(None, 0, 0))(chosen, x, cotangent)
        return found
    except RuntimeError:  # no batching at all, or control flow that looks at values
        each = [_one_gradient(inner, chosen, x[b], cotangent[b]) for b in range(len(x))]
        return {name: torch.stack([one[name] for one in each]) for name in names}


def _one_gradient(inner: Callable[..., Tensor], chosen: Params, x: Tensor, cotangent: Tensor) -> Params:
    free = {name: value.detach().clone().requires_grad_() for name, value in chosen.items()}
    with torch.enable_grad():
        value = inner(free, x, cotangent)
    if not value.requires_grad:  # this sample took a way past all of them
        return {name: torch.zeros_like(weight) for name, weight in chosen.items()}
    found = zip(free, torch.autograd.grad(value, list(free.values()), allow_unused=True), strict=True)
    return {name: torch.zeros_like(free[name]) if one is None else one for name, one in found}


def chunk_size(weights: Mapping[str, Tensor], names: tuple[str, ...], memory: int = MEMORY_BYTES) -> int:
    """How many samples' gradients of these parameters fit the memory."""
    size = sum(weights[name].numel() * weights[name].element_size() for name in names)
    return max(1, memory // max(1, 2 * size))


def planned_gradients(
    model: nn.Module, weights: Mapping[str, Tensor], plan: Plan, x: Tensor, cotangents: Callable[[Tensor], Tensor]
) -> Params:
    """Per-sample gradients `[B, *shape]` of all parameters of a plan, for one cotangent made from the outputs."""
    found: Params = {}

    def receive(name: str, layer: nn.Module, read: Tensor, g: Tensor) -> None:
        rule = rule_for(layer)
        if rule is not None:
            for local, gradient in rule.gradients(layer, locally(name, weights), read, g).items():
                mine = plan.owners[name][local]
                found[mine] = found[mine] + gradient if mine in found else gradient

    outputs = outputs_on_tape(model, weights, x, plan.layers, receive)
    cotangent = cotangents(outputs.detach())
    if outputs.requires_grad:
        outputs.backward(cotangent)
    if plan.rest:
        found.update(rest_gradients(model, weights, plan.rest, x, cotangent))
    return found


def sample_blocks(count: int, size: int) -> Iterator[slice]:
    """Slices of at most `size` that cover `count` samples.

    >>> list(sample_blocks(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 6, None)]
    """
    return (slice(start, start + size) for start in range(0, count, size))
