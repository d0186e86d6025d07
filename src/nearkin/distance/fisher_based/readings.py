r"""Three definitions ("readings") of $F_{ab}$, the Fisher information of network a on the training data of task b.

| reading | labels | weights compared |
| --- | --- | --- |
| `padded` | of b; the narrower last layer is padded with zeros, for classes that it never predicts | all |
| `model` | sampled from the network's own predictions: b needs no labels, and a no head for b | the backbone |
| `refit` | of b; a new head is fitted on b's training data, for a's network and for b's own | all |

`padded` is closest to the paper, which uses the test data of b. Here no reading uses the target's test set: `solve`
selects by this distance, and test labels must not affect a selection. Networks of one trial start from the same
weights; otherwise weights of two networks do not correspond, and distances weight by weight are noise.
"""

from collections.abc import Sequence

import torch
from torch import nn

from nearkin.core.errors import MismatchError, OptionError, require
from nearkin.core.events import Work
from nearkin.distance.baselines.linear_head import FORMS, RIDGES, fitted_head
from nearkin.distance.fisher_based.widening import last_layer, widened, widened_targets
from nearkin.distance.source_on_target import SourceOnTarget
from nearkin.fisher.diagonals import diagonal
from nearkin.fisher.values import FisherDiagonal
from nearkin.nets.heads import with_head

READINGS = ("padded", "model", "refit")


def information(view: SourceOnTarget, reading: str, num_outputs: int, seed: int = 0) -> Work[FisherDiagonal]:
    """Fisher information of a network on a task's training data, by one of the readings.

    Args:
        view: the network and the target.
        reading: `padded`, `model` or `refit`.
        num_outputs: for `padded`, width of the head: the larger one of source and target.
        seed: of the labels that `model` samples, and of the samples that `refit` holds out.
    """
    if reading not in READINGS:
        raise OptionError(f"reading is one of {', '.join(READINGS)}, got {reading!r}")
    task, own, (x, y) = view.task, view.own, view.train
    if reading == "model":
        names = backbone(view)
        return (yield from diagonal.work(view.model, x, labels="sampled", likelihood=own.name, seed=seed, names=names))
    require(
        own.name == task.likelihood,
        f"a network for a {own.name} task cannot use the labels of '{task.name}', a {task.likelihood} task; use "
        f"reading='model'",
        MismatchError,
    )
    if reading == "refit":
        model = refitted(view, seed=seed)
    else:
        model, y = widened(view.model, x, num_outputs, own.name), widened_targets(own.name, y, num_outputs)
    return (yield from diagonal.work(model, x, y, likelihood=own.name))


def backbone(view: SourceOnTarget) -> list[str]:
    """Names of all parameters except those of the last layer."""
    names = [name for name, _ in view.model.named_parameters()]
    last = last_layer(view.model, view.train.x[:1])
    left = [name for name in names if name.rpartition(".")[0] != last]
    require(bool(left), "the network has one layer, so no backbone; use reading='padded'", MismatchError)
    return left


def refitted(view: SourceOnTarget, *, ridges: Sequence[float] = RIDGES, seed: int = 0) -> nn.Module:
    """The network with a head fitted on the target's training data; ridges and seed are those of `fitted_head`."""
    task = view.task
    require(
        task.likelihood in FORMS,
        f"no head can be fitted for '{task.name}', a {task.likelihood} task; use reading='padded' or 'model'",
        MismatchError,
    )
    classes = len(task.classes) if task.likelihood == "categorical" else None
    fitted = fitted_head(view.train_features, view.train.y, task.form, num_classes=classes, ridges=ridges, seed=seed)
    model = with_head(view.model, task.num_outputs, 0, view.head)
    with torch.no_grad():
        for name, parameter in model.get_submodule(view.head).named_parameters():
            parameter.copy_({"weight": fitted.weight, "bias": fitted.bias}[name])
    return model
