"""THE training loop: one for every room. It yields; callers show, save, stop."""

import math
import time
from dataclasses import dataclass

import torch
from torch import nn

from nearkin.core.errors import require
from nearkin.core.events import Checkpoint, Note, Progress, Work, operation
from nearkin.core.state import State, copied
from nearkin.core.types import Buffers, Params
from nearkin.nets.evaluate import Scores, evaluate
from nearkin.nets.history import History, Measured
from nearkin.nets.recipe import Recipe
from nearkin.nets.training import Training
from nearkin.tasks.augment import augmentation
from nearkin.tasks.batches import epoch_batches, num_batches, ordered_batches
from nearkin.tasks.examples import Examples
from nearkin.tasks.split import split_index
from nearkin.tasks.task import Task

TICK_SECONDS = 0.25  # between two events inside an epoch


@dataclass(frozen=True, eq=False)
class Fit:
    """A trained network's weights and how it came to them.

    Attributes:
        params: weights by name, on the CPU.
        buffers: running statistics by name.
        history: loss of every step; `history.steps_to(loss)`.
        scores: metric and loss on the task's test part.
        seconds: time spent in steps and validation.
        reached: whether the recipe's target was reached (True where it set none).
    """

    params: Params
    buffers: Buffers
    history: History
    scores: Scores
    seconds: float
    reached: bool


@operation
def fit(
    model: nn.Module,
    task: Task,
    recipe: Recipe | None = None,
    *,
    seed: int = 0,
    device: torch.device | None = None,
    resume: State | None = None,
    stage: str = "training",
) -> Work[Fit]:
    """Train a model on a task, in place, and measure it on the test part.

    >>> x = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
    >>> toy = Task.from_arrays("toy", x, (x[:, 0] > 0).long(), x, (x[:, 0] > 0).long())
    >>> done = fit(nn.Linear(2, 2), toy, Recipe(steps=60, learning_rate=0.1))
    >>> done.scores.metric > 0.95, done.history.steps_to(0.3) < 60
    (True, True)
    """
    recipe = recipe or Recipe.suited(task)
    _check_augmentation(task, recipe)
    learn, judge = _parts(task, recipe, seed)
    learn = learn if recipe.augment else learn.ready()
    per_epoch = num_batches(len(learn), recipe.batch_size)
    run = Training(model, task.form, recipe, recipe.total_steps(per_epoch), seed, device or torch.device("cpu"))
    if resume is not None:
        run.restore(resume)
        yield Note(f"going on at step {run.done} of {run.total}")
    while True:
        if judge is not None and run.done > 0 and run.done % per_epoch == 0 and not _judged(run):
            _judge(run, judge)
        if _finished(run):
            break
        yield from _epoch(run, learn, stage)
    run.settle(ordered_batches(learn, recipe.batch_size))
    scores = evaluate(model, task.test, task.form, device=run.device)
    history = History(run.losses[: run.done].cpu(), run.measured, per_epoch)
    params, buffers = copied(dict(model.named_parameters())), copied(dict(model.named_buffers()))
    return Fit(params, buffers, history, scores, run.seconds, recipe.target is None or _reached(run))


def _epoch(run: Training, learn: Examples, stage: str) -> Work[None]:
    """Steps to the end of the epoch that the run is in, or of the run."""
    recipe, per_epoch = run.recipe, num_batches(len(learn), run.recipe.batch_size)
    number, start = divmod(run.done, per_epoch)
    batches = epoch_batches(learn, recipe.batch_size, run.streams, number, start=start,
                            augment=augmentation(recipe.augment))  # fmt: skip
    run.model.train()
    run.dice.enter()
    checked, tick = run.done, time.perf_counter()
    try:
        for batch in batches:
            run.step(batch)
            last = run.done == run.total or run.done % per_epoch == 0
            now = time.perf_counter()
            if last or now - tick > TICK_SECONDS:
                run.seconds += now - tick
                run.check(checked)
                run.dice.leave()
                mean = float(run.losses[checked : run.done].mean())
                yield Progress(stage, run.done, run.total, {"loss": mean})
                yield Checkpoint(run.capture)
                run.dice.enter()
                checked, tick = run.done, time.perf_counter()
            if last:
                return
    finally:
        run.dice.leave()


def _judge(run: Training, judge: Examples) -> None:
    """Measure on the validation part, and keep the weights if they are the best so far and that matters."""
    start = time.perf_counter()
    scores = evaluate(run.model, judge, run.form, device=run.device)
    best = min((row.loss for row in run.measured), default=math.inf)
    run.measured = (*run.measured, Measured(run.done, scores.metric, scores.loss))
    if run.recipe.patience > 0 and scores.loss < best:
        run.keep_best()
    run.seconds += time.perf_counter() - start


def _judged(run: Training) -> bool:
    """Whether this very step was measured; a run restored at the end of an epoch may not have been."""
    return bool(run.measured) and run.measured[-1].step == run.done


def _finished(run: Training) -> bool:
    """At the end of the run, at the target, or out of patience."""
    if run.done >= run.total or (run.recipe.target is not None and _reached(run)):
        return True
    losses = [row.loss for row in run.measured]
    return run.recipe.patience > 0 and len(losses) - 1 - _argmin(losses) >= run.recipe.patience


def _reached(run: Training) -> bool:
    return bool(run.measured) and run.measured[-1].metric >= (run.recipe.target or 0.0)


def _argmin(values: list[float]) -> int:
    return min(range(len(values)), key=values.__getitem__) if values else -1


def _check_augmentation(task: Task, recipe: Recipe) -> None:
    """Images that move while their targets stay would teach nonsense."""
    fits = len(task.input_shape) == 3 and task.likelihood != "dense"
    require(
        fits or augmentation(recipe.augment) is None,
        f"{task.name}: augmentation is for images with classes or values as targets; train without {recipe.augment!r}",
    )


def _parts(task: Task, recipe: Recipe, seed: int) -> tuple[Examples, Examples | None]:
    """The training part, and a validation part taken out of it where the recipe stops early; never the test part."""
    if not recipe.stops_early:
        return task.train, None
    labels = task.train.labels() if task.likelihood == "categorical" else None
    require(len(task.train) >= 2, f"{task.name}: one sample is too few to set some aside; drop target and patience")
    learn, judge = split_index(labels, len(task.train), recipe.validation, seed)
    return task.train.chosen(learn), task.train.chosen(judge)
