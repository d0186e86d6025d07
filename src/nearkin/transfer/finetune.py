"""Baselines of closed-form transfer: the usual methods that fit a trained network to a new task.

| name | learned | method |
| --- | --- | --- |
| `linear head` | a linear model of the frozen features | logistic regression, ridge for values, tuned |
| `last layer` | the last layer | SGD |
| `Bayesian last layer` | the last layer | closed form: the same Gaussian process with `weights="head"` |
| `all weights` | all weights, with a new head | Adam, k steps |
| `fine-tuned …` | the subset of weights that the closed form uses, if not all, with a new head | Adam, k steps |

Each yields events and returns `TransferScores` on the task's test set. Notation: N training and M test samples, C
classes, K columns of values, D features.
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
from nearkin.nets.forward_passes import in_passes
from nearkin.nets.functional import evaluation_mode, outputs_of
from nearkin.nets.heads import SCALE_SAMPLES, HeadStart, features, head_name, with_start
from nearkin.nets.recipe import Recipe
from nearkin.nets.training_loop import fit
from nearkin.nets.weight_subset import Weights, checked_weights
from nearkin.tasks.likelihood import LOG_VARIANCE_LIMIT
from nearkin.tasks.split import split_index
from nearkin.tasks.task import Task
from nearkin.transfer.closed_form import closed_form, require_classes_or_values
from nearkin.transfer.outcome import TransferScores, score_classes, score_values

LATE = ("sklearn.linear_model", "sklearn.model_selection")

if TYPE_CHECKING:
    from sklearn import linear_model, model_selection
else:  # importing it takes two seconds
    linear_model, model_selection = map(Lazy, LATE)

STEPS = 200
START: HeadStart = "drawn"  # with few labels a class not worse than `solve`'s: a baseline is not to be made weaker
STRENGTHS = (0.1, 1.0, 10.0, 100.0)  # inverse penalties of logistic regression
PENALTIES = np.logspace(-3, 5, 17)  # of ridge regression
FOLDS = 5
RATES = (1.0, 20.0)  # learning rates of SGD for values and for classes, for one feature
LEAST = 1e-12  # smallest variance


Baseline: TypeAlias = Callable[[nn.Module, Task, int, int, int | None], Work[TransferScores]]
"""`baseline(model, task, steps, seed, means)`, with the arguments of `run_baselines`."""


def run_each(name: str, work: Callable[[], Work[TransferScores]]) -> Work[TransferScores]:
    """Run one method without a cache of finished results."""
    return (yield from work())


def run_baselines(
    model: nn.Module,
    task: Task,
    steps: int = STEPS,
    seed: int = 0,
    means: int | None = None,
    run: Callable[[str, Callable[[], Work[TransferScores]]], Work[TransferScores]] = run_each,
    weights: Weights = "all",
) -> Work[tuple[TransferScores, ...]]:
    """All baselines on a task with classes or values.

    Args:
        model: the source's network, in the task's input shape; it is not changed.
        task: a baseline learns from its training set and is scored on its test set.
        steps: number of steps of the baselines that train in steps.
        seed: of new heads and of the order of samples.
        means: number of the network's outputs that are means, if the others are log variances.
        run: runs one baseline, given its name and its work; it may return the stored scores of an earlier run.
        weights: if not all, a subset that is fine-tuned as one more baseline; see `fit`.
    """
    require_classes_or_values(task)
    require(steps >= 1, f"steps must be 1 or more, got {steps}")
    for name in (*LATE, "torch._dynamo"):  # imported by the first step of an optimiser
        importlib.import_module(name)  # before the time is measured
    results = []
    works = {
        method.__name__.replace("_", " "): partial(method, model, task, steps, seed, means) for method in BASELINES
    }
    if checked_weights(weights) != ("all",):
        works[_title(weights)] = partial(fine_tuned, model, task, steps, seed, weights)
    for name, work in works.items():
        scores = yield from run(name, work)
        yield Note(f"{scores.name}: {task.form.metric} {scores.metric:.4f} in {scores.seconds:.1f} s")
        results.append(scores)
    return tuple(results)


def linear_head(
    model: nn.Module, task: Task, steps: int = STEPS, seed: int = 0, means: int | None = None
) -> Work[TransferScores]:
    """A linear model of the frozen features; the variance of values is that of cross-validation errors."""
    yield Progress("linear head", 0, 1)
    begun = time.perf_counter()
    seen, new = (features.double() for features in frozen_features(model, task))
    middle, level = seen.mean(0), seen.std().clamp_min(LEAST)
    seen, new = ((features - middle) / level for features in (seen, new))
    y, y_test = task.train.all().y, task.test.all().y
    if task.likelihood == "categorical":
        fitted = _logistic(seen.numpy(), y.numpy(), seed)
        probabilities = torch.zeros(len(new), len(task.classes)).double()
        probabilities[:, torch.from_numpy(fitted.classes_)] = torch.from_numpy(fitted.predict_proba(new.numpy()))
        return score_classes("linear head", probabilities, y_test, time.perf_counter() - begun)
    require(
        len(seen) > 2, f"'{task.name}' has {len(seen)} samples, a linear model needs 3 or more; give more", DataError
    )
    fitted = linear_model.RidgeCV(PENALTIES, store_cv_results=True).fit(seen.numpy(), y.double().numpy())
    errors = torch.from_numpy(fitted.cv_results_).reshape(len(seen), -1, len(PENALTIES)).mean(0)
    variance = errors[:, int(errors.mean(0).argmin())].clamp_min(LEAST)
    mean = torch.from_numpy(fitted.predict(new.numpy())).reshape(len(new), -1)
    return score_values("linear head", mean, variance, y_test, time.perf_counter() - begun)


def _logistic(x: NDArray[np.float64], y: NDArray[np.int64], seed: int) -> Any:
    """Logistic regression with the penalty of the highest cross-validation accuracy, then of the highest likelihood."""
    folds = min(FOLDS, int(np.unique(y, return_counts=True)[1].min()))
    if folds < 2:
        return _fitted(1.0, x, y)
    split = model_selection.StratifiedKFold(folds, shuffle=True, random_state=derived_seed(seed, "folds") % 2**31)
    splits = list(split.split(x, y))

    def left_out(strength: float) -> tuple[int, float]:
        correct, log = 0, 0.0
        for learn, judge in splits:
            fitted = _fitted(strength, x[learn], y[learn])
            p = fitted.predict_proba(x[judge])
            own = p[np.arange(len(judge)), np.searchsorted(fitted.classes_, y[judge])]
            correct += int((fitted.classes_[p.argmax(1)] == y[judge]).sum())
            log += float(np.log(own.clip(LEAST)).sum())
        return correct, log

    return _fitted(max(STRENGTHS, key=left_out), x, y)


def _fitted(strength: float, x: NDArray[np.float64], y: NDArray[np.int64]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a weak penalty may not converge fully
        return linear_model.LogisticRegression(C=strength, max_iter=500).fit(x, y)


def last_layer(
    model: nn.Module, task: Task, steps: int = STEPS, seed: int = 0, means: int | None = None
) -> Work[TransferScores]:
    """The last layer by SGD on frozen, standardised features."""
    begun = time.perf_counter()
    seen, new = frozen_features(model, task)
    spread = seen.std(0, unbiased=False)
    spread = torch.where(spread > 1e-6 * spread.max(), spread, torch.ones_like(spread))
    seen, new = ((features - seen.mean(0)) / spread for features in (seen, new))
    features_task = Task.from_arrays(
        task.name, seen.float(), task.train.all().y, new.float(), task.test.all().y, likelihood=task.likelihood,
        classes=task.classes, standardise=False,
    )  # fmt: skip
    layer = with_start(
        nn.Linear(seen.shape[1], 1), task.num_outputs, derived_seed(seed, "last layer"), seen.float(), START
    )
    rate = RATES[task.likelihood == "categorical"] / seen.shape[1]  # the curvature grows with the features
    recipe = Recipe(steps=steps, optimiser="sgd", learning_rate=rate)
    return (yield from _train_and_score("last layer", layer, features_task, recipe, seed, begun))


def bayesian_last_layer(
    model: nn.Module, task: Task, steps: int = STEPS, seed: int = 0, means: int | None = None
) -> Work[TransferScores]:
    """The Gaussian process of the last layer alone."""
    return closed_form(model, task, weights="head", name="Bayesian last layer", seed=seed, means=means)


def all_weights(
    model: nn.Module, task: Task, steps: int = STEPS, seed: int = 0, means: int | None = None
) -> Work[TransferScores]:
    """All weights for some steps, with a new head."""
    return fine_tuned(model, task, steps, seed)


def fine_tuned(
    model: nn.Module, task: Task, steps: int = STEPS, seed: int = 0, weights: Weights = "all"
) -> Work[TransferScores]:
    """A subset of the weights for some steps, with a new head; see `nearkin.nets.weight_subset`.

    The source is not changed. Unless `weights` includes the head, as every kind of subset does, the new head stays as
    it was drawn.
    """
    begun = time.perf_counter()
    x = task.train.first(SCALE_SAMPLES).x
    network = with_start(model, task.num_outputs, derived_seed(seed, ALL_WEIGHTS), x, START)
    return (yield from _train_and_score(_title(weights), network, task, Recipe(steps=steps), seed, begun, weights))


def _title(weights: Weights) -> str:
    names = checked_weights(weights)
    return ALL_WEIGHTS if names == ("all",) else f"fine-tuned {' + '.join(names)}"


ALL_WEIGHTS = "all weights"

BASELINES: tuple[Baseline, ...] = (linear_head, last_layer, bayesian_last_layer, all_weights)


def frozen_features(model: nn.Module, task: Task) -> tuple[Tensor, Tensor]:
    """The inputs of the head on the training set `[N, D]` and on the test set `[M, D]`."""
    sets = task.train.all().x, task.test.all().x
    head = head_name(model, sets[0][:1])
    with evaluation_mode(model):
        seen, new = (in_passes(model, x, lambda batch: features(model, batch, head)) for x in sets)
    return seen, new


def _train_and_score(
    name: str, network: nn.Module, task: Task, recipe: Recipe, seed: int, begun: float, weights: Weights = "all"
) -> Work[TransferScores]:
    """Scores of a network after training, with its recipe and losses as facts.

    The variance of values is that of a copy trained without a fifth of them.
    """
    copied = copy.deepcopy(network)
    done = yield from fit.work(network, task, recipe, seed=seed, stage=name, weights=weights)
    losses = [round(value, 6) for value in done.history.losses.tolist()]
    facts = {"recipe": recipe.to_dict(), "losses": losses, "steps_per_epoch": done.history.steps_per_epoch}
    x_test, y_test = task.test.all()
    outputs = _outputs(network, x_test)
    if task.likelihood == "categorical":
        scores = score_classes(name, outputs.softmax(1), y_test, time.perf_counter() - begun)
        return replace(scores, facts=facts)
    if task.likelihood == "heteroscedastic":
        mean, log_variance = outputs.chunk(2, 1)
        variance = log_variance.clamp(-LOG_VARIANCE_LIMIT, LOG_VARIANCE_LIMIT).exp()  # as in its loss
        scores = score_values(name, mean, variance, y_test, time.perf_counter() - begun)
        return replace(scores, facts=facts)
    learn, judge = split_index(None, len(task.train), 1 / FOLDS, seed)
    smaller = replace(task, train=task.train.chosen(learn))
    yield from fit.work(copied, smaller, recipe, seed=seed, stage=f"{name}, for its variance", weights=weights)
    x, y = task.train.chosen(judge).all()
    variance = (_outputs(copied, x) - y).square().mean(0).clamp_min(LEAST)
    return replace(score_values(name, outputs, variance, y_test, time.perf_counter() - begun), facts=facts)


def _outputs(model: nn.Module, x: Tensor) -> Tensor:
    return in_passes(model, x, lambda batch: outputs_of(model, batch)).double()
