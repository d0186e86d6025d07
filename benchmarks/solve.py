"""`nearkin solve` compared with the best simple model: is it ever worse by more than the noise of the selection?

    python benchmarks/solve.py [MINUTES] [--back | --offline]

A second process with --back starts from the last run; --offline writes the page from the finished runs.

Five draws of 2,000 training and 2,000 test samples (digits: all, split again) of each data set are solved
with a zoo of six related tasks with cells. The three simple models are fitted on all training data, with the settings
that the run chose. The comparison is with the one that is best ON THE TEST SET, which a user could not know. Finished
runs are stored and not repeated.
"""

import json
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import nearkin as nk
from nearkin.core.events import Note, finish
from nearkin.solver.contenders import search_skeleton
from nearkin.solver.plan import Plan
from nearkin.solver.simple.models import SIMPLE, fit_simple
from nearkin.solver.solution import Solution
from nearkin.solver.solving import solve
from nearkin.tasks.split import balanced_index, split_index
from results import keep, table

PAGE = Path(__file__).parents[1] / "docs" / "figures" / "solve-benchmark.md"
TARGETS = ("digits", "mnist", "fashion", "cifar10")
KIN = (
    ("low digits", "digits?classes=0,1,2,3,4&rest=drop"),
    ("even", "mnist?parity&limit=2000&even"),
    ("five", "mnist?classes=0,1,2,3,4&rest=drop&limit=2000&even"),
    ("clothes", "fashion?classes=0,1,2,3,4&rest=drop&limit=2000"),
    ("shoes", "fashion?detect=5,7,9&limit=2000&even"),
    ("animals", "cifar10?classes=2,3,4,5,6,7&rest=drop&limit=2000"),
)
SAMPLES, SEEDS, CELLS = 2000, 5, 8
MINUTES = 2.0


def drawn(data: str, seed: int) -> nk.Task:
    """A random subset of a data set."""
    whole = nk.task(data, name=f"{data} {seed}")
    if data == "digits":
        learn, judge = split_index(whole.train.labels(), len(whole.train), 0.25, seed)
        return replace(whole, train=whole.train.chosen(learn), test=whole.train.chosen(judge), source="").rescaled()
    parts = [
        examples.chosen(balanced_index(examples.labels(), SAMPLES, seed)) for examples in (whole.train, whole.test)
    ]
    return replace(whole, train=parts[0], test=parts[1], source="").rescaled()


def prepared(folder: Path) -> None:
    """The zoo, created once."""
    with nk.Zoo(folder) as zoo:
        for name, data in KIN:
            task = nk.task(data, name=name)
            if name not in zoo:
                zoo.add(task, "lenet", trials=1)
            if zoo.cells(name) is None:
                zoo.search_cells(name, search_skeleton(task), nk.Budget(evaluations=CELLS))
                print(name, file=sys.stderr)


def rivals(task: nk.Task, solution: Solution) -> dict[str, float]:
    """Test metric of the simple models on all training data."""
    settings = {
        contender.name: contender.settings
        for contender in solution.standings
        if contender.kind == "simple" and not contender.refused
    }
    return {
        kind: fit_simple(kind, task, seed=solution.seed, fixed=settings[kind]).fit.scores.metric
        for kind in SIMPLE
        if kind in settings
    }


def run(data: str, seed: int, folder: Path, minutes: float) -> dict[str, Any]:
    """One row of the results."""
    task = drawn(data, seed)
    plan = Plan(budget=nk.Budget(minutes=minutes), seed=seed, join=False)
    begun = time.perf_counter()
    with nk.Zoo(folder) as zoo:
        solution = finish(
            solve.work(task, zoo, plan=plan),
            lambda event: print(event.text, file=sys.stderr) if isinstance(event, Note) else 0,
        )
    took = time.perf_counter() - begun
    simple = rivals(task, solution)
    best = max(simple, key=lambda kind: simple[kind])
    chosen, other = (next(row for row in solution.standings if row.name == name) for name in (solution.chosen, best))
    count = round(0.2 * len(task.train))
    spread = (chosen.validation or 0) * (1 - (chosen.validation or 0)) + (other.validation or 0) * (
        1 - (other.validation or 0)
    )
    return {
        "data": data,
        "seed": seed,
        "chosen": solution.chosen,
        "metric": solution.metric,
        "interval": list(solution.interval),
        "parameters": solution.parameters,
        "multiply_adds": solution.multiply_adds,
        "simple": simple,
        "difference": solution.metric - simple[best],
        "noise": 1.96 * (spread / count) ** 0.5,
        "validation": {row.name: row.validation for row in solution.standings},
        "test": {row.name: row.test for row in solution.standings},
        "sizes": {row.name: [row.parameters, row.multiply_adds] for row in solution.standings},
        "cells_of": solution.relations.cells_of,
        "distance": solution.relations.distance,
        "calibration_error": solution.quality.calibration_error,
        "promises": [[row.claim, row.held] for row in solution.promises],
        "seconds": took,
    }


