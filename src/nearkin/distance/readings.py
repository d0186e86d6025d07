r"""Three readings of $F_{ab}$, the Fisher information of network a on the training data of task b.

| reading | labels | weights compared |
| --- | --- | --- |
| `padded` | of b; the narrower head gets rows of zeros for classes that it never answers | all |
| `model` | drawn from the network's own answer, so b needs no labels and a no head for b | the backbone |
| `refit` | of b; a fresh head is fitted on b's training data, for a's network and for b's own | all |

`padded` is nearest to what the authors did. Networks of one trial start from the same weights: without that, weights
of two networks do not correspond and every distance weight by weight is noise.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from nearkin.core.errors import MismatchError, OptionError, require
from nearkin.core.events import Work
from nearkin.distance.baselines.linear_head import FORMS, fitted_head
from nearkin.distance.sight import Sight
from nearkin.fisher.diagonal import measuring
from nearkin.fisher.values import FisherDiagonal
from nearkin.nets.functional import load
from nearkin.nets.heads import padded_head, with_head

READINGS = ("padded", "model", "refit")
NEVER = -1e4  # logit of a class that a network was not made for


def information(sight: Sight, reading: str, num_outputs: int, seed: int = 0) -> Work[FisherDiagonal]:
    """The information of a network on a task's training data, by one of the readings.

    Args:
        sight: the network and the target.
        reading: `padded`, `model` or `refit`.
        num_outputs: for `padded`, width of the head: the wider one of source and target.
        seed: of the labels that `model` draws, and of what `refit` holds out.
    """
    if reading not in READINGS:
        raise OptionError(f"a reading is one of {', '.join(READINGS)}, got {reading!r}")
    task, own, (x, y) = sight.task, sight.own, sight.train
    if reading == "model":
        names = backbone(sight)
        return (yield from measuring(sight.model, x, labels="sampled", likelihood=own.name, seed=seed, names=names))
    require(
        own.name == task.likelihood,
        f"a network for a {own.name} task has no labels for {task.name}, a {task.likelihood} one; use reading='model'",
        MismatchError,
    )
    model = _widened(sight, num_outputs) if reading == "padded" else _refitted(sight, seed)
    return (yield from measuring(model, x, _widened_targets(task.likelihood, y, num_outputs), likelihood=own.name))


def backbone(sight: Sight) -> list[str]:
    """Parameters that the number of outputs does not shape: all but the last linear layer's.

    A network without one (image to image) ends in whatever layer holds its last parameter.
    """
    names = [name for name, _ in sight.model.named_parameters()]
    try:
        last = sight.head
    except MismatchError:
        last = names[-1].rpartition(".")[0]
    left = [name for name in names if name.rpartition(".")[0] != last]
    require(bool(left), "the network is one layer and has no backbone; use reading='padded'", MismatchError)
    return left


def _widened(sight: Sight, num_outputs: int) -> nn.Module:
    """The network with a head of so many outputs; the new ones are zero, and new classes never answered.

    So a task's own information is the same for every width, but for rows of zeros.
    """
    outputs = _num_outputs(sight.model, sight.train.x)
    if outputs == num_outputs:
        return sight.model
    require(
        sight.task.likelihood in ("categorical", "gaussian"),
        f"{outputs} outputs cannot be widened to {num_outputs} in a {sight.task.likelihood} task; use reading='model'",
        MismatchError,
    )
    wide = with_head(sight.model, num_outputs, 0, sight.head)
    params = padded_head(dict(sight.model.named_parameters()), sight.head, num_outputs)
    bias = f"{sight.head}.bias" if sight.head else "bias"
    if sight.task.likelihood == "categorical" and bias in params:
        params[bias] = torch.cat([params[bias][:outputs], params[bias].new_full((num_outputs - outputs,), NEVER)])
    load(wide, params, dict(sight.model.named_buffers()))
    return wide


def _widened_targets(likelihood: str, y: Tensor, num_outputs: int) -> Tensor:
    """Real targets have a column an output; those of new outputs are zero."""
    if likelihood != "gaussian" or y.shape[1] >= num_outputs:
        return y
    return torch.cat([y, y.new_zeros(len(y), num_outputs - y.shape[1])], 1)


def _refitted(sight: Sight, seed: int) -> nn.Module:
    """The network with a head fitted on the target's training data."""
    task = sight.task
    require(
        task.likelihood in FORMS,
        f"no head can be fitted for {task.name}, a {task.likelihood} task; use reading='padded' or 'model'",
        MismatchError,
    )
    classes = len(task.classes) if task.likelihood == "categorical" else None
    fitted = fitted_head(sight.train_features, sight.train.y, task.form, num_classes=classes, seed=seed)
    model = with_head(sight.model, task.num_outputs, 0, sight.head)
    layer = model.get_submodule(sight.head)
    with torch.no_grad():
        for parameter, value in _pairs(layer, fitted.weight, fitted.bias):
            parameter.copy_(value)
    return model


def _pairs(layer: nn.Module, weight: Tensor, bias: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    found = dict(layer.named_parameters())
    yield found["weight"], weight
    if "bias" in found:
        yield found["bias"], bias


def _num_outputs(model: nn.Module, x: Tensor) -> int:
    """Width of the axis that counts outputs: the second of images, the last of everything else."""
    with torch.no_grad():
        shape = model(x[:1]).shape
    return int(shape[1] if len(shape) == 4 else shape[-1])
