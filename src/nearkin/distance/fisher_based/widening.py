"""Networks and targets padded to more outputs, to compare tasks of different widths weight by weight."""

import copy

import torch
from torch import Tensor, nn

from nearkin.core.errors import MismatchError, require
from nearkin.nets.functional import outputs_of
from nearkin.nets.heads import head_name

WIDENED = ("categorical", "gaussian", "dense")
"""Likelihoods whose outputs can be padded."""

NEVER = -1e4  # logit of an added class
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED)


def last_layer(model: nn.Module, x: Tensor) -> str:
    """Name of the linear layer that gives the network's output, or else of the layer with the last parameter.

    >>> last_layer(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), torch.zeros(1, 4))
    '1'
    >>> last_layer(nn.Sequential(nn.Conv2d(1, 3, 1), nn.ReLU()), torch.zeros(1, 1, 2, 2))
    '0'
    """
    try:
        return head_name(model, x)
    except MismatchError:
        return [name for name, _ in model.named_parameters()][-1].rpartition(".")[0]


def widened(model: nn.Module, x: Tensor, num_outputs: int, likelihood: str) -> nn.Module:
    """A copy whose last layer has more outputs, with weights of zero; added classes are never predicted.

    The Fisher information on the network's own task is then the same for every width, apart from zeros. A network that
    has `num_outputs` outputs is returned itself.

    >>> narrow = nn.Sequential(nn.Conv2d(1, 1, 1))
    >>> wide = widened(narrow, torch.zeros(1, 1, 2, 2), 3, "dense")
    >>> wide(torch.ones(1, 1, 2, 2))[0, 1:].abs().max(), wide[0].out_channels, narrow[0].out_channels
    (tensor(0., grad_fn=<MaxBackward1>), 3, 1)
    """
    outputs = _num_outputs(model, x)
    if outputs == num_outputs:
        return model
    wide = copy.deepcopy(model)
    layer = wide.get_submodule(last_layer(model, x))
    width = getattr(layer, "out_features", getattr(layer, "out_channels", None))
    require(
        likelihood in WIDENED and isinstance(layer, LAYERS) and width == outputs and getattr(layer, "groups", 1) == 1,
        f"{outputs} outputs of {type(model).__name__} cannot be padded to {num_outputs} in a {likelihood} task; use "
        f"reading='model'",
        MismatchError,
    )
    never = NEVER if likelihood == "categorical" else 0.0
    for name, value in list(layer.named_parameters(recurse=False)):
        axis, fill = (0, never) if name == "bias" else (int(isinstance(layer, TRANSPOSED)), 0.0)
        setattr(layer, name, nn.Parameter(_padded(value, axis, num_outputs, fill)))
    setattr(layer, "out_features" if isinstance(layer, nn.Linear) else "out_channels", num_outputs)
    return wide


def widened_targets(likelihood: str, y: Tensor, num_outputs: int) -> Tensor:
    """Real targets padded with zeros to one column, or channel, for each output."""
    if likelihood not in ("gaussian", "dense") or y.shape[1] >= num_outputs:
        return y
    return _padded(y, 1, num_outputs, 0.0)


def _padded(value: Tensor, axis: int, size: int, fill: float) -> Tensor:
    shape = list(value.shape)
    shape[axis] = size - shape[axis]
    return torch.cat([value.detach(), value.new_full(shape, fill)], axis)


def _num_outputs(model: nn.Module, x: Tensor) -> int:
    """Size of the output axis: the second for images, the last for everything else."""
    shape = outputs_of(model, x[:1]).shape
    return int(shape[1] if len(shape) == 4 else shape[-1])
