"""Measures that are compared by question: values and process time of every source of a target.

They are computed like the measures of the package, from 300 samples of the target. A short fine-tuning run is made
from each kind of head, with the default schedule of `short-finetune`.
"""

import functools
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from nearkin.core.rng import Streams, derived_seed
from nearkin.distance import baselines
from nearkin.distance.short_finetune import DRAWN_HEADS, SCHEDULE, short_finetune_losses
from nearkin.fisher.diagonals import diagonal
from nearkin.fisher.tangent import tangent_kernel
from nearkin.fisher.values import FisherDiagonal
from nearkin.nets.heads import HeadStart, with_start
from prediction_measures import (
    KERNEL_SAMPLES,
    Pair,
    drawn_number,
    padded_frechet,
    tangent_evidence,
    task2vec,
)
from prediction_runs import SEED, START, networks, rows_of, target_data
from prediction_score import Column
from prediction_truth import kept, order_of

Value = Callable[[Pair], float]
END = 12  # of 16 steps: the mean loss of those after it is the loss at the end of a short run


def short_losses(head: HeadStart) -> Callable[[Pair], Tensor]:
    """Losses `[K]` of a short fine-tuning run."""

    def losses(pair: Pair) -> Tensor:
        seed = derived_seed(SEED, "kin", pair.column.target)
        return short_finetune_losses(
            pair.module, pair.x, pair.y, num_outputs=pair.part.num_outputs, head=head, seed=seed
        )

    return losses


def short_run(head: HeadStart, first: int = 0) -> Value:
    """Mean loss of a short run, without its first steps; both come from the same run."""
    return lambda pair: float(pair.once(f"run {head}", lambda: short_losses(head)(pair))[first:].mean())


def held_out_run(steps: int) -> Value:
    """Loss of a third of the samples after a short run on the others, from scaled heads side by side on one encoder."""

    def value(pair: Pair) -> float:
        order = torch.randperm(len(pair.x), generator=Streams(SEED).at("held-out run", pair.column.target))
        learn, judge = order[: 2 * len(order) // 3], order[2 * len(order) // 3 :]
        seed, outputs = derived_seed(SEED, "held-out run", pair.column.target), pair.part.num_outputs
        module = with_start(pair.module, DRAWN_HEADS * outputs, seed, pair.x[learn], "scaled").train()
        optimiser = torch.optim.Adam(module.parameters(), SCHEDULE.learning_rate, fused=True)
        rng = Streams(SEED).at("held-out run order", pair.column.target)

        def loss(index: Tensor) -> Tensor:
            logits = module(pair.x[index]).unflatten(-1, (DRAWN_HEADS, outputs))
            return F.cross_entropy(logits.flatten(0, 1), pair.y[index].repeat_interleave(DRAWN_HEADS))

        for index in order_of(len(learn), steps, SCHEDULE.batch_size, rng):
            optimiser.zero_grad()
            loss(learn[index]).backward()
            optimiser.step()
        with torch.no_grad():
            module.eval()
            return float(loss(judge))

    return value


def tangent_error(pair: Pair) -> float:
    """Leave-one-out error of ridge regression with the tangent kernel of one output."""
    x, y = pair.x[:KERNEL_SAMPLES], pair.y[:KERNEL_SAMPLES]
    values, vectors = torch.linalg.eigh(tangent_kernel(pair.with_drawn_head(), x, outputs=0).double())
    return baselines.ridge_loo(vectors * values.clamp_min(0).sqrt(), y)


def source_samples(pair: Pair) -> float:
    """Minus the number of training samples of the source."""
    return -float(len(pair.source.source[0]) if pair.source is not None else 0)


def weights_of(pair: Pair) -> float:
    """Minus the number of weights without the head: larger networks first."""
    return -float(sum(value.numel() for name, value in pair.module.named_parameters() if not name.startswith("head")))


FEATURE_MEASURES: dict[str, Value] = {
    "logme": lambda pair: -baselines.logme(pair.features, pair.y, pair.part.num_outputs),
    "hscore": lambda pair: -baselines.hscore(pair.features, pair.y, shrinkage=True),
    "hscore-adjusted": lambda pair: -baselines.hscore(pair.features, pair.y, shrinkage=True, adjusted=True),
    "knn": lambda pair: -baselines.knn_accuracy(pair.features, pair.y),
    "cka": lambda pair: 1 - baselines.cka(pair.features, pair.y),
    "cka-adjusted": lambda pair: 1 - baselines.cka(pair.features, pair.y, adjusted=True),
    "ridge, leave one out": lambda pair: baselines.ridge_loo(pair.features, pair.y),
    "feature norm": lambda pair: -float(pair.features.norm(dim=1).mean()),
}
MEASURES: dict[str, Value] = {
    **FEATURE_MEASURES,
    "leep": lambda pair: -baselines.leep(pair.probabilities, pair.y, pair.part.num_outputs),
    "nce": lambda pair: -baselines.nce(pair.probabilities.argmax(1), pair.y),
    "evidence": lambda pair: tangent_evidence(pair.with_drawn_head(), pair),
    "tangent, leave one out": tangent_error,
    "short-finetune": short_run("zero"),
    "short-finetune, end": short_run("zero", END),
    "short-finetune-drawn": short_run("drawn"),
    "short-finetune-drawn, end": short_run("drawn", END),
    "short-finetune-scaled": short_run("scaled"),
    "short-finetune-scaled, end": short_run("scaled", END),
    "16 steps, held-out loss": held_out_run(16),
    "task2vec": task2vec,
    "frechet": padded_frechet,
    "size": weights_of,
    "source accuracy": lambda pair: -pair.accuracy,
    "source samples": source_samples,
    "random": drawn_number,
}
BASELINES = ("size", "source accuracy", "source samples", "random")


@functools.cache
def embedding(cache: Path, network: str, task: int) -> FisherDiagonal:
    """Fisher information of the initial network with a head that is fitted to a task."""
    data = target_data(task)
    pair = Pair(networks(cache, network).row(START), None, data, {}, None, 0.0, Column("", 0, task), START)
    return diagonal(pair.with_fitted_head(), data.target[0], labels="expected")


@functools.cache
def accuracy(cache: Path, network: str, row: int) -> float:
    """Held-out accuracy of a source on its own task."""
    data, module = target_data(row), networks(cache, network).row(row)
    x, y = data.held_out
    with torch.no_grad():
        return float((module(x)[:, : data.num_outputs].argmax(1) == y).double().mean())


def pairs(cache: Path, network: str, target: int) -> list[Pair]:
    """The sources of a target, with the values that only its own network and the initial network give."""
    stack, data = networks(cache, network), target_data(target)
    own = {"observed": diagonal(stack.row(target), *data.target)}
    of_target, column = embedding(cache, network, target), Column(network, SEED, target)
    return [
        Pair(
            stack.row(row), target_data(row), data, own, (embedding(cache, network, row), of_target),
            accuracy(cache, network, row), column, row,
        )
        for row in rows_of(network, target)
    ]  # fmt: skip


def measured(cache: Path, network: str, target: int) -> dict[str, Tensor]:
    """Value and seconds `[S, 2]` of every measure for the sources of a target; the cache keeps each of them."""
    folder = cache / "questions" / "measures" / f"{network}-{target}"
    rows: list[Pair] = []

    def compute(name: str) -> dict[str, Tensor]:
        rows.extend(() if rows else pairs(cache, network, target))
        return {"": torch.tensor([pair.timed(MEASURES[name]) for pair in rows], dtype=torch.float64)}

    return {name: kept(folder / f"{name}.pt", functools.partial(compute, name))[""] for name in MEASURES}
