"""The fused supernet compared with the plain one: time of steps, peak memory, second order, accuracy of the cells.

    python benchmarks/supernet.py [PART] …

Ratios are of process time, in one process on one thread, taken in turn; the plain form is `PlainSupernet` with the same
weights. The last four sections train cells on MNIST and Fashion-MNIST ($NEARKIN_DATA) and take some minutes each. The
figures of sections that are not named do not change.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.profiler import ProfilerActivity, profile

import nearkin as nk
from measure import peak_bytes, ratios
from nearkin.core.budget import Budget
from nearkin.core.rng import Streams, seeded
from nearkin.search.genotype_evaluation import evaluate_genotype
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.darts.architecture_step import Loss, finite_difference, first_order, second_order
from nearkin.search.methods.darts.gradient_search import Darts, GradientOptions, GradientSearch, PCDarts
from nearkin.search.networks.build import Skeleton
from nearkin.search.searcher import run_search
from nearkin.search.spaces.darts import DartsSpace
from nearkin.search.spaces.general import GeneralSpace
from nearkin.search.supernet.fused.supernet import Supernet
from nearkin.search.supernet.reference import Frame
from nearkin.search.supernet.supernet_layout import SupernetLayout
from nearkin.tasks.builtin import find_dataset as known
from results import keep, table

PAGE = Path(__file__).parents[1] / "docs" / "figures" / "supernet-benchmark.md"
SETTINGS = {  # name: side and batch, share of channels, rounds
    "PC-DARTS, 16x16, batch 16": (16, 0.25, 7),
    "PC-DARTS, 32x32, batch 32": (32, 0.25, 3),
    "DARTS, 16x16, batch 16": (16, 1.0, 3),
}
RATE, MOMENTUM, CLIP = 0.025, 0.9, 5.0
NUM_RANDOM = 12
SAMPLES, JUDGED = 1000, 2000


class Bench:
    """Both forms with one set of weights, architecture weights and two batches."""

    def __init__(self, side: int, fraction: float) -> None:
        layout = SupernetLayout.of(DartsSpace())
        with seeded(0):
            self.fast = Supernet(layout, (3, side, side), 10, Frame(channel_fraction=fraction))
        self.plain = self.fast.plain()
        self.architecture = layout.initial(Streams(0)["architecture"], edges=fraction < 1)
        rng = Streams(0)["data"]
        self.batches = [(torch.randn(side, 3, side, side, generator=rng), torch.randint(10, (side,), generator=rng))
                        for _ in range(2)]  # fmt: skip

    def weight_step(self, net: nn.Module) -> Callable[[], None]:
        """One training step with SGD and clipping. Its learning rate is 0, so the network does not change."""
        optimiser = torch.optim.SGD(net.parameters(), 0.0, momentum=MOMENTUM, fused=True)
        x, y = self.batches[0]

        def step() -> None:
            optimiser.zero_grad(set_to_none=True)
            F.cross_entropy(net(x, self.architecture), y).backward()
            nn.utils.clip_grad_norm_(net.parameters(), CLIP)
            optimiser.step()

        return step

    def loss(self, net: nn.Module, which: int) -> Loss:
        """The loss on one of the batches; running statistics do not change."""
        x, y = self.batches[which]
        buffers = dict(net.named_buffers())

        def value(weights: dict[str, Tensor], architecture: dict[str, Tensor]) -> Tensor:
            copies = {name: buffer.clone() for name, buffer in buffers.items()}
            return F.cross_entropy(functional_call(net, {**weights, **copies}, (x, architecture)), y)

        return value

    def first(self, net: nn.Module) -> Callable[[], Any]:
        """Gradient with respect to the architecture weights only."""
        return lambda: first_order(self.loss(net, 1), dict(net.named_parameters()), self.architecture)

    def customary(self) -> Callable[[], None]:
        """The plain form's architecture step as it is usually written: one backward pass to everything."""
        free = {name: value.clone().requires_grad_() for name, value in self.architecture.items()}
        x, y = self.batches[1]
        return lambda: F.cross_entropy(self.plain(x, free), y).backward()

    def second(self, net: nn.Module, exact: bool) -> Callable[[], Any]:
        """Gradient with respect to the architecture weights after one training step."""
        training, validation = self.loss(net, 0), self.loss(net, 1)
        weights = dict(net.named_parameters())
        return lambda: second_order(training, validation, weights, self.architecture, RATE, exact=exact)


