"""Encoder and head of any network that ends in a linear layer: find, split, replace, start and pad the head.

Hooks are removed after one forward pass; nothing is left on the modules.
"""

import copy
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from nearkin.core.errors import MismatchError, require
from nearkin.core.rng import seeded
from nearkin.core.types import Params
from nearkin.nets.functional import class_name, evaluation_mode, outputs_of

HeadStart: TypeAlias = Literal["zero", "drawn", "scaled"]
HEAD_STARTS: tuple[HeadStart, ...] = get_args(HeadStart)
HEAD_START: HeadStart = "scaled"  # lowest mean error after fine-tuning: benchmarks/head_start.py
SCALE_SAMPLES = 256  # whose features scale a new head
SHOWN = 8  # layers that an error names
LINEAR_END = "end it in nn.Linear or let its constructor take num_outputs"


def head_name(model: nn.Module, x: Tensor, advice: str = LINEAR_END) -> str:
    """Name of the linear layer whose output the network returns for inputs `x`; the error ends in the advice.

    If an operation such as a log-softmax follows the layer, it is the last linear layer that runs and has the width of
    the output.

    >>> head_name(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), torch.zeros(1, 4))
    '2'
    """
    calls: list[tuple[str, int, Tensor]] = []

    def hook(name: str) -> Callable[..., None]:
        return lambda layer, inputs, outputs: calls.append((name, layer.out_features, outputs))

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear):
                hooks.enter_context(module.register_forward_hook(hook(name)))
        returned = outputs_of(model, x)
    for name, _, outputs in reversed(calls):
        if outputs is returned or (outputs.data_ptr() == returned.data_ptr() and outputs.shape == returned.shape):
            return name
    for name, size, _ in reversed(calls):
        if returned.dim() > 0 and size == returned.shape[-1]:
            return name
    raise MismatchError(
        f"{class_name(model)} has no final linear layer (it returns {tuple(returned.shape[1:])} for one input); "
        f"{advice}"
    )


def split(params: Mapping[str, Tensor], head: str) -> tuple[Params, Params]:
    """Weights of the encoder and weights of the head, by their full names.

    >>> model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    >>> encoder, last = split(dict(model.named_parameters()), "1")
    >>> list(encoder), list(last)
    (['0.weight', '0.bias'], ['1.weight', '1.bias'])
    """
    last = {name: value for name, value in params.items() if name.startswith(f"{head}." if head else "")}
    return {name: value for name, value in params.items() if name not in last}, last


def linear_layer(model: nn.Module, path: str, advice: str = "name one of them") -> nn.Linear:
    """The linear layer at a path; the error names the last ones that the network has.

    >>> linear_layer(nn.Sequential(nn.ReLU(), nn.Linear(4, 3)), "1")
    Linear(in_features=4, out_features=3, bias=True)
    """
    with suppress(AttributeError):
        layer = model.get_submodule(path)
        if isinstance(layer, nn.Linear):
            return layer
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    raise MismatchError(
        f"{class_name(model)} has no linear layer {path!r}; its linear layers are "
        f"{', '.join(names[-SHOWN:]) or 'none'}; {advice}"
    )


