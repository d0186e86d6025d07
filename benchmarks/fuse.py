"""FUSE compared with its control: which of three cells each selects, what a round costs, and a whole search.

    python benchmarks/fuse.py

Cells are drawn from the general space and placed in a small skeleton: stem to 7x7, 8 channels, two cells with a pool
between, mean over the map. The true value of a cell is its test accuracy after 90 steps on 1,000 images, mean over
seeds. A triple of cells is used if its best cell is better than the second by more than 3 points.
"""

import itertools
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import nearkin as nk
from nearkin.core.budget import Budget
from nearkin.core.events import finish
from nearkin.core.rng import Streams, derived_seed
from nearkin.nets.training_loop import fit
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.fuse.candidates import Candidates
from nearkin.search.methods.fuse.fuse import Fuse
from nearkin.search.methods.fuse.rounds import CandidateSelection, Fusion, SideBySide
from nearkin.search.networks.build import Skeleton, build_network
from nearkin.search.searcher import run_search
from nearkin.search.spaces.general import GeneralSpace
from nearkin.tasks.builtin import find_dataset
from results import keep, table

PAGE = Path(__file__).parents[1] / "docs" / "figures" / "fuse-benchmark.md"
SPACE = GeneralSpace()
SKELETON = Skeleton(channels=8, num_cells=2, between="pool", growth=1, stem_stride=4)
SMALL = Skeleton(channels=8, num_cells=2, between="pool", growth=1)  # for 8x8 digits
TRUTH = nk.Recipe(steps=90, learning_rate=0.02, warmup=0.3)
FIXED = Fusion(alternations=12, tolerance=1e-9, certain=1.0)  # as many weight steps as the control, converged or not
CONTESTS: dict[str, CandidateSelection] = {"FUSE": FIXED, "side by side": SideBySide()}
NUM_CELLS, TRUTH_SEEDS, NUM_TRIPLES = 16, 2, 20
GAP = 0.03
GOOD = "normal(0): 1 = conv3(0); 2 = identity(0) + conv3(1); out = 2"
CRIPPLED = (
    "normal(0): 1 = zero(0); 2 = zero(0) + zero(1); out = 2",
    "normal(0): 1 = avg3(0); 2 = zero(0) + avg3(1); out = 2",
)


@dataclass(frozen=True)
class Cell:
    """A genotype and its test accuracies."""

    genotype: Genotype
    accuracies: tuple[float, ...]

    @property
    def truth(self) -> float:
        """Mean of the test accuracies."""
        return statistics.fmean(self.accuracies)


def cells_of(task: nk.Task) -> list[Cell]:
    rng, keys, cells = Streams(0).at("cells", task.name), set[str](), list[Cell]()
    while len(cells) < NUM_CELLS:
        genotype = SPACE.sample(rng)
        if (key := SPACE.unique_key(genotype)) in keys:
            continue
        keys.add(key)
        scores = [fit(network(genotype, task, SKELETON, seed), task, TRUTH, seed=seed) for seed in range(TRUTH_SEEDS)]
        cells.append(Cell(genotype, tuple(done.scores.metric for done in scores)))
    return cells


def network(genotype: Genotype, task: nk.Task, skeleton: Skeleton, seed: int) -> torch.nn.Module:
    return build_network(genotype, skeleton, task.input_shape, task.num_outputs, seed)


def triples_of(cells: Sequence[Cell]) -> list[tuple[Cell, ...]]:
    """Random triples of cells in random order, in which the best cell is better than the others by the gap or more."""
    chosen = []
    for triple in itertools.combinations(cells, 3):
        first, second, _ = sorted((cell.truth for cell in triple), reverse=True)
        if first - second > GAP:
            chosen.append(triple)
    rng = Streams(0).numpy("triples")
    some = [chosen[index] for index in rng.permutation(len(chosen))[:NUM_TRIPLES]]
    return [tuple(triple[index] for index in rng.permutation(3)) for triple in some]


def picks(task: nk.Task, triples: Sequence[tuple[Cell, ...]]) -> dict[str, Any]:
    """How often each method selects the best cell, and how much worse its selection is on average."""
    split = Fuse(SPACE, task, SKELETON).split
    figures: dict[str, Any] = {}
    for name, contest in CONTESTS.items():
        right, lost, seconds = [], [], []
        for number, triple in enumerate(triples):
            start = time.process_time()
            networks = [
                network(cell.genotype, task, SKELETON, derived_seed(number, "triple", index))
                for index, cell in enumerate(triple)
            ]
            verdict = finish(contest.judge(Candidates(networks), split, Streams(number), name))
            seconds.append(time.process_time() - start)
            best = max(cell.truth for cell in triple)
            lost.append(best - triple[verdict.winner].truth)
            right.append(lost[-1] == 0)
        figures[name] = {
            "right": sum(right),
            "of": len(right),
            "mean_loss_of_accuracy": round(statistics.fmean(lost), 4),
            "seconds_a_round": round(statistics.median(seconds), 2),
            "chance_of_as_many_by_guessing": binomial_tail(sum(right), len(right), 1 / 3),
        }
        print(f"  {task.name}, {name}: {figures[name]}", flush=True)
    guess = statistics.fmean(
        max(c.truth for c in triple) - statistics.fmean(c.truth for c in triple) for triple in triples
    )
    figures["guessing"] = {"mean_loss_of_accuracy": round(guess, 4)}
    return figures


def binomial_tail(successes: int, tries: int, chance: float) -> float:
    """Probability of at least this many successes by guessing."""
    terms = range(successes, tries + 1)
    return float(f"{sum(math.comb(tries, k) * chance**k * (1 - chance) ** (tries - k) for k in terms):.2g}")


