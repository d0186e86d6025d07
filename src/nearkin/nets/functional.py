"""A network as a function of its weights: `f(params, buffers, x)`, and what can be said of a network from outside."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nearkin.core.errors import MismatchError, require
from nearkin.core.types import Buffers, Params

Function: TypeAlias = Callable[[Params, Buffers, Tensor], Tensor]
"""Outputs of inputs under given weights and buffers."""


@dataclass(frozen=True, eq=False)
class View:
    """A network seen as a function.

    Attributes:
        f: `f(params, buffers, x)`: outputs, in the mode (training or evaluation) the network has at the call.
        params: a copy of the weights by name; a weight under two names appears once.
        buffers: a copy of running statistics and the like by name.
    """

    f: Function
    params: Params
    buffers: Buffers


def view(model: nn.Module) -> View:
    """The functional view of a network; later changes to the network do not reach the copied values.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> v = view(model)
    >>> x = torch.ones(1, 2)
    >>> bool(torch.equal(v.f(v.params, v.buffers, x), model(x)))
    True
    >>> v.f({"weight": torch.tensor([[2.0, 3.0]])}, v.buffers, x)
    tensor([[5.]])
    """

    def f(params: Params, buffers: Buffers, x: Tensor) -> Tensor:
        outputs: Tensor = functional_call(model, (params, buffers), (x,))
        return outputs

    return View(f, _copied(dict(model.named_parameters())), _copied(dict(model.named_buffers())))


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in tensors.items()}


def load(model: nn.Module, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> None:
    """Write weights and buffers back into a network; every entry must be there and have its shape.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> load(model, {"weight": torch.tensor([[2.0, 3.0]])}, {})
    >>> model.weight.tolist()
    [[2.0, 3.0]]
    >>> load(model, {"weight": torch.zeros(1, 3)}, {})
    Traceback (most recent call last):
    nearkin.core.errors.MismatchError: the values do not fit Linear: weight has shape (1, 3), expected (1, 2); \
