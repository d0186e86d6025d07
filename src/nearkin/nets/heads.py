"""Encoder and head of any network that ends in a linear layer: found, split, listened to, replaced, padded.

Hooks live for one forward pass; nothing stays on the modules.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.core.errors import MismatchError, require
from nearkin.core.rng import seeded
from nearkin.core.types import Params
from nearkin.nets.functional import outputs_of


def head_name(model: nn.Module, x: Tensor) -> str:
    """Name of the linear layer whose output the network returns for inputs `x`.

    Where something small follows the layer (a log-softmax, say) it is the last one to run whose width is the output's.

    >>> head_name(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), torch.zeros(1, 4))
    '2'
    """
    heard: list[tuple[str, int, Tensor]] = []

    def listener(name: str) -> Callable[..., None]:
        return lambda layer, inputs, outputs: heard.append((name, layer.out_features, outputs))

    layers = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    hooks = [layer.register_forward_hook(listener(name)) for name, layer in layers.items()]
    try:
        returned = outputs_of(model, x)
    finally:
        for hook in hooks:
            hook.remove()
    for name, _, outputs in reversed(heard):
        if outputs is returned or (outputs.data_ptr() == returned.data_ptr() and outputs.shape == returned.shape):
            return name
    for name, size, _ in reversed(heard):
        if returned.dim() > 0 and size == returned.shape[-1]:
            return name
    raise MismatchError(
        f"{type(model).__name__} has no final linear layer (its outputs have shape {tuple(returned.shape)}); "
        f"end it in nn.Linear or let its constructor take num_outputs"
    )


def split(params: Mapping[str, Tensor], head: str) -> tuple[Params, Params]:
    """Weights of the encoder and of the head, under their full names; together they are `params`.

    >>> model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    >>> encoder, last = split(dict(model.named_parameters()), "1")
    >>> list(encoder), list(last)
    (['0.weight', '0.bias'], ['1.weight', '1.bias'])
    """
    start = _prefix(head)
    last = {name: value for name, value in params.items() if name.startswith(start)}
    return {name: value for name, value in params.items() if name not in last}, last


def _prefix(head: str) -> str:
    return f"{head}." if head else ""


def _linear(model: nn.Module, head: str) -> nn.Linear:
    """The layer of that name."""
    layer = dict(model.named_modules()).get(head)
    if not isinstance(layer, nn.Linear):
        names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
        raise MismatchError(
            f"{type(model).__name__} has no linear layer {head!r}; its linear layers are {', '.join(names) or 'none'}"
        )
    return layer


def features(model: nn.Module, x: Tensor, head: str) -> Tensor:
    """What the head reads `[N, D]`: one row a sample, of a language model one a token.

    Mode (training or evaluation) and gradients are as the caller has set them.

    >>> model = nn.Sequential(nn.ReLU(), nn.Linear(2, 5))
    >>> features(model, torch.tensor([[-1.0, 3.0]]), "1")
    tensor([[0., 3.]])
    """
    heard: list[Tensor] = []

    def listen(layer: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        heard.append(inputs[0] if inputs else keywords["input"])

    hook = _linear(model, head).register_forward_pre_hook(listen, with_kwargs=True)
    try:
        model(x)
    finally:
        hook.remove()
    require(
        len(heard) == 1,
        f"the layer {head!r} of {type(model).__name__} ran {len(heard)} times in one pass, expected once; "
        f"ask head_name for the last layer",
        MismatchError,
    )
    return heard[0].flatten(0, -2)


def with_head(model: nn.Module, num_outputs: int, seed: int, head: str | None = None) -> nn.Module:
    """A copy of a network with a fresh head of another width, drawn under the seed; a tied head is untied.

    Args:
        model: left as it is.
        num_outputs: width of the new head; it has a bias if the old one has.
        seed: of the new head's weights.
        head: name of the linear layer to replace; without it the one that was registered last (`head_name` is surer).

    >>> wide = with_head(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), 7, seed=0)
    >>> wide[1]
    Linear(in_features=3, out_features=7, bias=True)
    """
    require(num_outputs >= 1, f"a head has one output or more, got {num_outputs}")
    if head is None:
        names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
        require(bool(names), f"{type(model).__name__} has no linear layer; end it in nn.Linear", MismatchError)
        head = names[-1]
    old = _linear(model, head)
    with seeded(seed):
        fresh = nn.Linear(old.in_features, num_outputs, bias=old.bias is not None)
    fresh = fresh.to(old.weight.device, old.weight.dtype).train(old.training)
    if not head:
        return fresh
    made = copy.deepcopy(model)
    parent, _, name = head.rpartition(".")
    setattr(made.get_submodule(parent), name, fresh)
    return made


def padded_head(params: Mapping[str, Tensor], head: str, num_outputs: int) -> Params:
    """Weights whose head is widened with rows of zeros, as networks of several tasks are brought to a common width.

    Works on weights `[K, D]` and biases `[K]`, and on anything else by their names, such as a Fisher diagonal.

    >>> padded_head({"0.weight": torch.ones(2, 2), "1.weight": torch.ones(1, 2)}, "1", 2)["1.weight"]
    tensor([[1., 1.],
            [0., 0.]])
    """
    _, last = split(params, head)
    require(bool(last), f"there is no weight of a head {head!r}; ask head_name for the last layer", MismatchError)
    return {name: _padded(name, value, num_outputs) if name in last else value for name, value in params.items()}


def _padded(name: str, value: Tensor, rows: int) -> Tensor:
    require(
        value.shape[0] <= rows,
        f"{name} has {value.shape[0]} rows, more than {rows}; pad to the widest head of all",
        MismatchError,
    )
    return torch.cat([value, value.new_zeros(rows - value.shape[0], *value.shape[1:])])
