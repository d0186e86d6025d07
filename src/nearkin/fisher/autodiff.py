r"""Per-sample gradients by automatic differentiation, for weights without a formula.

A cotangent `c` `[B, *outputs]` represents the sample's loss: the gradient of sample b, which is run as a batch of one,
is $J_b^\top c_b$.
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
        alone: whether to go sample by sample; otherwise `vmap(grad)` is used, and sample by sample if that fails.
    """
    selected = {name: weights[name] for name in names}

    def inner(params: Params, sample: Tensor, c: Tensor) -> Tensor:
        return (network_outputs(model, {**weights, **params}, sample[None])[0] * c).sum()

    if not alone and len(x) > 1:
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "There is a performance drop")  # slow but correct
                gradients: Params = vmap(grad(inner), in_dims=(None, 0, 0))(selected, x, cotangent)
            return gradients
        except Exception:  # an operation without a batching rule; an error of the network itself is raised again below
            pass
    each = [single_gradients(model, weights, names, x[b : b + 1], cotangent[b : b + 1]) for b in range(len(x))]
    return {name: torch.stack([gradients[name] for gradients in each]) for name in names}


def single_gradients(
    model: Network, weights: Mapping[str, Tensor], names: Collection[str], x: Tensor, cotangent: Tensor
) -> Params:
    """Gradients of one sample `[1, *input_shape]` by name, zeros for parameters that it does not use.

    This is the definition of a per-sample gradient: a module runs with its own parameters, and all their uses count.
    """
    with torch.enable_grad():
        if isinstance(model, nn.Module):
            parameters = dict(model.named_parameters())
            free: dict[str, Tensor] = {name: parameters[name] for name in names}
            with _only_requiring_grad(model, free):
                gradients = _gradients(model(x.detach()), free, cotangent)
        else:
            free = {name: weights[name].detach().requires_grad_() for name in names}
            gradients = _gradients(model({**weights, **free}, x.detach()), free, cotangent)
    return {name: torch.zeros_like(free[name]) if g is None else g.to_dense() for name, g in gradients.items()}


def single_outputs(model: Network, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Outputs `[B, …]` without a graph; every sample runs as a batch of one."""
    with torch.no_grad():
        return torch.cat([network_outputs(model, weights, sample) for sample in x.detach().split(1)])


def chunk_size(weights: Mapping[str, Tensor], names: tuple[str, ...], memory: int = MEMORY_BYTES) -> int:
    """Number of samples whose gradients of these parameters fit the memory."""
    size = sum(weights[name].numel() * weights[name].element_size() for name in names)
    return max(1, memory // max(1, 2 * size))


def _gradients(outputs: Tensor, free: Mapping[str, Tensor], cotangent: Tensor) -> dict[str, Tensor | None]:
    if not outputs.requires_grad:
        return dict.fromkeys(free)
    gradients = torch.autograd.grad((outputs * cotangent).sum(), list(free.values()), allow_unused=True)
    return dict(zip(free, gradients, strict=True))


@contextmanager
def _only_requiring_grad(model: nn.Module, selected: Mapping[str, Tensor]) -> Iterator[None]:
    """Within the block only the selected parameters of a module require gradients."""
    before = {parameter: parameter.requires_grad for parameter in model.parameters()}
    try:
        for parameter in before:
            parameter.requires_grad_(False)
        for value in selected.values():
            value.requires_grad_(True)
        yield
    finally:
        for parameter, required in before.items():
            parameter.requires_grad_(required)