def features(model: nn.Module, x: Tensor, head: str) -> Tensor:
    """Inputs of the head `[N, D]`: one row per sample; for a language model one row per token.

    The mode (training or evaluation) and whether gradients are recorded are up to the caller.

    >>> model = nn.Sequential(nn.ReLU(), nn.Linear(2, 5))
    >>> features(model, torch.tensor([[-1.0, 3.0]]), "1")
    tensor([[0., 3.]])
    """
    read: list[Tensor] = []

    def hook(layer: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        read.append(inputs[0] if inputs else keywords["input"])

    with linear_layer(model, head).register_forward_pre_hook(hook, with_kwargs=True):
        model(x)
    require(
        len(read) == 1,
        f"the layer {head!r} of {class_name(model)} ran {len(read)} times in one pass, expected once; "
        f"call head_name to get the last layer",
        MismatchError,
    )
    return read[0].flatten(0, -2)


def with_head(model: nn.Module, num_outputs: int, seed: int, head: str | None = None) -> nn.Module:
    """A copy of a network with a new, randomly initialised head; a head with tied weights is untied.

    Args:
        model: the network; it is not changed.
        num_outputs: width of the new head; it has a bias if the old one has.
        seed: seed of the new head's weights.
        head: name of the linear layer to replace (default: the one that was registered last; `head_name` is safer).

    >>> wide = with_head(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), 7, seed=0)
    >>> wide[1]
    Linear(in_features=3, out_features=7, bias=True)
    """
    require(num_outputs >= 1, f"a head has one output or more, got {num_outputs}")
    if head is None:
        names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
        require(bool(names), f"{class_name(model)} has no linear layer; end it in nn.Linear", MismatchError)
        head = names[-1]
    old = linear_layer(model, head)
    with seeded(seed):
        fresh = nn.Linear(old.in_features, num_outputs, bias=old.bias is not None)
    fresh = fresh.to(old.weight.device, old.weight.dtype).train(old.training)
    if not head:
        return fresh
    changed = copy.deepcopy(model)
    parent, _, name = head.rpartition(".")
    setattr(changed.get_submodule(parent), name, fresh)
    return changed


def with_start(model: nn.Module, num_outputs: int, seed: int, x: Tensor, start: HeadStart = HEAD_START) -> nn.Module:
    r"""A copy of a network with a new head from which fine-tuning starts.

    `zero`: weights and bias of zeros, so the first outputs are 0 for every sample. `drawn`: as `nn.Linear` draws them.
    `scaled`: drawn weights divided by the features' root mean square, $\sqrt{\sum_{nd} f_{nd}^2 / ND}$.

    Args:
        model: the network; it is not changed.
        num_outputs: width of the new head.
        seed: seed of drawn weights.
        x: training samples of the new task `[N, *input_shape]`; at most 256 of them scale the head.
        start: of `HEAD_STARTS`.

    >>> fresh = with_start(nn.Sequential(nn.ReLU(), nn.Linear(2, 5)), 3, 0, torch.ones(4, 2), "zero")
    >>> fresh(torch.ones(1, 2))
    tensor([[0., 0., 0.]], grad_fn=<AddmmBackward0>)
    """
    require(start in HEAD_STARTS, f"a head's start must be one of {', '.join(HEAD_STARTS)}, got {start!r}")
    head = head_name(model, x[:1])
    changed = with_head(model, num_outputs, seed, head)
    layer = linear_layer(changed, head)
    with evaluation_mode(changed):
        if start == "zero":
            for value in layer.parameters():
                value.zero_()
        elif start == "scaled":
            layer.weight.div_(features(changed, x[:SCALE_SAMPLES], head).square().mean().sqrt().clamp_min(1e-6))
    return changed


def with_fewer_outputs(model: nn.Module, num_outputs: int, seed: int, head: str) -> nn.Module:
    r"""A copy of a network whose M outputs are random combinations of its C outputs; M is at most C.

    The head's W `[C, D]` and b become $Q W$ and $Q b$, where the rows of Q `[M, C]` are orthonormal and drawn
    uniformly. So $\mathbb E\, \frac1M (QW)^⊤ QW = \frac1C W^⊤ W$: a mean over outputs, such as that of their tangent
    kernels, stays the same on average, and exactly so for M = C.

    >>> few = with_fewer_outputs(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 100)), 2, 0, "1")
    >>> few(torch.zeros(1, 4)).shape
    torch.Size([1, 2])
    """
    old = linear_layer(model, head)
    require(num_outputs <= old.out_features, f"got {num_outputs} combinations of {old.out_features} outputs")
    generator = torch.Generator().manual_seed(seed % 2**63)
    drawn = torch.randn(old.out_features, num_outputs, generator=generator, dtype=torch.float64)
    basis = torch.linalg.qr(drawn).Q.T.to(old.weight)
    changed = with_head(model, num_outputs, seed, head)
    new = linear_layer(changed, head)
    with torch.no_grad():
        new.weight.copy_(basis @ old.weight)
        if old.bias is not None:
            new.bias.copy_(basis @ old.bias)
    return changed


def padded_head(params: Mapping[str, Tensor], head: str, num_outputs: int) -> Params:
    """Weights whose head is padded with rows of zeros, so that the networks of several tasks have one width.

    `params` are weights `[K, D]` and biases `[K]`, or other values by the same names, such as a Fisher diagonal.

    >>> padded_head({"0.weight": torch.ones(2, 2), "1.weight": torch.ones(1, 2)}, "1", 2)["1.weight"]
    tensor([[1., 1.],
            [0., 0.]])
    """
    _, last = split(params, head)
    require(bool(last), f"there is no weight of a head {head!r}; call head_name to get the last layer", MismatchError)
    return {name: _padded(name, value, num_outputs) if name in last else value for name, value in params.items()}


def _padded(name: str, value: Tensor, rows: int) -> Tensor:
    require(
        value.shape[0] <= rows,
        f"{name} has {value.shape[0]} rows, more than {rows}; pad to the width of the widest head",
        MismatchError,
    )
    return torch.cat([value, value.new_zeros(rows - value.shape[0], *value.shape[1:])])
