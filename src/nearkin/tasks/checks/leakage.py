r"""Leakage: a single input that predicts the target almost alone, such as a copy of the label or a mark in a corner.

Every column (or pixel, or an image's mean brightness) is divided into bins of equal count; a predictor from bins is
fitted to one half of the samples and evaluated on the other, in both directions. The skill of a column is the balanced
accuracy of that predictor, scaled to 0 at chance and 1 without error; for a single class, the share of the class that
is detected minus the share of other classes detected with it; for real values R².

A strong column can be legitimate: petal width alone separates the irises with skill 0.9, and so does petal length. The
sign of a leak is that one column is much stronger than the others. A warning is given if a column has at least 90 % of
the skill of a simple model of all inputs *and* exceeds the usual skill by 0.25. The usual skill is the 97 % quantile of
the other columns: in small tables the best of them; in images it allows for similar neighbours (one pixel separates a 0
of MNIST from a 1, and so do the pixels around it). A strong column among strong columns is reported without a warning,
with the question whether it is known before the prediction. A leak that is copied into several columns of a small table
is therefore reported without a warning. The order of rows in the file is not an input and is not checked.

Notation: N samples, D columns, B bins, C classes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from nearkin.core.rng import Streams
from nearkin.tasks.checks.label_noise import descriptors, finite_blocks, known_classes, leave_one_out
from nearkin.tasks.examples import is_constant
from nearkin.tasks.metrics import R2, metric_title
from nearkin.tasks.table_examples import column_titles
from nearkin.tasks.task import Task

MOST_COLUMNS = 4096
SIDE = 32  # images of more columns are pooled to this side
MOST_CLASSES = 50
LEAST_SAMPLES = 50
LEAST_OF_CLASS = 20
USUAL = 0.97
MOST_NUMBERS = 4_000_000  # N·D
STRONG, NEARLY_ALL, STANDS_OUT = 0.5, 0.9, 0.25
CATCHES = 0.95


@dataclass(frozen=True)
class Leakage:
    """The best single column: its name, its skill, the usual skill of the others, and the skill of a simple model.

    `caught` is the class that it separates from all others, if it predicts only one class.
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
        """One sentence for people."""
        if not self.column:
            return "No single input could be evaluated: there are too few samples or they do not vary."
        verb = f"separates class {self.caught} from the others" if self.caught else "alone predicts the target"
        model = "" if self.model is None or self.caught else f"; a simple model of all inputs has {self.model:.2f}"
        name = self.column[0].upper() + self.column[1:]
        text = f"{name} {verb} with {metric_title(self.metric)} {self.skill:.2f} (usual here {self.usual:.2f}{model})"
        if self.grave:
            advice = "check that it is known before the prediction, else leave it out"
            return f"{text}; it may be a copy of the target: {advice}."
        strong = self.skill >= STRONG and (self.model is None or self.skill >= NEARLY_ALL * self.model)
        return f"{text}; check that it is known before the prediction." if strong else f"{text}."

    def facts(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "column": self.column,
            "metric": self.metric,
            "skill": round(self.skill, 4),
            "usual": round(self.usual, 4),
            "quick_model": None if self.model is None else round(self.model, 4),
            "class": self.caught,
        }


