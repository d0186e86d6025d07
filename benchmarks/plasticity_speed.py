"""Cost of weight plasticity: time of a pull ÷ time of a training step, and memory.

    python benchmarks/plasticity_speed.py [--rounds 9]

A training step is forward, backward and SGD with momentum; all its weights are shared. Process time of one thread,
median of rounds in which step and step with pull take turns. Memory is what `anchor` leaves behind plus what the first
pull adds, in copies of the shared weights. Figures go to `benchmarks/plasticity_speed.json` and
`docs/figures/plasticity-speed.md`.
"""

import argparse
import gc
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import nearkin as nk
from measure import process_seconds, ratios
from results import keep, table

PAGE = Path(__file__).parents[1] / "docs" / "figures" / "plasticity-speed.md"
TIMED = 0.25  # seconds of steps in one measurement
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "lenet, batch 64": (lambda: nk.build("lenet", (1, 28, 28), 10, seed=0), (1, 28, 28), 64),
    "resnet18, batch 32": (lambda: nk.build("resnet18", (3, 32, 32), 10, seed=0), (3, 32, 32), 32),
    "mlp of width 512, batch 64": (lambda: mlp(512), (784,), 64),
    "mlp of width 512, batch 512": (lambda: mlp(512), (784,), 512),
    "mlp of width 2048, batch 64": (lambda: mlp(2048), (784,), 64),
}


def mlp(width: int) -> nn.Module:
    hidden = (nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    return nn.Sequential(*hidden, nn.Linear(width, 10))


def cost(build: Callable[[], nn.Module], shape: tuple[int, ...], batch: int, rounds: int) -> dict[str, Any]:
    """Ratios of time, and memory in copies of the shared weights."""
    torch.manual_seed(0)
    net, x, y = build(), torch.randn(batch, *shape), torch.randint(10, (batch,))
    optimiser = torch.optim.SGD(net.parameters(), 1e-3, momentum=0.9)
    plasticity = nk.WeightPlasticity(net.named_parameters())
    weights = sum(value.numel() for value in net.parameters())

    def step() -> None:
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()

    def steps() -> None:
        for _ in range(repeats):
            step()

    def pulled_steps() -> None:
        for _ in range(repeats):
            step()
            plasticity.pull(1e-3)

    def changing_steps() -> None:
        for number in range(repeats):
            step()
            plasticity.pull(1e-3 + 1e-6 * (number % 2 + 1))

    step()
    repeats = math.ceil(TIMED / process_seconds(step))
    before = tensor_bytes()
    plasticity.anchor(net, x, y)
    plasticity.pull(1e-3)
    copies = (tensor_bytes() - before) / (4 * weights)
    measured = ratios(steps, {"ratio": pulled_steps, "changing": changing_steps}, rounds)
    measured["step_seconds"] = round(measured.pop("plain_seconds") / repeats, 5)
    return {"weights": weights, **measured, "copies": round(copies, 3)}


def tensor_bytes() -> int:
    """Bytes of all tensors that exist, each storage counted once."""
    gc.collect()
    storages = {}
    for value in gc.get_objects():
        if type(value) in (torch.Tensor, nn.Parameter):
            storage = value.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def page(figures: dict[str, Any]) -> str:
    """The whole page, without the summary that `docs/summaries.py` adds."""
    rows = [
        [name, f"{row['weights']:,}", f"{1e3 * row['step_seconds']:.1f}", f"{row['ratio']:.3f}",
         f"{row['changing']:.3f}", f"{row['copies']:.2f}"]
        for name, row in figures["networks"].items()
    ]  # fmt: skip
    head = ["network", "weights", "step, ms", "with pull", "with pull, rate changes", "memory, copies"]
    return f"""# Cost of the pull

Made by `python benchmarks/plasticity_speed.py`; process time of one thread, median of {figures["rounds"]} rounds in
which training steps without and with pull take turns. A step is forward, backward and SGD with momentum; all weights
are shared. *With pull*: time of a step with pull ÷ time of a step. *Rate changes*: every step has another learning
rate, so that nothing computed for the step before can be used. *Memory*: what `anchor` and the first pull add, in
copies of the shared weights. Anchor and importance are two; the rest is working memory, at most 4 MB.

{table(head, rows)}
"""


def main() -> None:
    """Measure all networks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    figures = {name: cost(*how, rounds) for name, how in NETWORKS.items()}
    result = {"rounds": rounds, "networks": figures}
    keep(__file__, result)
    PAGE.write_text(page(result))
    print(PAGE.read_text())


if __name__ == "__main__":
    main()
