"""Closed-form transfer of a network to a task: its training part goes in, an outcome on its test part comes out."""

import time
from typing import Literal, TypeAlias, get_args

import torch
from torch import nn

from nearkin.core.errors import DataError, require
from nearkin.core.events import Work
from nearkin.tasks.task import Task
from nearkin.transfer.classify import classify_work
from nearkin.transfer.gaussian import gaussian_work
from nearkin.transfer.laplace import laplace_work
from nearkin.transfer.linearize import linearize
from nearkin.transfer.outcome import Outcome, class_outcome, value_outcome
from nearkin.transfer.probabilities import How
from nearkin.transfer.subset import Weights

Method: TypeAlias = Literal["dirichlet", "laplace"]
"""How classes become Gaussian: targets by the Dirichlet transform, or the posterior by Laplace's approximation."""

METHODS: tuple[Method, ...] = get_args(Method)


def closed_form(
    model: nn.Module,
    task: Task,
    *,
    weights: Weights = "all",
    method: Method = "dirichlet",
    how: How = "mean",
    name: str = "closed form",
    seed: int = 0,
) -> Work[Outcome]:
    """A linearized network as a Gaussian process, given a task's training part.

    Args:
        model: the source's network, in the task's input shape.
        task: with classes or values.
        weights: that are free to move, see `linearize`.
        method: for classes, `dirichlet` or `laplace`.
        how: class probabilities are taken: `mean` or `sampled`.
        name: of the outcome.
        seed: of what is drawn.
    """
    require_known(task)
    require(method in METHODS, f"method is {' or '.join(METHODS)}, got {method!r}")
    begun = time.perf_counter()
    (x, y), (x_test, y_test) = task.train.all(), task.test.all()
    classes = task.likelihood == "categorical"
    dtype = None if classes else torch.float64  # the noise of classes, log 2 or more, drowns the rounding of a kernel
    flat = linearize(model, weights, x=x[:1], dtype=dtype)
    if not classes:
        posterior = yield from gaussian_work(flat, x, y, seed=seed)
        mean, variance = posterior.predict(x_test, observed=True)
        facts = {**posterior.hyper.facts(), "space": posterior.space}
        return value_outcome(name, mean, variance, y_test, time.perf_counter() - begun, facts)
    size = len(task.classes)
    if method == "laplace":
        approximate = yield from laplace_work(flat, x, y, size, how=how)
        p, facts = approximate.probabilities(x_test), {"scale": approximate.scale}
    else:
        exact = yield from classify_work(flat, x, y, size, how=how, seed=seed)
        p, chosen = exact.probabilities(x_test), exact.choice
        facts = {"alpha": chosen.alpha, "scale": chosen.scale, "temperature": exact.heats[how]}
        facts |= {"left_out_nll": chosen.loss}
    return class_outcome(name, p, y_test, time.perf_counter() - begun, facts)


def require_known(task: Task) -> None:
    """Refuse images and text as targets."""
    require(
        task.likelihood in ("categorical", "gaussian", "heteroscedastic"),
        f"{task.name} is {task.likelihood}; transfer in closed form is for classes and values",
        DataError,
    )
