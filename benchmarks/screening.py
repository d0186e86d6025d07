"""Screening of tasks: time of a query, and how often it finds the task that an exact search finds, at what cost.

    python benchmarks/screening.py

The truth is d[a, b] = |sqrt F_ab - sqrt F_bb| / sqrt 2 in the reading `padded`, of networks trained on 200 generated
tasks from one initialisation a trial, averaged over trials. A pass is one network on all of a target's test samples.

There are two sets of tasks. Scattered: source, pixels (seven kinds) and question are drawn at random for each task, so
that the nearest is hardly nearer than the second. Kindred: 25 questions, each about images rotated by eight angles.
"""

import importlib.util
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nearkin as nk
from nearkin.core.rng import Streams
from nearkin.distance.baselines.linear_head import fitted_head
from nearkin.distance.screening import RUNGS, Embedding, Index, Probe, Rung, num_passes, raced, screened
from nearkin.fisher.diagonals import diagonal
from nearkin.fisher.values import FisherDiagonal
from nearkin.nets.functional import load
from nearkin.nets.heads import features, padded_head
from nearkin.nets.training_loop import fit
from nearkin.tasks import derive
from nearkin.tasks.builtin import find_dataset
from nearkin.tasks.examples import Batch
from results import keep, table

PAGE = Path(__file__).parents[1] / "docs" / "figures" / "screening-benchmark.md"
NETWORK, OUTPUTS, SHAPE = "mlp?hidden=32", 10, (1, 8, 8)
NUM_TASKS, SIBLINGS = 200, 8
SAMPLES = 512  # of a target's test set; tasks of few classes have fewer
STEPS = 200
FIRST = (1, 5, 10, 20, 40)
WAYS = {  # which of a network's informations make the points, passes that the target's point takes, what is measured
    "index, best 9 measured": ("own", 0, (Rung(1.0, 9),)),
    "index by drawn labels, best 8 measured": ("drawn", 1, (Rung(1.0, 8),)),
    "index and race": ("own", 0, RUNGS),
    "index by drawn labels and race": ("drawn", 1, RUNGS),
    "race of all, no index": ("own", 0, (Rung(RUNGS[0].share, NUM_TASKS), *RUNGS[1:])),
}


# Tasks


def turned(x: Tensor, degrees: float) -> Tensor:
    """Images turned about their middle."""
    a = math.radians(degrees)
    turn = torch.tensor([[math.cos(a), -math.sin(a), 0.0], [math.sin(a), math.cos(a), 0.0]]).expand(len(x), 2, 3)
    return F.grid_sample(x, F.affine_grid(turn, list(x.shape), align_corners=False), align_corners=False)


PIXELS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: x,
    "inverted": lambda x: 1 - x,
    "turned": lambda x: x.rot90(1, (2, 3)),
    "upside-down": lambda x: x.rot90(2, (2, 3)),
    "mirrored": lambda x: x.flip(3),
    "shifted": lambda x: x.roll((2, 2), (2, 3)),
    "blurred": lambda x: F.avg_pool2d(x, 3, 1, 1),
}


def sources() -> dict[str, tuple[Tensor, Tensor]]:
    """Images of 8x8 pixels in [0, 1] and their classes, mixed: digits, and MNIST and Fashion-MNIST where they are."""
    images = {}
    for name in ["digits", *(name for name in ("mnist", "fashion") if find_dataset(name) is not None)]:
        task = nk.task(name if name == "digits" else f"{name}?size=8&limit=2000&even")
        parts = [task.train, task.test] if name == "digits" else [task.train]
        x = torch.cat([examples.inputs.take(torch.arange(len(examples))) for examples in parts])
        y = torch.cat([examples.labels() for examples in parts])
        order = torch.randperm(len(x), generator=Streams(0).at("order", name))
        images[name] = (x[order], y[order])
    return images


