"""Classes from few labels: closed-form transfer compared with its baselines, by accuracy, likelihood and calibration.

    python benchmarks/transfer_classes.py [--cache FILE] [--page]

A LeNet learns a source from 2,000 images; then 5, 10, 20 or 50 labels of each class of a target are used by every
method, and scores are taken on at most 1,000 test images. Seeds change the source's network, its images and the labels
that are drawn. About 25 minutes of one core. Every result is stored in the cache as soon as it is finished, so that the
command resumes after an interruption; `--page` writes the page and its picture again from
`benchmarks/transfer_classes.json` alone. The real data sets are searched in `$NEARKIN_DATA`; pairs whose data are
missing are left out.
"""

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

import nearkin as nk
from nearkin.core.errors import NearkinError
from nearkin.core.events import finish, operation
from nearkin.nets.recipe import Recipe
from nearkin.nets.registry import build
from nearkin.nets.training_loop import fit
from nearkin.tasks.derive import limited
from nearkin.tasks.rows import subset_index
from nearkin.transfer.classify import classify
from nearkin.transfer.finetune import run_baselines
from nearkin.transfer.labels.calibration import fit_temperature
from nearkin.transfer.labels.classes import LAPLACE
from nearkin.transfer.labels.dirichlet import left_out
from nearkin.transfer.labels.laplace import DECADES, laplace
from nearkin.transfer.labels.mode import newton
from nearkin.transfer.labels.probabilities import HOWS
from nearkin.transfer.linearized import Linearized, linearize
from nearkin.transfer.outcome import TransferScores, score_classes
from nearkin.zoo.transfer import with_shots
from results import keep
from transfer_classes_page import write

LOW, HIGH = "classes=0,1,2,3,4&rest=drop", "classes=5,6,7,8,9&rest=drop"
PAIRS = {
    "digits 0–4 → 5–9": (f"digits?{LOW}", f"digits?{HIGH}"),
    "MNIST 0–4 → 5–9": (f"mnist?{LOW}", f"mnist?{HIGH}"),
    "Fashion 0–4 → 5–9": (f"fashion?{LOW}", f"fashion?{HIGH}"),
    "CIFAR-10 0–4 → 5–9": (f"cifar10?{LOW}", f"cifar10?{HIGH}"),
    "MNIST → Fashion": ("mnist", "fashion"),
    "Fashion → MNIST": ("fashion", "mnist"),
}
SHOTS = (5, 10, 20, 50)
SEEDS = tuple(range(5))
IMAGES, STEPS = 2000, 300  # of a source's training
TEST = 1000
BEFORE = (0.0, 0.25)  # centre and width of log T as they were when digits alone had been looked at


def cells() -> Iterator[tuple[str, int, int]]:
    """Pair, seed and labels of each class, ordered so that an interrupted run has complete seeds."""
    for seed, pair, shots in itertools.product(SEEDS, PAIRS, SHOTS):
        yield pair, seed, shots


@cache
def task(text: str) -> nk.Task:
    return nk.task(text)


@cache
def source(pair: str, seed: int) -> tuple[nn.Module, float]:
    """A LeNet that was trained on the source, and its test accuracy."""
    known = task(PAIRS[pair][0])
    some = limited(known, IMAGES, seed) if len(known.train) > IMAGES else known
    network = build("lenet", some.input_shape, some.num_outputs, seed=seed)
    return network, fit(network, some, Recipe(steps=STEPS), seed=seed).scores.metric


def measured(pair: str, seed: int, shots: int) -> dict[str, Any]:
    """Every method on one random draw of labels."""
    model, solved = source(pair, seed)
    few = with_shots(task(PAIRS[pair][1]), shots, seed)
    few = replace(few, test=few.test.chosen(subset_index(len(few.test), TEST)))
    others = finish(run_baselines(model, few, seed=seed))
    return {
        "pair": pair, "seed": seed, "shots": shots, "source": round(solved, 4), "num_test": len(few.test),
        "ways": {scores.name: figures(scores) for scores in (*closed_forms(model, few), *others)},
    }  # fmt: skip


def figures(scores: TransferScores) -> dict[str, Any]:
    chosen = {name: round(getattr(scores, name), 5) for name in ("metric", "nll", "ece")}
    return {**chosen, **({"chosen": dict(scores.facts)} if scores.facts else {})}


