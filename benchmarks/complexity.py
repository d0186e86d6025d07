"""Experiments of paper 001 on digits: complexity against random labels, batch size and architecture; cost.

    python benchmarks/complexity.py [SECTION…]

Sections are labels, added, noise, width, kinds, time, pairs and matrix; all by default. Each section is written
to `benchmarks/complexity.json` when it is finished; a section that is not named keeps its figures. Network, number of
samples and threshold are those of `tests/distance/information/test_random_labels.py`, chosen on seeds 100 to 103.
"""

import itertools
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from torch import Tensor, nn

import nearkin as nk
from nearkin.distance.information.curvature import CurvatureOptions
from nearkin.distance.information.static_distance import (
    StaticOptions,
    TaskSamples,
    fit_tasks,
    joint_complexity,
    two_heads,
)
from nearkin.distance.information.task_complexity import complexity
from nearkin.distance.pair import Pair, Source, Target
from nearkin.distance.reachability.descent_noise import gradient_noise
from nearkin.distance.registry import MEASURES
from results import keep

SEEDS = (0, 1, 2)
SAMPLES, DECAY, THRESHOLD = 400, 1e-3, 0.1
RATE = 0.1  # of gradient descent, for the dependence on the batch size
MOST_STEPS = 6000
TASKS = ("digits?detect=0", "digits?detect=6", "digits?parity", "digits?classes=0,1,2,3&rest=other", "digits")
MATRIX = (*(f"digits?detect={number}" for number in range(8)), "digits?parity", "digits")


