"""Networks as functions of their weights, `f(params, buffers, x)`; loading weights, counting, checking outputs."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy as is_lazy

from nearkin.core.errors import MismatchError, require
from nearkin.core.types import Buffers, Params
from nearkin.tasks.likelihood import require_one_output

Function: TypeAlias = Callable[[Params, Buffers, Tensor], Tensor]
"""Outputs for inputs x under the given weights and buffers."""


@dataclass(frozen=True, eq=False)
class View:
    """A network as a function.

    Attributes:
        f: `f(params, buffers, x)` returns outputs, in the network's mode (training or evaluation) at the call.
        params: a copy of the weights by name; a weight with two names appears once.
        buffers: a copy of the buffers, such as running statistics, by name.
    """

    f: Function
    params: Params
    buffers: Buffers


def view(model: nn.Module) -> View:
    """The functional view of a network; later changes to the network do not change the copied values.

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
    """Copy weights and buffers into a network; every entry must be present and have the right shape.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> load(model, {"weight": torch.tensor([[2.0, 3.0]])}, {})
    >>> model.weight.tolist()
    [[2.0, 3.0]]
    >>> load(model, {"weight": torch.zeros(1, 3)}, {})
    Traceback (most recent call last):
    nearkin.core.errors.MismatchError: the values do not fit Linear: weight has shape (1, 3), expected (1, 2); \
load them into the network they were taken from
    """
    expected = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    values = {**params, **buffers}
    mismatches = differences(values, expected)
    require(
        not mismatches,
        f"the values do not fit {class_name(model)}: {mismatches}; load them into the network they were taken from",
        MismatchError,
    )
    with torch.no_grad():
        for name, value in expected.items():
            value.copy_(values[name])


def differences(values: Mapping[str, Tensor], expected: Mapping[str, Tensor], types: bool = False) -> str:
    """The first three differences in names and shapes, and optionally in dtypes and devices; "" if there are none.

    >>> differences({"a": torch.zeros(3)}, {"a": torch.zeros(2), "b": torch.zeros(1)})
    'b is missing, a has shape (3,), expected (2,)'
    """
    messages = [f"{name} is missing" for name in expected if name not in values]
    messages += [f"{name} is unexpected" for name in values if name not in expected]
    for name, value in ((name, values[name]) for name in expected if name in values):
        like = expected[name]
        if value.shape != like.shape:
            messages.append(f"{name} has shape {tuple(value.shape)}, expected {tuple(like.shape)}")
        elif types:
            pairs = ((value.dtype, like.dtype), (value.device, like.device))
            messages += [f"{name} is {got}, expected {wanted}" for got, wanted in pairs if got != wanted]
    more = f" and {len(messages) - 3} more" if len(messages) > 3 else ""
    return ", ".join(messages[:3]) + more


def load_common(model: nn.Module, source: nn.Module) -> None:
    """Copy into a network the values that another one has under the same name and with the same shape.

    Buffers of a single number are not copied: they may count the outputs, or the batches processed.

    >>> model, source = nn.Linear(2, 1), nn.Linear(3, 1)
    >>> load_common(model, source)
    >>> bool(model.bias == source.bias)
    True
    """
    values = {**dict(source.named_parameters()), **dict(source.named_buffers())}
    targets = {**dict(model.named_parameters()), **{n: b for n, b in model.named_buffers() if b.dim() > 0}}
    with torch.no_grad():
        for name, target in targets.items():
            if name in values and values[name].shape == target.shape:
                target.copy_(values[name])


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients within a `with` block; afterwards every module has its former mode.

    >>> model = nn.Dropout()
    >>> with evaluation_mode(model):
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


def with_batch_statistics(model: nn.Module) -> nn.Module:
    """A copy of a network whose batch normalisation always uses the statistics of the batch; others are returned.

    It suits weights for which no running statistics were collected, if a batch is large.

    >>> norm = with_batch_statistics(nn.BatchNorm1d(1, affine=False).eval())
    >>> norm(torch.tensor([[1.0], [3.0]])).round().flatten().tolist()
    [-1.0, 1.0]
    """
    if not any(isinstance(module, _BatchNorm) for module in model.modules()):
        return model
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.running_mean = module.running_var = module.num_batches_tracked = None
    return model


def blank(model: nn.Module, input_shape: Sequence[int], size: int = 2) -> Tensor:
    """A batch of zeros `[size, *input_shape]` of the dtype that the network reads; tokens if it embeds a sequence.

    >>> blank(nn.Linear(3, 1), (3,)).dtype, blank(nn.Embedding(5, 2), (3,)).dtype
    (torch.float32, torch.int64)
    """
    weight = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    tokens = len(input_shape) == 1 and any(isinstance(module, nn.Embedding) for module in model.modules())
    dtype = torch.int64 if tokens else weight.dtype
    return torch.zeros(size, *input_shape, dtype=dtype, device=weight.device)


