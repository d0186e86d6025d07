"""Closed-form transfer as a contender: fit the linearized network of a related task to the target's labels."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nearkin.core.clock import now
from nearkin.core.errors import DataError, require
from nearkin.core.events import Note, Work
from nearkin.core.state import copied
from nearkin.nets.evaluate import evaluate
from nearkin.nets.heads import SCALE_SAMPLES
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
from nearkin.transfer.linearized import Linearized, linearize, transfer_source
from nearkin.transfer.machine import TangentMachine, as_machine, with_constant_outputs

MOST = 2000  # training samples
FEWEST = 20  # when time is short
SMALL, LARGER = 32, 128  # sizes of the timed kernels
AGAIN = 2  # factor on the samples of the final fit, in which nothing is chosen
SHARE = 0.3  # of the time for kernels; the rest is for factorisations, model selection and predictions


def fit_closed_form(
    source: Solved,
    task: Task,
    *,
    seconds: float | None = None,
    seed: int = 0,
    fixed: Mapping[str, Any] | None = None,
) -> Work[tuple[str, Fit, dict[str, Any]]]:
    """Network string, fit and settings of a closed-form transfer.

    Args:
        source: the solved task whose network is linearized, in the task's input shape.
        task: classification or regression.
        seconds: approximate time limit; if all samples would take longer, a stratified subset is used.
        seed: of the subset.
        fixed: settings of an earlier fit; nothing is chosen.
    """
    classes, begun = task.likelihood == "categorical", now()
    model, means = source.model(), source_means(source)
    if means is None:
        model = transfer_source(model, task.train.first(SCALE_SAMPLES).x, len(task.classes), seed=seed)
    flat = linearize(model, dtype=None if classes else torch.float64, means=means)
    settings = {name: value for name, value in (fixed or {}).items() if name != "samples"}
    size = _size(flat, task, seconds) if fixed is None else min(MOST, len(task.train), AGAIN * int(fixed["samples"]))
    if size < len(task.train):
        yield Note(f"closed-form transfer uses {size:,} of {len(task.train):,} training samples")
    if task.train.weights is not None:
        yield Note("closed-form transfer does not use the weights of samples or classes")
    few = limited(task, size, seed)
    fit = _classes if classes else _values
    machine, chosen = yield from fit(flat, few, source.network, settings, seed)
    seconds_taken = now() - begun
    scores = evaluate(machine, task.test, task.form)
    tensors = copied(dict(machine.named_parameters())), copied(dict(machine.named_buffers()))
    done = Fit(*tensors, History(torch.zeros(0)), scores, seconds_taken, reached=True)
    return machine.network, done, {**chosen, "samples": size}


def _classes(
    flat: Linearized, task: Task, network: str, settings: Mapping[str, Any], seed: int
) -> Work[tuple[TangentMachine, dict[str, Any]]]:
    x, y = task.train.all()
    known = Classes(alpha=settings.get("alpha"), scale=settings.get("scale"), temperature=settings.get("temperature"))
    result = yield from classify.work(flat, x, y, len(task.classes), known, seed=seed)
    temperature = result.temperatures["mean"]
    chosen = {"alpha": result.choice.alpha, "scale": result.choice.scale, "temperature": temperature}
    return as_machine(result.posterior, network, temperature), chosen


def _values(
    flat: Linearized, task: Task, network: str, settings: Mapping[str, Any], seed: int
) -> Work[tuple[TangentMachine, dict[str, Any]]]:
    x, y = task.train.all()
    known = {name: settings[name] for name in ("noise", "scale", "mean") if name in settings}
    posterior = yield from gaussian.work(flat, x, y, Hyper(**known) if known else None, space="function", seed=seed)
    machine = as_machine(posterior, network)
    if task.likelihood == "heteroscedastic":
        machine = with_constant_outputs(machine, _leave_one_out_error(posterior.leave_one_out(), y).log())
    return machine, {"noise": posterior.hyper.noise, "scale": posterior.hyper.scale, "mean": posterior.hyper.mean}


def _leave_one_out_error(left_out: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
    """Mean squared leave-one-out error `[K]`."""
    return (left_out[0] - y).square().mean(0).clamp_min(1e-4)


def _size(flat: Linearized, task: Task, seconds: float | None) -> int:
    """Number of training samples for the time limit, extrapolated from the time of two small kernels."""
    most = min(MOST, len(task.train))
    least = min(most, max(FEWEST, len(task.classes)))
    if seconds is None or most <= SMALL:
        return most
    x, _ = task.train.first(LARGER)
    once, seconds_each = flat.kernel(x[:SMALL]), []  # costs of the first call are not timed
    require(
        bool(once.isfinite().all()),
        "the source network has a tangent kernel that is not finite; train it again",
        DataError,
    )
    for inputs in (x[:SMALL], x):
        start = now()
        flat.kernel(inputs)
        seconds_each.append((now() - start) / len(inputs))
    slope = max(0.0, (seconds_each[1] - seconds_each[0]) / max(1, len(x) - SMALL))
    each = max(seconds_each[0] - slope * SMALL, 0.0)
    predicted = len(task.test)
    fits = [n for n in range(least, most + 1) if (each + slope * n) * (n + predicted) <= SHARE * seconds]
    return max(fits, default=least)
