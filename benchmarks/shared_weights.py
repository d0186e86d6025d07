"""Searches with shared weights, with and without plasticity: forgetting, ranks, and networks trained from scratch.

    python benchmarks/shared_weights.py [--page] [--ptb FOLDER]

Figures 4 and 5 and table 1 of paper 004 at small scale. Needs MNIST in `$NEARKIN_DATA` and a folder of Penn Treebank.
Each finished run is kept in `benchmarks/shared_weights.json`; the same command continues with the others, and writes
`docs/figures/shared-weights.md` with its pictures at the end. Settings were chosen on seeds from 100.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import nearkin as nk
from nearkin.core.events import finish
from nearkin.search.genotype_evaluation import evaluate_genotype
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.networks.skeleton import Skeleton
from nearkin.search.registry import SearchProblem, searcher
from nearkin.search.spaces.registry import space
from results import keep
from shared_weights_page import write_page

FILE = Path(__file__).with_suffix(".json")
SEEDS = range(3)
EPOCHS, DRAWS, RANKED = 9, 60, 20
SHARED = {"epochs": EPOCHS, "batch_size": 32, "watched": 100}
OWN: dict[str, dict[str, Any]] = {
    "random-shared": {},
    "enas": {"controller_steps": 8, "controller_samples": 5, "selection_samples": 10},
    "nao": {"pool": 12, "replaced": 5, "round_epochs": 1, "model_steps": 60},
}
DROPOUTS = (0.0, 0.25, 0.5, 0.75)


@dataclass(frozen=True)
class Setting:
    """A task with its space, sizes, and options of searches and of trainings from scratch."""

    task: str
    space: str
    skeleton: dict[str, Any]
    options: dict[str, Any]
    recipe: dict[str, Any]
    methods: tuple[str, ...]
    dropout_seeds: tuple[int, ...] = ()
    alone: dict[str, Any] = field(default_factory=dict)


def settings(ptb: str) -> dict[str, Setting]:
    """The two tasks."""
    return {
        "mnist": Setting(
            "mnist?limit=4000&size=14", "enas?nodes=2", {"channels": 8, "num_cells": 2, "stem_stride": 2},
            {"batches_per_architecture": 10, "learning_rate": 0.1},
            {"steps": 250, "batch_size": 32, "learning_rate": 0.01}, ("random-shared", "enas", "nao"),
        ),
        "ptb": Setting(
            f"text:{ptb}?vocabulary=1000&length=20&limit=2000", "recurrent?nodes=4&loose_ends=true", {"channels": 48},
            {"batches_per_architecture": 5}, {"steps": 250, "batch_size": 32, "learning_rate": 0.01},
            ("random-shared", "enas", "nao"), (0,),
        ),
    }  # fmt: skip


def jobs(name: str, setting: Setting) -> Iterator[tuple[str, dict[str, Any]]]:
    """Key and facts of every run of a task."""
    if name == "mnist":
        for number in range(RANKED):
            yield f"{name}/alone/{number}", {"kind": "alone", "number": number}
    for seed in SEEDS:
        for method in setting.methods:
            for plasticity in (False, True):
                facts = {"kind": "search", "method": method, "plasticity": plasticity, "seed": seed, "more": {}}
                yield f"{name}/{method}/{'plasticity' if plasticity else 'plain'}/{seed}", facts
    for seed in setting.dropout_seeds:
        cases = [(rate, 0.0, plasticity) for rate in DROPOUTS[1:] for plasticity in (False, True)]
        for rate, path, plasticity in [*cases, (0.0, 0.5, False)]:
            more = {"output_dropout": rate, "path_dropout": path}
            facts = {"kind": "search", "method": "nao", "plasticity": plasticity, "seed": seed, "more": more}
            yield f"{name}/nao/dropout {rate:g} path {path:g} {plasticity}/{seed}", facts


def ranked_genotypes(setting: Setting) -> list[Genotype]:
    """The architectures whose ranks with shared weights and alone are compared."""
    whole = space(setting.space)
    return [whole.sample(torch.Generator().manual_seed(7_000 + number)) for number in range(RANKED)]


def trained(setting: Setting, task: nk.Task, genotype: Genotype, seed: int, validation: float | None) -> dict[str, Any]:
    """Train a genotype from scratch; metric and loss on the test set, or on validation samples."""
    recipe, skeleton = nk.Recipe(**setting.recipe), Skeleton(**setting.skeleton)
    done = evaluate_genotype(genotype, task, skeleton, recipe, seed, validation=validation)
    return {"metric": round(done.metric, 5), "loss": round(done.loss, 5), "parameters": done.parameters}


def search(setting: Setting, task: nk.Task, job: dict[str, Any]) -> dict[str, Any]:
    """One search: forgetting, scores of the ranked genotypes with the final weights, the best trained from scratch."""
    options = {**SHARED, **setting.options, **OWN[job["method"]], **job["more"], "plasticity": job["plasticity"]}
    problem = SearchProblem(
        task=task, space=space(setting.space), skeleton=Skeleton(**setting.skeleton), options=options
    )
    method, begun = searcher(job["method"], problem), time.process_time()
    state = method.init(job["seed"])
    while not method.ended(state) and (job["method"] != "random-shared" or method.evaluations(state) < DRAWS):
        state = finish(method.step(state))
    seconds, best = time.process_time() - begun, method.best(state)
    assert best is not None
    row = {
        "seconds": round(seconds, 1),
        "evaluations": method.evaluations(state),
        "forgetting": [epoch.to_dict() for epoch in method.forgetting(state)],
        "best": str(best.genotype),
        "score": best.score,
        "shared": [],
    }
    if not job["more"]:
        row["retrained"] = trained(setting, task, best.genotype, job["seed"], None)
    ranked = ranked_genotypes(setting)
    row["shared"] = [round(method.score(state, genotype, [method.fixed_batch]).score, 5) for genotype in ranked]  # type: ignore[attr-defined]
    return row


def run(ptb: str) -> None:
    """All runs that are not kept yet."""
    kept: dict[str, Any] = json.loads(FILE.read_text())["runs"] if FILE.exists() else {}
    for name, setting in settings(ptb).items():
        task = nk.task(setting.task, name=name)
        for key, job in jobs(name, setting):
            if key in kept:
                continue
            if job["kind"] == "alone":
                row = trained(setting, task, ranked_genotypes(setting)[job["number"]], 0, 0.3)
            else:
                row = search(setting, task, job)
            kept[key] = {**job, **row}
            keep(__file__, {"seeds": list(SEEDS), "epochs": EPOCHS, "runs": kept})
            shown = {k: v for k, v in row.items() if k in ("seconds", "metric", "retrained", "score")}
            print(key, shown, file=sys.stderr, flush=True)


def main() -> None:
    """Run, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="write the page alone, from the figures that are there")
    parser.add_argument("--ptb", default="data/ptb", help="folder of Penn Treebank")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if not arguments.page:
        run(arguments.ptb)
    write_page(json.loads(FILE.read_text()))


if __name__ == "__main__":
    main()
