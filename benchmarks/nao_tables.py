"""NAO against evolution, local search and random search on tables, at equal numbers of queries.

    python benchmarks/nao_tables.py [FOLDER]

FOLDER is that of `tables.py`, which says what a query and a regret are.
"""

import math
import statistics
import sys
import time
from typing import Any

import torch

from nearkin.core.events import finish
from nearkin.search.methods.evolution import evolution
from nearkin.search.methods.local_search import local_search
from nearkin.search.methods.nao.nao_queries import NaoQueries
from nearkin.search.methods.random_search import random_search
from nearkin.search.searcher import Searcher
from results import keep, table
from tables import ROOT, Question, numbers, questions, summary, tables_folder

PAGE = ROOT / "docs" / "figures" / "nao-tables.md"
QUERIES = (25, 50, 100)
SEEDS = 10
STUDENT = 2.262  # 97.5 % quantile of Student's t for ten tasks
METHODS = {"random": random_search, "evolution": evolution, "local": local_search, "nao": NaoQueries}


def regrets(question: Question, searcher: Searcher[Any], seed: int) -> list[float]:
    """After each of these numbers of queries."""
    best, state, results = question.table.best(question.judged), searcher.init(seed), []
    for query in range(1, QUERIES[-1] + 1):
        state = finish(searcher.step(state))
        if query in QUERIES:
            chosen = searcher.best(state)
            assert chosen is not None
            results.append(best - question.table.value(chosen.genotype, question.judged))
    return results


def measured(question: Question) -> dict[str, Any]:
    """Regrets of all methods on a task, by seed."""
    figures: dict[str, Any] = {}
    for name, make in METHODS.items():
        start = time.process_time()
        searcher = make(question.table.space, question.objective())
        rows = [regrets(question, searcher, seed) for seed in range(SEEDS)]
        figures[name] = {
            **summary(rows, QUERIES),
            "rows": [[round(value, 5) for value in row] for row in rows],
            "seconds": round((time.process_time() - start) / SEEDS, 2),
        }
        print(f"  {question.name}, {name}: {figures[name]['mean']}, {figures[name]['seconds']} s a search", flush=True)
    return figures


def ratio(tasks: dict[str, Any], queries: int) -> dict[str, float]:
    """Mean regret of NAO ÷ that of evolution: geometric mean over tasks, with a 95 % interval."""
    pairs = [[ways[name]["mean"][str(queries)] for name in ("nao", "evolution")] for ways in tasks.values()]
    logs = [math.log(ours / theirs) for ours, theirs in pairs]
    centre, half = statistics.fmean(logs), STUDENT * statistics.stdev(logs) / math.sqrt(len(logs))
    ends = {"mean": centre, "low": centre - half, "high": centre + half}
    return {name: round(math.exp(value), 4) for name, value in ends.items()}


def lower(tasks: dict[str, Any], queries: int) -> int:
    """Number of tasks in which NAO has the lower mean regret."""
    return sum(ways["nao"]["mean"][str(queries)] < ways["evolution"]["mean"][str(queries)] for ways in tasks.values())


def page(figures: dict[str, Any]) -> str:
    tasks = figures["tasks"]
    rows = [
        [task, name, *(numbers([ways[name][key][str(count)] for count in QUERIES]) for key in ("mean", "error"))]
        for task, ways in tasks.items()
        for name in METHODS
    ]
    ratios = [
        [name, *(f"{value:.2f}" for value in values.values()), f"{figures['lower'][name]} of {len(tasks)}"]
        for name, values in figures["ratio"].items()
    ]
    seconds = statistics.fmean(ways["nao"]["seconds"] for ways in tasks.values())
    return f"""# NAO on tables

Made by `python benchmarks/nao_tables.py`: {len(tasks)} tasks of NAS-Bench-201 and TransNAS-Bench-101 (micro),
{SEEDS} seeds, one thread. [Search on tables](tables-benchmark.md) says what a query and a regret are. NAO has its
default options: 20 random cells, then rounds of 10. A search of {QUERIES[-1]} queries takes {seconds:.1f} s of
processor time with NAO.

## NAO ÷ evolution

Ratio of mean regrets, geometric mean over the tasks; below 1, NAO is better. The 95 % interval is over tasks.

{table(["queries", "ratio", "from", "to", "tasks with lower regret"], ratios)}

## By task

Mean regret after {" / ".join(map(str, QUERIES))} queries, and its standard error.

{table(["task", "method", "regret", "standard error"], rows)}
"""


def main() -> None:
    torch.set_num_threads(1)
    figures: dict[str, Any] = {"seeds": SEEDS, "tasks": {}}
    for question in questions(tables_folder(sys.argv[1:])):
        figures["tasks"][question.name] = measured(question)
    figures["ratio"] = {str(count): ratio(figures["tasks"], count) for count in QUERIES}
    figures["lower"] = {str(count): lower(figures["tasks"], count) for count in QUERIES}
    figures["process_seconds"] = round(time.process_time())
    PAGE.write_text(page(figures))
    print(PAGE.read_text())
    print(f"kept in {keep(__file__, figures)} and {PAGE.name}; {time.process_time():.0f} s of process time")


if __name__ == "__main__":
    main()
