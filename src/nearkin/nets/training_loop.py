"""The training loop of the whole package. It yields events; callers display them, save checkpoints or stop."""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from nearkin.core.clock import now
from nearkin.core.errors import MismatchError, require
from nearkin.core.events import Checkpoint, Note, Progress, Work, operation
from nearkin.core.rng import derived_seed
from nearkin.core.state import State, copied
from nearkin.core.types import Buffers, Params
from nearkin.nets.data_parallel import ALONE, DataParallel
from nearkin.nets.evaluate import Scores, evaluate
from nearkin.nets.functional import load, outputs_of, view
from nearkin.nets.history import History, Measurement
from nearkin.nets.lora import merge_lora
from nearkin.nets.recipe import Recipe
from nearkin.nets.training import Training
from nearkin.nets.weight_subset import Weights, free_weights
from nearkin.tasks.augment import augmentation
from nearkin.tasks.batches import epoch_batches, epoch_index, num_batches, ordered_batches, part_of
from nearkin.tasks.examples import Examples
from nearkin.tasks.named_inputs import described_fields, stored_fields
from nearkin.tasks.split import split_index
from nearkin.tasks.task import Task
from nearkin.tasks.texts import require_no_text

TICK_SECONDS = 0.25  # between two progress events within an epoch


@dataclass(frozen=True, eq=False)
class Fit:
    """Result of a training run.

    Attributes:
        params: weights by name, on the CPU.
        buffers: running statistics by name.
        history: loss of every step; see `History.steps_to`.
        scores: metric and loss on the task's test set.
        seconds: time of training steps and validation.
        reached: whether the recipe's target was reached (True if the recipe has no target).
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
    parallel: DataParallel = ALONE,
    weights: Weights | None = None,
) -> Work[Fit]:
    """Train a model on a task, in place, and evaluate it on the test set.

    `weights` selects the ones to train: `all`, `head`, `norm`, `lora?r=4` and others (`nearkin.nets.weight_subset`); by
    default those that require gradients. The optimiser stores nothing for other weights. Normalisation layers without
    a selected weight keep their running statistics. Adapters of `lora` are merged into the weights at the end.

    Several processes that call it with their `parallel` and else with the same arguments do one training together. All
    return the same result; it is that of one process up to rounding if there is no dropout or batch normalisation.

    >>> x = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
    >>> toy = Task.from_arrays("toy", x, (x[:, 0] > 0).long(), x, (x[:, 0] > 0).long())
    >>> done = fit(nn.Linear(2, 2), toy, Recipe(steps=60, learning_rate=0.1))
    >>> done.scores.metric > 0.95, done.history.steps_to(0.3) < 60
    (True, True)
    """
    _require_inputs(model, task)
    recipe = recipe or Recipe.suited(task)
    if weights is None:
        return (yield from _train(model, task, recipe, seed, device, resume, stage, parallel))
    free = free_weights(model, weights, task.train.first(1).x, derived_seed(seed, "lora"))
    with free.trainable():
        done = yield from _train(
            free.model, task, recipe, seed, device, resume, stage, parallel, free.frozen_norms()
        )  # fmt: skip
    if free.model is model:
        return done
    merged = view(merge_lora(free.model))
    load(model.to(device or torch.device("cpu")), merged.params, merged.buffers)
    return replace(done, params=copied(merged.params), buffers=copied(merged.buffers))


def _require_inputs(model: nn.Module, task: Task) -> None:
    """Refuse texts, and named inputs whose packed rows the network cannot read."""
    network, fields = type(model).__name__, stored_fields(task.preprocessing)
    require_no_text(task, network)
    if fields:
        try:
            outputs_of(model, task.train.first(1).x)
        except MismatchError as error:
            raise MismatchError(
                f"'{task.name}' has {described_fields(fields)}, which {network} cannot read as one packed row; adopt "
                f"a network that takes these inputs by name (zoo.adopt)"
            ) from error


def _train(
    model: nn.Module,
    task: Task,
    recipe: Recipe,
    seed: int,
    device: torch.device | None,
    resume: State | None,
    stage: str,
    parallel: DataParallel,
    frozen_norms: Collection[nn.Module] = (),
) -> Work[Fit]:
    """Train the weights that require gradients."""
    _check_augmentation(task, recipe)
    train, validation = _split(task, recipe, seed)
    train = train if recipe.augment else train.ready()
    per_epoch = num_batches(len(train), recipe.batch_size)
    parallel.check_batches(len(train), per_epoch, model)
    if parallel.size > 1:
        shapes = [[name, str(value.dtype), *value.shape] for name, value in model.state_dict().items()]
        start = None if resume is None else resume.facts.get("done")
        parallel.agree({"data set": task.fingerprint(), "network": shapes, "recipe": recipe.to_dict(), "seed": seed,
                        "trained weights": [name for name, value in model.named_parameters() if value.requires_grad],
                        "checkpoint": start})  # fmt: skip
    total, device = recipe.total_steps(per_epoch), device or torch.device("cpu")
    if recipe.frozen_statistics:
        frozen_norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    run = Training(model, task.form, recipe, total, seed, device, parallel, frozen_norms)
    if resume is not None:
        run.restore(resume)
        yield Note(f"resuming at step {run.done} of {run.total}")
    while True:
        # a run that was restored at the end of an epoch may not have been validated there
        validated = bool(run.measured) and run.measured[-1].step == run.done
        if validation is not None and run.done > 0 and run.done % per_epoch == 0 and not validated:
            _validate(run, validation)
        if _finished(run):
            break
        yield from _epoch(run, train, stage)
    run.load_final_weights(ordered_batches(train, recipe.batch_size))
    scores = _scores(run, task.test)
    history = History(run.losses[: run.done].cpu(), run.measured, per_epoch)
    params, buffers = copied(dict(model.named_parameters())), copied(dict(model.named_buffers()))
    return Fit(params, buffers, history, scores, run.seconds, recipe.target is None or _reached(run))


def _epoch(run: Training, train: Examples, stage: str) -> Work[None]:
    """Do the steps up to the end of the current epoch or of the run."""
    recipe, per_epoch = run.recipe, num_batches(len(train), run.recipe.batch_size)
    number, start = divmod(run.done, per_epoch)
    part = (run.parallel.rank, run.parallel.size)
    batches = epoch_batches(train, recipe.batch_size, run.streams, number, start=start,
                            augment=augmentation(recipe.augment), part=part)  # fmt: skip
    indices = epoch_index(len(train), recipe.batch_size, run.streams, number, start)
    run.train_mode()
    run.rng.enter()
    checked, tick = run.done, now()
    try:
        for batch, index in zip(batches, indices, strict=True):
            weights = None if train.weights is None else train.weights[part_of(index, part)]
            run.step(batch, weights, len(batch.y) / len(index))
            (spent,) = run.parallel.from_first(now() - tick)
            run.elapsed = run.seconds + spent
            last = run.position >= run.total or run.done % per_epoch == 0
            if last or spent > TICK_SECONDS:
                run.seconds += spent
                run.sum_losses(checked)
                run.check(checked)
                run.rng.leave()
                mean = float(run.losses[checked : run.done].mean())
                with run.parallel.stopping_together():
                    yield Progress(stage, run.done, run.total, {"loss": mean})
                    yield Checkpoint(run.capture)
                run.rng.enter()
                checked, tick = run.done, now()
            if last:
                return
    finally:
        run.rng.leave()


def _validate(run: Training, validation: Examples) -> None:
    """Evaluate on the validation set; with patience, keep the weights if their loss is the lowest so far."""
    start = now()
    scores = _scores(run, validation)
    best = min((row.loss for row in run.measured), default=math.inf)
    run.measured = (*run.measured, Measurement(run.done, scores.metric, scores.loss))
    if run.recipe.patience > 0 and scores.loss < best:
        run.keep_best()
    run.seconds += run.parallel.from_first(now() - start)[0]


def _scores(run: Training, examples: Examples) -> Scores:
    """Scores of the network, measured by the first process, which has the batch statistics."""
    scores = Scores(0.0, 0.0, 0)
    if run.parallel.first:
        scores = evaluate(run.model, examples, run.form, device=run.device)
    metric, loss, count = run.parallel.from_first(scores.metric, scores.loss, scores.count)
    return Scores(metric, loss, int(count))


def _finished(run: Training) -> bool:
    """Whether all steps are done, the target is reached, or the loss has not fallen for `patience` epochs."""
    if run.position >= run.total or (run.recipe.target is not None and _reached(run)):
        return True
    losses = [row.loss for row in run.measured]
    return 0 < run.recipe.patience < len(losses) - losses.index(min(losses)) if losses else False


def _reached(run: Training) -> bool:
    return bool(run.measured) and run.measured[-1].metric >= (run.recipe.target or 0.0)


def _check_augmentation(task: Task, recipe: Recipe) -> None:
    """Refuse to augment images whose targets are images or boxes: they would have to be moved in the same way."""
    fits = len(task.input_shape) == 3 and task.likelihood not in ("dense", "detection")
    require(
        fits or augmentation(recipe.augment) is None,
        f"{task.name}: augmentation is for images with classes or values as targets; train without {recipe.augment!r}",
    )


def _split(task: Task, recipe: Recipe, seed: int) -> tuple[Examples, Examples | None]:
    """The training set and, if the recipe stops early, a validation set taken from it; the test set is not used."""
    if not recipe.stops_early:
        return task.train, None
    labels = task.train.labels() if task.likelihood == "categorical" else None
    require(len(task.train) >= 2, f"{task.name}: got 1 training sample, a validation set needs 2; drop target and "
                                  f"patience")  # fmt: skip
    train, validation = split_index(labels, len(task.train), recipe.validation, seed)
    return task.train.chosen(train), task.train.chosen(validation)