def speed() -> list[dict[str, Any]]:
    """Ratios to the plain form, by setting."""
    rows = []
    for name, (side, fraction, rounds) in SETTINGS.items():
        bench = Bench(side, fraction)
        weight = ratios(bench.weight_step(bench.plain), {"fast": bench.weight_step(bench.fast)}, rounds)
        candidates = {"fast": bench.first(bench.fast), "plain_alone": bench.first(bench.plain)}
        first = ratios(bench.customary(), candidates, rounds)
        peaks = {form: peak_bytes(bench.weight_step(net))
                 for form, net in (("fast", bench.fast), ("plain", bench.plain))}  # fmt: skip
        x, _ = bench.batches[0]
        with torch.no_grad():
            mine, theirs = (net(x, bench.architecture) for net in (bench.fast, bench.plain))
        rows.append({
            "setting": name,
            "weight_step": weight["fast"],
            "plain_weight_seconds": weight["plain_seconds"],
            "first_order": first["fast"],
            "first_order_to_plain_alone": round(first["fast"] / first["plain_alone"], 3),
            "plain_first_order_seconds": first["plain_seconds"],
            "peak_memory": round(peaks["fast"] / peaks["plain"], 3),
            "plain_peak_mebibytes": round(peaks["plain"] / 2**20),
            "difference_of_outputs": float(f"{float((mine - theirs).norm() / theirs.norm()):.2g}"),
        })  # fmt: skip
        print(f"  {rows[-1]}", flush=True)
    return rows


def second_order_figures() -> dict[str, Any]:
    """The exact second-order step compared with the finite difference: time and result."""
    bench = Bench(16, 0.25)
    candidates = {"exact": bench.second(bench.fast, True), "plain_difference": bench.second(bench.plain, False),
                  "first_order": bench.first(bench.fast)}  # fmt: skip
    results: dict[str, Any] = ratios(bench.second(bench.fast, False), candidates, 5)
    weights = {name: value.detach() for name, value in bench.fast.named_parameters()}
    vector = dict(zip(weights, torch.autograd.grad(bench.loss(bench.fast, 1)(dict(bench.fast.named_parameters()),
                      bench.architecture), list(bench.fast.parameters())), strict=True))  # fmt: skip
    training, validation = bench.loss(bench.fast, 0), bench.loss(bench.fast, 1)
    exact = second_order(training, validation, weights, bench.architecture, RATE)[1]
    plain = second_order(training, validation, weights, bench.architecture, 0.0)[1]
    rough = second_order(training, validation, weights, bench.architecture, RATE, exact=False)[1]
    results["error_of_difference_to_gradient"] = _apart(rough, exact, exact)
    results["correction_to_gradient"] = _apart(plain, exact, exact)
    products = [finite_difference(training, weights, bench.architecture, vector, radius) for radius in (0.01, 0.005)]
    results["difference_at_half_the_radius"] = _apart(products[1], products[0], products[0])
    print(f"  {results}", flush=True)
    return results


def _apart(first: dict[str, Tensor], other: dict[str, Tensor], scale: dict[str, Tensor]) -> float:
    gap, size = (torch.cat([value.flatten() for value in tensors.values()]).norm() for tensors in
                 ({name: first[name] - other[name] for name in first}, scale))  # fmt: skip
    return round(float(gap / size), 4)


def profiles() -> dict[str, list[list[Any]]]:
    """Where a weight step spends its time: the most expensive kernels, their calls and share."""
    bench, results = Bench(16, 0.25), {}
    for form, net in (("plain", bench.plain), ("fast", bench.fast)):
        step = bench.weight_step(net)
        step()
        with profile(activities=[ProfilerActivity.CPU]) as record:
            step()
        events = sorted(record.key_averages(), key=lambda event: -event.self_cpu_time_total)
        whole = sum(event.self_cpu_time_total for event in events)
        results[form] = [["all", sum(e.count for e in events if e.key.startswith("aten::")), 1.0]] + [
            [event.key.removeprefix("aten::"), event.count, round(event.self_cpu_time_total / whole, 3)]
            for event in [event for event in events if event.key.startswith("aten::")][:7]
        ]
    print(f"  {results}", flush=True)
    return results


def searchers(task: nk.Task, space: GeneralSpace, patient: bool) -> dict[str, GradientSearch]:
    """DARTS and PC-DARTS with settings for a thousand images; some train the weights alone first."""
    frame = Frame(channels=8, num_cells=2, stem_stride=4)
    options = GradientOptions(frame=frame, epochs=25, batch_size=50, learning_rate=0.05, architecture_rate=0.02)
    partial = replace(options, frame=replace(frame, channel_fraction=0.5), edges=True, warmup=5)
    if patient:
        options, partial = (
            replace(settings, epochs=30, warmup=10, architecture_rate=0.05) for settings in (options, partial)
        )
    return {"DARTS": Darts(task, space, options), "PC-DARTS": PCDarts(task, space, partial)}