def main() -> None:
    minutes = next((float(word) for word in sys.argv[1:] if not word.startswith("-")), MINUTES)
    torch.set_num_threads(1)
    folder = Path(tempfile.gettempdir()) / "nearkin-benchmark-solve"
    folder.mkdir(exist_ok=True)
    prepared(folder / "zoo")
    files = {(data, seed): folder / f"{data}-{seed}-{minutes:g}.json" for seed in range(SEEDS) for data in TARGETS}
    for (data, seed), file in reversed(files.items()) if "--back" in sys.argv else files.items():
        if not file.exists() and "--offline" not in sys.argv:
            row = run(data, seed, folder / "zoo", minutes)
            file.write_text(json.dumps(row))
            print(
                json.dumps({name: row[name] for name in ("data", "seed", "chosen", "metric", "difference")}), flush=True
            )
    rows = [json.loads(file.read_text()) for file in files.values() if file.exists()]
    keep(__file__, {"minutes": minutes, "samples": SAMPLES, "runs": rows, "summary": summary(rows)})
    written(rows, minutes)


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Summary of all rows."""
    differences = [row["difference"] for row in rows]
    beyond = [row for row in rows if row["difference"] < -row["noise"]]
    claims = sorted({claim for row in rows for claim, _ in row["promises"]})
    totals = {
        claim: [[held for c, held in row["promises"] if c == claim].count(True) for row in rows] for claim in claims
    }
    known = {
        claim: sum(held is not None for row in rows for c, held in row["promises"] if c == claim) for claim in claims
    }
    return {
        "runs": len(rows),
        "mean_difference": statistics.fmean(differences),
        "worst_difference": min(differences),
        "beyond_noise": len(beyond),
        "promises": {claim: [sum(totals[claim]), known[claim]] for claim in claims},
    }


def written(rows: list[dict[str, Any]], minutes: float) -> None:
    """The page."""
    body = [
        [
            row["data"], str(row["seed"]), row["chosen"], f"{row['metric']:.4f}",
            f"{row['interval'][0]:.3f} to {row['interval'][1]:.3f}", f"{row['parameters']:,}",
            f"{row['multiply_adds']:,}", f"{max(row['simple'].values()):.4f}", f"{100 * row['difference']:+.2f}",
            f"{100 * row['noise']:.2f}",
        ]
        for row in rows
    ]  # fmt: skip
    head = [
        "data",
        "draw",
        "chosen",
        "test",
        "interval",
        "parameters",
        "multiply-adds",
        "best simple",
        "difference",
        "noise",
    ]
    totals = summary(rows)
    lines = [
        "# Solve compared with simple models",
        "",
        "Made by `python benchmarks/solve.py`; one thread.",
        "",
        f"Draws of {SAMPLES:,} training and {SAMPLES:,} test samples (digits: 1,078 and 359), solved with a zoo of "
        f"six related tasks with cells. Each of {totals['runs']} runs had {minutes:g} minutes. Differences are points "
        f"of test accuracy against the "
        f"simple model that is best on the test set; noise is the 95 % half-width of that difference on the "
        f"validation set. Mean difference {100 * totals['mean_difference']:+.2f} points, worst "
        f"{100 * totals['worst_difference']:+.2f}; worse by more than the noise in {totals['beyond_noise']} of "
        f"{totals['runs']}.",
        "",
        table(head, body),
        "",
        "How often each claim of the papers held, of the runs that could decide it:",
        "",
        table(["claim", "held", "of"], [[c, str(a), str(b)] for c, (a, b) in totals["promises"].items()]),
    ]
    PAGE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
