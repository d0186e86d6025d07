"""Speed of one training in two processes against one: steps of a convolutional network with 32, 64 and 128 channels.

    python benchmarks/data_parallel.py

Wall time of the steps, without the start of the processes; one thread in each process, gloo between them.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.nets.data_parallel import DataParallel
from nearkin.nets.recipe import Recipe
from nearkin.nets.training_loop import fit
from nearkin.tasks.task import Task
from results import keep

STEPS, BATCH, ROUNDS = 200, 256, 3
PAGE = Path(__file__).parents[1] / "docs" / "figures" / "data-parallel.md"


class Network(nn.Sequential):
    """Three convolutions with strides and a linear layer, for images `[B, 3, 32, 32]`."""

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        for before, after in ((3, 32), (32, 64), (64, 128)):
            layers += [nn.Conv2d(before, after, 3, 2, 1), nn.ReLU()]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def images() -> Task:
    """Random images with random labels: only the time matters."""
    rng = torch.Generator().manual_seed(0)
    x: Tensor = torch.rand(4 * BATCH, 3, 32, 32, generator=rng)
    y = torch.arange(4 * BATCH) % 10
    return Task.from_arrays("random images", x, y, x[:20], y[:20])


def train(out: Path) -> None:
    """One training, in this process or in those of torchrun; the first one writes its seconds."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    parallel = DataParallel.join()
    done = fit(Network(), images(), Recipe(steps=STEPS, batch_size=BATCH), parallel=parallel)
    if parallel.first:
        out.write_text(json.dumps({"seconds": done.seconds, "losses": done.history.losses.tolist()}))
    parallel.leave()


def measured(processes: int, folder: Path) -> dict[str, Any]:
    out = folder / "figures.json"
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *launch, __file__, str(out)]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    figures: dict[str, Any] = json.loads(out.read_text())
    return figures


def page(figures: dict[str, Any]) -> str:
    one, two = figures["seconds"]["1"], figures["seconds"]["2"]
    differences = ", ".join(f"{value:.0e} at step {step}" for step, value in figures["difference"].items())
    loads = ", ".join(f"{load:.1f}" for load in figures["loads"])
    return f"""# Training in two processes

Made by `python benchmarks/data_parallel.py`: {STEPS} steps of a convolutional network with 32, 64 and 128 channels on
random images of 3×32×32, batches of {BATCH}, on a machine with {figures["cores"]} cores. Each process has one thread.
Seconds are those of the steps; rounds in which one and two processes take turns: {ROUNDS} (medians). The load before
each round, the number of processes that wanted a core, was {loads}. If it is above the number of cores, the
machine was shared, and two processes get twice the processor time of one: the ratio then says little about an idle
machine.

| processes | seconds | steps in a second |
| --- | --- | --- |
| 1 | {one:.1f} | {STEPS / one:.1f} |
| 2 | {two:.1f} | {STEPS / two:.1f} |

Two processes are {one / two:.2f} times as fast as one. Their losses differ by {differences}: in float32
the rounding of the first steps grows with the number of steps. In float64 the tests find equal weights within 1e-10.
"""


def main() -> None:
    seconds: dict[str, list[float]] = {"1": [], "2": []}
    losses, loads = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            loads.append(round(os.getloadavg()[0], 2))
            for processes in (1, 2):
                figures = measured(processes, Path(folder))
                seconds[str(processes)].append(figures["seconds"])
                losses[processes] = figures["losses"]
            print({name: round(values[-1], 2) for name, values in seconds.items()}, loads[-1], flush=True)
    medians = {name: round(statistics.median(values), 2) for name, values in seconds.items()}
    result = {
        "steps": STEPS, "batch": BATCH, "rounds": ROUNDS, "cores": os.cpu_count(), "loads": loads, "seconds": medians,
        "all_seconds": {name: [round(value, 2) for value in values] for name, values in seconds.items()},
        "speedup": round(medians["1"] / medians["2"], 2), 
        "difference": {str(step): abs(losses[1][step - 1] - losses[2][step - 1]) for step in (1, 20, STEPS)},
    }  # fmt: skip
    keep(__file__, result)
    PAGE.write_text(page(result))
    print(result)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(Path(sys.argv[1]))
    else:
        main()
