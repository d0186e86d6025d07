"""What closed-form transfer is measured against: the usual ways to make a trained network fit a new task.

| name | what learns | how |
| --- | --- | --- |
| `linear head` | a linear model of the frozen features | logistic regression, ridge for values, tuned |
| `last layer` | the last layer | SGD |
| `Bayesian last layer` | the last layer | closed form: the same Gaussian process with `weights="head"` |
| `all weights` | everything, under a fresh head | Adam, k steps |

Each is work that ends in an `Outcome` on the task's test part. Notation: N training and M test samples, C classes, K
columns of values, D features.
"""

import copy
import importlib
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nearkin.core.errors import DataError, require
from nearkin.core.events import Note, Progress, Work
from nearkin.core.lazy import Lazy
from nearkin.core.rng import derived_seed
from nearkin.nets.functional import evaluation_mode, outputs_of
from nearkin.nets.heads import features, head_name, with_head
from nearkin.nets.recipe import Recipe
from nearkin.nets.training_loop import fit
from nearkin.tasks.likelihood import LOG_VARIANCE_LIMIT
from nearkin.tasks.split import split_index
from nearkin.tasks.task import Task
from nearkin.transfer.closed_form import closed_form, require_known
from nearkin.transfer.outcome import Outcome, class_outcome, value_outcome

LATE = ("sklearn.linear_model", "sklearn.model_selection")

if TYPE_CHECKING:
    from sklearn import linear_model, model_selection
else:  # it takes two seconds to import
    linear_model, model_selection = map(Lazy, LATE)

Baseline: TypeAlias = Callable[[nn.Module, Task, int, int, int | None], Work[Outcome]]
"""`baseline(model, task, steps, seed, means)`: a network in the task's input shape, steps of what trains in steps, and
how many of the network's outputs are means where the others are log variances."""

STEPS = 200
PASS = 512  # samples in one forward pass
STRENGTHS = (0.1, 1.0, 10.0, 100.0)  # inverse, of logistic regression
PENALTIES = np.logspace(-3, 5, 17)  # of ridge
FOLDS = 5
RATES = (1.0, 20.0)  # of SGD on values and on classes, for one feature
LEAST = 1e-12  # variance


def run_each(name: str, work: Callable[[], Work[Outcome]]) -> Work[Outcome]:
    """Run a part of the work as it is; a cache of finished parts stands in its place."""
    return (yield from work())


def run_baselines(
    model: nn.Module,
    task: Task,
    steps: int = STEPS,
    seed: int = 0,
    means: int | None = None,
    part: Callable[[str, Callable[[], Work[Outcome]]], Work[Outcome]] = run_each,
) -> Work[tuple[Outcome, ...]]:
    """All of them, on a task with classes or values.

    Args:
        model: the source's network, left as it is.
        task: in the network's input shape; its training part is learned from, its test part judges.
        steps: of the ways that train in steps.
        seed: of fresh heads and of the order of samples.
        means: see `Baseline`.
        part: runs one baseline, given its name and its work; it may read the outcome of an earlier run instead.
    """
    require_known(task)
    require(steps >= 1, f"steps must be 1 or more, got {steps}")
    for name in (*LATE, "torch._dynamo"):  # which the first step of an optimiser asks for
        importlib.import_module(name)  # before a clock runs
    found: list[Outcome] = []
    for baseline in BASELINES:
        work = partial(baseline, model, task, steps, seed, means)
        found.append((yield from part(baseline.__name__.replace("_", " "), work)))
        yield Note(f"{found[-1].name}: {task.form.metric} {found[-1].metric:.4f} in {found[-1].seconds:.1f} s")
    return tuple(found)


def linear_head(
    model: nn.Module, task: Task, steps: int = STEPS, seed: int = 0, means: int | None = None
) -> Work[Outcome]:
    """A linear model of the frozen features; its variance for values is that of left-out errors."""
    yield Progress("linear head", 0, 1)
    begun = time.perf_counter()
    seen, new = (part.double() for part in frozen_features(model, task))
    middle, level = seen.mean(0), seen.std().clamp_min(LEAST)
    seen, new = ((part - middle) / level for part in (seen, new))
    y, y_test = task.train.all().y, task.test.all().y
    if task.likelihood == "categorical":
        fitted = _logistic(seen.numpy(), y.numpy(), seed)
        said = torch.zeros(len(new), len(task.classes)).double()
        said[:, torch.from_numpy(fitted.classes_)] = torch.from_numpy(fitted.predict_proba(new.numpy()))
        return class_outcome("linear head", said, y_test, time.perf_counter() - begun)
    require(
        len(seen) > 2, f"{task.name}: {len(seen)} samples are too few for a linear model; give 3 or more", DataError
    )
    fitted = linear_model.RidgeCV(PENALTIES, store_cv_results=True).fit(seen.numpy(), y.double().numpy())
    errors = torch.from_numpy(fitted.cv_results_).reshape(len(seen), -1, len(PENALTIES)).mean(0)
    variance = errors[:, int(errors.mean(0).argmin())].clamp_min(LEAST)
    mean = torch.from_numpy(fitted.predict(new.numpy())).reshape(len(new), -1)
    return value_outcome("linear head", mean, variance, y_test, time.perf_counter() - begun)


