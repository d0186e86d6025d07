r"""Per-sample gradients by automatic differentiation, for weights that no formula covers.

A cotangent `c` `[B, *outputs]` stands for the sample's loss: the gradient of sample b is $J_b^\top c_b$, where a sample
is a batch of one.
"""

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from nearkin.core.types import Params
from nearkin.fisher.tape import Network, network_outputs

MEMORY_BYTES = 256 * 2**20


def autodiff_gradients(
    model: Network, weights: Mapping[str, Tensor], names: tuple[str, ...], x: Tensor, cotangent: Tensor,
    alone: bool = False,
) -> Params:  # fmt: skip
    """Per-sample gradients `[B, *shape]` of the named parameters.

    Args:
        model: the network.
        weights: all its parameters and buffers, detached.
        names: parameters to differentiate by.
        x: inputs `[B, *input_shape]`.
        cotangent: `[B, *outputs]`.
        alone: sample by sample; else by `vmap(grad)`, and sample by sample if that fails.
    """
    chosen = {name: weights[name] for name in names}

    def inner(some: Params, sample: Tensor, c: Tensor) -> Tensor:
        return (network_outputs(model, {**weights, **some}, sample[None])[0] * c).sum()

    if not alone and len(x) > 1:
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "There is a performance drop")  # slow, and right
                found: Params = vmap(grad(inner), in_dims=(None, 0, 0))(chosen, x, cotangent)
            return found
        except Exception:  # an operation without a batching rule; an error of the network's own comes again below
            pass
    each = [single_gradients(model, weights, names, x[b : b + 1], cotangent[b : b + 1]) for b in range(len(x))]
    return {name: torch.stack([gradients[name] for gradients in each]) for name in names}


def single_gradients(
    model: Network, weights: Mapping[str, Tensor], names: Collection[str], x: Tensor, cotangent: Tensor
) -> Params:
    """Gradients of one sample `[1, *input_shape]` by name, zeros for parameters that it does not use.

    This is the definition: a module runs with its own parameters, and every way to them counts.
    """
    with torch.enable_grad():
        if isinstance(model, nn.Module):
            parameters = dict(model.named_parameters())
            free: dict[str, Tensor] = {name: parameters[name] for name in names}
            with _moving(model, free):
                outputs = model(x.detach())
                found = _gradients(outputs, free, cotangent)
        else:
            free = {name: weights[name].detach().requires_grad_() for name in names}
            found = _gradients(model({**weights, **free}, x.detach()), free, cotangent)
    return {name: torch.zeros_like(free[name]) if g is None else g.to_dense() for name, g in found.items()}


def single_outputs(model: Network, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Outputs `[B, …]` without a graph, each sample in a batch of its own."""
    with torch.no_grad():
        return torch.cat([network_outputs(model, weights, sample) for sample in x.detach().split(1)])


def chunk_size(weights: Mapping[str, Tensor], names: tuple[str, ...], memory: int = MEMORY_BYTES) -> int:
    """How many samples' gradients of these parameters fit the memory."""
    size = sum(weights[name].numel() * weights[name].element_size() for name in names)
    return max(1, memory // max(1, 2 * size))


def _gradients(outputs: Tensor, free: Mapping[str, Tensor], cotangent: Tensor) -> dict[str, Tensor | None]:
    if not outputs.requires_grad:
        return dict.fromkeys(free)
    found = torch.autograd.grad((outputs * cotangent).sum(), list(free.values()), allow_unused=True)
    return dict(zip(free, found, strict=True))


@contextmanager
def _moving(model: nn.Module, chosen: Mapping[str, Tensor]) -> Iterator[None]:
    """A block in which the chosen parameters of a module require gradients, and no others do."""
    before = {parameter: parameter.requires_grad for parameter in model.parameters()}
    try:
        for parameter in before:
            parameter.requires_grad_(False)
        for value in chosen.values():
            value.requires_grad_(True)
        yield
    finally:
        for parameter, moving in before.items():
            parameter.requires_grad_(moving)
