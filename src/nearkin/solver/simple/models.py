"""Fit simple models under a time limit.

Settings are chosen on a validation split of the training data (five folds below 500 samples), then the model is fitted
on all training data. The test data is used for scoring only.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from nearkin.core.clock import now
from nearkin.core.errors import DataError, require
from nearkin.core.events import Caution, Note, Work, operation
from nearkin.core.state import copied
from nearkin.nets.evaluate import evaluate
from nearkin.nets.history import History
from nearkin.nets.training_loop import Fit
from nearkin.solver.simple.boosting import BoostingLearner
from nearkin.solver.simple.data import ChosenSettings, Clock, FitContext, Learner, Sample, evenly, fold_splits, folds_of
from nearkin.solver.simple.forest import ExtraTreesLearner, ForestLearner
from nearkin.solver.simple.linear import LinearLearner
from nearkin.solver.simple.machines import KernelMachine, Machine
from nearkin.solver.simple.svm import TEMPERATURE, KernelLearner, sharpness
from nearkin.solver.validation import ValidationOutputs
from nearkin.tasks.task import Task

SIMPLE: Mapping[str, str] = MappingProxyType(
    {
        "logistic": "logistic regression",
        "svm": "RBF support vector machine",
        "boosting": "gradient boosting",
        "forest": "random forest",
        "extra-trees": "extremely randomised trees",
    }
)
FOR_VALUES: Mapping[str, str] = MappingProxyType(
    {
        "logistic": "ridge regression",
        "svm": "RBF support vector regression",
        "boosting": "gradient boosting regression",
        "forest": "random forest regression",
        "extra-trees": "extremely randomised regression trees",
    }
)
FOR_TABLES = ("forest", "extra-trees")  # on images they are slow and weak
LEARNERS: Mapping[str, Callable[[FitContext], Learner]] = MappingProxyType(
    {
        "logistic": LinearLearner,
        "svm": KernelLearner,
        "boosting": BoostingLearner,
        "forest": ForestLearner,
        "extra-trees": ExtraTreesLearner,
    }
)
ALWAYS = 3000  # samples that are used in full, whatever the time limit: it then limits steps and settings
MOST_CLASSES = 200  # for models that fit each class separately
MOST_WEIGHTS = 2**25
MOST_NUMBERS = 2**28  # input values in memory: 1 GB


@dataclass(frozen=True, eq=False)
class SimpleFit:
    """A fitted simple model.

    Attributes:
        kind: one of `SIMPLE`.
        network: the network string that builds its module.
        fit: its tensors and its scores on the test data.
        settings: chosen settings and number of training samples, as JSON values; `fixed` accepts them again.
        validation: outputs for training samples by cross-validation; None without it.
    """

    kind: str
    network: str
    fit: Fit
    settings: dict[str, Any]
    validation: ValidationOutputs | None = None


def title(kind: str, likelihood: str) -> str:
    """What to call a kind of model for classes or for values.

    >>> title("logistic", "categorical"), title("logistic", "gaussian")
    ('logistic regression', 'ridge regression')
    """
    require(kind in SIMPLE, f"unknown simple model {kind!r}; choose one of {', '.join(SIMPLE)}")
    return (SIMPLE if likelihood == "categorical" else FOR_VALUES)[kind]


def simple_models(task: Task) -> tuple[str, ...]:
    """Names of the simple models for a task: forests only for tables."""
    return tuple(name for name in SIMPLE if len(task.input_shape) == 1 or name not in FOR_TABLES)


@operation
def fit_simple(
    kind: str,
    task: Task,
    *,
    seconds: float | None = None,
    seed: int = 0,
    fixed: Mapping[str, Any] | None = None,
    metric: str = "",
    cross_validate: bool = False,
    features: bool = False,
) -> Work[SimpleFit]:
    """Fit one kind of simple model to a task.

    Args:
        kind: one of `SIMPLE`; for regression: ridge, support vector, boosted and forest regression.
        task: classes or values to predict.
        seconds: approximate time limit. The default settings are tried first, others while time remains; if all
            samples of more than 3,000 would take too long, a stratified subset is used. Without a limit the same seed
            gives the same model.
        seed: of subsets and validation splits.
        fixed: `settings` of an earlier fit; nothing is chosen, and all training data is used.
        metric: by which settings are chosen (default: accuracy or R²).
        cross_validate: score the model by five-fold cross-validation on the training data instead of the test data.
        features: whether the inputs are features of a network, which share one scale as pixels do.

    >>> x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    >>> toy = Task.from_arrays("toy", x, (x[:, 0] > 0).long(), x, (x[:, 0] > 0).long())
    >>> done = fit_simple("logistic", toy)
    >>> done.network, done.fit.scores.metric > 0.9
    ('nearkin.solve.simple.machines:linear_machine', True)
    """
    words, clock = title(kind, task.likelihood), Clock(seconds)
    _check(kind, words, task, seconds)
    shared, scaled = features or len(task.input_shape) == 3, task.train.scaling.mean is not None
    context = FitContext(words, task.form, len(task.classes), shared, seed, metric, scaled)
    learner = LEARNERS[kind](context)
    _check_fixed(kind, fixed, learner)
    labels = task.train.labels() if context.classes else None
    count = len(task.train)

    def draw(size: int) -> Sample:
        index = evenly(labels, count, size, seed)
        x, y = task.train.take(index)
        weights = None if task.train.weights is None else task.train.weights[index]
        return Sample(x.flatten(1).float(), y if context.classes else y.float(), weights)

    yield from context.report(0, None)
    most = min(count, max(1, MOST_NUMBERS // math.prod(task.input_shape)))
    size = most if most <= ALWAYS else (yield from learner.affordable_size(draw, most, clock))
    if size < count:
        yield Note(f"{words} uses {size} of {count} training samples{_why(seconds)}")
    sample = draw(size)
    choice = (
        ChosenSettings(dict(fixed))
        if fixed is not None
        else (yield from _choose_settings(learner, sample, context, clock, cross_validate or None))
    )
    settings = {name: choice.settings[name] for name in learner.needed}
    machine, steps = yield from learner.fit(sample, settings, clock)
    machine, more = _finished(machine, choice, context)
    taken = clock.spent
    settings |= {**more, "samples": size, "steps": steps}
    settings |= {name: steps for name in ("rounds", "trees") if name in settings}
    begun, validation = now(), None
    if cross_validate:
        validation = _validations(task, evenly(labels, count, size, seed), choice, settings, context)
    scores = evaluate(machine, task.test, task.form) if validation is None else validation.scores()
    if seconds is not None and now() - begun > seconds:
        yield Caution(f"{words} predicts slowly: {scores.count} test samples took {now() - begun:.0f} s")
    tensors = copied(dict(machine.named_parameters())), copied(dict(machine.named_buffers()))
    done = Fit(*tensors, History(torch.zeros(0)), scores, taken, reached=True)
    yield from context.report(1, None, metric=scores.metric)
    return SimpleFit(kind, machine.network, done, settings, validation)


def _validations(
    task: Task, rows: Tensor, choice: ChosenSettings, settings: Mapping[str, Any], context: FitContext
) -> ValidationOutputs | None:
    """Outputs with the chosen settings for the samples that each fold left out; None if none could be left out."""
    if choice.outputs is None or choice.targets is None:
        return None
    labels = task.train.labels()[rows] if context.classes else None
    splits = fold_splits(labels, len(rows), context.seed)
    order = torch.cat([held_out for train, held_out in splits if len(train) > 1 and len(held_out) > 0])
    outputs = choice.outputs.float() * float(settings.get("sharpness", 1.0))
    if "noise" in settings:
        spread = torch.tensor(settings["noise"]).log().expand(len(outputs), -1)
        outputs = torch.cat([outputs, spread], 1)
    by_row = order.argsort()
    return ValidationOutputs(rows[order[by_row]], outputs[by_row], choice.targets[by_row], task.form)


def _choose_settings(
    learner: Learner, sample: Sample, context: FitContext, clock: Clock, cross_validate: bool | None
) -> Work[ChosenSettings]:
    """Settings chosen on validation data; the default settings if no sample can be held out."""
    folds = folds_of(sample, context.classes, context.seed, cross_validate)
    if not folds:
        yield Note(f"{context.stage} keeps its default settings: no class has a second sample for validation")
        return ChosenSettings(learner.default(sample))
    return (yield from learner.choose(folds, sample, clock))


def _finished(machine: Machine, choice: ChosenSettings, context: FitContext) -> tuple[Machine, dict[str, Any]]:
    """Scale the decisions of a kernel machine to logits, and add the constant noise of a heteroscedastic likelihood."""
    outputs, targets, more = choice.outputs, choice.targets, dict[str, Any]()
    if outputs is not None and targets is not None:
        more["judged"] = len(targets)
        more["held_out"] = context.form.score(_tallied(context, outputs, targets))
    if isinstance(machine, KernelMachine) and context.classes:
        fitted = TEMPERATURE if outputs is None or targets is None else sharpness(outputs, targets)
        more["sharpness"] = float(choice.settings.get("sharpness", fitted))
        machine = machine.sharpened(more["sharpness"])
    if context.form.name == "heteroscedastic":
        noise = [1.0] * context.size
        if outputs is not None and targets is not None:
            noise = (outputs - targets).square().mean(0).tolist()
        more["noise"] = [max(1e-4, float(value)) for value in choice.settings.get("noise", noise)]
        machine = machine.widened(torch.tensor(more["noise"]).log())
    return machine, more


def _tallied(context: FitContext, outputs: Tensor, targets: Tensor) -> Tensor:
    """Sums of the metric; a heteroscedastic likelihood expects a noise beside each mean."""
    if context.form.name == "heteroscedastic":
        outputs = torch.cat([outputs, torch.zeros_like(outputs)], 1)
    return context.form.tally(outputs, targets)


def _why(seconds: float | None) -> str:
    return "" if seconds is None else f", to keep to {seconds:.1f} s"


def _check(kind: str, words: str, task: Task, seconds: float | None) -> None:
    """Refuse wrong arguments."""
    require(seconds is None or seconds > 0, f"the time of a simple model must be above 0 s, got {seconds}")
    require(
        task.likelihood in ("categorical", "gaussian", "heteroscedastic"),
        f"'{task.name}' has a {task.likelihood} likelihood, and {words} predicts one class or a few values; "
        f"use a network",
    )
    size, columns = len(task.classes), math.prod(task.input_shape)
    require(
        kind == "logistic" or size <= MOST_CLASSES,
        f"'{task.name}' has {size} classes or values, and {words} fits at most {MOST_CLASSES}; "
        f"use logistic or a network",
    )
    require(
        kind != "logistic" or size * columns <= MOST_WEIGHTS,
        f"{words} of '{task.name}' would have {size} x {columns} weights, more than {MOST_WEIGHTS}; use smaller images "
        f"or a network",
    )
    require(len(task.train) >= 2, f"'{task.name}' has 1 training sample, {words} needs two; add samples", DataError)


def _check_fixed(kind: str, fixed: Mapping[str, Any] | None, learner: Learner) -> None:
    missing = [name for name in learner.needed if fixed is not None and name not in fixed]
    require(
        not missing,
        f"the fixed settings of {kind} lack {', '.join(missing)}; pass the settings of an earlier fit",
    )
