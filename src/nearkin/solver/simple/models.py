"""The simple models that one would try first, fitted under a time limit and kept as networks are.

They learn from the training part alone. Their few settings are chosen on a part held out of it (five folds where there
are fewer than 500 samples), then they learn from all of it; the test part only judges.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from nearkin.core.errors import DataError, require
from nearkin.core.events import Caution, Note, Work, operation
from nearkin.core.state import copied
from nearkin.nets.evaluate import evaluate
from nearkin.nets.history import History
from nearkin.nets.training_loop import Fit
from nearkin.solver.simple.boosting import Boosting
from nearkin.solver.simple.data import Choice, Clock, Ground, Learner, Sample, evenly, pairs_of
from nearkin.solver.simple.kernel import TEMPERATURE, Kernel, sharpness
from nearkin.solver.simple.linear import Linear
from nearkin.solver.simple.machines import KernelMachine, Machine
from nearkin.tasks.task import Task

SIMPLE: Mapping[str, str] = MappingProxyType(
    {"logistic": "logistic regression", "svm": "RBF support vector machine", "boosting": "gradient boosting"}
)
FOR_VALUES: Mapping[str, str] = MappingProxyType(
    {"logistic": "ridge regression", "svm": "RBF support vector regression", "boosting": "gradient boosting of values"}
)
LEARNERS: Mapping[str, type[Linear] | type[Kernel] | type[Boosting]] = MappingProxyType(
    {"logistic": Linear, "svm": Kernel, "boosting": Boosting}
)
MOST_CLASSES = 200  # of kinds that fit every class for itself
MOST_WEIGHTS = 2**25
MOST_NUMBERS = 2**28  # numbers of inputs in memory: 1 GB


@dataclass(frozen=True, eq=False)
class SimpleFit:
    """A simple model that has learned.

    Attributes:
        kind: one of `SIMPLE`.
        network: the network string that builds its module.
        fit: its tensors and what it is worth on the test part.
        settings: what was chosen and from how many samples it learned, in plain JSON values; `fixed` takes them back.
    """

    kind: str
    network: str
    fit: Fit
    settings: dict[str, Any]


def title(kind: str, likelihood: str) -> str:
    """What to call a kind of model for classes or for values.

    >>> title("logistic", "categorical"), title("logistic", "gaussian")
    ('logistic regression', 'ridge regression')
    """
    require(kind in SIMPLE, f"unknown simple model {kind!r}; choose one of {', '.join(SIMPLE)}")
    return (SIMPLE if likelihood == "categorical" else FOR_VALUES)[kind]


@operation
def fit_simple(
    kind: str,
    task: Task,
    *,
    seconds: float | None = None,
    seed: int = 0,
    fixed: Mapping[str, Any] | None = None,
) -> Work[SimpleFit]:
    """Fit one kind of simple model to a task.

    Args:
        kind: one of `SIMPLE`; for values they stand for ridge, support vector and boosted regression.
        task: classes or values to predict.
        seconds: about how long it may take; the default settings are tried first, other ones while there is time, and
            where all samples are too many an evenly drawn part is learned from. Without it the same seed gives the
            same model.
        seed: of what is drawn and held out.
        fixed: `settings` of an earlier fit: nothing is chosen, all of the training part is learned from.

    >>> x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    >>> toy = Task.from_arrays("toy", x, (x[:, 0] > 0).long(), x, (x[:, 0] > 0).long())
    >>> done = fit_simple("logistic", toy)
    >>> done.network, done.fit.scores.metric > 0.9
    ('nearkin.solve.simple.machines:linear_machine', True)
    """
    words, clock = title(kind, task.likelihood), Clock(seconds)
    _check(kind, words, task, seconds)
    ground = Ground(words, task.form, len(task.classes), len(task.input_shape) == 3, seed)
    learner: Learner = LEARNERS[kind](ground)
    _check_fixed(kind, fixed, learner)
    labels = task.train.labels() if ground.classes else None
    count = len(task.train)

    def draw(size: int) -> Sample:
        x, y = task.train.take(evenly(labels, count, size, seed))
        return Sample(x.flatten(1).float(), y if ground.classes else y.float())

    yield from ground.moment(0, None)
    most = min(count, max(1, MOST_NUMBERS // math.prod(task.input_shape)))
    size = yield from learner.fitting_in(draw, most, clock)
    if size < count:
        yield Note(f"{words} learns from {size} of {count} samples, evenly drawn{_why(seconds)}")
    sample = draw(size)
    choice = Choice(dict(fixed)) if fixed is not None else (yield from _choosing(learner, sample, ground, clock))
    settings = {name: choice.settings[name] for name in learner.needed}
    machine, steps = yield from learner.learning(sample, settings, clock)
    machine, more = _finished(machine, choice, ground)
    taken = clock.spent
    settings |= {**more, "samples": size, "steps": steps} | ({"rounds": steps} if "rounds" in settings else {})
    begun = time.monotonic()
    scores = evaluate(machine, task.test, task.form)
    if seconds is not None and time.monotonic() - begun > seconds:
        yield Caution(f"{words} answers slowly: {scores.count} test samples took {time.monotonic() - begun:.0f} s")
    tensors = copied(dict(machine.named_parameters())), copied(dict(machine.named_buffers()))
    done = Fit(*tensors, History(torch.zeros(0)), scores, taken, reached=True)
    yield from ground.moment(1, None, metric=scores.metric)
    return SimpleFit(kind, machine.network, done, settings)


def _choosing(learner: Learner, sample: Sample, ground: Ground, clock: Clock) -> Work[Choice]:
    """Settings by what is held out; the default ones where nothing can be."""
    pairs = pairs_of(sample, ground.classes, ground.seed)
    if not pairs:
        yield Note(f"{ground.stage} keeps its default settings: no class has a second sample to choose others by")
        return Choice(learner.default(sample))
    return (yield from learner.choosing(pairs, sample, clock))


def _finished(machine: Machine, choice: Choice, ground: Ground) -> tuple[Machine, dict[str, Any]]:
    """Logits from a kernel machine's decisions, and a constant noise where the likelihood wants one."""
    said, truth, more = choice.outputs, choice.targets, dict[str, Any]()
    if said is not None and truth is not None:
        more["judged"] = len(truth)
        more["held_out"] = ground.form.score(_tallied(ground, said, truth))
    if isinstance(machine, KernelMachine) and ground.classes:
        found = TEMPERATURE if said is None or truth is None else sharpness(said, truth)
        more["sharpness"] = float(choice.settings.get("sharpness", found))
        machine = machine.sharpened(more["sharpness"])
    if ground.form.name == "heteroscedastic":
        noise = [1.0] * ground.size if said is None or truth is None else (said - truth).square().mean(0).tolist()
        more["noise"] = [max(1e-4, float(value)) for value in choice.settings.get("noise", noise)]
        machine = machine.widened(torch.tensor(more["noise"]).log())
    return machine, more


