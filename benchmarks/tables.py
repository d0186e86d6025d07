"""Search on tables: regret by number of queries, compared with published figures, and searches that start from kin.

    python benchmarks/tables.py [FOLDER]

FOLDER holds `nb201.csv.gz` and `tnb101_micro.csv.gz`; without it, `tables` beside the real data sets. On NAS-Bench-201
a search sees validation accuracies and its regret is in test accuracy; TransNAS-Bench-101 has one figure for both. An
architecture counts once: a query is the first evaluation of a class of cells that the table treats as equal.
"""

import itertools
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nearkin.core.events import finish
from nearkin.search.methods.evolution import evolution
from nearkin.search.methods.local_search import local_search
from nearkin.search.methods.random_search import random_search
from nearkin.search.searcher import Searcher
from nearkin.search.tabular import ArchitectureTable, TabularObjective, read_table
from results import keep, table

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "figures" / "tables-benchmark.md"
METHODS: dict[str, Callable[..., Searcher[Any]]] = {
    "random": random_search,
    "evolution": evolution,
    "local": local_search,
}
QUERIES = (10, 25, 50, 100, 200)
SHOWN = QUERIES[1:]
KIN_QUERIES = (5, 10, 25, 50)
SEEDS, KIN_SEEDS, KIN_GIVEN = 200, 50, 5
EVERY = ", every cell"
REFERENCE = {  # reference: regrets after 25, 50, 100 and 200 queries, 200 seeds
    ("cifar100", "random"): (2.91, 2.54, 2.11, 1.62),
    ("cifar100", "evolution"): (2.02, 0.90, 0.33, 0.13),
    ("cifar100", "local"): (2.10, 1.16, 0.44, 0.10),
    ("imagenet16", "random"): (2.68, 2.18, 1.78, 1.50),
    ("imagenet16", "evolution"): (2.04, 1.30, 0.92, 0.87),
    ("imagenet16", "local"): (2.16, 1.35, 0.99, 0.90),
    ("class_object", "random"): (1.40, 1.15, 0.92, 0.68),
    ("class_object", "evolution"): (1.14, 0.73, 0.43, 0.22),
    ("class_object", "local"): (1.20, 0.84, 0.52, 0.28),
}


@dataclass(frozen=True)
class Question:
    """A task of a table: the column that a search sees, and the one in which its regret is taken."""

    table: ArchitectureTable
    name: str
    seen: str
    judged: str

    def objective(self) -> TabularObjective:
        """The value that a search receives for a genotype."""
        return TabularObjective(self.table, self.seen)


def columns(first: ArchitectureTable, second: ArchitectureTable) -> list[Question]:
    names = [column.removesuffix("_test") for column in first.columns if column.endswith("_test")]
    return [
        *(Question(first, name, f"{name}_valid", f"{name}_test") for name in names),
        *(Question(second, name, name, name) for name in second.columns),
    ]


def questions(folder: Path) -> list[Question]:
    first, second = (read_table(folder / f"{name}.csv.gz") for name in ("nb201", "tnb101_micro"))
    return columns(first, second)


def every_cell(folder: Path) -> list[Question]:
    """Tasks with published figures; equivalent cells count separately, as there."""
    both = (read_table(folder / f"{name}.csv.gz", single=True) for name in ("nb201", "tnb101_micro"))
    names = {task for task, _ in REFERENCE}
    return [replace(question, name=f"{question.name}{EVERY}") for question in columns(*both) if question.name in names]


def regrets(question: Question, searcher: Searcher[Any], seed: int, queries: Sequence[int], best: float) -> list[float]:
    """After each of these numbers of queries."""
    state, results = searcher.init(seed), []
    for query in range(1, queries[-1] + 1):
        state = finish(searcher.step(state))
        if query in queries:
            chosen = searcher.best(state)
            assert chosen is not None
            results.append(best - question.table.value(chosen.genotype, question.judged))
    return results


def summary(rows: list[list[float]], queries: Sequence[int]) -> dict[str, dict[str, float]]:
    """Mean and standard error over seeds."""
    columns = dict(zip(map(str, queries), zip(*rows, strict=True), strict=True))
    root = math.sqrt(len(rows))
    return {
        "mean": {name: round(statistics.fmean(values), 4) for name, values in columns.items()},
        "error": {name: round(statistics.stdev(values) / root, 4) for name, values in columns.items()},
    }


def by_method(
    asked: list[Question],
    methods: dict[str, Callable[..., Searcher[Any]]] = METHODS,
    queries: Sequence[int] = QUERIES,
    seeds: Sequence[int] = range(SEEDS),
) -> dict[str, dict[str, Any]]:
    """Regrets by task and method."""
    figures: dict[str, dict[str, Any]] = {}
    for question in asked:
        best, objective = question.table.best(question.judged), question.objective()
        figures[question.name] = {}
        for name, make in methods.items():
            start = time.process_time()
            searcher = make(question.table.space, objective)
            rows = [regrets(question, searcher, seed, queries, best) for seed in seeds]
            seconds = round((time.process_time() - start) / len(rows), 2)
            figures[question.name][name] = {**summary(rows, queries), "seconds": seconds}
            means = list(figures[question.name][name]["mean"].values())
            print(f"  {question.name}, {name}: {means}, {seconds} s a search", flush=True)
    return figures


def by_kin(asked: list[Question]) -> dict[str, Any]:
    """All ordered pairs of tasks of one table."""
    figures = {}
    for kin, target in itertools.permutations(asked, 2):
        if kin.table is not target.table:
            continue
        best, objective = target.table.best(target.judged), target.objective()
        first = kin.table.top(kin.seen, KIN_GIVEN)
        ways = {
            "kin": evolution(target.table.space, objective, first=first),
            "local": local_search(target.table.space, objective, first=first),
        }
        figures[f"{kin.name} to {target.name}"] = {
            name: summary(
                [regrets(target, searcher, seed, KIN_QUERIES, best) for seed in range(KIN_SEEDS)], KIN_QUERIES
            )
            for name, searcher in ways.items()
        }
    return figures


