r"""Leakage: one input number that gives the answer nearly alone, such as a copy of the label or a mark in a corner.

Every column (or pixel, or an image's mean brightness) is cut into bins of equal count; what a bin means is learned from
one half of the samples and judged on the other, both ways. The skill of a column is the balanced accuracy of that
predictor, 0 at chance and 1 without error; for a single class, the share of it that is caught less the share of others
that is caught with it; for real values R².

Strong columns can be honest: petal width alone tells the irises apart with skill 0.9, and so does petal length. The
sign of a leak is that one column stands out from its kind. So a caution is given where one column gives nine tenths of
what a quick model of all inputs gives, *and* stands a quarter above what is usual among the others: their 97 %
quantile, which in small tables is the best of them, and in images allows for neighbours alike (one pixel tells a 0 of
MNIST from a 1, and so do those around it). A column that is strong in strong company is told without a caution, with
the question to ask of it: would it be known beforehand? A leak copied into several columns of a small table is
therefore told, not cautioned. The order of rows in the file is no input and is not looked at.

Notation: N samples, D columns, B bins, C classes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from nearkin.core.rng import Streams
from nearkin.tasks.checks.duplicates import block_rows
from nearkin.tasks.checks.label_noise import descriptors, held_out, known_classes
from nearkin.tasks.examples import is_constant
from nearkin.tasks.metrics import R2, metric_title
from nearkin.tasks.rows import Rows
from nearkin.tasks.task import Task

MOST_COLUMNS = 4096
SIDE = 32  # images of more numbers than that are pooled to it
MOST_CLASSES = 50
LEAST_SAMPLES = 50
LEAST_OF_CLASS = 20
USUAL = 0.97
MOST_NUMBERS = 4_000_000  # N·D
STRONG, NEARLY_ALL, STANDS_OUT = 0.5, 0.9, 0.25
CATCHES = 0.95


@dataclass(frozen=True)
class Leakage:
    """The best single column: its name, its skill, what is usual among the others and what a quick model has.

    `caught` is the class that it tells from all others, where it is that and not the whole question it answers.
    """

    column: str
    skill: float
    usual: float
    model: float | None
    grave: bool
    caught: str = ""
    metric: str = "skill"

    @property
    def text(self) -> str:
        """One plain sentence."""
        if not self.column:
            return "No single input could be judged: there are too few samples or they do not vary."
        what = f"tells class {self.caught} from the others" if self.caught else "alone predicts the target"
        whole = "" if self.model is None or self.caught else f"; a quick model of all inputs has {self.model:.2f}"
        name = self.column[0].upper() + self.column[1:]
        said = f"{name} {what} with {metric_title(self.metric)} {self.skill:.2f} (usual here {self.usual:.2f}{whole})"
        strong = self.skill >= STRONG and (self.model is None or self.skill >= NEARLY_ALL * self.model)
        if self.grave:
            return f"{said}; it may be a copy of the answer: check that it is known beforehand, else leave it out."
        return f"{said}; check that it would be known beforehand." if strong else f"{said}."

    def facts(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "column": self.column,
            "metric": self.metric,
            "skill": round(self.skill, 4),
            "usual": round(self.usual, 4),
            "quick_model": None if self.model is None else round(self.model, 4),
            "class": self.caught,
        }


def class_leakage(task: Task, model: float | None, *, seed: int = 0, samples: int = 5000) -> Leakage:
    """The column that says most of the class; `model` is the skill of a quick model of all inputs.

    >>> from nearkin.tasks.sources import task
    >>> class_leakage(task("digits?classes=0,1,2"), 1.0, samples=300).grave
    False
    """
    rng = Streams(seed).at("checks", "leakage")
    rows, y, kept = known_classes(task.train.labels(), _affordable(task, samples), rng, MOST_CLASSES)
    if len(rows) < LEAST_SAMPLES or len(kept) < 2:
        return Leakage("", 0.0, 0.0, model, False)
    x, names = columns(task.train.inputs, rows, rng)
    bins = binned(x, min(64, max(16, 3 * len(kept))))
    balanced, caught = class_skills(bins, y, len(kept), rng)
    best = int(balanced.argmax())
    skill, usual = float(balanced[best]), usual_of(balanced, best)
    if _stands_out(skill, usual, model) or len(kept) == 2:
        return Leakage(names(best), skill, usual, model, _stands_out(skill, usual, model))
    sizes = torch.bincount(y, minlength=len(kept))
    for number in torch.argsort(caught.amax(0), descending=True).tolist():
        of_class = caught[:, number]
        column = int(of_class.argmax())
        high, common = float(of_class[column]), usual_of(of_class, column)
        if sizes[number] >= LEAST_OF_CLASS and high >= CATCHES and high - common >= STANDS_OUT:
            return Leakage(names(column), high, common, model, True, task.classes[int(kept[number])])
    return Leakage(names(best), skill, usual, model, False)


def value_leakage(task: Task, *, seed: int = 0, samples: int = 5000) -> Leakage:
    """The column that says most of a real-valued target, by R² (of the first target column where there are several)."""
    rng = Streams(seed).at("checks", "leakage")
    rows = torch.randperm(len(task.train), generator=rng)[: _affordable(task, samples)].sort().values
    target = task.train.targets.take(rows).view(len(rows), -1)[:, :1].double()
    target = target.clamp(*target.quantile(torch.tensor([0.01, 0.99]).double()))  # a wild value would rule R²
    if len(rows) < LEAST_SAMPLES or bool(is_constant(target.std(), target.abs().max(), torch.float32)):
        return Leakage("", 0.0, 0.0, None, False, metric=R2)
    target = (target - target.mean()) / target.std()
    x, names = columns(task.train.inputs, rows, rng)
    r2 = value_skills(binned(x, 16), target[:, 0], rng)
    scores = held_out(descriptors(task.train.inputs, rows), target, rng)
    model = max(0.0, max(1 - float((score - target).square().mean()) for score in scores))
    best = int(r2.argmax())
    skill, usual = float(r2[best]), usual_of(r2, best)
    return Leakage(names(best), skill, usual, model, _stands_out(skill, usual, model), metric=R2)


class _Names:
    """What the columns of an input are called."""

    def __init__(self, shape: tuple[int, ...], index: Tensor, pooled: bool) -> None:
        self.shape, self.index, self.pooled = shape, index, pooled

    def __call__(self, column: int) -> str:
        if len(self.shape) < 3:
            return f"column {int(self.index[column])}"
        channels, height, width = self.shape
        if column == channels * height * width:
            return "the mean brightness"
        channel, rest = divmod(column, height * width)
        where = f"row {rest // width}, column {rest % width}"
        of = f" of channel {channel}" if channels > 1 else ""
        return f"the {'patch' if self.pooled else 'pixel'} at {where}{of}"


def columns(inputs: Rows, rows: Tensor, rng: Generator) -> tuple[Tensor, _Names]:
    """Input numbers `[N, D]` at `rows` and their names; images are pooled where large and end in their brightness."""
    shape = inputs.shape
    size = math.prod(shape)
    pooled = len(shape) == 3 and size > MOST_COLUMNS
    index = torch.randperm(size, generator=rng)[:MOST_COLUMNS].sort().values
    parts = []
    for part in rows.split(block_rows(inputs)):
        x = torch.nan_to_num(inputs.take(part).float(), posinf=0.0, neginf=0.0)
        if pooled:
            x = F.adaptive_max_pool2d(x, (min(SIDE, shape[1]), min(SIDE, shape[2])))
        flat = x.flatten(1)
        parts.append(torch.cat([flat, flat.mean(1, keepdim=True)], 1) if len(shape) == 3 else flat[:, index])
    if pooled:
        shape = (shape[0], min(SIDE, shape[1]), min(SIDE, shape[2]))
    return torch.cat(parts), _Names(shape, index, pooled)


def binned(x: Tensor, bins: int) -> Tensor:
    """Bin numbers `[D, N]` of values `[N, D]`, of about equal count; equal values fall into one bin.

    >>> binned(torch.tensor([[3.0], [1.0], [2.0], [1.0]]), 4).tolist()
    [[2, 0, 1, 0]]
    """
    order = x.T.contiguous().sort(1).values
    places = (torch.arange(1, bins) * len(x)) // bins
    edges = order[:, places.clamp_max(len(x) - 1)].contiguous()
    return torch.searchsorted(edges, x.T.contiguous())


def class_skills(bins: Tensor, y: Tensor, classes: int, rng: Generator) -> tuple[Tensor, Tensor]:
    """Balanced skill `[D]` of every column, and how well it catches each class `[D, C]`, of bins `[D, N]`.

    >>> y = torch.arange(100) % 2
    >>> skill, caught = class_skills(torch.stack([y, 0 * y]), y, 2, torch.Generator().manual_seed(0))
    >>> skill.tolist(), caught.tolist()
    ([1.0, 0.0], [[1.0, 1.0], [0.0, 0.0]])
    """
    width = int(bins.max()) + 1
    halves = list(_halves(y, rng))
    skills, caughts = [], []
    for some in bins.split(max(1, 8_000_000 // (width * classes))):
        shares = [_shares(some[:, half], y[half], width, classes) for half in halves]
        skill, caught = torch.zeros(len(some)), torch.zeros(len(some), classes)
        for learn, judge in (shares, shares[::-1]):
            called = learn.argmax(2, keepdim=True)
            recall = judge.gather(2, called).sum((1, 2)) / classes
            skill += (recall - 1 / classes) / (1 - 1 / classes) / 2
            rest = (judge.sum(2, keepdim=True) - judge) / (classes - 1)
            others = (learn.sum(2, keepdim=True) - learn) / (classes - 1)
            caught += ((learn > others) * (judge - rest)).sum(1) / 2
        skills.append(skill)
        caughts.append(caught)
    return torch.cat(skills), torch.cat(caughts)


def value_skills(bins: Tensor, target: Tensor, rng: Generator) -> Tensor:
    """R² `[D]` of the mean target of each bin, learned on one half and judged on the other."""
    width = int(bins.max()) + 1
    first, second = _halves(torch.zeros(len(target), dtype=torch.int64), rng)
    skill = torch.zeros(len(bins), dtype=torch.float64)
    for learn, judge in ((first, second), (second, first)):
        own = target[learn].expand(len(bins), -1)
        total = torch.zeros(len(bins), width, dtype=torch.float64).scatter_add_(1, bins[:, learn], own)
        count = torch.zeros_like(total).scatter_add_(1, bins[:, learn], torch.ones_like(own))
        middle = target[learn].mean()
        means = (total + middle) / (count + 1)
        error = (means.gather(1, bins[:, judge]) - target[judge]).square().mean(1)
        spread = (target[judge] - middle).square().mean().clamp_min(1e-12)
        skill += (1 - error / spread) / 2
    return skill.clamp_min(0).float()


def usual_of(skill: Tensor, best: int) -> float:
    """What is usual among the other columns: their 97 % quantile, of a few their best.

    >>> usual_of(torch.tensor([0.75, 0.5, 0.125]), 0)
    0.5
    """
    others = torch.cat([skill[:best], skill[best + 1 :]]).sort().values
    if len(others) == 0:
        return 0.0
    return float(others[int(USUAL * len(others))])


def _affordable(task: Task, samples: int) -> int:
    size = min(MOST_COLUMNS, math.prod(task.input_shape))
    return min(samples, max(1000, MOST_NUMBERS // max(1, size)))


def _stands_out(skill: float, usual: float, model: float | None) -> bool:
    return skill >= STRONG and skill >= NEARLY_ALL * (model or 0.0) and skill - usual >= STANDS_OUT


def _halves(y: Tensor, rng: Generator) -> Iterator[Tensor]:
    """Two halves of the samples, every class in both."""
    order = torch.randperm(len(y), generator=rng)
    order = order[torch.argsort(y[order], stable=True)]
    yield order[0::2]
    yield order[1::2]


def _shares(bins: Tensor, y: Tensor, width: int, classes: int) -> Tensor:
    """Share of every class's samples that falls in each bin, `[D, B, C]`; they sum to 1 over B."""
    place = (torch.arange(len(bins))[:, None] * width + bins) * classes + y
    counts = torch.bincount(place.flatten(), minlength=len(bins) * width * classes).view(-1, width, classes).float()
    return counts / torch.bincount(y, minlength=classes).clamp_min(1)