def question(rng: np.random.Generator) -> tuple[str, Callable[[nk.Task], nk.Task]]:
    """Some of the ten classes; one to three of them against the rest; or all of them in two to four groups."""
    kind = str(rng.choice(["classes", "detect", "groups"]))
    if kind == "groups":
        count = int(rng.integers(2, 5))
        groups = rng.permutation(10) % count
        names = tuple(str(number) for number in range(count))
        text = "".join(map(str, groups))
        return f"groups={text}", lambda task: derive.relabelled(task, torch.from_numpy(groups), names)
    count = int(rng.integers(2, 11) if kind == "classes" else rng.integers(1, 4))
    chosen = sorted(rng.permutation(10)[:count].tolist())
    change = derive.only if kind == "classes" else derive.detect
    text = "".join(map(str, chosen))
    return f"{kind}={text}", lambda task: change(task, [task.classes[index] for index in chosen])


def halves(name: str, x: Tensor, y: Tensor) -> nk.Task:
    half = len(x) // 2
    return nk.Task.from_arrays(name, x[:half], y[:half], x[half:], y[half:])


def scattered(seed: int = 0) -> list[nk.Task]:
    """Tasks drawn independently of each other."""
    drawn, rng = sources(), Streams(seed).numpy("scattered")
    tasks: dict[str, nk.Task] = {}
    while len(tasks) < NUM_TASKS:
        source, pixels = str(rng.choice(list(drawn))), str(rng.choice(list(PIXELS)))
        text, change = question(rng)
        name = f"{source} {pixels} {text}"
        if name not in tasks:
            x, y = drawn[source]
            tasks[name] = replace(change(halves(name, PIXELS[pixels](x), y)), name=name)
    return list(tasks.values())