def _tallied(ground: Ground, outputs: Tensor, targets: Tensor) -> Tensor:
    """Sums of the metric; a heteroscedastic one reads means out of outputs that have a noise beside them."""
    if ground.form.name == "heteroscedastic":
        outputs = torch.cat([outputs, torch.zeros_like(outputs)], 1)
    return ground.form.tally(outputs, targets)


def _why(seconds: float | None) -> str:
    return "" if seconds is None else f", to keep to {seconds:.1f} s"


def _check(kind: str, words: str, task: Task, seconds: float | None) -> None:
    """One clear line for what makes no sense."""
    require(seconds is None or seconds > 0, f"the time of a simple model must be above 0 s, got {seconds}")
    require(
        task.likelihood in ("categorical", "gaussian", "heteroscedastic"),
        f"{task.name} has a {task.likelihood} likelihood, and {words} answers with one class or a few values; "
        f"use a network for it",
    )
    size, columns = len(task.classes), math.prod(task.input_shape)
    require(
        kind == "logistic" or size <= MOST_CLASSES,
        f"{words} fits each of the {size} classes or values of {task.name} for itself, which would take too long above "
        f"{MOST_CLASSES}; use logistic or a network",
    )
    require(
        kind != "logistic" or size * columns <= MOST_WEIGHTS,
        f"{words} of {task.name} would have {size} x {columns} weights, more than {MOST_WEIGHTS}; use smaller images "
        f"or a network",
    )
    require(len(task.train) >= 2, f"{task.name}: {words} needs two training samples or more, got 1", DataError)


def _check_fixed(kind: str, fixed: Mapping[str, Any] | None, learner: Learner) -> None:
    missing = [name for name in learner.needed if fixed is not None and name not in fixed]
    require(
        not missing,
        f"the fixed settings of {kind} lack {', '.join(missing)}; give the settings of an earlier fit of this kind",
    )