def planted() -> list[float]:
    """The weight of a good cell among crippled ones, for five seeds."""
    task = nk.task("digits?limit=300")
    split, weights = Fuse(SPACE, task, SMALL).split, []
    for seed in range(5):
        genotypes = [Genotype.parse(text) for text in (*CRIPPLED, GOOD)]
        networks = [network(genotype, task, SMALL, 10 * seed + index) for index, genotype in enumerate(genotypes)]
        verdict = finish(FIXED.judge(Candidates(networks), split, Streams(seed), "planted"))
        weights.append(round(verdict.scores[2], 4))
    return weights


def converged() -> dict[str, Any]:
    """A search on digits with five candidates in each round, by FUSE or by its control."""
    task, figures = nk.task("digits"), {}
    for name, contest in CONTESTS.items():
        start, spent = time.perf_counter(), time.process_time()
        done = run_search(Fuse(SPACE, task, SMALL, contest, candidates=5), Budget(minutes=10))
        figures[name] = {
            "seconds": round(time.perf_counter() - start, 1),
            "process_seconds": round(time.process_time() - spent, 1),
            "rounds": done.steps,
            "architectures": done.evaluations,
            "reason": done.reason,
            "genotype": str(done.best.genotype),
            "validation_accuracy": round(float(done.best.facts["validation accuracy"]), 4),
        }
        print(f"  digits, {name}: {figures[name]}", flush=True)
    return figures


def page(figures: dict[str, Any]) -> str:
    rows = []
    for task, result in figures["triples"].items():
        for name in CONTESTS:
            row = result[name]
            rows.append([
                task, name, f"{row['right']} of {row['of']}", f"{row['chance_of_as_many_by_guessing']:.2g}",
                f"{100 * row['mean_loss_of_accuracy']:.1f}", f"{row['seconds_a_round']:.2f}",
            ])  # fmt: skip
        rows.append([task, "guessing", "a third", "–", f"{100 * result['guessing']['mean_loss_of_accuracy']:.1f}", "–"])
    spreads = ", ".join(
        f"{task} {100 * result['deviation_of_cells']:.1f} and {100 * result['deviation_of_seeds']:.1f}"
        for task, result in figures["truth"].items()
    )
    done = [
        [
            name,
            str(row["rounds"]),
            str(row["architectures"]),
            f"{row['process_seconds']:.1f}",
            f"{row['validation_accuracy']:.3f}",
        ]
        for name, row in figures["converged"].items()
    ]
    return f"""# FUSE and its control

Made by `python benchmarks/fuse.py`; one thread, process time.

## Which of three cells

{NUM_CELLS} cells a data set, drawn from the general space (3 or 4 nodes, ten operations); stem to 7x7, 8 channels, two
cells with a pool between. The true value of a cell is its test accuracy after 90 steps on 1,000 images, mean over
{TRUTH_SEEDS} seeds. Standard deviation of accuracy in points, between cells and between seeds of one cell: {spreads};
where the second is as large as the first, the order within some triples is chance.
Of the triples whose best cell is better than the second by more than {100 * GAP:.0f} points, {NUM_TRIPLES} were
given to
both methods. *FUSE* mixes the outputs of the candidates by softmax(α), trains their weights on training data and α on
validation data in turns, and picks the largest α. *Side by side* trains them on their own losses and picks the smallest
validation loss. Both take 36 weight steps from fresh weights. *By chance* is the probability that guessing picks as
many right cells; *points lost* is how far the accuracy of the pick lies below the best of its triple.

{table(["data", "contest", "best picked", "by chance", "points lost", "seconds a round"], rows)}

## A planted cell

A cell of two convolutions against one without any edge and one of average pools, on 300 digits: softmax(α) of the good
one is {", ".join(f"{weight:.4f}" for weight in figures["planted"])} for five seeds.

## A search to convergence

8x8 digits, general space, five new candidates a round, until the incumbent has won three rounds in a row. On these
images all cells score about the same: this shows the cost of a search, not that it finds a better cell.

{table(["contest", "rounds", "architectures", "seconds", "validation accuracy"], done)}
"""


def main() -> None:
    torch.set_num_threads(1)
    figures: dict[str, Any] = {"planted": planted(), "converged": converged(), "truth": {}, "triples": {}}
    print(f"  planted: {figures['planted']}", flush=True)
    for name in ("mnist", "fashion"):
        if find_dataset(name) is None:
            print(f"  {name} is not there; set NEARKIN_DATA")
            continue
        task = nk.task(f"{name}?limit=1000&even")
        cells = cells_of(task)
        triples = triples_of(cells)
        deviations = [statistics.variance(cell.accuracies) for cell in cells]
        figures["truth"][name] = {
            "cells": {str(cell.genotype): [round(a, 4) for a in cell.accuracies] for cell in cells},
            "deviation_of_cells": round(statistics.stdev(cell.truth for cell in cells), 4),
            "deviation_of_seeds": round(math.sqrt(statistics.fmean(deviations)), 4),
        }
        print(f"  {name}: {[round(cell.truth, 3) for cell in cells]}, {time.process_time():.0f} s", flush=True)
        figures["triples"][name] = picks(task, triples)
    figures["process_seconds"] = round(time.process_time())
    PAGE.write_text(page(figures))
    print(PAGE.read_text())
    print(f"kept in {keep(__file__, figures)} and {PAGE.name}; {time.process_time():.0f} s of process time")


if __name__ == "__main__":
    main()