def class_leakage(task: Task, model: float | None, *, seed: int = 0, samples: int = 5000) -> Leakage:
    """The column that predicts the class best; `model` is the skill of a simple model of all inputs.

    >>> from nearkin.tasks.sources import task
    >>> class_leakage(task("digits?classes=0,1,2"), 1.0, samples=300).grave
    False
    """
    rng = Streams(seed).at("checks", "leakage")
    rows, y, kept = known_classes(task.train.labels(), _affordable(task, samples), rng, MOST_CLASSES)
    if len(rows) < LEAST_SAMPLES or len(kept) < 2:
        return Leakage("", 0.0, 0.0, model, False)
    x, names = columns(task, rows, rng)
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
    """The column that predicts a real target best, by R² (of the first target column if there are several)."""
    rng = Streams(seed).at("checks", "leakage")
    rows = torch.randperm(len(task.train), generator=rng)[: _affordable(task, samples)].sort().values
    target = task.train.targets.take(rows).view(len(rows), -1)[:, :1].double()
    target = target.clamp(*target.quantile(torch.tensor([0.01, 0.99]).double()))  # an outlier would dominate R²
    if len(rows) < LEAST_SAMPLES or bool(is_constant(target.std(), target.abs().max(), torch.float32)):
        return Leakage("", 0.0, 0.0, None, False, metric=R2)
    target = (target - target.mean()) / target.std()
    x, names = columns(task, rows, rng)
    r2 = value_skills(binned(x, 16), target[:, 0], rng)
    scores = leave_one_out(descriptors(task.train.inputs, rows), target, rng)
    model = max(0.0, max(1 - float((score - target).square().mean()) for score in scores))
    best = int(r2.argmax())
    skill, usual = float(r2[best]), usual_of(r2, best)
    return Leakage(names(best), skill, usual, model, _stands_out(skill, usual, model), metric=R2)


def columns(task: Task, rows: Tensor, rng: Generator) -> tuple[Tensor, Callable[[int], str]]:
    """Columns `[N, D]` of the training inputs at `rows`, and a function that names them.

    Large images are pooled; the last column of images is their mean brightness.
    """
    inputs, titles = task.train.inputs, column_titles(task.preprocessing)
    size = math.prod(inputs.shape)
    index = torch.randperm(size, generator=rng)[:MOST_COLUMNS].sort().values
    if len(inputs.shape) != 3:
        x = torch.cat([block.flatten(1)[:, index] for block in finite_blocks(inputs, rows)])
        return x, lambda column: f"column {_title(int(index[column]), titles)}"
    channels, height, width = inputs.shape
    pooled = size > MOST_COLUMNS
    if pooled:
        height, width = min(SIDE, height), min(SIDE, width)

    def flat(images: Tensor) -> Tensor:
        values = (F.adaptive_max_pool2d(images, (height, width)) if pooled else images).flatten(1)
        return torch.cat([values, values.mean(1, keepdim=True)], 1)

    def name(column: int) -> str:
        if column == channels * height * width:
            return "the mean brightness"
        channel, pixel = divmod(column, height * width)
        position = f"row {pixel // width}, column {pixel % width}" + (f" of channel {channel}" if channels > 1 else "")
        return f"the {'patch' if pooled else 'pixel'} at {position}"

    return torch.cat([flat(images) for images in finite_blocks(inputs, rows)]), name


def _title(number: int, titles: Sequence[str]) -> str:
    """Name of an encoded column, such as `'size'` or `'colour' (red)`; its number if the inputs are no table.

    >>> _title(1, ["size: value", "colour: red"]), _title(0, ["size: value"]), _title(3, [])
    ("'colour' (red)", "'size'", '3')
    """
    if not titles:
        return str(number)
    name, _, part = titles[number].rpartition(": ")
    return f"{name!r}" if part == "value" else f"{name!r} ({part})"


def binned(x: Tensor, bins: int) -> Tensor:
    """Bin numbers `[D, N]` of values `[N, D]`, with bins of about equal count; equal values have the same bin.

    >>> binned(torch.tensor([[3.0], [1.0], [2.0], [1.0]]), 4).tolist()
    [[2, 0, 1, 0]]
    """
    order = x.T.contiguous().sort(1).values
    positions = (torch.arange(1, bins) * len(x)) // bins
    edges = order[:, positions.clamp_max(len(x) - 1)].contiguous()
    return torch.searchsorted(edges, x.T.contiguous())