def digits(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Images `[N, 64]`, labels, and random labels, in an order that depends on the seed."""
    x, y = nk.task("digits").train.all()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    random = torch.randint(10, y.shape, generator=torch.Generator().manual_seed(seed + 1))
    return x.flatten(1).double()[order], y[order], random


def network(seed: int, width: int = 16) -> nn.Module:
    """A network of one hidden layer."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, 10)).double().eval()


def fitted_complexity(x: Tensor, y: Tensor, seed: int, width: int = 16) -> float:
    """Complexity with the exact curvature after a fit to a minimum."""
    fitted = fit_tasks(network(seed, width), [TaskSamples(x, y)], 1.0, 1 / (len(x) * DECAY), 120)
    return complexity(fitted, x, y, curvature="full").complexity


def adam_steps(x: Tensor, y: Tensor, seed: int, width: int = 16) -> int | None:
    """Steps of Adam on all samples until the loss is below the threshold; None if it never is."""
    net = network(seed, width)
    optimiser = torch.optim.Adam(net.parameters(), 0.01)
    for step in range(2000):
        loss = F.cross_entropy(net(x), y)
        if loss.item() < THRESHOLD:
            return step
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return None


def mean_steps(x: Tensor, y: Tensor, width: int = 16) -> float | None:
    """Mean of `adam_steps` over three initial weights; None if one of them does not reach the threshold."""
    counts = [adam_steps(x, y, start, width) for start in range(3)]
    reached = [count for count in counts if count is not None]
    return float(np.mean(reached)) if len(reached) == len(counts) else None


def sgd_steps(x: Tensor, y: Tensor, seed: int, batch: int) -> int | None:
    """Steps of gradient descent with batches drawn with replacement until the loss on all samples is low."""
    net, rng = network(seed), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.SGD(net.parameters(), RATE)
    for step in range(MOST_STEPS):
        if step % 10 == 0:
            with torch.no_grad():
                if F.cross_entropy(net(x), y).item() < THRESHOLD:
                    return step
        index = torch.randint(len(x), (batch,), generator=rng)
        optimiser.zero_grad()
        F.cross_entropy(net(x[index]), y[index]).backward()
        optimiser.step()
    return None


def labels() -> dict[str, Any]:
    """A share of the labels replaced by random ones."""
    rows = []
    for seed in SEEDS:
        x, y, random = (values[:SAMPLES] for values in digits(seed))
        for share in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
            mixed = torch.cat([random[: round(share * SAMPLES)], y[round(share * SAMPLES) :]])
            found, steps = fitted_complexity(x, mixed, seed), mean_steps(x, mixed)
            rows.append({"seed": seed, "share": share, "complexity": found, "steps": steps})
    runs = [[row for row in rows if row["seed"] == seed] for seed in SEEDS]
    return {
        "rows": rows,
        "rising": [all(a["complexity"] < b["complexity"] for a, b in itertools.pairwise(run)) for run in runs],
        "ratio": [run[-1]["complexity"] / run[0]["complexity"] for run in runs],
        "spearman": [_spearman(run, "complexity") for run in runs],
    }


def added() -> dict[str, Any]:
    """Samples with random labels added to 100 correct ones."""
    rows, squares = [], []
    for seed in SEEDS:
        x, y, random = digits(seed)
        counts = [0, 60, 120, 180]
        found = [
            fitted_complexity(x[: 100 + count], torch.cat([y[:100], random[100 : 100 + count]]), seed)
            for count in counts
        ]
        rows += [{"seed": seed, "added": a, "complexity": c} for a, c in zip(counts, found, strict=True)]
        squares.append(float(np.corrcoef(counts, found)[0, 1] ** 2))
    return {"rows": rows, "r_squared": squares}


def noise() -> dict[str, Any]:
    """Time to the threshold against the diffusion constant, by the batch size."""
    rows = []
    for seed in SEEDS:
        x, y, _ = (values[:SAMPLES] for values in digits(seed))
        measured = gradient_noise(network(seed), x, y)
        for batch in (4, 8, 16, 64, 256):
            steps = sgd_steps(x, y, seed, batch)
            rows.append({"seed": seed, "batch": batch, "diffusion": measured.diffusion(RATE, batch), "steps": steps})
    runs = [[row for row in rows if row["seed"] == seed] for seed in SEEDS]
    return {"rate": RATE, "rows": rows, "spearman": [_spearman(run, "diffusion") for run in runs]}


def width() -> dict[str, Any]:
    """Networks of several widths on the same labels."""
    rows = []
    for seed in SEEDS:
        x, y, _ = (values[:SAMPLES] for values in digits(seed))
        for size in (4, 8, 16, 32):
            found = fitted_complexity(x, y, seed, size)
            rows.append({"seed": seed, "width": size, "complexity": found, "steps": mean_steps(x, y, size)})
    runs = [[row for row in rows if row["seed"] == seed] for seed in SEEDS]
    return {"rows": rows, "spearman": [_spearman(run, "complexity") for run in runs]}


def _spearman(rows: list[dict[str, Any]], key: str) -> float | None:
    """Rank correlation of a value with the steps; None if fewer than three runs reached the threshold."""
    reached = [row for row in rows if row["steps"] is not None]
    if len(reached) < 3:
        return None
    return float(spearmanr([row[key] for row in reached], [row["steps"] for row in reached]).statistic)


def kinds() -> dict[str, Any]:
    """Static distances of a small network by each kind of curvature, at the same fitted weights."""
    options, tasks = StaticOptions(), [nk.task(text) for text in TASKS]
    models, samples = [], []
    for task in tasks:
        model = nk.build("mlp?hidden=24", task.input_shape, task.num_outputs, 0)
        nk.fit(model, task, nk.Recipe(steps=400))
        models.append(model.eval())
        samples.append(TaskSamples(*task.train.fixed_subset(options.limit), task.likelihood))
    names = ("full", "block", "kronecker", "lanczos", "diagonal")
    values: dict[str, list[list[float]]] = {name: [] for name in names}
    seconds = dict.fromkeys(names, 0.0)

    def measured(model: nn.Module, tasks: list[TaskSamples]) -> dict[str, float]:
        fitted = fit_tasks(model, tasks, options.beta, options.variance, options.steps)
        found = {}
        for name in names:
            start = time.process_time()
            how = CurvatureOptions(name)
            found[name] = joint_complexity(fitted, tasks, variance=options.variance, curvature=how).complexity
            seconds[name] += time.process_time() - start
        return found

    for a, model in enumerate(models):
        own, row = measured(model, [samples[a]]), {name: list[float]() for name in names}
        for b, task in enumerate(tasks):
            union = measured(*two_heads(model, samples[a], samples[b], task.num_outputs))
            for name in names:
                row[name].append(union[name] - own[name])
        for name in names:
            values[name].append(row[name])
    flat = {name: np.array(values[name]).ravel() for name in names}
    columns = {
        name: [float(spearmanr(np.array(values[name])[:, b], np.array(values["full"])[:, b]).statistic)
               for b in range(len(TASKS))]
        for name in names
    }  # fmt: skip
    count = len(TASKS) * (len(TASKS) + 1)
    return {
        "tasks": TASKS,
        "distances": values,
        "spearman": {name: float(spearmanr(flat[name], flat["full"]).statistic) for name in names},
        "spearman_of_targets": columns,
        "seconds": {name: seconds[name] / count for name in names},
    }


def cost() -> dict[str, Any]:
    """Processor time of the complexity of a LeNet on 1,000 digits."""
    task = nk.task("digits")
    model = nk.build("lenet", task.input_shape, task.num_outputs, 0).eval()
    x, y = task.train.fixed_subset(1000)
    found = {}
    for kind in ("lanczos", "kronecker", "diagonal"):
        start = time.process_time()
        value = complexity(model, x, y, curvature=kind)
        found[kind] = {"seconds": time.process_time() - start, "complexity": value.complexity, "error": value.error}
    return found


def pairs() -> dict[str, Any]:
    """Processor time of single static distances; the first of a source includes the complexity of the source."""
    found = {}
    tasks = [nk.task(text) for text in ("digits?detect=0", "digits")]
    for name in ("mlp", "lenet"):
        rows = []
        for task in tasks:
            model = nk.build(name, task.input_shape, task.num_outputs, 0)
            fit = nk.fit(model, task, nk.Recipe(steps=200))
            source = Source.of(nk.Solved(task.name, name, task.facts(), 0, (fit,)), task)
            for target in tasks:
                start = time.process_time()
                distance = MEASURES["complexity"](Pair(source, Target(target)))
                seconds = time.process_time() - start
                rows.append({"source": task.name, "target": target.name, "distance": distance, "seconds": seconds})
        found[name] = rows
    return found


def matrix() -> dict[str, Any]:
    """Processor time of the matrix of ten tasks, with two networks; both are trained first."""
    found = {}
    for name in ("mlp", "lenet"):
        with tempfile.TemporaryDirectory() as folder, nk.Zoo(f"{folder}/zoo") as zoo:
            for text in MATRIX:
                zoo.add(nk.task(text), name, trials=1, recipe=nk.Recipe(steps=300))
            start = time.process_time()
            distances = zoo.matrix(measure="complexity")
            seconds = time.process_time() - start
            mean = distances.mean
            nearest = [int(mean[:, b].argmin()) for b in range(len(MATRIX))]
            found[name] = {
                "seconds": seconds, "pairs": len(MATRIX) ** 2, "distances": mean.tolist(), "tasks": MATRIX,
                "itself_nearest": sum(a == b for b, a in enumerate(nearest)),
            }  # fmt: skip
    return found


SECTIONS = {
    "labels": labels, "added": added, "noise": noise, "width": width, "kinds": kinds, "time": cost, "pairs": pairs,
    "matrix": matrix,
}  # fmt: skip


def main(names: list[str]) -> None:
    """Run sections, and write their figures."""
    torch.set_num_threads(1)
    file = Path(__file__).with_suffix(".json")
    figures = json.loads(file.read_text()) if file.is_file() else {}
    figures.pop("measured_on", None)
    for name in names or SECTIONS:
        start = time.process_time()
        figures[name] = SECTIONS[name]()
        figures.setdefault("section_seconds", {})[name] = time.process_time() - start
        keep(__file__, figures)
        print(f"{name}: {figures['section_seconds'][name]:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
