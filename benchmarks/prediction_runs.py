"""Truths of the questions `final` and `speed`: targets, sources and fine-tuning runs.

42 targets: the 24 tasks of `prediction_tasks`, six of CIFAR-100, from which there is no source, and twelve of the data
sets of `prediction_new_data`. Those twelve are held out: nothing was chosen on them. A target has 300 or 100 labels,
by turns. A source learned from at most 200, 2,000 or 20,000 samples, by turns, as a zoo has networks of different
quality.

Every source is fine-tuned on every target for 300 steps: heads of zeros, drawn and scaled; Adam at 1e-3 and SGD with a
momentum of 0.9 at 0.01; batches of 32; without a schedule, so that step 60 of a run is the end of a run of 60 steps.
The runs from drawn and scaled heads are made a second time, with another order of batches, another head and other
held-out samples. What a user could do instead of a measure is made too: the same runs on two thirds of the target's own
labels, judged on the others, three times.

This is the second form of the benchmark. The first one had sources of 2,000 samples, targets of 300 labels of which
those of Fashion-MNIST and CIFAR-100 were held out, and 300 held-out samples. After its results were seen, the sources
were made more different, the truths more exact, all its targets were moved to the choice, and new held-out ones made.
"""

import functools
import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

import nearkin as nk
from nearkin.core.rng import Streams
from nearkin.tasks.derive import limited
from prediction_score import Array
from prediction_tasks import NAMES, SHAPE, Name, Parts, pools
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
LETTERS = (
    "classes=A,B,C,D,E,F,G,H,I,J",
    "classes=k,l,m,n,o,p,q,r,s,t",
    "classes=0,1,2,3,4,5,6,7,8,9",
    "classes=C,D,G,O,Q",
    "classes=a,b,d,e,g",
    "detect=A,E,I,O,U,a,e,i,o,u&balance",
    "detect=0,1,2,3,4,5,6,7,8,9&balance",
    "classes=B,E,F,H,K,M,N,P,R,U,V,W&merge=U+V+W,M+N+H,E+F+B,P+R+K",
)
PIECES = (
    "classes=aqua,blinds,dune,freshflower,garden,greenmeadow,ladybird,raindrops,storm,twowings",
    "classes=dune,greenmeadow,storm,wood,yellowflower",
    "detect=blinds,freshflower,ladybird&balance",
    "merge=aqua+raindrops,freshflower+yellowflower,garden+greenmeadow,ladybird+twowings",
)
HELD_OUT_TARGETS = (*(Name("letters", question) for question in LETTERS), *(Name("photos", one) for one in PIECES))
TARGETS = (*NAMES, *NEW, *HELD_OUT_TARGETS)
HELD_OUT_DATA = ("letters", "photos")
LABELS, SOURCE_SAMPLES = (300, 100), (200, 2_000, 20_000)  # by turns
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
SPEED_RUN = "zero, adam"
HELD_OUT, SECOND_HELD_OUT = 1_000, 4_000
SOURCES = {
    "mlp": tuple(range(len(NAMES))),
    "conv": tuple(row for row in range(len(NAMES)) if row % 3 != 2),  # four of each data set, to save time
}
FOLDS = 3
START = len(TARGETS)  # row of the network at its initialisation


def turn(target: int) -> int:
    """A number that changes from question to question, and begins at another one for each data set."""
    return target + target // 6


@functools.cache
def target_data(target: int) -> Parts:
    """Samples of a target."""
    pool = pools(TARGETS[target])
    train = limited(pool["target"], LABELS[turn(target) % len(LABELS)], seed=SEED)
    source = limited(pool["source"], SOURCE_SAMPLES[turn(target) % len(SOURCE_SAMPLES)], seed=SEED)
    held_out = train.test.chosen(_held_out_order(target)[:HELD_OUT])
    x, xs, xt = (tuple(examples.all()) for examples in (held_out, source.train, train.train))
    return Parts(train.num_outputs, xs, xt, x)