def kindred(seed: int = 0) -> list[nk.Task]:
    """Tasks with siblings: one question asked of the same images at several angles."""
    drawn, rng = sources(), Streams(seed).numpy("kindred")
    tasks = []
    for family in range(NUM_TASKS // SIBLINGS):
        source, invert = str(rng.choice(list(drawn))), bool(rng.integers(2))
        text, change = question(rng)
        x, y = drawn[source]
        for number, degrees in enumerate(rng.uniform(-180, 180, SIBLINGS)):
            name = f"{family}-{number} {source} {text} at {degrees:.0f}"
            images = turned(1 - x if invert else x, float(degrees))
            tasks.append(replace(change(halves(name, images, y)), name=name))
    return tasks


# The truth, and what screening knows of it


@dataclass
class World:
    """Trained networks of all tasks in one trial, and the distances measured so far."""

    tasks: list[nk.Task]
    trial: int
    params: list[dict[str, Tensor]] = field(default_factory=list)
    own: list[FisherDiagonal] = field(default_factory=list)
    drawn: list[FisherDiagonal] = field(default_factory=list)
    data: list[Batch] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    known: dict[tuple[int, int, float], float] = field(default_factory=dict)
    roots: dict[tuple[int, float], Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.wide = nk.build(NETWORK, SHAPE, OUTPUTS, 0, self.trial).eval()
        for task in self.tasks:
            model = nk.build(NETWORK, SHAPE, task.num_outputs, 0, self.trial)
            done = fit(model, task, nk.Recipe(steps=STEPS), seed=self.trial)
            self.data.append(task.test.fixed_subset(SAMPLES))
            self.own.append(diagonal(model.eval(), *self.data[-1]))
            self.params.append(padded_head(done.params, "head", OUTPUTS))
            load(self.wide, self.params[-1], {})
            self.drawn.append(diagonal(self.wide, self.data[-1].x, labels="sampled"))
            self.scores.append(done.scores.metric)

    def distance(self, a: int, b: int, share: float) -> float:
        """Distance from a to b, with both Fisher diagonals on the same share of the samples; measured once."""
        if (b, share) not in self.roots:
            self.roots[b, share] = self._root(b, b, share)
        if (a, b, share) not in self.known:
            self.known[a, b, share] = float((self._root(a, b, share) - self.roots[b, share]).norm() / math.sqrt(2))
        return self.known[a, b, share]

    def _root(self, a: int, b: int, share: float) -> Tensor:
        load(self.wide, self.params[a], {})
        x, y = self.data[b]
        count = math.ceil(share * len(x))
        return diagonal(self.wide, x[:count], y[:count], batch_size=SAMPLES).unit_trace().flat().sqrt()


def probe_fishers(tasks: list[nk.Task], trial: int, steps: int) -> list[FisherDiagonal]:
    probe = Probe(network=NETWORK, steps=steps, samples=SAMPLES)
    return [probe.fisher(task, trial) for task in tasks]


def headed_fishers(tasks: list[nk.Task], trial: int) -> list[FisherDiagonal]:
    """Fisher diagonal of the initial network with a head fitted on the task's training set."""
    fishers = []
    for task in tasks:
        model = nk.build(NETWORK, SHAPE, task.num_outputs, 0, trial).eval()
        x, y = task.train.all()
        with torch.no_grad():
            head = fitted_head(features(model, x, "head"), y, task.form, num_classes=len(task.classes))
            assert isinstance(model.head, nn.Linear)
            model.head.weight.copy_(head.weight)
            model.head.bias.copy_(head.bias)
        fishers.append(diagonal(model, *task.test.fixed_subset(SAMPLES)))
    return fishers


# Figures


def truth(worlds: list[World]) -> Tensor:
    """Mean distance over trials `[K, K]`; infinite on the diagonal."""
    count, start = len(worlds[0].tasks), time.perf_counter()
    total = torch.zeros(count, count, dtype=torch.float64)
    for world in worlds:
        for a in range(count):
            for b in range(count):
                total[a, b] += world.distance(a, b, 1.0)
            if a % 50 == 49:
                print(f"  trial {world.trial}: {a + 1} sources, {time.perf_counter() - start:.0f} s", flush=True)
    return (total / len(worlds)).fill_diagonal_(math.inf)


def recalls(screen: Tensor, nearest: Tensor) -> dict[str, float]:
    """How often the truly nearest is among the first m of the screen `[K, K]`."""
    order = screen.clone().fill_diagonal_(math.inf).argsort(0)
    return {f"first {m}": round(float((order[:m] == nearest).any(0).double().mean()), 3) for m in FIRST}


def root_distances(trials: list[list[FisherDiagonal]]) -> Tensor:
    """Unprojected distances `[K, K]` of tasks by the Fisher information of every trial; heads padded."""
    total = torch.zeros(())
    for fishers in trials:
        rows = [padded_head(fisher.unit_trace().values, "head", OUTPUTS) for fisher in fishers]
        roots = torch.stack([torch.cat([value.flatten() for value in row.values()]).sqrt() for row in rows])
        total = total + torch.cdist(roots, roots).square()
    return total.sqrt()


def searches(worlds: list[World], d: Tensor) -> dict[str, Any]:
    """Screening and races by the functions that users call, every target against all other tasks."""
    tasks, nearest = worlds[0].tasks, d.argmin(0)
    number_of = {task.name: number for number, task in enumerate(tasks)}
    assert len(number_of) == len(tasks), "two tasks have one name"
    embedding = Embedding(network=NETWORK)
    figures = {}
    for way, (kind, passes, rungs) in WAYS.items():
        points = [embedding.point([getattr(world, kind)[b] for world in worlds]) for b in range(len(tasks))]
        index = Index(embedding).add({task.name: point for task, point in zip(tasks, points, strict=True)})
        hits, regret, share = 0, [], []
        for b, task in enumerate(tasks):
            count, spent = len(worlds[0].data[b].y), [float(passes)]

            def measure(
                name: str, fraction: float, b: int = b, count: int = count, spent: list[float] = spent
            ) -> float:
                spent[0] += math.ceil(fraction * count) / count
                return statistics.fmean(world.distance(number_of[name], b, fraction) for world in worlds)

            if len(rungs) == 1:
                best = screened(
                    index, points[b], lambda name, m=measure: m(name, 1.0), rungs[0].contenders, leave_out=[task.name]
                )[0]
            else:
                best = raced(index, points[b], measure, rungs, leave_out=[task.name])[0]
            hits += number_of[best[0]] == int(nearest[b])
            regret.append(best[1] - float(d[nearest[b], b]))
            share.append(spent[0] / (len(tasks) - 1))
        figures[way] = {
            "recall_at_1": round(hits / len(tasks), 3),
            "mean_excess_distance": round(statistics.fmean(regret), 4),
            "share_of_passes": round(statistics.fmean(share), 4),
        }
        print(f"  {way}: {figures[way]}", flush=True)
    return figures


def study(tasks: list[nk.Task], trials: int) -> dict[str, Any]:
    """All figures of one set of tasks."""
    start, spent = time.perf_counter(), time.process_time()
    worlds = [World(tasks, trial) for trial in range(trials)]
    print(f"  {trials} x {len(tasks)} networks trained, {time.perf_counter() - start:.0f} s", flush=True)
    d = truth(worlds)
    nearest = d.argmin(0)
    first_two = d.sort(0).values[:2]
    embeddings = {
        "own network": [world.own for world in worlds],
        "own network, drawn labels": [world.drawn for world in worlds],
        "probe, 20 steps": [probe_fishers(tasks, trial, 20) for trial in range(trials)],
        "probe, no step": [probe_fishers(tasks, trial, 0) for trial in range(trials)],
        "probe, head fitted": [headed_fishers(tasks, trial) for trial in range(trials)],
    }
    found_by = {name: recalls(root_distances(fishers), nearest) for name, fishers in embeddings.items()}
    points = torch.stack([Embedding().point([world.own[b] for world in worlds]) for b in range(len(tasks))])
    found_by["own network, sketched to 2,048"] = recalls(torch.cdist(points, points), nearest)
    alone = [torch.tensor([[w.distance(a, b, 1.0) for b in range(len(tasks))] for a in range(len(tasks))])
             for w in worlds]  # fmt: skip
    if trials > 1:
        own = [item.fill_diagonal_(math.inf).argmin(0) for item in alone]
        found_by["the true distance in another trial"] = recalls(alone[1], own[0])
    for name, row in found_by.items():
        print(f"  {name}: {row}", flush=True)
    return {
        "trials": trials,
        "mean_metric": round(statistics.fmean(score for world in worlds for score in world.scores), 3),
        "median_nearest": round(float(first_two[0].median()), 3),
        "median_gap_to_second": round(float((first_two[1] - first_two[0]).median()), 4),
        "recall_of_embeddings": found_by,
        "searches": searches(worlds, d),
        "process_seconds": round(time.process_time() - spent, 1),
    }


# Speed


def unit_rows(count: int, dims: int, rng: torch.Generator, centres: int = 0) -> Tensor:
    """Random rows of length 1, optionally around a number of centres with ten tasks or more for each."""
    rows = torch.randn(count, dims, generator=rng)
    if centres:
        middle = torch.randn(centres, dims, generator=rng)
        for block in rows.split(100_000):
            block.mul_(0.5).add_(middle[torch.randint(centres, (len(block),), generator=rng)])
    return F.normalize(rows, dim=1, out=rows)


def query_milliseconds(index: Index, asked: list[Tensor], exact: bool) -> tuple[dict[str, float], list[str]]:
    """Wall and process time of queries, and the nearest task of each; the first query is a warm-up."""
    wall, process, names = [], [], []
    for query in [asked[0], *asked]:
        start, spent = time.perf_counter(), time.process_time()
        names.append(index.query(query, 10, exact=exact)[0][0])
        wall.append(1e3 * (time.perf_counter() - start))
        process.append(1e3 * (time.process_time() - spent))
    return {
        "process_median": round(statistics.median(process[1:]), 1),
        "process_ninth_of_ten": round(sorted(process[1:])[int(0.9 * len(asked))], 1),
        "wall_median": round(statistics.median(wall[1:]), 1),
    }, names[1:]


def speed(count: int, dims: int, exact: bool, queries: int = 40) -> dict[str, Any]:
    """Milliseconds of a query for a point near one of the synthetic tasks; by one thread."""
    rng = Streams(0).at("speed", count, dims)
    rows = unit_rows(count, dims, rng, centres=0 if exact else count // 50)
    index = Index(Embedding(dims=dims), tuple(map(str, range(count))), rows)
    noise = torch.randn(queries, dims, generator=rng) / math.sqrt(dims)
    asked = [F.normalize(rows[number * (count // queries)] + 0.3 * noise[number], dim=0) for number in range(queries)]
    figures: dict[str, Any] = {"tasks": count, "dimensions": dims}
    figures["exact_milliseconds"], right = query_milliseconds(index, asked, exact=True)
    if not exact:
        start = time.perf_counter()
        index.query(asked[0], 1, exact=False)
        figures["build_seconds"] = round(time.perf_counter() - start, 1)
        figures["index_milliseconds"], named = query_milliseconds(index, asked, exact=False)
        figures["index_recall_at_1"] = statistics.fmean(a == b for a, b in zip(right, named, strict=True))
    print(f"  {figures}", flush=True)
    return figures


def race_seconds() -> list[dict[str, Any]]:
    """Process time of the default race as a share of the exact search's among 200 tasks, on networks of rising size."""
    rows = []
    for network, shape in ((NETWORK, SHAPE), ("lenet", (1, 28, 28)), ("resnet18?width=0.25", (1, 28, 28))):
        model, rng = nk.build(network, shape, OUTPUTS, 0).eval(), Streams(0).at("race")
        x, y = torch.randn(1000, *shape, generator=rng), torch.randint(OUTPUTS, (1000,), generator=rng)
        times = {}
        for share in {1.0, *(rung.share for rung in RUNGS)}:
            count = math.ceil(share * len(x))
            seconds = []
            for _ in range(3):
                start = time.process_time()
                diagonal(model, x[:count], y[:count])
                seconds.append(time.process_time() - start)
            times[share] = min(seconds[1:])
        spent = sum(rung.contenders * times[rung.share] for rung in RUNGS)
        rows.append({"network": network, "input": "x".join(map(str, shape)), "pass_seconds": round(times[1.0], 4),
                     "share_of_seconds": round(spent / (NUM_TASKS - 1) / times[1.0], 3)})  # fmt: skip
        print(f"  {rows[-1]}", flush=True)
    return rows


TEXT = """\
# Screening

Made by `python benchmarks/screening.py`; one thread.

## Time of a query

In milliseconds. The machine had other work, which makes the wall time longer than the process time.

{speeds}
{build}
## The nearest task, found without measuring every pair

{num_tasks} tasks of 8x8 images from {sources}; `{network}`, {steps} steps. Each task is the
target once, and its nearest task is searched among the others. A pass is one source on all of the target's test samples
({samples}, or all if there are fewer); half of the samples are half a pass. The exact search needs one pass for each
other task, and the cost is a share of that. *Scattered* tasks are drawn independently. *Kindred* tasks have siblings:
the same question about the same images, rotated by {siblings} angles. The rounds of the race were chosen on another
draw of tasks, except that the last round has six contenders instead of five since this draw had given 0.94. *Drawn
labels* give better points than observed labels, see below.

{searches}

The nearest task is at a distance of {nearest} (median), and the second is farther by {gap}.

A race saves time only if the overhead of a pass is small. Process time of the default race as a share of that of the
exact search, {num_tasks} tasks, 1,000 samples:

{seconds}

## Which embedding

How often the nearest task is among the first m by the distance of embeddings. *Own network* is the Fisher information
of a task's network on its own test data with observed labels, which the zoo stores. *Drawn labels* are drawn from the
network's predictions, with its head padded to all ten outputs; this needs one more pass. A *probe* starts from the same
weights for every task. The last row
of the scattered tasks is an upper limit: the true distance in one trial, used to find the nearest task of another
trial.

{embeddings}
"""


def page(figures: dict[str, Any]) -> str:
    """The Markdown page of the docs."""
    studies = {name: figures[name] for name in ("scattered", "kindred")}
    built = [row for row in figures["speed"] if "build_seconds" in row]
    speeds = [
        [f"{row['tasks']:,}", f"{row['dimensions']:,}", way, *map(str, row[f"{way}_milliseconds"].values())]
        for row in figures["speed"]
        for way in ("exact", "index")
        if f"{way}_milliseconds" in row
    ]
    searched = [
        [name, str(study["trials"]), way, f"{row['recall_at_1']:.3f}", f"{row['share_of_passes']:.1%}",
         f"{row['mean_excess_distance']:.4f}"]
        for name, study in studies.items()
        for way, row in study["searches"].items()
    ]  # fmt: skip
    embedded = [
        [name, str(study["trials"]), way, *(f"{value:.3f}" for value in row.values())]
        for name, study in studies.items()
        for way, row in study["recall_of_embeddings"].items()
    ]
    races = [
        [f"`{row['network']}`", row["input"], str(row["pass_seconds"]), f"{row['share_of_seconds']:.1%}"]
        for row in figures["race_seconds"]
    ]
    return TEXT.format(
        num_tasks=NUM_TASKS,
        sources=", ".join(figures["sources"]),
        network=NETWORK,
        steps=STEPS,
        samples=SAMPLES,
        siblings=SIBLINGS,
        build="".join(
            f"\nBuilding the index of {row['tasks']:,} tasks took {row['build_seconds']} s; it named the same nearest "
            f"task as the exact search in {row['index_recall_at_1']:.0%} of queries.\n"
            for row in built
        ),
        nearest=" and ".join(f"{study['median_nearest']} ({name})" for name, study in studies.items()),
        gap=" and ".join(f"{study['median_gap_to_second']}" for study in studies.values()),
        speeds=table(
            ["tasks", "dimensions", "search", "process, median", "process, 90 % below", "wall, median"], speeds
        ),
        searches=table(["tasks", "trials", "search", "recall@1", "passes", "mean excess distance"], searched),
        seconds=table(["network", "input", "seconds of a pass", "share of time"], races),
        embeddings=table(["tasks", "trials", "embedding", *(f"m = {m}" for m in FIRST)], embedded),
    )


def all_speeds() -> list[dict[str, Any]]:
    small = [speed(100_000, 2048, exact=True)]
    return [*small, speed(1_000_000, 128, exact=False)] if importlib.util.find_spec("faiss") is not None else small


PARTS: dict[str, Callable[[], Any]] = {
    "sources": lambda: list(sources()),
    "speed": all_speeds,
    "race_seconds": race_seconds,
    "scattered": lambda: study(scattered(), 2),
    "kindred": lambda: study(kindred(), 1),
}


def main() -> None:
    """Measure all sections, or those that are named; the figures of the others do not change."""
    torch.set_num_threads(1)
    file = Path(__file__).with_suffix(".json")
    figures = json.loads(file.read_text()) if len(sys.argv) > 1 else {}
    for section in sys.argv[1:] or PARTS:
        print(section, flush=True)
        figures[section] = PARTS[section]()
    figures["race_passes"] = num_passes(RUNGS, NUM_TASKS)
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(figures))
    print(PAGE.read_text())
    print(f"kept in {keep(__file__, figures)} and {PAGE.name}; {time.process_time():.0f} s of process time")


if __name__ == "__main__":
    main()