load them into the network they were taken from
    """
    wanted = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    given = {**params, **buffers}
    faults = [f"{name} is missing" for name in wanted if name not in given]
    faults += [f"{name} is unexpected" for name in given if name not in wanted]
    faults += [
        f"{name} has shape {tuple(given[name].shape)}, expected {tuple(value.shape)}"
        for name, value in wanted.items()
        if name in given and given[name].shape != value.shape
    ]
    more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
    require(
        not faults,
        f"the values do not fit {type(model).__name__}: {', '.join(faults[:3])}{more}; "
        f"load them into the network they were taken from",
        MismatchError,
    )
    with torch.no_grad():
        for name, value in wanted.items():
            value.copy_(given[name])


def load_common(model: nn.Module, source: nn.Module) -> None:
    """Write into a network what another has under the same name and in the same shape.

    Buffers that are one number stay: they may count the outputs, or the batches seen.

    >>> model, source = nn.Linear(2, 1), nn.Linear(3, 1)
    >>> load_common(model, source)
    >>> bool(model.bias == source.bias)
    True
    """
    given = {**dict(source.named_parameters()), **dict(source.named_buffers())}
    wanted = {**dict(model.named_parameters()), **{n: b for n, b in model.named_buffers() if b.dim() > 0}}
    with torch.no_grad():
        for name, value in wanted.items():
            if name in given and given[name].shape == value.shape:
                value.copy_(given[name])


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients for a block; every module's own mode is put back after.

    >>> model = nn.Dropout()
    >>> with evaluating(model):
    ...     model.training, torch.is_grad_enabled()
    (False, False)
    >>> model.training
    True
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def blank(model: nn.Module, input_shape: Sequence[int], size: int = 2) -> Tensor:
    """A batch of zeros `[size, *input_shape]` that this network can read: tokens if it embeds a sequence.

    >>> blank(nn.Linear(3, 1), (3,)).dtype, blank(nn.Embedding(5, 2), (3,)).dtype
    (torch.float32, torch.int64)
    """
    weight = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    tokens = len(input_shape) == 1 and any(isinstance(module, nn.Embedding) for module in model.modules())
    dtype = torch.int64 if tokens else weight.dtype
    return torch.zeros(size, *input_shape, dtype=dtype, device=weight.device)


def num_parameters(model: nn.Module) -> int:
    """Count of weights, a shared one once.

    >>> num_parameters(nn.Linear(3, 2))
    8
    """
    return sum(parameter.numel() for parameter in model.parameters())


Forward: TypeAlias = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
Transposed: TypeAlias = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d


def _products(layer: Forward | Transposed, x: Tensor, outputs: Tensor) -> int:
    """Products of one call of a layer, those with padding included."""
    if isinstance(layer, nn.Linear):
        return outputs.numel() * layer.in_features
    kernel = math.prod(layer.kernel_size)
    if isinstance(layer, Transposed):
        return x.numel() * kernel * layer.out_channels // layer.groups
    return outputs.numel() * kernel * layer.in_channels // layer.groups


def multiply_adds(model: nn.Module, input_shape: Sequence[int]) -> int:
    """Multiply-adds of linear layers and convolutions for one input; biases, norms and pools are not counted.

    >>> multiply_adds(nn.Sequential(nn.Flatten(), nn.Linear(12, 5)), (3, 2, 2))
    60
    """
    total = 0

    def count(layer: Any, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
        nonlocal total
        total += _products(layer, inputs[0], outputs)

    layers = [module for module in model.modules() if isinstance(module, Forward | Transposed)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    try:
        with evaluating(model):
            model(blank(model, input_shape, size=1))
    finally:
        for hook in hooks:
            hook.remove()
    return total


def outputs_of(model: nn.Module, x: Tensor) -> Tensor:
    """Outputs in evaluation mode, or one line that says why the network does not take such inputs."""
    who = type(model).__name__
    try:
        with evaluating(model):
            outputs = model(x)
    except Exception as failed:
        kind = "inputs" if x.is_floating_point() else "tokens"
        reason = " ".join(str(failed).split())[:160]
        raise MismatchError(
            f"{who} cannot read {kind} of shape {tuple(x.shape[1:])} ({reason}); use a network made for them: "
            f"lenet for images, mlp for tables, recurrent for tokens"
        ) from failed
    if not isinstance(outputs, Tensor):
        raise MismatchError(
            f"{who} returns a {type(outputs).__name__}, expected one tensor; wrap it in a module that returns one"
        )
    return outputs


def check(model: nn.Module, input_shape: Sequence[int], num_outputs: int, likelihood: str) -> None:
    """Raise in one line unless the network reads a task's inputs and gives outputs of the shape its likelihood wants.

    >>> check(nn.Linear(4, 3), (4,), 3, "categorical")
    >>> check(nn.Linear(4, 3), (4,), 5, "categorical")
    Traceback (most recent call last):
    nearkin.core.errors.MismatchError: Linear gives outputs of shape (3,) for inputs (4,), a categorical task with 5 \
outputs wants (5,); use a network that takes num_outputs or ends in one linear layer
    """
    x = blank(model, input_shape)
    if likelihood == "language":
        x = x.to(torch.int64)
    elif not x.is_floating_point():
        x = x.to(torch.get_default_dtype())
    wanted = {"dense": (num_outputs, *input_shape[1:]), "language": (*input_shape, num_outputs)}
    shape, expected = tuple(outputs_of(model, x).shape), wanted.get(likelihood, (num_outputs,))
    require(
        shape == (len(x), *expected),
        f"{type(model).__name__} gives outputs of shape {shape[1:]} for inputs {tuple(input_shape)}, a {likelihood} "
        f"task with {num_outputs} outputs wants {expected}; use a network that takes num_outputs or ends in one "
        f"linear layer",
        MismatchError,
    )
