r"""Three readings of $F_{ab}$, the Fisher information of network a on the training data of task b.

| reading | labels | weights compared |
| --- | --- | --- |
| `padded` | of b; the narrower last layer gets zeros, for classes that it never answers | all |
| `model` | drawn from the network's own answer, so b needs no labels and a no head for b | the backbone |
| `refit` | of b; a fresh head is fitted on b's training data, for a's network and for b's own | all |

`padded` is nearest to what the authors did, who take the test data of b. Here no reading looks at the target's test
part: `solve` chooses by this distance, and test labels must have no part in a choice. Networks of one trial start from
the same weights: without that, weights of two networks do not correspond and every distance weight by weight is noise.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from nearkin.core.errors import MismatchError, OptionError, require
from nearkin.core.events import Work
from nearkin.distance.baselines.linear_head import FORMS, RIDGES, fitted_head
from nearkin.distance.fisher_based.widening import last_layer, widened, widened_targets
from nearkin.distance.source_on_target import SourceOnTarget
from nearkin.fisher.diagonals import diagonal
from nearkin.fisher.values import FisherDiagonal
from nearkin.nets.heads import with_head

READINGS = ("padded", "model", "refit")


def information(sight: SourceOnTarget, reading: str, num_outputs: int, seed: int = 0) -> Work[FisherDiagonal]:
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
        return (yield from diagonal.work(sight.model, x, labels="sampled", likelihood=own.name, seed=seed, names=names))
    require(
        own.name == task.likelihood,
        f"a network for a {own.name} task has no labels for {task.name}, a {task.likelihood} one; use reading='model'",
        MismatchError,
    )
    if reading == "refit":
        model = refitted(sight, seed=seed)
    else:
        model, y = widened(sight.model, x, num_outputs, own.name), widened_targets(own.name, y, num_outputs)
    return (yield from diagonal.work(model, x, y, likelihood=own.name))


def backbone(sight: SourceOnTarget) -> list[str]:
    """Parameters that the number of outputs does not shape: all but those of the last layer."""
    names = [name for name, _ in sight.model.named_parameters()]
    last = last_layer(sight.model, sight.train.x[:1])
    left = [name for name in names if name.rpartition(".")[0] != last]
    require(bool(left), "the network is one layer and has no backbone; use reading='padded'", MismatchError)
    return left


def refitted(sight: SourceOnTarget, *, ridges: Sequence[float] = RIDGES, seed: int = 0) -> nn.Module:
    """The network with a head fitted on the target's training data; ridges and seed are those of `fitted_head`."""
    task = sight.task
    require(
        task.likelihood in FORMS,
        f"no head can be fitted for {task.name}, a {task.likelihood} task; use reading='padded' or 'model'",
        MismatchError,
    )
    classes = len(task.classes) if task.likelihood == "categorical" else None
    fitted = fitted_head(sight.train_features, sight.train.y, task.form, num_classes=classes, ridges=ridges, seed=seed)
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
