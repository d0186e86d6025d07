"""Which cheap measure predicts the best source for fine-tuning a target?

    python benchmarks/prediction.py [--cache FOLDER] [--only truth,measures,tables,questions]

24 tasks of digits, MNIST, Fashion-MNIST and CIFAR-10 as 14x14 grey images, three networks, two seeds. Truth: every
task's network (2,000 samples) is fine-tuned on every other task (300 other samples), all weights, fresh head, 60 steps
of Adam at 1e-3 on batches of 32; twice, in another order of batches. (a) is the area under the held-out loss, (b) the
steps to the loss that training from scratch ends at, (c) the accuracy after 25 steps. Truths and measures are kept in
the cache, so that an interrupted run can be resumed; about an hour on one core. Figures go to
`benchmarks/prediction.json`, the table to `docs/figures/prediction-benchmark.md`, the plot to
`docs/images/prediction.svg`. The stage `questions` makes the runs of `prediction_runs.py` and chooses the measures of
each question; with `--only questions` the other figures are kept. It takes about 40 minutes on one core.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from prediction_choice import question_figures
from prediction_measures import MEASURES, Pair, informed, measured
from prediction_page import page, plot
from prediction_recipes import recipes
from prediction_runs import make_runs
from prediction_score import SCRATCH, Array, Column, truths
from prediction_summary import figures
from prediction_tasks import NAMES, NETWORKS, SEEDS, Parts
from prediction_truth import DRAWN_RUN, RUN, Run, Stack, all_parts, sources, truth
from results import keep

DOCS = Path(__file__).parents[1] / "docs"
KIN = "fast 16x64"  # the pace that `nearkin.distance.short_finetune` has as its default
DRAWN = (("mlp", 0), ("lenet", 0), ("cnn", 0), ("mlp", 1))  # where heads drawn as `nn.Linear` draws them are tried too


class Setting:
    """One network and seed: data of all tasks, their trained networks, and values computed from these."""

    def __init__(self, cache: Path, network: str, seed: int, data: list[Parts]) -> None:
        self.cache, self.network, self.seed, self.data = cache, network, seed, data

    @property
    def runs(self) -> tuple[Run, ...]:
        """Recipes of fine-tuning that are tried."""
        return (RUN, DRAWN_RUN) if (self.network, self.seed) in DRAWN else (RUN,)

    def truth(self, run: Run) -> Iterator[list[dict[str, Tensor]]]:
        """Curves of every target's replicas."""
        return truth(self.cache, self.network, self.seed, self.data, run)

    @cached_property
    def stack(self) -> Stack:
        """The sources, and the start."""
        return sources(self.cache, self.network, self.seed, self.data)

    @cached_property
    def known(self) -> list[Callable[[Parts, Column], Pair]]:
        """For every source, the values that all its pairs share."""
        own, tasks = informed(self.stack, self.data)

        def maker(row: int) -> Callable[[Parts, Column], Pair]:
            module = self.stack.row(row)
            if row == SCRATCH:
                return lambda task_data, at: Pair(module, None, task_data, own[at.target], None, float("nan"), at, row)
            source, right = self.data[row], accuracy(module, self.data[row])
            return lambda task_data, at: Pair(
                module, source, task_data, own[at.target], (tasks[row], tasks[at.target]), right, at, row
            )

        return [maker(row) for row in range(SCRATCH + 1)]

    def measured(self) -> Iterator[tuple[Column, dict[str, dict[str, Tensor]]]]:
        """Values and seconds of all measures, target after target."""
        for target, task_data in enumerate(self.data):
            column = Column(self.network, self.seed, target)

            def pairs(column: Column = column, task_data: Parts = task_data) -> list[Pair]:
                return [pair(task_data, column) for pair in self.known]

            yield column, measured(self.cache, column, pairs)


def settings(cache: Path) -> Iterator[Setting]:
    for seed in SEEDS:
        data = all_parts(seed)
        for network in NETWORKS:
            yield Setting(cache, network, seed, data)


def accuracy(module: nn.Module, task_data: Parts) -> float:
    x, y = task_data.held_out
    with torch.no_grad():
        return float((module(x)[:, : task_data.num_outputs].argmax(1) == y).double().mean())


def gathered(cache: Path) -> tuple[list[Column], list[dict[str, Array]], list[dict[str, float]], dict[str, list[Any]]]:
    """Columns with their measures, their cost relative to LogME, and true results `[R, S]` by kind of head."""
    columns, values, costs = [], [], []
    truth_of: dict[str, list[Any]] = {"zero": [], "drawn": []}
    for setting in settings(cache):
        curves = {run.head: setting.truth(run) for run in setting.runs}
        for column, results in setting.measured():
            columns.append(column)
            kept = {name: results[name] for name in MEASURES}
            kept["kin"] = kept[KIN]
            values.append({name: row["value"].numpy() for name, row in kept.items()})
            reference = float(kept["logme"]["seconds"].median())
            costs.append({name: float(row["seconds"].median()) / reference for name, row in kept.items()})
            for head, found_truths in truth_of.items():
                found_truths.append(truths(next(curves[head])) if head in curves else None)
    return columns, values, costs, truth_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "nearkin-prediction")
    parser.add_argument("--only", default="truth,measures,tables,questions", help="stages, comma between")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    stages = chosen.only.split(",")
    for setting in settings(chosen.cache) if {"truth", "measures"} & set(stages) else ():
        text = f"{setting.network}, seed {setting.seed}:"
        for run in setting.runs if "truth" in stages else ():
            for target, _ in enumerate(setting.truth(run)):
                print(text, f"truth of {NAMES[target]}, head {run.head}", flush=True)
        for column, _ in setting.measured() if "measures" in stages else ():
            print(text, f"measures of {NAMES[column.target]}", flush=True)
    stored = json.loads(Path(__file__).with_suffix(".json").read_text())
    results = {name: value for name, value in stored.items() if name != "measured_on"}
    if "tables" in stages:
        results |= figures(*gathered(chosen.cache)) | {"recipes": recipes(chosen.cache)}
    if "questions" in stages:
        make_runs(chosen.cache)
        results |= {"questions": question_figures(chosen.cache)}
    if {"tables", "questions"} & set(stages):
        keep(__file__, results)
        file = DOCS / "figures" / "prediction-benchmark.md"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(page(results))
        plot(results, DOCS / "images" / "prediction.svg")
        print(page(results))


if __name__ == "__main__":
    main()
