"""Cost of weight plasticity: time of a pull ÷ time of a training step, and memory.

    python benchmarks/plasticity_speed.py [--rounds 7]

A training step is forward, backward and SGD with momentum; all its weights are shared. Process time of one thread,
median of rounds in which step and step with pull take turns. Memory is what `anchor` leaves behind plus what the first
pull adds, in copies of the shared weights. Figures go to `benchmarks/plasticity_speed.json`.
"""

import argparse
import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import nearkin as nk
from measure import ratios
from results import keep

NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "lenet, batch 64": (lambda: nk.build("lenet", (1, 28, 28), 10, seed=0), (1, 28, 28), 64),
    "resnet18, batch 32": (lambda: nk.build("resnet18", (3, 32, 32), 10, seed=0), (3, 32, 32), 32),
    "mlp of width 512, batch 64": (lambda: mlp(512), (784,), 64),
    "mlp of width 512, batch 512": (lambda: mlp(512), (784,), 512),
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
    repeats = max(1, 200_000 // weights) * 5 if weights < 5_000_000 else 1

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

    step()
    before = tensor_bytes()
    plasticity.anchor(net, x, y)
    plasticity.pull(1e-3)
    copies = (tensor_bytes() - before) / (4 * weights)
    measured = ratios(steps, {"with pull": pulled_steps}, rounds)
    seconds = measured["plain_seconds"] / repeats
    return {"weights": weights, "step_seconds": seconds, "ratio": measured["with pull"], "copies": round(copies, 3)}


def tensor_bytes() -> int:
    """Bytes of all tensors that exist, each storage counted once."""
    gc.collect()
    storages = {}
    for value in gc.get_objects():
        if type(value) in (torch.Tensor, nn.Parameter):
            storage = value.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def main() -> None:
    """Measure all networks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    figures = {name: cost(*how, rounds) for name, how in NETWORKS.items()}
    keep(__file__, {"rounds": rounds, "networks": figures})
    for name, row in figures.items():
        print(f"{name}: {row['ratio']:.3f} of a step, {row['copies']:.2f} copies of {row['weights']:,} weights")


if __name__ == "__main__":
    main()