def quality(data: str, patient: bool, seeds: tuple[int, ...]) -> dict[str, Any] | None:
    """Searched cells and random cells, trained again with the same recipe; None without the data."""
    if known(data) is None:
        return None
    task = nk.task(f"{data}?limit={SAMPLES}&even")
    task = replace(task, test=task.test.chosen(torch.arange(JUDGED)))
    space, rows = GeneralSpace((4,)), []
    skeleton = Skeleton(channels=8, num_cells=2, stem_stride=4, between="pool")
    recipe = nk.Recipe(steps=90, batch_size=64, learning_rate=1e-2)

    def retrained(genotype: Genotype, seed: int) -> float:
        return evaluate_genotype(genotype, task, skeleton, recipe, seed).metric

    for seed in seeds:
        rng = Streams(seed)["random cells"]
        drawn = [retrained(space.sample(rng), seed) for _ in range(NUM_RANDOM)]
        row: dict[str, Any] = {
            "seed": seed,
            "random_mean": round(statistics.fmean(drawn), 4),
            "random_deviation": round(statistics.stdev(drawn), 4),
            "random_best": max(drawn),
        }
        for name, searcher in searchers(task, space, patient).items():
            start = time.process_time()
            outcome = run_search(searcher, Budget(), seed=seed)
            spent = time.process_time() - start
            metric = retrained(outcome.best.genotype, seed)
            row[name] = {
                "accuracy": metric,
                "above": sum(value < metric for value in drawn),
                "seconds": round(spent),
                "entropy": round(float(outcome.best.facts["entropy"]), 3),
                "genotype": str(outcome.best.genotype),
            }
        rows.append(row)
        print(f"  {row}", flush=True)
    return {
        "data": data,
        "patient": patient,
        "samples": SAMPLES,
        "judged": JUDGED,
        "random_cells": NUM_RANDOM,
        "rows": rows,
    }


TEXT = """\
# Supernet

Made by `python benchmarks/supernet.py`; one thread, 8 cells of the DARTS space, 16 channels. The plain form
runs every operation of every edge as its own module; the fast form has the same weights. The table gives process time
and peak memory of the fast form as shares of those of the plain form. The usual architecture step of the plain form
computes all gradients in one backward pass; *to α alone* compares with a plain form that computes only those of α. The
two forms ran in turn, on a machine that had other work.

{speeds}

Peak memory is that of a weight step. Outputs differ by rounding: 1e-6 is about the error of the plain form itself in
single precision.

The plain form is the only reference: no release of `naslib` could be installed, and no other package with a PC-DARTS
supernet is known to us.

## What the profile showed

Kernels of one weight step (PC-DARTS, 16x16), calls and share of the time within each form:

{profiles}

The plain form spends its time on very many small kernels. So the fast form uses few large kernels:

- ReLU, pools and their batch norms run once per state.
- The operations of all edges that leave a state run together.
- If there are few channels, a depthwise convolution and the 1x1 convolution after it run as *one* convolution with the
  product of their kernels. This avoids the most expensive kernels, the backward passes of depthwise convolutions.
- The last batch norms of all operations run as one, with the architecture weights as its weights.
- Weighted sums are computed before concatenation and shuffle.

## Second order

Process time as a share of the fast form's own step by finite difference ({difference_seconds} s):

{second}

The product with the second derivatives is exact and costs {exact:.0%} of the finite difference. torch computes second
derivatives of grouped convolutions group by group. The fast form has its own second derivatives for convolutions, batch
norms and weighted sums, in closed form. On this supernet (random images, batch 16) the error of the finite difference
is {error:.0%} of the gradient's norm. The whole difference between second and first order is {correction:.0%} of it.
At half the radius the finite difference changes by {half:.0%}.

## Accuracy of the cells

{quality}
"""


