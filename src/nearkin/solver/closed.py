"""Closed-form transfer as a contender: the kin's network, linearized, learns the target's labels without training."""

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nearkin.core.errors import DataError, require
from nearkin.core.events import Note, Work
from nearkin.core.state import copied
from nearkin.nets.evaluate import evaluate
from nearkin.nets.history import History
from nearkin.nets.solved import Solved
from nearkin.nets.training_loop import Fit
from nearkin.tasks.derive import limited
from nearkin.tasks.task import Task
from nearkin.transfer.classify import classify
from nearkin.transfer.closed_form import source_means
from nearkin.transfer.gaussian_process import gaussian
from nearkin.transfer.hyper import Hyper
from nearkin.transfer.labels.classes import Classes
from nearkin.transfer.linearized import Linearized, linearize
from nearkin.transfer.machine import TangentMachine, as_machine, with_constant_outputs

MOST = 2000  # labels that are learned from
FEWEST = 20  # where time is short
SMALL, LARGER = 32, 128  # points whose kernels are timed
AGAIN = 2  # times as many samples at the most when it is fitted once more, with nothing to choose
SHARE = 0.3  # of the time for kernels; factors, the choice and further judging have the rest


def fit_closed_form(
    source: Solved,
    task: Task,
    *,
    seconds: float | None = None,
    seed: int = 0,
    fixed: Mapping[str, Any] | None = None,
) -> Work[tuple[str, Fit, dict[str, Any]]]:
    """The network string, the fit and the settings of a closed-form transfer.

    Args:
        source: whose network is linearized, in the task's input shape.
        task: of classes or values.
        seconds: about how long it may take; an evenly drawn part is learned from where all would take longer.
        seed: of what is drawn.
        fixed: settings of an earlier fit: nothing is chosen.
    """
    classes, begun = task.likelihood == "categorical", time.monotonic()
    flat = linearize(source.model(), dtype=None if classes else torch.float64, means=source_means(source))
    settings = {name: value for name, value in (fixed or {}).items() if name != "samples"}
    size = _size(flat, task, seconds) if fixed is None else min(MOST, len(task.train), AGAIN * int(fixed["samples"]))
    if size < len(task.train):
        yield Note(f"closed-form transfer learns from {size:,} of {len(task.train):,} samples, evenly drawn")
    few = limited(task, size, seed)
    fit = _classes if classes else _values
    machine, chosen = yield from fit(flat, few, source.network, settings, seed)
    taken = time.monotonic() - begun
    scores = evaluate(machine, task.test, task.form)
    tensors = copied(dict(machine.named_parameters())), copied(dict(machine.named_buffers()))
    done = Fit(*tensors, History(torch.zeros(0)), scores, taken, reached=True)
    return machine.network, done, {**chosen, "samples": size}


def _classes(
    flat: Linearized, task: Task, network: str, settings: Mapping[str, Any], seed: int
) -> Work[tuple[TangentMachine, dict[str, Any]]]:
    x, y = task.train.all()
    known = Classes(alpha=settings.get("alpha"), scale=settings.get("scale"), temperature=settings.get("temperature"))
    found = yield from classify.work(flat, x, y, len(task.classes), known, seed=seed)
    heat = found.temperatures["mean"]
    chosen = {"alpha": found.choice.alpha, "scale": found.choice.scale, "temperature": heat}
    return as_machine(found.posterior, network, heat), chosen


def _values(
    flat: Linearized, task: Task, network: str, settings: Mapping[str, Any], seed: int
) -> Work[tuple[TangentMachine, dict[str, Any]]]:
    x, y = task.train.all()
    known = {name: settings[name] for name in ("noise", "scale", "mean") if name in settings}
    found = yield from gaussian.work(flat, x, y, Hyper(**known) if known else None, space="function", seed=seed)
    machine = as_machine(found, network)
    if task.likelihood == "heteroscedastic":
        machine = with_constant_outputs(machine, _spread(found.leave_one_out(), y).log())
    return machine, {"noise": found.hyper.noise, "scale": found.hyper.scale, "mean": found.hyper.mean}


def _spread(left: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
    """The mean square error of values `[K]` that were left out."""
    return (left[0] - y).square().mean(0).clamp_min(1e-4)


def _size(flat: Linearized, task: Task, seconds: float | None) -> int:
    """How many samples are learned from: kernels of two small sizes are timed, and the time of larger ones told."""
    most = min(MOST, len(task.train))
    least = min(most, max(FEWEST, len(task.classes)))
    if seconds is None or most <= SMALL:
        return most
    x, _ = task.train.first(LARGER)
    once, spent = flat.kernel(x[:SMALL]), []  # what is only paid the first time
    require(bool(once.isfinite().all()), "the kin's tangent kernel is not finite; mend its weights", DataError)
    for part in (x[:SMALL], x):
        start = time.perf_counter()
        flat.kernel(part)
        spent.append((time.perf_counter() - start) / len(part))
    slope = max(0.0, (spent[1] - spent[0]) / max(1, len(x) - SMALL))
    each = max(spent[0] - slope * SMALL, 0.0)
    judged = len(task.test)
    fits = [n for n in range(least, most + 1) if (each + slope * n) * (n + judged) <= SHARE * seconds]
    return max(fits, default=least)
