"""Truths of the questions `final` and `speed`: targets, sources and fine-tuning runs.

30 targets: the 24 tasks of `prediction_tasks` and six of CIFAR-100, a data set from which there is no source. Rule of
the held-out third, fixed before anything was measured: all targets of the data sets in `HELD_OUT_DATA`. They are never
used for a choice.

Every source is fine-tuned on every target for 300 steps: heads of zeros, drawn and scaled; Adam at 1e-3 and SGD with a
momentum of 0.9 at 0.01; batches of 32 of 300 samples; without a schedule, so that step 60 of a run is the end of a run
of 60 steps. The runs from drawn and scaled heads are made a second time, with another order of batches, another head
and other held-out samples: `SECOND_HELD_OUT` where the test set has them.
"""

import functools
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

import nearkin as nk
from nearkin.core.rng import Streams
from prediction_tasks import HELD_OUT, NAMES, SHAPE, Name, Parts, parts, pools
from prediction_truth import WIDEST, Run, Stack, fine_tuned, kept, trained_sources

SEED = 0
NEW = tuple(
    Name("cifar100", question)
    for question in (
        "classes=fish,flowers,insects,people,trees",
        "classes=vehicles_1,vehicles_2,household_furniture,household_electrical_devices,food_containers",
        "detect=people&balance",
        "detect=aquatic_mammals,large_carnivores,large_omnivores_and_herbivores,medium_mammals,small_mammals&balance",
        "classes=reptiles,insects,non-insect_invertebrates,fish",
        "classes=large_natural_outdoor_scenes,large_man-made_outdoor_things,trees",
    )
)
TARGETS = (*NAMES, *NEW)
HELD_OUT_DATA = ("fashion", "cifar100")
GRID = (0, 3, 8, 15, 25, 40, 60, 100, 150, 200, 250, 300)
ENDS = (60, 300)
RATES = {"adam": 1e-3, "sgd": 0.01}
HEADS = ("zero", "drawn", "scaled")
RUNS = {
    f"{head}, {optimiser}": Run(grid=GRID, rate=rate, head=head, optimiser=optimiser)
    for head in HEADS
    for optimiser, rate in RATES.items()
}


class StridedCNN(nn.Module):
    """Two 3x3 convolutions of stride 2 with 8 and 16 channels, a hidden layer of 64 units and a linear head."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__()
        size = -(-input_shape[1] // 4) * -(-input_shape[2] // 4)
        self.body = nn.Sequential(
            nn.Conv2d(input_shape[0], 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Flatten(),
            nn.Linear(16 * size, 64), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(64, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W]` to `[N, K]`."""
        outputs: Tensor = self.head(self.body(x))
        return outputs


NETWORKS = {"mlp": "mlp?hidden=128-64", "conv": f"{__name__}:StridedCNN"}
nk.trust(NETWORKS["conv"])

ORDINARY = tuple(f"{head}, {optimiser}" for head in ("drawn", "scaled") for optimiser in RATES)
SECOND_HELD_OUT = 2_000
SECOND_TARGETS = [6 * data + question for question in range(6) for data in range(len(TARGETS) // 6)]
SOURCES = {
    "mlp": tuple(range(len(NAMES))),
    "conv": tuple(row for row in range(len(NAMES)) if row % 3 != 2),  # four of each data set, to save time
}
START = len(TARGETS)  # row of the network at its initialisation


@functools.cache
def target_data(target: int) -> Parts:
    """Samples of a target."""
    return parts(TARGETS[target], SEED)


@functools.cache
def second_data(target: int) -> Parts:
    """Samples of a target for its second runs: other held-out ones, or the whole test set if few others are left."""
    name = TARGETS[target]
    test = pools(name)["target"].test
    order = torch.randperm(len(test), generator=Streams(0).at("held out"))
    others = order[HELD_OUT : HELD_OUT + SECOND_HELD_OUT]
    return replace(target_data(target), held_out=tuple(test.chosen(others if len(others) >= HELD_OUT else order).all()))


@functools.cache
def networks(cache: Path, network: str) -> Stack:
    """Networks of all targets, trained from the same initial weights; the initial network is the last row."""

    def compute() -> dict[str, Tensor]:
        stack = trained_sources(NETWORKS[network], SEED, [target_data(target) for target in range(len(TARGETS))])
        return {**stack.params, **stack.buffers}

    tensors = kept(cache / "questions" / f"networks-{network}.pt", compute)
    module = nk.build(NETWORKS[network], SHAPE, WIDEST, SEED)
    params = {name: tensors[name] for name, _ in module.named_parameters()}
    return Stack(module, params, {name: tensors[name] for name, _ in module.named_buffers()})


def rows_of(network: str, target: int) -> list[int]:
    """Rows of the sources of a target: all but its own network."""
    return [row for row in SOURCES[network] if row != target]


def curves(cache: Path, network: str, target: int, name: str, replica: int) -> dict[str, Tensor]:
    """Held-out loss and accuracy of all sources of a target; the last row starts from scratch.

    They are `[S + 1, len(GRID)]` in the first replica, `[S + 1, len(ENDS)]` in the second one.
    """

    def compute() -> dict[str, Tensor]:
        stack, rows = networks(cache, network), [*rows_of(network, target), START]
        some = Stack(stack.module, *({k: v[rows] for k, v in d.items()} for d in (stack.params, stack.buffers)))
        run = RUNS[name] if replica == 0 else replace(RUNS[name], grid=ENDS)
        data = second_data(target) if replica else target_data(target)
        return fine_tuned(some, data, SEED, replica, target, run)

    return kept(cache / "questions" / name.replace(", ", "-") / f"{network}-{target}-{replica}.pt", compute)


def all_runs() -> Iterator[tuple[int, int, str, str]]:
    """Replica, target, network and run of all truths; all first replicas come before the second ones."""
    for replica, (names, targets) in enumerate(((tuple(RUNS), range(len(TARGETS))), (ORDINARY, SECOND_TARGETS))):
        for target in targets:
            for network in NETWORKS:
                for name in names:
                    yield replica, target, network, name


def make_runs(cache: Path) -> None:
    """Compute all truths that the cache does not have."""
    start = time.time()
    for number, (replica, target, network, name) in enumerate(all_runs(), 1):
        curves(cache, network, target, name, replica)
        if number % 60 == 0:
            print(f"{number} runs, {time.time() - start:.0f} s: {TARGETS[target]}", flush=True)