def quality_text(studies: list[dict[str, Any] | None]) -> str:
    """The last section."""
    taken = [study for study in studies if study]
    if not taken:
        return "Not measured: no data set was found."
    rows, gains, names = [], [], ("DARTS", "PC-DARTS")
    for study in taken:
        search = "patient" if study["patient"] else "plain"
        for row in study["rows"]:
            cells = [f"{row[name]['accuracy']:.3f} ({row[name]['above']} of {study['random_cells']})" for name in names]
            drawn = f"{row['random_mean']:.3f} ± {row['random_deviation']:.3f}"
            rows.append([study["data"], search, str(row["seed"]), drawn, f"{row['random_best']:.3f}", *cells])
        line = [study["data"], search]
        for name in names:
            better = [row[name]["accuracy"] - row["random_mean"] for row in study["rows"]]
            won = sum(gain > 0 for gain in better)
            line.append(f"{100 * statistics.fmean(better):+.1f} points ({won} of {len(better)} seeds)")
        gains.append(line)
    first = taken[0]
    return (
        f"{first['samples']:,} images, general space of four nodes, two cells of 8 channels on 7x7 maps. The searched "
        f"cell and {first['random_cells']} random cells are trained from scratch for 90 steps with the same seed. The "
        f"table gives the accuracy on {first['judged']:,} test images, and in brackets how many random cells it beats. "
        "The *plain* search has 25 epochs and an architecture rate of 0.02, and PC-DARTS a warm-up of 5; the *patient* "
        "one has 30 epochs, the first 10 of them warm-up for both, and a rate of 0.05. It was tried with new seeds "
        "after the plain one had chosen many pools and identities.\n\n"
        + table(["data", "search", "seed", "random cells, mean ± deviation", "the best of them", *names], rows)
        + "\n\nDifference between the searched cell and the mean of the random cells, on average over seeds:\n\n"
        + table(["data", "search", *names], gains)
        + "\n\nA few random cells hardly learn and lower the mean, so a cell above the mean need not be better than "
        "most of them. Single seeds differ in sign. With a thousand images, a gradient-based search does not reliably "
        "help."
    )


def page(figures: dict[str, Any]) -> str:
    """The Markdown page of the docs."""
    speeds = [
        [row["setting"], f"{row['weight_step']:.2f}", f"{row['plain_weight_seconds']:.2f} s",
         f"{row['first_order']:.2f}",
         f"{row['first_order_to_plain_alone']:.2f}", f"{row['peak_memory']:.2f}", f"{row['plain_peak_mebibytes']} MiB",
         f"{row['difference_of_outputs']:.1g}"]
        for row in figures["speed"]
    ]  # fmt: skip
    second = figures["second_order"]
    kernels = [[form, f"`{name}`", f"{count:,}", f"{share:.0%}"]
               for form, rows in figures["profile"].items() for name, count, share in rows]  # fmt: skip
    return TEXT.format(
        speeds=table(
            [
                "setting",
                "weight step",
                "plain",
                "architecture step",
                "to α alone",
                "peak memory",
                "plain",
                "outputs differ by",
            ],
            speeds,
        ),
        profiles=table(["form", "kernel", "calls", "share"], kernels),
        difference_seconds=f"{second['plain_seconds']:.2f}",
        second=table(
            ["step", "share"],
            [
                ["finite difference", "1"],
                ["exact", str(second["exact"])],
                ["first order", str(second["first_order"])],
                ["finite difference, plain form", str(second["plain_difference"])],
            ],
        ),
        exact=second["exact"],
        error=second["error_of_difference_to_gradient"],
        correction=second["correction_to_gradient"],
        half=second["difference_at_half_the_radius"],
        quality=quality_text(
            [figures.get(section) for section in ("mnist", "fashion", "mnist_patient", "fashion_patient")]
        ),
    )


PARTS: dict[str, Callable[[], Any]] = {
    "speed": speed,
    "second_order": second_order_figures,
    "profile": profiles,
    "mnist": lambda: quality("mnist", False, (1, 2, 3)),
    "fashion": lambda: quality("fashion", False, (1, 2, 3)),
    "mnist_patient": lambda: quality("mnist", True, (4, 5, 6)),
    "fashion_patient": lambda: quality("fashion", True, (4, 5, 6)),
}


def main() -> None:
    """Measure all sections, or those that are named; the figures of the others do not change."""
    torch.set_num_threads(1)
    file = Path(__file__).with_suffix(".json")
    for section in sys.argv[1:] or PARTS:
        print(section, flush=True)
        taken = PARTS[section]()
        figures = json.loads(file.read_text()) if file.is_file() else {}
        figures.pop("measured_on", None)
        keep(__file__, {**figures, section: taken})
    figures = json.loads(file.read_text())
    if all(section in figures for section in ("speed", "second_order", "profile")):
        PAGE.write_text(page(figures))
        print(PAGE.read_text())


if __name__ == "__main__":
    main()