class Remembered(Linearized):
    """A linearized network that computes each kernel once, for all methods."""

    @cached_property
    def known(self) -> dict[tuple[int, ...], torch.Tensor]:
        """Kernels by where their inputs lie in memory."""
        return {}

    @operation
    def kernel(self, x: torch.Tensor, x2: torch.Tensor | None = None, *rest: Any, **more: Any) -> Any:
        """The kernel, from the cache if it was computed before."""
        key = tuple(value for inputs in (x, x2) if inputs is not None for value in (inputs.data_ptr(), len(inputs)))
        if key not in self.known:
            self.known[key] = yield from super().kernel.work(x, x2, *rest, **more)
        return self.known[key].clone()


def closed_forms(model: nn.Module, few: nk.Task) -> Iterator[TransferScores]:
    """Dirichlet with both kinds of probabilities, Laplace, and both with the earlier way to choose their settings."""
    (x, y), (new, wanted) = few.train.all(), few.test.all()
    plain, size = linearize(model, x=x[:1]), len(few.classes)
    flat = Remembered(plain.model, plain.names, plain.outputs)
    x, new = flat.inputs(x), flat.inputs(new)
    exact = classify(flat, x, y, size)
    for how in HOWS:
        p = exact.probabilities(new, how)
        yield score_classes(f"dirichlet, {how}", p, wanted, 0.0, replace(exact, how=how).facts())
    mean, _ = left_out(exact.choice.scale * flat.kernel(x), y, size, exact.choice.alpha)
    centre, width = BEFORE
    heat = fit_temperature(lambda t: (mean / t).softmax(1), y, width, centre)
    again = replace(exact, temperatures={"mean": heat, "sampled": 1.0})
    yield score_classes("dirichlet, mean, before", again.probabilities(new), wanted, 0.0, {"temperature": heat})
    chosen = laplace(flat, x, y, size)
    yield score_classes("laplace, mean", chosen.probabilities(new), wanted, 0.0, chosen.facts())
    scale = by_evidence(flat, x, y, size)
    old = laplace(flat, x, y, size, replace(LAPLACE, scale=scale, temperature=1.0))
    yield score_classes("laplace, mean, before", old.probabilities(new), wanted, 0.0, {"scale": scale})


def by_evidence(flat: Linearized, x: torch.Tensor, y: torch.Tensor, size: int) -> float:
    """The scale with the largest evidence, by which Laplace's approximation was chosen before."""
    gram = flat.kernel(x)
    level, (low, high, count) = float(gram.diagonal().mean()), DECADES
    scales = [10**decade / level for decade in torch.linspace(low, high, int(count)).tolist()]
    mean = torch.zeros(len(y), size).double()
    best, chosen, weights = -float("inf"), scales[0], mean
    for number, scale in enumerate(scales, 1):
        mode = newton(scale * gram, y, mean, weights)
        weights = mode.weights
        if mode.log_evidence > best:
            best, chosen = mode.log_evidence, scale
        elif number > 4 and mode.log_evidence < best - 10:
            break
    return chosen


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "transfer_classes_cache.jsonl")
    parser.add_argument("--page", action="store_true", help="write the page alone, from the figures that are there")
    arguments = parser.parse_args()
    file = Path(__file__).with_suffix(".json")
    if not arguments.page:
        lines = arguments.cache.read_text().splitlines() if arguments.cache.exists() else []
        rows = [json.loads(line) for line in lines]
        known = {(row["pair"], row["seed"], row["shots"]): row for row in rows}
        start, missing = time.perf_counter(), set()
        for cell in cells():
            if cell in known or cell[0] in missing:
                continue
            try:
                known[cell] = measured(*cell)
            except NearkinError as absent:
                print(f"  {cell[0]} is left out: {absent}", file=sys.stderr)
                missing.add(cell[0])
                continue
            with arguments.cache.open("a") as out:
                out.write(json.dumps(known[cell]) + "\n")
            scores = known[cell]["ways"]["dirichlet, mean"]
            print(f"  {cell}: {scores['metric']:.3f}, ece {scores['ece']:.3f}; {time.perf_counter() - start:.0f} s",
                  file=sys.stderr, flush=True)  # fmt: skip
        keep(__file__, {
            "pairs": {name: list(pair) for name, pair in PAIRS.items()}, "images": IMAGES, "steps": STEPS,
            "before": list(BEFORE), "cells": [known[cell] for cell in cells() if cell in known],
        })  # fmt: skip
    page = write(json.loads(file.read_text()))
    print(page.read_text())


if __name__ == "__main__":
    main()
