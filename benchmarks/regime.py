"""Which contender does a number of labels favour: a CNN from scratch, fine-tuning, or closed-form transfer?

    python benchmarks/regime.py [--folder FOLDER] [--offline]

Each of the three alone gets the same processor time on draws of MNIST, Fashion-MNIST and CIFAR-10 with 5 to 50 labels
per class, beside the zoo of `benchmarks/solve.py` (its folder `zoo`; kin and targets share no sample). `few_labels` is
the largest number of labels at which a related network is better on average; `solver.allocation.regime` rests on it.
Seeds from 200 on; the seeds of `benchmarks/solve.py` are others.
"""

import argparse
import json
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import nearkin as nk
from nearkin.core.events import finish
from nearkin.solver.plan import Plan
from nearkin.solver.solving import solve
from nearkin.tasks.split import balanced_index
from results import keep

DATA = ("mnist", "fashion", "cifar10")
LABELS = (5, 10, 20, 50)
SEEDS = (200, 201)
CONTENDERS = ("cnn", "finetune", "transfer")
SECONDS = 12.0
TEST = 1000


def drawn(data: str, labels: int, seed: int) -> nk.Task:
    """Samples at the odd positions of the training file; kin have the even ones."""
    whole = nk.task(data, name=f"{data} {labels} {seed}")
    odd = torch.arange(1, len(whole.train), 2)
    train = odd[balanced_index(whole.train.labels()[odd], 10 * labels, seed)]
    test = balanced_index(whole.test.labels(), TEST, seed)
    return replace(whole, train=whole.train.chosen(train), test=whole.test.chosen(test), source="").rescaled()


def accuracy(data: str, labels: int, seed: int, contender: str, zoo: nk.Zoo) -> float | None:
    """Test accuracy of one contender with all the time; None if it could not be trained."""
    plan = Plan(budget=nk.Budget(cpu_minutes=SECONDS / 60), only=(contender,), seed=seed, join=False)
    try:
        return finish(solve.work(drawn(data, labels, seed), zoo, plan=plan, restart=True)).metric
    except nk.NearkinError:
        return None


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean accuracy by number of labels and contender, and the largest number where related networks are better."""
    means = {
        labels: {
            name: statistics.fmean(row[name] for row in rows if row["labels"] == labels and row[name] is not None)
            for name in CONTENDERS
        }
        for labels in LABELS
        if any(row["labels"] == labels for row in rows)
    }
    better = [labels for labels, by in means.items() if max(by["finetune"], by["transfer"]) > by["cnn"]]
    return {"means": means, "few_labels": max(better, default=0)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "nearkin-benchmark-solve")
    parser.add_argument("--offline", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    file = options.folder / "regime.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    done = {(row["data"], row["labels"], row["seed"]) for row in rows}
    with nk.Zoo(options.folder / "zoo") as zoo:
        for seed in () if options.offline else SEEDS:
            for labels in LABELS:
                for data in DATA:
                    if (data, labels, seed) in done:
                        continue
                    scores = {name: accuracy(data, labels, seed, name, zoo) for name in CONTENDERS}
                    rows.append({"data": data, "labels": labels, "seed": seed, **scores})
                    file.write_text(json.dumps(rows))
                    print(json.dumps(rows[-1]), flush=True)
    keep(__file__, {"seconds": SECONDS, "runs": rows, "summary": summary(rows)})
    print(json.dumps(summary(rows), indent=1))


if __name__ == "__main__":
    main()
