"""Speed of the command line (help, reading, listing), and of the training loop compared with a bare PyTorch loop.

    python benchmarks/house.py

Ratios are taken in one process on one thread, with the candidates in turn, by process time; the result is the median of
the rounds.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import nearkin as nk
from nearkin.nets.evaluate import evaluate
from nearkin.nets.training_loop import fit
from nearkin.store.catalogue import Catalogue
from nearkin.store.records import NewArtifact, NewTask
from nearkin.tasks.builtin import find_dataset
from results import keep, table

ROUNDS = 9
COMMAND = str(Path(sys.executable).parent / "nearkin")


def bare_loop(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, epochs: int, size: int, fused: bool) -> None:
    """The simplest training loop: Adam, cross entropy, shuffled slices of tensors in memory."""
    optimiser = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.0, fused=fused)
    for _ in range(epochs):
        for index in torch.randperm(len(x)).tensor_split(-(-len(x) // size)):
            optimiser.zero_grad()
            F.cross_entropy(model(x[index]), y[index]).backward()
            optimiser.step()


def process_seconds(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def loop_ratio(network: str, data: str, epochs: int) -> dict[str, float]:
    """Throughput of our loop divided by that of the bare one, without our evaluation on the test set."""
    task = nk.task(data)
    x, y = task.train.all()
    recipe = nk.Recipe(epochs=epochs, batch_size=64)
    times: dict[str, list[float]] = {"ours": [], "bare": [], "bare_fused": [], "evaluation": []}

    def fresh() -> torch.nn.Module:
        return nk.build(network, task.input_shape, task.num_outputs, 0).train()

    for _ in range(ROUNDS):
        times["bare"].append(process_seconds(lambda: bare_loop(fresh(), x, y, epochs, 64, fused=False)))
        times["ours"].append(process_seconds(lambda: fit(fresh(), task, recipe)))
        times["bare_fused"].append(process_seconds(lambda: bare_loop(fresh(), x, y, epochs, 64, fused=True)))
        times["evaluation"].append(process_seconds(lambda: evaluate(fresh(), task.test, task.form)))
    ratios = [b / (o - e) for o, b, e in zip(times["ours"], times["bare"], times["evaluation"], strict=True)]
    fused = [b / (o - e) for o, b, e in zip(times["ours"], times["bare_fused"], times["evaluation"], strict=True)]
    return {
        "throughput_ratio": round(statistics.median(ratios), 3),
        "throughput_ratio_to_fused": round(statistics.median(fused), 3),
        "seconds_ours": round(statistics.median(times["ours"]), 3),
    }


def help_seconds() -> float:
    """Wall time of `nearkin --help`: the smallest of several, to exclude other load."""

    def once() -> float:
        start = time.perf_counter()
        subprocess.run([COMMAND, "--help"], capture_output=True, check=True)
        return time.perf_counter() - start

    return round(min(once() for _ in range(7)), 3)


def lenet_on_digits() -> list[dict[str, float]]:
    """Wall time and test accuracy of the default recipe, three seeds."""
    task, rows = nk.task("digits"), []
    for seed in range(3):
        start = time.perf_counter()
        done = fit(nk.build("lenet", task.input_shape, 10, seed), task, seed=seed)
        rows.append({"seconds": round(time.perf_counter() - start, 2), "accuracy": round(done.scores.metric, 4)})
    return rows


def reading_mnist() -> float | None:
    """Seconds to read MNIST's 70,000 images from .gz into a task; None if the files are absent."""
    if find_dataset("mnist") is None:
        return None
    return round(min(process_seconds(lambda: nk.task("mnist")) for _ in range(3)), 3)


def listing(count: int = 10_000) -> dict[str, float]:
    """Seconds to list a zoo of `count` tasks: the catalogue alone, and the whole command."""
    with tempfile.TemporaryDirectory() as folder:
        facts = {"classes": [str(i) for i in range(10)], "guess": 0.1, "metric_name": "accuracy", "metric_std": 0.0}
        with Catalogue(folder) as catalogue:
            entries = [
                (
                    NewTask(
                        name=f"task-{i}",
                        network="lenet",
                        likelihood="categorical",
                        data=f"digits?split={i}",
                        num_classes=10,
                        input_shape=(1, 8, 8),
                        metric=0.97,
                        epsilon=0.03,
                        trials=3,
                        parameters=21386,
                        seconds=6.0,
                        seed=0,
                        fingerprint="0" * 16,
                        facts=facts,
                    ),
                    (),
                )
                for i in range(count)
            ]
            catalogue.admit(entries, lambda digest: b"")
            catalogue.add(
                NewTask(
                    name="last",
                    network="lenet",
                    likelihood="categorical",
                    data="digits",
                    num_classes=10,
                    input_shape=(1, 8, 8),
                    metric=0.97,
                    epsilon=0.03,
                    trials=1,
                    parameters=1,
                    seconds=1,
                    seed=0,
                    fingerprint="1" * 16,
                    facts=facts,
                ),
                [NewArtifact("weights", 0, b"w")],
            )

            def wall(work: Callable[[], Any]) -> float:
                start = time.perf_counter()
                work()
                return time.perf_counter() - start

            inside = min(wall(catalogue.tasks) for _ in range(5))
            words = [COMMAND, "--zoo", folder, "list"]
            plain = min(wall(lambda: subprocess.run(words, capture_output=True, check=True)) for _ in range(5))
            as_json = min(
                wall(lambda: subprocess.run([*words, "--json"], capture_output=True, check=True)) for _ in range(5)
            )
    return {"catalogue": round(inside, 3), "command": round(plain, 3), "command_json": round(as_json, 3)}


def main() -> None:
    torch.set_num_threads(1)
    loops = {
        f"{network} on digits": loop_ratio(network, "digits", epochs)
        for network, epochs in (("lenet", 4), ("mlp", 12), ("resnet18?width=0.25", 1))
    }
    figures = {
        "help_seconds": help_seconds(),
        "loop": loops,
        "lenet_on_digits": lenet_on_digits(),
        "read_mnist_seconds": reading_mnist(),
        "list_10000_tasks_seconds": listing(),
    }
    rows = [[name, str(row["throughput_ratio"]), str(row["throughput_ratio_to_fused"])] for name, row in loops.items()]
    print(table(["training loop", "throughput ÷ bare loop", "÷ bare loop, fused Adam"], rows))
    print({name: value for name, value in figures.items() if name != "loop"})
    print(f"kept in {keep(__file__, figures)}")


if __name__ == "__main__":
    main()