def num_parameters(model: nn.Module) -> int:
    """Number of weights; a shared weight counts once.

    >>> num_parameters(nn.Linear(3, 2))
    8
    """
    return sum(parameter.numel() for parameter in model.parameters())


Forward: TypeAlias = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
Transposed: TypeAlias = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d


def _products(layer: Forward | Transposed, x: Tensor, outputs: Tensor) -> int:
    """Number of multiplications in one call of a layer, including those with padding."""
    if isinstance(layer, nn.Linear):
        return outputs.numel() * layer.in_features
    kernel = math.prod(layer.kernel_size)
    if isinstance(layer, Transposed):
        return x.numel() * kernel * layer.out_channels // layer.groups
    return outputs.numel() * kernel * layer.in_channels // layer.groups


def multiply_adds(model: nn.Module, input_shape: Sequence[int]) -> int:
    """Multiply-adds of linear layers and convolutions for one input; biases, norms and pooling are not counted.

    >>> multiply_adds(nn.Sequential(nn.Flatten(), nn.Linear(12, 5)), (3, 2, 2))
    60
    """
    total = 0

    def count(layer: Any, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
        nonlocal total
        total += _products(layer, inputs[0], outputs)

    with ExitStack() as hooks, evaluation_mode(model):
        for module in model.modules():
            if isinstance(module, Forward | Transposed):
                hooks.enter_context(module.register_forward_hook(count))
        model(blank(model, input_shape, size=1))
    return total


def class_name(model: nn.Module) -> str:
    """Name of a network's class for people; of an adopted network, that of the module inside.

    >>> class_name(nn.Linear(3, 2))
    'Linear'
    """
    return str(getattr(model, "adopted_label", type(model).__name__))


def reason_of(error: Exception) -> str:
    r"""Text of an error of the code of a network, in one line; its class if it has no text.

    >>> reason_of(ValueError("a\nb")), reason_of(AssertionError())
    ('a b', 'AssertionError')
    """
    return " ".join(str(error).split())[:160] or type(error).__name__


def initialise(model: nn.Module, input_shape: Sequence[int]) -> nn.Module:
    """The network, after one pass if it has weights whose shape a first input defines."""
    if any(map(is_lazy, model.parameters())):
        outputs_of(model, blank(model, input_shape))
    return model


def outputs_of(model: nn.Module, x: Tensor) -> Tensor:
    """Outputs in evaluation mode; an error of one line if the network cannot read these inputs."""
    network = class_name(model)
    try:
        with evaluation_mode(model):
            outputs = model(x)
    except Exception as failed:
        kind = "inputs" if x.is_floating_point() else "tokens"
        several = isinstance(failed, TypeError) and "required positional argument" in str(failed)
        advice = (
            "if it takes several inputs, adopt it first (zoo.adopt)"
            if several
            else "use a network made for them: lenet for images, mlp for tables, recurrent for tokens"
        )
        raise MismatchError(
            f"{network} cannot read {kind} of shape {tuple(x.shape[1:])} ({reason_of(failed)}); {advice}"
        ) from failed
    if not isinstance(outputs, Tensor):
        raise MismatchError(
            f"{network} returns a {type(outputs).__name__}, expected one tensor; wrap it in a module that returns one"
        )
    return outputs


def check(model: nn.Module, input_shape: Sequence[int], num_outputs: int, likelihood: str) -> None:
    """Raise an error of one line unless the network's outputs have the shape that a task's likelihood needs.

    >>> check(nn.Linear(4, 3), (4,), 3, "categorical")
    >>> check(nn.Linear(4, 3), (4,), 5, "categorical")
    Traceback (most recent call last):
    nearkin.core.errors.MismatchError: Linear gives outputs of shape (3,) for inputs (4,), a categorical task with 5 \
outputs needs (5,); use a network that takes num_outputs or ends in one linear layer
    """
    require_one_output(likelihood)
    x = blank(model, input_shape)
    if likelihood == "language":
        x = x.to(torch.int64)
    elif not x.is_floating_point():
        x = x.to(torch.get_default_dtype())
    special = {"dense": (num_outputs, *input_shape[1:]), "language": (*input_shape, num_outputs)}
    shape, expected = tuple(outputs_of(model, x).shape), special.get(likelihood, (num_outputs,))
    require(
        shape == (len(x), *expected),
        f"{class_name(model)} gives outputs of shape {shape[1:]} for inputs {tuple(input_shape)}, a {likelihood} "
        f"task with {num_outputs} outputs needs {expected}; use a network that takes num_outputs or ends in one "
        f"linear layer",
        MismatchError,
    )