@functools.cache
def second_data(target: int) -> Parts:
    """Samples of a target for its second runs: other held-out ones, or the whole test set if few others are left."""
    order = _held_out_order(target)
    others = order[HELD_OUT : HELD_OUT + SECOND_HELD_OUT]
    chosen = pools(TARGETS[target])["target"].test.chosen(others if len(others) >= HELD_OUT else order)
    return replace(target_data(target), held_out=tuple(chosen.all()))


def _held_out_order(target: int) -> Tensor:
    test = pools(TARGETS[target])["target"].test
    return torch.randperm(len(test), generator=Streams(0).at("held out"))


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


def folded(cache: Path, network: str, target: int, name: str) -> dict[str, Tensor]:
    """Loss and accuracy `[S, grid]` by cross-validation on the target's own labels, and process seconds for a source.

    A run from a head of zeros ends after 60 steps, all others have the grid `ENDS`.
    """

    def compute() -> dict[str, Tensor]:
        start = time.process_time()
        stack, rows, data = networks(cache, network), rows_of(network, target), target_data(target)
        some = Stack(stack.module, *({k: v[rows] for k, v in d.items()} for d in (stack.params, stack.buffers)))
        run = replace(RUNS[name], grid=ENDS if name in ORDINARY else GRID[: GRID.index(ENDS[0]) + 1])
        x, y = data.target
        order = torch.randperm(len(x), generator=Streams(SEED).at("folds", target))
        results = []
        for fold in range(FOLDS):
            judge = order[fold::FOLDS]
            learn = torch.cat([order[other::FOLDS] for other in range(FOLDS) if other != fold])
            part = replace(data, target=(x[learn], y[learn]), held_out=(x[judge], y[judge]))
            scores = fine_tuned(some, part, SEED, FOLDS + fold, target, run)
            results.append({score: scores[score] * len(judge) / len(x) for score in ("loss", "accuracy")})
        seconds = (time.process_time() - start) / len(rows)
        return {k: torch.stack([one[k] for one in results]).sum(0) for k in results[0]} | {
            "seconds": torch.tensor(seconds)
        }

    return kept(cache / "questions" / "folds" / name.replace(", ", "-") / f"{network}-{target}.pt", compute)


def references(cache: Path, network: str, target: int) -> dict[str, tuple[Array, float]]:
    """What a user could do instead of a measure: values `[S]` and process seconds for a source.

    `60 steps` is the run of `speed` itself, with all labels: its training loss, since it leaves none to judge it.
    """
    folds = [folded(cache, network, target, name) for name in ORDINARY]
    speed, run = folded(cache, network, target, SPEED_RUN), curves(cache, network, target, SPEED_RUN, 0)
    seconds, short = float(sum(fold["seconds"] for fold in folds)), float(speed["seconds"])
    steps = torch.tensor(GRID[: speed["loss"].shape[1]], dtype=torch.float64)
    area = torch.trapezoid(speed["loss"].double(), steps, dim=1) / steps[-1]
    training = run["training"][:-1, : ENDS[0]].double().mean(1)
    values = {
        "3 folds, error": (torch.stack([1 - fold["accuracy"].double() for fold in folds]).mean((0, 2)), seconds),
        "3 folds, loss": (torch.stack([fold["loss"].double() for fold in folds]).mean((0, 2)), seconds),
        "3 folds, area": (area, short),
        "60 steps, training loss": (training, short / FOLDS),
        "60 steps and 3 folds, loss": (training + area, short + short / FOLDS),
    }
    return {name: (value.numpy(), cost) for name, (value, cost) in values.items()}


REFERENCES = {
    "final": ("3 folds, error", "3 folds, loss"),
    "speed": ("3 folds, area", "60 steps, training loss", "60 steps and 3 folds, loss"),
}
"""Names of `references` that answer each question."""


def all_runs() -> Iterator[tuple[int, int, str, str]]:
    """Replica, target, network and run of all truths; all first replicas come before the second ones."""
    for replica, names in enumerate((tuple(RUNS), ORDINARY)):
        for target in range(len(TARGETS)):
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
    for target, network, name in itertools.product(range(len(TARGETS)), NETWORKS, (*ORDINARY, SPEED_RUN)):
        folded(cache, network, target, name)
