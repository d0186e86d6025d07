"""Closed-form transfer of a network to a task, scored on the task's test set."""

import time

import torch
from torch import Tensor, nn

from nearkin.core.errors import DataError, require
from nearkin.core.events import Work, operation
from nearkin.nets.solved import Solved
from nearkin.nets.weight_subset import Weights
from nearkin.tasks.likelihood import require_one_output
from nearkin.tasks.task import Task
from nearkin.transfer.classify import Classified, classify
from nearkin.transfer.gaussian_process import gaussian
from nearkin.transfer.labels.classes import DIRICHLET, Classes
from nearkin.transfer.labels.laplace import LaplaceClassified, laplace
from nearkin.transfer.linearized import Linearized, linearize, transfer_source
from nearkin.transfer.outcome import TransferScores, score_classes, score_values


def closed_form(
    model: nn.Module,
    task: Task,
    *,
    weights: Weights = "all",
    options: Classes = DIRICHLET,
    name: str = "closed form",
    seed: int = 0,
    means: int | None = None,
) -> Work[TransferScores]:
    """Scores of a linearized network as a Gaussian process, given a task's training set.

    Args:
        model: the source's network, in the task's input shape.
        task: with classes or values.
        weights: the ones that are free to move, see `linearize`.
        options: for classes, see `Classes`.
        name: of the scores.
        seed: of random choices.
        means: number of the network's outputs that are means, if the others are log variances (`source_means`).
    """
    require_classes_or_values(task)
    begun = time.perf_counter()
    (x, y), (x_test, y_test) = task.train.all(), task.test.all()
    classes = task.likelihood == "categorical"
    dtype = None if classes else torch.float64  # the noise of classes, log 2 or more, exceeds rounding errors
    if means is None:
        model = transfer_source(model, x, len(task.classes), weights, seed)
    flat = linearize(model, weights, x=x[:1], dtype=dtype, means=means, seed=seed)
    if not classes:
        posterior = yield from gaussian.work(flat, x, y, seed=seed)
        mean, variance = posterior.predict(x_test, observed=True)
        facts = {**posterior.hyper.facts(), "space": posterior.space}
        return score_values(name, mean, variance, y_test, time.perf_counter() - begun, facts)
    scores = yield from fit_classes.work(flat, x, y, len(task.classes), options, seed)
    return score_classes(name, scores.probabilities(x_test), y_test, time.perf_counter() - begun, scores.facts())


@operation
def fit_classes(
    linearized: Linearized, x: Tensor, labels: Tensor, num_classes: int, options: Classes, seed: int = 0
) -> Work[Classified | LaplaceClassified]:
    """The posterior given labels by `options.method`; see `classify` and `laplace`."""
    if options.method == "laplace":
        return (yield from laplace.work(linearized, x, labels, num_classes, options, seed=seed))
    return (yield from classify.work(linearized, x, labels, num_classes, options, seed=seed))


def source_means(source: Solved) -> int | None:
    """Number of outputs of a source's network that are means; None if it has no log variances."""
    return len(source.facts["classes"]) if source.facts["likelihood"] == "heteroscedastic" else None


def require_classes_or_values(task: Task) -> None:
    """Refuse images, text and boxes as targets."""
    require_one_output(task.likelihood)
    require(
        task.likelihood in ("categorical", "gaussian", "heteroscedastic"),
        f"'{task.name}' is {task.likelihood}, closed-form transfer is for classes and values; choose another task",
        DataError,
    )
