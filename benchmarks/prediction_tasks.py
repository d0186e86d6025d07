"""Tasks, networks and data splits of the prediction benchmark.

Every data set is split once: sources learn from some of its training samples, targets from the others, and held-out
samples come from its test set. So no source was trained on a sample of its target, even if they share classes.
"""

from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor, nn

import nearkin as nk
from nearkin.core.rng import Streams
from nearkin.tasks import derive
from nearkin.tasks.datastring import DataString
from nearkin.tasks.sources import MODIFIERS
from nearkin.tasks.sources import task as read
from nearkin.tasks.task import Task
from prediction_new_data import NEW_DATA

SHAPE = (1, 14, 14)
NETWORKS = {"mlp": "mlp?hidden=128-64", "lenet": "lenet", "cnn": f"{__name__}:SmallCNN"}
nk.trust(NETWORKS["cnn"])
SEEDS = (0, 1)
SOURCE_SAMPLES = 2_000
TARGET_SAMPLES = 300
HELD_OUT = 300
TARGET_SHARE = 0.3  # of a training set; digits has 1,438 samples in all

DATA = {
    "digits": "digits?size=14",
    "mnist": "mnist?size=14",
    "fashion": "fashion?size=14",
    "cifar10": "cifar10?size=14&grey",
    "cifar100": "cifar100?labels=coarse&size=14&grey",  # of `reachability.py` only
}
QUESTIONS = {
    "digits": (
        "",
        "classes=0,1,2,3,4",
        "classes=5,6,7,8,9",
        "parity",
        "detect=0,6,8,9&balance",
        "classes=1,4,7&rest=other",
    ),
    "mnist": (
        "",
        "classes=0,1,2,3,4",
        "classes=5,6,7,8,9",
        "parity",
        "detect=3,5,8&balance",
        "merge=1+7,4+9,3+5+8,0+6+2",
    ),
    "fashion": (
        "",
        "classes=t-shirt,pullover,dress,coat,shirt",
        "classes=trouser,sandal,sneaker,bag,boot",
        "parity",
        "detect=sandal,sneaker,boot&balance",
        "classes=pullover,coat,shirt",
    ),
    "cifar10": (
        "",
        "classes=bird,cat,deer,dog,frog,horse",
        "classes=airplane,automobile,ship,truck",
        "parity",
        "detect=automobile,truck&balance",
        "merge=airplane+ship,automobile+truck,bird+frog,cat+dog,deer+horse",
    ),
}


class SmallCNN(nn.Module):
    """Three 3x3 convolutions of 8, 16 and 48 channels with batch norm, global average pooling and a linear head."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__()
        sizes = (input_shape[0], 8, 16, 48)
        layers: list[nn.Module] = []
        for before, after in pairwise(sizes):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
        self.body = nn.Sequential(*layers[:-1])
        self.head = nn.Linear(sizes[-1], num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W]` to `[N, K]`."""
        outputs: Tensor = self.head(self.body(x).mean((2, 3)))
        return outputs


@dataclass(frozen=True)
class Name:
    """A task's data set and the question asked of it."""

    data: str
    question: str

    def __str__(self) -> str:
        return f"{self.data}?{self.question}" if self.question else self.data


NAMES = tuple(Name(data, question) for data, questions in QUESTIONS.items() for question in questions)


@dataclass(frozen=True, eq=False)
class Parts:
    """Data of one task and seed: samples `[N, 1, 14, 14]` and labels `[N]`."""

    num_outputs: int
    source: tuple[Tensor, Tensor]
    target: tuple[Tensor, Tensor]
    held_out: tuple[Tensor, Tensor]


@cache
def parent(data: str) -> Task:
    """A whole data set at the common shape."""
    return NEW_DATA[data]() if data in NEW_DATA else read(DATA[data])


def asked(task: Task, question: str) -> Task:
    """The task with a question's modifiers, in the order of data strings."""
    options = dict(DataString.parse(f"digits?{question}").options) if question else {}
    for modifier, change in MODIFIERS.items():
        if modifier in options:
            task = change(task, options[modifier], options)
    return task


@cache
def pools(name: Name) -> dict[str, Task]:
    """A task with the training samples of sources only, and of targets only."""
    whole = parent(name.data)
    order = torch.randperm(len(whole.train), generator=Streams(0).at("pools", name.data))
    cut = round(TARGET_SHARE * len(order))
    index = {"target": order[:cut], "source": order[cut:]}
    return {role: asked(replace(whole, train=whole.train.chosen(rows)), name.question) for role, rows in index.items()}


def parts(name: Name, seed: int) -> Parts:
    """Samples of a task for sources, for targets and held out; the seed chooses which of them."""
    counts = {"target": TARGET_SAMPLES, "source": SOURCE_SAMPLES}
    results = {role: derive.limited(pool, counts[role], seed=seed) for role, pool in pools(name).items()}
    test = results["target"].test
    kept = torch.randperm(len(test), generator=Streams(0).at("held out"))[:HELD_OUT]
    (x, y), (xs, ys), (xt, yt) = (
        tuple(examples.all()) for examples in (test.chosen(kept), results["source"].train, results["target"].train)
    )
    return Parts(results["target"].num_outputs, (xs, ys), (xt, yt), (x, y))