def class_skills(bins: Tensor, y: Tensor, classes: int, rng: Generator) -> tuple[Tensor, Tensor]:
    """Balanced skill `[D]` of every column, and its skill for each class `[D, C]`, from bins `[D, N]`.

    >>> y = torch.arange(100) % 2
    >>> skill, caught = class_skills(torch.stack([y, 0 * y]), y, 2, torch.Generator().manual_seed(0))
    >>> skill.tolist(), caught.tolist()
    ([1.0, 0.0], [[1.0, 1.0], [0.0, 0.0]])
    """
    width = int(bins.max()) + 1
    halves = _halves(y, rng)
    skills, caughts = [], []
    for block in bins.split(max(1, 8_000_000 // (width * classes))):
        shares = [_shares(block[:, half], y[half], width, classes) for half in halves]
        skill, caught = torch.zeros(len(block)), torch.zeros(len(block), classes)
        for train, test in (shares, shares[::-1]):
            predicted = train.argmax(2, keepdim=True)
            recall = test.gather(2, predicted).sum((1, 2)) / classes
            skill += (recall - 1 / classes) / (1 - 1 / classes) / 2
            test_others = (test.sum(2, keepdim=True) - test) / (classes - 1)
            train_others = (train.sum(2, keepdim=True) - train) / (classes - 1)
            caught += ((train > train_others) * (test - test_others)).sum(1) / 2
        skills.append(skill)
        caughts.append(caught)
    return torch.cat(skills), torch.cat(caughts)


def value_skills(bins: Tensor, target: Tensor, rng: Generator) -> Tensor:
    """R² `[D]` of the mean target of each bin, fitted to one half and evaluated on the other."""
    width = int(bins.max()) + 1
    first, second = _halves(torch.zeros(len(target), dtype=torch.int64), rng)
    skill = torch.zeros(len(bins), dtype=torch.float64)
    for train, test in ((first, second), (second, first)):
        values = target[train].expand(len(bins), -1)
        total = torch.zeros(len(bins), width, dtype=torch.float64).scatter_add_(1, bins[:, train], values)
        count = torch.zeros_like(total).scatter_add_(1, bins[:, train], torch.ones_like(values))
        middle = target[train].mean()
        means = (total + middle) / (count + 1)
        error = (means.gather(1, bins[:, test]) - target[test]).square().mean(1)
        spread = (target[test] - middle).square().mean().clamp_min(1e-12)
        skill += (1 - error / spread) / 2
    return skill.clamp_min(0).float()


def usual_of(skill: Tensor, best: int) -> float:
    """The usual skill of the other columns: their 97 % quantile, or the best of a few.

    >>> usual_of(torch.tensor([0.75, 0.5, 0.125]), 0)
    0.5
    """
    others = torch.cat([skill[:best], skill[best + 1 :]]).sort().values
    return float(others[int(USUAL * len(others))]) if len(others) else 0.0


def _affordable(task: Task, samples: int) -> int:
    size = min(MOST_COLUMNS, math.prod(task.input_shape))
    return min(samples, max(1000, MOST_NUMBERS // max(1, size)))


def _stands_out(skill: float, usual: float, model: float | None) -> bool:
    return skill >= STRONG and skill >= NEARLY_ALL * (model or 0.0) and skill - usual >= STANDS_OUT


def _halves(y: Tensor, rng: Generator) -> tuple[Tensor, Tensor]:
    """Two halves of the samples, with every class in both."""
    order = torch.randperm(len(y), generator=rng)
    order = order[torch.argsort(y[order], stable=True)]
    return order[0::2], order[1::2]


def _shares(bins: Tensor, y: Tensor, width: int, classes: int) -> Tensor:
    """Share of every class's samples in each bin, `[D, B, C]`; the shares sum to 1 over B."""
    cell = (torch.arange(len(bins))[:, None] * width + bins) * classes + y
    counts = torch.bincount(cell.flatten(), minlength=len(bins) * width * classes).view(-1, width, classes).float()
    return counts / torch.bincount(y, minlength=classes).clamp_min(1)
