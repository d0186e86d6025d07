"""Two models that share layers: how much A forgets while B is trained, with and without weight plasticity.

    python benchmarks/forgetting.py [--page]

A is an MLP with four layers and B one with six, on 2,400 images of MNIST. B uses the first layers of A, or all of them
(then two private layers lie between A's third and last layer). A is trained to convergence, or stopped at 80, 55, 43
or 38 % of the accuracy of convergence. Then B is trained, and the test accuracy of A is measured every 25 steps. `L2`
pulls all shared weights to the anchor with the same strength: its importance is 1, the mean of that of plasticity.
Needs MNIST in `$NEARKIN_DATA`. Figures go to `benchmarks/forgetting.json`, page and plot to `docs/figures/`.
"""

import argparse
import copy
import json
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import nearkin as nk
from forgetting_page import write
from nearkin.core.types import Params
from results import keep

SEEDS = range(5)  # settings were chosen on seeds 100 to 102
WIDTH, BATCH, STEPS, EVERY = 200, 128, 400, 25
RATE, MOMENTUM = 0.1, 0.9
LEVELS = (1.0, 0.8, 0.55, 0.43, 0.38)
WAYS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "plasticity": {},
    "L2": {"importance": "uniform"},
}


@dataclass(frozen=True)
class Case:
    """Number of A's layers that B shares, and the share of the converged accuracy at which A is stopped."""

    shared: int
    level: float = 1.0


CASES = (*(Case(shared) for shared in (1, 2, 3, 4)), *(Case(4, level) for level in LEVELS[1:]))


@cache
def images() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training, validation and test images `[N, 784]` in [0, 1] with labels: 2,400, 600 and 2,000."""
    task = nk.task("mnist?limit=3000", name="mnist")
    (x, y), (x_test, y_test) = task.train.all(), task.test.all()
    low, high = x.min(), x.max()
    x, x_test = ((images.flatten(1) - low) / (high - low) for images in (x, x_test))
    return (x[600:], y[600:]), (x[:600], y[:600]), (x_test[:2000], y_test[:2000])


def layers(seed: int, shared: int) -> tuple[nn.Sequential, nn.Sequential, dict[str, Tensor]]:
    """Models A and B, and the shared parameters."""
    torch.manual_seed(seed)
    sizes = [784, WIDTH, WIDTH, WIDTH]
    a = [nn.Linear(sizes[k], WIDTH if k < 3 else 10) for k in range(4)]
    first = [a[k] if k < shared else nn.Linear(sizes[k], WIDTH) for k in range(3)]
    last = a[3] if shared == 4 else nn.Linear(WIDTH, 10)
    b = [*first, nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), last]
    parameters = {f"{k}.{n}": p for k in range(shared) for n, p in a[k].named_parameters()}
    return chain(a), chain(b), parameters


def chain(linear: list[nn.Linear]) -> nn.Sequential:
    return nn.Sequential(*(part for layer in linear[:-1] for part in (layer, nn.ReLU())), linear[-1])


@torch.no_grad()
def accuracy(model: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    return float((model(data[0]).argmax(1) == data[1]).double().mean())


def train(
    model: nn.Module, steps: int, rng: torch.Generator, pulled: nk.WeightPlasticity | None = None, after: Any = None
) -> None:
    """SGD with momentum; `after(step)` is called after each step and stops the training if it returns true."""
    (x, y), _, _ = images()
    optimiser = torch.optim.SGD(model.parameters(), RATE, momentum=MOMENTUM)
    for step in range(1, steps + 1):
        rows = torch.randint(len(x), (BATCH,), generator=rng)
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimiser.step()
        if pulled is not None:
            pulled.pull(RATE)
        if after is not None and after(step):
            return


def trained(seed: int) -> dict[float, Params]:
    """Weights of A at convergence, and where it first reaches each lower level of its converged accuracy."""
    _, validation, _ = images()
    a, _, _ = layers(seed, 4)
    start = copy.deepcopy(a.state_dict())
    train(a, STEPS, torch.Generator().manual_seed(seed))
    weights, converged = {1.0: copy.deepcopy(a.state_dict())}, accuracy(a, validation)
    a.load_state_dict(start)

    def watch(_: int) -> bool:
        now = accuracy(a, validation)
        weights.update({k: copy.deepcopy(a.state_dict()) for k in LEVELS if k not in weights and now >= k * converged})
        return len(weights) == len(LEVELS)

    train(a, STEPS, torch.Generator().manual_seed(seed), after=watch)
    return weights


def run(seed: int, case: Case, weights: Params) -> dict[str, Any]:
    """Train B once for each way, beside an A with given weights; accuracies on test images."""
    _, validation, test = images()
    row: dict[str, Any] = {"seed": seed, "shared": case.shared, "level": case.level, "ways": {}}
    for name, options in WAYS.items():
        a, b, shared = layers(seed, case.shared)
        a.load_state_dict(weights)  # B gets the shared ones
        row["a"], plasticity = accuracy(a, test), None
        if options is not None:
            plasticity = nk.WeightPlasticity(shared, **options)
            plasticity.anchor(a, *validation)
        curve: list[float] = []

        def watch(step: int, a: nn.Module = a, curve: list[float] = curve) -> bool:
            if step % EVERY == 0:
                curve.append(round(accuracy(a, test), 4))
            return False

        train(b, STEPS, torch.Generator().manual_seed(seed + 1000), plasticity, watch)
        row["ways"][name] = {"a": curve, "b": round(accuracy(b, test), 4)}
    return row


def main() -> None:
    """Run all cases, and write the figures and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="write the page alone, from the figures that are there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if not arguments.page:
        begun, rows = time.process_time(), []
        for seed in SEEDS:
            weights = trained(seed)
            rows += [run(seed, case, weights[case.level]) for case in CASES]
            print(f"seed {seed}: {time.process_time() - begun:.0f} s", file=sys.stderr, flush=True)
        recipe = {
            "images": 2400, "width": WIDTH, "batch": BATCH, "steps": STEPS, "every": EVERY, "rate": RATE,
            "momentum": MOMENTUM,
        }  # fmt: skip
        seconds = round(time.process_time() - begun)
        keep(__file__, {"recipe": recipe, "ways": WAYS, "cpu_seconds": seconds, "rows": rows})
    write(json.loads(Path(__file__).with_suffix(".json").read_text()))


if __name__ == "__main__":
    main()
