"""Cost of closed-form transfer of classes, compared with fine-tuning the same network and with another library.

    python benchmarks/transfer_speed.py [--rounds 3] [--page]

1,000 digits of ten classes through a LeNet's tangent kernel: fit, with everything chosen, and probabilities of 1,000
points. A ratio is process time ÷ that of 100 epochs of fine-tuning all weights of the same network on the same labels,
which is run before and after each; one thread, median of the rounds. Memory is what a new process needs beyond its
start, on Linux. The other library, laplace-torch's last layer (post hoc, full covariance, prior by evidence), is
measured if it is installed. Figures go to `benchmarks/transfer_speed.json`, the table to
`docs/figures/transfer-speed.md`.
"""

import argparse
import copy
import json
import warnings
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import nearkin as nk
from measure import apart, ratios
from nearkin.core.events import finish
from nearkin.nets.recipe import Recipe
from nearkin.nets.registry import build
from nearkin.nets.training_loop import fit
from nearkin.transfer.closed_form import fit_classes
from nearkin.transfer.labels.classes import Classes
from nearkin.transfer.linearized import linearize
from results import keep, table

PAGE = Path(__file__).parents[1] / "docs" / "figures" / "transfer-speed.md"
POINTS, CLASSES, EPOCHS = 1000, 10, 100
MOST = 2048  # MiB
WAYS = {
    "dirichlet, mean": {},
    "dirichlet, sampled": {"how": "sampled"},
    "laplace, mean": {"method": "laplace"},
    "dirichlet, mean, head alone": {"weights": "head"},
}
PEER = "laplace-torch, last layer"


@cache
def points() -> tuple[Tensor, Tensor, Tensor]:
    """Training inputs with labels, and inputs to predict; digits has fewer than 2,000 samples, so some are both."""
    digits = nk.task("digits")
    parts = [torch.cat(pair) for pair in zip(digits.train.all(), digits.test.all(), strict=True)]
    x, y = parts[0], parts[1]
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    return x[:POINTS], y[:POINTS], x[-POINTS:]


@cache
def network() -> nn.Module:
    """A LeNet that was trained on these classes for five epochs, as the other library needs."""
    x, y, _ = points()
    model = build("lenet", x.shape[1:], CLASSES, seed=0)
    fit(model, nk.Task.from_arrays("digits", x, y, standardise=False), Recipe(epochs=5))
    return model.eval()


def finetune() -> None:
    x, y, new = points()
    model = copy.deepcopy(network()).train()
    fit(model, nk.Task.from_arrays("digits", x, y, x[:2], y[:2], standardise=False), Recipe(epochs=EPOCHS))
    with torch.no_grad():
        model(new).softmax(1)


def closed(weights: str = "all", **options: Any) -> None:
    x, y, new = points()
    flat = linearize(network(), weights, x=x[:1], dtype=None)  # as nearkin transfer does
    finish(fit_classes.work(flat, x, y, CLASSES, Classes(**options))).probabilities(new)


def peer() -> None:
    from laplace import Laplace

    x, y, new = points()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        approximation = Laplace(
            copy.deepcopy(network()), "classification", subset_of_weights="last_layer", hessian_structure="full"
        )
        approximation.fit(DataLoader(TensorDataset(x, y), batch_size=256))
        approximation.optimize_prior_precision()
        approximation(new)


def remembered(name: str) -> dict[str, Any]:
    """Run one method; called in its own process."""
    candidates()[name]()
    return {}


def idle() -> dict[str, Any]:
    """Only the data and the network, to subtract their cost from the others."""
    points(), network()
    return {}


def candidates() -> dict[str, Callable[[], None]]:
    methods: dict[str, Callable[[], None]] = {
        name: lambda options=options: closed(**options) for name, options in WAYS.items()
    }
    return {**methods, PEER: peer} if find_spec("laplace") else methods


def page(figures: dict[str, Any]) -> str:
    rows = [[name, f"{row['ratio']:.2f}", f"{row['mebibytes']:,}"] for name, row in figures["ways"].items()]
    most = max(row["mebibytes"] for name, row in figures["ways"].items() if name != PEER)
    rounds = "one round" if figures["rounds"] == 1 else f"median of {figures['rounds']} rounds"
    missing = "" if PEER in figures["ways"] else "\nlaplace-torch was not installed.\n"
    return f"""<!-- written by benchmarks/transfer_speed.py -->
# Cost of closed-form transfer

Made by `python benchmarks/transfer_speed.py`. {figures["points"]:,} digits of {figures["classes"]} classes through a
LeNet's tangent kernel: fit, with α, scale and temperature chosen, and probabilities of {figures["points"]:,} points;
compared with {figures["epochs"]} epochs of fine-tuning all weights of the same network on the same labels, which took
{figures["finetune_seconds"]:.1f} s of process time. One thread, {rounds}. Memory is what a
separate process needs in addition to data and network.

{table(["way", f"process time ÷ {figures['epochs']} epochs", "MiB"], rows)}
{missing}
The goal is less than {MOST:,} MiB; the closed forms need {most:,} MiB at the most.
"""


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--page", action="store_true", help="write the page alone, from the figures that are there")
    arguments = parser.parse_args()
    file = Path(__file__).with_suffix(".json")
    if not arguments.page:
        network()
        shared = candidates()
        taken = ratios(finetune, shared, arguments.rounds)
        start = apart(idle)["mebibytes"]
        ways = {name: {"ratio": taken[name], "mebibytes": apart(remembered, name)["mebibytes"]} for name in shared}
        keep(__file__, {
            "points": POINTS, "classes": CLASSES, "epochs": EPOCHS, "rounds": arguments.rounds,
            "finetune_seconds": taken["plain_seconds"], "data_and_network_mebibytes": start, "ways": ways,
        })  # fmt: skip
    PAGE.write_text(page(json.loads(file.read_text())))
    print(PAGE.read_text())


if __name__ == "__main__":
    main()