def _logistic(x: NDArray[np.float64], y: NDArray[np.int64], seed: int) -> Any:
    """Logistic regression whose strength gets most left-out labels right; of equals, the least surprised."""
    folds = min(FOLDS, int(np.unique(y, return_counts=True)[1].min()))
    if folds < 2:
        return _fitted(1.0, x, y)
    split = model_selection.StratifiedKFold(folds, shuffle=True, random_state=derived_seed(seed, "folds") % 2**31)
    parts = list(split.split(x, y))

    def left_out(strength: float) -> tuple[int, float]:
        right, log = 0, 0.0
        for learn, judge in parts:
            fitted = _fitted(strength, x[learn], y[learn])
            p = fitted.predict_proba(x[judge])
            own = p[np.arange(len(judge)), np.searchsorted(fitted.classes_, y[judge])]
            right += int((fitted.classes_[p.argmax(1)] == y[judge]).sum())
            log += float(np.log(own.clip(LEAST)).sum())
        return right, log

    return _fitted(max(STRENGTHS, key=left_out), x, y)


def _fitted(strength: float, x: NDArray[np.float64], y: NDArray[np.int64]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a weak penalty that has not quite converged
        return linear_model.LogisticRegression(C=strength, max_iter=500).fit(x, y)


def last_layer(
    model: nn.Module, task: Task, steps: int = STEPS, seed: int = 0, means: int | None = None
) -> Work[Outcome]:
    """The last layer by SGD on frozen, standardised features."""
    begun = time.perf_counter()
    seen, new = frozen_features(model, task)
    spread = seen.std(0, unbiased=False)
    spread = torch.where(spread > 1e-6 * spread.max(), spread, torch.ones_like(spread))
    seen, new = ((part - seen.mean(0)) / spread for part in (seen, new))
    facing = Task.from_arrays(
        task.name, seen.float(), task.train.all().y, new.float(), task.test.all().y, likelihood=task.likelihood,
        classes=task.classes, standardise=False,
    )  # fmt: skip
    fresh = with_head(nn.Linear(seen.shape[1], 1), task.num_outputs, derived_seed(seed, "last layer"), "")
    rate = RATES[task.likelihood == "categorical"] / seen.shape[1]  # the curvature grows with the features
    recipe = Recipe(steps=steps, optimiser="sgd", learning_rate=rate)
    return (yield from _trained("last layer", fresh, facing, recipe, seed, begun))


def bayesian_last_layer(
    model: nn.Module, task: Task, steps: int = STEPS, seed: int = 0, means: int | None = None
) -> Work[Outcome]:
    """The Gaussian process of the last layer alone."""
    return (yield from closed_form(model, task, weights="head", name="Bayesian last layer", seed=seed, means=means))


def all_weights(
    model: nn.Module, task: Task, steps: int = STEPS, seed: int = 0, means: int | None = None
) -> Work[Outcome]:
    """All weights for some steps, under a fresh head."""
    begun = time.perf_counter()
    head = head_name(model, task.train.first(1).x)
    fresh = with_head(model, task.num_outputs, derived_seed(seed, "all weights"), head)
    for weight in fresh.parameters():
        weight.requires_grad_(True)
    return (yield from _trained("all weights", fresh, task, Recipe(steps=steps), seed, begun))


BASELINES: tuple[Baseline, ...] = (linear_head, last_layer, bayesian_last_layer, all_weights)


def frozen_features(model: nn.Module, task: Task) -> tuple[Tensor, Tensor]:
    """What the head reads of both parts, `[N, D]` and `[M, D]`."""
    x, new = task.train.all().x, task.test.all().x
    head = head_name(model, x[:1])
    with evaluation_mode(model):
        seen, unseen = (torch.cat([features(model, one, head) for one in part.split(PASS)]) for part in (x, new))
    return seen, unseen


def _trained(name: str, fresh: nn.Module, task: Task, recipe: Recipe, seed: int, begun: float) -> Work[Outcome]:
    """A network, trained, on the test part; values have the variance of a twin's errors on a fifth left out."""
    twin = copy.deepcopy(fresh)
    yield from fit.work(fresh, task, recipe, seed=seed, stage=name)
    x_test, y_test = task.test.all()
    said = _outputs(fresh, x_test)
    if task.likelihood == "categorical":
        return class_outcome(name, said.softmax(1), y_test, time.perf_counter() - begun)
    if task.likelihood == "heteroscedastic":
        mean, log_variance = said.chunk(2, 1)
        variance = log_variance.clamp(-LOG_VARIANCE_LIMIT, LOG_VARIANCE_LIMIT).exp()  # as in its loss
        return value_outcome(name, mean, variance, y_test, time.perf_counter() - begun)
    learn, judge = split_index(None, len(task.train), 1 / FOLDS, seed)
    yield from fit.work(twin, replace(task, train=task.train.chosen(learn)), recipe, seed=seed, stage=f"{name}, twin")
    x, y = task.train.chosen(judge).all()
    variance = (_outputs(twin, x) - y).square().mean(0).clamp_min(LEAST)
    return value_outcome(name, said, variance, y_test, time.perf_counter() - begun)


def _outputs(model: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([outputs_of(model, part) for part in x.split(PASS)]).double()