# The page


def numbers(values: Sequence[float]) -> str:
    return " / ".join(f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3g}" for value in values)


def method_rows(figures: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Regrets by class of cells."""
    rows = []
    for task, ways in figures.items():
        if not task.endswith(EVERY):
            rows += [[task, name, *_ours(results)] for name, results in ways.items()]
    return rows


def reference_rows(figures: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Regrets with every cell counted separately, compared with the published ones."""
    rows = []
    for (task, name), reference in REFERENCE.items():
        results = figures[f"{task}{EVERY}"][name]
        triples = [
            (results["mean"][str(c)], p, results["error"][str(c)]) for c, p in zip(SHOWN, reference, strict=True)
        ]
        off = [(mine - theirs) / (math.sqrt(2) * error) for mine, theirs, error in triples]
        rows.append([task, name, *_ours(results), numbers(reference), " / ".join(f"{value:+.1f}" for value in off)])
    return rows


def _ours(results: dict[str, Any]) -> list[str]:
    return [numbers([results[key][str(count)] for count in SHOWN]) for key in ("mean", "error")]


def kin_rows(figures: dict[str, Any]) -> list[list[str]]:
    rows = []
    for pair, ways in figures["kin"].items():
        random = figures["methods"][pair.split(" to ")[1]]["random"]["mean"]
        cells = [numbers([random["10"], random["50"]])]
        for name in ("kin", "local"):
            cells.append(numbers([ways[name]["mean"]["10"], ways[name]["mean"]["50"]]))
        rows.append([pair, *cells, f"{ratio(ways['kin'], random):.2f}"])
    return rows


def ratio(way: dict[str, Any], random: dict[str, float]) -> float:
    return float(way["mean"]["50"]) / random["50"]


def ratios(figures: dict[str, Any], name: str) -> list[float]:
    """Regret from kin ÷ that of random search at 50 queries, pair by pair."""
    return [
        ratio(ways[name], figures["methods"][pair.split(" to ")[1]]["random"]["mean"])
        for pair, ways in figures["kin"].items()
    ]


def page(figures: dict[str, Any]) -> str:
    all_ratios = {name: ratios(figures, name) for name in ("kin", "local")}
    worst = {name: f"{max(values):.2f}" for name, values in all_ratios.items()}
    mean = {name: f"{statistics.fmean(values):.2f}" for name, values in all_ratios.items()}
    near = figures["kin"]["cifar10 to cifar100"]["kin"]["mean"]["10"]
    return f"""# Search on tables

Made by `python benchmarks/tables.py`; NAS-Bench-201 (15,625 cells, 6,466 classes, three tasks) and the micro cells of
TransNAS-Bench-101 (4,096 cells, seven tasks). An architecture counts once: a query is the first evaluation of a
class of
equivalent cells. On NAS-Bench-201 a search sees validation accuracies, and its regret is how far the test
accuracy of its best cell is below the best of the table; TransNAS-Bench-101 has one figure for both.

## By method

Mean regret after 25 / 50 / 100 / 200 queries over {figures["seeds"]} seeds, and its standard error. Evolution has a
population of 10; the best one is mutated next.

{table(["task", "method", "regret", "standard error"], method_rows(figures["methods"]))}

## Compared with reference figures

Measured with another program, over as many seeds. They count every cell as a query, not every class of cells: random
search, which has no settings, agrees with them only under this count. *Off by* is the difference in
standard errors, assuming that those of the reference are as large.

{
        table(
            ["task", "method", "regret", "standard error", "reference", "off by"],
            reference_rows(figures["methods"]),
        )
    }

## From kin

The search starts from the {figures["given"]} best cells of another task of the same table (by the figure that a search
sees there), over {figures["kin_seeds"]} seeds. Mean regret after 10 / 50 queries: random search without kin; *kin*, an
evolution whose first population is half the kin's and half drawn; and as a control local search from the same cells.
The last column is the regret of *kin* at 50 queries ÷ that of random search. The method `warm-start` divides its
queries between the kin's cells, their space and the whole space: [its own page](warm-start.md).

- CIFAR-100 from CIFAR-10: regret {near:.2f} after 10 queries.
- Over all {len(figures["kin"])} ordered pairs the ratio at 50 queries is {mean["kin"]} on average and {worst["kin"]}
  at worst; for local search from the same cells {mean["local"]} and {worst["local"]}.

{table(["pair", "random", "kin", "local from kin", "kin ÷ random"], kin_rows(figures))}
"""


def tables_folder(arguments: Sequence[str]) -> Path:
    """The folder on the command line, or that beside the real data sets."""
    data = os.environ.get("NEARKIN_DATA", "")
    beside = (Path(data).expanduser().parent if data else ROOT.parent / "shared") / "tables"
    return Path(arguments[0]) if arguments else beside


def main() -> None:
    folder = tables_folder(sys.argv[1:])
    asked = questions(folder)
    figures: dict[str, Any] = {"seeds": SEEDS, "kin_seeds": KIN_SEEDS, "given": KIN_GIVEN}
    figures["methods"] = by_method([*asked, *every_cell(folder)])
    figures["kin"] = by_kin(asked)
    figures["process_seconds"] = round(time.process_time())
    PAGE.write_text(page(figures))
    print(PAGE.read_text())
    print(f"kept in {keep(__file__, figures)} and {PAGE.name}; {time.process_time():.0f} s of process time")


if __name__ == "__main__":
    main()
